/* data/sampler.h -- which samples a micro-batch has, in the order that was asked for. */
#ifndef LKI_DATA_SAMPLER_H
#define LKI_DATA_SAMPLER_H

#include "lockstep/data.h"

/* A sample that is to be dealt. */
typedef struct {
    uint64_t index;
    uint32_t position; /* in the batch */
    uint32_t tokens;
} lki_dealt;

/* What a virtual worker has got. */
typedef struct {
    uint64_t tokens;
    uint32_t samples;
} lki_hand;

typedef struct {
    const lk_dataset *dataset;
    lk_loader_options options;
    uint32_t          micro_count;
    uint64_t          positions; /* of an epoch */
    uint32_t         *table;     /* PyTorch's permutation of `table_epoch`; NULL: none is needed */
    uint64_t          table_epoch;

    /* Where samples are documents, of the step that is being dealt: see balance.c. */
    lki_dealt *dealt;
    uint64_t  *slots;  /* [global_batch]: the samples of virtual worker v from v Mb on */
    lki_hand  *hands;  /* [virtual_workers] */
    uint64_t   dealt_epoch, dealt_first;
} lki_sampler;

/* LK_EINVAL where order and data do not fit one another. */
LK_NODISCARD lk_status lki_sampler_open(lki_sampler *out, const lk_dataset *dataset,
                                        const lk_loader_options *options);
void lki_sampler_close(lki_sampler *sampler);

lk_step_span lki_sampler_step(const lki_sampler *sampler, uint64_t step);

/* The samples of micro-batch `micro` of virtual worker `v` go to `indices`, which has room for
 * micro_batch; returns how many there are.  One thread at a time. */
uint32_t lki_sampler_take(lki_sampler *sampler, const lk_step_span *span, uint32_t v,
                          uint32_t micro, uint64_t *indices);

/* balance.c: deals `count` samples, which it sorts, to virtual workers with room for `each`:
 * slots[v * each + i] becomes the i-th of virtual worker v, hands[v] says how many. */
void lki_deal(lki_dealt *samples, size_t count, uint32_t virtual_workers, uint32_t each,
              uint64_t *slots, lki_hand *hands);

#endif

/* data/sampler.h -- the samples of a micro-batch, in the requested order. */
#ifndef LKI_DATA_SAMPLER_H
#define LKI_DATA_SAMPLER_H

#include "lockstep/data.h"

/* A sample to be assigned. */
typedef struct {
    uint64_t index;
    uint32_t position; /* position in the batch */
    uint32_t tokens;
} lki_dealt;

/* The samples assigned to a virtual worker. */
typedef struct {
    uint64_t tokens;
    uint32_t samples;
} lki_hand;

typedef struct {
    const lk_dataset *dataset;
    lk_loader_options options;
    uint32_t          micro_count;
    uint64_t          positions; /* number of positions per epoch */
    uint32_t         *table;     /* PyTorch's permutation of `table_epoch`; NULL: not needed */
    uint64_t          table_epoch;

    /* With documents: the assignment of the current step; see balance.c. */
    lki_dealt *dealt;
    uint64_t  *slots;  /* [global_batch]: samples of virtual worker v from index v M b on */
    lki_hand  *hands;  /* [virtual_workers] */
    uint64_t   dealt_epoch, dealt_first;
} lki_sampler;

/* Opens a sampler.  Returns LK_EINVAL if the requested order does not apply to this data set. */
LK_NODISCARD lk_status lki_sampler_open(lki_sampler *out, const lk_dataset *dataset,
                                        const lk_loader_options *options);
void lki_sampler_close(lki_sampler *sampler);

/* Returns the part of an epoch that step `step` covers. */
lk_step_span lki_sampler_step(const lki_sampler *sampler, uint64_t step);

/* Writes the samples of micro-batch `micro` of virtual worker `v` to `indices`, which has room for
 * micro_batch samples.  Returns the number of samples.  Only one thread may call this function at a
 * time. */
uint32_t lki_sampler_take(lki_sampler *sampler, const lk_step_span *span, uint32_t v,
                          uint32_t micro, uint64_t *indices);

/* Sorts `count` samples and assigns them to virtual workers with room for `each` samples
 * (balance.c). slots[v * each + i] becomes the i-th sample of virtual worker v; hands[v] counts its
 * samples. */
void lki_deal(lki_dealt *samples, size_t count, uint32_t virtual_workers, uint32_t each,
              uint64_t *slots, lki_hand *hands);

#endif

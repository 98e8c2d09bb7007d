/* data/sampler.h -- which samples a micro-batch has, in the order that was asked for. */
#ifndef LKI_DATA_SAMPLER_H
#define LKI_DATA_SAMPLER_H

#include "lockstep/data.h"

typedef struct {
    const lk_dataset *dataset;
    lk_loader_options options;
    uint32_t          micro_count;
    uint64_t          positions; /* of an epoch */
    uint32_t         *table;     /* PyTorch's permutation of `table_epoch`; NULL: none is needed */
    uint64_t          table_epoch;
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

#endif

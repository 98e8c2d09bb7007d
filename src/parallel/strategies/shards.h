/* parallel/strategies/shards.h -- owners, and what hosts keep for each other when each has a part
 * of the model.  See shards.c. */
#ifndef LKI_PARALLEL_SHARDS_H
#define LKI_PARALLEL_SHARDS_H

#include "comm/fill.h"
#include "parallel/strategy.h"

/* Who owns: every host has all, or a shard.  The caller frees deal->owners. */
LK_NODISCARD lk_status lki_shards_deal(lk_parallel *parallel, lki_deal *deal);

/* Once layout and arena are there; lki_shards_close() accepts a half-made one. */
LK_NODISCARD lk_status lki_shards_open(lk_parallel *parallel);
void                   lki_shards_close(lk_parallel *parallel);

/* Who sends what an owner has made to other hosts, as its place in the group: all ranks of the
 * owner's host in equal parts, one owner's behind the other's. */
uint32_t lki_shards_carrier(const lk_parallel *parallel, uint32_t owner);

/* Collective where there are several shards: every host gets what the other
 * owners of its group have written
 * of block_sums, or of the parameters.  On return all ranks of this host may read it. */
LK_NODISCARD lk_status lki_shards_gather_sums(lk_parallel *parallel);
LK_NODISCARD lk_status lki_shards_gather_params(lk_parallel *parallel);

/* The same over `comm`, which has the ranks of the group, for a unit of parameters, to `at`, which
 * is at the same place of every host's arena; of each owner come so many bytes, side by side.  It
 * comes while the request is open: comm/fill.h. */
LK_NODISCARD lk_status lki_shards_gather_unit(lk_parallel *parallel, lk_comm *comm,
                                              const size_t *bytes, const void *at,
                                              const lki_filler *filler, lk_request **coming);

/* As a unit comes: its spans in the order of the parameter space, so that those of an owner are
 * neighbours; as they are read, with their padding, or each as blocks that are quantised. */
const size_t *lki_shards_unit_bytes(const lk_parallel *parallel, uint32_t unit);
size_t        lki_shards_span_bytes(const lk_parallel *parallel, const lki_param_span *span);
size_t        lki_shards_run_bytes(const lk_parallel *parallel, const lki_param_run *run);

#endif

/* parallel/strategies/shards.h -- owners, and the exchange of shards between hosts.  See
 * shards.c. */
#ifndef LKI_PARALLEL_SHARDS_H
#define LKI_PARALLEL_SHARDS_H

#include "comm/fill.h"
#include "parallel/state.h"

/* Lists the owners: those of each shard or, without shards, those of the whole model, which are
 * equal on every host.  The caller frees deal->owners. */
LK_NODISCARD lk_status lki_shards_deal(lk_parallel *parallel, lki_deal *deal);

/* Prepares gathering, once the layout and the arena exist. lki_shards_close() accepts a half-opened
 * state. */
LK_NODISCARD lk_status lki_shards_open(lk_parallel *parallel);
void                   lki_shards_close(lk_parallel *parallel);

/* Returns the rank of the group that sends an owner's values to other hosts.  The owners of a host
 * are divided between its ranks in equal, consecutive parts. */
uint32_t lki_shards_carrier(const lk_parallel *parallel, uint32_t owner);

/* Gathers norms.blocks from the other owners of the group, if there are several shards.  On return
 * all ranks of this host may read them.  Collective. */
LK_NODISCARD lk_status lki_shards_gather_sums(lk_parallel *parallel);

/* Gathers the parameters from the other owners of the group.  On return all ranks of this host may
 * read them.  Collective. */
LK_NODISCARD lk_status lki_shards_gather_params(lk_parallel *parallel);

/* Starts to gather a unit of parameters over `comm`, which has the ranks of the group.  `at` must
 * have the same offset in every host's arena.  Rank r sends bytes[r] bytes, which follow the bytes
 * of earlier ranks.  The unit arrives while the request is open; see comm/fill.h. */
LK_NODISCARD lk_status lki_shards_gather_unit(lk_parallel *parallel, lk_comm *comm,
                                              const size_t *bytes, const void *at,
                                              const lki_filler *filler, lk_request **coming);

/* Returns the number of bytes of a unit that each rank of the group sends.  The spans of a unit are
 * sent in the order of the parameter space, so those of an owner are neighbours.  Spans are sent in
 * the type in which they are read, with padding, or quantised in blocks. */
const size_t *lki_shards_unit_bytes(const lk_parallel *parallel, uint32_t unit);

/* Returns the bytes that are sent for a span in a unit. */
size_t        lki_shards_span_bytes(const lk_parallel *parallel, const lki_param_span *span);

/* Returns the bytes that are sent for a run in a unit. */
size_t        lki_shards_run_bytes(const lk_parallel *parallel, const lki_param_run *run);

/* As lk_parallel_fetch(), also within a step.  `parallel` is a single object. */
LK_NODISCARD lk_status lki_fetch(lk_parallel *parallel, uint32_t param, uint32_t which,
                                 size_t first, size_t count, float *out);

#endif

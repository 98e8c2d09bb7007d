/* parallel/versions/shard_survive.h -- what goes on after the death of a rank, with shards. */
#ifndef LKI_PARALLEL_VERSIONS_SHARD_SURVIVE_H
#define LKI_PARALLEL_VERSIONS_SHARD_SURVIVE_H

#include "parallel/versions/internal.h"

/* The update of a shard that a rank has begun last. */
typedef struct lki_saved_shard {
    _Atomic uint32_t shard;   /* 1 + the shard; 0: none */
    uint32_t         group;   /* whose gradient it is */
    uint64_t         applied; /* number of gradients that the shard had applied before */
} lki_saved_shard;

/* Returns a bound of the number of floats that the update of a shard changes. */
size_t lki_shard_saved_floats(const lki_versions *versions);

/* Saves what the update of a shard by the gradient of a group changes.  This rank holds the
 * shard. */
void lki_shard_save(const lk_parallel *parallel, uint32_t shard, uint32_t group);

/* Repairs shards and groups after the death of a rank.  One rank calls it. */
LK_NODISCARD lk_status lki_shards_repair(lk_parallel *parallel);

/* Returns the number of gradients of the step in progress that are not there. */
uint32_t lki_shards_unfinished(const lki_versions *versions);

#endif

/* parallel/stored.h -- the elements of a model that a host stores, for code that saves them
 * there. */
#ifndef LKI_PARALLEL_STORED_H
#define LKI_PARALLEL_STORED_H

#include "lockstep/parallel.h"

/* Returns the number of shards; 1: every host stores the whole model. */
uint32_t lki_stored_shards(const lk_parallel *parallel);

/* Returns the bytes that one vector of the size of the parameters takes in the largest shard. */
size_t lki_stored_most(const lk_parallel *parallel);

/* Returns the host of `parallel` on which rank `n` of `next` is, or the number of its hosts if
 * there is none.  `parallel` need not have the rank: if a rank that was lost had admitted it, it
 * has the memory of its host.  A host all of whose ranks enter with `next` has no memory yet. */
uint32_t lki_stored_host(const lk_parallel *parallel, const lk_comm *next, uint32_t n);

/* Returns true if the whole model is stored on the hosts of `next` that were members before. */
bool lki_stored_whole(const lk_parallel *parallel, const lk_comm *next);

/* Returns true if what groups keep (exchange.h) is stored on hosts of `next` that were members
 * before.  Otherwise sets *group to a group whose host is lost.  Defined in
 * features/groups_survive.c. */
bool lki_stored_groups(const lk_parallel *parallel, const lk_comm *next, uint32_t *group);

/* Sets *out to true if the model was sharded over all hosts of the job.  If hosts were lost before
 * sharding, a host that joins cannot determine which shard each host stores. */
LK_NODISCARD lk_status lki_stored_for_all(const lk_parallel *parallel, bool *out);

/* Returns true if values of kind `which` (see lk_parallel_value()) are sharded.  Optimizer states
 * may be sharded when parameters are not. */
bool lki_stored_in_parts(const lk_parallel *parallel, uint32_t which);

/* Returns true if this rank saves its host's shard, and then sets *shard.  Each shard is saved by
 * one rank: the first one of a host in the first group of hosts that has all shards. */
bool lki_stored_writer(const lk_parallel *parallel, uint32_t *shard);

/* Elements [first, first + count) of a parameter.  `data` is their address on this host, or
 * NULL. */
typedef struct {
    size_t       first, count;
    const float *data;
} lki_stored;

/* Finds the next contiguous run of elements of a parameter in a shard, in order.  Returns false at
 * the end.  *at must be 0 in the first call. */
bool lki_stored_next(const lk_parallel *parallel, uint32_t param, uint32_t which, uint32_t shard,
                     size_t *at, lki_stored *out);

#endif

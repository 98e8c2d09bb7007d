/* parallel/shard_map.h -- the hosts that store each shard of the model.  See shard_map.c. */
#ifndef LKI_PARALLEL_SHARD_MAP_H
#define LKI_PARALLEL_SHARD_MAP_H

#include "base/status.h"
#include "lockstep/parallel.h"

/* Hosts and groups are numbered as in the current group of ranks. */
typedef struct {
    /* number of hosts at the start of the run; with `for_all`, the maximum of the job */
    uint32_t  born;
    bool      buddies; /* two neighbouring hosts also store each other's shard */
    bool      for_all; /* the model is sharded over all hosts of the job, including absent ones */
    uint32_t *origins; /* [hosts]: each host's number at the start of the run */
    uint8_t  *stored;  /* [hosts][shards]: 1 if the host stores the shard */
    uint32_t *groups;  /* [hosts]: each host's group, within which hosts exchange shards */
    uint32_t  count;   /* number of groups */
    uint32_t *givers;  /* [groups][shards]: the host that sends the shard to its group */
    size_t   *before;  /* [shards]: number of elements of all earlier shards on this host */
    bool      doubled; /* a host stores a shard that another host of its group sends */
} lki_shard_map;

/* Computes the number of shards, and the hosts that store them.  The world, the strategy and
 * ledger.goes_on must be set.  Returns LK_EPEER if a shard is lost. */
LK_NODISCARD lk_status lki_shard_map_open(lk_parallel               *parallel,
                                          const lk_parallel_options *options);
void                   lki_shard_map_close(lk_parallel *parallel);

/* Returns true if a host stores a shard. */
bool lki_shard_map_has(const lk_parallel *parallel, uint32_t host, uint32_t shard);

/* Returns the group of a host. */
uint32_t lki_group_of(const lk_parallel *parallel, uint32_t host);

/* Returns the host that sends a shard to the group of `host`. */
uint32_t lki_giver(const lk_parallel *parallel, uint32_t host, uint32_t shard);

/* Returns how many hosts store a shard. */
uint32_t lki_shard_map_count(const lk_parallel *parallel, uint32_t shard);

/* Returns the table for lk_tree_op.wanted: the hosts that need each shard's sums. */
const uint8_t *lki_shard_map_wanted(const lk_parallel *parallel);

/* Returns true if two hosts store the same shards. */
bool lki_shard_map_alike(const lk_parallel *parallel, uint32_t host, uint32_t other);

/* Returns true if groups remain complete after the loss of any one host. */
bool lki_shard_map_spare(const lk_parallel *parallel);

/* Computes the offset of each shard in the memory of this host, once the layout is known. */
void lki_shard_map_place(lk_parallel *parallel);

/* Returns the maximum number of elements that any host stores.  It is the same on all hosts,
 * because it does not depend on which hosts are in the group. */
size_t lki_stored_elements(const lk_parallel *parallel);

#endif

/* parallel/strategies/keepers.h -- which hosts keep which part of the model.  See keepers.c. */
#ifndef LKI_PARALLEL_KEEPERS_H
#define LKI_PARALLEL_KEEPERS_H

#include "base/status.h"
#include "lockstep/parallel.h"

/* Hosts and groups are counted as they are now. */
typedef struct {
    uint32_t  born;    /* hosts when the run began, or that the job may have ... */
    bool      for_all; /* ... which is found out from the job, not from a group before */
    uint32_t *origins; /* [hosts]: which of those each is */
    uint8_t  *kept;    /* [hosts][shards]: whether it has that part */
    uint32_t *groups;  /* [hosts]: those of a group give each other what they keep */
    uint32_t  count;   /* groups */
    uint32_t *givers;  /* [groups][shards]: the host that gives it */
    size_t   *before;  /* [shards]: elements that my host keeps of those before it */
    bool      doubled; /* a host keeps what another one of its group gives */
} lki_keepers;

/* Once world and strategy are there, and whether it goes on: into how many parts the model is cut,
 * and who keeps them.  LK_EPEER: a part is lost. */
LK_NODISCARD lk_status lki_keepers_open(lk_parallel *parallel, const lk_parallel_options *options);
void                   lki_keepers_close(lk_parallel *parallel);

bool     lki_keeps(const lk_parallel *parallel, uint32_t host, uint32_t shard);
uint32_t lki_group_of(const lk_parallel *parallel, uint32_t host);

/* The host of `host`'s group that gives a shard. */
uint32_t lki_giver(const lk_parallel *parallel, uint32_t host, uint32_t shard);

/* Hosts that keep a shard. */
uint32_t lki_keepers_count(const lk_parallel *parallel, uint32_t shard);

/* Of sums, which host wants which shard's, for lk_tree_op.wanted. */
const uint8_t *lki_keepers_wanted(const lk_parallel *parallel);

/* Whether two hosts keep the same. */
bool lki_keep_alike(const lk_parallel *parallel, uint32_t host, uint32_t other);

/* Whether groups stay whole if a host is lost, unless one that has the same is lost as well. */
bool lki_keepers_spare(const lk_parallel *parallel);

/* Once the layout is there: where shards lie in what my host keeps. */
void lki_keepers_place(lk_parallel *parallel);

/* Elements of all that a host keeps, the most of any that there may be. */
size_t lki_kept_elements(const lk_parallel *parallel);

#endif

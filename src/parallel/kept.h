/* parallel/kept.h -- which elements of a model a host keeps, for whoever writes them there. */
#ifndef LKI_PARALLEL_KEPT_H
#define LKI_PARALLEL_KEPT_H

#include "lockstep/parallel.h"

/* Parts that hosts keep of a model, 1: every host has all of it. */
uint32_t lki_kept_shards(const lk_parallel *parallel);

/* Bytes of one vector, as parameters are, over the largest of them. */
size_t lki_kept_most(const lk_parallel *parallel);

/* Whether those hosts of `next` that were there before keep all of it. */
bool lki_kept_whole(const lk_parallel *parallel, const lk_comm *next);

/* Whether the model is cut into parts for all hosts of the job: else some were lost before it was,
 * and who enters cannot know what is whose. */
LK_NODISCARD lk_status lki_kept_for_all(const lk_parallel *parallel, bool *out);

/* Whether values of this kind (lk_parallel_value()) are in parts; parameters may not be where the
 * optimizer's states are. */
bool lki_kept_in_parts(const lk_parallel *parallel, uint32_t which);

/* Whether this rank is the one that writes its host's part: there is one for each, the first of a
 * host of the first group that has them all.  *shard is which. */
bool lki_kept_writer(const lk_parallel *parallel, uint32_t *shard);

/* Elements [first, first + count) of a parameter; data: where they lie on this host, or NULL. */
typedef struct {
    size_t       first, count;
    const float *data;
} lki_kept;

/* The next stretch that a shard has of a value, in order; false when there is none.  *at begins
 * at 0. */
bool lki_kept_next(const lk_parallel *parallel, uint32_t param, uint32_t which, uint32_t shard,
                   size_t *at, lki_kept *out);

#endif

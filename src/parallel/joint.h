/* parallel/joint.h -- joint turns, which compute a subtree of virtual workers at once.
 *
 * The caller sums the gradients of a joint turn, and its sums of running state, by the canonical
 * tree, and overwrites the memory of index 0 with the results.  It reports every virtual worker.
 * No bit of the result changes.
 *
 * A subtree that is one turn needs one buffer.  So a strategy whose turns are joined from the
 * beginning allocates fewer buffers.
 */
#ifndef LKI_PARALLEL_JOINT_H
#define LKI_PARALLEL_JOINT_H

#include "lockstep/parallel.h"

/* Opens a strategy like lk_parallel_open(), with joint turns as after lki_turns_join(), and
 * allocates buffers for such turns only.  Turns are single where lki_turns_join() would return
 * false.  All ranks must give the same `most`. */
LK_NODISCARD lk_status lki_parallel_open_joint(lk_parallel **out, lk_comm *comm,
                                               const lk_param *params, uint32_t param_count,
                                               const lk_parallel_options *options, uint32_t most);

/* Computes the cost of lki_parallel_open_joint(), like lk_parallel_estimate(). */
LK_NODISCARD lk_status lki_parallel_estimate_joint(lk_parallel_cost *out, const lk_param *params,
                                                   uint32_t                   param_count,
                                                   const lk_parallel_options *options,
                                                   const uint32_t *host_sizes, uint32_t hosts,
                                                   uint32_t most);

/* Lets a turn compute up to `most` virtual workers that form a subtree of a power of two.  With 1,
 * turns are single again.  Must not be called during a step.  Does nothing, and returns false, if
 * there are too few buffers, or if gradients of single virtual workers are needed: for a feature,
 * for a type to which they are rounded, or by the strategy. */
bool lki_turns_join(lk_parallel *parallel, uint32_t most);

#endif

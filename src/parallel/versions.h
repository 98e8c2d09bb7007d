/* parallel/versions.h -- asynchronous training as the folders of this room see it.
 *
 * An lk_parallel with versions trains nothing itself.  Each rank has an object of its own for one
 * group, the model, with which it computes tasks and updates the parameters.  Calls go to this
 * object (lki_in_use(), state.h).  The functions below are what the public functions of the same
 * names do with versions; they are defined in parallel/versions/.
 */
#ifndef LKI_PARALLEL_VERSIONS_H
#define LKI_PARALLEL_VERSIONS_H

#include "base/status.h"
#include "lockstep/parallel.h"
#include "parallel/balance.h"

typedef struct lki_versions lki_versions;

/* Opens parallel->versions, for parallel->comm. */
LK_NODISCARD lk_status lki_versions_open(lk_parallel *parallel, const lk_param *params,
                                         uint32_t param_count, const lk_parallel_options *options,
                                         uint32_t joint);

/* Does what lk_parallel_go_on() does. */
LK_NODISCARD lk_status lki_versions_go_on(lk_parallel **out, const lk_parallel *failed,
                                          lk_comm *comm, const lk_param *params,
                                          uint32_t param_count,
                                          const lk_parallel_options *options,
                                          lk_parallel_standing *standing);

/* Frees parallel->versions, if there are any.  Over several hosts all ranks meet, unless something
 * has failed. */
void lki_versions_free(lk_parallel *parallel);

/* Sends and receives gradients between hosts, during a turn. */
void lki_versions_progress(lk_parallel *parallel);

/* Returns the object with which this rank computes.  Its parameters are those of the version that
 * the current task reads or, outside turns, of the last step. */
lk_parallel *lki_versions_model(const lki_versions *versions);

LK_NODISCARD lk_status lki_versions_begin(lk_parallel *parallel, uint64_t step, uint32_t micros);
bool                   lki_versions_next(lk_parallel *parallel, lk_parallel_turn *turn);
LK_NODISCARD lk_status lki_versions_finish(lk_parallel *parallel, double lr,
                                           lk_step_result *result);
LK_NODISCARD lk_status lki_versions_resume(lk_parallel *parallel, uint64_t steps);
LK_NODISCARD lk_status lki_versions_load(lk_parallel *parallel, uint32_t param, uint32_t which,
                                         const float *values);
LK_NODISCARD lk_status lki_versions_load_state(lk_parallel *parallel, uint32_t state,
                                               const float *values);

/* Groups keep the values that their tasks have read. */
uint32_t    lki_versions_groups(const lki_versions *versions);
const char *lki_versions_kept_name(const lki_versions *versions, uint32_t param, uint32_t which);
LK_NODISCARD lk_status lki_versions_fetch_kept(lk_parallel *parallel, uint32_t param,
                                               uint32_t group, size_t first, size_t count,
                                               float *out);
LK_NODISCARD lk_status lki_versions_load_kept(lk_parallel *parallel, uint32_t param, uint32_t group,
                                              const float *values);

/* Returns the number of gradients that the recorded schedule of a live run or a replay had when it
 * was opened. */
uint64_t lki_versions_recorded(const lk_parallel *parallel);

/* ---- Without a meeting of ranks ------------------------------------------------------------ */

/* Ranks do not meet at the end of a step.  So that they can agree whether a run goes on, each gives
 * the largest number that it has seen. */
void     lki_versions_say(const lk_parallel *parallel, uint32_t number);

/* Returns the largest number that any rank had given when the last step was complete. */
uint32_t lki_versions_heard(const lk_parallel *parallel);

#endif

/* parallel/replicas.h -- replicas as the folders of this room see them.
 *
 * An lk_parallel with replicas trains nothing itself.  It has one object for the outer weights, and
 * one for each replica of this rank.  Calls go to the object in use (lki_in_use(), state.h): that
 * of a replica during its turns, and otherwise that of the outer weights.  The functions below are
 * what the public functions of the same names do if there are replicas; they are defined in
 * parallel/replicas/.
 */
#ifndef LKI_PARALLEL_REPLICAS_H
#define LKI_PARALLEL_REPLICAS_H

#include "parallel/balance.h"

typedef struct lki_replicas lki_replicas;

/* Opens parallel->replicas, for parallel->comm. */
LK_NODISCARD lk_status lki_replicas_open(lk_parallel *parallel, const lk_param *params,
                                         uint32_t param_count, const lk_parallel_options *options,
                                         uint32_t joint);

/* Frees what lki_replicas_open() has made.  Accepts NULL. */
void lki_replicas_free(lki_replicas *replicas);

/* Returns the number of parameters of the model. */
uint32_t lki_replicas_params(const lki_replicas *replicas);

/* Returns the object in use.  Of the outer weights it is that which has the running state. */
lk_parallel *lki_replicas_in_use(const lki_replicas *replicas);

/* Returns the object in use that has a parameter; *param becomes its number there. */
lk_parallel *lki_replicas_in_use_for(const lki_replicas *replicas, uint32_t *param);

/* Returns the optimizer whose states belong to the values of lk_parallel_value(). */
const lk_optimizer *lki_optimizer_of(const lk_parallel *parallel);

/* Returns true between the begin and the end of a step of all replicas.  The object of the outer
 * weights may be in a step of its own for longer. */
bool                   lki_replicas_under_way(const lki_replicas *replicas);
LK_NODISCARD lk_status lki_replicas_begin(lk_parallel *parallel, uint64_t step, uint32_t micros);
bool                   lki_replicas_next(lki_replicas *replicas, lk_parallel_turn *turn);
LK_NODISCARD lk_status lki_replicas_finish(lk_parallel *parallel, double lr,
                                           lk_step_result *result);
/* Advances the communication of outer gradients. */
void                   lki_replicas_progress(const lki_replicas *replicas);
bool                   lki_replicas_join(lki_replicas *replicas, uint32_t most);
LK_NODISCARD lk_status lki_replicas_set_rules(lki_replicas *replicas, const lk_param_rule *rules);

LK_NODISCARD lk_status lki_replicas_load(lki_replicas *replicas, uint32_t param, uint32_t which,
                                         const float *values);
LK_NODISCARD lk_status lki_replicas_load_state(lki_replicas *replicas, uint32_t state,
                                               const float *values);
/* Returns the time that a rank spent on its turns in the last step. */
lki_rank_time          lki_replicas_time(const lki_replicas *replicas, uint32_t rank);
lk_exchange_size       lki_replicas_exchange_size(const lki_replicas *replicas);
uint32_t               lki_replicas_count(const lki_replicas *replicas);
const char *lki_replicas_kept_name(const lki_replicas *replicas, uint32_t param, uint32_t which);
LK_NODISCARD lk_status lki_replicas_kept_norms(lk_parallel *parallel, uint32_t which,
                                               double *norms);
LK_NODISCARD lk_status lki_replicas_fetch_kept(lk_parallel *parallel, uint32_t param,
                                               uint32_t which, uint32_t group, size_t first,
                                               size_t count, float *out);
LK_NODISCARD lk_status lki_replicas_load_kept(lk_parallel *parallel, uint32_t param, uint32_t which,
                                              uint32_t group, const float *values);

#endif

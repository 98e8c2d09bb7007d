/* values.c -- what replicas have between steps, for checkpoints and when a run begins. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "parallel/replicas/internal.h"

uint32_t lki_replicas_count(const lki_replicas *replicas)
{
    return replicas->whole != NULL ? 0 : replicas->options.count;
}

lk_status lki_replicas_set_rules(lki_replicas *replicas, const lk_param_rule *rules)
{
    if (replicas->whole != NULL)
        LK_TRY(lk_parallel_set_rules(replicas->whole, rules));
    for (uint32_t i = 0; i < replicas->served; i++)
        LK_TRY(lk_parallel_set_rules(replicas->of[i].model, rules));
    return LK_OK;
}

/* ---- The outer weights ------------------------------------------------------------------- */

/* Weights become those of the replicas, too. */
lk_status lki_replicas_load(lki_replicas *replicas, uint32_t param, uint32_t which,
                            const float *values)
{
    if (replicas->whole != NULL)
        return lk_parallel_load(replicas->whole, param, which, values);
    LK_TRY(lk_parallel_load(replicas->outer, param, which, values));
    for (uint32_t i = 0; which == 0 && i < replicas->served; i++)
        LK_TRY(lk_parallel_load(replicas->of[i].model, param, which, values));
    return LK_OK;
}

lk_status lki_replicas_load_state(lki_replicas *replicas, uint32_t state, const float *values)
{
    if (replicas->whole != NULL)
        return lk_parallel_load_state(replicas->whole, state, values);
    LK_TRY(lk_parallel_load_state(replicas->outer, state, values));
    for (uint32_t i = 0; i < replicas->served; i++)
        LK_TRY(lk_parallel_load_state(replicas->of[i].model, state, values));
    return LK_OK;
}

/* ---- Replicas ---------------------------------------------------------------------------- */

/* Returns how many values a replica keeps of a parameter: the weights and the states of the
 * optimizer.  What the groups of the outer object keep comes after them. */
static uint32_t own_values(const lki_replicas *replicas)
{
    return 1 + lk_optimizer_state_count(&replicas->of[0].model->optimizer);
}

const char *lki_replicas_kept_name(const lki_replicas *replicas, uint32_t param, uint32_t which)
{
    const uint32_t own = own_values(replicas);
    if (replicas->whole != NULL || param >= replicas->outer->layout->param_count)
        return NULL;
    if (which >= own)
        return lk_parallel_kept_name(replicas->outer, param, which - own);
    return which == 0 ? "weights"
                      : lk_optimizer_state_name(&replicas->of[0].model->optimizer, which - 1);
}

static lk_status check_kept(const lki_replicas *replicas, uint32_t param, uint32_t which,
                            uint32_t group)
{
    if (lki_replicas_kept_name(replicas, param, which) != NULL &&
        group < lki_replicas_count(replicas))
        return LK_OK;
    return lk_fail(LK_EINVAL, "replica %u keeps no value %u of parameter %u", group, which, param);
}

lk_status lki_replicas_fetch_kept(lk_parallel *parallel, uint32_t param, uint32_t which,
                                  uint32_t group, size_t first, size_t count, float *out)
{
    const lki_replicas *replicas = parallel->replicas;
    const uint32_t      own      = own_values(replicas);
    lk_parallel        *model    = lki_replica_here(replicas, group);
    LK_TRY(check_kept(replicas, param, which, group));
    const size_t size = replicas->outer->layout->sizes[param];
    if (first > size || count > size - first)
        return lk_fail(LK_EINVAL, "parameter %u has no elements %zu to %zu", param, first,
                       first + count);
    if (which >= own)
        return lk_parallel_fetch_kept(replicas->outer, param, which - own, group, first, count,
                                      out);
    memset(out, 0, count * sizeof *out);
    if (model != NULL)
        LK_TRY(lk_parallel_fetch(model, param, which, first, count, out));
    return lk_broadcast(parallel->comm, out, count * sizeof *out,
                        lki_replica_seats(replicas, group, parallel->ranks).first);
}

lk_status lki_replicas_load_kept(lk_parallel *parallel, uint32_t param, uint32_t which,
                                 uint32_t group, const float *values)
{
    const lki_replicas *replicas = parallel->replicas;
    const uint32_t      own      = own_values(replicas);
    lk_parallel        *model    = lki_replica_here(replicas, group);
    LK_TRY(check_kept(replicas, param, which, group));
    if (which >= own)
        return lk_parallel_load_kept(replicas->outer, param, which - own, group, values);
    return model != NULL ? lk_parallel_load(model, param, which, values) : LK_OK;
}

static lk_status check_state(const lk_parallel *parallel, uint32_t replica, uint32_t state)
{
    const lki_replicas *replicas = parallel->replicas;
    if (replicas != NULL && replica < lki_replicas_count(replicas) &&
        state < lk_parallel_state_count(parallel))
        return LK_OK;
    return lk_fail(LK_EINVAL, "there is no running state %u of a replica %u", state, replica);
}

lk_status lk_parallel_fetch_replica_state(lk_parallel *parallel, uint32_t replica, uint32_t state,
                                          float *values)
{
    LK_TRY(check_state(parallel, replica, state));
    const lki_replicas *replicas = parallel->replicas;
    const lk_parallel  *model    = lki_replica_here(replicas, replica);
    const size_t        bytes    = replicas->outer->running.of[state].count * sizeof *values;
    if (model != NULL)
        memcpy(values, lk_parallel_state_data(model, state), bytes);
    return lk_broadcast(parallel->comm, values, bytes,
                        lki_replica_seats(replicas, replica, parallel->ranks).first);
}

lk_status lk_parallel_load_replica_state(lk_parallel *parallel, uint32_t replica, uint32_t state,
                                         const float *values)
{
    LK_TRY(check_state(parallel, replica, state));
    lk_parallel *model = lki_replica_here(parallel->replicas, replica);
    return model != NULL ? lk_parallel_load_state(model, state, values) : LK_OK;
}

/* Returns the sum of the squares of a value of all parameters. */
static lk_status square_of(const lki_replicas *replicas, lk_parallel *model, uint32_t which,
                           double *square)
{
    const lki_layout *layout = model->layout;
    *square                  = 0;
    for (uint32_t p = 0; p < layout->param_count; p++) {
        LK_TRY(lk_parallel_fetch(model, p, which, 0, layout->sizes[p], replicas->scratch));
        for (size_t i = 0; i < layout->sizes[p]; i++)
            *square += (double)replicas->scratch[i] * (double)replicas->scratch[i];
    }
    return LK_OK;
}

lk_status lki_replicas_kept_norms(lk_parallel *parallel, uint32_t which, double *norms)
{
    const lki_replicas *replicas = parallel->replicas;
    const uint32_t      own      = own_values(replicas);
    LK_TRY(check_kept(replicas, 0, 0, 0));
    if (which >= own)
        return lk_parallel_kept_norms(replicas->outer, which - own, norms);
    for (uint32_t r = 0; r < replicas->options.count; r++) {
        lk_parallel *model = lki_replica_here(replicas, r);
        norms[r]           = 0;
        if (model != NULL)
            LK_TRY(square_of(replicas, model, which, &norms[r]));
        LK_TRY(lk_broadcast(parallel->comm, &norms[r], sizeof norms[r],
                            lki_replica_seats(replicas, r, parallel->ranks).first));
        norms[r] = sqrt(norms[r]);
    }
    return LK_OK;
}

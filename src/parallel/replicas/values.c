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
    if (param >= replicas->param_count)
        return lk_fail(LK_EINVAL, "there is no value %u of parameter %u", which, param);
    const lki_fragment *f = lki_fragment_of(replicas, param);
    LK_TRY(lk_parallel_load(f->outer, param - f->first, which, values));
    for (uint32_t i = 0; which == 0 && i < replicas->served; i++)
        LK_TRY(lk_parallel_load(replicas->of[i].model, param, which, values));
    return LK_OK;
}

lk_status lki_replicas_load_state(lki_replicas *replicas, uint32_t state, const float *values)
{
    if (replicas->whole != NULL)
        return lk_parallel_load_state(replicas->whole, state, values);
    LK_TRY(lk_parallel_load_state(lki_fragment_of_states(replicas), state, values));
    for (uint32_t i = 0; i < replicas->served; i++)
        LK_TRY(lk_parallel_load_state(replicas->of[i].model, state, values));
    return LK_OK;
}

/* ---- Replicas ---------------------------------------------------------------------------- */

/* Returns how many values a replica keeps of a parameter: the weights and the states of the
 * optimizer.  What it has given follows if it is being sent, or what the groups of the outer
 * object keep; never both. */
static uint32_t own_values(const lki_replicas *replicas)
{
    return 1 + lk_optimizer_state_count(&replicas->of[0].model->optimizer);
}

/* Returns true if value `which` of a parameter is what the replica has given. */
static bool is_sent(const lki_replicas *replicas, uint32_t which)
{
    return replicas->options.delay > 0 && which == own_values(replicas);
}

const char *lki_replicas_kept_name(const lki_replicas *replicas, uint32_t param, uint32_t which)
{
    const uint32_t own = own_values(replicas);
    if (replicas->whole != NULL || param >= replicas->param_count)
        return NULL;
    const lki_fragment *f = lki_fragment_of(replicas, param);
    if (is_sent(replicas, which))
        return f - replicas->fragments == replicas->pending ? "sent_weights" : NULL;
    if (which >= own)
        return lk_parallel_kept_name(f->outer, param - f->first, which - own);
    return which == 0 ? "weights"
                      : lk_optimizer_state_name(&replicas->of[0].model->optimizer, which - 1);
}

/* Returns the place of what a replica has given of a parameter; NULL on ranks that do not give
 * it. */
static float *sent_of(const lki_replicas *replicas, uint32_t replica, uint32_t param)
{
    const lki_fragment *f    = lki_fragment_of(replicas, param);
    float              *sent = NULL;
    if (lki_replica_here(replicas, replica) != NULL)
        sent = replicas->of[replica - replicas->first].sent;
    return sent == NULL ? NULL : sent + f->outer->layout->param_at[param - f->first];
}

static size_t size_of(const lki_replicas *replicas, uint32_t param)
{
    return replicas->of[0].model->layout->sizes[param];
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
    const lki_fragment *f    = lki_fragment_of(replicas, param);
    const size_t        size = size_of(replicas, param);
    if (first > size || count > size - first)
        return lk_fail(LK_EINVAL, "parameter %u has no elements %zu to %zu", param, first,
                       first + count);
    if (which >= own && !is_sent(replicas, which))
        return lk_parallel_fetch_kept(f->outer, param - f->first, which - own, group, first, count,
                                      out);
    const float *sent = sent_of(replicas, group, param);
    memset(out, 0, count * sizeof *out);
    if (is_sent(replicas, which) && sent != NULL)
        memcpy(out, sent + first, count * sizeof *out);
    else if (!is_sent(replicas, which) && model != NULL)
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
    parallel->replicas->averaged = false;
    if (is_sent(replicas, which)) {
        float *sent = sent_of(replicas, group, param);
        if (sent != NULL)
            memcpy(sent, values, size_of(replicas, param) * sizeof *sent);
        return LK_OK;
    }
    const lki_fragment *f = lki_fragment_of(replicas, param);
    if (which >= own)
        return lk_parallel_load_kept(f->outer, param - f->first, which - own, group, values);
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
    LK_TRY(lki_check_idle(parallel, "lk_parallel_fetch_replica_state"));
    LK_TRY(check_state(parallel, replica, state));
    const lki_replicas *replicas = parallel->replicas;
    const lk_parallel  *model    = lki_replica_here(replicas, replica);
    const lki_running  *running  = &lki_fragment_of_states(replicas)->running;
    const size_t        bytes    = running->of[state].count * sizeof *values;
    if (model != NULL)
        memcpy(values, lk_parallel_state_data(model, state), bytes);
    return lk_broadcast(parallel->comm, values, bytes,
                        lki_replica_seats(replicas, replica, parallel->ranks).first);
}

lk_status lk_parallel_load_replica_state(lk_parallel *parallel, uint32_t replica, uint32_t state,
                                         const float *values)
{
    LK_TRY(lki_check_idle(parallel, "lk_parallel_load_replica_state"));
    LK_TRY(check_state(parallel, replica, state));
    lk_parallel *model = lki_replica_here(parallel->replicas, replica);
    parallel->replicas->averaged = false;
    return model != NULL ? lk_parallel_load_state(model, state, values) : LK_OK;
}

static double square(const float *values, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)values[i] * (double)values[i];
    return sum;
}

/* Returns the sum of the squares of what the replica has given. */
static double square_of_sent(const lki_replicas *replicas, uint32_t replica)
{
    double sum = 0;
    for (uint32_t p = 0; p < replicas->param_count; p++) {
        const float *sent = sent_of(replicas, replica, p);
        if (sent != NULL && lki_fragment_of(replicas, p) == &replicas->fragments[replicas->pending])
            sum += square(sent, size_of(replicas, p));
    }
    return sum;
}

/* Returns the sum of the squares of a value of all parameters.  Collective over the ranks of the
 * replica. */
static lk_status square_of(const lki_replicas *replicas, uint32_t replica, uint32_t which,
                           double *sum)
{
    lk_parallel *model = lki_replica_here(replicas, replica);
    *sum               = 0;
    if (is_sent(replicas, which)) {
        *sum = square_of_sent(replicas, replica);
        return LK_OK;
    }
    for (uint32_t p = 0; model != NULL && p < replicas->param_count; p++) {
        const size_t size = size_of(replicas, p);
        LK_TRY(lk_parallel_fetch(model, p, which, 0, size, replicas->scratch));
        *sum += square(replicas->scratch, size);
    }
    return LK_OK;
}

/* Combines the norms of what the groups of all fragments keep. */
static lk_status norms_of_groups(const lki_replicas *replicas, uint32_t which, double *norms)
{
    const uint32_t count = replicas->options.count;
    double        *some  = NULL;
    LK_TRY(LKI_NEW(&some, count, "norms of groups"));
    lk_status status = LK_OK;
    for (uint32_t f = 0; status == LK_OK && f < replicas->options.fragments; f++) {
        status = lk_parallel_kept_norms(replicas->fragments[f].outer, which, some);
        for (uint32_t r = 0; r < count; r++)
            norms[r] = f == 0 ? some[r] : sqrt(norms[r] * norms[r] + some[r] * some[r]);
    }
    lki_free(some);
    return status;
}

lk_status lki_replicas_kept_norms(lk_parallel *parallel, uint32_t which, double *norms)
{
    const lki_replicas *replicas = parallel->replicas;
    const uint32_t      own      = own_values(replicas);
    LK_TRY(check_kept(replicas, 0, 0, 0));
    if (which >= own && !is_sent(replicas, which))
        return norms_of_groups(replicas, which - own, norms);
    for (uint32_t r = 0; r < replicas->options.count; r++) {
        LK_TRY(square_of(replicas, r, which, &norms[r]));
        LK_TRY(lk_broadcast(parallel->comm, &norms[r], sizeof norms[r],
                            lki_replica_seats(replicas, r, parallel->ranks).first));
        norms[r] = sqrt(norms[r]);
    }
    return LK_OK;
}

lk_exchange_size lki_replicas_exchange_size(const lki_replicas *replicas)
{
    lk_exchange_size all = { 0 };
    for (uint32_t f = 0; replicas->whole == NULL && f < replicas->options.fragments; f++) {
        const lk_exchange_size size = lk_parallel_exchange_size(replicas->fragments[f].outer);
        all.groups                  = size.groups;
        all.start                   = size.start;
        all.sent_bytes += size.sent_bytes;
        all.whole_bytes += size.whole_bytes;
        all.compressed += size.compressed;
    }
    return all;
}

/* values.c -- reads and loads parameters, the optimizer's state and running state. */
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "parallel/offload/offload.h"
#include "parallel/strategies/units.h"

float *lki_scrap(const lk_parallel *parallel, float **at)
{
    const lki_layout *layout = parallel->layout;
    size_t            most   = 0;
    for (uint32_t s = 0; s < parallel->running.count; s++)
        most = lki_max(most, parallel->running.of[s].count);
    for (uint32_t p = 0; p < layout->param_count; p++)
        most = lki_max(most, lki_round_up(layout->sizes[p], layout->align));
    if (*at == NULL && LKI_NEW(at, most, "a turn after a failure") != LK_OK)
        *at = NULL;
    return *at;
}

/* ---- Parameters and the optimizer's state ------------------------------------------------ */

bool lki_has_param(const lk_parallel *parallel, uint32_t param)
{
    const uint32_t count = parallel->replicas != NULL
                               ? lki_replicas_params(parallel->replicas)
                               : lki_in_use(parallel)->layout->param_count;
    if (param < count)
        return true;
    (void)lk_fail(LK_EINVAL, "there is no parameter %u; the model has %u", param, count);
    return false;
}

/* Returns a parameter in the type in which blocks read it. */
static const void *find_read(const lk_parallel *parallel, uint32_t param)
{
    const lki_layout *layout = parallel->layout;
    if (parallel->now.failure.status != LK_OK && parallel->scraps.params != NULL)
        return parallel->scraps.params;
    if (parallel->gathers)
        return lki_units_find(parallel, param);
    return parallel->read != NULL ? parallel->read + layout->read_at[param]
                                  : (const void *)lk_parallel_value(parallel, param, 0);
}

const float *lk_parallel_param(const lk_parallel *parallel, uint32_t param)
{
    if (!lki_has_param(parallel, param))
        return NULL;
    parallel    = lki_in_use_for(parallel, &param);
    bool narrow = lki_layout_read_dtype(parallel->layout, param) == LK_BF16;
    return narrow ? NULL : find_read(parallel, param);
}

const uint16_t *lk_parallel_param_bf16(const lk_parallel *parallel, uint32_t param)
{
    if (!lki_has_param(parallel, param))
        return NULL;
    parallel    = lki_in_use_for(parallel, &param);
    bool narrow = lki_layout_read_dtype(parallel->layout, param) == LK_BF16;
    return narrow ? find_read(parallel, param) : NULL;
}

const float *lk_parallel_value(const lk_parallel *parallel, uint32_t param, uint32_t which)
{
    if (!lki_has_param(parallel, param))
        return NULL;
    const uint32_t number    = param;
    parallel                 = lki_in_use_for(parallel, &param);
    const lki_layout *layout = parallel->layout;
    if (which > lk_optimizer_state_count(&parallel->optimizer)) {
        (void)lk_fail(LK_EINVAL, "there is no value %u of parameter %u", which, number);
        return NULL;
    }
    if (which == 0)
        return parallel->parted ? NULL : parallel->params + layout->param_at[param];
    if (parallel->shards > 1 || parallel->offload.kinds & LK_OFFLOADED_STATES)
        return NULL;
    return parallel->optimizer_state[which - 1] + layout->spans[layout->first_span[param]].shard_at;
}

/* Loads a value that is stored in a file.  Its hash is computed here, because the value does not
 * stay in memory. */
static lk_status load_to_file(lk_parallel *parallel, uint32_t param, uint32_t which,
                              const float *values)
{
    const lki_layout *layout = parallel->layout;
    for (size_t i = layout->first_span[param]; i < layout->first_span[param + 1]; i++) {
        const lki_param_span *span = &layout->spans[i];
        if (!lki_owns(parallel, span))
            continue;
        LK_TRY(lki_offload_put(parallel, i, which, values + span->inside));
        if (which == 0)
            parallel->owned.hashes[i] = lki_xxh3(values + span->inside,
                                                 span->count * sizeof *values);
    }
    return LK_OK;
}

static void load_here(lk_parallel *parallel, uint32_t param, uint32_t which, const float *values)
{
    const lki_layout *layout = parallel->layout;
    for (size_t i = layout->first_span[param]; i < layout->first_span[param + 1]; i++) {
        const lki_param_span *span = &layout->spans[i];
        float                *to   = which == 0 ? lki_values_of(parallel, span)
                                                : parallel->optimizer_state[which - 1];
        if (which > 0)
            to += lki_stored_at(parallel, span);
        if (which == 0 && !parallel->parted ? lki_tends(parallel, span) : lki_owns(parallel, span))
            memcpy(to, values + span->inside, span->count * sizeof *to);
        if (which == 0 && parallel->read != NULL && lki_tends(parallel, span))
            lki_reading_put(parallel, span, values + span->inside);
    }
    if (which == 0)
        lki_attest_written(parallel, param);
}

lk_status lki_check_idle(const lk_parallel *parallel, const char *call)
{
    if (parallel->replicas != NULL ? !lki_replicas_under_way(parallel->replicas)
                                   : !parallel->now.under_way)
        return LK_OK;
    return lk_fail(LK_EINVAL, "step %llu is under way; call %s() before lk_parallel_begin() or "
                              "after lk_parallel_finish()", (unsigned long long)parallel->step,
                   call);
}

lk_status lk_parallel_load(lk_parallel *parallel, uint32_t param, uint32_t which,
                           const float *values)
{
    LK_TRY(lki_check_given("lk_parallel_load", "values", values, 1));
    LK_TRY(lki_check_idle(parallel, "lk_parallel_load"));
    if (parallel->replicas != NULL)
        return lki_replicas_load(parallel->replicas, param, which, values);
    if (parallel->versions != NULL)
        return lki_versions_load(parallel, param, which, values);
    const lki_layout *layout = parallel->layout;
    if (param >= layout->param_count || which > lk_optimizer_state_count(&parallel->optimizer))
        return lk_fail(LK_EINVAL, "there is no value %u of parameter %u", which, param);
    LK_TRY(
        lki_verify_same_values(parallel, layout->params[param].name, values, layout->sizes[param]));
    if (which == 0)
        LK_TRY(lki_units_settle(parallel));
    if (parallel->offload.kinds & (which == 0 ? LK_OFFLOADED_PARAMETERS : LK_OFFLOADED_STATES))
        LK_TRY(load_to_file(parallel, param, which, values));
    else
        load_here(parallel, param, which, values);
    if (which == 0 && parallel->gathers)
        lki_units_forget(parallel);
    return lk_barrier(parallel->comm);
}

/* ---- Running state, and its moving average ------------------------------------------------ */

uint32_t lk_parallel_state_count(const lk_parallel *parallel)
{
    parallel = lki_in_use(parallel);
    return parallel->running.count * (parallel->optimizer.ema > 0 ? 2 : 1);
}

float *lki_state_data(const lk_parallel *parallel, uint32_t state)
{
    LK_ASSERT(state < lk_parallel_state_count(parallel));
    bool mean = state >= parallel->running.count;
    return mean ? parallel->running.mean + parallel->running.at[state - parallel->running.count]
                : parallel->running.values + parallel->running.at[state];
}

const float *lk_parallel_state_data(const lk_parallel *parallel, uint32_t state)
{
    parallel = lki_in_use(parallel);
    if (state < lk_parallel_state_count(parallel))
        return lki_state_data(parallel, state);
    (void)lk_fail(LK_EINVAL, "there is no running state %u", state);
    return NULL;
}

lk_status lk_parallel_load_state(lk_parallel *parallel, uint32_t state, const float *values)
{
    LK_TRY(lki_check_given("lk_parallel_load_state", "values", values, 1));
    LK_TRY(lki_check_idle(parallel, "lk_parallel_load_state"));
    if (parallel->replicas != NULL)
        return lki_replicas_load_state(parallel->replicas, state, values);
    if (parallel->versions != NULL)
        return lki_versions_load_state(parallel, state, values);
    if (state >= lk_parallel_state_count(parallel))
        return lk_fail(LK_EINVAL, "there is no running state %u", state);
    size_t count = parallel->running.of[state % parallel->running.count].count;
    LK_TRY(lki_verify_same_values(parallel, "running state", values, count));
    if (parallel->local == 0)
        memcpy(lki_state_data(parallel, state), values, count * sizeof *values);
    return lk_barrier(parallel->comm);
}

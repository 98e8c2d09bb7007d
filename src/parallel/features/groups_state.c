/* groups_state.c -- what groups keep and what they share, for checkpoints. */
#include <math.h>
#include <string.h>

#include "comm/worker.h"
#include "parallel/features/groups.h"
#include "parallel/strategies/ddp.h"

static lki_groups *groups_of(const lk_parallel *parallel)
{
    return lki_feature_state(parallel, &lki_feature_groups);
}

uint32_t lk_parallel_groups(const lk_parallel *parallel)
{
    if (parallel->replicas != NULL)
        return lki_replicas_count(parallel->replicas);
    if (parallel->versions != NULL)
        return lki_versions_groups(parallel->versions);
    const lki_groups *self = groups_of(parallel);
    return self == NULL ? 0 : self->count;
}

const char *lk_parallel_kept_name(const lk_parallel *parallel, uint32_t param, uint32_t which)
{
    if (parallel->replicas != NULL)
        return lki_replicas_kept_name(parallel->replicas, param, which);
    if (parallel->versions != NULL)
        return lki_versions_kept_name(parallel->versions, param, which);
    const lki_groups *self = groups_of(parallel);
    const bool        any  = self != NULL && param < parallel->layout->param_count;
    if (!any || lki_groups_leave_whole(self, param))
        return NULL;
    if (which < self->kept)
        return self->rule->kept[which];
    return self->onebit != NULL && which == self->kept ? "server_error" : NULL;
}

/* Returns true if there is a single vector `which` for all groups. */
static bool is_single(const lki_groups *self, uint32_t which)
{
    return self != NULL && self->onebit != NULL && which == self->kept;
}

uint32_t lk_parallel_kept_groups(const lk_parallel *parallel, uint32_t which)
{
    const bool several = parallel->replicas != NULL || parallel->versions != NULL;
    return !several && is_single(groups_of(parallel), which)
               ? 1
               : lk_parallel_groups(parallel);
}

lk_exchange_size lk_parallel_exchange_size(const lk_parallel *parallel)
{
    if (parallel->replicas != NULL)
        return lki_replicas_exchange_size(parallel->replicas);
    if (parallel->versions != NULL)
        return (lk_exchange_size){ 0 };
    const lki_groups *self   = groups_of(parallel);
    const lki_layout *layout = parallel->layout;
    lk_exchange_size  size   = { 0 };
    if (self == NULL)
        return size;
    size.groups = self->count;
    size.start  = self->start + 1; /* 0 if it is not decided */
    for (uint32_t r = 0; r < self->rounds; r++)
        size.sent_bytes += self->bytes[r];
    for (uint32_t p = 0; p < layout->param_count; p++) {
        size.compressed += !lki_groups_leave_whole(self, p);
        size.whole_bytes += lki_layout_uses(layout, p) * layout->sizes[p] * sizeof(float);
    }
    size.whole_bytes += parallel->micro_count * parallel->state_width * sizeof(float);
    return size;
}

/* Returns the sum of the squares of what a group keeps, on the host of its keeper. */
static double square_of(const lk_parallel *parallel, uint32_t which, uint32_t group)
{
    const lki_groups *self = groups_of(parallel);
    double            sum  = 0;
    for (uint32_t p = 0; p < parallel->layout->param_count; p++) {
        const float *values = lki_groups_kept(parallel, self, which, group, p);
        for (size_t i = 0; i < parallel->layout->sizes[p] && !lki_groups_leave_whole(self, p); i++)
            sum += (double)values[i] * (double)values[i];
    }
    return sum;
}

lk_status lk_parallel_kept_norms(lk_parallel *parallel, uint32_t which, double *norms)
{
    LK_TRY(lki_check_idle(parallel, "lk_parallel_kept_norms"));
    if (parallel->replicas != NULL)
        return lki_replicas_kept_norms(parallel, which, norms);
    if (parallel->versions != NULL)
        return lk_fail(LK_EUNSUPPORTED, "what the tasks of groups have read has no norm");
    const lki_groups *self = groups_of(parallel);
    if (self == NULL || (which >= self->kept && !is_single(self, which)))
        return lk_fail(LK_EINVAL, "groups keep no value %u", which);
    if (lki_step_failed(parallel))
        return lki_fail_again(&parallel->now.failure);
    if (is_single(self, which))
        return lki_onebit_norm(parallel, self, norms);
    for (uint32_t g = 0; g < self->count; g++) {
        norms[g] = parallel->rank == self->keepers[g] ? sqrt(square_of(parallel, which, g)) : 0;
        LK_TRY(lk_broadcast(parallel->comm, &norms[g], sizeof norms[g], self->keepers[g]));
    }
    return LK_OK;
}

static lk_status check_kept(const lk_parallel *parallel, uint32_t param, uint32_t which,
                            uint32_t group)
{
    if (lk_parallel_kept_name(parallel, param, which) != NULL &&
        group < lk_parallel_kept_groups(parallel, which))
        return LK_OK;
    return lk_fail(LK_EINVAL, "group %u keeps no value %u of parameter %u", group, which, param);
}

lk_status lk_parallel_fetch_kept(lk_parallel *parallel, uint32_t param, uint32_t which,
                                 uint32_t group, size_t first, size_t count, float *out)
{
    LK_TRY(lki_check_idle(parallel, "lk_parallel_fetch_kept"));
    if (parallel->replicas != NULL)
        return lki_replicas_fetch_kept(parallel, param, which, group, first, count, out);
    if (parallel->versions != NULL)
        return lki_versions_fetch_kept(parallel, param, group, first, count, out);
    LK_TRY(check_kept(parallel, param, which, group));
    if (lki_step_failed(parallel))
        return lki_fail_again(&parallel->now.failure);
    const size_t size = parallel->layout->sizes[param];
    if (first > size || count > size - first)
        return lk_fail(LK_EINVAL, "parameter %u has no elements %zu to %zu", param, first,
                       first + count);
    if (is_single(groups_of(parallel), which))
        return lki_onebit_fetch(parallel, groups_of(parallel), param, first, count, out);
    const uint32_t keeper = groups_of(parallel)->keepers[group];
    memset(out, 0, count * sizeof *out);
    if (parallel->rank == keeper)
        memcpy(out, lki_groups_kept(parallel, groups_of(parallel), which, group, param) + first,
               count * sizeof *out);
    return lk_broadcast(parallel->comm, out, count * sizeof *out, keeper);
}

lk_status lk_parallel_load_kept(lk_parallel *parallel, uint32_t param, uint32_t which,
                                uint32_t group, const float *values)
{
    LK_TRY(lki_check_idle(parallel, "lk_parallel_load_kept"));
    if (parallel->replicas != NULL)
        return lki_replicas_load_kept(parallel, param, which, group, values);
    if (parallel->versions != NULL)
        return lki_versions_load_kept(parallel, param, group, values);
    LK_TRY(check_kept(parallel, param, which, group));
    const lki_layout *layout = parallel->layout;
    LK_TRY(
        lki_verify_same_values(parallel, layout->params[param].name, values, layout->sizes[param]));
    const lki_groups *self = groups_of(parallel);
    if (is_single(self, which))
        lki_onebit_load(parallel, self, param, values);
    else if (parallel->rank == self->keepers[group])
        memcpy(lki_groups_kept(parallel, self, which, group, param), values,
               layout->sizes[param] * sizeof *values);
    return lk_barrier(parallel->comm);
}

/* Returns the place of what groups share of a parameter; NULL if there is nothing. */
static void *shared_of(const lk_parallel *parallel, uint32_t param, size_t *bytes)
{
    const lki_groups  *self = groups_of(parallel);
    const uint32_t last = self == NULL ? 0 : self->rounds - 1;
    const bool     good = !lki_step_failed(parallel) && param < parallel->layout->param_count;
    *bytes              = 0;
    if (self == NULL || !good || lki_groups_leave_whole(self, param))
        return NULL;
    if (self->estimates[0] != NULL) {
        *bytes = parallel->layout->sizes[param] * sizeof(float);
        return self->estimates[self->now] + parallel->layout->param_at[param];
    }
    if (self->by->begin == NULL)
        return NULL;
    *bytes = lki_groups_message_bytes(self, parallel->layout, param, last);
    return self->shared[self->now] + self->at[last][param];
}

/* Returns the number of floats that groups share of the whole model. */
static size_t count_whole(const lk_parallel *parallel)
{
    const lki_groups *self = groups_of(parallel);
    return self == NULL ? 0 : lki_freeze_count(self) + lki_lamb_count(parallel, self);
}

/* Returns true if `param` stands for the whole model, of which groups share something. */
static bool is_whole(const lk_parallel *parallel, uint32_t param)
{
    return param == parallel->layout->param_count && count_whole(parallel) > 0;
}

const void *lk_parallel_shared(const lk_parallel *parallel, uint32_t param, size_t *bytes)
{
    parallel = lki_in_use_for(parallel, &param);
    if (!is_whole(parallel, param))
        return shared_of(parallel, param, bytes);
    const lki_groups *self = groups_of(parallel);
    *bytes                 = count_whole(parallel) * sizeof(float);
    lki_freeze_store(self, self->whole);
    lki_lamb_store(parallel, self, self->whole + lki_freeze_count(self));
    return lki_step_failed(parallel) ? NULL : self->whole;
}

static lk_status load_whole(lk_parallel *parallel, const float *shared)
{
    lki_groups *self = groups_of(parallel);
    LK_TRY(lki_verify_same_values(parallel, "shared", shared, count_whole(parallel)));
    lki_freeze_load(parallel, self, shared);
    lki_lamb_load(parallel, self, shared + lki_freeze_count(self));
    return lk_barrier(parallel->comm);
}

lk_status lk_parallel_load_shared(lk_parallel *parallel, uint32_t param, const void *shared)
{
    size_t bytes;
    LK_TRY(lki_check_idle(parallel, "lk_parallel_load_shared"));
    parallel = lki_in_use_for(parallel, &param);
    if (is_whole(parallel, param))
        return load_whole(parallel, shared);
    void *to = shared_of(parallel, param, &bytes);
    if (to == NULL)
        return lk_fail(LK_EINVAL, "groups share nothing of parameter %u", param);
    LK_TRY(lki_verify_same_values(parallel, parallel->layout->params[param].name, shared,
                                  bytes / sizeof(float)));
    if (parallel->local == 0)
        memcpy(to, shared, bytes);
    return lk_barrier(parallel->comm);
}

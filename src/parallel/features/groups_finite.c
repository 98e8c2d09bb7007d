/* groups_finite.c -- finds the groups whose gradients are not finite, after a step has failed.
 *
 * The sum over all groups has lost who made it so.  But the messages of the first round are still
 * there, and a compressor hides no value that is not finite.  The keeper of a group looks through
 * its message, and tells all ranks the first such tensor.
 *
 * Cost: nothing in steps that do not fail.
 */
#include <math.h>
#include <stdio.h>

#include "base/memory.h"
#include "comm/worker.h"
#include "parallel/features/groups.h"
#include "parallel/state.h"

static bool are_finite(size_t count, const float *values)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return false;
    return true;
}

/* Decodes a tensor of one group. */
static bool decodes_finite(const lk_parallel *parallel, const lki_groups *self, uint32_t group,
                           uint32_t param)
{
    const size_t    size    = parallel->layout->sizes[param];
    const void     *message = lki_groups_message(self, 0, group, param);
    lk_compress_key key     = self->keys[param];
    bool            good    = true;
    key.group               = group;
    key.step                = parallel->step;
    for (size_t at = 0; at < size && good; at += LKI_NORM_BLOCK) {
        const size_t count = lki_min(LKI_NORM_BLOCK, size - at);
        self->by->decode(&self->options, &key, &message, at, count, self->leaves);
        good = are_finite(count, self->leaves);
    }
    return good;
}

static bool is_finite(const lk_parallel *parallel, const lki_groups *self, uint32_t group,
                      uint32_t param)
{
    const bool whole = lki_groups_leave_whole(self, param);
    if (!whole && self->by->combine == LK_COMBINE_GATHER)
        return decodes_finite(parallel, self, group, param);
    return are_finite(lki_groups_message_bytes(self, parallel->layout, param, 0) / sizeof(float),
                      (const float *)(const void *)lki_groups_message(self, 0, group, param));
}

/* Returns 1 + the number of the first tensor of a group that is not finite, or 0.  Only on the
 * group's keeper. */
static uint32_t look_through(const lk_parallel *parallel, const lki_groups *self, uint32_t group)
{
    for (uint32_t p = 0; p < parallel->layout->param_count; p++)
        if (!is_finite(parallel, self, group, p))
            return p + 1;
    return 0;
}

/* Returns the number of virtual workers of a group.  A group of outer weights is a replica. */
static uint32_t width_of(const lk_parallel *parallel, const lki_groups *self)
{
    LK_ASSERT(self->count > 0);
    return parallel->effects.replicas > 0 ? parallel->effects.each : parallel->leaves / self->count;
}

static lk_status fail(const lk_parallel *parallel, const lki_groups *self, uint32_t group,
                      uint32_t param, uint32_t others)
{
    char more[48] = "";
    const uint32_t width = width_of(parallel, self);
    const uint32_t first = parallel->effects.first + group * width;
    if (others == 1)
        (void)snprintf(more, sizeof more, ", and that of another group");
    else if (others > 1)
        (void)snprintf(more, sizeof more, ", and those of %u other groups", others);
    return lk_fail(LK_ENONFINITE,
                   "step %llu: the gradient of '%s' is not finite in group %u, which has virtual "
                   "workers %u to %u%s; lower the learning rate or clip the gradient (nothing was "
                   "updated)",
                   (unsigned long long)parallel->step + 1, parallel->layout->params[param].name,
                   group, first, first + width - 1, more);
}

lk_status lki_groups_reports(lk_parallel *parallel, void *context, lk_step_result *result)
{
    const lki_groups *self  = context;
    uint32_t          first = 0, param = 0, found = 0;
    if (isfinite(result->grad_norm) || !isfinite(result->loss) || result->skipped ||
        parallel->step < self->start)
        return LK_OK;
    for (uint32_t g = 0; g < self->count; g++) {
        const uint32_t keeper = self->keepers[g];
        uint32_t       bad    = keeper == parallel->rank ? look_through(parallel, self, g) : 0;
        LK_TRY(lk_broadcast(parallel->comm, &bad, sizeof bad, keeper));
        if (bad > 0 && found++ == 0) {
            first = g;
            param = bad - 1;
        }
    }
    return found == 0 ? LK_OK /* only their sum is not finite */
                      : fail(parallel, self, first, param, found - 1);
}

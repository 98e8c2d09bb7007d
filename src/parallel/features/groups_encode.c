/* groups_encode.c -- encodes the tensors of the groups that a host keeps.
 *
 * The parts of a tensor (lk_compressor.part) are tasks, and so is a tensor without parts.  A rank
 * takes the next task when it has done one, so all are busy until the tasks are used up.  The
 * largest tensors are first, because the last tasks should be small.  Parts depend on no rank, so
 * it does not matter for any bit who takes them.
 *
 * In the first round a task adds the uses of a parameter, clips them, and applies the rule of what
 * groups keep (compress/rules.h).  In the last round it gives the residual to the rule.
 */
#include <string.h>

#include "base/memory.h"
#include "parallel/features/groups.h"
#include "parallel/state.h"

enum { WHOLE_PART = 1 << 16 }; /* elements of a tensor that is left whole */

/* ---- Tasks ------------------------------------------------------------------------------- */

lk_status lki_groups_order(const lk_parallel *parallel, lki_groups *self)
{
    const lki_layout *layout = parallel->layout;
    LK_TRY(LKI_NEW(&self->order, layout->param_count, "order of tensors"));
    for (uint32_t p = 0; p < layout->param_count; p++) {
        uint32_t at = p;
        for (; at > 0 && layout->sizes[self->order[at - 1]] < layout->sizes[p]; at--)
            self->order[at] = self->order[at - 1];
        self->order[at] = p;
    }
    return LK_OK;
}

void lki_groups_reset(const lki_groups *self)
{
    for (uint32_t i = 0; i < LKI_TASK_KINDS * LK_ROUNDS_MAX; i++)
        atomic_store(&self->tickets[i].next, 0);
}

uint64_t lki_groups_take(const lki_groups *self, lki_task_kind kind, uint32_t round)
{
    return atomic_fetch_add(&self->tickets[kind * LK_ROUNDS_MAX + round].next, 1);
}

/* Finds part `index` of a tensor.  Returns false after the last. */
static bool find_part(const lki_groups *self, uint32_t param, uint32_t round, uint32_t index,
                      lk_compress_part *out)
{
    const lk_compress_key *key   = &self->keys[param];
    const size_t           count = key->rows * key->cols;
    const bool             whole = lki_groups_leave_whole(self, param);
    const size_t           most  = whole ? WHOLE_PART : count, first = index * most;
    if (whole && round > 0)
        return false;
    if (!whole && self->by->part != NULL)
        return self->by->part(&self->options, key, round, index, out);
    *out = (lk_compress_part){ .first = first, .rows = 1, .stride = most };
    if (first < count)
        out->count = lki_min(most, count - first);
    return first < count;
}

/* ---- A task ------------------------------------------------------------------------------ */

/* Returns a group's sum of the gradient of a use of a parameter. */
static float *values_of(const lk_parallel *parallel, const lki_groups *self, uint32_t group,
                        uint32_t param, uint32_t use)
{
    const lki_layout *layout = parallel->layout;
    return self->sums[group] + layout->term_at[layout->term_of[layout->first_use[param] + use]];
}

/* Writes a part of a tensor that is left whole: the values of all its uses. */
static void copy_whole(const lk_parallel *parallel, const lki_groups *self, uint32_t group,
                       uint32_t param, const lk_compress_part *part)
{
    const lki_layout *layout  = parallel->layout;
    float            *message = (float *)(void *)lki_groups_message(self, 0, group, param);
    for (uint32_t use = 0; use < lki_layout_uses(layout, param); use++) {
        float *to = message + use * layout->sizes[param] + part->first;
        memcpy(to, values_of(parallel, self, group, param, use) + part->first,
               part->count * sizeof *to);
        lki_groups_clip(self, group, part->count, to);
    }
}

/* Returns what the rule reads and writes for elements [at, at + count). */
static lki_kept kept_of(const lk_parallel *parallel, const lki_groups *self, uint32_t group,
                        uint32_t param, size_t at, size_t count)
{
    lki_kept kept = { .count    = count,
                      .samples  = lki_groups_samples(parallel, self, group),
                      .momentum = self->momentum,
                      .nesterov = self->nesterov,
                      .scaled   = self->error_scale == LK_ERROR_SCALE_LR,
                      .rate     = (float)parallel->now.lr };
    if (self->onebit != NULL) {
        kept.common = self->estimates[self->now] + parallel->layout->param_at[param] + at;
        kept.absent = lki_onebit_absent(self, param); /* its tensors have no parts */
    }
    for (uint32_t i = 0; i < self->kept; i++)
        kept.kept[i] = lki_groups_kept_next(parallel, self, i, group, param) + at;
    return kept;
}

/* Makes what is encoded of the sum of gradients. */
static void prepare(const lk_parallel *parallel, const lki_groups *self, uint32_t group,
                    uint32_t param, const lk_compress_part *part)
{
    for (size_t row = 0; row < part->rows; row++) {
        const size_t at     = part->first + row * part->stride;
        float       *values = values_of(parallel, self, group, param, 0) + at;
        lki_kept     kept   = kept_of(parallel, self, group, param, at, part->count);
        for (uint32_t use = 1; use < lki_layout_uses(parallel->layout, param); use++)
            lki_merge_f32(LK_F32, part->count, values,
                          values_of(parallel, self, group, param, use) + at);
        lki_groups_clip(self, group, part->count, values);
        lki_groups_carry_kept(parallel, self, group, param, at, part->count);
        if (self->rule->before != NULL)
            self->rule->before(&kept, values);
    }
}

/* Gives the residual to the rule. */
static void keep(const lk_parallel *parallel, const lki_groups *self, uint32_t group,
                 uint32_t param, const lk_compress_part *part)
{
    const float *values = values_of(parallel, self, group, param, 0);
    if (self->rule->after == NULL)
        return;
    lki_kept kept = kept_of(parallel, self, group, param, part->first, part->count);
    for (size_t row = 0; row < part->rows; row++) {
        self->rule->after(&kept, values + part->first + row * part->stride);
        for (uint32_t i = 0; i < self->kept; i++)
            kept.kept[i] += part->stride;
    }
}

static void encode(const lk_parallel *parallel, const lki_groups *self, uint32_t round,
                   uint32_t group, uint32_t param, const lk_compress_part *part)
{
    const uint32_t  before = round == 0 ? self->rounds - 1 : round - 1;
    lk_compress_key key    = self->keys[param];

    if (lki_groups_leave_whole(self, param)) {
        copy_whole(parallel, self, group, param, part);
        return;
    }
    if (round == 0)
        prepare(parallel, self, group, param, part);
    key.group = group;
    key.step  = parallel->step;
    self->by->encode(&self->options, &key, round, part,
                     self->onebit != NULL ? (const void *)lki_onebit_absent(self, param)
                                          : lki_groups_combined(self, before, param),
                     values_of(parallel, self, group, param, 0),
                     lki_groups_message(self, round, group, param));
    if (round + 1 == self->rounds)
        keep(parallel, self, group, param, part);
}

/* ---- A round ----------------------------------------------------------------------------- */

/* Copies the running state of the groups, which is small. */
static void copy_states(const lk_parallel *parallel, const lki_groups *self)
{
    const size_t bytes = parallel->micro_count * parallel->state_width * sizeof(float);
    for (uint32_t g = 0; g < self->count; g++)
        if (self->sums[g] != NULL)
            memcpy(lki_groups_message(self, 0, g, parallel->layout->param_count),
                   self->sums[g] + parallel->layout->grad_elements, bytes);
}

void lki_groups_encode(const lk_parallel *parallel, const lki_groups *self, uint32_t round)
{
    uint64_t         task = 0, mine = lki_groups_take(self, LKI_ENCODE, round);
    lk_compress_part part;
    for (uint32_t n = 0; n < parallel->layout->param_count; n++)
        for (uint32_t i = 0; find_part(self, self->order[n], round, i, &part); i++)
            for (uint32_t g = 0; g < self->count; g++)
                if (self->sums[g] != NULL && task++ == mine) {
                    encode(parallel, self, round, g, self->order[n], &part);
                    mine = lki_groups_take(self, LKI_ENCODE, round);
                }
    if (round == 0 && mine == task) /* one rank takes the number after the last task */
        copy_states(parallel, self);
}

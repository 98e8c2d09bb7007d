/* groups_clip.c -- clips the mean gradient of each group, before its rule is applied.
 *
 * DGC clips each worker's gradient at threshold / sqrt(G) (Lin et al., Deep Gradient Compression,
 * 2018): the norm of a sum of G independent gradients is sqrt(G) times that of one.  The norm is
 * that of all tensors together.
 *
 * Order:   blocks of a tensor in ascending order, and then the canonical tree over tensors.
 * Cost:    a pass over the sums of the host's groups, and a barrier.
 */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "comm/worker.h"
#include "device/reduce.h"
#include "parallel/features/groups.h"
#include "parallel/state.h"
#include "tensor/ops.h"

size_t lki_groups_lay_out_squares(const lk_parallel *parallel, lki_groups *self, uint32_t groups,
                                  char *base, size_t at)
{
    if (self->clip == 0)
        return at;
    at = lki_round_up(at, sizeof *self->squares);
    if (base != NULL)
        self->squares = (double *)(void *)(base + at);
    return at + (size_t)groups * parallel->layout->param_count * sizeof *self->squares;
}

/* Returns the sum of the squares of a block of the gradient, in which all uses are added. */
static double block_squares(const lk_parallel *parallel, const lki_groups *self, uint32_t group,
                            uint32_t param, size_t at, size_t count)
{
    const lki_layout *layout  = parallel->layout;
    const uint32_t   *terms   = &layout->term_of[layout->first_use[param]];
    const float      *all     = self->sums[group];
    float            *scratch = self->leaves + (size_t)self->count * LKI_NORM_BLOCK;
    if (lki_layout_uses(layout, param) == 1)
        return lki_block_sum_squares(parallel->exec, count, all + layout->term_at[terms[0]] + at);
    memcpy(scratch, all + layout->term_at[terms[0]] + at, count * sizeof *scratch);
    for (uint32_t use = 1; use < lki_layout_uses(layout, param); use++)
        lki_merge_f32(LK_F32, count, scratch, all + layout->term_at[terms[use]] + at);
    return lki_block_sum_squares(parallel->exec, count, scratch);
}

static double tensor_squares(const lk_parallel *parallel, const lki_groups *self, uint32_t group,
                             uint32_t param)
{
    const size_t size = parallel->layout->sizes[param];
    double       sum  = 0;
    for (size_t at = 0; at < size; at += LKI_NORM_BLOCK)
        sum += block_squares(parallel, self, group, param, at, lki_min(LKI_NORM_BLOCK, size - at));
    return sum;
}

/* Returns the factor of a group.  It is 1 if the norm is not finite, so that the step fails. */
static float factor_of(const lk_parallel *parallel, const lki_groups *self, uint32_t group)
{
    const uint32_t params = parallel->layout->param_count;
    const double   all    = lki_tree_sum_f64(self->squares + self->places[group] * params, params);
    const double   norm   = sqrt(all) / (double)lki_groups_samples(parallel, self, group);
    const double   limit  = self->clip / sqrt(self->count);
    return isfinite(norm) && norm > limit ? (float)(limit / norm) : 1;
}

lk_status lki_groups_measure(lk_parallel *parallel, lki_groups *self)
{
    const uint32_t params = parallel->layout->param_count;
    uint64_t       task = 0, mine;
    if (self->clip == 0)
        return LK_OK;
    mine = lki_groups_take(self, LKI_MEASURE, 0);
    for (uint32_t n = 0; n < params; n++)
        for (uint32_t g = 0, p = self->order[n]; g < self->count; g++)
            if (self->sums[g] != NULL && task++ == mine) {
                self->squares[self->places[g] * params + p] = tensor_squares(parallel, self, g, p);
                mine = lki_groups_take(self, LKI_MEASURE, 0);
            }
    LK_TRY(lk_barrier(parallel->comm));
    for (uint32_t g = 0; g < self->count; g++)
        if (self->sums[g] != NULL)
            self->factors[g] = factor_of(parallel, self, g);
    return LK_OK;
}

void lki_groups_clip(const lki_groups *self, uint32_t group, size_t count, float *values)
{
    if (self->factors == NULL || self->factors[group] == 1)
        return;
    for (size_t i = 0; i < count; i++)
        values[i] *= self->factors[group];
}

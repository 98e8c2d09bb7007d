/* outer.c -- outer steps: the mean of the replicas, and the update of the outer weights.
 *
 * Each replica gives outer weights minus own weights as the gradient of one sample, and its running
 * state.  Thus the reduction, the update and the types that are sent are those of a strategy.
 * (DiLoCo, Douillard et al. 2023, algorithm 1, lines 12 to 14.)
 */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "device/reduce.h"
#include "parallel/replicas/internal.h"

/* Returns the square of the distance between the weights of a replica and the outer weights. */
static double distance(const lk_parallel *outer, const lk_parallel *model)
{
    const lki_layout *layout = outer->layout;
    double            sum    = 0;
    for (uint32_t p = 0; p < layout->param_count; p++) {
        const float *a = lk_parallel_value(outer, p, 0), *b = lk_parallel_value(model, p, 0);
        for (size_t i = 0; i < layout->sizes[p]; i++)
            sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    }
    return sum;
}

/* Sets the outer weights to 0, so that a step of plain sgd leaves the mean of the replicas in them,
 * without the rounding of differences. */
static lk_status clear(lki_replicas *replicas)
{
    lk_parallel *outer = replicas->outer;
    memset(replicas->scratch, 0, replicas->largest * sizeof *replicas->scratch);
    for (uint32_t p = 0; p < outer->layout->param_count; p++)
        LK_TRY(lk_parallel_load(outer, p, 0, replicas->scratch));
    return LK_OK;
}

/* The sum of +0 makes +0 of -0, as the sums with virtual workers that have no gradient do. */
static void subtract(size_t count, const float *outer, const float *inner, float *gradient)
{
    for (size_t i = 0; i < count; i++)
        gradient[i] = (outer[i] - inner[i]) + 0.0f;
}

/* Gives the gradient and the running state of a replica in its turn, and `square` as the loss. */
static void give(lk_parallel *outer, const lk_parallel *model, double square)
{
    const lki_layout *layout = outer->layout;
    bool              empty;
    for (uint32_t t = 0; t < layout->param_count; t++) {
        const uint32_t p = layout->param_count - 1 - t; /* terms are from last to first */
        subtract(layout->sizes[p], lk_parallel_value(outer, p, 0), lk_parallel_value(model, p, 0),
                 lk_parallel_grad_new(outer, 0, t, &empty));
        lk_parallel_grad_ready(outer, 0, t);
    }
    for (uint32_t s = 0; s < outer->running.count; s++)
        memcpy(lk_parallel_state_sum(outer, 0, s), lk_parallel_state_data(model, s),
               outer->running.of[s].count * sizeof(float));
    lk_parallel_report(outer, 0, square, 1, 1, 0);
}

lk_status lki_replicas_restart(lki_replicas *replicas)
{
    lk_parallel *outer = replicas->outer;
    for (uint32_t i = 0; i < replicas->served; i++) {
        lk_parallel *model = replicas->of[i].model;
        for (uint32_t p = 0; p < outer->layout->param_count; p++)
            LK_TRY(lk_parallel_load(model, p, 0, lk_parallel_value(outer, p, 0)));
        for (uint32_t s = 0; s < outer->running.count; s++)
            LK_TRY(lk_parallel_load_state(model, s, lk_parallel_state_data(outer, s)));
    }
    return LK_OK;
}

/* Finishes an outer step.  The object of the outer weights counts outer steps as its steps. */
static lk_status finish(lki_replicas *replicas, uint64_t number, lk_step_result *result)
{
    const lk_status status = lk_parallel_finish(replicas->outer, replicas->options.lr, result);
    if (status == LK_OK)
        return LK_OK;
    const lk_error failure = *lk_error_last();
    return lk_fail(status, "outer step %llu: %s", (unsigned long long)number, failure.message);
}

lk_status lki_replicas_average(lk_parallel *parallel, uint64_t number)
{
    lki_replicas    *replicas = parallel->replicas;
    lk_parallel     *outer    = replicas->outer;
    lk_parallel_turn turn;
    lk_step_result   result;

    for (uint32_t i = 0; i < replicas->served; i++)
        replicas->of[i].square = distance(outer, replicas->of[i].model);
    if (replicas->mean)
        LK_TRY(clear(replicas));
    LK_TRY(lk_parallel_begin(outer, number - 1));
    while (lk_parallel_next(outer, &turn)) {
        const lki_replica *of = replicas->of + turn.virtual_worker / replicas->leaves -
                                replicas->first;
        if (turn.virtual_worker % replicas->leaves == 0)
            give(outer, of->model, of->square);
        else
            lk_parallel_report(outer, 0, 0, 0, 0, 0);
    }
    LK_TRY(finish(replicas, number, &result));
    replicas->last = (lk_outer_step){ .number    = number,
                                      .grad_norm = replicas->mean ? 0 : result.grad_norm,
                                      .drift     = sqrt(result.loss) };
    return lki_replicas_restart(replicas);
}

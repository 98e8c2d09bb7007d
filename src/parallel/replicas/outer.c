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

/* Writes the outer gradient of a parameter.  Returns the sum of its squares. */
static double subtract(size_t count, const float *outer, const float *inner, float *gradient)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        gradient[i] = outer[i] - inner[i];
        sum += (double)gradient[i] * (double)gradient[i];
    }
    return sum;
}

/* Gives the gradient and the running state of a replica in its turn.  Returns the sum of the
 * gradient's squares. */
static double give(lk_parallel *outer, const lk_parallel *model)
{
    const lki_layout *layout = outer->layout;
    double            square = 0;
    bool              empty;
    for (uint32_t t = 0; t < layout->param_count; t++) {
        const uint32_t p = layout->param_count - 1 - t; /* terms are from last to first */
        square += subtract(layout->sizes[p], lk_parallel_value(outer, p, 0),
                           lk_parallel_value(model, p, 0),
                           lk_parallel_grad_new(outer, 0, t, &empty));
        lk_parallel_grad_ready(outer, 0, t);
    }
    for (uint32_t s = 0; s < outer->running.count; s++)
        memcpy(lk_parallel_state_sum(outer, 0, s), lk_parallel_state_data(model, s),
               outer->running.of[s].count * sizeof(float));
    lk_parallel_report(outer, 0, square, 1, 1, 0);
    return square;
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

lk_status lki_replicas_average(lk_parallel *parallel, uint64_t number)
{
    lki_replicas    *replicas = parallel->replicas;
    lk_parallel     *outer    = replicas->outer;
    lk_parallel_turn turn;
    lk_step_result   result;

    LK_TRY(lk_parallel_begin(outer, number - 1));
    while (lk_parallel_next(outer, &turn)) {
        const uint32_t replica = turn.virtual_worker / replicas->leaves;
        if (turn.virtual_worker % replicas->leaves == 0)
            (void)give(outer, lki_replica_here(replicas, replica));
        else
            lk_parallel_report(outer, 0, 0, 0, 0, 0);
    }
    LK_TRY(lk_parallel_finish(outer, replicas->options.lr, &result));
    /* the loss of a replica is the square of its distance */
    replicas->last = (lk_outer_step){ .number    = number,
                                      .grad_norm = result.grad_norm,
                                      .drift     = sqrt(result.loss) };
    return lki_replicas_restart(replicas);
}

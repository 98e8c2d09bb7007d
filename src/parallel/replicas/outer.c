/* outer.c -- outer steps: the mean of the replicas, and the update of the outer weights.
 *
 * Each replica gives outer weights minus own weights as the gradient of one sample, and its running
 * state.  Thus the reduction, the update and the types that are sent are those of a strategy.
 * (DiLoCo, Douillard et al. 2023, algorithm 1, lines 12 to 14.)  With a delay the step of the outer
 * weights is finished later, and what replicas gave is kept for checkpoints until then.
 */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "device/encoder.h"
#include "device/reduce.h"
#include "parallel/replicas/internal.h"
#include "parallel/strategies/units.h"

/* ---- What a replica gives ---------------------------------------------------------------- */

/* Returns the weights of parameter `p` of the fragment that a replica gives. */
static const float *given(const lki_fragment *f, const lki_replica *replica, uint32_t p)
{
    return replica->sent != NULL ? replica->sent + f->outer->layout->param_at[p]
                                 : lk_parallel_value(replica->model, f->first + p, 0);
}

/* Copies the weights of a replica to `sent`, if it has room for them.  If its ranks have parts of
 * the weights, they are gathered.  Collective over the ranks of the replica. */
static lk_status copy_weights(const lki_replicas *replicas, const lki_fragment *f,
                              const lki_replica *replica)
{
    const lki_layout *layout = f->outer->layout;
    for (uint32_t p = 0; p < f->count; p++) {
        float *to = replica->sent != NULL ? replica->sent + layout->param_at[p]
                                          : replicas->scratch;
        if (replica->sent != NULL || replica->model->parted)
            LK_TRY(lk_parallel_fetch(replica->model, f->first + p, 0, 0, layout->sizes[p], to));
    }
    return LK_OK;
}

/* Returns the square of the distance between the weights of a replica and the outer weights. */
static double distance(const lki_fragment *f, const lki_replica *replica)
{
    double sum = 0;
    for (uint32_t p = 0; p < f->count; p++) {
        const float *a = lk_parallel_value(f->outer, p, 0), *b = given(f, replica, p);
        for (size_t i = 0; i < f->outer->layout->sizes[p]; i++)
            sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    }
    return sum;
}

/* The sum of +0 makes +0 of -0, as the sums with virtual workers that have no gradient do. */
static void subtract(size_t count, const float *outer, const float *inner, float *gradient)
{
    for (size_t i = 0; i < count; i++)
        gradient[i] = (outer[i] - inner[i]) + 0.0f;
}

/* As subtract(), from outer weights of 0: lki_effects.replaces. */
static void negate(size_t count, const float *inner, float *gradient)
{
    for (size_t i = 0; i < count; i++)
        gradient[i] = (0.0f - inner[i]) + 0.0f;
}

/* Gives the gradient and the running state of a replica in its turn, and the square of its
 * distance as the loss. */
static void give(const lki_replicas *replicas, const lki_fragment *f, const lki_replica *replica)
{
    lk_parallel      *outer  = f->outer;
    const lki_layout *layout = outer->layout;
    bool              empty;
    for (uint32_t t = 0; t < f->count; t++) {
        const uint32_t p    = f->count - 1 - t; /* terms are from last to first */
        const float   *mine = given(f, replica, p);
        float         *to   = lk_parallel_grad_new(outer, 0, t, &empty);
        if (replicas->mean)
            negate(layout->sizes[p], mine, to);
        else
            subtract(layout->sizes[p], lk_parallel_value(outer, p, 0), mine, to);
        lk_parallel_grad_ready(outer, 0, t);
    }
    for (uint32_t s = 0; s < outer->running.count; s++)
        memcpy(lk_parallel_state_sum(outer, 0, s), lk_parallel_state_data(replica->model, s),
               outer->running.of[s].count * sizeof(float));
    lk_parallel_report(outer, 0, replica->square, 1, 1, 0);
}

/* ---- What a replica gets ----------------------------------------------------------------- */

/* Moves values towards outer values. */
static void approach(size_t count, const float *outer, float alpha, float *values)
{
    if (alpha == 0) {
        memcpy(values, outer, count * sizeof *values);
        return;
    }
    for (size_t i = 0; i < count; i++)
        values[i] = outer[i] + alpha * (values[i] - outer[i]);
}

/* Moves the spans of a parameter that this rank writes on its host. */
static void approach_param(lk_parallel *model, uint32_t param, const float *outer, float alpha)
{
    const lki_layout *layout = model->layout;
    for (size_t i = layout->first_span[param]; i < layout->first_span[param + 1]; i++) {
        const lki_param_span *span = &layout->spans[i];
        float                *to   = lki_values_of(model, span);
        if (model->parted ? !lki_owns(model, span) : !lki_tends(model, span))
            continue;
        approach(span->count, outer + span->inside, alpha, to);
        if (model->read != NULL)
            lki_reading_put(model, span, to);
    }
    lki_attest_written(model, param);
}

/* Moves the weights of a fragment of a replica towards the outer weights, and with the last
 * fragment its running state.  Collective over the ranks of the replica. */
static lk_status restart(const lki_replicas *replicas, const lki_fragment *f, lk_parallel *model)
{
    const float alpha = (float)replicas->options.alpha;
    LK_TRY(lki_units_settle(model));
    for (uint32_t p = 0; p < f->count; p++)
        approach_param(model, f->first + p, lk_parallel_value(f->outer, p, 0), alpha);
    for (uint32_t s = 0; s < f->outer->running.count && model->local == 0; s++)
        approach(f->outer->running.of[s].count, lk_parallel_state_data(f->outer, s), alpha,
                 lki_state_data(model, s));
    if (model->gathers)
        lki_units_forget(model);
    return lk_barrier(model->comm);
}

/* ---- Outer steps ------------------------------------------------------------------------- */

/* Returns the number of the outer steps, from 1, whose gradients are those after `done` inner
 * steps. */
static uint64_t number_of(const lki_replicas *replicas, uint64_t done)
{
    return (done + replicas->options.local_steps - 1) / replicas->options.local_steps;
}

/* Begins an outer step: all replicas of this rank give what they have.  The object of the outer
 * weights counts outer steps as its steps. */
static lk_status begin(lki_replicas *replicas, const lki_fragment *f, uint64_t number)
{
    lk_parallel_turn turn;
    LK_TRY(lk_parallel_begin(f->outer, number - 1));
    while (lk_parallel_next(f->outer, &turn)) {
        lki_replica *of = replicas->of + turn.virtual_worker / replicas->leaves - replicas->first;
        if (turn.virtual_worker % replicas->leaves != 0) {
            lk_parallel_report(f->outer, 0, 0, 0, 0, 0);
            continue;
        }
        of->square = distance(f, of);
        give(replicas, f, of);
    }
    replicas->pending = (uint32_t)(f - replicas->fragments);
    return LK_OK;
}

static lk_status copy_and_begin(lki_replicas *replicas, const lki_fragment *f, uint64_t number)
{
    for (uint32_t i = 0; i < replicas->served; i++)
        LK_TRY(copy_weights(replicas, f, &replicas->of[i]));
    return begin(replicas, f, number);
}

/* Returns lk_outer_step.message_bytes. */
static uint64_t message_bytes(const lk_parallel *outer)
{
    const lk_exchange_size size     = lk_parallel_exchange_size(outer);
    const lki_encoder     *encoder  = lki_encoder_of(outer->rounded);
    const uint64_t         elements = outer->layout->grad_elements;
    const uint64_t         states   = outer->state_width * sizeof(float);
    if (size.groups > 0)
        return size.sent_bytes;
    return states + (encoder == NULL ? elements * sizeof(float)
                                     : elements / encoder->unit * encoder->bytes);
}

/* Finishes the outer step that has begun. */
static lk_status finish(lki_replicas *replicas, uint64_t number, lk_step_result *result)
{
    lk_parallel    *outer  = replicas->fragments[replicas->pending].outer;
    const lk_status status = lk_parallel_finish(outer, replicas->options.lr, result);
    if (status == LK_OK)
        return LK_OK;
    const lk_error failure = *lk_error_last();
    if (replicas->options.topology != LK_TOPOLOGY_ALL)
        return lk_fail(status, "the mean of the replicas: %s", failure.message);
    return lk_fail(status, "outer step %llu: %s", (unsigned long long)number, failure.message);
}

/* Completes the outer step that has begun. */
static lk_status complete(lki_replicas *replicas, uint64_t number)
{
    const lki_fragment *f = &replicas->fragments[replicas->pending];
    lk_step_result      result;
    LK_TRY(finish(replicas, number, &result));
    replicas->last    = (lk_outer_step){ .number    = number,
                                         .fragment  = replicas->pending,
                                         .grad_norm = replicas->mean ? 0 : result.grad_norm,
                                         .drift     = sqrt(result.loss),
                                         .message_bytes = message_bytes(f->outer) };
    replicas->pending = replicas->options.fragments;
    for (uint32_t i = 0; i < replicas->served; i++)
        LK_TRY(restart(replicas, f, replicas->of[i].model));
    return LK_OK;
}

lk_status lki_outer_steps(lk_parallel *parallel, uint64_t done)
{
    lki_replicas      *replicas = parallel->replicas;
    const lk_replicas *o        = &replicas->options;
    const uint32_t     due      = lki_fragment_due(o, done);

    if (o->delay > 0 && done > o->delay && lki_fragment_due(o, done - o->delay) < o->fragments)
        LK_TRY(complete(replicas, number_of(replicas, done - o->delay)));
    if (due < o->fragments)
        LK_TRY(copy_and_begin(replicas, &replicas->fragments[due], number_of(replicas, done)));
    return due < o->fragments && o->delay == 0 ? complete(replicas, number_of(replicas, done))
                                               : LK_OK;
}

lk_status lki_outer_resume(lk_parallel *parallel)
{
    lki_replicas      *replicas = parallel->replicas;
    const lk_replicas *o        = &replicas->options;
    const uint64_t     done     = parallel->step - o->start;
    const uint64_t     since    = done % (o->local_steps / o->fragments);
    return begin(replicas, &replicas->fragments[replicas->pending],
                 number_of(replicas, done - since));
}

/* ---- The mean of replicas that have no outer steps ------------------------------------------ */

/* Computes the root mean square of the replicas' distances from the outer weights. */
static lk_status find_drift(lk_parallel *parallel, double *drift)
{
    lki_replicas  *replicas = parallel->replicas;
    const uint32_t count    = replicas->options.count;
    double        *squares  = NULL;
    LK_TRY(LKI_NEW(&squares, count, "distances of replicas"));
    lk_status status = LK_OK;
    for (uint32_t r = 0; r < count && status == LK_OK; r++) {
        if (lki_replica_here(replicas, r) != NULL)
            squares[r] = distance(replicas->fragments, &replicas->of[r - replicas->first]);
        status = lk_broadcast(parallel->comm, &squares[r], sizeof *squares,
                              lki_replica_seats(replicas, r, parallel->ranks).first);
    }
    *drift = sqrt(lki_tree_sum_f64(squares, count) / count);
    lki_free(squares);
    return status;
}

lk_status lki_outer_mean(lk_parallel *parallel)
{
    lki_replicas  *replicas = parallel->replicas;
    const uint64_t number   = replicas->mixings + 1;
    lk_step_result result;
    double         drift;
    LK_TRY(copy_and_begin(replicas, replicas->fragments, number));
    LK_TRY(finish(replicas, number, &result));
    replicas->pending = replicas->options.fragments;
    LK_TRY(find_drift(parallel, &drift));
    replicas->last = (lk_outer_step){ .number = replicas->mixings, .drift = drift };
    return LK_OK;
}

/* step.c -- the end of a step, after its turns: sums, norms, checks and the update.
 *
 * 1. In the spans that it owns, each rank adds the further uses of shared parameters to use 0, in
 *    order.  For each span it sums the squares of the gradient and, if the optimizer needs them, of
 *    the values.  Norms are trees over spans, then over tensors.
 * 2. At a meeting all ranks exchange sums, losses and counts.  Every rank computes the same loss
 *    and norm, and finds the same failure if either is not finite; nothing has been updated then.
 *    Ranks whose calls differ, and hosts whose copies of the parameters differ, are found here as
 *    well (agree.c).  If a feature skips the step, a value that is not finite is no failure.
 * 3. With LAMB each rank computes the directions of its spans and sums their squares, and all meet
 *    again.
 * 4. Each rank updates its spans.  It hashes the values that it reads, compares the hash with that
 *    of the values written last time, and hashes the values that it writes.  A difference is
 *    reported, because it means that memory has changed in between.
 * 5. After a barrier the parameters of the next step are visible to all.  If hosts store shards,
 *    owners send parameters to the other hosts before the barrier, or when they are read (units.c).
 *
 * With a ledger the results of the meeting are marked before any value is changed, and other ranks
 * can continue steps 3 and 4 of a lost rank (ledger.h).  These ranks visit every span again and
 * skip finished stages.
 */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "device/reduce.h"
#include "parallel/durable.h"
#include "parallel/offload/offload.h"
#include "parallel/strategies/shards.h"
#include "parallel/strategies/units.h"
#include "tensor/exec.h"
#include "tensor/ops.h"

enum { SPANS_PER_TASK = 8 };

/* The context of a pass over this rank's spans.  The pass visits a few spans at a time. */
typedef struct step_context step_context;
struct step_context {
    lk_parallel         *parallel;
    const lki_gradients *sums; /* NULL: durable->find_sum() returns the sums */
    void (*visit)(step_context *step, size_t span);
    size_t         first, end; /* the range of `mine` to visit in this pass */
    lk_update      update;
    /* the first span whose parameters have changed since they were written */
    _Atomic size_t corrupt;
};

static void visit_some(void *context, size_t task)
{
    step_context *step = context;
    size_t        from = step->first + task * SPANS_PER_TASK;
    size_t        end  = lki_min(from + SPANS_PER_TASK, step->end);
    for (size_t i = from; i < end; i++)
        step->visit(step, step->parallel->owned.spans[i]);
}

static void visit_range(void *context, size_t first, size_t end)
{
    step_context *step = context;
    step->first        = first;
    step->end          = end;
    lk_parallel_for(step->parallel->exec, (end - first + SPANS_PER_TASK - 1) / SPANS_PER_TASK,
                    visit_some, step);
}

static void visit_mine(step_context *step, lki_span_kind kind,
                       void (*visit)(step_context *step, size_t span))
{
    lki_track *track = lki_exec_track(step->parallel->exec);
    uint64_t   begun = lki_trace_begin(track);
    step->visit      = visit;
    visit_range(step, 0, step->parallel->owned.count);
    lki_trace_end(track, kind, 0, begun);
}

/* Visits this rank's spans.  `over` selects the values that must be in memory, because values may
 * be in files. */
static lk_status visit_over(step_context *step, lki_span_kind kind, unsigned over,
                            void (*visit)(step_context *step, size_t span))
{
    if (!lki_offload_has(step->parallel, over)) {
        visit_mine(step, kind, visit);
        return LK_OK;
    }
    lki_track *track  = lki_exec_track(step->parallel->exec);
    uint64_t   begun  = lki_trace_begin(track);
    step->visit       = visit;
    lk_status  status = lki_offload_walk(step->parallel, over, visit_range, step);
    lki_trace_end(track, kind, 0, begun);
    return status;
}

static float *sum_of(const step_context *step, size_t index)
{
    const lk_parallel *parallel = step->parallel;
    if (step->sums != NULL)
        return lki_gradient_of(parallel, step->sums, &parallel->layout->spans[index], 0);
    return parallel->durable->find_sum(parallel, index);
}

/* ---- Sums -------------------------------------------------------------------------------- */

/* Returns the number of elements of a span's sum.  It is 0 if the sum was not sent, because no
 * virtual worker uses the parameter. */
static size_t elements_of_sum(const lk_parallel *parallel, const lki_param_span *span)
{
    return parallel->uses.fixed && !lki_is_used(parallel, span->param) ? 0 : span->count;
}

static void sum_some(void *context, size_t task)
{
    step_context     *step     = context;
    lk_parallel      *parallel = step->parallel;
    const lki_layout *layout   = parallel->layout;
    const size_t     *mine     = parallel->owned.spans + task * SPANS_PER_TASK;
    size_t count = lki_min(SPANS_PER_TASK, parallel->owned.count - task * SPANS_PER_TASK);
    size_t n[SPANS_PER_TASK] = { 0 };
    const float      *x[SPANS_PER_TASK] = { NULL };
    double            sums[SPANS_PER_TASK];

    for (size_t i = 0; i < count; i++) {
        const lki_param_span *span = &layout->spans[mine[i]];
        float                *sum  = lki_gradient_of(parallel, step->sums, span, 0);
        for (uint32_t use = 1; use < lki_layout_uses(layout, span->param); use++)
            lki_merge_f32(LK_F32, span->count, sum,
                          lki_gradient_of(parallel, step->sums, span, use));
        n[i] = elements_of_sum(parallel, span);
        x[i] = sum;
        parallel->durable->note_sum(parallel, mine[i], sum);
    }
    lki_block_sums_squares(parallel->exec, count, n, x, sums);
    for (size_t i = 0; i < count; i++)
        *lki_block_sum(parallel, &layout->spans[mine[i]], LKI_OF_GRADIENT) = sums[i];
}

static void measure_values(step_context *step, size_t index)
{
    const lk_parallel    *parallel = step->parallel;
    const lki_param_span *span     = &parallel->layout->spans[index];
    *lki_block_sum(parallel, span, LKI_OF_VALUES) =
        lki_block_sum_squares(parallel->exec, span->count, lki_values_of(parallel, span));
}

static void measure_second(step_context *step, size_t index)
{
    lki_span_measure_second(step->parallel, index);
}

static lk_status sum_mine(step_context *step)
{
    const lk_parallel *parallel = step->parallel;
    lki_track         *track    = lki_exec_track(parallel->exec);
    uint64_t           begun    = lki_trace_begin(track);
    lk_parallel_for(parallel->exec, (parallel->owned.count + SPANS_PER_TASK - 1) / SPANS_PER_TASK,
                    sum_some, step);
    lki_trace_end(track, LKI_SPAN_NORM, 0, begun);
    if (lki_measures(parallel, LKI_OF_VALUES))
        LK_TRY(visit_over(step, LKI_SPAN_NORM, LKI_OVER_PARAMS, measure_values));
    return parallel->norms.second > 0 && !lki_sums_momenta(parallel)
               ? visit_over(step, LKI_SPAN_NORM, LKI_OVER_STATES, measure_second)
               : LK_OK;
}

/* Computes the norms of tensors, each by a tree over its spans.  Returns the sum of their squares,
 * computed by a tree over the tensors. */
static double tensor_norms(const lk_parallel *parallel, lki_measure measure)
{
    const lki_layout *layout = parallel->layout;
    double           *sums = parallel->norms.scratch, *norms = parallel->norms.of;
    for (size_t i = 0; i < layout->span_count; i++)
        sums[i] = *lki_block_sum(parallel, &layout->spans[i], measure);
    for (uint32_t p = 0; p < layout->param_count; p++) { /* every tensor has at least one span */
        sums[p] = lki_tree_sum_f64(sums + layout->first_span[p],
                                   layout->first_span[p + 1] - layout->first_span[p]);
        norms[measure * layout->param_count + p] = sqrt(sums[p]);
    }
    return lki_tree_sum_f64(sums, layout->param_count);
}

/* Finds the largest value of each tensor. */
static void find_largest(const lk_parallel *parallel)
{
    const lki_layout *layout = parallel->layout;
    double           *of     = parallel->norms.of + LKI_OF_LARGEST * layout->param_count;
    memset(of, 0, layout->param_count * sizeof *of);
    for (size_t i = 0; i < layout->span_count; i++) {
        const lki_param_span *span = &layout->spans[i];
        const double          value = *lki_block_sum(parallel, span, LKI_OF_LARGEST);
        of[span->param]             = value > of[span->param] ? value : of[span->param];
    }
}

static lk_status fail_empty(lk_parallel *parallel)
{
    uint64_t samples = 0;
    for (uint32_t v = 0; v < parallel->leaves; v++)
        for (uint32_t k = 0; k < parallel->now.micros; k++)
            samples += lki_report_of(parallel, v)->samples[k];
    if (samples > 0)
        return lk_fail(LK_EINVAL, "step %llu: none of its %llu samples counts for anything, by "
                                  "their labels or weights, so there is no mean; take larger "
                                  "batches", (unsigned long long)parallel->step + 1,
                       (unsigned long long)samples);
    return lk_fail(LK_EINVAL, "step %llu: no virtual worker reported a sample; call "
                              "lk_parallel_report() once a turn",
                   (unsigned long long)parallel->step + 1);
}

/* Returns the mean of the squares that virtual workers reported. */
static double mean_square(const lk_parallel *parallel, uint64_t count)
{
    double *squares = parallel->norms.scratch;
    for (uint32_t v = 0; v < parallel->leaves; v++)
        squares[v] = lki_report_of(parallel, v)->square;
    return lki_tree_sum_f64(squares, parallel->leaves) / (double)count;
}

static lk_status collect(lk_parallel *parallel, lk_step_result *result)
{
    double *losses = parallel->norms.scratch;
    *result        = (lk_step_result){ 0 };
    for (uint32_t v = 0; v < parallel->leaves; v++) {
        const lki_report *report = lki_report_of(parallel, v);
        if (report->micros != parallel->now.micros)
            return lk_fail(LK_EMISMATCH,
                           "step %llu: virtual worker %u made %u micro-batches, rank "
                           "%u's have %u; every rank must begin a step with the same number",
                           (unsigned long long)parallel->step + 1, v, report->micros,
                           parallel->rank, parallel->now.micros);
        losses[v] = report->loss;
        result->count += report->count;
        result->hits += report->hits;
    }
    lki_losses_take(parallel);
    result->skipped = result->count == 0 && parallel->effects.idles;
    if (result->skipped)
        return LK_OK;
    if (result->count == 0)
        return fail_empty(parallel);
    result->loss   = lki_tree_sum_f64(losses, parallel->leaves) / (double)result->count;
    result->square = mean_square(parallel, result->count);
    parallel->norms.root_squares = tensor_norms(parallel, LKI_OF_GRADIENT);
    result->grad_norm            = sqrt(parallel->norms.root_squares) / (double)result->count /
                        parallel->now.seed;
    if (parallel->norms.second > 0 && !lki_sums_momenta(parallel))
        parallel->norms.second_sum = tensor_norms(parallel, (lki_measure)parallel->norms.second);
    return LK_OK;
}

/* Returns the number of the step in messages, which count from 1. */
static unsigned long long named_step(const lk_parallel *parallel)
{
    return parallel->now.named > 0 ? parallel->now.named : parallel->step + 1;
}

/* Fails because the weights of a replica are not finite. */
static lk_status fail_replica(const lk_parallel *parallel, uint32_t replica)
{
    const uint32_t first = replica * parallel->effects.each;
    return lk_fail(LK_ENONFINITE,
                   "the weights of replica %u, which has virtual workers %u to %u, are not finite; "
                   "lower the learning rate or clip the gradient",
                   replica, first, first + parallel->effects.each - 1);
}

/* Fails if the loss or the gradient is not finite.  Messages count steps from 1.  The loss of a
 * replica in an outer step is the square of a distance between weights. */
static lk_status check_finite(const lk_parallel *parallel, const lk_step_result *result)
{
    const uint32_t replicas = parallel->effects.replicas;
    for (uint32_t v = 0; v < parallel->leaves; v++)
        if (!isfinite(lki_report_of(parallel, v)->loss) && replicas > 0)
            return fail_replica(parallel, v / (parallel->leaves / replicas));
        else if (!isfinite(lki_report_of(parallel, v)->loss))
            return lk_fail(LK_ENONFINITE,
                           "step %llu: the loss of virtual worker %u is not finite; "
                           "lower the learning rate or clip the gradient (nothing "
                           "was updated)",
                           named_step(parallel), parallel->effects.first + v);
    if (isfinite(result->grad_norm))
        return LK_OK;
    const lki_layout *layout = parallel->layout;
    size_t            span   = 0;
    while (span + 1 < layout->span_count &&
           isfinite(*lki_block_sum(parallel, &layout->spans[span], LKI_OF_GRADIENT)))
        span++;
    return lk_fail(LK_ENONFINITE,
                   "step %llu: the gradient of '%s' is not finite; lower the learning "
                   "rate or clip the gradient (nothing was updated)",
                   named_step(parallel),
                   layout->params[layout->spans[span].param].name);
}

/* ---- Updates ----------------------------------------------------------------------------- */

static void note_corrupt(step_context *step, size_t index)
{
    size_t known = atomic_load(&step->corrupt);
    while (index < known && !atomic_compare_exchange_weak(&step->corrupt, &known, index))
        continue;
}

static void direct_span(step_context *step, size_t index)
{
    lki_span_direct(step->parallel, &step->update, index, sum_of(step, index));
}

/* Computes the norms of tensors, if the optimizer needs them; with LAMB after a second meeting. */
static lk_status measure_tensors(step_context *step)
{
    lk_parallel *parallel = step->parallel;
    if (lki_measures(parallel, LKI_OF_VALUES))
        (void)tensor_norms(parallel, LKI_OF_VALUES);
    if (!lki_measures(parallel, LKI_OF_MOVES))
        return LK_OK;
    LK_TRY(visit_over(step, LKI_SPAN_UPDATE, LKI_OVER_STATES | LKI_OVER_PARAMS, direct_span));
    /* other ranks may still read the sums that the gather overwrites */
    LK_TRY(lk_barrier(parallel->comm));
    LK_TRY(lki_shards_gather_sums(parallel));
    (void)tensor_norms(parallel, LKI_OF_MOVES);
    if (lki_measures(parallel, LKI_OF_LARGEST)) {
        (void)tensor_norms(parallel, LKI_OF_MOMENTUM);
        find_largest(parallel);
    }
    lki_features_ratios(parallel, &step->update);
    return LK_OK;
}

static void update_span(step_context *step, size_t index)
{
    if (!lki_span_update(step->parallel, &step->update, index, sum_of(step, index)))
        note_corrupt(step, index);
}

void lki_attest_span(lk_parallel *parallel, size_t index)
{
    const lki_param_span *span = &parallel->layout->spans[index];
    parallel->owned.hashes[index] = lki_xxh3(lki_values_of(parallel, span),
                                             span->count * sizeof(float));
}

void lki_attest_written(lk_parallel *parallel, uint32_t param)
{
    const lki_layout *layout = parallel->layout;
    for (size_t i = layout->first_span[param]; i < layout->first_span[param + 1]; i++)
        if (lki_owns(parallel, &layout->spans[i]))
            lki_attest_span(parallel, i);
}

static lk_status corrupt_error(const lk_parallel *parallel, size_t index)
{
    const lki_param_span *span = &parallel->layout->spans[index];
    return lk_fail(LK_ECORRUPT,
                   "rank %u, step %llu: parameter '%s', elements %zu to %zu, changed since it was "
                   "written; something else wrote into the model's memory, or the memory is faulty",
                   lk_comm_world_rank(parallel->comm, parallel->rank),
                   named_step(parallel),
                   parallel->layout->params[span->param].name, span->inside,
                   span->inside + span->count - 1);
}

/* Updates running state for each micro-batch index in order, from the mean over its samples.  Then
 * updates its moving average, if there is one. */
static void move_running(const step_context *step, const float *states, size_t begin, size_t end,
                         float *running, float *running_mean)
{
    const lk_parallel *parallel = step->parallel;

    for (uint32_t k = 0; k < parallel->micro_count; k++) {
        uint64_t samples = 0;
        for (uint32_t v = 0; v < parallel->leaves; v++)
            samples += lki_report_of(parallel, v)->samples[k];
        if (samples == 0)
            continue;
        float        inverse = (float)(1.0 / (double)samples);
        const float *sum     = states + k * parallel->state_width;
        uint32_t     state   = 0;
        for (size_t i = begin; i < end; i++) {
            while (state + 1 < parallel->running.count && i >= parallel->running.at[state + 1])
                state++;
            float momentum = parallel->running.of[state].momentum;
            float mean     = sum[i] * inverse;
            running[i]     = (1.0f - momentum) * running[i] + momentum * mean;
        }
    }
    if (running_mean != NULL)
        lk_optimizer_average(&parallel->optimizer, &step->update, end - begin, running + begin,
                             running_mean + begin);
}

static void update_running(const step_context *step, uint32_t owner, uint32_t owners)
{
    lk_parallel       *parallel = step->parallel;
    const lki_durable *durable  = parallel->durable;
    size_t             first    = parallel->state_width * owner / owners;
    size_t             end      = parallel->state_width * (owner + 1) / owners;
    const float       *sums     = step->sums == NULL ? NULL : step->sums->states;

    lki_running_update at = durable->begin_running(parallel, owner, first, end, sums);
    if (!at.complete)
        move_running(step, at.sums, first, end, at.values, at.mean);
    durable->end_running(parallel, owner, first, end);
}

/* Waits for the reports of all ranks and for the sums of squares of this host's owners. */
static lk_status meet(lk_parallel *parallel)
{
    char *base = lk_arena_data(parallel->arena);
    lki_step_tell(parallel);
    LK_TRY(lk_arena_mirror(parallel->comm, parallel->arena, (size_t)(parallel->reports - base),
                           parallel->reported));
    return lki_shards_gather_sums(parallel);
}

static lk_status update(step_context *step, uint32_t owners)
{
    lk_parallel *parallel = step->parallel;

    LK_TRY(measure_tensors(step));
    LK_TRY(visit_over(step, LKI_SPAN_UPDATE, LKI_OVER_STATES | LKI_OVER_PARAMS | LKI_OVER_CHANGES,
                      update_span));
    if (step->corrupt != SIZE_MAX)
        return corrupt_error(parallel, step->corrupt);
    for (uint32_t o = parallel->local; o < owners && parallel->state_width > 0;
         o += parallel->locals)
        update_running(step, o, owners);
    lki_features_after_update(parallel);
    if (parallel->gathers)
        lki_units_forget(parallel);
    return lki_reading_publish(parallel);
}

/* Marks the step as decided.  From now on it will be completed, even by fewer ranks. */
static void decide(step_context *step, double lr, const lk_step_result *result)
{
    lk_parallel *parallel = step->parallel;
    const bool   momenta  = lki_sums_momenta(parallel); /* groups have clipped their gradients */
    double       count    = result->count > 0 ? (double)result->count : 1;
    double       inverse  = 1.0 / count / parallel->now.seed;
    const float  clip     = lk_clip_factor(result->grad_norm, parallel->clip.norm);
    lki_tally    tally    = { .result = *result,
                              .losses = parallel->norms.losses,
                              .update = { .step  = parallel->step,
                                          .lr    = lr,
                                          .scale = (float)inverse,
                                          .clip  = momenta ? 1 : clip,
                                          .frozen = momenta ? parallel->effects.cut_from : 0 },
                              .owners = parallel->world.widest };

    lki_features_before_update(parallel, &tally);
    step->update = tally.update;
    parallel->durable->mark(parallel, &tally);
}

/* Does everything before the first value is changed. */
static lk_status measure(step_context *step, double lr, lk_step_result *result)
{
    lk_parallel *parallel = step->parallel;
    LK_TRY(sum_mine(step));
    parallel->durable->note_states(parallel, step->sums->states);
    LK_TRY(meet(parallel));
    LK_TRY(lki_step_agree(parallel));
    LK_TRY(collect(parallel, result));
    LK_TRY(lki_features_reports(parallel, result));
    if (!result->skipped)
        LK_TRY(check_finite(parallel, result));
    decide(step, lr, result);
    return LK_OK;
}

lk_status lki_step_measure(lk_parallel *parallel, const lki_gradients *sums,
                           lk_step_result *result, lk_update *out)
{
    step_context step = { parallel, sums, .corrupt = SIZE_MAX };
    LK_TRY(measure(&step, 0, result));
    *out = step.update;
    return LK_OK;
}

lk_status lki_step_update_part(lk_parallel *parallel, const lki_gradients *sums,
                               const lk_update *how, const lki_part_of_step *part)
{
    step_context step = { parallel, sums, .update = *how, .corrupt = SIZE_MAX };
    for (size_t i = part->first; i < part->end; i++)
        update_span(&step, i);
    if (step.corrupt != SIZE_MAX)
        return corrupt_error(parallel, step.corrupt);
    if (part->running && parallel->state_width > 0)
        update_running(&step, 0, 1);
    return LK_OK;
}

lk_status lki_step_apply(lk_parallel *parallel, const lki_gradients *sums, double lr,
                         lk_step_result *result)
{
    step_context step = { .parallel = parallel, .sums = sums, .corrupt = SIZE_MAX };
    LK_TRY(measure(&step, lr, result));
    if (result->skipped)
        return lk_barrier(parallel->comm);
    LK_TRY(update(&step, parallel->world.widest));
    result->stalled = lki_offload_stalled(parallel);
    return LK_OK;
}

lk_status lk_parallel_finish(lk_parallel *parallel, double lr, lk_step_result *result)
{
    lki_step_state *now = &parallel->now;

    if (!isfinite(lr))
        return lk_fail(LK_EINVAL, "step %llu: the learning rate %g is no number that an update can "
                                  "use (nothing was updated)", named_step(parallel), lr);
    if (parallel->replicas != NULL)
        return lki_replicas_finish(parallel, lr, result);
    if (parallel->versions != NULL)
        return lki_versions_finish(parallel, lr, result);
    *result = (lk_step_result){ 0 };
    if (!now->under_way && !lki_step_failed(parallel))
        return lk_fail(LK_EINVAL, "no step is under way: lk_parallel_begin() begins one");
    now->lr = lr;
    lki_turns_end(parallel);
    if (!lki_step_failed(parallel) && !now->reduced)
        lki_step_keep(parallel, parallel->ops->reduce(parallel, &now->sums));
    if (!lki_step_failed(parallel))
        lki_step_keep(parallel, lki_features_combine(parallel, &now->sums));
    if (!lki_step_failed(parallel))
        lki_step_keep(parallel, lki_step_apply(parallel, &now->sums, lr, result));
    if (!lki_step_failed(parallel))
        lki_step_keep(parallel, lki_features_end_step(parallel, result));
    now->under_way = false;
    return lki_step_failed(parallel) ? lki_fail_again(&now->failure) : LK_OK;
}

lk_status lki_step_complete(lk_parallel *parallel, uint64_t number, const lki_tally *tally,
                            lk_parallel_standing *standing)
{
    step_context step = { .parallel = parallel, .update = tally->update, .corrupt = SIZE_MAX };

    parallel->step = number;
    lki_features_restore(parallel, tally, standing);
    if (tally->result.skipped)
        return lk_barrier(parallel->comm);
    if (parallel->local == 0)
        lki_ledger_undo(parallel);
    LK_TRY(lk_barrier(parallel->comm));
    LK_TRY(lki_shards_gather_sums(parallel));
    (void)tensor_norms(parallel, LKI_OF_GRADIENT);
    return update(&step, tally->owners);
}

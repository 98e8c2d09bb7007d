/* parallel.c -- the public face of strategies: opening, turns, reports; values are in values.c.
 *
 * All memory that ranks share is one arena, "model": parameters, the optimizer's state, running
 * state, and the tables through which ranks tell each other sums.  Gradients are the strategy's.
 * Every host has such an arena.  If it has owners of its own for everything in it, sums arrive
 * complete on all hosts, so they make the same values; if hosts keep shards, owners send each
 * other what they have made (shards.c).
 */
#include "lockstep/parallel.h"

#include <string.h>

#include "base/float.h"
#include "base/hash.h"
#include "base/memory.h"
#include "parallel/shards.h"
#include "parallel/units.h"
#include "tensor/ops.h"

enum { ALIGN = 16 };

/* ---- Opening ----------------------------------------------------------------------------- */

static lk_status check_options(const lk_parallel *parallel, const lk_parallel_options *options)
{
    if (options->virtual_workers == 0)
        return lk_fail(LK_EINVAL, "virtual_workers is 0; give V, at least the number of workers");
    if (options->virtual_workers < parallel->ranks)
        return lk_fail(LK_EINVAL,
                       "%u workers are more than the %u virtual workers; raise "
                       "--virtual-workers or lower --workers",
                       parallel->ranks, options->virtual_workers);
    if (!(options->clip_norm >= 0))
        return lk_fail(LK_EINVAL, "clip_norm is %g; give a positive norm, or 0 for none",
                       options->clip_norm);
    if (!(options->clip_value >= 0))
        return lk_fail(LK_EINVAL, "clip_value is %g; give a positive limit, or 0 for none",
                       options->clip_value);
    if (options->clip_value > 0 && options->clip_norm > 0)
        return lk_fail(LK_EINVAL, "give clip_norm or clip_value, not both");
    if (options->clip_value > 0 && options->optimizer.kind == LK_LARS)
        return lk_fail(LK_EINVAL, "lars goes by the norms of gradients as they are: clip_value is "
                                  "not for it");
    if (!(options->noise_decay >= 0 && options->noise_decay < 1))
        return lk_fail(LK_EINVAL, "noise_decay is %g; give one in (0, 1), or 0 for no noise scale",
                       options->noise_decay);
    LK_TRY(lk_loss_scaling_check(&options->scaling));
    return lk_optimizer_check(&options->optimizer);
}

static lk_status copy_states(lk_parallel *parallel, const lk_parallel_options *options)
{
    uint32_t count = options->state_count;
    LK_TRY(LKI_NEW(&parallel->states, count + 1, "running state"));
    LK_TRY(LKI_NEW(&parallel->state_at, count + 1, "running state"));
    for (uint32_t i = 0; i < count; i++) {
        parallel->states[i]      = options->states[i];
        parallel->states[i].name = NULL; /* the caller's; nothing here needs it */
        parallel->state_at[i]    = parallel->state_width;
        parallel->state_width += lki_round_up(options->states[i].count, ALIGN);
    }
    parallel->state_count = count;
    parallel->width       = parallel->layout->grad_elements +
                      parallel->micro_count * parallel->state_width;
    return LK_OK;
}

/* Carves `bytes` from the arena being laid out; base NULL only measures. */
static void *carve(char *base, size_t *at, size_t bytes)
{
    void *part = base == NULL ? NULL : base + *at;
    *at        = lki_round_up(*at + bytes, 64);
    return part;
}

/* All hosts' arenas are of one size. */
static size_t most_kept(const lki_layout *layout)
{
    size_t most = 0;
    for (uint32_t s = 0; s < layout->shards; s++)
        most = lki_max(most, layout->kept[s]);
    return most;
}

static size_t lay_out(lk_parallel *parallel, char *base)
{
    const lki_layout *layout = parallel->layout;
    size_t            at     = 0;
    size_t params            = parallel->gathers ? most_kept(layout) : layout->elements;
    parallel->params         = carve(base, &at, params * sizeof(float));
    if (parallel->gathers)
        parallel->slots = carve(base, &at, lki_units_bytes(parallel));
    for (uint32_t i = 0; i < lk_optimizer_state_count(&parallel->optimizer); i++)
        parallel->optimizer_state[i] = carve(base, &at, most_kept(layout) * sizeof(float));
    parallel->running    = carve(base, &at, parallel->state_width * sizeof(float));
    if (parallel->optimizer.ema > 0)
        parallel->running_mean = carve(base, &at, parallel->state_width * sizeof(float));
    size_t sums          = layout->span_count * parallel->measures;
    parallel->block_sums = carve(base, &at, sums * sizeof(double));
    parallel->reports    = carve(base, &at, parallel->leaves * parallel->report_bytes);
    return lki_ledger_lay_out(parallel, base, at);
}

static lk_status own_spans(lk_parallel *parallel)
{
    const lki_layout *layout = parallel->layout;
    LK_TRY(LKI_NEW(&parallel->mine, layout->span_count, "owned spans"));
    if (!parallel->ledger.kept)
        LK_TRY(LKI_NEW(&parallel->hashes, layout->span_count, "parameter hashes"));
    LK_TRY(LKI_NEW(&parallel->ready, (size_t)parallel->together * layout->term_count,
                   "gradient terms"));
    LK_TRY(LKI_NEW(&parallel->announced, layout->term_count, "gradient terms"));
    LK_TRY(LKI_NEW(&parallel->current, parallel->together, "virtual workers"));
    LK_TRY(LKI_NEW(&parallel->reported, parallel->ranks, "sizes of reports"));
    LK_TRY(LKI_NEW(&parallel->scratch, lki_max(layout->span_count, parallel->leaves), "sums"));
    LK_TRY(LKI_NEW(&parallel->norms, (size_t)parallel->measures * layout->param_count, "norms"));
    for (size_t i = 0; i < layout->span_count; i++)
        if (lki_owns(parallel, &layout->spans[i]))
            parallel->mine[parallel->mine_count++] = i;
    for (uint32_t r = 0; r < parallel->ranks; r++)
        parallel->reported[r] = lki_share_of(&parallel->dealing, r).count * parallel->report_bytes;
    return LK_OK;
}

/* Every value from its own counter, each span by one rank of every host: nothing to broadcast. */
static lk_status initialise(lk_parallel *parallel, uint64_t seed)
{
    const lki_layout *layout = parallel->layout;
    for (size_t i = 0; i < layout->span_count; i++) {
        const lki_param_span *span = &layout->spans[i];
        if (parallel->gathers ? lki_owns(parallel, span) : lki_tends(parallel, span))
            lki_init_param(parallel->exec, seed, span->param, &layout->params[span->param],
                           span->inside, span->count, lki_values_of(parallel, span));
    }
    for (uint32_t p = 0; p < layout->param_count; p++)
        lki_attest_written(parallel, p);
    for (uint32_t s = 0; s < lk_parallel_state_count(parallel) && parallel->local == 0; s++) {
        const lk_parallel_state *state = &parallel->states[s % parallel->state_count];
        for (size_t i = 0; i < state->count; i++)
            lki_state_data(parallel, s)[i] = state->initial;
    }
    return lk_barrier(parallel->comm);
}

static lk_status open_layout(lk_parallel *parallel, const lk_param *params, uint32_t param_count,
                             const lk_parallel_options *options)
{
    lki_deal  deal;
    lk_status status = lki_shards_deal(parallel, &deal);
    if (status == LK_OK)
        status = lki_layout_open(&parallel->layout, params, param_count, options, &deal);
    lki_free(deal.owners);
    return status;
}

lk_status lki_parallel_describe(lk_parallel *parallel, const lk_param *params, uint32_t param_count,
                                const lk_parallel_options *options)
{
    parallel->ranks       = parallel->world.ranks;
    parallel->local       = parallel->world.local_of[parallel->rank];
    parallel->locals      = parallel->world.sizes[parallel->world.host_of[parallel->rank]];
    parallel->optimizer   = options->optimizer;
    parallel->measures    = options->optimizer.kind == LK_LAMB ? 3
                            : options->optimizer.kind == LK_LARS ? 2 : 1;
    parallel->clip_norm   = options->clip_norm;
    parallel->clip_value  = options->clip_value;
    parallel->scaling     = lk_loss_scaling_resolve(&options->scaling);
    parallel->scaler      = lk_loss_scaler_begin(&options->scaling);
    parallel->leaves      = options->virtual_workers;
    parallel->micro_count = options->micro_count ? options->micro_count : 1;
    parallel->report_bytes =
        sizeof(lki_report) + parallel->micro_count * sizeof(uint64_t);
    LK_TRY(check_options(parallel, options));
    LK_TRY(LKI_NEW(&parallel->rules, (size_t)param_count + 1, "rules of parameters"));
    LK_TRY(lk_param_rules(parallel->rules, params, param_count, options->groups,
                          options->group_count));
    LK_TRY(lki_strategy_find(&parallel->ops, options->strategy));
    LK_TRY(lki_ledger_describe(parallel, options));
    parallel->lock_step   = options->lock_step;
    parallel->noise_decay = options->noise_decay;
    if (parallel->lock_step && parallel->ops->rounds && parallel->leaves > parallel->ranks)
        return lk_fail(LK_EINVAL,
                       "strategy %s deals %u virtual workers to %u workers in rounds, but "
                       "SyncBatchNorm has all of them computed at a time; use --strategy zero1, or "
                       "as many workers as virtual workers",
                       parallel->ops->name, parallel->leaves, parallel->ranks);
    parallel->dealing = (lki_dealing){ parallel->leaves, parallel->ranks, parallel->ops->rounds };
    parallel->share   = lki_share_of(&parallel->dealing, parallel->rank);
    parallel->together = parallel->lock_step ? parallel->share.count : 1;
    if (parallel->ops->rounds)
        LK_TRY(lki_round_plan_init(&parallel->rounds, parallel->leaves, parallel->ranks));
    LK_TRY(open_layout(parallel, params, param_count, options));
    parallel->gathers = parallel->ops->gathers && parallel->shards > 1;
    if (parallel->gathers)
        LK_TRY(lki_shelf_init(&parallel->shelf, parallel->layout, options));
    return copy_states(parallel, options);
}

size_t lki_parallel_arena(lk_parallel *parallel)
{
    return lay_out(parallel, NULL);
}

static lk_status open_arena(lk_parallel *parallel)
{
    size_t bytes = lay_out(parallel, NULL);
    if (parallel->ledger.before != NULL)
        parallel->arena = parallel->ledger.before->arena;
    else
        LK_TRY(lk_comm_arena(&parallel->arena, parallel->comm, "model", bytes));
    LK_ASSERT(bytes <= lk_arena_bytes(parallel->arena));
    (void)lay_out(parallel, lk_arena_data(parallel->arena));
    return LK_OK;
}

static lk_status open_parts(lk_parallel *parallel, const lk_param *params, uint32_t param_count,
                            const lk_parallel_options *options)
{
    LK_TRY(lki_world_of(&parallel->world, parallel->comm));
    LK_TRY(lki_parallel_describe(parallel, params, param_count, options));
    if (parallel->exec == NULL) {
        LK_TRY(lk_exec_open(&parallel->own_exec, 1, NULL));
        parallel->exec = parallel->own_exec;
    }
    LK_TRY(lki_verify_same_model(parallel, options));
    LK_TRY(own_spans(parallel));
    LK_TRY(open_arena(parallel));
    LK_TRY(lki_ledger_open(parallel));
    LK_TRY(lki_shards_open(parallel));
    if (parallel->lock_step)
        LK_TRY(lki_rows_open(parallel));
    LK_TRY(lki_units_open(parallel));
    if (parallel->noise_decay > 0)
        LK_TRY(lki_noise_open(parallel));
    return parallel->ops->attach(parallel);
}

/* `before`: whose arenas are taken over, or NULL. */
static lk_status open_over(lk_parallel **out, const lk_parallel *before, lk_comm *comm,
                           const lk_param *params, uint32_t param_count,
                           const lk_parallel_options *options)
{
    *out                  = NULL;
    lk_parallel *parallel = NULL;
    LK_TRY(LKI_NEW(&parallel, 1, "strategy"));
    parallel->comm          = comm;
    parallel->rank          = lk_comm_rank(comm);
    parallel->exec          = options->exec;
    parallel->ledger.before = before;
    lk_status status        = open_parts(parallel, params, param_count, options);
    parallel->ledger.before = NULL;
    if (status != LK_OK) {
        lk_parallel_free(parallel);
        return status;
    }
    *out = parallel;
    return LK_OK;
}

lk_status lk_parallel_open(lk_parallel **out, lk_comm *comm, const lk_param *params,
                           uint32_t param_count, const lk_parallel_options *options)
{
    LK_TRY(open_over(out, NULL, comm, params, param_count, options));
    lk_status status = initialise(*out, options->seed);
    if (status == LK_OK)
        return LK_OK;
    lk_parallel_free(*out);
    *out = NULL;
    return status;
}

/* What the last step left is in the ledger, if there was one. */
static lk_status complete(lk_parallel *parallel, const lk_parallel *failed,
                          lk_parallel_standing *standing)
{
    lki_tally tally;
    parallel->scaler     = failed->scaler;
    parallel->noise_sums = failed->noise_sums;
    standing->steps      = lki_ledger_last(parallel, &tally);
    standing->last       = tally.result;
    standing->loss_scale = tally.scale;
    if (standing->steps == 0)
        return lk_barrier(parallel->comm);
    return lki_step_complete(parallel, standing->steps - 1, &tally);
}

lk_status lk_parallel_go_on(lk_parallel **out, const lk_parallel *failed, lk_comm *comm,
                            const lk_param *params, uint32_t param_count,
                            const lk_parallel_options *options, lk_parallel_standing *standing)
{
    *out = NULL;
    if (!failed->ledger.kept || !options->survives)
        return lk_fail(LK_EINVAL, "lk_parallel_go_on() needs options.survives, and what was opened "
                                  "with it");
    LK_TRY(open_over(out, failed, comm, params, param_count, options));
    lk_status status = complete(*out, failed, standing);
    if (status == LK_OK)
        return LK_OK;
    lk_parallel_free(*out);
    *out = NULL;
    return status;
}

void lk_parallel_free(lk_parallel *parallel)
{
    if (parallel == NULL)
        return;
    if (parallel->ops != NULL && parallel->private != NULL)
        parallel->ops->detach(parallel);
    lki_round_plan_deinit(&parallel->rounds);
    lki_units_close(parallel);
    lki_shelf_deinit(&parallel->shelf);
    lki_shards_close(parallel);
    lki_world_deinit(&parallel->world);
    lki_layout_free(parallel->layout);
    lk_exec_free(parallel->own_exec);
    lki_free(parallel->rules);
    lki_ledger_close(parallel);
    lki_free(parallel->states);
    lki_free(parallel->state_at);
    lki_free(parallel->mine);
    lki_free(parallel->hashes);
    lki_rows_close(parallel);
    lki_noise_close(parallel);
    lki_free(parallel->ready);
    lki_free(parallel->announced);
    lki_free(parallel->current);
    lki_free(parallel->reported);
    lki_free(parallel->scratch);
    lki_free(parallel->norms);
    lki_free(parallel);
}

void lk_parallel_share(const lk_parallel *parallel, uint32_t *first, uint32_t *count,
                       uint32_t *stride)
{
    *first  = parallel->share.first;
    *count  = parallel->share.count;
    *stride = parallel->share.stride;
}

/* ---- Turns ------------------------------------------------------------------------------- */

static bool failed(const lk_parallel *parallel)
{
    return parallel->failure.status != LK_OK;
}

/* Keeps a failure for lk_parallel_finish(): hooks have nobody to return it to. */
static void keep(lk_parallel *parallel, lk_status status)
{
    if (status != LK_OK && !failed(parallel))
        parallel->failure = *lk_error_last();
}

lk_status lk_parallel_begin(lk_parallel *parallel, uint64_t step)
{
    if (failed(parallel))
        return lki_fail_again(&parallel->failure);
    if (parallel->under_way)
        return lk_fail(LK_EINVAL, "step %llu is under way: lk_parallel_finish() ends it",
                       (unsigned long long)parallel->step);
    if (!lki_float_is_standard())
        return lk_fail(LK_EINVAL, "this thread flushes tiny numbers to zero or rounds in another "
                                  "direction, as programs linked with -ffast-math do: its bits "
                                  "would not be those of others; link without it");
    parallel->under_way = true;
    parallel->step      = step;
    parallel->leaf      = 0;
    parallel->micro     = 0;
    parallel->turning   = false;
    parallel->seed      = 1;
    return LK_OK;
}

float lk_parallel_loss_scale(lk_parallel *parallel, uint64_t count)
{
    LK_ASSERT(parallel->under_way);
    if (parallel->scaling.rule == LK_SCALE_NONE)
        return 1;
    parallel->seed = parallel->scaler.scale;
    for (uint64_t n = 1; n < count; n *= 2)
        parallel->seed *= 0.5;
    return (float)parallel->seed;
}

lk_loss_scaler lk_parallel_scaler(const lk_parallel *parallel)
{
    return parallel->scaler;
}

void lk_parallel_load_scaler(lk_parallel *parallel, const lk_loss_scaler *scaler)
{
    if (parallel->scaling.rule != LK_SCALE_NONE && parallel->scaling.rule != LK_SCALE_FIXED)
        parallel->scaler = *scaler;
    parallel->scaler.skipped = scaler->skipped;
}

/* The current virtual worker, counted over all. */
static uint32_t leaf_now(const lk_parallel *parallel)
{
    return parallel->share.first + (parallel->leaf + parallel->chosen) * parallel->share.stride;
}

void lk_parallel_choose(lk_parallel *parallel, uint32_t index)
{
    LK_ASSERT(parallel->turning && index < parallel->together);
    parallel->chosen = index;
}

/* Takes part in what others gather, up to the last read of the block of `term`. */
static void catch_up(lk_parallel *parallel, uint32_t term)
{
    if (parallel->gathers && !failed(parallel))
        keep(parallel, lki_units_catch_up(parallel, term));
}

static void end_terms(lk_parallel *parallel)
{
    const lki_layout *layout = parallel->layout;
    for (uint32_t t = 0; t < layout->term_count; t++) {
        if (!layout->terms[t].same_block)
            catch_up(parallel, t);
        lk_parallel_grad_ready(parallel, t);
    }
}

static void end_turn(lk_parallel *parallel)
{
    if (parallel->micro + 1 == parallel->micro_count)
        for (parallel->chosen = 0; parallel->chosen < parallel->together; parallel->chosen++)
            end_terms(parallel);
    catch_up(parallel, UINT32_MAX);
    parallel->chosen  = 0;
    parallel->turning = false;
    if (++parallel->micro < parallel->micro_count || failed(parallel))
        return;
    for (; parallel->noise != NULL && parallel->chosen < parallel->together; parallel->chosen++)
        lki_report_of(parallel, leaf_now(parallel))->squares = lki_noise_leaf(parallel);
    parallel->chosen = 0;
    keep(parallel, parallel->ops->end_leaf(parallel));
    parallel->micro = 0;
    parallel->leaf += parallel->together;
}

static void begin_leaves(lk_parallel *parallel)
{
    size_t terms = parallel->layout->term_count;
    memset(parallel->ready, 0, parallel->together * terms);
    memset(parallel->announced, 0, terms * sizeof *parallel->announced);
    if (parallel->noise != NULL)
        lki_noise_begin(parallel);
    for (uint32_t c = 0; c < parallel->together && !failed(parallel); c++) {
        parallel->chosen = c;
        memset(lki_report_of(parallel, leaf_now(parallel)), 0, parallel->report_bytes);
        keep(parallel, parallel->ops->begin_leaf(parallel, leaf_now(parallel),
                                                 &parallel->current[c]));
    }
    parallel->chosen = 0;
}

static void begin_turn(lk_parallel *parallel)
{
    parallel->turning = true;
    if (parallel->gathers)
        lki_units_begin(parallel);
}

bool lk_parallel_next(lk_parallel *parallel, lk_parallel_turn *turn)
{
    if (parallel->turning)
        end_turn(parallel);
    if (failed(parallel) || !parallel->under_way || parallel->leaf == parallel->share.count)
        return false;
    if (parallel->micro == 0)
        begin_leaves(parallel);
    if (failed(parallel))
        return false;
    begin_turn(parallel);
    *turn = (lk_parallel_turn){ leaf_now(parallel), parallel->micro };
    return true;
}

/* In the last round there may be no virtual worker for this rank, but others read its parameters
 * and reduce what it owns: it does what it would do for one without samples. */
static void sit_out(lk_parallel *parallel)
{
    memset(parallel->ready, 0, parallel->layout->term_count);
    memset(parallel->announced, 0, parallel->layout->term_count * sizeof *parallel->announced);
    keep(parallel, parallel->ops->begin_leaf(parallel, leaf_now(parallel), parallel->current));
    for (uint32_t k = 0; k < parallel->micro_count && !failed(parallel); k++) {
        begin_turn(parallel);
        end_turn(parallel);
    }
}

void lk_parallel_read(lk_parallel *parallel, uint32_t term)
{
    LK_ASSERT(term < parallel->layout->term_count && !parallel->layout->terms[term].same_block);
    if (parallel->gathers)
        keep(parallel, lki_units_read(parallel, term));
}

float *lk_parallel_grad(lk_parallel *parallel, uint32_t term)
{
    LK_ASSERT(parallel->turning && term < parallel->layout->term_count);
    float *at = NULL;
    if (parallel->ops->find_term == NULL)
        return parallel->current[parallel->chosen].gradients + parallel->layout->term_at[term];
    keep(parallel, parallel->ops->find_term(parallel, term, &at));
    return at;
}

float *lk_parallel_state_sum(lk_parallel *parallel, uint32_t state)
{
    LK_ASSERT(parallel->turning && state < parallel->state_count);
    return parallel->current[parallel->chosen].states + parallel->micro * parallel->state_width +
           parallel->state_at[state];
}

void lk_parallel_grad_ready(lk_parallel *parallel, uint32_t term)
{
    LK_ASSERT(parallel->turning && term < parallel->layout->term_count);
    bool     last  = parallel->micro + 1 == parallel->micro_count;
    uint8_t *ready = &parallel->ready[parallel->chosen * parallel->layout->term_count + term];
    if (!last || *ready || failed(parallel))
        return;
    *ready = 1;
    if (parallel->noise != NULL)
        lki_noise_term(parallel, term);
    if (++parallel->announced[term] == parallel->together)
        keep(parallel, parallel->ops->term_ready(parallel, term));
}

void lk_parallel_progress(lk_parallel *parallel)
{
    if (parallel->ops->progress != NULL && !failed(parallel))
        keep(parallel, parallel->ops->progress(parallel));
}

void lk_parallel_merge_rows(lk_parallel *parallel, uint32_t width,
                            void (*merge)(uint32_t width, double *left, const double *right),
                            double *rows, double *total)
{
    LK_ASSERT(parallel->turning && parallel->lock_step);
    memset(total, 0, width * sizeof *total);
    if (!failed(parallel))
        keep(parallel, lki_rows_merge(parallel, width, merge, rows, total));
}

void lk_parallel_report(lk_parallel *parallel, double loss_sum, uint64_t samples, uint64_t count,
                        uint64_t hits)
{
    LK_ASSERT(parallel->turning);
    lki_report *report = lki_report_of(parallel, leaf_now(parallel));
    report->loss += loss_sum;
    report->count += count;
    report->hits += hits;
    report->samples[parallel->micro] += samples;
}

lk_status lk_parallel_finish(lk_parallel *parallel, double lr, lk_step_result *result)
{
    lki_gradients    sums;
    lk_parallel_turn turn;
    *result = (lk_step_result){ 0 };
    if (!parallel->under_way && !failed(parallel))
        return lk_fail(LK_EINVAL, "no step is under way: lk_parallel_begin() begins one");
    while (lk_parallel_next(parallel, &turn)) /* turns that the caller left out count for nothing */
        continue;
    if (parallel->gathers && !failed(parallel) && parallel->share.count < parallel->rounds.rounds)
        sit_out(parallel);
    if (!failed(parallel))
        keep(parallel, parallel->ops->reduce(parallel, &sums));
    if (!failed(parallel))
        keep(parallel, lki_step_finish(parallel, &sums, lr, result));
    parallel->under_way = false;
    return failed(parallel) ? lki_fail_again(&parallel->failure) : LK_OK;
}

/* parallel.c -- opens and closes the public object of a strategy.  See values.c for values and
 * turns.c for turns.
 *
 * All memory that ranks share is one arena, "model": parameters, the optimizer's state, running
 * state, and the tables through which ranks exchange sums.  Gradients are in the strategy's own
 * arena.  Every host has an arena "model".  If every host has owners for the whole model, all hosts
 * receive complete sums and compute the same values.  If hosts store shards, owners send each other
 * their computed values (shards.c).
 */
#include "lockstep/parallel.h"

#include <string.h>

#include "base/memory.h"
#include "comm/worker.h"
#include "device/encoder.h"
#include "parallel/durable.h"
#include "parallel/joint.h"
#include "parallel/offload/offload.h"
#include "parallel/recover/join_copy.h"
#include "parallel/strategies/shards.h"
#include "parallel/strategies/units.h"
#include "tensor/ops.h"

enum { ALIGN = 16 };

/* ---- Opening ----------------------------------------------------------------------------- */

static lk_status copy_states(lk_parallel *parallel, const lk_parallel_options *options)
{
    uint32_t count = options->state_count;
    LK_TRY(LKI_NEW(&parallel->running.of, count + 1, "running state"));
    LK_TRY(LKI_NEW(&parallel->running.at, count + 1, "running state"));
    for (uint32_t i = 0; i < count; i++) {
        const size_t most     = (size_t)INT64_MAX / sizeof(float) / parallel->micro_count - ALIGN;
        const size_t elements = options->states[i].count;
        if (elements > most || parallel->state_width > most - elements)
            return lk_fail(LK_EINVAL, "running state %u is more than memory can hold", i);
        parallel->running.of[i]      = options->states[i];
        /* the name belongs to the caller and is not needed here */
        parallel->running.of[i].name = NULL;
        parallel->running.at[i]      = parallel->state_width;
        parallel->state_width += lki_round_up(elements, ALIGN);
    }
    parallel->running.count = count;
    parallel->width = parallel->layout->grad_elements +
                      parallel->micro_count * parallel->state_width;
    return LK_OK;
}

void *lki_carve(char *base, size_t *at, size_t bytes)
{
    void *part = base == NULL ? NULL : base + *at;
    *at        = lki_round_up(*at + bytes, 64);
    return part;
}

static size_t lay_out(lk_parallel *parallel, char *base)
{
    const lki_layout *layout = parallel->layout;
    size_t            at     = 0;
    const bool        none   = parallel->offload.elsewhere;
    size_t            params = none || parallel->offload.kinds & LK_OFFLOADED_PARAMETERS ? 0
                               : parallel->parted ? lki_stored_elements(parallel)
                                                  : layout->elements;
    parallel->params         = lki_carve(base, &at, params * sizeof(float));
    if (parallel->gathers) {
        parallel->slots.slots   = lki_carve(base, &at, lki_units_bytes(parallel));
        parallel->slots.parcels = lki_carve(base, &at, lki_units_parcels(parallel));
    } else if (lki_reading_bytes(parallel) > 0)
        parallel->read = lki_carve(base, &at, lki_reading_bytes(parallel));
    uint32_t states = none || parallel->offload.kinds & LK_OFFLOADED_STATES
                          ? 0 : lk_optimizer_state_count(&parallel->optimizer);
    for (uint32_t i = 0; i < states; i++)
        parallel->optimizer_state[i] = lki_carve(base, &at,
                                                 lki_stored_elements(parallel) * sizeof(float));
    const size_t running     = none ? 0 : parallel->state_width * sizeof(float);
    parallel->running.values = lki_carve(base, &at, running);
    if (parallel->optimizer.ema > 0)
        parallel->running.mean = lki_carve(base, &at, running);
    size_t sums            = layout->span_count * parallel->norms.measures;
    parallel->norms.blocks = lki_carve(base, &at, sums * sizeof(double));
    parallel->reports    = lki_carve(base, &at, parallel->leaves * parallel->report_bytes);
    at = lki_features_lay_out(parallel, base, at);
    return parallel->durable->lay_out(parallel, base, at);
}

/* Lists spans in the order of the parameter space, which is also the order of units. */
void lki_own_spans(lk_parallel *parallel)
{
    const lki_layout *layout = parallel->layout;
    parallel->owned.count    = 0;
    for (uint32_t t = 0; t < layout->term_count; t++) {
        uint32_t p = layout->terms[t].param;
        for (size_t i = layout->first_span[p];
             layout->terms[t].use == 0 && i < layout->first_span[p + 1]; i++)
            if (lki_owns(parallel, &layout->spans[i]))
                parallel->owned.spans[parallel->owned.count++] = i;
    }
}

static lk_status open_turns(lk_parallel *parallel)
{
    const size_t    terms = parallel->layout->term_count;
    lki_turn_state *turn  = &parallel->turn;
    LK_TRY(LKI_NEW(&turn->ready, turn->gradients * terms, "gradient terms"));
    LK_TRY(LKI_NEW(&turn->begun, turn->gradients * terms, "gradient terms"));
    LK_TRY(LKI_NEW(&turn->announced, terms, "gradient terms"));
    LK_TRY(LKI_NEW(&turn->finished, terms, "gradient terms"));
    return LKI_NEW(&turn->current, turn->gradients, "virtual workers");
}

static lk_status open_own(lk_parallel *parallel)
{
    const lki_layout *layout = parallel->layout;
    LK_TRY(LKI_NEW(&parallel->owned.spans, layout->span_count, "owned spans"));
    LK_TRY(open_turns(parallel));
    LK_TRY(LKI_NEW(&parallel->reported, parallel->ranks, "sizes of reports"));
    LK_TRY(
        LKI_NEW(&parallel->norms.scratch, lki_max(layout->span_count, parallel->leaves), "sums"));
    LK_TRY(LKI_NEW(&parallel->norms.of, (size_t)parallel->norms.measures * layout->param_count,
                   "norms"));
    LK_TRY(LKI_NEW(&parallel->uses.now, layout->param_count, "used parameters"));
    LK_TRY(LKI_NEW(&parallel->uses.missed, layout->param_count, "used parameters"));
    memset(parallel->uses.now, 1, layout->param_count);
    lki_own_spans(parallel);
    for (uint32_t r = 0; r < parallel->ranks; r++)
        parallel->reported[r] = lki_share_of(&parallel->dealing, r).count * parallel->report_bytes;
    return LK_OK;
}

typedef struct {
    lk_parallel *parallel;
    uint64_t     seed;
    uint32_t     first_param; /* as in lki_part */
    /* scratch for a span that this host stores only in the type in which it is read */
    float       *others;
} beginning;

static void initialise_span(const beginning *b, const lki_param_span *span)
{
    lk_parallel *parallel = b->parallel;
    bool         elsewhere = parallel->parted && !lki_owns(parallel, span);
    float       *values    = elsewhere ? b->others : lki_values_of(parallel, span);
    lki_init_param(parallel->exec, b->seed, b->first_param + span->param,
                   &parallel->layout->params[span->param], span->inside, span->count, values);
    if (parallel->read != NULL)
        lki_reading_put(parallel, span, values);
}

static void initialise_mine(void *context, size_t first, size_t end)
{
    const beginning *b = context;
    for (size_t i = first; i < end; i++) {
        initialise_span(b, &b->parallel->layout->spans[b->parallel->owned.spans[i]]);
        lki_attest_span(b->parallel, b->parallel->owned.spans[i]);
    }
}

/* Computes every initial value from a counter-based generator.  On every host one rank does this
 * for each span, so nothing is broadcast. */
lk_status lki_parallel_initialise(lk_parallel *parallel, uint64_t seed, uint32_t first_param)
{
    const lki_layout *layout = parallel->layout;
    beginning         b      = { parallel, seed, first_param, NULL };
    if (parallel->offload.params != NULL)
        LK_TRY(lki_offload_walk(parallel, LKI_OVER_PARAMS | LKI_OVER_CHANGES, initialise_mine, &b));
    LK_TRY(LKI_NEW(&b.others, LKI_NORM_BLOCK, "a block of initial values"));
    for (size_t i = 0; !parallel->gathers && i < layout->span_count; i++)
        if (lki_tends(parallel, &layout->spans[i]))
            initialise_span(&b, &layout->spans[i]);
    lki_free(b.others);
    if (parallel->offload.params == NULL && parallel->gathers)
        initialise_mine(&b, 0, parallel->owned.count);
    for (uint32_t p = 0; !parallel->gathers && p < layout->param_count; p++)
        lki_attest_written(parallel, p);
    for (uint32_t s = 0; s < lk_parallel_state_count(parallel) && parallel->local == 0; s++) {
        const lk_parallel_state *state = &parallel->running.of[s % parallel->running.count];
        for (size_t i = 0; i < state->count; i++)
            lki_state_data(parallel, s)[i] = state->initial;
    }
    return lk_barrier(parallel->comm);
}

/* Checks that the strategy can read parameters from files: it must gather them.  If there is one
 * shard, all hosts must have equal numbers of ranks. */
static lk_status check_files(const lk_parallel *parallel)
{
    const lki_world *world = &parallel->world;
    if (!(parallel->offload.kinds & LK_OFFLOADED_PARAMETERS))
        return LK_OK;
    if (!parallel->ops->gathers)
        return lk_fail(LK_EINVAL, "strategy %s reads parameters where they are: with parameters in "
                                  "files (`offload`) choose `strategy` zero3 or hybrid",
                       parallel->ops->name);
    for (uint32_t h = 1; parallel->shards == 1 && h < world->hosts; h++)
        if (world->sizes[h] != world->sizes[0])
            return lk_fail(LK_EUNSUPPORTED, "strategy %s with parameters in files (`offload`) "
                                            "needs as many workers on hosts 0 and %u",
                           parallel->ops->name, h);
    return LK_OK;
}

static lk_status open_layout(lk_parallel *parallel, const lk_param *params, uint32_t param_count,
                             const lk_parallel_options *options)
{
    lki_deal  deal;
    lk_status status = lki_shards_deal(parallel, &deal);
    deal.bf16        = options->gather_dtype == LK_BF16 && parallel->shards > 1 &&
                !(parallel->offload.kinds & LK_OFFLOADED_PARAMETERS);
    deal.counted     = parallel->comm == NULL;
    if (status == LK_OK)
        status = lki_layout_open(&parallel->layout, params, param_count, options, &deal);
    if (status == LK_OK)
        lki_shard_map_place(parallel);
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
    parallel->norms.last     = options->optimizer.kind == LK_ONEBIT_LAMB ? LKI_OF_LARGEST
                               : options->optimizer.kind == LK_LAMB      ? LKI_OF_MOVES
                               : options->optimizer.kind == LK_LARS      ? LKI_OF_VALUES
                                                                         : LKI_OF_GRADIENT;
    parallel->norms.measures = parallel->norms.last + 1; /* features may add some */
    parallel->offload.folder = options->offload;
    parallel->offload.kinds    = options->offload == NULL  ? 0
                            : options->offloaded == 0 ? LK_OFFLOADED_STATES : options->offloaded;
    parallel->clip.norm      = options->clip_norm;
    parallel->clip.value     = options->clip_value;
    parallel->rounded     = lki_rounds(options->comm_dtype) ? options->comm_dtype : LK_F32;
    parallel->world.algorithm = options->grad_algorithm;
    parallel->quantised   = options->gather_dtype == LK_I8;
    parallel->keeps       = options->keep_gathered;
    parallel->leaves      = options->virtual_workers;
    parallel->micro_count = options->micro_count ? options->micro_count : 1;
    parallel->report_bytes =
        sizeof(lki_report) + parallel->micro_count * sizeof(uint64_t);
    LK_TRY(lki_parallel_check(parallel, options));
    LK_TRY(lki_rules_open(parallel, params, param_count, options));
    LK_TRY(lki_strategy_find(&parallel->ops, options->strategy));
    LK_TRY(lki_ledger_describe(parallel, options));
    parallel->lock_step   = options->lock_step;
    if (parallel->lock_step && parallel->ops->rounds && parallel->leaves > parallel->ranks)
        return lk_fail(LK_EINVAL,
                       "strategy %s deals %u virtual workers to %u workers in rounds, but "
                       "SyncBatchNorm has all of them computed at a time; use `strategy` zero1, or "
                       "as many workers as virtual workers",
                       parallel->ops->name, parallel->leaves, parallel->ranks);
    parallel->dealing       = (lki_dealing){ .leaves = parallel->leaves,
                                             .ranks  = parallel->ranks,
                                             .rounds = parallel->ops->rounds,
                                             .bounds = parallel->dealing.bounds };
    parallel->share         = lki_share_of(&parallel->dealing, parallel->rank);
    parallel->turn.together = parallel->turn.gradients = parallel->lock_step ? parallel->share.count
                                                                             : 1;
    if (parallel->ops->rounds)
        LK_TRY(lki_round_plan_init(&parallel->rounds, parallel->leaves, parallel->ranks));
    LK_TRY(lki_shard_map_open(parallel, options));
    LK_TRY(check_files(parallel));
    LK_TRY(open_layout(parallel, params, param_count, options));
    parallel->gathers = parallel->ops->gathers &&
                        (parallel->shards > 1 || parallel->offload.kinds & LK_OFFLOADED_PARAMETERS);
    parallel->parted  = parallel->gathers || parallel->layout->bf16;
    if (parallel->gathers)
        LK_TRY(lki_unit_buffers_init(&parallel->slots, parallel->layout, options));
    LK_TRY(copy_states(parallel, options));
    LK_TRY(lki_features_open(parallel, options));
    parallel->turn.adds_once = options->adds_once;
    if (parallel->turn.adds_once)
        parallel->joint = 2;
    parallel->joint = lki_turns_limit(parallel, parallel->joint);
    return lki_ledger_count(parallel);
}

size_t lki_parallel_arena(lk_parallel *parallel)
{
    return lay_out(parallel, NULL);
}

static lk_status open_arena(lk_parallel *parallel)
{
    size_t bytes = lay_out(parallel, NULL);
    LK_TRY(lki_ledger_arena(parallel, LKI_ARENA_MODEL, bytes, &parallel->arena));
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
    LK_TRY(open_own(parallel));
    LK_TRY(open_arena(parallel));
    LK_TRY(parallel->durable->open(parallel));
    LK_TRY(lki_shards_open(parallel));
    LK_TRY(lki_offload_open(parallel));
    if (parallel->lock_step)
        LK_TRY(lki_rows_open(parallel));
    LK_TRY(lki_units_open(parallel));
    LK_TRY(lki_features_attach(parallel));
    return parallel->ops->attach(parallel);
}

/* Opens the object, as a part of a larger one.  With `goes_on`, takes over the arenas of `before`
 * or, if `before` is NULL, opens existing arenas by name. */
static lk_status open_over(lk_parallel **out, bool goes_on, const lk_parallel *before,
                           lk_comm *comm, const lk_param *params, uint32_t param_count,
                           const lk_parallel_options *options, const lki_part *part)
{
    *out                  = NULL;
    lk_parallel *parallel = NULL;
    LK_TRY(LKI_NEW(&parallel, 1, "strategy"));
    parallel->comm          = comm;
    parallel->rank          = lk_comm_rank(comm);
    parallel->exec          = options->exec;
    parallel->joint         = part->joint;
    parallel->offload.elsewhere = part->bare;
    parallel->dealing.bounds = part->bounds;
    parallel->ledger.goes_on = goes_on;
    parallel->ledger.before  = before;
    lk_status status         = open_parts(parallel, params, param_count, options);
    parallel->ledger.goes_on = false;
    parallel->ledger.before  = NULL;
    if (status != LK_OK) {
        lk_parallel_free(parallel);
        return status;
    }
    *out = parallel;
    return LK_OK;
}

lk_status lki_parallel_open_part(lk_parallel **out, lk_comm *comm, const lk_param *params,
                                 uint32_t param_count, const lk_parallel_options *options,
                                 const lki_part *part)
{
    LK_TRY(open_over(out, false, NULL, comm, params, param_count, options, part));
    lk_status status = part->bare ? LK_OK
                                  : lki_parallel_initialise(*out, options->seed, part->first_param);
    if (status == LK_OK)
        return LK_OK;
    lk_parallel_free(*out);
    *out = NULL;
    return status;
}

/* Opens an object that consists of several. */
static lk_status open_several(lk_parallel **out, lk_comm *comm, const lk_param *params,
                              uint32_t param_count, const lk_parallel_options *options,
                              uint32_t joint)
{
    lk_parallel *parallel = NULL;
    LK_TRY(LKI_NEW(&parallel, 1, "strategy"));
    parallel->comm   = comm;
    parallel->rank   = lk_comm_rank(comm);
    lk_status status =
        options->async != NULL ? lki_versions_open(parallel, params, param_count, options, joint)
                               : lki_replicas_open(parallel, params, param_count, options, joint);
    if (status == LK_OK)
        *out = parallel;
    else
        lk_parallel_free(parallel);
    return status;
}

lk_status lki_parallel_open_joint(lk_parallel **out, lk_comm *comm, const lk_param *params,
                                  uint32_t param_count, const lk_parallel_options *options,
                                  uint32_t most)
{
    lk_parallel_options mine;

    *out = NULL;
    LK_TRY(lki_parallel_take(&mine, params, param_count, options));
    if (mine.replicas != NULL || mine.async != NULL)
        return open_several(out, comm, params, param_count, &mine, most);
    const lki_part whole = { .joint = most };
    return lki_parallel_open_part(out, comm, params, param_count, &mine, &whole);
}

lk_status lk_parallel_open(lk_parallel **out, lk_comm *comm, const lk_param *params,
                           uint32_t param_count, const lk_parallel_options *options)
{
    return lki_parallel_open_joint(out, comm, params, param_count, options, 1);
}

/* Returns true if this rank's host has joined the running job. */
static bool is_fresh(const lk_parallel *parallel)
{
    return lki_comm_host_is_fresh(parallel->comm, parallel->world.host_of[parallel->rank]);
}

/* Copies the model to hosts that have joined the running job.  They enter between two steps, when
 * the last step is complete. */
static lk_status copy_to_joined(lk_parallel *parallel)
{
    bool *fresh = NULL, any = false;

    LK_TRY(LKI_NEW(&fresh, parallel->world.hosts, "hosts"));
    for (uint32_t host = 0; host < parallel->world.hosts; host++) {
        fresh[host] = lki_comm_host_is_fresh(parallel->comm, host);
        any         = any || fresh[host];
    }
    lk_status status = any ? lki_join_copy(parallel, fresh) : LK_OK;
    lki_free(fresh);
    if (status == LK_OK && is_fresh(parallel) && parallel->local == 0)
        lki_ledger_stage(parallel);
    return status;
}

/* Completes the update of the last step, with the rules of that step. */
static lk_status complete_update(lk_parallel *parallel, const lk_parallel *failed,
                                 const lki_tally *tally, lk_parallel_standing *standing)
{
    lk_param_rule *next = parallel->rules.of;

    LK_TRY(lki_rules_recall(&parallel->rules.of, parallel, failed, standing->steps - 1));
    lk_status status = lki_step_complete(parallel, standing->steps - 1, tally, standing);
    lki_free(parallel->rules.of);
    parallel->rules.of = next;
    return status;
}

/* Completes the last step from the ledger, if a step has been marked. */
static lk_status complete(lk_parallel *parallel, const lk_parallel *failed,
                          lk_parallel_standing *standing)
{
    lki_tally tally;

    *standing = (lk_parallel_standing){ .steps = 0 };
    lki_features_take_over(parallel, failed);
    LK_TRY(lki_ledger_agree(parallel, &standing->steps, &tally));
    if (is_fresh(parallel) && parallel->local == 0)
        lki_ledger_fill(parallel, standing->steps);
    standing->last   = tally.result;
    parallel->norms.losses = tally.losses;
    LK_TRY(copy_to_joined(parallel));
    if (standing->steps == 0)
        LK_TRY(lk_barrier(parallel->comm));
    else
        LK_TRY(complete_update(parallel, failed, &tally, standing));
    if (parallel->ops->salvage != NULL && !parallel->effects.restarts)
        LK_TRY(parallel->ops->salvage(parallel, standing->steps));
    standing->unfinished = parallel->remains.there ? parallel->remains.unfinished
                                                   : parallel->leaves;
    return LK_OK;
}

lk_status lk_parallel_go_on(lk_parallel **out, const lk_parallel *failed, lk_comm *comm,
                            const lk_param *params, uint32_t param_count,
                            const lk_parallel_options *options, lk_parallel_standing *standing)
{
    const lki_part      whole = { .joint = 1 };
    lk_parallel_options mine;

    *out = NULL;
    LK_TRY(lki_parallel_take(&mine, params, param_count, options));
    if (mine.async != NULL)
        return lki_versions_go_on(out, failed, comm, params, param_count, &mine, standing);
    if (mine.replicas != NULL)
        return lk_fail(LK_EUNSUPPORTED, "replicas cannot go on after a loss: start again from a "
                                        "checkpoint");
    if ((failed != NULL && !failed->ledger.kept) || !mine.survives)
        return lk_fail(LK_EINVAL, "lk_parallel_go_on() needs options.survives, and what was opened "
                                  "with it");
    LK_TRY(open_over(out, true, failed, comm, params, param_count, &mine, &whole));
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
    lki_replicas_free(parallel->replicas);
    lki_versions_free(parallel);
    if (parallel->ops != NULL && parallel->private != NULL)
        parallel->ops->detach(parallel);
    lki_remains_deinit(&parallel->remains);
    lki_round_plan_deinit(&parallel->rounds);
    lki_units_close(parallel);
    lki_unit_buffers_deinit(&parallel->slots);
    lki_shards_close(parallel);
    lki_shard_map_close(parallel);
    lki_world_deinit(&parallel->world);
    lki_layout_free(parallel->layout);
    lk_exec_free(parallel->own_exec);
    lki_free(parallel->rules.of);
    if (parallel->durable != NULL)
        parallel->durable->close(parallel);
    lki_free(parallel->running.of);
    lki_free(parallel->running.at);
    lki_free(parallel->owned.spans);
    lki_rows_close(parallel);
    lki_features_close(parallel);
    lki_free(parallel->uses.now);
    lki_free(parallel->uses.missed);
    lki_free(parallel->queue);
    lki_offload_close(parallel);
    lki_free(parallel->turn.ready);
    lki_free(parallel->scraps.gradient);
    lki_free(parallel->scraps.params);
    lki_free(parallel->turn.begun);
    lki_free(parallel->turn.announced);
    lki_free(parallel->turn.finished);
    lki_free(parallel->turn.current);
    lki_free(parallel->reported);
    lki_free(parallel->norms.scratch);
    lki_free(parallel->norms.of);
    lki_free(parallel);
}

void lk_parallel_share(const lk_parallel *parallel, uint32_t *first, uint32_t *count,
                       uint32_t *stride)
{
    *first  = parallel->share.first;
    *count  = parallel->share.count;
    *stride = parallel->share.stride;
}

bool lk_parallel_remainder(const lk_parallel *parallel, uint32_t *first, uint32_t *last,
                           uint32_t *count)
{
    const lki_remains *remains = &parallel->remains;
    *first = *last = 0;
    *count         = remains->there ? remains->count : 0;
    if (*count == 0)
        return remains->there;
    *first = remains->leaves[0];
    *last  = remains->leaves[*count - 1];
    return true;
}

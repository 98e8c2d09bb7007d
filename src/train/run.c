/* run.c -- the training loop of one rank: the life of a step.
 *
 * data (step, virtual worker, micro-batch) -> forward -> loss sum and count -> backward, each
 * finished gradient announced to the strategy, which reduces between blocks -> norm, clip, update
 * -> log, evaluation, checkpoint.  Nothing that reaches a parameter reads a clock or a rank.
 */
#include <math.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/file.h"
#include "base/float.h"
#include "base/memory.h"
#include "comm/group.h"
#include "data/stream.h"
#include "parallel/balance.h"
#include "parallel/claims.h"
#include "tensor/exec.h"
#include "train/observe/pace.h"
#include "train/saves/save.h"
#include "train/surroundings.h"
#include "train/recover/survive.h"

/* Of a virtual worker that another worker makes: its data are opened and read anew. */
static const double WORTH_SECONDS = 1e-3;

/* ---- Opening ----------------------------------------------------------------------------- */

/* Terms follow each other from the last block to the first. */
static lk_status list_terms(lki_session *s)
{
    uint32_t            count, blocks = lk_model_block_count(s->model), t = 0;
    const lk_grad_term *terms = lk_model_terms(s->model, &count);
    LK_TRY(LKI_NEW(&s->first_terms, (size_t)blocks + 1, "terms of blocks"));
    for (uint32_t i = 0; i < blocks; i++) {
        while (t < count && terms[t].block == blocks - 1 - i)
            t++;
        s->first_terms[i + 1] = t;
    }
    LK_ASSERT(t == count);
    return LK_OK;
}

/* The mean of a state is NAME.ema. */
static lk_status list_kept(lki_session *s)
{
    s->kept_count = s->state_count * (s->config->optimizer.ema > 0 ? 2 : 1);
    LK_TRY(LKI_NEW(&s->state_data, s->state_count + 1, "state table"));
    LK_TRY(LKI_NEW(&s->kept, s->kept_count + 1, "state table"));
    for (uint32_t i = 0; i < s->kept_count; i++) {
        s->kept[i] = s->states[i % s->state_count];
        if (i >= s->state_count)
            (void)snprintf(s->kept[i].name, sizeof s->kept[i].name, "%.*s.ema", LK_NAME_MAX - 5,
                           s->states[i % s->state_count].name);
    }
    return LK_OK;
}

lk_status lki_session_model(lki_session *s)
{
    lk_model_options options = lki_model_options(s->config, lk_dataset_describe(s->dataset));

    LK_TRY(lk_model_build(&s->model, s->config->model, &options));
    s->params = lk_model_params(s->model, &s->param_count);
    s->states = lk_model_states(s->model, &s->state_count);
    LK_TRY(list_kept(s));
    (void)lk_model_terms(s->model, &s->term_count);
    LK_TRY(lk_exec_open(&s->exec, s->config->threads, s->config->isa));
    if (s->comm != NULL)
        LK_TRY(lki_pin(s));
    if (s->config->onednn != NULL)
        LK_TRY(lk_exec_use_onednn(s->exec, s->config->onednn));
    LK_TRY(LKI_NEW(&s->param_data, s->param_count, "parameter table"));
    LK_TRY(LKI_NEW(&s->param_bf16, s->param_count, "parameter table"));
    return list_terms(s);
}

/* What a turn needs for each of its virtual workers. */
lk_status lki_session_turns(lki_session *s)
{
    lk_parallel_share(s->parallel, &s->first, &s->count, &s->stride);
    s->together = lk_model_lock_step(s->model) ? s->count : 1;
    LK_TRY(LKI_NEW(&s->batches, s->together, "micro-batches"));
    LK_TRY(LKI_NEW(&s->passes, s->together, "micro-batches"));
    LK_TRY(LKI_NEW(&s->grads, (size_t)s->together * s->term_count, "gradient table"));
    LK_TRY(LKI_NEW(&s->empty, (size_t)s->together * s->term_count, "gradient table"));
    LK_TRY(LKI_NEW(&s->state_sums, (size_t)s->together * s->state_count + 1, "state table"));
    bool files = lki_in_files(s->config, LK_OFFLOADED_ACTIVATIONS);
    return lk_engine_open_offloaded(&s->engine, s->model, s->exec, s->config->precision,
                                    s->config->micro_batch, s->together,
                                    files ? s->config->offload : NULL);
}

static lk_status open_parallel(lki_session *s)
{
    lk_parallel_options options;
    lk_status status = lki_parallel_options_of(s->config, s->model, s->exec, &options);
    if (status == LK_OK)
        status = lk_parallel_open(&s->parallel, s->comm, s->params, s->param_count, &options);
    lki_parallel_options_free(&options);
    return status;
}

lk_status lki_session_deal(lki_session *s, uint64_t start)
{
    uint32_t first, last, count;
    lki_feed_close(s);
    lk_parallel_share(s->parallel, &s->first, &s->count, &s->stride);
    s->mends = lk_parallel_remainder(s->parallel, &first, &last, &count);
    if (!s->mends)
        LK_TRY(lki_feed_open(s, start));
    else if (count > 0)
        LK_TRY(lki_feed_open_some(s, start, first, last));
    lki_observe_loader(s);
    return LK_OK;
}

lk_status lki_session_open(lki_session *s)
{
    const lk_train_config *c       = s->config;
    lk_dataset_options     options = lki_dataset_options(c);

    lk_comm_note(s->comm, 0, "opening data");
    if (c->host_memory > 0)
        LK_TRY(lki_comm_limit_memory(s->comm, c->host_memory));
    if (s->rank == 0 && s->journal == NULL)
        LK_TRY(lki_journal_open(&s->journal, c));
    LK_TRY(lk_dataset_open(&s->dataset, c->data, &options));
    lki_exactness_id(c, lk_dataset_describe(s->dataset), s->exactness_id);
    LK_TRY(lki_verify_same_data(s)); /* ranks meet here */
    LK_TRY(lki_own_directory(s));
    lk_comm_note(s->comm, 0, "making room for the model");
    LK_TRY(lki_session_model(s));
    LK_TRY(open_parallel(s));
    LK_TRY(lki_survival_open(s));
    LK_TRY(lki_pace_open(s));
    LK_TRY(lki_session_turns(s));
    LK_TRY(lki_keep_packs(s));
    lk_comm_note(s->comm, 0, "loading what it starts from");
    LK_TRY(lki_start_values(s));
    lki_find_end(s);
    LK_TRY(lki_journal_begin(s->journal, s->start, s->end));
    LK_TRY(lki_introduce(s));
    LK_TRY(lki_feed_open(s, s->start));
    s->chained = s->start;
    LK_TRY(lki_parts_agree(s));
    if (c->checkpoint_async)
        LK_TRY(lki_background_make_room(s));
    if (c->checkpoint_async && lki_parts_writes(s))
        LK_TRY(lki_background_open(&s->background, s));
    return lki_observe_open(s);
}

lk_status lki_session_close(lki_session *s)
{
    lki_feed_close(s);
    lki_background_close(s->background);
    lk_status status = lki_observe_close(s);
    lk_parallel_free(s->parallel);
    lk_engine_free(s->engine);
    lk_exec_free(s->exec);
    lk_model_free(s->model);
    lk_dataset_free(s->dataset);
    lki_survival_close(s);
    lki_pace_close(s);
    lki_lock_drop(s->lock, s->config->checkpoint);
    lki_journal_free(s->journal);
    lki_free(s->param_data);
    lki_free(s->param_bf16);
    lki_free(s->state_data);
    lki_free(s->batches);
    lki_free(s->passes);
    lki_free(s->grads);
    lki_free(s->empty);
    lki_free(s->first_terms);
    lki_free(s->state_sums);
    lki_free(s->means);
    lki_free(s->kept);
    return status;
}

/* ---- A step ------------------------------------------------------------------------------ */

/* The engine says no longer empty when it has written. */
static void fetch_grads(lki_session *s, uint32_t block)
{
    uint32_t i = lk_model_block_count(s->model) - 1 - block;
    for (uint32_t c = 0; c < s->together; c++) {
        lk_parallel_choose(s->parallel, c);
        for (uint32_t t = s->first_terms[i]; t < s->first_terms[i + 1]; t++) {
            size_t at = (size_t)c * s->term_count + t;
            bool   empty;
            s->grads[at] = lk_parallel_grad_new(s->parallel, t, &empty);
            s->empty[at] = (s->empty[at] || empty) && !s->dropped;
        }
    }
}

void lki_read_block(void *user, uint32_t block)
{
    lki_session        *s = user;
    uint32_t            i = lk_model_block_count(s->model) - 1 - block, count;
    const lk_grad_term *terms = lk_model_terms(s->model, &count);

    lk_parallel_read(s->parallel, s->first_terms[i]);
    for (uint32_t t = s->first_terms[i]; t < s->first_terms[i + 1]; t++) {
        s->param_data[terms[t].param] = lk_parallel_param(s->parallel, terms[t].param);
        s->param_bf16[terms[t].param] = lk_parallel_param_bf16(s->parallel, terms[t].param);
    }
}

/* Of what another worker has made meanwhile nothing more is computed. */
static void drop_made(lki_session *s)
{
    s->dropped = s->dropped || lk_parallel_dropped(s->parallel);
    if (s->dropped)
        s->passes[0].samples = 0;
}

/* The loss may make gradients on the way. */
static void on_before_forward(void *user, uint32_t block)
{
    lki_session *s = user;
    drop_made(s);
    lk_parallel_progress(s->parallel);
    if (block + 1 == lk_model_block_count(s->model))
        fetch_grads(s, block);
}

static void on_before_backward(void *user, uint32_t block)
{
    drop_made(user);
    fetch_grads(user, block);
}

static void on_grad_ready(void *user, uint32_t context, uint32_t term)
{
    lki_session *s = user;
    if (s->alone)
        return;
    lk_parallel_choose(s->parallel, context);
    lk_parallel_grad_ready(s->parallel, term);
}

static void on_statistics(void *user, uint32_t width, lk_row_merge merge, double *rows,
                          double *total)
{
    lki_session *s = user;
    lk_parallel_merge_rows(s->parallel, width, merge, rows, total);
}

static void on_after_backward(void *user, uint32_t block)
{
    lki_session *s = user;
    (void)block;
    lk_parallel_progress(s->parallel);
}

void lki_fetch_states(lki_session *s)
{
    for (uint32_t i = 0; i < s->state_count; i++)
        s->state_data[i] = lk_parallel_state_data(s->parallel, i);
}

/* One virtual worker's part of a turn.  Its loss is one chain over its samples, which the pass
 * carries from micro-batch to micro-batch. */
static void begin_pass(lki_session *s, uint32_t c)
{
    const lk_batch *batch = &s->batches[c];
    lk_pass        *pass  = &s->passes[c];
    float         **sums  = s->state_sums + (size_t)c * s->state_count;

    lk_parallel_choose(s->parallel, c);
    for (uint32_t i = 0; i < s->state_count; i++)
        sums[i] = lk_parallel_state_sum(s->parallel, i);
    if (batch->micro_index == 0)
        *pass = (lk_pass){ 0 };
    pass->samples    = batch->samples;
    pass->length     = batch->length;
    pass->first_slot = batch->first_slot;
    pass->x          = batch->x;
    pass->targets    = batch->y;
    pass->weights    = batch->weights;
    pass->grads      = s->grads + (size_t)c * s->term_count;
    pass->empty      = s->empty + (size_t)c * s->term_count;
    pass->state_sums = sums;
}

/* The loss is reported when the last micro-batch is done. */
static void report_pass(lki_session *s, uint32_t c)
{
    const lk_pass *pass = &s->passes[c];
    bool           last = s->batches[c].micro_index + 1 == s->micro_count;
    lk_parallel_choose(s->parallel, c);
    lk_parallel_report(s->parallel, last ? pass->loss_sum : 0, pass->samples,
                       last ? pass->count : 0, last ? pass->hits : 0);
}

/* One micro-batch, or one of each virtual worker. */
void lki_session_turn(lki_session *s)
{
    lk_hooks hooks = { .user            = s,
                       .before_forward  = on_before_forward,
                       .before_backward = on_before_backward,
                       .grad_ready      = on_grad_ready,
                       .after_backward  = on_after_backward,
                       .statistics      = on_statistics,
                       .before_read     = lki_read_block };
    lk_walk  walk  = { .training    = true,
                       .seed        = s->config->seed,
                       .step        = (uint32_t)s->batches[0].step,
                       .params      = s->param_data,
                       .params_bf16 = s->param_bf16,
                       .state       = s->state_data,
                       .hooks       = &hooks,
                       .loss_scale  = s->loss_scale,
                       .version     = s->version };

    lki_track *track = lki_exec_track(s->exec);
    uint64_t   begun = lki_trace_begin(track);
    for (uint32_t c = 0; c < s->together; c++)
        begin_pass(s, c);
    s->dropped = false;
    lki_trace_end(track, LKI_SPAN_CONTROL, 0, begun);
    lk_engine_forward(s->engine, &walk, s->passes, s->together);
    lk_engine_backward(s->engine, &walk, s->passes, s->together);
    for (uint32_t c = 0; c < s->together; c++)
        report_pass(s, c);
}

/* The micro-batches of a turn. */
static lk_status load_turn(lki_session *s, uint64_t step, const lk_parallel_turn *turn)
{
    for (uint32_t c = 0; c < s->together; c++) {
        lk_batch *batch = &s->batches[c];
        uint32_t  v     = turn->virtual_worker + c * s->stride;
        LK_TRY(turn->again ? lki_feed_again(s, step, v, turn->micro_index, batch)
                           : lki_feed_next(s, step, v, turn->micro_index, batch));
        LK_ASSERT(batch->step == step && batch->micro_index == turn->micro_index &&
                  batch->virtual_worker == v);
    }
    s->version = turn->again ? 0 : step + 1;
    s->turns++;
    return LK_OK;
}

/* The next turn and its micro-batches; false when there is none, or *status tells why not. */
static bool next_turn(lki_session *s, uint64_t step, double *waited, lk_status *status)
{
    lki_track       *track = lki_exec_track(s->exec);
    uint64_t         begun = lki_trace_begin(track);
    lk_parallel_turn turn;
    bool             more = lk_parallel_next(s->parallel, &turn);

    lk_comm_note(s->comm, step + 1, more ? "forward and backward" : "reducing gradients");
    lki_trace_end(track, LKI_SPAN_CONTROL, 0, begun);
    lki_observe_turn(s);
    if (!more)
        return false;
    double asked = lki_seconds();
    begun        = lki_trace_begin(track);
    *status      = load_turn(s, step, &turn);
    lki_trace_end(track, LKI_SPAN_DATA, 0, begun);
    asked = lki_seconds() - asked;
    *waited += asked;
    lki_balance_waited(s->parallel, asked);
    return *status == LK_OK;
}

/* All turns of the step; times go to the record. */
static lk_status run_turns(lki_session *s, uint64_t step, lki_step_record *record)
{
    lk_status status = LK_OK;

    while (next_turn(s, step, &record->data_seconds, &status)) {
        double loaded = lki_seconds();
        lki_session_turn(s);
        record->compute_seconds += lki_seconds() - loaded;
        LK_TRY(lk_engine_status(s->engine));
    }
    return status;
}

/* A step that can be made again, one virtual worker at a time, need not stay a riddle. */
static lk_status point_to_verify(const lki_session *s, uint64_t step)
{
    lk_error error = *lk_error_last();
    if (lki_dataset_is_stream(s->dataset) || lk_model_lock_step(s->model))
        return lki_fail_again(&error);
    return lk_fail(error.status, "%s; `lockstep verify` with --step %llu names the blocks of a "
                                 "virtual worker", error.message, (unsigned long long)step);
}

static lk_status finish_step(lki_session *s, lki_step_record *record, lk_step_result *result)
{
    lki_track *track  = lki_exec_track(s->exec);
    uint64_t   begun  = lki_trace_begin(track);
    lk_status  status = lk_parallel_finish(s->parallel, record->lr, result);
    lki_trace_end(track, LKI_SPAN_CONTROL, 0, begun);
    return status == LK_ENONFINITE ? point_to_verify(s, record->step) : status;
}

/* What the step's loss is a mean over, if no target is left out and weights are 1. */
static uint64_t rows_of_step(const lki_session *s, uint64_t step)
{
    uint64_t rows = lki_step_span(s, step).samples * lk_model_loss_rows(s->model);
    return s->config->loss_weights != NULL ? rows * LK_WEIGHT_ONE : rows;
}

lk_status lki_session_begin(lki_session *s, uint64_t step)
{
    lki_track *track = lki_exec_track(s->exec);
    uint64_t   begun = lki_trace_begin(track);
    s->turns = 0;
    lki_claims_from(s->parallel, WORTH_SECONDS);
    lk_status status = lk_parallel_begin(s->parallel, step);
    if (status == LK_OK)
        s->loss_scale = lk_parallel_loss_scale(s->parallel, rows_of_step(s, step));
    lki_fetch_states(s);
    lki_trace_end(track, LKI_SPAN_CONTROL, 0, begun);
    return status;
}

lk_status lki_session_step(lki_session *s, uint64_t step, lki_step_record *record)
{
    lk_step_result result;
    double         scale = lk_parallel_scaler(s->parallel).scale;

    record->lr = lk_schedule_at(&s->config->schedule, step);
    LK_TRY(lki_session_begin(s, step));
    LK_TRY(run_turns(s, step, record));
    double mark = lki_seconds();
    LK_TRY(finish_step(s, record, &result));
    result.stalled += lk_engine_stalled(s->engine);
    double end             = lki_seconds();
    record->finish_seconds = end - mark;
    record->seconds        = end - s->begun;
    lki_session_record(s, &result, scale, record);
    lki_session_chain(s, step + 1, &result);
    s->stalled += result.stalled;
    LK_TRY(lki_pace_step(s, step + 1, &result));
    return s->mends ? lki_session_deal(s, step + 1) : LK_OK;
}

/* ---- The loop ---------------------------------------------------------------------------- */

static lk_status leave_step(lki_session *s, const lki_step_record *record, lk_train_result *result)
{
    lki_track *track = lki_exec_track(s->exec);

    lk_comm_note(s->comm, record->step, "leaving the step");
    uint64_t said = lki_trace_begin(track);
    LK_TRY(lki_say_step(s, record));
    LK_TRY(lki_pace_tell(s, record));
    lki_trace_end(track, LKI_SPAN_LOG, 0, said);
    return lki_after_step(s, record->step, result);
}

/* Begins a step with what a stream has for it, if data are one. */
static lk_status feed_step(lki_session *s, uint64_t step, lki_step_record *record, bool *there)
{
    lki_track *track  = lki_exec_track(s->exec);
    uint64_t   begun  = lki_trace_begin(track);
    s->begun          = lki_seconds();
    *record           = (lki_step_record){ .step = step + 1 };
    lk_status  status = lki_feed_step(s, step, there);
    if (s->feed == NULL)
        return status;
    record->data_seconds = lki_seconds() - s->begun;
    lki_trace_end(track, LKI_SPAN_DATA, 0, begun);
    return status;
}

/* A step and all that follows it before the next: what a trace calls a step.  Where there is none,
 * *done stays, and a request to stop saves what the step before has left. */
static lk_status whole_step(lki_session *s, uint64_t *done, lk_train_result *result)
{
    lki_observe_begin(s, *done);
    lki_track      *track = lki_exec_track(s->exec);
    uint64_t        begun = lki_trace_begin(track);
    lki_step_record record;
    bool            there;

    lki_observe_drain(s); /* what the step before has left */
    LK_TRY(feed_step(s, *done, &record, &there));
    if (!there)
        return s->stopped ? lki_after_step(s, *done, result) : LK_OK;
    LK_TRY(lki_session_step(s, *done, &record));
    result->loss = record.loss;
    lki_observe_step(s, &record);
    LK_TRY(leave_step(s, &record, result));
    lki_trace_end(track, LKI_SPAN_STEP, (uint32_t)++*done, begun);
    return LK_OK;
}

/* From there to the end. */
static lk_status run_from(lki_session *s, const lki_position *at, lk_train_result *result)
{
    uint64_t done = at->done;

    if (at->behind)
        LK_TRY(leave_step(s, &at->record, result));
    while (done < s->end && s->ended == NULL && !s->stopped && !s->left)
        LK_TRY(whole_step(s, &done, result));
    if (s->left)
        return lki_leave(s, done, result);
    bool complete = done >= s->end || s->ended != NULL;
    LK_TRY(lki_observe_report(s, done));
    if (complete)
        LK_TRY(lki_check_end(s, done, result));
    LK_TRY(lki_finish(s, done, result));
    return complete ? LK_OK : lki_incomplete(s, done);
}

static lk_status loop(lki_session *s, lki_position *at, lk_train_result *result)
{
    lk_status status = run_from(s, at, result);

    while (lki_survives(s, status)) {
        LK_TRY(lki_go_on(s, at, result));
        status = run_from(s, at, result);
    }
    return status;
}

lki_session lki_session_of(const lk_train_config *config, lk_comm *given, lk_comm *comm)
{
    return (lki_session){ .config      = config,
                          .comm        = comm,
                          .given       = given,
                          .rank        = comm == NULL ? UINT32_MAX : lk_comm_rank(comm),
                          .ranks       = comm == NULL ? 0 : lk_comm_size(comm),
                          .outside     = comm == NULL,
                          .lock        = -1,
                          .micro_count = config->global_batch / config->virtual_workers /
                                         config->micro_batch };
}

/* Before the first step nothing is there that could not be made again. */
static lk_status open_and_loop(lki_session *s, lk_train_result *result)
{
    lk_status status = lki_session_open(s);

    while (lki_survives(s, status)) {
        LK_TRY(lki_regroup(s));
        status = lki_cannot_begin(s, lki_session_open(s));
    }
    result->speaks  = s->rank == 0;
    lki_position at = { .done = s->start };
    return status == LK_OK ? loop(s, &at, result) : status;
}

static lk_status enter_and_loop(lki_session *s, lk_train_result *result)
{
    lki_position at;

    LK_TRY(lki_session_enter(s, &at, result));
    return loop(s, &at, result);
}

/* What ends the run stands in the log, too, before anybody leaves: then all are made to.  Where
 * others go on they say it. */
static void tell_finding(lki_session *s)
{
    lk_audit_finding finding;
    if (s->parallel == NULL || !lk_parallel_finding(s->parallel, &finding) ||
        (s->survival != NULL && finding.odd != UINT32_MAX))
        return;
    lk_status told = lki_say_finding(s, &finding), met = lk_barrier(s->comm);
    (void)told;
    (void)met;
}

lk_status lk_train_run(lk_comm *comm, const lk_train_config *config, lk_train_result *result)
{
    lki_session s = lki_session_of(config, comm, comm);
    *result       = (lk_train_result){ .loss                = (double)NAN,
                                       .validation_loss     = (double)NAN,
                                       .validation_accuracy = (double)NAN };

    lki_surroundings around = lki_surroundings_enter();
    lk_status    status = s.outside ? enter_and_loop(&s, result) : open_and_loop(&s, result);
    lk_error why = *lk_error_last();
    tell_finding(&s);
    if (status != LK_OK && status != LK_ESTOPPED && !s.outside) { /* else the others go on */
        (void)lki_fail_again(&why);
        lk_comm_abort(s.comm); /* records this rank's error and wakes the others */
    }
    lk_status closed = lki_session_close(&s);
    if (s.comm != comm)
        lk_comm_free(s.comm);
    lki_surroundings_leave(&around);
    return status == LK_OK ? closed : lki_fail_again(&why);
}

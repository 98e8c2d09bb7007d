/* step.c -- a step: the turns of this rank, the engine's hooks, and the update. */
#include "base/file.h"
#include "data/stream.h"
#include "parallel/turn.h"
#include "tensor/exec.h"
#include "train/core/client_rounds.h"
#include "train/core/feed.h"
#include "train/core/progress.h"
#include "train/loop/loop.h"
#include "train/observe/observe.h"
#include "train/observe/pace.h"

/* Looks up the gradients of a block.  The engine clears `empty` for each gradient that it
 * writes. */
static void fetch_grads(lki_session *s, uint32_t block)
{
    uint32_t i = lk_model_block_count(s->model) - 1 - block;
    for (uint32_t c = 0; c < s->turn.together; c++)
        for (uint32_t t = s->turn.first_terms[i]; t < s->turn.first_terms[i + 1]; t++) {
            size_t at = (size_t)c * s->term_count + t;
            bool   empty;
            s->turn.grads[at] = lk_parallel_grad_new(s->parallel, c, t, &empty);
            s->turn.empty[at] = (s->turn.empty[at] || empty) && !s->turn.dropped;
        }
}

void lki_read_block(void *user, uint32_t block)
{
    lki_session        *s = user;
    uint32_t            i = lk_model_block_count(s->model) - 1 - block, count;
    const lk_grad_term *terms = lk_model_terms(s->model, &count);

    lk_parallel_read(s->parallel, s->turn.first_terms[i]);
    for (uint32_t t = s->turn.first_terms[i]; t < s->turn.first_terms[i + 1]; t++) {
        s->param_data[terms[t].param] = lk_parallel_param(s->parallel, terms[t].param);
        s->param_bf16[terms[t].param] = lk_parallel_param_bf16(s->parallel, terms[t].param);
    }
}

/* Stops computing the turn if another rank has already computed the virtual worker.  Advances
 * communication. */
static void begin_block(lki_session *s)
{
    s->turn.dropped = s->turn.dropped || lk_parallel_dropped(s->parallel);
    if (s->turn.dropped)
        s->turn.passes[0].samples = 0;
    lk_parallel_progress(s->parallel);
}

/* Looks up the gradients of the last block before its forward pass, where a loss may compute
 * them. */
static void on_before_forward(void *user, uint32_t block)
{
    lki_session *s = user;
    begin_block(s);
    if (block + 1 == lk_model_block_count(s->model))
        fetch_grads(s, block);
}

static void on_before_backward(void *user, uint32_t block)
{
    begin_block(user);
    fetch_grads(user, block);
}

static void on_grad_ready(void *user, uint32_t context, uint32_t term)
{
    lki_session *s = user;
    if (!s->alone)
        lk_parallel_grad_ready(s->parallel, context, term);
}

static void on_statistics(void *user, uint32_t width, lk_row_merge merge, double *rows,
                          double *total)
{
    lki_session *s = user;
    lk_parallel_merge_rows(s->parallel, width, merge, rows, total);
}

/* Prepares the pass of one virtual worker in a turn.  The pass carries the loss sum from one
 * micro-batch to the next, so that all samples are added in one chain. */
static void begin_pass(lki_session *s, uint32_t c)
{
    const lk_batch *batch = &s->turn.batches[c];
    lk_pass        *pass  = &s->turn.passes[c];
    float         **sums  = s->turn.state_sums + (size_t)c * s->state_count;

    for (uint32_t i = 0; i < s->state_count; i++)
        sums[i] = lk_parallel_state_sum(s->parallel, c, i);
    if (batch->micro_index == 0)
        *pass = (lk_pass){ 0 };
    pass->samples    = batch->samples;
    pass->length     = batch->length;
    pass->first_slot = batch->first_slot;
    pass->x          = batch->x;
    pass->targets    = batch->y;
    pass->weights    = batch->weights;
    pass->grads      = s->turn.grads + (size_t)c * s->term_count;
    pass->empty      = s->turn.empty + (size_t)c * s->term_count;
    pass->state_sums = sums;
}

/* Reports the virtual workers of a joint turn. */
static void report_parts(lki_session *s)
{
    for (uint32_t i = 0; i < s->turn.joint.count; i++) {
        const lki_pass_part *part = &s->turn.joint.parts[i];
        lk_parallel_report(s->parallel, i, part->loss_sum, part->samples, part->count, part->hits);
    }
}

/* Reports the counts of a micro-batch, and after the last micro-batch the loss. */
static void report_pass(lki_session *s, uint32_t c)
{
    const lk_pass *pass = &s->turn.passes[c];
    bool           last = s->turn.batches[c].micro_index + 1 == s->micro_count;
    lk_parallel_report(s->parallel, c, last ? pass->loss_sum : 0, pass->samples,
                       last ? pass->count : 0, last ? pass->hits : 0);
}

/* Runs one micro-batch or, with SyncBatchNorm, one micro-batch of each virtual worker. */
void lki_session_turn(lki_session *s)
{
    lk_hooks hooks = { .user            = s,
                       .before_forward  = on_before_forward,
                       .before_backward = on_before_backward,
                       .grad_ready      = on_grad_ready,
                       .statistics      = on_statistics,
                       .before_read     = lki_read_block };
    lk_walk  walk  = { .training    = true,
                       .seed        = s->turn.seed,
                       .step        = (uint32_t)s->turn.batches[0].step,
                       .params      = s->param_data,
                       .params_bf16 = s->param_bf16,
                       .state       = s->state_data,
                       .hooks       = &hooks,
                       .loss_scale  = s->turn.loss_scale,
                       .version     = s->turn.version };

    lki_track *track = lki_exec_track(s->exec);
    uint64_t   begun = lki_trace_begin(track);
    for (uint32_t c = 0; c < s->turn.together; c++)
        begin_pass(s, c);
    s->turn.dropped = false;
    lki_trace_end(track, LKI_SPAN_CONTROL, 0, begun);
    bool joint = s->turn.joint.count > 1;
    if (joint)
        lki_engine_divide(s->engine, s->turn.joint.parts, s->turn.joint.count);
    lk_engine_forward(s->engine, &walk, s->turn.passes, s->turn.together);
    lk_engine_backward(s->engine, &walk, s->turn.passes, s->turn.together);
    if (joint) {
        lki_engine_divide(s->engine, NULL, 0);
        report_parts(s);
        return;
    }
    for (uint32_t c = 0; c < s->turn.together; c++)
        report_pass(s, c);
}

/* Loads the micro-batches of a joint turn into one batch. */
static lk_status load_joint(lki_session *s, uint64_t step, const lk_parallel_turn *turn)
{
    lk_batch batch;
    for (uint32_t i = 0; i < s->turn.joint.count; i++) {
        LK_TRY(lki_feed_next(s, step, turn->virtual_worker + i, 0, &batch));
        lki_joint_add(&s->turn.joint, &batch, i, &s->turn.batches[0]);
    }
    return LK_OK;
}

/* Loads the micro-batches of a turn.  A client reads them itself. */
static lk_status load_turn(lki_session *s, uint64_t step, const lk_parallel_turn *turn)
{
    if (s->clients != NULL) {
        s->clients->turn = *turn;
        s->turn.count++;
        return LK_OK;
    }
    lki_joint_begin(&s->turn.joint, s->turn.joint.most > 1 ? lki_turn_count(s->parallel) : 1);
    if (s->turn.joint.count > 1) {
        s->turn.version = step + 1;
        s->turn.count++;
        return load_joint(s, step, turn);
    }
    const bool any = turn->again || lki_is_async(s->config); /* not this rank's next one */
    for (uint32_t c = 0; c < s->turn.together; c++) {
        lk_batch *batch = &s->turn.batches[c];
        uint32_t  v     = turn->virtual_worker + c * s->stride;
        LK_TRY(any ? lki_feed_again(s, step, v, turn->micro_index, batch)
                           : lki_feed_next(s, step, v, turn->micro_index, batch));
        LK_ASSERT(batch->step == step && batch->micro_index == turn->micro_index &&
                  batch->virtual_worker == v);
    }
    s->turn.version = any ? 0 : step + 1;
    s->turn.count++;
    return LK_OK;
}

/* Loads the next turn.  Returns false if there is none; *status is not LK_OK if loading failed. */
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
    *status      = load_turn(s, turn.step, &turn);
    lki_trace_end(track, LKI_SPAN_DATA, 0, begun);
    asked = lki_seconds() - asked;
    *waited += asked;
    lki_report_waited(s->parallel, asked);
    return *status == LK_OK;
}

/* Runs all turns of the step, and adds their times to the record. */
static lk_status run_turns(lki_session *s, uint64_t step, lki_step_record *record)
{
    lk_status status = LK_OK;

    while (next_turn(s, step, &record->data_seconds, &status)) {
        double loaded = lki_seconds();
        if (s->clients != NULL)
            LK_TRY(lki_client_turn(s, step));
        else
            lki_session_turn(s);
        record->compute_seconds += lki_seconds() - loaded;
        LK_TRY(lk_engine_status(s->engine));
    }
    return status;
}

/* Appends advice about large targets to an error message, and a hint at lk_train_replay(), if that
 * function can compute the step again. */
static lk_status point_to_replay(const lki_session *s, uint64_t step)
{
    lk_error    error  = *lk_error_last();
    const char *advice = lki_target_advice(s);
    if (*advice != '\0') {
        (void)lk_fail(error.status, "%s%s", error.message, advice);
        error = *lk_error_last();
    }
    if (lki_dataset_is_stream(s->dataset) || lk_model_lock_step(s->model) || s->clients != NULL ||
        lki_is_async(s->config))
        return lki_fail_again(&error);
    return lk_fail(error.status,
                   "%s; `lk_train_replay` with `replay.step` %llu names the blocks of "
                   "a virtual worker",
                   error.message, (unsigned long long)step);
}

static lk_status finish_step(lki_session *s, lki_step_record *record, lk_step_result *result)
{
    lki_track *track  = lki_exec_track(s->exec);
    uint64_t   begun  = lki_trace_begin(track);
    double     lr     = s->clients != NULL ? s->config->exchange.local.lr : record->lr;
    lk_status  status = lk_parallel_finish(s->parallel, lr, result);
    lki_trace_end(track, LKI_SPAN_CONTROL, 0, begun);
    return status == LK_ENONFINITE ? point_to_replay(s, record->step) : status;
}

/* Returns the divisor of the step's mean loss, assuming no ignored targets and weights of 1. */
static uint64_t rows_of_step(const lki_session *s, uint64_t step)
{
    uint64_t rows = lki_step_span(s, step).samples * lk_model_loss_rows(s->model);
    return s->config->data.loss_weights != NULL ? rows * LK_WEIGHT_ONE : rows;
}

lk_status lki_session_begin(lki_session *s, uint64_t step)
{
    lki_track *track = lki_exec_track(s->exec);
    uint64_t   begun = lki_trace_begin(track);
    s->turn.count    = 0;
    lk_status status = lk_parallel_begin(s->parallel, step);
    if (status == LK_OK)
        status = lk_parallel_set_rate(s->parallel, lk_schedule_at(&s->config->schedule, step));
    if (status == LK_OK)
        s->turn.loss_scale = lk_parallel_loss_scale(s->parallel, rows_of_step(s, step));
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
    record->pace           = lk_parallel_async_step(s->parallel).seconds;
    lki_session_record(s, &result, scale, record);
    if (s->progress.chained <= step) /* else a run that has lost ranks finishes the step again */
        lki_session_chain(s, step + 1, &result);
    s->stalled += result.stalled;
    LK_TRY(lki_pace_step(s, step + 1, &result));
    if (!s->mends)
        return LK_OK;
    LK_TRY(lki_session_deal(s, step + 1));
    lki_observe_loader(s);
    return LK_OK;
}

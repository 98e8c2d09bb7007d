/* after.c -- between two steps: evaluation, checkpoints, and whether the run ends here.
 *
 * All ranks decide the same.  Most of it follows from the step and from evaluations, which are the
 * same everywhere; a request to stop and a clock are not, so ranks tell each other once a step, and
 * what one of them has seen ends the run for all after the same step.
 */
#include <string.h>

#include "base/file.h"
#include "comm/control.h"
#include "parallel/balance.h"
#include "tensor/exec.h"
#include "train/saves/save.h"
#include "train/recover/survive.h"

/* ---- What it was --------------------------------------------------------------------------- */

static uint64_t samples_that_count(const lki_session *s)
{
    uint64_t samples = 0;
    for (uint32_t r = 0; r < s->ranks; r++)
        samples += lki_balance_time(s->parallel, r).samples;
    return samples;
}

void lki_session_record(const lki_session *s, const lk_step_result *result, double loss_scale,
                        lki_step_record *record)
{
    lk_step_span span  = lki_step_span(s, record->step - 1);
    record->epoch      = span.epoch;
    record->samples    = span.samples;
    record->tokens     = lk_dataset_describe(s->dataset)->tokens ? result->count : 0;
    record->loss       = result->loss;
    record->loss_scale = s->config->scaling.rule > LK_SCALE_NONE ? loss_scale : 0;
    record->grad_norm  = result->grad_norm;
    record->skips      = result->skipped;
    record->stalled    = result->stalled;
    record->audited    = result->audited;
    record->moved      = result->moved;
    record->duplicated = result->duplicated;
    record->dropped    = result->dropped;
    if (s->config->backup_workers > 0)
        record->samples = samples_that_count(s);
    record->noise      = lk_parallel_noise(s->parallel);
    record->skipped    = lk_parallel_scaler(s->parallel).skipped;
}

void lki_session_chain(lki_session *s, uint64_t done, const lk_step_result *result)
{
    lki_loss_chain_add(s->loss_chain, result->loss);
    s->audited += result->audited;
    s->chained = done;
}

/* ---- What follows -------------------------------------------------------------------------- */

/* What a rank sees that others may not; a request goes before time that is over, and both before
 * somebody's wish to leave the others. */
enum { SEES_NOTHING, SEES_WISH, SEES_TIME, SEES_REQUEST };

static double clock_of(const lki_session *s)
{
    return s->config->clock != NULL ? s->config->clock(s->config->clock_context) : lki_seconds();
}

void lki_find_end(lki_session *s)
{
    s->end   = lki_last_step(s->config, lk_dataset_describe(s->dataset), &s->ended);
    s->began = clock_of(s);
    if (s->start < s->end) /* else it is over: by what s->ended says, or all its steps are made */
        s->ended = lki_watch_tires(&s->watch, s->config) ? "patience" : NULL;
}

static bool time_is_over(const lki_session *s)
{
    uint32_t most = s->config->max_time_ms;
    if (s->ended != NULL && strcmp(s->ended, "max-time") == 0)
        return true;
    return most > 0 && clock_of(s) - s->began >= (double)most / 1e3;
}

/* A request may reach the ranks at different moments, and on one host only.  Who has been told that
 * time is over tells it on, where the others have to ask again (survive.c). */
static lk_status look_round(lki_session *s, uint64_t done)
{
    const lk_train_config *c     = s->config;
    lki_track             *track = lki_exec_track(s->exec);
    uint64_t               begun = lki_trace_begin(track);
    uint32_t               seen[] = { lki_change_wished(s) ? SEES_WISH : SEES_NOTHING,
                                      lki_background_writes(s->background) };

    if (time_is_over(s))
        seen[0] = SEES_TIME;
    if (s->depleted || (c->survives ? lki_comm_stop_requested(s->comm)
                                    : c->stop != NULL && c->stop(c->stop_context)))
        seen[0] = SEES_REQUEST;
    LK_TRY(lk_all_reduce(s->comm, seen, seen, 2, LK_U32, LK_MAX));
    s->drafted = seen[1] == 0;
    s->stopped = seen[0] == SEES_REQUEST;
    if (seen[0] == SEES_TIME)
        s->ended = "max-time";
    if (seen[0] == SEES_WISH)
        LK_TRY(lki_change_agree(s, done));
    lki_trace_end(track, LKI_SPAN_CONTROL, 0, begun);
    return LK_OK;
}

static lk_status evaluate(lki_session *s, uint64_t step, lk_train_result *result)
{
    uint64_t begun = lki_trace_begin(lki_exec_track(s->exec));
    lk_comm_note(s->comm, step, "evaluating");
    lki_fetch_states(s);
    LK_TRY(lki_evaluate(s, step, &result->validation_loss, &result->validation_accuracy));
    lki_trace_end(lki_exec_track(s->exec), LKI_SPAN_EVALUATE, 0, begun);
    return lki_say_evaluation(s, step, result->validation_loss, result->validation_accuracy);
}

static bool due(uint64_t every, uint64_t step)
{
    return every > 0 && step % every == 0;
}

/* Rank 0 looks for all: where an epoch begins, and before anything is saved or finished. */
static lk_status check_data(const lki_session *s, uint64_t done, bool saving)
{
    bool begins = lki_step_span(s, done).first == 0;
    return s->rank == 0 && (saving || begins) ? lk_dataset_check(s->dataset) : LK_OK;
}

static lk_status save(lki_session *s, uint64_t step, bool later)
{
    uint64_t  begun  = lki_trace_begin(lki_exec_track(s->exec));
    lk_status status = lki_save(s, step, later);
    lki_trace_end(lki_exec_track(s->exec), LKI_SPAN_CHECKPOINT, 0, begun);
    return status;
}

bool lki_heed_evaluation(lki_session *s, uint64_t done, double loss, double accuracy)
{
    if (done < s->config->steps && !due(s->config->eval_every, done))
        return false;
    if (s->judged != done)
        s->judged_best = lki_watch_see(&s->watch, s->config, done, loss, accuracy);
    s->judged = done;
    if (done < s->end && s->ended == NULL && lki_watch_tires(&s->watch, s->config))
        s->ended = "patience";
    return s->judged_best;
}

/* Rank 0 alone knows which checkpoints the disk has refused, so it says which are the best. */
static lk_status share_best(lki_session *s, bool *best)
{
    struct {
        lki_watch watch;
        bool      best;
    } said = { s->watch, *best };
    if (s->config->keep_best == 0 || !s->config->checkpoint_async)
        return LK_OK;
    LK_TRY(lk_broadcast(s->comm, &said, sizeof said, 0));
    s->watch       = said.watch;
    s->judged_best = *best = said.best;
    return LK_OK;
}

lk_status lki_after_step(lki_session *s, uint64_t done, lk_train_result *result)
{
    const lk_train_config *c    = s->config;
    const lk_dataset_info *data = lk_dataset_describe(s->dataset);
    bool                   best = false;

    LK_TRY(look_round(s, done));
    if (done == s->end)
        (void)lki_last_step(c, data, &s->ended);
    bool ends = done == s->end || s->ended != NULL;
    LK_TRY(lki_background_settle(s, done, false));
    if (data->validation_count > 0 && (ends || due(c->eval_every, done))) {
        LK_TRY(evaluate(s, done, result));
        best = lki_heed_evaluation(s, done, result->validation_loss, result->validation_accuracy);
        LK_TRY(share_best(s, &best));
    }
    bool last   = ends || s->ended != NULL || s->stopped;
    bool saving = last || best || (c->checkpoint != NULL && due(c->checkpoint_every, done));
    LK_TRY(check_data(s, done, saving));
    if (c->checkpoint != NULL && saving)
        LK_TRY(save(s, done, !last));
    lki_settle(s, done);
    return last ? LK_OK : lki_change_make(s, done);
}

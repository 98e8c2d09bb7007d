/* run.c -- the training loop of one rank: the sequence of a step.
 *
 * data (step, virtual worker, micro-batch) -> forward -> loss sum and count -> backward; each
 * complete gradient is reported to the strategy, which reduces between blocks -> norm, clip, update
 * -> log, evaluation, checkpoint.  No value that influences a parameter depends on a clock or a
 * rank.
 */
#include <math.h>

#include "base/file.h"
#include "base/options.h"
#include "comm/worker.h"
#include "tensor/exec.h"
#include "train/core/feed.h"
#include "train/core/identity.h"
#include "train/core/progress.h"
#include "train/core/run_environment.h"
#include "train/loop/loop.h"
#include "train/observe/observe.h"
#include "train/observe/pace.h"
#include "train/recover/survive.h"
#include "train/saves/base.h"

/* ---- Opening ----------------------------------------------------------------------------- */

/* Opens the files that rank 0 writes, and lets the program note the run, which now has them for
 * itself.  The log is first, since a run may wait for the reader of a pipe and not begin. */
static lk_status begin_outputs(lki_session *s)
{
    const lk_train_calls   *calls = &s->config->calls;
    const lki_run_progress *p     = &s->progress;
    const lki_log_run       run   = lki_log_run_of(s);
    lki_set_aside           later;
    LK_TRY(lki_journal_open_log(s->journal, &run));
    LK_TRY(lki_set_aside_later(s, &later));
    if (lki_journal_begin(s->journal, &run, p->end) != LK_OK) {
        lk_error why = *lk_error_last();
        lki_undo_set_aside(s, &later);
        return lki_fail_again(&why);
    }
    LK_TRY(lki_keep_tokenizer(s));
    if (s->rank == 0 && calls->begun != NULL && p->start < p->end && p->ended == NULL)
        calls->begun(calls->begun_context);
    return lki_end_set_aside(s, &later);
}

/* Opens the files of rank 0, for which the other ranks wait when all introduce themselves. */
static lk_status begin(lki_session *s)
{
    lk_comm_note(s->comm, 0, "opening the log");
    lki_let_rank_0_work(s, true);
    lk_status status = begin_outputs(s);
    if (status == LK_OK)
        status = lki_introduce(s);
    lki_let_rank_0_work(s, false);
    return status;
}

lk_status lki_session_open(lki_session *s)
{
    const lk_train_config *c       = s->config;
    lk_dataset_options     options = lki_dataset_options(c);

    lk_comm_note(s->comm, 0, "opening data");
    if (c->host_memory > 0)
        LK_TRY(lki_comm_limit_memory(s->comm, c->host_memory));
    if (s->rank == 0 && s->journal == NULL)
        LK_TRY(lki_session_journal(s));
    LK_TRY(lk_dataset_open(&s->dataset, c->data.source, &options));
    lki_exactness_id(c, lk_dataset_describe(s->dataset), s->exactness_id);
    LK_TRY(lki_verify_same_start(s)); /* waits for all ranks */
    LK_TRY(lki_saves_open(s));
    LK_TRY(lki_own_directory(s));
    lk_comm_note(s->comm, 0, "making room for the model");
    LK_TRY(lki_session_model(s));
    LK_TRY(lki_session_joint(s));
    LK_TRY(lki_session_parallel(s));
    LK_TRY(lki_survival_open(s));
    LK_TRY(lki_pace_open(s));
    LK_TRY(lki_session_turns(s));
    LK_TRY(lki_share_packs(s));
    LK_TRY(lki_base_open(s));
    lk_comm_note(s->comm, 0, "loading what it starts from");
    LK_TRY(lki_start_values(s));
    lki_find_end(s);
    s->progress.chained = s->progress.start;
    LK_TRY(begin(s));
    lk_comm_note(s->comm, 0, "preparing the first step");
    lki_tell_groups(s);
    LK_TRY(lki_feed_open(s, s->progress.start));
    LK_TRY(lki_parts_agree(s));
    if (c->checkpoint.async)
        LK_TRY(lki_background_make_room(s));
    if (c->checkpoint.async && lki_parts_writes(s))
        LK_TRY(lki_background_open(&s->saves->background, s));
    return lki_observe_open(s);
}

lk_status lki_session_close(lki_session *s)
{
    lki_feed_close(s);
    lki_saves_stop(s);
    lk_status status = lki_observe_close(s);
    lki_session_free(s);
    lki_base_close(s);
    lki_survival_close(s);
    lki_pace_close(s);
    lki_saves_close(s);
    lki_journal_free(s->journal);
    return status;
}

/* ---- The loop ---------------------------------------------------------------------------- */

static lk_status leave_step(lki_session *s, const lki_step_record *record, lk_train_result *result)
{
    lki_track *track = lki_exec_track(s->exec);

    lk_comm_note(s->comm, record->step, "leaving the step");
    uint64_t said = lki_trace_begin(track);
    bool     told;
    LK_TRY(lki_say_step(s, record));
    LK_TRY(lki_pace_tell(s, record, &told));
    if (told)
        lki_note_all_said(s);
    lki_trace_end(track, LKI_SPAN_LOG, 0, said);
    return lki_between_steps(s, record->step, result);
}

/* Begins a step.  If the data are a stream, reads the step's batch. */
static lk_status feed_step(lki_session *s, uint64_t step, lki_step_record *record, bool *there)
{
    lki_track *track  = lki_exec_track(s->exec);
    uint64_t   begun  = lki_trace_begin(track);
    lki_session_clock(s, step + 1, lki_seconds());
    *record           = (lki_step_record){ .step = step + 1 };
    lk_status  status = lki_feed_step(s, step, there);
    if (s->feed == NULL)
        return status;
    record->data_seconds = lki_seconds() - s->attempted;
    lki_trace_end(track, LKI_SPAN_DATA, 0, begun);
    return status;
}

/* Runs a step and all work up to the next step; a trace shows both as one step.  Does not advance
 * *done if the stream has ended.  If a request to stop ended the stream, saves after the previous
 * step. */
static lk_status whole_step(lki_session *s, uint64_t *done, lk_train_result *result)
{
    lki_observe_begin(s, *done);
    lki_track      *track = lki_exec_track(s->exec);
    uint64_t        begun = lki_trace_begin(track);
    lki_step_record record;
    bool            there;

    lki_observe_drain(s); /* removes spans recorded since the last step */
    LK_TRY(feed_step(s, *done, &record, &there));
    if (!there)
        return s->stopped ? lki_between_steps(s, *done, result) : LK_OK;
    LK_TRY(lki_session_step(s, *done, &record));
    result->loss = record.loss;
    lki_observe_step(s, &record);
    LK_TRY(leave_step(s, &record, result));
    lki_trace_end(track, LKI_SPAN_STEP, (uint32_t)++*done, begun);
    return LK_OK;
}

/* Runs all steps after `at`, and ends the run. */
static lk_status run_from(lki_session *s, const lki_position *at, lk_train_result *result)
{
    uint64_t done = at->done;

    if (at->behind)
        LK_TRY(leave_step(s, &at->record, result));
    lki_journal_wait(s->journal, done);
    while (done < s->progress.end && s->progress.ended == NULL && !s->stopped && !s->left)
        LK_TRY(whole_step(s, &done, result));
    if (s->left)
        return lki_leave(s, done, result);
    bool complete = done >= s->progress.end || s->progress.ended != NULL;
    LK_TRY(lki_average_replicas(s, done)); /* even if there was no step */
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

/* Replaces the session by a new session of the same run, with the remaining ranks.  The journal
 * stays open, since the reader of a pipe would take its closing for the end of the log. */
static lk_status begin_anew(lki_session *s)
{
    lk_error    why   = *lk_error_last();
    double      begun = lki_seconds();
    lki_session next  = lki_session_of(s->config, s->given, s->comm);

    next.lost_early   = s->lost_early;
    next.lost_seconds = s->lost_seconds;
    next.journal      = s->journal;
    s->journal        = NULL;
    (void)lki_session_close(s);
    *s = next;
    return lki_regroup(s, &why, begun);
}

/* Opens the session.  Opens it again if ranks are lost before the first step, when there is nothing
 * to preserve. */
static lk_status open_and_loop(lki_session *s, lk_train_result *result)
{
    lk_status status = lki_session_open(s);

    while (lki_survives(s, status)) {
        LK_TRY(begin_anew(s));
        status = lki_cannot_begin(s, lki_session_open(s));
    }
    result->speaks  = s->rank == 0;
    lki_position at = { .done = s->progress.start };
    return status == LK_OK ? loop(s, &at, result) : status;
}

static lk_status enter_and_loop(lki_session *s, lk_train_result *result)
{
    lki_position at;

    LK_TRY(lki_session_enter(s, &at, result));
    return loop(s, &at, result);
}

/* Logs the finding of an audit that ends the run, while all ranks still wait for each other.  In a
 * run that continues, the remaining ranks log it. */
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

/* Copies a configuration.  Refuses one without the fields that only lk_train_check() fills in, by
 * which a run divides. */
static lk_status take_config(lk_train_config *out, const lk_train_config *config)
{
    LK_TRY(lki_options_copy(out, sizeof *out, config, "lk_train_config"));
    const uint64_t pieces = (uint64_t)out->virtual_workers * out->micro_batch;
    if (out->precision != 0 && out->steps > 0 && out->schedule.steps == out->steps && pieces > 0 &&
        out->global_batch % pieces == 0)
        return LK_OK;
    return lk_fail(LK_EINVAL, "lk_train_run() got a configuration that lk_train_check() has not "
                              "completed: call that first, on each rank");
}

lk_status lk_train_run(lk_comm *comm, const lk_train_config *config, lk_train_result *result)
{
    lk_train_config mine;

    *result = (lk_train_result){ .loss                = (double)NAN,
                                 .validation_loss     = (double)NAN,
                                 .validation_accuracy = (double)NAN,
                                 .validation_rmse     = (double)NAN,
                                 .validation_mae      = (double)NAN };
    lk_status usable = take_config(&mine, config);
    if (usable != LK_OK) {
        lk_comm_abort(comm);
        return usable;
    }
    lki_session         s           = lki_session_of(&mine, comm, comm);
    lki_run_environment environment = lki_run_environment_enter();
    lk_status           status = s.outside ? enter_and_loop(&s, result) : open_and_loop(&s, result);
    lk_error            why    = *lk_error_last();
    tell_finding(&s);
    if (status != LK_OK && status != LK_ESTOPPED && !s.outside) { /* else other ranks continue */
        (void)lki_fail_again(&why);
        lk_comm_abort(s.comm); /* records this rank's error and wakes the other ranks */
    }
    lk_status closed = lki_session_close(&s);
    if (status == LK_OK && closed != LK_OK)
        lk_comm_abort(s.comm); /* NULL if the rank has not entered: then does nothing */
    if (s.comm != comm)
        lk_comm_free(s.comm);
    lki_run_environment_leave(&environment);
    return status == LK_OK ? closed : lki_fail_again(&why);
}

/* survive.c -- continues a run after ranks were lost; see survive.h.
 *
 * All remaining ranks form a new communicator, which takes over the arenas.  If the sums of the
 * last step were complete, they complete that step together.  Each rank gets new virtual workers, a
 * loader that begins at the next step, and the loss chain.  The new rank 0 takes over the
 * directory's lock and the log, which it truncates to the noted length.
 *
 * Rank 0 writes its notes alternately in two places, so one of them is complete whenever it dies.
 * A log line that was not noted is cut off and written again.  The notes are on rank 0's host.  If
 * that host is lost, the log is truncated to the step before the last one, and the last step is
 * logged again with everything that follows it.  That suffices, since the old rank 0 had written
 * nothing of the next step and everything of the step before.
 */
#include "train/recover/survive.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/directory.h"
#include "comm/worker.h"
#include "parallel/balance.h"
#include "parallel/stored.h"
#include "parallel/virtual.h"
#include "train/core/identity.h"
#include "train/core/progress.h"
#include "train/observe/observe.h"
#include "train/observe/pace.h"
#include "train/recover/succession.h"
#include "train/saves/base.h"
#include "train/saves/lock.h"

enum { PATIENCE_MS = 3600 * 1000, MOMENT_MS = 10 };

static lki_said *said_now(lki_minutes *m)
{
    return &m->said[atomic_load(&m->turn) & 1];
}

/* ---- Opening ----------------------------------------------------------------------------- */

lk_status lki_survival_open(lki_session *s)
{
    lk_arena *arena;
    if (!s->config->elastic.survives)
        return LK_OK;
    LK_TRY(lk_comm_arena(&arena, s->comm, "minutes", sizeof(lki_minutes)));
    LK_TRY(LKI_NEW(&s->survival, 1, "minutes"));
    *s->survival = (lki_survival){ .minutes = lk_arena_data(arena), .lost = s->lost_early,
                                   .seconds = s->lost_seconds };
    return LK_OK;
}

void lki_survival_close(lki_session *s)
{
    lki_free(s->survival);
    s->survival = NULL;
}

bool lki_survives(const lki_session *s, lk_status status)
{
    bool over = s->survival != NULL && s->survival->over;
    return s->config->elastic.survives && (status == LK_EPEER || status == LK_ETIMEOUT) && !over &&
           lk_comm_has_lost(s->comm);
}

/* ---- Reports of rank 0 ------------------------------------------------------------------- */

static void note_said(lki_session *s, const lki_said *what)
{
    lki_minutes *m    = s->survival->minutes;
    uint64_t     turn = atomic_load(&m->turn);
    m->said[(turn + 1) & 1]       = *what;
    m->said[(turn + 1) & 1].bytes = lki_journal_bytes(s->journal);
    atomic_store(&m->turn, turn + 1);
}

void lki_note_all_said(lki_session *s)
{
    if (s->survival == NULL || s->rank != 0)
        return;
    const lki_said now = *said_now(s->survival->minutes);
    note_said(s, &now);
}

lk_status lki_say_step(lki_session *s, const lki_step_record *record)
{
    if (s->survival == NULL || s->rank != 0)
        return lki_journal_step(s->journal, record);
    lki_said now = *said_now(s->survival->minutes);
    if (now.step >= record->step)
        return LK_OK;
    LK_TRY(lki_journal_step(s->journal, record));
    now.step = record->step;
    note_said(s, &now);
    return LK_OK;
}

lk_status lki_say_versions(lki_session *s, uint64_t step, json_t *line)
{
    if (s->survival == NULL || s->rank != 0)
        return lki_journal_event(s->journal, line);
    lki_said now = *said_now(s->survival->minutes);
    if (now.versions >= step) {
        json_decref(line);
        return LK_OK;
    }
    LK_TRY(lki_journal_event(s->journal, line));
    now.versions = step;
    note_said(s, &now);
    return LK_OK;
}

lk_status lki_say_evaluation(lki_session *s, uint64_t step, const lk_train_result *result)
{
    const lki_evaluated found = { result->validation_loss, result->validation_accuracy,
                                  result->validation_rmse, result->validation_mae };
    if (s->survival == NULL || s->rank != 0)
        return lki_journal_evaluation(s->journal, step, &found);
    lki_said now = *said_now(s->survival->minutes);
    if (now.evaluation >= step)
        return LK_OK;
    LK_TRY(lki_journal_evaluation(s->journal, step, &found));
    now.evaluation = step;
    now.found      = found;
    note_said(s, &now);
    return LK_OK;
}

lk_status lki_say_finding(lki_session *s, const lk_audit_finding *finding)
{
    LK_TRY(lki_journal_finding(s->journal, finding));
    if (s->survival == NULL || s->rank != 0)
        return LK_OK;
    lki_said now = *said_now(s->survival->minutes);
    note_said(s, &now);
    return LK_OK;
}

lk_status lki_say_end(lki_session *s, const lk_train_result *result)
{
    if (s->survival == NULL || s->rank != 0)
        return lki_journal_end(s->journal, result);
    lki_said now = *said_now(s->survival->minutes);
    if (now.ended)
        return LK_OK;
    lki_note_summary(s);
    LK_TRY(lki_journal_end(s->journal, result));
    now.ended = true;
    note_said(s, &now);
    return LK_OK;
}

lk_status lki_say_done(lki_session *s, const lk_train_result *result)
{
    bool     tells = s->rank == 0 && result != NULL && s->config->calls.done != NULL;
    lki_said now   = { .done = false };

    if (s->survival != NULL)
        now = *said_now(s->survival->minutes);
    lk_status told = tells && !now.done
                         ? s->config->calls.done(s->config->calls.done_context, result)
                         : LK_OK;
    if (told != LK_OK)
        return lk_fail(told, "the result could not be reported: %s", lk_status_text(told));
    if (tells && !now.done && s->survival != NULL) {
        now.done = true;
        note_said(s, &now);
    }
    LK_TRY(lk_barrier(s->comm));
    if (s->survival == NULL)
        return LK_OK;
    lki_comm_leave(s->comm);
    s->survival->over = true;
    return LK_OK;
}

void lki_settle(lki_session *s, uint64_t done)
{
    bool ends = done >= s->progress.end || s->progress.ended != NULL || s->stopped;
    if (s->survival != NULL && s->rank == 0 && !ends)
        atomic_store(&s->survival->minutes->settled, done);
}

bool lki_must_meet(const lki_session *s)
{
    return s->survival != NULL && lki_is_async(s->config);
}

/* ---- The new group ----------------------------------------------------------------------- */

/* Makes the session use a new communicator.  The caller still owns the old one.  Restores the
 * default timeout, because no rank of the new communicator is busy with files yet. */
void lki_take_group(lki_session *s, lk_comm *next)
{
    lk_comm_set_timeout(next, 0);
    s->comm    = next;
    s->rank    = lk_comm_rank(next);
    s->ranks   = lk_comm_size(next);
    lki_let_rank_0_work(s, false);
}

lk_status lki_regroup(lki_session *s, const lk_error *why, double begun)
{
    lk_comm       *before = s->comm, *next;
    lki_succession t      = { .early = true, .why = why->message, .before = before,
                              .late  = why->status == LK_ETIMEOUT };

    LK_TRY(lk_comm_rebuild(&next, before, NULL));
    lki_take_group(s, next);
    t.now     = next;
    t.lost    = lk_comm_size(before) - s->ranks;
    t.seconds = lki_seconds() - begun;
    s->lost_early += t.lost;
    s->lost_seconds += t.seconds;
    s->depleted      = s->ranks < s->config->elastic.workers_least;
    lk_status status = LK_OK;
    if (s->rank == 0 && s->journal == NULL)
        status = lki_session_journal(s);
    if (status == LK_OK)
        lki_note_succession(s, &t);
    if (before != s->given)
        lk_comm_free(before);
    return status;
}

lk_status lki_cannot_begin(const lki_session *s, lk_status status)
{
    lk_error why = *lk_error_last();

    if (s->lost_early == 0 || (status != LK_EINVAL && status != LK_EUNSUPPORTED))
        return status;
    return lk_fail(LK_EPEER, "%u of %u workers are left, on %u of %u hosts, with which this run "
                   "cannot begin: %.300s", s->ranks, lk_comm_size(s->given), lk_comm_hosts(s->comm),
                   lk_comm_hosts(s->given), why.message);
}

lk_status lki_parallel_over(lki_session *s, lk_parallel **out, lk_comm *comm,
                            lk_parallel_standing *standing)
{
    lk_parallel_options options;
    lk_status status = lki_session_options(s, &options);
    if (status == LK_OK)
        status = lk_parallel_go_on(out, s->parallel, comm, s->params, s->param_count, &options,
                                   standing);
    lki_parallel_options_free(&options);
    lki_session_may_idle(s->config, status == LK_OK ? *out : NULL);
    return status;
}

/* Copies rank 0's notes before rank 0 may continue to write.  Ranks on other hosts receive the
 * notes from rank 0.  If the host of the old rank 0 was lost, its lines after the last step are
 * unknown and are written again. */
lk_status lki_read_minutes(lki_session *s, lk_comm *next)
{
    lki_minutes *found = &s->survival->found;
    memcpy(found, s->survival->minutes, sizeof *found);
    return lk_comm_hosts(next) > 1 ? lk_broadcast(next, found, sizeof *found, 0) : LK_OK;
}

/* Writes the checkpoint from which a run can be restarted. */
static void name_checkpoint(const lki_session *s, char *text, size_t bytes)
{
    const char *folder = s->config->checkpoint.folder;
    uint64_t   *steps  = NULL;
    size_t      count  = 0;
    if (folder != NULL && lki_steps_list(&steps, &count, folder) == LK_OK && count > 0)
        (void)snprintf(text, bytes, "start again from the checkpoint of step %llu",
                       (unsigned long long)steps[0]);
    else
        (void)snprintf(text, bytes, "there is no checkpoint to start again from");
    lki_free(steps);
}

/* Fails on all ranks if a lost host was the only one with a part of the state. */
static lk_status check_hosts(const lki_session *s, const lk_comm *next)
{
    const lk_train_config *c = s->config;
    char                   from[64];
    uint32_t               group;

    name_checkpoint(s, from, sizeof from);
    if (!lki_stored_groups(s->parallel, next, &group))
        return lk_fail(LK_EPEER, "%u of %u hosts are left, and what group %u keeps was on a lost "
                       "one: %s", lk_comm_hosts(next), lk_comm_hosts(s->comm), group, from);
    if (lki_stored_whole(s->parallel, next))
        return LK_OK;
    bool groups = strcmp(c->strategy, "hybrid") == 0;
    return lk_fail(LK_EPEER, "%u of %u hosts are left, and none of them has a part of the model "
                   "that %s keeps on %s: %s%s", lk_comm_hosts(next), lk_comm_hosts(s->comm),
                   c->strategy, c->buddies ? "two" : groups ? "one of each group" : "one alone",
                   from, c->buddies ? ""
                         : groups   ? ", or take a smaller `shard_hosts`, or ddp"
                                    : ", or take `buddies` 2, or ddp");
}

/* Takes over all state in a new communicator. */
static lk_status settle_in(lki_session *s, lk_comm *next, lk_parallel **parallel,
                           lk_parallel_standing *standing)
{
    lk_comm_note(next, s->progress.chained + 1, "continuing");
    LK_TRY(lki_check_entrants(s, next));
    LK_TRY(lki_base_hand_over(s, next));
    LK_TRY(lki_read_minutes(s, next));
    LK_TRY(lki_parallel_over(s, parallel, next, standing));
    lk_status status = lki_welcome(s, next);
    if (status == LK_OK)
        return LK_OK;
    lk_parallel_free(*parallel);
    *parallel = NULL;
    return status;
}

/* Ends the run, and reports the reason to the launcher.  Waits for the other ranks: if this rank
 * left earlier, they would form a smaller group, and name other losses. */
static lk_status give_up(lk_comm *next)
{
    lk_error  why = *lk_error_last();
    lk_status met = lk_barrier(next); /* may fail if another rank is lost or has not waited */
    (void)met;
    lk_comm_abort(next);
    lk_comm_free(next);
    return lki_fail_again(&why);
}

/* Explains why a communicator with entering ranks has failed, since the error of a connection is
 * not informative. */
static void explain_missed(lk_error *missed, const lk_comm *next)
{
    char     who[LKI_WHO_BYTES];
    uint32_t r = 0, ranks = lk_comm_size(next);

    *missed = *lk_error_last();
    while (r < ranks && !lki_comm_is_fresh(next, r))
        r++;
    if (r == ranks || strstr(missed->message, "host ") != NULL ||
        strstr(missed->message, "rank ") != NULL)
        return;
    lki_comm_who(next, r, who);
    (void)snprintf(missed->message, sizeof missed->message, "%.260s was to enter: %.180s", who,
                   lk_error_last()->message);
}

/* Ends the run because of an error that is no loss, so that the launcher and other ranks learn it.
 * `next` is freed.  `cause`: the loss after which the run was to go on; NULL: there was none. */
static lk_status cannot_go_on(lk_comm *next, const lk_error *cause)
{
    lk_error why = *lk_error_last();
    if (next == NULL)
        return why.status; /* no communicator was formed */
    if (cause != NULL && why.status != LK_EPEER && why.status != LK_ETIMEOUT)
        (void)lk_fail(why.status, "%.150s, and the others cannot go on: %.300s", cause->message,
                      why.message);
    why = *lk_error_last();
    lk_comm_abort(next);
    lk_comm_free(next);
    return lki_fail_again(&why);
}

/* Forms communicators until one succeeds, or fails with an error that is no loss: *out, which the
 * caller frees, is the last one; NULL: none was formed.  With `admits` the first one may include
 * entering processes; if they fail, *missed becomes the reason. */
static lk_status find_group(lki_session *s, bool admits, lk_comm **out, lk_parallel **parallel,
                            lk_parallel_standing *standing, lk_error *missed)
{
    lk_comm_options options = { .struct_size = sizeof options,
                                .timeout_ms  = s->patient ? PATIENCE_MS : 0 };
    lk_comm        *failed  = s->comm, *next;
    lk_status       status;

    do {
        status = admits ? lki_comm_admit(&next, failed, &options, missed)
                        : lk_comm_rebuild(&next, failed, &options);
        bool there = status == LK_OK;
        if (there)
            status = lk_comm_take_arenas(next, failed);
        if (failed != s->comm)
            lk_comm_free(failed);
        if (!there)
            return status;
        if (check_hosts(s, next) != LK_OK)
            return give_up(next);
        if (status == LK_OK)
            status = settle_in(s, next, parallel, standing);
        if (status != LK_OK)
            explain_missed(missed, next);
        failed = next;
        admits = false;
    } while (status != LK_OK && lk_comm_has_lost(next));
    *out = next;
    return status;
}

/* Opens the log at the right position.  Without notes of rank 0, begins a new log if no step is
 * done; otherwise finds the end of step `done` - 1 in the log. */
static lk_status take_log(lki_session *s, uint64_t done)
{
    lki_minutes *found = &s->survival->found;
    uint64_t     bytes = said_now(found)->bytes;
    bool         known = atomic_load(&found->turn) > 0;

    if (!known && done == s->progress.start) {
        lki_log_run run = lki_log_run_of(s);
        run.waits       = false;
        LK_TRY(lki_journal_open_log(s->journal, &run));
        return lki_journal_begin(s->journal, &run, s->progress.end);
    }
    if (!known)
        LK_TRY(lki_journal_find(s->journal, done - 1, &bytes));
    return lki_journal_take_over(s->journal, done, s->progress.end, bytes);
}

/* Locks the directory, with retries, as the old rank 0 may be on a disconnected host and about to
 * end. */
static lk_status take_lock(lki_session *s)
{
    const struct timespec moment = { 0, MOMENT_MS * 1000000L };
    double                end    = lki_seconds() + 0.5e-3 * lki_comm_timeout_ms(s->comm);
    lk_status             status = LK_EIO;

    while (status == LK_EIO && lki_seconds() < end) {
        status = lki_lock_take(&s->saves->lock, s->config->checkpoint.folder, s->journal);
        if (status == LK_EIO)
            (void)nanosleep(&moment, NULL);
    }
    return status;
}

/* Takes over log and directory on the new rank 0. */
static lk_status take_files(lki_session *s, uint64_t done)
{
    const lk_train_config *c = s->config;
    if (s->rank != 0 || s->journal != NULL)
        return LK_OK;
    LK_TRY(lki_session_journal(s));
    lki_journal_label(s->journal, lki_run_label(s));
    LK_TRY(take_log(s, done));
    if (c->checkpoint.folder == NULL)
        return LK_OK;
    LK_TRY(take_lock(s));
    if (!c->checkpoint.async)
        return LK_OK;
    LK_TRY(lki_background_make_room(s));
    return lki_background_open(&s->saves->background, s);
}

/* ---- Continuing -------------------------------------------------------------------------- */

/* Updates this rank's progress to the last complete step. */
void lki_catch_up(lki_session *s, const lk_parallel_standing *standing, lki_position *at,
                  lk_train_result *result)
{
    const lki_said *told = said_now(&s->survival->found);

    *at = (lki_position){ .done = standing->steps > 0 ? standing->steps : s->progress.start };
    if (standing->steps == 0)
        return;
    if (s->progress.chained < at->done)
        lki_session_chain(s, at->done, &standing->last);
    result->loss = standing->last.loss;
    if (told->evaluation == at->done && at->done > 0) {
        result->validation_loss     = told->found.loss;
        result->validation_accuracy = told->found.accuracy;
        result->validation_rmse     = told->found.rmse;
        result->validation_mae      = told->found.mae;
    }
    at->behind = atomic_load(&s->survival->found.settled) < at->done;
    if (!at->behind && told->evaluation == at->done)
        (void)lki_heed_evaluation(s, at->done, told->found.loss, told->found.accuracy);
    at->record = (lki_step_record){ .step    = at->done,
                                    .lr      = lk_schedule_at(&s->config->schedule, at->done - 1),
                                    .seconds = lki_seconds() - s->begun,
                                    .pace    = lk_parallel_async_step(s->parallel).seconds };
    lki_session_record(s, &standing->last, standing->loss_scale, &at->record);
}

/* Makes the session use the new communicator, and reports the change. */
static lk_status move(lki_session *s, lki_succession *t, lk_comm *next, const lki_position *at,
                      double begun)
{
    lki_survival *self   = s->survival;
    lk_comm      *before = s->comm;

    t->before  = before;
    t->now     = next;
    t->rounds  = s->stride > 1; /* with one rank the stride is always 1 */
    t->bounds  = lki_pace_bounds(s);
    t->next    = lki_parallel_dealing(s->parallel)->bounds;
    t->left    = t->planned ? self->membership.leavers : 0;
    t->entered = lk_comm_entered(next);
    t->lost    = s->ranks + t->entered - lk_comm_size(next) - t->left;
    t->done    = at->done;
    self->lost += t->lost;
    self->left += t->left;
    self->entered += t->entered;
    self->membership = (lki_membership){ .agreed = false };
    lki_take_group(s, next);
    s->depleted      = s->ranks < s->config->elastic.workers_least;
    lk_status status = take_files(s, at->done);
    if (status == LK_OK)
        status = lki_session_deal(s, at->done);
    if (status == LK_OK)
        lki_observe_loader(s);
    t->rounds  = t->rounds || s->stride > 1;
    t->seconds = lki_seconds() - begun;
    self->seconds += t->seconds;
    if (status == LK_OK)
        status = lki_log_succession(s, t);
    if (status == LK_OK) {
        lki_note_all_said(s);
        lki_note_succession(s, t);
    }
    lki_pace_regroup(s);
    if (before != s->given)
        lk_comm_free(before);
    return status;
}

lk_status lki_go_on(lki_session *s, lki_position *at, lk_train_result *result)
{
    double               begun = lki_seconds();
    lk_error             why = *lk_error_last(), missed = { .status = LK_OK };
    lk_comm             *next     = NULL;
    lk_parallel         *parallel = NULL;
    lk_parallel_standing standing = { 0 };
    lk_audit_finding     finding;
    bool                 found   = lk_parallel_finding(s->parallel, &finding);
    bool                 planned = lki_membership_is(s, &why);

    if (find_group(s, planned, &next, &parallel, &standing, &missed) != LK_OK)
        return cannot_go_on(next, planned ? NULL : &why);
    bool kept_out = planned && s->survival->membership.leavers == 0 && lk_comm_entered(next) == 0;
    lk_parallel_free(s->parallel);
    s->parallel = parallel;
    lki_catch_up(s, &standing, at, result);
    lki_succession t = { .why        = why.message,
                         .planned    = planned,
                         .refused    = kept_out && missed.status != LK_OK ? missed.message : NULL,
                         .late       = why.status == LK_ETIMEOUT,
                         .unfinished = at->done < s->progress.end ? standing.unfinished : 0 };
    LK_TRY(move(s, &t, next, at, begun));
    result->speaks = s->rank == 0;
    return found ? lki_say_finding(s, &finding) : LK_OK;
}

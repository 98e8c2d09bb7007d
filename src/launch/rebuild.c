/* rebuild.c -- the launcher's part when a group goes on without those that it has lost.
 *
 * A job that continues does not end with a worker that fails: its death ends the others' waits as
 * ever, but they are left alone, and may ask for a new group (comm/rebuild.c) or end by themselves.
 * The first that asks sets the clock.  When nobody is missing any more, those who asked get the
 * control memory of the next epoch; who is still missing when the time is up is killed, so that
 * nobody is left who might think that he belongs to it, and has a second to be dead.
 *
 * As everywhere, time in which this process did not run does not count.
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/file.h"
#include "launch/job.h"

static const double LATE_SECONDS = 0.5, DYING_SECONDS = 1;

void lki_job_note(const lki_job *job, const char *format, ...)
{
    char    text[640];
    va_list args;

    if (job->options->note == NULL)
        return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    job->options->note(job->options->note_context, text);
}

/* Workers that have not joined cannot go on: they have no group to make anew. */
bool lki_job_survives(const lki_job *job)
{
    return job->options->on_failure == LK_ON_FAILURE_CONTINUE && job->kill_at <= 0
           && lki_control_all_joined(job->control);
}

static bool any_missing(const lki_job *job)
{
    for (uint32_t i = 0; i < job->count; i++)
        if (lki_control_is_missing(job->control, lki_rank_of_worker(job, i)))
            return true;
    return false;
}

static void kill_missing(lki_job *job, uint32_t timeout_ms)
{
    char who[LKI_WHO_BYTES];

    for (uint32_t i = 0; i < job->count; i++) {
        uint32_t    rank   = lki_rank_of_worker(job, i);
        lki_worker *worker = &job->workers[i];
        if (!lki_control_is_missing(job->control, rank))
            continue;
        lki_control_who(job->control, rank, who);
        lki_job_note(job, "%s has not come within %g s to go on with the others, and is killed",
                     who, timeout_ms * 1e-3);
        worker->by_us = true;
        (void)kill(worker->pid, SIGKILL);
    }
    job->rebuild_killed = true;
    job->rebuild_left   = DYING_SECONDS;
}

static void go_on(lki_job *job)
{
    uint32_t members = 0;

    job->rebuild_left   = 0;
    job->rebuild_killed = false;
    if (lki_control_rebuild(job->control) != LK_OK)
        return; /* those who asked know why */
    for (uint32_t i = 0; i < job->count; i++)
        members += lki_control_is_member(job->control, lki_rank_of_worker(job, i));
    lki_job_note(job, "the group goes on with %u of %u ranks", members, job->count);
}

/* The time that is left, after that which has passed since the last look. */
static void count_down(lki_job *job, uint32_t timeout_ms)
{
    double now    = lki_seconds(), passed = now - job->rebuild_seen, most = timeout_ms * 1e-3;
    bool   first = !lki_rebuild_pending(job);

    job->rebuild_seen = now;
    if (first)
        job->rebuild_left = most;
    else if (passed < LATE_SECONDS)
        job->rebuild_left -= passed;
    if (!job->rebuild_killed && job->rebuild_left > most)
        job->rebuild_left = most;
}

void lki_rebuild_turn(lki_job *job)
{
    uint32_t timeout_ms, first;
    lk_error error;

    if (lki_control_asked(job->control, &timeout_ms) == 0) {
        job->rebuild_left   = 0;
        job->rebuild_killed = false;
        return;
    }
    if (job->options->on_failure != LK_ON_FAILURE_CONTINUE) {
        lki_control_refuse(job->control, LK_EUNSUPPORTED, "this job ends at its first failure: "
                           "start it with lockstep run --on-failure continue to go on without the "
                           "ranks that are lost");
        return;
    }
    if (!lki_rebuild_pending(job) && lki_control_failed(job->control, &first, &error)
        && error.status == LK_ETIMEOUT)
        lki_job_kill_stopped(job);
    if (!any_missing(job)) {
        go_on(job);
        return;
    }
    count_down(job, timeout_ms);
    if (lki_rebuild_pending(job))
        return;
    if (job->rebuild_killed)
        go_on(job);
    else
        kill_missing(job, timeout_ms);
}

/* rebuild.c -- the launcher's part when a group goes on without those that it has lost.
 *
 * A job that continues does not end with a worker that fails: its death ends the others' waits as
 * ever, but they are left alone, and may ask for a new group (comm/rebuild.c) or end by themselves.
 * The first that asks sets the clock.  When nobody is missing any more, those who asked get the
 * control memory of the next epoch; who is still missing when the time is up is killed, so that
 * nobody is left who might think that he belongs to it, and has a second to be dead.
 *
 * On several nodes each launcher does that for its own workers, and the first that is asked sets
 * the others' clocks, too.  None makes a group by itself: it tells node 0 who goes on from here,
 * and node 0, when all have said so, have finished or are lost, tells all who the group is.
 *
 *      launcher                             node 0 (rendezvous/seats.c)
 *      asked {epoch k, time} -------------> passed on
 *      nobody is missing here
 *      group {epoch k, its ranks} --------> waits for the rest
 *      control memory of epoch k+1 <------- group {epoch k+1, all ranks}
 *      introductions, as at the start <---> introductions
 *
 * A node that is lost, or has no rank left, is out; what happened there does not count any more.
 * One that has lost node 0 has nobody to decide, and its part of the job ends.
 *
 * As everywhere, time in which this process did not run does not count.
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/file.h"
#include "launch/keeper/keeper.h"
#include "launch/nodes.h"

static const double LATE_SECONDS = 0.5, DYING_SECONDS = 1;

__attribute__((format(printf, 2, 0))) static void say(const lki_job *job, const char *format,
                                                      va_list args)
{
    char text[640];

    if (job->options->note == NULL)
        return;
    (void)vsnprintf(text, sizeof text, format, args);
    if (lki_is_coordinator(job))
        lki_keeper_tell(job, LKI_KEEPER_NOTE, text);
    else
        job->options->note(job->options->note_context, text);
}

void lki_job_note(const lki_job *job, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    say(job, format, args);
    va_end(args);
}

void lki_job_note_loss(const lki_job *job, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    if (!job->options->ranks_tell)
        say(job, format, args);
    va_end(args);
}

/* Workers that have not joined cannot go on: they have no group to make anew.  And nobody can where
 * nobody decides. */
bool lki_job_survives(const lki_job *job)
{
    return job->options->on_failure == LK_ON_FAILURE_CONTINUE && job->kill_at <= 0
           && lki_control_all_joined(job->control)
           && (job->rendezvous == NULL || (job->begun && !lki_nodes_lost(job)));
}

bool lki_rebuild_concerns(const lki_job *job)
{
    return lki_control_epoch(job->control) == job->epoch;
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
        lki_job_note_loss(job, "%s has not come within %g s to go on with the others, and is "
                          "killed", who, timeout_ms * 1e-3);
        worker->by_us       = true;
        worker->was_stopped = lki_job_is_stopped(job, i);
        lki_commit(job);
        (void)kill(worker->pid, SIGKILL);
    }
    job->rebuild_killed = true;
    job->rebuild_left   = DYING_SECONDS;
}

/* Node 0 of emulated hosts speaks for all. */
static void note_group(const lki_job *job, const lki_members *members)
{
    uint32_t count = 0;

    if (job->host->name != NULL && job->rendezvous != NULL
        && lki_rendezvous_self(job->rendezvous) != 0)
        return;
    for (uint32_t rank = 0; rank < job->roster.world; rank++)
        count += lki_members_have(members, rank);
    lki_job_note_loss(job, "the group goes on with %u of %u ranks", count, job->roster.world);
}

/* Whether there is a control memory of the new epoch; those who asked know why there is none. */
static bool begin(lki_job *job, const lki_members *members)
{
    bool made;

    job->rebuild_left   = 0;
    job->rebuild_ms     = 0;
    job->rebuild_killed = job->rebuild_told = job->rebuild_said = false;
    made                = lki_control_rebuild(job->control, members) == LK_OK;
    if (made)
        job->epoch = lki_control_epoch(job->control);
    return made;
}

/* Nobody is missing here: on one host that is all, else it is node 0's to put together. */
static void settle(lki_job *job)
{
    lki_members members = lki_control_askers(job->control);

    if (job->rendezvous == NULL) {
        lki_members entrants = lki_control_entrants(job->control);
        for (size_t i = 0; i < sizeof members.words / sizeof members.words[0]; i++)
            members.words[i] |= entrants.words[i];
        if (begin(job, &members)) {
            note_group(job, &members);
            lki_replace_begin(job);
        }
        return;
    }
    const lki_saying ours = {.kind     = LKI_SAY_GO_ON,
                             .epoch    = job->epoch,
                             .members  = members,
                             .entrants = lki_control_entrants(job->control),
                             .admits   = lki_control_admits(job->control)};
    if (!job->rebuild_said)
        lki_nodes_say(job, &ours);
    job->rebuild_said = true;
    job->rebuild_left = 0;
}

void lki_rebuild_resume(lki_job *job)
{
    lki_members members = {{0}};

    if (job->rendezvous != NULL || lki_control_epoch(job->control) == job->epoch)
        return; /* of several nodes the event is heard again */
    for (uint32_t rank = 0; rank < job->roster.world; rank++)
        if (lki_control_is_member(job->control, rank))
            lki_members_add(&members, rank);
    job->epoch = lki_control_epoch(job->control);
    note_group(job, &members);
    lki_replace_begin(job);
}

/* ---- On several nodes -------------------------------------------------------------------- */

void lki_rebuild_asked(lki_job *job, uint64_t epoch, uint32_t timeout_ms)
{
    if (epoch != job->epoch || !lki_rebuild_concerns(job))
        return;
    if (job->rebuild_ms == 0 || timeout_ms < job->rebuild_ms)
        job->rebuild_ms = timeout_ms;
}

/* This node cannot come along.  Its workers end, and the others go on without them. */
static void fall_out(lki_job *job, uint32_t culprit)
{
    lki_saying ours = {.kind    = LKI_SAY_VERDICT,
                       .epoch   = job->epoch,
                       .verdict = {.culprit = culprit, .status = LK_EPEER}};

    (void)snprintf(ours.verdict.message, sizeof ours.verdict.message, "%.400s",
                   lk_error_last()->message);
    lki_nodes_say(job, &ours);
    job->told = true;
    lki_job_fail(job);
}

void lki_rebuild_begin(lki_job *job, uint64_t epoch, const lki_members *members)
{
    bool     made      = lki_control_epoch(job->control) == epoch; /* by a launcher before this */
    bool     concerned = made || lki_rebuild_concerns(job);
    uint32_t first     = job->roster.first, end = first + job->count;

    if (lki_outside_stays(job, epoch, members))
        return;
    while (first < end && !lki_members_have(members, first))
        first++;
    job->epoch      = epoch;
    job->introduced = job->told = false;
    note_group(job, members);
    job->dropped = first == end;
    if (!concerned || first == end)
        return;
    if (!made && !begin(job, members)) {
        fall_out(job, first);
        return;
    }
    lki_replace_begin(job);
    lki_nodes_look(job); /* somebody may have died since he asked */
}

/* ---- Every turn -------------------------------------------------------------------------- */

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

/* How long those who ask wait at most, here and on other nodes; 0 where nobody asks. */
static uint32_t asked_ms(const lki_job *job)
{
    uint32_t here, there = job->rebuild_ms;

    if (lki_control_asked(job->control, &here) == 0)
        return there;
    return there != 0 && there < here ? there : here;
}

/* Says no to those who ask, where nothing can come of it. */
static bool refuse(lki_job *job)
{
    if (lki_is_foreign(job))
        lki_control_refuse(job->control, LK_EUNSUPPORTED, "another launcher (mpirun, srun, "
                           "torchrun) has started this job, and ends it when a rank fails: only "
                           "lockstep run --on-failure continue lets the others go on");
    else if (job->options->on_failure != LK_ON_FAILURE_CONTINUE)
        lki_control_refuse(job->control, LK_EUNSUPPORTED, "this job ends at its first failure: "
                           "start it with lockstep run --on-failure continue to go on without the "
                           "ranks that are lost");
    else if (job->rendezvous != NULL && lki_nodes_lost(job))
        lki_control_refuse(job->control, LK_EPEER, "node 0, whose launcher decides who goes on, is "
                           "lost: start the job again from its newest checkpoint");
    else if (!lki_rebuild_concerns(job))
        lki_control_refuse(job->control, LK_EINVAL, "the group has gone on without this host");
    else
        return false;
    return true;
}

static void tell_others(lki_job *job, uint32_t timeout_ms)
{
    if (job->rendezvous == NULL || job->rebuild_told || job->rebuild_ms != 0)
        return;
    const lki_saying ours = {.kind       = LKI_SAY_ASKED,
                             .epoch      = job->epoch,
                             .timeout_ms = timeout_ms};
    lki_nodes_say(job, &ours);
    job->rebuild_told = true;
}

void lki_rebuild_turn(lki_job *job)
{
    uint32_t timeout_ms = asked_ms(job), first;
    lk_error error;

    if (job->outside)
        return;
    if (timeout_ms == 0) {
        job->rebuild_left   = 0;
        job->rebuild_killed = false;
        return;
    }
    if (refuse(job))
        return;
    tell_others(job, timeout_ms);
    if (!lki_rebuild_pending(job) && lki_control_failed(job->control, &first, &error)
        && error.status == LK_ETIMEOUT)
        lki_job_kill_stopped(job);
    if (!any_missing(job)) {
        settle(job);
        return;
    }
    count_down(job, timeout_ms);
    if (lki_rebuild_pending(job))
        return;
    if (job->rebuild_killed)
        settle(job);
    else
        kill_missing(job, timeout_ms);
}

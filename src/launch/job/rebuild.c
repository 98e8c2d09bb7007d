/* rebuild.c -- the launcher's part in continuing with a new group after a loss.
 *
 * With --on-failure continue the job does not end with a failed worker.  The failure ends the waits
 * of the other workers as usual.  The survivors may then request a new group (comm/join/rebuild.c)
 * or exit.  The first request starts a deadline.  As soon as all survivors have made a request,
 * they receive the control memory of the next epoch.  Workers that are still missing at the
 * deadline are killed, so that no process is left that considers itself a member.  The launcher
 * waits up to one second for the end of the killed workers.
 *
 * With several nodes each launcher collects the requests of its own workers, and the first request
 * starts the deadline on all nodes.  A launcher does not form a group by itself: it reports to node
 * 0 which of its workers survive.  When all nodes have reported, have finished or are lost, node 0
 * sends the members to all.
 *
 *   launcher                                  node 0 (rendezvous/seats.c)
 *   asked {epoch k, time}        -------------> passed on
 *   nobody is missing here
 *   group {epoch k, its ranks}   -------------> waits for the other nodes
 *   control memory of epoch k+1  <------------- group {epoch k+1, all ranks}
 *   introductions, as at the start <----------> introductions
 *
 * A node that is lost, or has no rank left, is excluded, and its later events are ignored.  If node
 * 0 is lost, the other nodes cannot continue, and the job ends on every node.
 *
 * Time in which this process did not run does not count.
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/file.h"
#include "launch/job/executor.h"

static const double LATE_SECONDS = 0.5, DYING_SECONDS = 1;

__attribute__((format(printf, 2, 0))) static void say(const lki_job *job, const char *format,
                                                      va_list args)
{
    char text[640];

    if (job->options->note == NULL)
        return;
    (void)vsnprintf(text, sizeof text, format, args);
    job->executor->note(job, false, text);
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

/* Returns true if the job can continue after a failure.  Workers that have not joined have no group
 * to rebuild, and without node 0 no new group can be formed. */
bool lki_job_survives(const lki_job *job)
{
    return job->options->on_failure == LK_ON_FAILURE_CONTINUE && job->kill_at <= 0
           && lki_control_all_joined(job->control)
           && (job->rendezvous == NULL || (job->begun && !job->executor->lost(job)));
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
        lki_job_note_loss(job, "%s has not come within %g s to continue with the others, and is "
                          "killed", who, timeout_ms * 1e-3);
        worker->by_us       = true;
        worker->was_stopped = lki_job_is_stopped(job, i);
        job->executor->commit(job);
        (void)kill(worker->pid, SIGKILL);
    }
    job->rebuild_killed = true;
    job->rebuild_left   = DYING_SECONDS;
}

/* Prints a note about the new group.  With emulated hosts only node 0 prints this note. */
static void note_group(const lki_job *job, const lki_members *members)
{
    uint32_t count = 0;

    if (job->host->name != NULL && job->rendezvous != NULL
        && lki_rendezvous_self(job->rendezvous) != 0)
        return;
    for (uint32_t rank = 0; rank < job->roster.world; rank++)
        count += lki_members_have(members, rank);
    lki_job_note_loss(job, "the group continues with %u of %u ranks", count, job->roster.world);
}

/* Creates the control memory of the new epoch.  Returns true on success; on failure the workers
 * that made a request receive the reason. */
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

/* Acts when no worker of this host is missing.  Forms the new group or, with several nodes, reports
 * the survivors to node 0. */
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
        job->executor->say(job, &ours);
    job->rebuild_said = true;
    job->rebuild_left = 0;
}

void lki_rebuild_resume(lki_job *job)
{
    lki_members members = {{0}};

    if (job->rendezvous != NULL || lki_control_epoch(job->control) == job->epoch)
        return; /* with several nodes, node 0's announcement arrives again */
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

/* Reports that this node cannot take part in the new group.  The workers of this node then end. */
static void fall_out(lki_job *job, uint32_t culprit)
{
    lki_saying ours = {.kind    = LKI_SAY_VERDICT,
                       .epoch   = job->epoch,
                       .verdict = {.culprit = culprit, .status = LK_EPEER}};

    memcpy(ours.verdict.message, lk_error_last()->message, sizeof ours.verdict.message);
    job->executor->say(job, &ours);
    job->told = true;
    lki_job_fail(job);
}

void lki_rebuild_begin(lki_job *job, uint64_t epoch, const lki_members *members)
{
    bool     made      = lki_control_epoch(job->control) == epoch; /* an earlier loop has formed the
                                                                    * group */
    bool     concerned = made || lki_rebuild_concerns(job);
    uint32_t first     = job->roster.first, end = first + job->count;

    if (lki_late_host_stays(job, epoch, members))
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
    lki_nodes_look(job); /* a member may have died since its request */
}

/* ---- Turns ------------------------------------------------------------------------------- */

/* Subtracts the time since the last call from job->rebuild_left, the time until the deadline. */
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

/* Returns the shortest timeout of all ranks that request a group, on this node or on others; 0 if
 * there is no request. */
static uint32_t asked_ms(const lki_job *job)
{
    uint32_t here, there = job->rebuild_ms;

    if (lki_control_asked(job->control, &here) == 0)
        return there;
    return there != 0 && there < here ? there : here;
}

/* Refuses the requests for a new group if no group can be formed, and sends the reason.  Returns
 * true in that case. */
static bool refuse(lki_job *job)
{
    if (lki_is_foreign(job))
        lki_control_refuse(job->control, LK_EUNSUPPORTED, "another launcher (mpirun, srun, "
                           "torchrun) has started this job, and ends it when a rank fails: only "
                           "`on_failure` continue lets the others continue");
    else if (job->options->on_failure != LK_ON_FAILURE_CONTINUE)
        lki_control_refuse(job->control, LK_EUNSUPPORTED, "this job ends at its first failure: "
                           "start it with `on_failure` continue to continue without the "
                           "ranks that are lost");
    else if (job->rendezvous != NULL && job->executor->lost(job))
        lki_control_refuse(job->control, LK_EPEER, "node 0, whose launcher decides who continues, "
                           "is lost: start the job again from its newest checkpoint");
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
    job->executor->say(job, &ours);
    job->rebuild_told = true;
}

void lki_rebuild_turn(lki_job *job)
{
    uint32_t           timeout_ms = asked_ms(job);
    const lki_failure *f          = lki_control_failure(job->control);

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
    if (!lki_rebuild_pending(job) && f != NULL && f->verdict == LK_ETIMEOUT)
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

/* stopped.c -- handles a stopped (SIGSTOP) worker that no other worker waits for.
 *
 * A stopped worker with peers is detected when its peers time out.  The last worker of a job has no
 * peers.  If the last worker is stopped, the launcher waits and prints a note that names the
 * worker.  The launcher kills a stopped worker if other workers have seen the end of the job,
 * because only the exit of the stopped worker is then missing.  Time in which the launcher itself
 * did not run (Ctrl-Z stops all processes) does not count.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "launch/job/executor.h"

static const double LATE_SECONDS = 0.5;

/* Reads the process state from /proc/PID/stat.  The state follows the last ')', because the process
 * name in parentheses may itself contain ')'. */
bool lki_is_stopped(pid_t pid)
{
    char path[40], text[256];

    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t bytes = read(fd, text, sizeof text - 1);
    (void)close(fd);
    text[bytes > 0 ? bytes : 0] = '\0';
    const char *state = strrchr(text, ')');
    return state != NULL && (strncmp(state, ") T", 3) == 0 || strncmp(state, ") t", 3) == 0);
}

/* Returns true if a running rank of another host may be waiting for ranks of this host. */
static bool any_elsewhere(const lki_job *job)
{
    lki_rank_view view;
    bool          any = job->rendezvous != NULL && !lki_rebuild_concerns(job);

    for (uint32_t rank = 0; rank < job->roster.world && !any; rank++) {
        lki_control_view(job->control, rank, &view);
        any = rank - job->roster.first >= job->count && lki_control_is_member(job->control, rank)
              && view.state != LKI_RANK_LEFT && view.state != LKI_RANK_DEAD;
    }
    return any;
}

/* Returns the only running worker of all hosts.  Returns job->count if several workers run, or if
 * the only running worker is on another host. */
static uint32_t last_one(const lki_job *job)
{
    uint32_t last = job->count, running = 0;

    for (uint32_t i = 0; i < job->count; i++)
        if (job->workers[i].pid > 0 && job->workers[i].order == 0) {
            last = i;
            running++;
        }
    return running == 1 && !any_elsewhere(job) ? last : job->count;
}

/* Returns a running worker that has nothing left to do but exit, preferably a stopped worker.
 * Returns job->count if there is no such worker. */
static uint32_t late_one(const lki_job *job)
{
    bool          survives = job->options->on_failure == LK_ON_FAILURE_CONTINUE;
    bool          complete = lki_is_complete(job);
    uint32_t      late     = job->count;
    lki_rank_view view;

    for (uint32_t i = 0; i < job->count && job->options->leave_together; i++) {
        if (job->workers[i].pid <= 0 || job->workers[i].order != 0 || lki_is_foreign(job))
            continue;
        lki_control_view(job->control, lki_rank_of_worker(job, i), &view);
        if (!complete && !(survives && view.state == LKI_RANK_LEFT))
            continue;
        late = i;
        if (lki_is_stopped(job->workers[i].pid))
            return late;
    }
    return late;
}

static void end_late(lki_job *job, uint32_t i)
{
    char who[LKI_WHO_BYTES];

    lki_control_who(job->control, lki_rank_of_worker(job, i), who);
    lki_job_note(job, "%s has been stopped (by SIGSTOP or a debugger) for %g s when all was done, "
                 "and is killed", who, lki_timeout_seconds(job));
    job->workers[i].by_us = true;
    job->executor->signal(job, i, SIGKILL);
}

static void say(lki_job *job, uint32_t i)
{
    char who[LKI_WHO_BYTES];
    long pid = (long)job->workers[i].pid;

    lki_control_who(job->control, lki_rank_of_worker(job, i), who);
    lki_job_note(job, "%s has been stopped (by SIGSTOP or a debugger) for %g s, and nobody else is "
                 "left to continue: kill -CONT %ld lets it run, kill -KILL %ld ends the job", who,
                 lki_timeout_seconds(job), pid, pid);
}

void lki_stopped_turn(lki_job *job)
{
    uint32_t i      = late_one(job);
    bool     late   = i < job->count;
    double   now    = lki_seconds(), passed = now - job->alone_seen;
    double   wanted = lki_timeout_seconds(job);
    bool     before = job->alone;

    if (!late)
        i = last_one(job);
    job->alone      = i < job->count;
    job->alone_seen = now;
    if (!job->alone || !lki_is_stopped(job->workers[i].pid)) {
        job->alone_seconds = 0;
        return;
    }
    bool told = job->alone_seconds >= wanted;
    if (before && passed < LKI_ALONE_SECONDS + LATE_SECONDS)
        job->alone_seconds += passed;
    if (told || job->alone_seconds < wanted)
        return;
    if (late)
        end_late(job, i);
    else
        say(job, i);
}

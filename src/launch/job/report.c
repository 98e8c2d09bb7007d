/* report.c -- determines how the workers of a host ended, and describes in one line the failure
 * that caused the other failures.
 *
 * When one worker dies, all workers end within milliseconds, in an arbitrary order.  So workers are
 * ranked first by the reason of their end, and only then by its time:
 *
 *   stopped       did not run while others waited for it: the cause, whatever else happened
 *   failed        by itself: by a signal, a status other than 0, an error of its own
 *   timed out     waited in vain: a cause only if no other worker failed by itself
 *   consequence   received the failure of a peer (LK_EPEER), or was ended by the launcher after
 *                 that or after a second request to stop
 *   left          ended with status 75 after a request to stop
 *   done          ended with status 0
 *
 * The launcher reports the worker of the highest class.  Within a class, it reports the worker that
 * ended first.  If the job continued after a failure, only members of the last group count.  If
 * ranks leave together (leave_together), a worker that is done proves that all are done.  A worker
 * killed while it exits then counts as done.
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch/job/job.h"

enum { EXIT_STOPPED = 75, EXIT_SIGNAL = 128 };

/* The classes in ascending weight.  LOST equals the weight that the rendezvous assigns to the
 * outcome of a lost node. */
typedef enum { DONE, LEFT, CONSEQUENCE, TIMED_OUT, LOST, FAILED, STOPPED } ending;

_Static_assert((int)LOST == (int)LKI_WEIGHT_LOST, "the rendezvous weighs lost nodes like this");

/* Returns true if a worker has left on request.  Workers of several hosts agree to leave, and they
 * may act on the agreement before the request itself reaches this host.  With --on-failure continue
 * a single worker may leave. */
bool lki_left_on_request(const lki_job *job, const lki_worker *worker)
{
    bool asked = job->stop_signal != 0 || job->rendezvous != NULL ||
                 job->options->on_failure == LK_ON_FAILURE_CONTINUE;
    return asked && worker->signal == 0 && worker->status == EXIT_STOPPED;
}

/* Returns true if a worker has seen the end of the job.  Of a worker on another host this launcher
 * knows only that the worker has left its group.  After a request to stop, leaving does not prove
 * the end of the job. */
bool lki_is_complete(const lki_job *job)
{
    bool          survives = job->options->on_failure == LK_ON_FAILURE_CONTINUE;
    bool          there = !survives && job->stop_signal == 0, complete = false;
    lki_rank_view view;

    for (uint32_t i = 0; i < job->count; i++) {
        const lki_worker *worker = &job->workers[i];
        complete = complete || (worker->order != 0 && worker->signal == 0 && worker->status == 0);
    }
    for (uint32_t rank = 0; rank < job->roster.world && there && !complete; rank++) {
        lki_control_view(job->control, rank, &view);
        complete = rank - job->roster.first >= job->count && view.state == LKI_RANK_LEFT;
    }
    return complete && job->options->leave_together;
}

/* Returns true if the worker had reported an error of its own before the launcher ended it. */
static bool had_failed(const lki_worker *worker, const lki_rank_view *view)
{
    return worker->by_us && worker->signal != 0 && view->status != LK_OK
           && view->status != LK_EPEER && view->status != LK_ETIMEOUT;
}

static ending ending_of(const lki_job *job, uint32_t i)
{
    const lki_worker *worker = &job->workers[i];
    lki_rank_view     view;

    lki_control_view(job->control, lki_rank_of_worker(job, i), &view);
    if (worker->was_stopped)
        return STOPPED;
    if (worker->signal == 0 && worker->status == 0)
        return DONE;
    if (worker->signal == SIGKILL && lki_is_complete(job))
        return DONE;
    if (lki_left_on_request(job, worker))
        return LEFT;
    if (had_failed(worker, &view))
        return FAILED;
    if (worker->by_us || view.status == LK_EPEER || (worker->told && view.status == LK_OK))
        return CONSEQUENCE;
    return view.status == LK_ETIMEOUT ? TIMED_OUT : FAILED;
}

/* Appends text to `line`, and truncates the text if the line is full. */
static void say(char *line, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void say(char *line, size_t bytes, const char *format, ...)
{
    size_t  used = strlen(line);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(line + used, bytes - used, format, args);
    va_end(args);
}

static void say_signal(char *line, size_t bytes, int number)
{
    const char *name = sigabbrev_np(number);

    if (name != NULL)
        say(line, bytes, "SIG%s", name);
    else
        say(line, bytes, "signal %d", number);
}

static void describe(const lki_job *job, uint32_t i, ending how, char *line, size_t bytes)
{
    const lki_worker *worker = &job->workers[i];
    lki_rank_view     view;
    char              who[LKI_WHO_BYTES];

    lki_control_view(job->control, lki_rank_of_worker(job, i), &view);
    lki_control_who(job->control, lki_rank_of_worker(job, i), who);
    say(line, bytes, "%s ", who);
    if (how == STOPPED) {
        say(line, bytes, "is stopped (by SIGSTOP or a debugger)");
    } else if (worker->signal != 0 && !had_failed(worker, &view)) {
        say(line, bytes, "was killed by ");
        say_signal(line, bytes, worker->signal);
    } else if (view.status != LK_OK) {
        say(line, bytes, "failed");
    } else {
        say(line, bytes, "exited with status %d", worker->status);
    }
    if (view.noted)
        say(line, bytes, " %s", view.place);
    if (how == STOPPED)
        say(line, bytes, "; others waited for it in vain, and it was killed");
    else if (view.status != LK_OK && view.message[0] != '\0')
        say(line, bytes, ": %s", view.message);
}

void lki_job_describe(const lki_job *job, uint32_t i, char *line, size_t bytes)
{
    line[0] = '\0';
    describe(job, i, ending_of(job, i), line, bytes);
}

void lki_job_lose(const lki_job *job, uint32_t i)
{
    const lki_worker *worker = &job->workers[i];
    uint32_t          rank   = lki_rank_of_worker(job, i);
    char              line[LKI_LOSS_BYTES], who[LKI_WHO_BYTES];
    lki_rank_view     view;

    bool missed = worker->by_us && job->rebuild_killed;
    if (worker->signal == 0 || (worker->by_us && !missed && job->force_signal == 0))
        return; /* the worker was lost for another reason */
    lki_control_view(job->control, rank, &view);
    lki_control_who(job->control, rank, who);
    (void)snprintf(line, sizeof line, "%s ", who);
    if (worker->was_stopped) {
        say(line, sizeof line, "was stopped (by SIGSTOP or a debugger) %s, was waited for in vain "
            "and killed", view.place);
    } else if (missed) {
        say(line, sizeof line, "did not continue with the others %s, and was killed", view.place);
    } else {
        say(line, sizeof line, "was killed by ");
        say_signal(line, sizeof line, worker->signal);
        say(line, sizeof line, " %s", view.place);
    }
    lki_control_lose(job->control, rank, line);
}

/* Returns the worker of the last group with the highest class; of several, the one that ended
 * first.  *how becomes its class. */
static uint32_t most_telling(const lki_job *job, ending *how)
{
    uint32_t best = job->count;

    for (uint32_t i = 0; i < job->count; i++) {
        if (!job->outside && !lki_control_is_member(job->control, lki_rank_of_worker(job, i)))
            continue;
        ending its     = ending_of(job, i);
        bool   earlier = best < job->count && job->workers[i].order < job->workers[best].order;
        if (best == job->count || its > *how || (its == *how && earlier)) {
            best = i;
            *how = its;
        }
    }
    return best;
}

bool lki_was_lost(const lki_job *job, uint32_t weight, int signal)
{
    return job->stop_signal == 0 &&
           (weight == STOPPED || weight == LOST || weight == TIMED_OUT ||
            weight == CONSEQUENCE || (weight == FAILED && signal != 0));
}

uint32_t lki_judge(const lki_job *job, lk_launch_result *result)
{
    ending            how    = DONE;
    uint32_t          i      = most_telling(job, &how);
    const lki_worker *worker = &job->workers[i];

    *result = (lk_launch_result){.rank = lki_rank_of_worker(job, i), .pid = (int32_t)worker->pid};
    if (how == DONE)
        return how;
    if (how == LEFT) {
        result->exit_code = EXIT_STOPPED;
        return how;
    }
    lki_rank_view view;
    lki_control_view(job->control, result->rank, &view);
    result->failed    = true;
    result->signal    = had_failed(worker, &view) ? 0 : worker->signal;
    result->exit_code = had_failed(worker, &view) ? EXIT_FAILURE
                        : worker->signal != 0     ? EXIT_SIGNAL + worker->signal
                                                  : worker->status;
    if (how == CONSEQUENCE && job->force_signal != 0) {
        result->exit_code = EXIT_SIGNAL + job->force_signal;
        say(result->cause, sizeof result->cause, job->unheeded || job->outside ? "" : "a second ");
        say_signal(result->cause, sizeof result->cause, job->force_signal);
        say(result->cause, sizeof result->cause, job->outside
            ? " ended the workers, which had not entered the job" : job->unheeded
            ? " ended the workers, which do not look at lk_stop_requested()"
            : " ended the workers before they had saved");
        return how;
    }
    result->lost = lki_was_lost(job, how, worker->signal);
    describe(job, i, how, result->cause, sizeof result->cause);
    return how;
}

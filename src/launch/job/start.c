/* start.c -- starts the workers of a host.
 *
 * The launcher runs one fork and exec per worker, and starts all children before it waits for any.
 * Every child inherits one pipe, which exec closes.  End of file on the pipe means that all
 * programs run, and a message on it identifies the child whose exec failed.  An exec can hang on a
 * file system that does not answer, so the wait has the job's deadline.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/pidfd.h"
#include "launch/job/cores.h"
#include "launch/job/executor.h"
#include "launch/job/spawn.h"

enum { EXIT_NOT_FOUND = 127, EXIT_NOT_RUN = 126 };

static void close_if_open(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

lk_status lki_pipe_open(int ends[2])
{
    ends[0] = ends[1] = -1;
    if (pipe2(ends, O_CLOEXEC) == 0)
        return LK_OK;
    return lk_fail(LK_EIO, "cannot make a pipe: %s%s", strerror(errno), lki_remedy(errno));
}

/* Opens pipes for the worker's output; `plan` receives the worker's ends. */
static lk_status connect_output(lki_worker *worker, lki_spawn_plan *plan)
{
    char prefix[16];

    (void)snprintf(prefix, sizeof prefix, "[%u] ", plan->rank);
    for (int s = 0; s < 2; s++) {
        int ends[2];
        LK_TRY(lki_pipe_open(ends));
        plan->standard[1 + s] = ends[1];
        (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
        LK_TRY(lki_stream_init(&worker->streams[s], ends[0], prefix));
    }
    return LK_OK;
}

static lk_status start_planned(lki_job *job, lki_spawn_plan *plan, lki_worker_facts *facts)
{
    lki_worker *worker      = &job->workers[plan->rank - job->roster.first];
    char      **environment = NULL;

    LK_TRY(lki_control_socket(job->control, plan->rank, &facts->socket_fd, &worker->socket));
    job->executor->keep_socket(job, plan->rank - job->roster.first);
    plan->record = job->executor->birth(job, plan->rank - job->roster.first);
    if (job->options->prefix_output)
        LK_TRY(connect_output(worker, plan));
    LK_TRY(lki_environment_new(&environment, environ, facts));
    plan->environment = environment;
    plan->keep[0]     = facts->control_fd;
    plan->keep[1]     = facts->socket_fd;
    plan->keep[2]     = facts->key_fd;
    lk_status st      = lki_spawn(&worker->pid, plan);
    lki_free(environment);
    LK_TRY(st);
    job->started++;
    lki_control_started(job->control, plan->rank, (int32_t)worker->pid);
    worker->pidfd = lki_pidfd_open(worker->pid); /* always close-on-exec */
    if (worker->pidfd < 0)
        return lk_fail(LK_EUNSUPPORTED, "cannot watch worker %u: pidfd_open: %s%s", plan->rank,
                       strerror(errno), lki_remedy(errno));
    return LK_OK;
}

/* Starts a worker.  Rank 0 inherits the launcher's standard input.  All other ranks have no
 * standard input, because several readers would receive parts of the input in an arbitrary
 * order. */
static lk_status start_worker(lki_job *job, uint32_t i, const lki_worker_facts *common, int nothing,
                              int report, const lki_cores *cores)
{
    uint32_t         rank = lki_rank_of_worker(job, i);
    lki_spawn_plan   plan = {.rank     = rank,
                             .argv     = job->options->argv,
                             .standard = {rank == 0 ? -1 : nothing, -1, -1},
                             .report   = report,
                             .mask     = job->signals.mask};
    lki_worker_facts facts = *common;

    facts.rank       = rank;
    facts.local_rank = i;
    facts.socket_fd  = -1;
    plan.bound       = lki_cores_share(&plan.cores, cores, i, job->count,
                                       job->options->bind);
    lk_status st = start_planned(job, &plan, &facts);

    close_if_open(&facts.socket_fd);
    close_if_open(&plan.standard[1]);
    close_if_open(&plan.standard[2]);
    return st;
}

/* Returns true if a child still has the pipe that exec closes.  `pipe`: the pipe's link in
 * /proc. */
static bool holds_pipe(pid_t pid, int fd, const char *pipe)
{
    char    path[64], held[64];
    (void)snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)pid, fd);
    ssize_t length = readlink(path, held, sizeof held - 1);
    held[length > 0 ? length : 0] = '\0';
    return strcmp(held, pipe) == 0;
}

/* Returns an error that names the first child whose exec has not finished.  Until its exec, a child
 * has the descriptor `theirs` open. */
static lk_status exec_late(const lki_job *job, int report, int theirs, uint32_t timeout_ms)
{
    char     path[64], pipe[64];
    uint32_t i = 0;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", report);
    ssize_t length = readlink(path, pipe, sizeof pipe - 1);
    pipe[length > 0 ? length : 0] = '\0';
    while (i + 1 < job->count && !holds_pipe(job->workers[i].pid, theirs, pipe))
        i++;
    return lk_fail(LK_ETIMEOUT,
                   "rank %u (pid %ld) has not become %s within %g s: it is stopped, or the file "
                   "system that holds the program does not answer",
                   lki_rank_of_worker(job, i), (long)job->workers[i].pid, job->options->argv[0],
                   (double)timeout_ms / 1000);
}

/* Waits until the pipe `report` is readable or closed by all children.  Serves the other nodes
 * during the wait. */
static lk_status await_report(lki_job *job, int report, int theirs, uint32_t timeout_ms)
{
    struct pollfd polled[2] = {{.fd = report, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
    double        end       = lki_seconds() + timeout_ms * 1e-3, left = timeout_ms;

    if (job->rendezvous != NULL)
        polled[1].fd = lki_rendezvous_fd(job->rendezvous);
    while (polled[0].revents == 0) {
        if (left <= 0)
            return exec_late(job, report, theirs, timeout_ms);
        if (poll(polled, 2, (int)(left < INT_MAX ? left + 1 : INT_MAX)) < 0)
            polled[0].revents = polled[1].revents = 0;
        if (polled[1].revents != 0)
            LK_TRY(lki_nodes_serve(job));
        left = (end - lki_seconds()) * 1e3;
    }
    return LK_OK;
}

/* Waits until every child has executed the program.  The first failed exec fails the job. `theirs`
 * is the descriptor number of the pipe's write end in the children. */
static lk_status await_exec(lki_job *job, int report, int theirs, lk_launch_result *result)
{
    uint32_t timeout_ms = job->options->timeout_ms > 0 ? job->options->timeout_ms : LKI_TIMEOUT_MS;
    const char      *program = job->options->argv[0];
    lki_exec_failure failure;
    ssize_t          got;

    LK_TRY(await_report(job, report, theirs, timeout_ms));
    do
        got = read(report, &failure, sizeof failure);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof failure)
        return LK_OK;
    result->failed    = true;
    result->rank      = failure.rank;
    result->pid       = (int32_t)job->workers[failure.rank - job->roster.first].pid;
    result->exit_code = failure.error == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_RUN;
    (void)lk_fail(LK_EINVAL, "cannot run %s: %s%s", program, strerror(failure.error),
                  failure.error != ENOENT            ? ""
                  : strchr(program, '/') != NULL     ? "; no such path from here"
                                                     : "; it is in no directory of PATH (for one "
                                                       "in this directory write ./ before it)");
    (void)snprintf(result->cause, sizeof result->cause, "%s", lk_error_last()->message);
    return LK_EINVAL;
}

/* Returns the facts that are equal for all workers of this node. */
static lki_worker_facts common_facts(lki_job *job)
{
    lki_worker_facts facts = {.size       = job->roster.world,
                              .local_size = job->count,
                              .address    = "127.0.0.1",
                              .control_fd = lki_control_fd(job->control),
                              .key_fd     = job->key_fd,
                              .enters     = job->outside,
                              .continues  = job->options->on_failure == LK_ON_FAILURE_CONTINUE,
                              .timeout_ms = job->options->timeout_ms,
                              .flight     = job->flight};
    if (job->rendezvous == NULL)
        facts.port = lki_port_free();
    else
        lki_nodes_describe(job, &facts);
    return facts;
}

lk_status lki_job_start(lki_job *job, lk_launch_result *result)
{
    lki_worker_facts common  = common_facts(job);
    int              nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    int              report[2];
    lki_cores        cores;
    lk_status        st = lki_pipe_open(report);

    lki_cores_find(&cores, false);
    for (uint32_t i = 0; i < job->count && st == LK_OK; i++) {
        job->workers[i].enters = job->outside;
        st = start_worker(job, i, &common, nothing, report[1], &cores);
    }
    int theirs = report[1];
    close_if_open(&report[1]);
    if (st == LK_OK)
        st = await_exec(job, report[0], theirs, result);
    close_if_open(&report[0]);
    close_if_open(&nothing);
    return st;
}

lk_status lki_job_start_again(lki_job *job, uint32_t i)
{
    lki_worker      *worker  = &job->workers[i];
    lki_worker_facts common  = common_facts(job);
    int              nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    lki_cores        cores;

    lki_cores_find(&cores, false);
    common.enters = true;
    *worker       = (lki_worker){.pidfd = -1, .socket = -1, .enters = true};
    worker->streams[0].from = worker->streams[1].from = -1;
    lki_control_revive(job->control, lki_rank_of_worker(job, i));
    lk_status st = start_worker(job, i, &common, nothing, -1, &cores);
    close_if_open(&nothing);
    return st;
}

/* launch.c -- lk_launch(): starts the workers, and combines their ends into one result.
 *
 * To start a job, the launcher runs one fork and exec per worker.  The launcher starts all children
 * before it waits for any.  Every child inherits one pipe, which exec closes.  End of file on the
 * pipe means that all programs run, and a message on it identifies the child whose exec failed.  An
 * exec can hang on a file system that does not answer, so the wait has the job's deadline.
 *
 * With several nodes the launchers first connect to each other (nodes.c), because the ranks are not
 * known before.  The result then combines the results of all nodes.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/options.h"
#include "comm/flight.h"
#include "launch/blows.h"
#include "launch/cores.h"
#include "launch/keeper.h"
#include "launch/nodes.h"
#include "launch/spawn.h"

enum { EXIT_USAGE = 2, EXIT_NOT_FOUND = 127, EXIT_NOT_RUN = 126, EXIT_SIGNAL = 128 };

static void close_if_open(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

/* ---- The job's memory -------------------------------------------------------------------- */

/* Reserves descriptors 0, 1 and 2, which the children replace. */
static void open_standard(void)
{
    int fd = open("/dev/null", O_RDWR);

    while (fd >= 0 && fd < 3)
        fd = open("/dev/null", O_RDWR);
    close_if_open(&fd);
}

/* Makes the flight directory an absolute path, because workers may change their directory before
 * they join. */
static lk_status flight_open(lki_job *job)
{
    const char *directory = job->options->flight;

    if (directory == NULL)
        return LK_OK;
    LK_TRY(lki_flight_prepare(directory, job->roster));
    job->flight = realpath(directory, NULL);
    return job->flight != NULL ? LK_OK
                               : lk_fail(LK_EIO, "cannot find the flight directory '%s': %s",
                                         directory, strerror(errno));
}

static lk_status job_open(lki_job *job, const lk_launch_options *options, const lki_host *host)
{
    *job = (lki_job){.options = options,
                     .host    = host,
                     .count   = options->workers,
                     .roster  = lki_roster_alone(options->workers),
                     .key_fd  = -1,
                     .signals = {.fd = -1}};
    open_standard();
    LK_TRY(LKI_NEW(&job->workers, job->count, "the workers' records"));
    for (uint32_t i = 0; i < job->count; i++) {
        lki_worker *worker = &job->workers[i];
        worker->pidfd = worker->socket = -1;
        worker->streams[0].from = worker->streams[1].from = -1;
    }
    LK_TRY(LKI_NEW(&job->polled, LKI_POLLED(job->count), "the launcher's descriptors"));
    LK_TRY(lki_blows_open(job));
    for (int s = 0; s < 2; s++)
        LK_TRY(lki_sink_init(&job->sinks[s], s == 0 ? STDOUT_FILENO : STDERR_FILENO));
    LK_TRY(lki_signals_open(&job->signals));
    return options->nodes > 1 ? lki_nodes_meet(job) : LK_OK;
}

static void note(void *context, const char *text)
{
    lki_job_note(context, "%s", text);
}

/* Allocates the memory whose size depends on the roster. */
static lk_status memory_open(lki_job *job)
{
    LK_TRY(flight_open(job));
    LK_TRY(lki_control_create(&job->control, job->roster));
    lki_control_notes_to(job->control, note, job);
    if (job->rendezvous == NULL)
        return LK_OK;
    LK_TRY(lki_nodes_prepare(job));
    lki_outside_open(job);
    return LK_OK;
}

/* Kills all remaining workers.  Used when no orderly end is possible. */
static void job_kill(lki_job *job)
{
    for (uint32_t i = 0; i < job->count; i++) {
        lki_worker *worker = &job->workers[i];
        if (worker->pid <= 0 || worker->order != 0)
            continue;
        (void)kill(worker->pid, SIGKILL);
        while (waitpid(worker->pid, NULL, 0) < 0 && errno == EINTR)
            continue;
        worker->order = ++job->ended;
    }
}

static void job_close(lki_job *job)
{
    if (job->workers != NULL)
        job_kill(job);
    for (uint32_t i = 0; i < job->count && job->workers != NULL; i++) {
        close_if_open(&job->workers[i].pidfd);
        for (int s = 0; s < 2; s++)
            lki_stream_deinit(&job->workers[i].streams[s]);
    }
    for (int s = 0; s < 2; s++)
        lki_sink_deinit(&job->sinks[s]);
    lki_nodes_close(job);
    lki_signals_close(&job->signals);
    lki_control_free(job->control);
    close_if_open(&job->key_fd);
    free(job->flight);
    lki_blows_close(job);
    lki_free(job->polled);
    lki_free(job->workers);
}

/* ---- Starting the workers ---------------------------------------------------------------- */

lk_status lki_pipe_open(int ends[2])
{
    ends[0] = ends[1] = -1;
    if (pipe2(ends, O_CLOEXEC) == 0)
        return LK_OK;
    return lk_fail(LK_EIO, "cannot make a pipe: %s; ulimit -n allows how many descriptors there "
                           "are, and a worker needs four", strerror(errno));
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
    lki_keep_socket(job, plan->rank - job->roster.first);
    plan->record = lki_birth_of(job, plan->rank - job->roster.first);
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
    worker->pidfd = pidfd_open(worker->pid, 0); /* always close-on-exec */
    if (worker->pidfd < 0)
        return lk_fail(LK_EUNSUPPORTED, "cannot watch worker %u: pidfd_open: %s; Linux 5.3 or "
                                        "newer is needed", plan->rank, strerror(errno));
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

/* Returns an error that names the first child whose exec has not finished, which the open
 * descriptor `theirs` shows. */
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
                              .timeout_ms = job->options->timeout_ms,
                              .flight     = job->flight};
    if (job->rendezvous == NULL)
        facts.port = lki_port_free();
    else
        lki_nodes_describe(job, &facts);
    return facts;
}

static lk_status start_all(lki_job *job, lk_launch_result *result)
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

/* ---- The public function ----------------------------------------------------------------- */

static lk_status check(const lk_launch_options *options)
{
    if (options->argv == NULL || options->argv[0] == NULL || options->argv[0][0] == '\0')
        return lk_fail(LK_EINVAL, "no program to run");
    if (options->workers == 0 || options->workers > LKI_RANKS_MAX)
        return lk_fail(LK_EINVAL, "%u workers: between 1 and %d are possible on one host",
                       options->workers, LKI_RANKS_MAX);
    if (options->hosts > options->workers || (options->hosts > 1 && options->nodes > 1))
        return lk_fail(LK_EINVAL, "%u emulated hosts for %u workers%s: each needs a worker",
                       options->hosts, options->workers,
                       options->nodes > 1 ? " of a job on real ones" : "");
    if (options->replacements > 0 && (options->prefix_output ||
                                      options->on_failure != LK_ON_FAILURE_CONTINUE))
        return lk_fail(LK_EINVAL, "workers that are lost are replaced where the others go on, and "
                                  "without prefixes to what they print");
    if (options->hosts_least > 0
        && !(options->host_returns && options->on_failure == LK_ON_FAILURE_CONTINUE))
        return lk_fail(LK_EINVAL, "a job can begin with %u hosts and have more later where it lets "
                                  "them enter, as lockstep train does: here all have to be there "
                                  "from the beginning", options->hosts_least);
    if (options->nodes > 1 && options->rendezvous == NULL)
        return lk_fail(LK_EINVAL, "%u nodes need a rendezvous, tcp://HOST:PORT with an address of "
                                  "node 0", options->nodes);
    if (options->nodes > 1 && (options->job_key == NULL) != options->insecure)
        return lk_fail(LK_EINVAL, "several nodes need either a job key or to be insecure");
    return options->nodes > 1 ? lki_rendezvous_check(options->rendezvous) : LK_OK;
}

static lk_status run(lki_job *job, lk_launch_result *result)
{
    uint32_t  weight = 0;
    lk_status st     = memory_open(job);

    if (st == LK_OK)
        st = start_all(job, result);
    if (st == LK_OK && lki_keeper_wanted(job)) {
        st = lki_keep(job, &weight, result);
    } else if (st == LK_OK) {
        st = lki_watch(job);
        if (st == LK_OK)
            weight = lki_judge(job, result);
    }
    lk_error why = *lk_error_last();
    lki_keeper_close(job);
    if (st != LK_OK) {
        job_kill(job);
        st = lki_fail_again(&why);
    }
    return job->rendezvous != NULL ? lki_nodes_finish(job, st, weight, result) : st;
}

lk_status lki_launch_host(const lk_launch_options *options, const lki_host *host,
                          lk_launch_result *result)
{
    lki_job job;

    *result      = (lk_launch_result){.exit_code = 1};
    lk_status st = job_open(&job, options, host);
    if (st != LK_OK && job.stop_signal != 0)
        result->exit_code = EXIT_SIGNAL + job.stop_signal;
    if (st == LK_OK)
        st = run(&job, result);
    lk_error why = *lk_error_last();
    job_close(&job);
    return st == LK_OK ? LK_OK : lki_fail_again(&why);
}

lk_status lk_launch(const lk_launch_options *options, lk_launch_result *result)
{
    static const lki_host here = {.listener = -1, .orders = -1};
    lk_launch_options     mine;

    *result = (lk_launch_result){.exit_code = EXIT_USAGE};
    LK_TRY(lki_options_copy(&mine, sizeof mine, options, "lk_launch_options"));
    LK_TRY(check(&mine));
    result->exit_code = 1;
    return mine.hosts > 1 ? lki_launch_hosts(&mine, result)
                          : lki_launch_host(&mine, &here, result);
}

/* launch.c -- lk_launch(): starts the workers, and combines their ends into one result.
 *
 * With several nodes the launchers first connect to each other (nodes.c), because the ranks are not
 * known before.  The result then combines the results of all nodes.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/options.h"
#include "comm/flight.h"
#include "launch/job/faults.h"
#include "launch/job/forward.h"
#include "launch/keeper/keeper.h"

enum { EXIT_USAGE = 2, EXIT_SIGNAL = 128 };

static void close_if_open(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

/* ---- The job's memory -------------------------------------------------------------------- */

/* Opens descriptors 0, 1 and 2, which the children replace, if they are closed or only reserved
 * (O_PATH).  Writing to a standard output that was closed stays an error. */
static void open_standard(void)
{
    for (int fd = 0; fd < 3; fd++) {
        const int flags = fcntl(fd, F_GETFL);
        if (flags >= 0 && (flags & O_PATH) == 0)
            continue;
        int null = open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR);
        if (null >= 0 && null != fd) {
            (void)dup2(null, fd);
            (void)close(null);
        }
    }
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
    *job = (lki_job){.options  = options,
                     .host     = host,
                     .count    = options->workers,
                     .roster   = lki_roster_alone(options->workers),
                     .executor = &lki_direct_executor,
                     .key_fd   = -1,
                     .signals  = {.fd = -1}};
    open_standard();
    LK_TRY(LKI_NEW(&job->workers, job->count, "the workers' records"));
    for (uint32_t i = 0; i < job->count; i++) {
        lki_worker *worker = &job->workers[i];
        worker->pidfd = worker->socket = -1;
        worker->streams[0].from = worker->streams[1].from = -1;
    }
    LK_TRY(LKI_NEW(&job->polled, LKI_POLLED(job->count), "the launcher's descriptors"));
    LK_TRY(lki_faults_open(job));
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
    lki_late_host_open(job);
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
    lki_faults_close(job);
    lki_free(job->polled);
    lki_free(job->workers);
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
        return lk_fail(LK_EINVAL, "workers that are lost are replaced where the others continue, "
                                  "and without prefixes to what they print");
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

/* Writes the rest of the output.  Output that was lost is the cause of the end of workers that
 * could not print, so it takes the place of that result. */
static lk_status finish_output(lki_job *job, lk_status st, lk_launch_result *result)
{
    lk_error  why     = *lk_error_last();
    lk_status written = lki_forward_finish(job);

    if (st != LK_OK)
        return lki_fail_again(&why);
    if (written != LK_OK)
        result->exit_code = EXIT_FAILURE;
    return written;
}

static lk_status run(lki_job *job, lk_launch_result *result)
{
    uint32_t  weight = 0;
    lk_status st     = memory_open(job);

    if (st == LK_OK)
        st = lki_job_start(job, result);
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
    if (job->rendezvous != NULL)
        st = lki_nodes_finish(job, st, weight, result);
    return finish_output(job, st, result);
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

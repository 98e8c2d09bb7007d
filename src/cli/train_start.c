/* train_start.c -- runs `lockstep train` after its options were read.
 *
 * The process that the user started checks all options, starts the workers as copies of itself with
 * the same arguments, and watches them.  A worker detects that it was launched, joins the job and
 * trains.  So an error is reported once, before any worker starts, and workers need no
 * configuration except the command line.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/log_pipe.h"
#include "cli/record.h"
#include "cli/settings.h"
#include "cli/train.h"
#include "cli/words.h"
#include "cli/workers.h"
#include "lockstep/launch.h"
#include "lockstep/plan.h"

static int exit_code(lk_status status)
{
    if (status == LK_OK)
        return 0;
    if (status == LK_ENONFINITE)
        return LKI_EXIT_NONFINITE;
    return status == LK_ESTOPPED ? LKI_EXIT_STOPPED : LKI_EXIT_FAILURE;
}

static int report(const train_options *options, lk_status status)
{
    if (status != LK_OK)
        lki_print_error(options->command->name);
    return exit_code(status);
}

/* Returns true if SIGUSR1 is pending.  Batch systems announce the end of a job's time with this
 * signal.  Every thread of a worker blocks the signal, so that it stays pending. */
static bool is_warned(void)
{
    sigset_t waiting;
    return sigpending(&waiting) == 0 && sigismember(&waiting, SIGUSR1) == 1;
}

static bool launcher_asks(void *comm)
{
    return is_warned() || lk_stop_requested(comm);
}

/* The signal thread in threads mode.  All threads block the signals, and this thread waits for
 * them.  The first signal asks the run to save and end, and the second signal ends the run at once.
 * `timeout` signals a process and then its group, so a signal shortly after the first one does not
 * count. */
typedef struct {
    const char *command;
    sigset_t    set;
    atomic_bool asked, over; /* over: the thread must end */
} listener;

/* Waits for a signal as sigwaitinfo() does, also beyond other signals. */
static int wait_for(const sigset_t *set, siginfo_t *info)
{
    int number;
    do
        number = sigwaitinfo(set, info);
    while (number < 0 && errno == EINTR);
    return number;
}

static void *listen(void *argument)
{
    const struct timespec moment = { 0, 100000000 }, none = { 0, 0 };
    listener             *self = argument;
    siginfo_t             info;
    int                   number;

    while ((number = wait_for(&self->set, &info)) > 0 && !atomic_load(&self->over)) {
        if (atomic_exchange(&self->asked, true)) {
            fprintf(stderr,
                    "lockstep %s: a second SIG%s ended the workers before they had saved\n",
                    self->command, sigabbrev_np(number));
            _exit(128 + number);
        }
        if (info.si_code == SI_KERNEL) /* from a terminal */
            fprintf(stderr, "%slockstep %s: note: the workers are asked to save and end; Ctrl-C "
                            "again ends them at once\n", lki_line_start(self->command),
                    self->command);
        (void)nanosleep(&moment, NULL);
        while (sigtimedwait(&self->set, NULL, &none) > 0)
            continue;
        if (atomic_load(&self->over))
            break;
    }
    return NULL;
}

static bool was_asked(void *context)
{
    return is_warned() || atomic_load(&((listener *)context)->asked);
}

static bool is_to_leave(void *context)
{
    (void)context;
    return lk_leave_requested();
}

/* Prints the result on rank 0 before any rank leaves.  So every rank that leaves knows that the
 * result was printed. */
static lk_status print_done(void *context, const lk_train_result *result)
{
    train_options *options = context;
    options->result        = *result;
    options->print(options);
    if (fflush(stdout) == 0)
        return LK_OK;
    perror("lockstep: writing to standard output");
    clearerr(stdout); /* perror() has reported the error, and main() must not report it again */
    return LK_EIO;
}

static void write_record(void *context)
{
    lki_record_write(context);
}

/* Runs one rank.  A failure is sent with its reason to the other ranks and to the launcher, and the
 * launcher prints the reason. */
static lk_status work(lk_comm *comm, void *context)
{
    train_options  *options = context;
    lk_train_config config  = options->config;
    lk_train_result result  = { .steps = 0 };

    config.calls.done         = print_done;
    config.calls.done_context = options;
    if (options->records) {
        config.calls.begun         = write_record;
        config.calls.begun_context = options;
    }
    if (config.calls.stop == NULL && comm != NULL) {
        config.calls.stop         = launcher_asks;
        config.calls.stop_context = comm;
    }
    lk_status status = lk_train_run(comm, &config, &result);
    if (result.speaks)
        options->result = result;
    return status;
}

lk_status lki_train_work(lk_comm *comm, train_options *options)
{
    return work(comm, options);
}

/* Prints why the run was interrupted, and after which step. */
static void print_stop(const train_options *options, lk_status status)
{
    if (status == LK_ESTOPPED)
        lki_print_error(options->command->name);
}

/* Merges the traces that the ranks have written, however the run ended.  With several machines,
 * each machine has one file.  `launcher`: uses only the parts of its ranks; 0 = all parts. */
static int merge_trace(const train_options *options, uint32_t first, uint32_t count,
                       uint32_t launcher, int exit)
{
    const char *path = options->config.trace;
    if (path == NULL || lk_trace_merge(path, first, count, launcher) == LK_OK)
        return exit;
    lki_print_error(options->command->name);
    return exit != 0 ? exit : LKI_EXIT_FAILURE;
}

/* Merges the remaining parts of a trace after all workers of this host have ended, if another
 * launcher started the workers and they did not merge the parts. */
static void merge_what_is_left(void *options, uint32_t first, uint32_t count)
{
    (void)merge_trace(options, first, count, 0, 0);
}

/* Returns true if this worker merges the traces of its host.  (Lockstep's launcher merges them
 * itself.)  All ranks call this function when their parts are complete. */
static bool merges(const train_options *options, lk_comm *comm)
{
    return options->config.trace != NULL && lk_barrier(comm) == LK_OK &&
           lk_comm_local_rank(comm, lk_comm_rank(comm)) == 0;
}

static lk_status join(void *context, lk_comm **out)
{
    train_options        *options = context;
    const lk_join_options how     = { .struct_size   = sizeof(lk_join_options),
                                      .timeout_ms    = options->config.timeout_ms,
                                      .flight        = options->flight,
                                      .tuning        = options->tuning,
                                      .ended         = merge_what_is_left,
                                      .ended_context = options,
                                      .leaves = options->on_failure == LK_ON_FAILURE_CONTINUE,
                                      .mpi    = options->by_mpi ? LK_MPI_ON : LK_MPI_OFF };
    lk_status status = lki_join_workers(out, &how);
    if (status == LK_OK)
        lki_name_worker(lk_comm_world_rank(*out, lk_comm_rank(*out)));
    return status;
}

/* Sets the options of a run that continues after losses. */
static void survive(train_options *options)
{
    options->config.elastic.survives = options->on_failure == LK_ON_FAILURE_CONTINUE;
    options->config.calls.leave      = is_to_leave;
}

/* Returns the number of ranks of the job as Lockstep's launcher counts them: including hosts that
 * have not joined yet. */
static uint32_t world_size(void)
{
    const char *world = getenv("WORLD_SIZE");
    return world == NULL ? 0 : (uint32_t)strtoul(world, NULL, 10);
}

/* Runs a worker that replaces a lost one.  The run that the worker enters is already using the
 * checkpoint directory. */
static int run_late_worker(train_options *options)
{
    options->config.workers             = world_size();
    options->config.workers_here        = options->config.workers;
    options->config.files_elsewhere     = true;
    options->config.trace               = NULL;
    options->config.calls.enter         = join;
    options->config.calls.enter_context = options;
    survive(options);
    lk_status status                = lk_train_check(&options->config);
    options->config.files_elsewhere = false;
    if (status == LK_OK)
        status = work(NULL, options);
    if (options->result.speaks)
        print_stop(options, status);
    (void)fflush(stdout);
    bool said = status == LK_EPEER || status == LK_ETIMEOUT || status == LK_ESTOPPED;
    return said ? exit_code(status) : report(options, status);
}

/* Makes all ranks resume from the newest checkpoint if any host was restarted, unless it is still
 * one that --resume=STEP leaves behind.  The command on another host may be new and not aware of
 * the restart. */
static lk_status start_alike(lk_comm *comm, train_options *options)
{
    uint32_t  again  = lki_started_again();
    lk_status status = LK_OK;
    if (lk_comm_hosts(comm) > 1)
        status = lk_all_reduce(comm, &again, &again, 1, LK_U32, LK_MAX);
    if (again == LKI_AGAIN_NEWEST) {
        options->config.checkpoint.resume          = true;
        options->config.checkpoint.resume_required = false;
        options->config.checkpoint.resume_step     = -1;
    }
    return status;
}

/* Prints a note that names the given options that only Lockstep's launcher follows. */
static void note_idle_options(const train_options *options)
{
    static const char *const names[]  = { "on-failure", "restart",     "hosts",
                                          "chaos",      "worker-mode", "bind" };
    char                     list[96] = "";
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (lki_is_given(options, names[i]))
            (void)snprintf(list + strlen(list), sizeof list - strlen(list), "%s--%s",
                           list[0] != '\0' ? ", " : "", names[i]);
    if (list[0] != '\0')
        fprintf(stderr, "lockstep %s: note: another launcher has started the workers, so these "
                        "options have no effect: %s\n", options->command->name, list);
}

static int run_worker(train_options *options)
{
    lk_comm  *comm   = NULL;
    lk_status status = join(options, &comm);
    /* Lockstep's launcher reports failures of peers once for all workers; other launchers do
     * not. */
    bool silent = getenv("LOCKSTEP_CONTROL_FD") != NULL;
    if (silent && (status == LK_EPEER || status == LK_ETIMEOUT))
        return exit_code(status);
    if (status != LK_OK) {
        (void)report(options, status);
        return lki_exit_unjoined(status);
    }

    uint32_t rank = lk_comm_rank(comm), host = lk_comm_host(comm, rank);
    options->config.workers         = silent ? world_size() : lk_comm_size(comm);
    options->config.workers_here    = lk_comm_local_size(comm, host);
    options->config.files_elsewhere = host != 0;
    options->config.pin             = lki_bind_of(options->nodes.bind) == LK_BIND_THREADS;
    options->config.outputs.log_has_reader = lki_log_pipe_is_held();
    options->records                = true;
    if (!silent && rank == 0)
        note_idle_options(options);
    survive(options);
    status = start_alike(comm, options);
    if (status == LK_OK)
        status = lk_train_check(&options->config);
    if (status != LK_OK)
        lk_comm_abort(comm);
    else
        status = options->run != NULL ? options->run(comm, options) : work(comm, options);
    if (options->result.speaks)
        print_stop(options, status);
    if (!silent && status != LK_ESTOPPED)
        (void)report(options, status);
    (void)fflush(stdout);
    bool here = !silent && (status == LK_OK || status == LK_ESTOPPED) && merges(options, comm);
    int exit = here ? merge_trace(options, rank, options->config.workers_here, 0,
                                  exit_code(status))
                    : exit_code(status);
    lk_comm_free(comm); /* under MPI, after a signal, the launcher may end this process here */
    return exit;
}

static int run_threads(train_options *options)
{
    options->records = true;
    listener  ear = { .command = options->command->name };
    pthread_t thread;
    (void)sigemptyset(&ear.set);
    (void)sigaddset(&ear.set, SIGINT);
    (void)sigaddset(&ear.set, SIGTERM);
    (void)pthread_sigmask(SIG_BLOCK, &ear.set, NULL);
    int error = pthread_create(&thread, NULL, listen, &ear);
    if (error != 0) {
        fprintf(stderr, "lockstep %s: cannot start a thread: %s\n", options->command->name,
                strerror(error));
        return LKI_EXIT_FAILURE;
    }
    options->config.calls.stop         = was_asked;
    options->config.calls.stop_context = &ear;

    const lk_comm_options how = { .struct_size = sizeof(lk_comm_options),
                                  .timeout_ms  = options->config.timeout_ms,
                                  .flight      = options->flight };
    lk_status status = lk_launch_threads(options->config.workers, &how, work, options);
    atomic_store(&ear.over, true);
    (void)pthread_kill(thread, SIGINT);
    (void)pthread_join(thread, NULL);
    print_stop(options, status);
    return status == LK_ESTOPPED ? LKI_EXIT_STOPPED : report(options, status);
}

static int refuse(const train_options *options, const char *why)
{
    return lki_usage_error_of(options->command, &options->file, "%s", why);
}

/* Starts the workers, again and again with --restart. */
static int start_workers(const train_options *options, char **argv, lk_launch_options how)
{
    const char *here = options->config.files_elsewhere ? NULL : options->config.checkpoint.folder;
    const char *name = options->command->name;
    int64_t     from = options->config.checkpoint.resume ? options->config.checkpoint.resume_step
                                                         : -1;
    return options->restart == 0
               ? lki_start_workers(name, argv, how, here, from)
               : lki_keep_workers(name, argv, how, here, from, options->restart);
}

/* Prints a reason as a usage error, with the option that implied --on-failure continue. */
static int refuse_going_on(const train_options *options, const char *why)
{
    return lki_usage_error_of(options->command, &options->file, "%s%s", why,
                              options->config.elastic.workers_least > 0
                                  ? "; --workers MIN:MAX means --on-failure continue"
                              : lki_nodes_least(&options->nodes) > 0
                                  ? "; --nnodes MIN:MAX means --on-failure continue"
                                  : "");
}

/* Returns true if a standard stream is closed, for which main() has reserved the descriptor. */
static bool is_closed(int fd)
{
    const int flags = fcntl(fd, F_GETFL);
    return flags < 0 || (flags & O_PATH) != 0;
}

/* Returns true if rank 0 is on this host and would read standard input, which is closed. */
static bool lacks_input(const train_options *options)
{
    const char *data = options->config.data.source;
    return !options->config.files_elsewhere && is_closed(STDIN_FILENO) &&
           (strcmp(data, "stream:-") == 0 || strncmp(data, "stream:-?", 9) == 0);
}

/* Copies argv, and inserts the number of threads.  Returns NULL if out of memory. */
static char **with_threads(train_options *options, char **argv)
{
    size_t count = 0;
    while (argv[count] != NULL)
        count++;
    char **copy = calloc(count + 2, sizeof *copy);
    if (copy == NULL)
        return NULL;
    bool more = options->threads_argument[0] != '\0';
    (void)(more ? setenv(LKI_THREADS_CHOSEN, "1", 1) : unsetenv(LKI_THREADS_CHOSEN));
    copy[0]   = argv[0];
    if (more)
        copy[1] = options->threads_argument;
    memcpy(copy + 1 + more, argv + 1, (count - 1) * sizeof *copy);
    return copy;
}

/* Starts the workers and watches them. */
static int run_all(train_options *options, char **argv, lk_launch_options how)
{
    how.on_failure         = (lk_on_failure)options->on_failure;
    how.ranks_tell         = how.on_failure == LK_ON_FAILURE_CONTINUE;
    how.host_leaves        = how.ranks_tell;
    how.host_returns       = how.ranks_tell && lki_may_return(options);
    lki_settings settings;
    lki_settings_of(&settings, options->command, &options->file);
    how.settings           = settings.list;
    how.leave_together     = true;
    how.replacements       = how.on_failure == LK_ON_FAILURE_CONTINUE ? options->restart : 0;
    how.chaos              = options->chaos;
    how.chaos.note         = how.note;
    how.chaos.note_context = how.note_context;
    const int pipe = options->config.files_elsewhere
                         ? -1 : lki_log_pipe_hold(options->command->name, options->config.log);
    options->config.outputs.log_has_reader = lki_log_pipe_is_held();
    char **line = with_threads(options, argv);
    int    exit = LKI_EXIT_FAILURE;
    if (line == NULL)
        fprintf(stderr, "lockstep %s: out of memory\n", options->command->name);
    else
        exit = options->worker_mode == LKI_MODE_THREADS ? run_threads(options)
                                                        : start_workers(options, line, how);
    free(line);
    if (pipe >= 0)
        (void)close(pipe);
    /* A run that was refused has no parts, and those of the run in its way are not to be used.
     * Workers of emulated hosts are children of other launchers. */
    const uint32_t mine = how.hosts > 1 && how.nodes <= 1 ? 0 : (uint32_t)getpid();
    return merge_trace(options, 0, options->config.workers, mine, exit);
}

/* Checks --host-memory.  --workers of a node are its own, and the other nodes are taken to have as
 * many, but not more in all than there are virtual workers. */
static lk_status check_memory(const train_options *options, uint32_t nodes, uint32_t hosts)
{
    lk_train_config job = options->config;
    if (nodes > 1) {
        uint64_t all = (uint64_t)job.workers * nodes, most = job.virtual_workers;
        job.workers  = (uint32_t)(most > 0 && all > most ? most : all);
    }
    return lk_train_fits(&job, hosts);
}

/* Starts the run from the process that the user started. */
static int start(train_options *options, char **argv)
{
    options->config.files_elsewhere = options->nodes.count > 1 && options->nodes.number != 0;
    if (lacks_input(options)) {
        fprintf(stderr, "lockstep %s: standard input is closed, which '%s' is to read\n",
                options->command->name, options->config.data.source);
        return LKI_EXIT_FAILURE;
    }
    options->config.elastic.survives = options->on_failure == LK_ON_FAILURE_CONTINUE;
    lk_status status                 = lk_train_check(&options->config);
    if (status == LK_EINVAL)
        return refuse(options, lk_error_last()->message);
    if (status != LK_OK)
        return report(options, status);
    lki_train_use_cores(options);
    options->nodes.file = &options->file;
    lk_launch_options how   = { .struct_size = sizeof(lk_launch_options),
                                .workers     = options->config.workers,
                                .timeout_ms  = options->config.timeout_ms,
                                .flight      = options->flight };
    int               refused = lki_nodes_apply(&options->nodes, options->command, &how);
    if (refused >= 0)
        return refused;
    if ((how.nodes > 1 || how.hosts > 1) && options->worker_mode == LKI_MODE_THREADS)
        return refuse(options, how.nodes > 1 ? "--nnodes needs --worker-mode processes"
                                             : "--hosts needs --worker-mode processes");
    if (options->config.host_memory > 0 && options->worker_mode == LKI_MODE_THREADS)
        return refuse(options, "--host-memory needs --worker-mode processes");
    uint32_t    hosts = how.nodes > 1 ? how.nodes : how.hosts > 1 ? how.hosts : 1;
    const char *why   = lki_cannot_go_on(options);
    if (why != NULL)
        return refuse_going_on(options, why);
    why = lki_cannot_start(options, hosts);
    if (why != NULL)
        return refuse(options, why);
    status = check_memory(options, how.nodes, hosts);
    if (status == LK_EINVAL)
        return refuse(options, lk_error_last()->message);
    if (status != LK_OK)
        return report(options, status);
    lki_train_print_choices(options);
    return run_all(options, argv, how);
}

/* Finds the oneDNN module.  The module's threads must not spin, since Lockstep's threads use the
 * same cores.  Its runtime reads OMP_WAIT_POLICY when it is loaded, and the workers inherit this
 * variable. */
lk_status lki_train_find_kernels(train_options *options)
{
    if (options->kernels == NULL || strcmp(options->kernels, "onednn") != 0)
        return LK_OK;
    (void)setenv("OMP_WAIT_POLICY", "passive", 0);
    options->config.onednn = options->module;
    return lk_module_find(options->module, "onednn", "libdnnl-dev");
}

int lki_train_start(train_options *options, char **argv)
{
    options->config.outputs.terminal = lki_terminal_of();
    /* A file larger than ulimit -f, and a log's pipe that nobody reads any more, must cause an
     * error that names the file.  Workers inherit these settings. */
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)signal(SIGPIPE, SIG_IGN);
    sigset_t warning;
    (void)sigemptyset(&warning);
    (void)sigaddset(&warning, SIGUSR1);
    (void)pthread_sigmask(SIG_BLOCK, &warning, NULL);
    bool changes = options->config.elastic.workers_least > 0 ||
                   lki_nodes_least(&options->nodes) > 0;
    bool ends = changes && options->on_failure == LK_ON_FAILURE_STOP;
    if (options->on_failure == LKI_UNSAID)
        options->on_failure = changes ? LK_ON_FAILURE_CONTINUE : LK_ON_FAILURE_STOP;
    bool launched = false;
    int  result   = lki_train_find_launcher(options, &launched);
    if (result >= 0) {
        free(options->file.text);
        return result;
    }
    lki_train_suit(options);
    result = LKI_EXIT_FAILURE;
    if (is_closed(STDOUT_FILENO))
        fprintf(stderr, "lockstep %s: standard output is closed, but the result is written "
                        "there; redirect it, for example to /dev/null\n", options->command->name);
    else if (ends)
        result = refuse(options, "MIN:MAX (--workers, --nnodes, --hosts) continues after the loss "
                                 "of workers, and --on-failure stop ends the run: leave out one "
                                 "of them, or MIN");
    else if (lki_train_find_kernels(options) != LK_OK)
        result = report(options, LK_EUNSUPPORTED);
    else
        result = lk_enters() ? run_late_worker(options)
                 : launched ? run_worker(options)
                            : start(options, argv);
    free(options->tokenizer);
    free(options->file.text);
    return result;
}

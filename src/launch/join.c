/* join.c -- the worker's side: from the launcher's environment to a communicator.
 *
 * No other file of the library reads the environment, except foreign.c for workers that another
 * launcher has started.
 *
 * Signals.  The launcher decides what a signal to the job means.  A worker that joins must
 * therefore not die of a signal that was sent to all (Ctrl-C, timeout(1), systemd, a closed
 * terminal).  SIGINT is ignored.  SIGTERM and SIGHUP are forwarded to the launcher, which asks the
 * whole job to save and leave.  Both signals have their usual effect only when the launcher itself
 * sends them.  The program's own handlers, and signals that it ignores, are not changed.
 *
 * In a program that sets options.leaves, a SIGTERM sent only to this process is a request to leave
 * the job, for example because its machine or core is needed for something else.
 *
 * Under another launcher, that launcher or the terminal sends such signals only to the workers.
 * The workers then forward all these signals to the host's agent.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/options.h"
#include "base/pidfd.h"
#include "base/status.h"
#include "comm/worker.h"
#include "comm/flight.h"
#include "launch/agent.h"
#include "launch/mpi.h"
#include "launch/variables.h"

bool lk_stop_requested(const lk_comm *comm)
{
    return lki_comm_stop_requested(comm);
}

/* ---- The names of Lockstep's launcher ---------------------------------------------------- */

static const char *const our_names[] = {
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCKSTEP_CONTROL_FD",
    "LOCKSTEP_SOCKET_FD", "LOCKSTEP_TIMEOUT_MS", "LOCKSTEP_KEY_FD", "LOCKSTEP_ENTERS",
    "LOCKSTEP_CONTINUES",
};

enum { OUR_NAMES = sizeof our_names / sizeof our_names[0] };

static bool is_ours(void)
{
    return getenv("LOCKSTEP_CONTROL_FD") != NULL;
}

/* Reads a whole number in [0, limit] from the environment. */
static lk_status read_number(uint32_t *out, const char *name, uint32_t limit)
{
    const char *text = getenv(name);
    uint64_t    value = 0;
    size_t      i     = 0;

    if (text == NULL)
        return lk_fail(LK_EINVAL, "LOCKSTEP_CONTROL_FD=%.20s is set, but not %s: start the program "
                       "with lockstep run; unset %s to run alone", getenv("LOCKSTEP_CONTROL_FD"),
                       name, lki_names_list(our_names, OUR_NAMES, LKI_NAMES_SET).text);
    for (; isdigit((unsigned char)text[i]) && value <= limit; i++)
        value = value * 10 + (uint64_t)(text[i] - '0');
    if (i == 0 || text[i] != '\0' || value > limit)
        return lk_fail(LK_EINVAL, "%s=%.40s in the environment must be a whole number up to %u; "
                       "unset %s to run alone", name, text, limit,
                       lki_names_list(our_names, OUR_NAMES, LKI_NAMES_SET).text);
    *out = (uint32_t)value;
    return LK_OK;
}

static lk_status read_descriptor(int *out, const char *name)
{
    uint32_t value;

    LK_TRY(read_number(&value, name, INT32_MAX));
    *out = (int)value;
    if (fcntl(*out, F_GETFD) < 0)
        return lk_fail(LK_EINVAL, "%s=%d is not open here: whatever started this program closed "
                       "it, or lk_join() was called before; unset %s to run alone", name, *out,
                       lki_names_list(our_names, OUR_NAMES, LKI_NAMES_SET).text);
    return LK_OK;
}

/* ---- Signals ----------------------------------------------------------------------------- */

static void die_of(int number)
{
    (void)signal(number, SIG_DFL);
    (void)raise(number); /* takes effect when the handler returns */
}

static void ask_launcher(int number, siginfo_t *info, void *context)
{
    int   saved    = errno;
    pid_t launcher = getppid();

    (void)context;
    if (info->si_pid == launcher) /* the signal is meant for this process */
        die_of(number);
    else
        (void)kill(launcher, number);
    errno = saved;
}

/* The result of lk_leave_requested().  A global variable, because a signal handler sets it. */
static volatile sig_atomic_t asked_to_leave;

static void note_wish(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (info->si_pid == getppid()) /* the launcher ends this worker */
        die_of(number);
    else
        asked_to_leave = 1;
}

bool lk_leave_requested(void)
{
    return asked_to_leave != 0;
}

/* The agent's pidfd and pid.  Global variables, because a signal handler reads them. */
static volatile sig_atomic_t agent_process = -1, agent_pid;

static void ask_agent(int number, siginfo_t *info, void *context)
{
    int saved = errno;

    (void)context;
    if (info->si_pid == agent_pid || lki_pidfd_send(agent_process, number, NULL) != 0)
        die_of(number);
    errno = saved;
}

enum { AGAIN_MS = 100 }; /* a second request within this time belongs to the first */

static bool has_default_action(int number)
{
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_DFL;
}

static void leave_signals_to_agent(const lki_agent_gift *gift)
{
    static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action      = {.sa_sigaction = ask_agent, .sa_flags = SA_SIGINFO | SA_RESTART};

    if (gift->process < 0)
        return;
    agent_process = gift->process;
    agent_pid     = gift->pid;
    for (size_t i = 0; i < 3; i++)
        if (has_default_action(passed_on[i]))
            (void)sigaction(passed_on[i], &action, NULL);
}

static void leave_signals_to_launcher(bool leaves)
{
    static const int passed_on[] = {SIGTERM, SIGHUP};
    struct sigaction action = {.sa_sigaction = ask_launcher, .sa_flags = SA_SIGINFO | SA_RESTART};
    struct sigaction wish   = {.sa_sigaction = note_wish, .sa_flags = SA_SIGINFO | SA_RESTART};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    int              at_parents_death = 0;

    if (has_default_action(SIGINT))
        (void)sigaction(SIGINT, &ignore, NULL);
    /* Only a direct child of the launcher has SIGKILL as its parent-death signal.  The parent of
     * any other process does not expect signals from it. */
    (void)prctl(PR_GET_PDEATHSIG, &at_parents_death);
    for (size_t i = 0; i < 2 && at_parents_death == SIGKILL; i++)
        if (has_default_action(passed_on[i]))
            (void)sigaction(passed_on[i], leaves && passed_on[i] == SIGTERM ? &wish : &action,
                            NULL);
}

/* A request to stop that this process received, and its time in ms.  Global variables, because a
 * signal handler sets them. */
static volatile sig_atomic_t asked_to_stop, asked_at_ms;

/* Notes a request to stop, or ends the process if it was asked before.  timeout(1) signals a
 * process and then its group, so a signal shortly after the first one does not count. */
static void note_request(int number)
{
    struct timespec now   = {.tv_sec = 0};
    int             saved = errno;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    sig_atomic_t now_ms = (sig_atomic_t)(now.tv_sec % 1000000 * 1000 + now.tv_nsec / 1000000);
    if (asked_to_stop == 0)
        asked_at_ms = now_ms;
    else if (now_ms - asked_at_ms >= AGAIN_MS || now_ms < asked_at_ms)
        die_of(number);
    asked_to_stop = 1;
    errno         = saved;
}

static void keep_signals(void)
{
    static const int kept[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = note_request, .sa_flags = SA_RESTART};

    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        if (has_default_action(kept[i]))
            (void)sigaction(kept[i], &action, NULL);
}

/* ---- Joining ----------------------------------------------------------------------------- */

/* The data that a launcher has provided to this worker. */
typedef struct {
    uint32_t        rank, size;
    int             control, socket;
    bool            secure;
    unsigned char   key[LK_JOB_KEY_BYTES]; /* key of the job, if `secure` */
    lk_comm_options options;
    char            cache[400];
} inheritance;

static lk_status read_key(inheritance *from)
{
    int fd = -1;

    from->secure = getenv("LOCKSTEP_KEY_FD") != NULL;
    if (!from->secure)
        return LK_OK;
    LK_TRY(read_descriptor(&fd, "LOCKSTEP_KEY_FD"));
    ssize_t got = pread(fd, from->key, sizeof from->key, 0);
    (void)close(fd);
    return got == (ssize_t)sizeof from->key
               ? LK_OK : lk_fail(LK_EINVAL, "LOCKSTEP_KEY_FD=%d holds no job key", fd);
}

/* Reads two settings for the choice of algorithms between hosts: the forced algorithms, and the
 * name of the file of measurements. */
static void read_choices(inheritance *from, const char *tuning)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

    from->options.tuning     = tuning != NULL ? tuning : getenv("LOCKSTEP_TUNING");
    from->options.algorithms = getenv("LOCKSTEP_ALGORITHMS");
    if (cache != NULL && cache[0] == '/')
        (void)snprintf(from->cache, sizeof from->cache, "%.380s/lockstep", cache);
    else if (home != NULL && home[0] == '/')
        (void)snprintf(from->cache, sizeof from->cache, "%.380s/.cache/lockstep", home);
    from->options.cache = from->cache[0] == '\0' ? NULL : from->cache;
}

/* Reads the variables that Lockstep's launcher has set, except the descriptors, which lk_join()
 * closes. */
static lk_status read_ours(inheritance *from)
{
    uint32_t unused;

    LK_TRY(lki_names_check_once(our_names, OUR_NAMES,
                                lki_names_list(our_names, OUR_NAMES, LKI_NAMES_SET).text));
    LK_TRY(read_number(&from->size, "WORLD_SIZE", LKI_RANKS_MAX));
    LK_TRY(read_number(&from->rank, "RANK", LKI_RANKS_MAX - 1));
    LK_TRY(read_number(&from->options.timeout_ms, "LOCKSTEP_TIMEOUT_MS", UINT32_MAX));
    LK_TRY(read_number(&unused, "LOCKSTEP_CONTROL_FD", INT32_MAX));
    LK_TRY(read_number(&unused, "LOCKSTEP_SOCKET_FD", INT32_MAX));
    if (from->rank < from->size)
        return LK_OK;
    return lk_fail(LK_EINVAL, "RANK=%u with WORLD_SIZE=%u: ranks are below the size; unset %s to "
                   "run alone", from->rank, from->size,
                   lki_names_list(our_names, OUR_NAMES, LKI_NAMES_SET).text);
}

/* Refuses variables that only Lockstep's launcher sets if LOCKSTEP_CONTROL_FD is not set. */
static lk_status check_not_ours(void)
{
    static const char *const only_ours[] = {"LOCKSTEP_SOCKET_FD", "LOCKSTEP_KEY_FD",
                                            "LOCKSTEP_ENTERS", "LOCKSTEP_CONTINUES"};
    lki_names values = lki_names_list(only_ours, sizeof only_ours / sizeof only_ours[0],
                                      LKI_NAMES_VALUES);

    if (values.count == 0)
        return LK_OK;
    return lk_fail(LK_EINVAL, "%s %s set, but not LOCKSTEP_CONTROL_FD: start the program with "
                   "lockstep run; unset %s to run alone", values.text,
                   values.count == 1 ? "is" : "are",
                   lki_names_list(our_names, OUR_NAMES, LKI_NAMES_SET).text);
}

/* Finds a job of another launcher. */
static lk_status find_others(lki_foreign *job)
{
    LK_TRY(check_not_ours());
    return lki_foreign_find(job);
}

lk_status lk_launched(bool *out)
{
    inheritance from = {.control = -1};
    lki_foreign job  = {.by = NULL};

    *out = true;
    LK_TRY(is_ours() ? read_ours(&from) : find_others(&job));
    *out = is_ours() || job.by != NULL;
    return LK_OK;
}

lk_status lk_launcher_describe(char *out, size_t bytes)
{
    inheritance from = {.control = -1};
    lki_foreign job  = {.by = NULL};
    char        variables[240];
    bool        by_mpi;

    (void)snprintf(out, bytes, "none");
    LK_TRY(is_ours() ? read_ours(&from) : find_others(&job));
    if (is_ours())
        (void)snprintf(out, bytes, "lockstep run: rank %u of %u", from.rank, from.size);
    if (job.by == NULL)
        return LK_OK;
    lki_foreign_variables(variables, sizeof variables, job.by);
    LK_TRY(lk_mpi_chosen(&by_mpi, LK_MPI_AUTO));
    (void)snprintf(out, bytes, "%s: rank %u of %u, %u of %u on this host (%s)%s%s%s", job.by,
                   job.rank, job.size, job.local_rank, job.local_size, variables,
                   by_mpi                      ? ", MPI between hosts"
                   : job.rendezvous[0] != '\0' ? ", rank 0 at "
                                               : "",
                   by_mpi ? "" : job.rendezvous,
                   job.store != NULL && !by_mpi ? " by torchrun's store" : "");
    return by_mpi ? LK_OK : lki_foreign_check_hosts(&job);
}

/* Takes the control memory that the launcher has provided.  An eventfd takes the memory's number,
 * by which a second call is recognised, also in a forked child.  So nothing reads the numbers of
 * the launcher's descriptors again, which may later be those of a connection of the group. */
static lk_status take_control(int *out)
{
    int named;

    LK_TRY(read_descriptor(&named, "LOCKSTEP_CONTROL_FD"));
    if (fcntl(named, F_GET_SEALS) < 0) /* every memfd has seals */
        return lk_fail(LK_EINVAL, "LOCKSTEP_CONTROL_FD=%d is not the memory of a group: lk_join() "
                       "was called before, and a process joins its group once, or whatever started "
                       "this program closed it", named);
    int mark = eventfd(0, EFD_CLOEXEC);
    *out     = fcntl(named, F_DUPFD_CLOEXEC, 0);
    bool took = mark >= 0 && *out >= 0 && dup3(mark, named, O_CLOEXEC) >= 0;
    int  why  = errno;
    if (mark >= 0)
        (void)close(mark);
    return took ? LK_OK : lk_fail(LK_EIO, "cannot take LOCKSTEP_CONTROL_FD=%d: %s", named,
                                  strerror(why));
}

/* Reads the variables, descriptors and key that Lockstep's launcher has provided. */
static lk_status find_ours(inheritance *from, const lk_join_options *options)
{
    LK_TRY(read_ours(from));
    if (options->timeout_ms != 0)
        from->options.timeout_ms = options->timeout_ms;
    from->options.flight = getenv("LOCKSTEP_FLIGHT");
    LK_TRY(take_control(&from->control));
    LK_TRY(read_descriptor(&from->socket, "LOCKSTEP_SOCKET_FD"));
    LK_TRY(read_key(from));
    leave_signals_to_launcher(options->leaves);
    return LK_OK;
}

/* Determines the folder of flight records.  Under another launcher, the first worker of the host
 * creates the folder before the host's other workers open their records. */
static lk_status find_flight(inheritance *from, const lki_foreign *job, const char *wanted)
{
    lki_roster here = {job->size, job->rank - job->local_rank, job->local_size};

    from->options.flight = wanted != NULL ? wanted : getenv("LOCKSTEP_FLIGHT");
    return from->options.flight != NULL && job->local_rank == 0
               ? lki_flight_prepare(from->options.flight, here) : LK_OK;
}

/* Receives from this host's agent the data that Lockstep's launcher would have provided. */
static lk_status find_foreign(inheritance *from, const lki_foreign *job,
                              const lk_join_options *options)
{
    lk_join_options how = *options;
    lki_agent_gift  gift;

    if (how.timeout_ms == 0 && getenv("LOCKSTEP_TIMEOUT_MS") != NULL)
        LK_TRY(read_number(&how.timeout_ms, "LOCKSTEP_TIMEOUT_MS", UINT32_MAX));
    from->options.timeout_ms = how.timeout_ms;
    LK_TRY(lki_foreign_check_hosts(job));
    LK_TRY(find_flight(from, job, how.flight));
    LK_TRY(lki_agent_join(&gift, job, &how));
    leave_signals_to_agent(&gift);
    from->rank    = job->rank;
    from->size    = job->size;
    from->control = gift.control;
    from->socket  = gift.socket;
    from->secure  = gift.secure;
    memcpy(from->key, gift.key, sizeof from->key);
    explicit_bzero(&gift, sizeof gift);
    return LK_OK;
}

/* Joins a job whose hosts exchange bytes by MPI. */
static lk_status join_by_mpi(lk_comm **out, inheritance *from, const lk_join_options *options)
{
    from->options.struct_size = sizeof from->options;
    from->options.timeout_ms  = options->timeout_ms;
    from->options.flight      = options->flight != NULL ? options->flight
                                                        : getenv("LOCKSTEP_FLIGHT");
    if (options->timeout_ms == 0 && getenv("LOCKSTEP_TIMEOUT_MS") != NULL)
        LK_TRY(read_number(&from->options.timeout_ms, "LOCKSTEP_TIMEOUT_MS", UINT32_MAX));
    keep_signals();
    LK_TRY(lki_mpi_join(out, &from->options));
    lki_comm_obey(*out, &asked_to_stop);
    return LK_OK;
}

bool lk_enters(void)
{
    return getenv("LOCKSTEP_ENTERS") != NULL;
}

bool lk_continues(void)
{
    return getenv("LOCKSTEP_CONTINUES") != NULL;
}

/* Enters a running group in place of a lost worker.  Preserves the flight record of that worker, if
 * any. */
static lk_status enter_later(lk_comm **out, const inheritance *from)
{
    lk_comm_options options = from->options;

    options.flight = NULL;
    (void)fcntl(from->socket, F_SETFD, FD_CLOEXEC);
    (void)close(from->control);
    return lki_comm_enter(out, from->rank, from->socket, from->secure ? from->key : NULL,
                          &options);
}

static lk_status enter(lk_comm **out, const inheritance *from)
{
    /* Programs started by this process must not inherit the descriptors. */
    (void)fcntl(from->control, F_SETFD, FD_CLOEXEC);
    (void)fcntl(from->socket, F_SETFD, FD_CLOEXEC);
    LK_TRY(lki_comm_open_shm(out, from->control, from->rank, from->socket, &from->options));
    (void)close(from->control);
    uint32_t world = lki_comm_world(*out);
    if (world == from->size && world == lk_comm_size(*out))
        return LK_OK;
    lk_comm *local = *out;
    *out           = NULL;
    if (world == from->size)
        return lki_comm_join_hosts(out, local, from->secure ? from->key : NULL);
    lk_comm_free(local);
    return lk_fail(LK_EINVAL, "WORLD_SIZE=%u, but the launcher made a group of %u: something "
                              "changed the environment", from->size, world);
}

lk_status lk_join_with(lk_comm **out, const lk_join_options *options)
{
    inheritance     from = {.control = -1, .socket = -1};
    lki_foreign     job  = {.by = NULL};
    lk_join_options mine;
    bool            by_mpi;

    *out = NULL;
    LK_TRY(lki_options_copy(&mine, sizeof mine, options, "lk_join_options"));
    LK_TRY(lk_mpi_chosen(&by_mpi, mine.mpi));
    read_choices(&from, mine.tuning);
    if (by_mpi)
        return join_by_mpi(out, &from, &mine);
    if (!is_ours())
        LK_TRY(find_others(&job));
    if (!is_ours() && job.by == NULL)
        return lk_comm_open_threads(out, 1, NULL);
    lk_status st = is_ours() ? find_ours(&from, &mine) : find_foreign(&from, &job, &mine);
    if (st == LK_OK)
        st = is_ours() && lk_enters() ? enter_later(out, &from) : enter(out, &from);
    explicit_bzero(from.key, sizeof from.key);
    return st;
}

lk_status lk_join(lk_comm **out)
{
    return lk_join_with(out, NULL);
}

/* join.c -- the worker's side: from the launcher's environment to a communicator.
 *
 * The only place of the library that reads the environment.
 *
 * Signals.  The launcher decides what a signal to the job means, so a worker that joins must not
 * die of one that was meant for all (Ctrl-C, `timeout`, systemd, a closed terminal): SIGINT is
 * ignored, and SIGTERM and SIGHUP are sent on to the launcher, which asks the whole job to save
 * and leave.  Only from the launcher itself they mean what they always mean.  Handlers of the
 * program's own, and signals that it ignores, are left alone.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/status.h"
#include "comm/control.h"
#include "lockstep/launch.h"

bool lk_launched(void)
{
    return getenv("LOCKSTEP_CONTROL_FD") != NULL;
}

bool lk_stop_requested(const lk_comm *comm)
{
    return lki_comm_stop_requested(comm);
}

/* Reads a whole number in [0, limit] from the environment. */
static lk_status read_number(uint32_t *out, const char *name, uint32_t limit)
{
    const char *text = getenv(name);
    uint64_t    value = 0;
    size_t      i     = 0;

    if (text == NULL)
        return lk_fail(LK_EINVAL, "%s is not set, but LOCKSTEP_CONTROL_FD is: start the program "
                                  "with lockstep run, or unset both", name);
    for (; isdigit((unsigned char)text[i]) && value <= limit; i++)
        value = value * 10 + (uint64_t)(text[i] - '0');
    if (i == 0 || text[i] != '\0' || value > limit)
        return lk_fail(LK_EINVAL, "%s=%.40s in the environment must be a whole number up to %u",
                       name, text, limit);
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
                                  "it, or lk_join() was called before", name, *out);
    return LK_OK;
}

/* ---- Signals ----------------------------------------------------------------------------- */

static void ask_launcher(int number, siginfo_t *info, void *context)
{
    int   saved    = errno;
    pid_t launcher = getppid();

    (void)context;
    if (info->si_pid == launcher) { /* it means us: die of it when this handler returns */
        (void)signal(number, SIG_DFL);
        (void)raise(number);
    } else {
        (void)kill(launcher, number);
    }
    errno = saved;
}

static bool has_default_action(int number)
{
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_DFL;
}

static void leave_signals_to_launcher(void)
{
    static const int passed_on[] = {SIGTERM, SIGHUP};
    struct sigaction action = {.sa_sigaction = ask_launcher, .sa_flags = SA_SIGINFO | SA_RESTART};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    int              at_parents_death = 0;

    if (has_default_action(SIGINT))
        (void)sigaction(SIGINT, &ignore, NULL);
    /* Only a direct child has this set: another's parent would not know what to do. */
    (void)prctl(PR_GET_PDEATHSIG, &at_parents_death);
    for (size_t i = 0; i < 2 && at_parents_death == SIGKILL; i++)
        if (has_default_action(passed_on[i]))
            (void)sigaction(passed_on[i], &action, NULL);
}

/* ---- Joining ----------------------------------------------------------------------------- */

static lk_status join_alone(lk_comm **out)
{
    const char *size = getenv("WORLD_SIZE");

    if (size != NULL && strcmp(size, "1") != 0)
        return lk_fail(LK_EUNSUPPORTED, "WORLD_SIZE=%.20s is set, but not by lockstep run, which "
                                        "alone can start a group in this version; use it, or "
                                        "unset WORLD_SIZE to run alone", size);
    return lk_comm_open_threads(out, 1, NULL);
}

/* Of a job on several hosts; *out are the ranks of this one. */
static lk_status join_hosts(lk_comm **out)
{
    unsigned char key[LK_JOB_KEY_BYTES];
    bool          secure = getenv("LOCKSTEP_KEY_FD") != NULL;
    lk_comm      *local  = *out;
    int           fd     = -1;
    lk_status     st     = secure ? read_descriptor(&fd, "LOCKSTEP_KEY_FD") : LK_OK;

    if (st == LK_OK && secure && pread(fd, key, sizeof key, 0) != (ssize_t)sizeof key)
        st = lk_fail(LK_EINVAL, "LOCKSTEP_KEY_FD=%d holds no job key", fd);
    if (fd >= 0)
        (void)close(fd);
    *out = NULL;
    if (st == LK_OK) {
        st = lki_comm_join_hosts(out, local, secure ? key : NULL);
    } else {
        lk_comm_abort(local);
        lk_comm_free(local);
    }
    explicit_bzero(key, sizeof key);
    return st;
}

lk_status lk_join(lk_comm **out)
{
    int             control = -1, socket = -1;
    uint32_t        rank, size;
    lk_comm_options options = {0};

    *out = NULL;
    if (!lk_launched())
        return join_alone(out);
    LK_TRY(read_number(&size, "WORLD_SIZE", LKI_RANKS_MAX));
    LK_TRY(read_number(&rank, "RANK", LKI_RANKS_MAX - 1));
    LK_TRY(read_number(&options.timeout_ms, "LOCKSTEP_TIMEOUT_MS", UINT32_MAX));
    options.flight = getenv("LOCKSTEP_FLIGHT");
    LK_TRY(read_descriptor(&control, "LOCKSTEP_CONTROL_FD"));
    LK_TRY(read_descriptor(&socket, "LOCKSTEP_SOCKET_FD"));
    if (rank >= size)
        return lk_fail(LK_EINVAL, "RANK=%u with WORLD_SIZE=%u: ranks are below the size", rank,
                       size);

    /* What the program starts itself has no business with them. */
    (void)fcntl(control, F_SETFD, FD_CLOEXEC);
    (void)fcntl(socket, F_SETFD, FD_CLOEXEC);
    leave_signals_to_launcher();
    LK_TRY(lki_comm_open_shm(out, control, rank, socket, &options));
    (void)close(control);
    uint32_t world = lki_comm_world(*out);
    if (world == size)
        return world == lk_comm_size(*out) ? LK_OK : join_hosts(out);
    lk_comm_free(*out);
    *out = NULL;
    return lk_fail(LK_EINVAL, "WORLD_SIZE=%u, but the launcher made a group of %u: something "
                              "changed the environment", size, world);
}

/* signals.c -- the signals that a launcher handles for its workers.
 *
 * The signals are blocked and read from a descriptor, so neither a signal handler nor a global
 * variable is needed.  A signal that the caller ignores remains ignored (nohup), with one
 * exception.  A shell without job control starts background jobs with SIGINT ignored, so that
 * Ctrl-C spares them.  In this case only the terminal's SIGINT is ignored, and kill -INT is obeyed
 * (watch.c).
 *
 * SIGPIPE is blocked: if a reader closes its end, the launcher closes the sink, and the workers see
 * the error themselves.  SIGXFSZ is blocked: exceeding `ulimit -f` is an ordinary error.  SIGCHLD
 * must not be ignored, or the kernel would reap our children and discard their statuses.
 */
#include <errno.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"
#include "launch/job/signals.h"

static bool is_ignored(int number)
{
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

lk_status lki_signals_open(lki_signals *self)
{
    static const int taken[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    sigset_t         set, blocked;

    sigemptyset(&set);
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        if (taken[i] == SIGINT || !is_ignored(taken[i]))
            sigaddset(&set, taken[i]);
    self->interrupt_ignored = is_ignored(SIGINT);
    blocked                = set;
    sigaddset(&blocked, SIGPIPE);
    sigaddset(&blocked, SIGXFSZ);
    self->fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (self->fd < 0)
        return lk_fail(LK_ENOMEM, "cannot watch for signals: signalfd: %s", strerror(errno));
    (void)pthread_sigmask(SIG_BLOCK, &blocked, &self->mask);
    (void)sigaction(SIGCHLD, NULL, &self->child);
    if (self->child.sa_handler == SIG_IGN || (self->child.sa_flags & SA_NOCLDWAIT) != 0) {
        struct sigaction usual = {.sa_handler = SIG_DFL};
        (void)sigaction(SIGCHLD, &usual, NULL);
    }
    return LK_OK;
}

void lki_signals_close(lki_signals *self)
{
    if (self->fd < 0)
        return;
    static const int ours[] = {SIGPIPE, SIGXFSZ}; /* discarded if pending, because they must not
                                                   * kill the caller when unblocked */
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        struct timespec none = {0};
        sigset_t        one;
        sigemptyset(&one);
        sigaddset(&one, ours[i]);
        if (!sigismember(&self->mask, ours[i]))
            (void)sigtimedwait(&one, NULL, &none);
    }
    (void)sigaction(SIGCHLD, &self->child, NULL);
    (void)pthread_sigmask(SIG_SETMASK, &self->mask, NULL);
    (void)close(self->fd);
    self->fd = -1;
}

void lki_signals_drop(const lki_signals *self)
{
    struct signalfd_siginfo info;

    while (read(self->fd, &info, sizeof info) == (ssize_t)sizeof info)
        continue;
}

/* signals.c -- the signals that a launcher takes for its workers.
 *
 * They are blocked and read from a descriptor, so that no handler and no global is needed.  A
 * signal that the caller ignores stays ignored (nohup), with one exception: a shell without job
 * control starts its background jobs with SIGINT ignored, so that Ctrl-C spares them.  There we
 * overlook only the terminal's SIGINT and still obey kill -INT (watch.c).
 *
 * SIGPIPE is blocked as well: a reader that goes away closes the sink, and the workers then find
 * it out by themselves; and SIGXFSZ: what `ulimit -f` forbids is an error like any other.  SIGCHLD
 * must not be ignored, or the kernel would reap our children and throw their statuses away.
 */
#include <errno.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"
#include "launch/signals.h"

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
    static const int ours[] = {SIGPIPE, SIGXFSZ}; /* the caller must not die of them now */
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

/* signals.c -- holds the signals that end a command; see signals.h. */
#include "cli/signals.h"

#include <stdio.h>

static const int ends[] = { SIGINT, SIGTERM, SIGHUP };
enum { END_COUNT = sizeof ends / sizeof ends[0] };

void lki_hold_signals(sigset_t *before)
{
    sigset_t held;
    (void)sigemptyset(&held);
    for (size_t i = 0; i < END_COUNT; i++) {
        struct sigaction now;
        if (sigaction(ends[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            (void)sigaddset(&held, ends[i]);
    }
    (void)sigprocmask(SIG_BLOCK, &held, before);
}

void lki_release_signals(const sigset_t *before)
{
    (void)fflush(NULL);
    (void)sigprocmask(SIG_SETMASK, before, NULL);
}

bool lki_is_asked_to_end(const sigset_t *before)
{
    sigset_t arrived, held;
    if (sigpending(&arrived) != 0 || sigprocmask(SIG_BLOCK, NULL, &held) != 0)
        return false;
    for (size_t i = 0; i < END_COUNT; i++)
        if (sigismember(&arrived, ends[i]) == 1 && sigismember(&held, ends[i]) == 1 &&
            sigismember(before, ends[i]) != 1)
            return true;
    return false;
}

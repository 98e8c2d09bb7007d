/* launch/signals.h -- the signals that a launcher takes for its workers. */
#ifndef LKI_LAUNCH_SIGNALS_H
#define LKI_LAUNCH_SIGNALS_H

#include <signal.h>
#include <stdbool.h>

#include "lockstep/base.h"

/* A request to stop that comes so soon after the first is the same one: `timeout` signals a process
 * and then its group. */
#define LKI_ECHO_SECONDS 0.1

typedef struct {
    int              fd;    /* a signalfd; -1 = not open */
    sigset_t         mask;  /* the caller's, which workers get as well */
    struct sigaction child; /* the caller's SIGCHLD */
    bool             interrupt_ignored; /* SIGINT was ignored when we came */
} lki_signals;

/* Blocks the signals that the launcher takes and opens a descriptor for them; and back. */
LK_NODISCARD lk_status lki_signals_open(lki_signals *self);
void lki_signals_close(lki_signals *self);

#endif

/* launch/job/signals.h -- the signals that a launcher handles for its workers. */
#ifndef LKI_LAUNCH_JOB_SIGNALS_H
#define LKI_LAUNCH_JOB_SIGNALS_H

#include <signal.h>
#include <stdbool.h>

#include "lockstep/base.h"

/* A second request to stop within this time counts as the first one, because timeout(1) sends a
 * signal to a process and then to its group. */
#define LKI_ECHO_SECONDS 0.1

typedef struct {
    int              fd;    /* a signalfd; -1: not open */
    sigset_t         mask;  /* the caller's mask, inherited by workers */
    struct sigaction child; /* the caller's SIGCHLD handler */
    bool             interrupt_ignored; /* SIGINT was ignored when the launcher started */
} lki_signals;

/* Blocks the signals that the launcher handles, and opens a descriptor for them. */
LK_NODISCARD lk_status lki_signals_open(lki_signals *self);

/* Discards the signals that are pending. */
void lki_signals_drop(const lki_signals *self);

/* Restores mask and handlers. */
void lki_signals_close(lki_signals *self);

#endif

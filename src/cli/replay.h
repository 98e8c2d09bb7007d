/* cli/replay.h -- trains a part of a run again, in a folder of its own. */
#ifndef LKI_CLI_REPLAY_H
#define LKI_CLI_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/signals.h"
#include "lockstep/report.h"

typedef struct {
    const lk_statement *statement;
    const char         *run;     /* directory with the checkpoint of step `from` */
    char *const        *more;    /* options of train that are added; ends with NULL */
    uint64_t            from, to; /* steps of checkpoints; 0: the beginning */
} lki_replay_part;

/* Trains from one step to another, by `lockstep train` in a process of its own.  It writes the
 * checkpoint of step `to` and the log log.jsonl into `folder`, which must exist.  The caller holds
 * signals, and `before` is the mask without that.  If one arrives, the processes are killed; they
 * also die with this one.  Prints errors.  Returns false after one, and after a signal. */
bool lki_replay(const lki_replay_part *part, const char *folder, const sigset_t *before);

#endif

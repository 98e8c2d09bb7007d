/* train/core/log_pipe.h -- a log that is a pipe, whose reader may be slow.  See log_pipe.c. */
#ifndef LKI_TRAIN_LOG_PIPE_H
#define LKI_TRAIN_LOG_PIPE_H

#include <stdbool.h>
#include <stdio.h>

#include "train/core/journal.h"

typedef struct {
    lki_journal           *journal; /* prints the notes */
    const lk_train_config *config;
    int                    fd;
    double                 limit;    /* on `waited`, in seconds; 0: waits for ever */
    double                 waited;   /* seconds for room, in the lines of the current step */
    double                 asked;    /* seconds for room since a request to stop */
    bool                   alone;    /* there are no other ranks */
    bool                   said;     /* that the reader does not read */
    bool                   left_out; /* further lines are dropped */
} lki_log_pipe;

/* Opens the pipe `path` for writing.  Returns NULL with ENXIO if it has no reader.  If the run
 * `waits` for one, says so after a second, and returns NULL with ECANCELED on a request to stop. */
FILE *lki_log_pipe_open(lki_log_pipe *self, const char *path, bool waits);

#endif

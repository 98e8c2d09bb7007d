/* cli/log_pipe.h -- keeps a log that is a pipe open while workers come and go.
 *
 * The reader of a pipe sees its end when the last process that writes to it closes it.  Rank 0,
 * which writes the log, may be lost and replaced, so the process that the user started holds the
 * pipe, too.
 */
#ifndef LKI_CLI_LOG_PIPE_H
#define LKI_CLI_LOG_PIPE_H

#include <stdbool.h>

/* Opens the log `path` (or NULL) for writing if it is a pipe.  Waits for its reader, and says so
 * after a second; a signal ends the process meanwhile.  Returns the descriptor, which the caller
 * closes after the run; -1: there is nothing to close. */
int lki_log_pipe_hold(const char *command, const char *path);

/* Returns true if this process or the one that started it holds the log's pipe. */
bool lki_log_pipe_is_held(void);

#endif

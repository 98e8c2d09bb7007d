/* cli/signals.h -- signals that end a command, held while it has something to remove first. */
#ifndef LKI_CLI_SIGNALS_H
#define LKI_CLI_SIGNALS_H

#include <signal.h>
#include <stdbool.h>

/* Blocks the signals that end a command (SIGINT, SIGTERM, SIGHUP), except those that are ignored,
 * and stores the mask before. */
void lki_hold_signals(sigset_t *before);

/* Returns true if a signal that is held, and was not held before, has arrived. */
bool lki_is_asked_to_end(const sigset_t *before);

/* Unblocks them again.  If one has arrived meanwhile, this process ends here. */
void lki_release_signals(const sigset_t *before);

#endif

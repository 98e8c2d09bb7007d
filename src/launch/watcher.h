/* launch/watcher.h -- names a rank of an MPI job that was killed.
 *
 * When a rank dies, MPI's launcher kills the others at once, and not every launcher says which rank
 * was the first (Hydra names the first process of the host).  Therefore a small process on each
 * machine, the watcher, waits for the ends of the machine's ranks, and writes one line to stderr if
 * one of them was killed.  Nothing else depends on it.
 */
#ifndef LKI_LAUNCH_WATCHER_H
#define LKI_LAUNCH_WATCHER_H

#include "launch/foreign.h"

/* Starts the watcher of this machine if this process has local rank 0.  Forks, so MPI must not be
 * initialised yet.  Without a watcher, no rank is named. */
void lki_watcher_start(const lki_foreign *job);

/* Tells the watcher the rank of this process, and, when the process exits by itself, that too. */
void lki_watcher_tell(const lki_foreign *job, uint32_t rank);

#endif

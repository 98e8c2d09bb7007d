/* train/saves/lock.h -- lets only one run at a time use a checkpoint directory.  See lock.c. */
#ifndef LKI_TRAIN_LOCK_H
#define LKI_TRAIN_LOCK_H

#include "train/core/journal.h"

#define LKI_LOCK_NAME ".lock" /* in the checkpoint directory */

/* Fails with LK_EIO if another run uses `dir`; the message names that run. */
LK_NODISCARD lk_status lki_lock_check(const char *dir);

/* Locks `dir` until lki_lock_drop() or the end of this process.  Fails with LK_EIO if another run
 * holds the lock.  If the file system has no locks, notes that in the journal and succeeds. */
LK_NODISCARD lk_status lki_lock_take(int *out, const char *dir, lki_journal *journal);
void                   lki_lock_drop(int fd, const char *dir); /* -1: does nothing */

/* Fails if another run has taken over the directory.  Succeeds if `fd` is -1. */
LK_NODISCARD lk_status lki_lock_hold(int fd, const char *dir);

#endif

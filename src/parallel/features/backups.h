/* parallel/features/backups.h -- a function for tests of backup workers; see backups.c. */
#ifndef LKI_PARALLEL_FEATURES_BACKUPS_H
#define LKI_PARALLEL_FEATURES_BACKUPS_H

#include "lockstep/parallel.h"

/* Returns true if enough ranks have finished, so that this rank can stop. */
bool lki_backups_over(const lk_parallel *parallel);

#endif

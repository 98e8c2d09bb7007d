/* features/speculation.h -- the state of speculation that tests read. */
#ifndef LKI_PARALLEL_FEATURES_SPECULATION_H
#define LKI_PARALLEL_FEATURES_SPECULATION_H

#include "lockstep/parallel.h"

/* Returns true if another rank's result counts for the current virtual worker. */
bool lki_speculation_lost(const lk_parallel *parallel);

#endif

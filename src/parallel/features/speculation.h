/* parallel/speculation.h -- ranks that compute virtual workers of slow ranks; see
 * features/speculation.c. */
#ifndef LKI_PARALLEL_SPECULATION_H
#define LKI_PARALLEL_SPECULATION_H

#include "lockstep/parallel.h"

/* Sets the seconds that one virtual worker must take on this rank before the rank computes other
 * ranks' virtual workers.  For shorter ones the cost of starting, mainly of loading data, would
 * exceed the gain.  The default is 0. */
void lki_speculation_from(lk_parallel *parallel, double seconds);

/* Returns true if another rank's result counts for the current virtual worker. */
bool lki_speculation_lost(const lk_parallel *parallel);

#endif

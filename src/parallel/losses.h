/* parallel/losses.h -- the losses of single virtual workers in the last step. */
#ifndef LKI_PARALLEL_LOSSES_H
#define LKI_PARALLEL_LOSSES_H

#include "lockstep/parallel.h"

/* With more virtual workers no losses are kept, because each would be in every line of the log. */
enum { LKI_LOSSES_MAX = 64 };

/* The mean loss of each virtual worker; 0 if nothing of it counts. */
typedef struct {
    uint32_t count; /* number of virtual workers; 0: not kept */
    double   of[LKI_LOSSES_MAX];
} lki_losses;

/* Returns the losses of the last finished step.  They are the same on all ranks.  There are none
 * with replicas or in asynchronous training. */
const lki_losses *lki_losses_of(const lk_parallel *parallel);

/* Takes the losses from the reports of all ranks, before the next step changes these. */
void lki_losses_take(lk_parallel *parallel);

#endif

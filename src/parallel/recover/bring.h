/* parallel/recover/bring.h -- what a host needs that has come late: bring.c. */
#ifndef LKI_PARALLEL_BRING_H
#define LKI_PARALLEL_BRING_H

#include "lockstep/parallel.h"

/* Collective, between two steps: hosts that are fresh[host] get parameters, the optimizer's state
 * and running state from the others.  LK_ECORRUPT where a piece was damaged again and again. */
LK_NODISCARD lk_status lki_bring(lk_parallel *parallel, const bool *fresh);

#endif

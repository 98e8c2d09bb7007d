/* parallel/recover/join_copy.h -- copies a model to hosts that join a running job; see
 * join_copy.c. */
#ifndef LKI_PARALLEL_RECOVER_JOIN_COPY_H
#define LKI_PARALLEL_RECOVER_JOIN_COPY_H

#include "lockstep/parallel.h"

/* Sends parameters, the optimizer's state and running state from the other hosts to every host
 * whose fresh[host] is set.  Collective, between two steps.  Returns LK_ECORRUPT if a piece arrived
 * damaged too often. */
LK_NODISCARD lk_status lki_join_copy(lk_parallel *parallel, const bool *fresh);

#endif

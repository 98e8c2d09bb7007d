/* comm/span/tuning.h -- the constants of the cost model, which the ranks of several hosts share. */
#ifndef LKI_COMM_SPAN_TUNING_H
#define LKI_COMM_SPAN_TUNING_H

#include <sched.h>

#include "comm/algorithm/cost.h"

/* Sets the constants and cores that rank 0 reads from a file, finds in its cache or measures.
 * Collective over hosts that have just connected. */
LK_NODISCARD lk_status lki_tuning_prepare(lk_comm *comm);

/* Sends all ranks the model and cores that rank 0 has in `known`, or measures them if there was no
 * other host before.  Collective. */
LK_NODISCARD lk_status lki_tuning_tell(lk_comm *comm, const lki_tuning *known);

/* Returns the number of cores that the ranks on these machines share; 0 if each rank has a core. */
double lki_tuning_cores(uint32_t ranks, const uint64_t *machines, const cpu_set_t *cores);

#endif

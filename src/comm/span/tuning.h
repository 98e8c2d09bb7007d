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

/* The cores that a rank may use. */
typedef struct {
    uint64_t  machine, container; /* equal for ranks that share it */
    double    granted; /* cores whose time the container has (lk_allowance); 0 = no limit */
    cpu_set_t bound;
} lki_rank_cores;

/* Returns the number of cores that these ranks share; 0 if each rank has a core. */
double lki_tuning_cores(uint32_t ranks, const lki_rank_cores *of);

#endif

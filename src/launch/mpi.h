/* launch/mpi.h -- joining a job whose hosts exchange bytes by MPI. */
#ifndef LKI_LAUNCH_MPI_H
#define LKI_LAUNCH_MPI_H

#include "lockstep/launch.h"

/* Opens the communicator of all ranks of the MPI job, as lk_comm_open_mpi() does.  Several hosts
 * also determine the constants of the cost model. */
LK_NODISCARD lk_status lki_mpi_join(lk_comm **out, const lk_comm_options *options);

#endif

/* comm/mpi.h -- a communicator over the ranks of an MPI job.
 *
 * The library does not know MPI: a module does (lockstep-mpi-openmpi.so, lockstep-mpi-mpich.so),
 * and the launch room finds it.  Collectives are ours, over point-to-point messages of MPI, and so
 * have the bits that they have everywhere.  Every rank counts as a host of its own.
 */
#ifndef LKI_COMM_MPI_H
#define LKI_COMM_MPI_H

#include "comm/link.h"
#include "lockstep/comm.h"

/* Loads the module in the file `path` and opens.  Collective over MPI_COMM_WORLD: what fails on one
 * rank once MPI runs fails on all.  LK_EUNSUPPORTED where the module, or its MPI, cannot be
 * loaded. */
LK_NODISCARD lk_status lki_mpi_open(lk_comm **out, const char *path,
                                    const lk_comm_options *options);

#endif

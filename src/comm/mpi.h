/* comm/mpi.h -- a communicator over the ranks of an MPI job.
 *
 * The library does not know MPI: a module does (lockstep-mpi-openmpi.so, lockstep-mpi-mpich.so),
 * and the launch room finds it.  Collectives are ours, over point-to-point messages of MPI, and so
 * have the bits that they have everywhere.  Neighbours on one machine share memory.
 */
#ifndef LKI_COMM_MPI_H
#define LKI_COMM_MPI_H

#include "comm/link.h"
#include "lockstep/comm.h"

/* Loads the module in the file `path` and opens.  Collective over MPI_COMM_WORLD: what fails on one
 * rank once MPI runs fails on all.  `hosts`, unless 0: ranks are dealt to so many hosts, and share
 * no memory across them, wherever they are.  LK_EUNSUPPORTED where the module, or its MPI, cannot
 * be loaded. */
LK_NODISCARD lk_status lki_mpi_open(lk_comm **out, const char *path,
                                    const lk_comm_options *options, uint32_t hosts);

#endif

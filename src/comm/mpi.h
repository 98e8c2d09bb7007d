/* comm/mpi.h -- a communicator over the ranks of an MPI job.
 *
 * The library itself is not linked with MPI.  The modules lockstep-mpi-openmpi.so and
 * lockstep-mpi-mpich.so are, and src/launch finds them.  Collectives are Lockstep's own, over MPI's
 * point-to-point messages, so their results have the same bits as over any other link.  Ranks on
 * one machine share memory.
 */
#ifndef LKI_COMM_MPI_H
#define LKI_COMM_MPI_H

#include "link/link.h"
#include "lockstep/comm.h"

/* Loads the module `path` and opens the communicator.  Collective over MPI_COMM_WORLD: once MPI
 * runs, all ranks fail if one rank fails.  If `hosts` is not 0, ranks are divided among that many
 * emulated hosts, which share no memory.  LK_EUNSUPPORTED if the module or its MPI cannot be
 * loaded. */
LK_NODISCARD lk_status lki_mpi_open(lk_comm **out, const char *path,
                                    const lk_comm_options *options, uint32_t hosts);

#endif

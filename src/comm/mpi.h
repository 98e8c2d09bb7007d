/* comm/mpi.h -- a communicator over the ranks of an MPI job.
 *
 * The library itself is not linked with MPI.  src/launch loads an MPI, and finds the module that
 * calls it (lockstep-mpi-openmpi.so or lockstep-mpi-mpich.so).  Collectives are Lockstep's own,
 * over MPI's point-to-point messages, so their results have the same bits as over any other
 * link.  Ranks on one machine share memory.
 */
#ifndef LKI_COMM_MPI_H
#define LKI_COMM_MPI_H

#include "link/link.h"
#include "lockstep/comm.h"

typedef struct {
    const char *path;    /* path of the module */
    const void *of;      /* points to an MPI_Comm or, with `fortran`, an MPI_Fint, whose ranks take
                          * part; NULL = all ranks of the job */
    size_t      of_bytes;
    bool        fortran;
    uint32_t    hosts; /* not 0: divides the ranks among this many emulated hosts, which share no
                        * memory */
    bool        tunes; /* determines the constants of the cost model, as lk_join() does */
} lki_mpi_how;

/* Loads the module and opens the communicator.  Collective over the ranks of how->of: once MPI
 * runs, all ranks fail if one rank fails.  LK_EUNSUPPORTED if the module or its MPI cannot be
 * loaded. */
LK_NODISCARD lk_status lki_mpi_open(lk_comm **out, const lki_mpi_how *how,
                                    const lk_comm_options *options);

#endif

/* launch/mpi_library.h -- loads the MPI library that this process's launcher belongs to. */
#ifndef LKI_LAUNCH_MPI_LIBRARY_H
#define LKI_LAUNCH_MPI_LIBRARY_H

#include "base/status.h"

/* Returns true if the program has loaded one of the libraries `names` (up to NULL).  Makes its
 * symbols global. */
bool lki_mpi_library_is_loaded(const char *const *names);

/* Loads one of the libraries `names` (up to NULL) of the MPI `mpi`, unless the program has loaded
 * an MPI.  The environment variable LOCKSTEP_MPI_LIBRARY names another file.  Otherwise the library
 * of the launcher that started this process comes first, then that of the system's loader.
 * LK_EUNSUPPORTED says where the library was looked for. */
LK_NODISCARD lk_status lki_mpi_library_load(const char *mpi, const char *const *names);

#endif

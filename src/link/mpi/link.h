/* link/mpi/link.h -- a link over an MPI module. */
#ifndef LKI_LINK_MPI_LINK_H
#define LKI_LINK_MPI_LINK_H

#include "link/link.h"
#include "link/mpi/module.h"

/* Creates a link over an open world.  The link receives nothing before lki_mpi_link_start().  The
 * link owns the world if the call succeeds; otherwise the caller still owns it. */
LK_NODISCARD lk_status lki_mpi_link_new(lki_link **out, const lki_mpi_module *module,
                                        lki_mpi_world *world, uint32_t rank, uint32_t ranks);

/* Starts to receive on all streams.  All ranks must have created their links.  A failed receive
 * breaks its stream. */
void lki_mpi_link_start(lki_link *link);

/* Frees a link that was not started.  The world stays open and belongs to the caller. */
void lki_mpi_link_free(lki_link *link);

#endif

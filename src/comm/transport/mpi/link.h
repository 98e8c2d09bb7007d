/* comm/transport/mpi/link.h -- byte streams over a module of MPI. */
#ifndef LKI_TRANSPORT_MPI_LINK_H
#define LKI_TRANSPORT_MPI_LINK_H

#include "comm/link.h"
#include "comm/transport/mpi/module.h"

/* A link over an open world; nothing is received before lki_mpi_link_start().  Takes the world
 * over only if that goes well. */
LK_NODISCARD lk_status lki_mpi_link_new(lki_link **out, const lki_mpi_module *module,
                                        lki_mpi_world *world, uint32_t rank, uint32_t ranks);

/* All ranks have their links.  What cannot be received breaks its stream. */
void lki_mpi_link_start(lki_link *link);

/* Frees a link that was not started; the world stays. */
void lki_mpi_link_free(lki_link *link);

#endif

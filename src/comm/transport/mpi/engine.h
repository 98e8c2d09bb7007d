/* comm/transport/mpi/engine.h -- the MPI of a job, beside the messages that it carries. */
#ifndef LKI_TRANSPORT_MPI_ENGINE_H
#define LKI_TRANSPORT_MPI_ENGINE_H

#include "comm/engine.h"
#include "comm/transport/mpi/module.h"

/* `closes`: no link does, so whoever leaves last lets go of the world. */
LK_NODISCARD lk_status lki_engine_new(lki_engine **out, const lki_mpi_module *module,
                                      lki_mpi_world *world, bool closes);

#endif

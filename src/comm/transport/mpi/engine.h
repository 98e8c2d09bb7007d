/* comm/transport/mpi/engine.h -- the MPI of a job, beside the messages that it carries. */
#ifndef LKI_TRANSPORT_MPI_ENGINE_H
#define LKI_TRANSPORT_MPI_ENGINE_H

#include "comm/engine.h"
#include "comm/transport/mpi/module.h"

struct lki_engine {
    const lki_mpi_module *module;
    lki_mpi_world        *world;
    bool                  closes; /* no link does, so whoever leaves last lets go of the world */
    const lk_comm        *comm;   /* that it serves */
    uint64_t              next;   /* number of the next request */
    uint64_t              turn[2]; /* which one may compare, which one may call */
};

#endif

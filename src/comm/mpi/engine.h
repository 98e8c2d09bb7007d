/* comm/mpi/engine.h -- MPI as the engine of a job (group/engine.h), which performs collectives
 * itself. */
#ifndef LKI_COMM_MPI_ENGINE_H
#define LKI_COMM_MPI_ENGINE_H

#include "comm/group/engine.h"
#include "comm/group/request.h"
#include "link/mpi/module.h"

typedef struct {
    lki_engine            head;
    const lki_mpi_module *module;
    lki_mpi_world        *world;
    bool                  closes; /* the engine closes the world when all ranks have left; if false,
                                   * the link does */
    uint64_t              next;   /* number of the next request */
    uint64_t              turn[2]; /* number of the request that may compare next, and of the
                                    * request that may call MPI next */
} lki_mpi_engine;

typedef struct lki_native lki_native;

/* Creates the engine.  With `closes`, a rank that leaves waits until all other ranks leave and then
 * finalizes MPI.  After a failure the rank waits for at most 5 s and leaves MPI unfinalized. */
LK_NODISCARD lk_status lki_mpi_engine_new(lki_mpi_engine **out, const lki_mpi_module *module,
                                          lki_mpi_world *world, bool closes);

/* Frees the engine without finalizing MPI.  NULL is allowed. */
void lki_mpi_engine_free(lki_mpi_engine *engine);

/* Takes over a request as lki_engine_ops.claim does. */
void lki_native_claim(lk_request *request);

/* ---- Requests ---------------------------------------------------------------------------- */

/* Returns true if MPI supports the operation. */
bool lki_native_can(const lk_request *request);

/* Starts MPI's collective over several hosts.  Corresponds to lki_task_new(). */
LK_NODISCARD lk_status lki_native_new(lki_native **out, const lk_request *request);

/* Advances MPI's collective.  Corresponds to lki_task_move(). */
LK_NODISCARD lk_status lki_native_move(lki_native *native, bool *moved, bool *done);

/* Returns true if MPI may still access the caller's buffers; false for NULL. */
bool lki_native_open(const lki_native *native);

/* Frees the operation, except memory that MPI may still use.  NULL is allowed. */
void lki_native_free(lki_native *native);

/* Yields the processor or, after some ms of waiting, sleeps briefly.  MPI makes progress only while
 * a rank polls it, and cannot wake a sleeping rank. */
void lki_native_rest(int64_t waited_ms);

#endif

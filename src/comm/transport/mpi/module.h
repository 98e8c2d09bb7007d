/* comm/transport/mpi/module.h -- what lockstep-mpi-NAME.so does for the library, and nothing else.
 *
 * Open MPI and MPICH have different types behind the same names, so whatever includes <mpi.h> is
 * compiled once for each of them, into a module that is loaded when it is asked for.  A module is
 * thin: it numbers requests (slots) and moves bytes, and hands collectives on to MPI's own.  It
 * stands on libc and MPI alone, so of the library this header has names of types and no function.
 *
 * Errors:  a call returns NULL, or what went wrong; the text stays until the next call.
 * Threads: one at a time.
 */
#ifndef LKI_TRANSPORT_MPI_MODULE_H
#define LKI_TRANSPORT_MPI_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lockstep/base.h"

enum { LKI_MPI_REVISION = 2 };

/* The module's only symbol, of type `const lki_mpi_module`. */
#define LKI_MPI_SYMBOL "lk_mpi_module"

typedef struct lki_mpi_world lki_mpi_world;

/* A request that is complete, so that its slot is free again. */
typedef struct {
    uint32_t    slot;
    size_t      bytes; /* received */
    const char *error; /* NULL: it went well */
} lki_mpi_done;

/* ---- Collectives of MPI's own ------------------------------------------------------------ */

typedef enum {
    LKI_MPI_BROADCAST,
    LKI_MPI_ALL_GATHER, /* `count`: of each rank's part, as in the next two */
    LKI_MPI_ALL_TO_ALL,
    LKI_MPI_REDUCE_SCATTER,
    LKI_MPI_ALL_REDUCE,
    LKI_MPI_REDUCE,
} lki_mpi_kind;

/* Calls are made in the same order on all ranks: those that are `apart`, and the others. */
typedef struct {
    lki_mpi_kind   kind;
    lk_dtype       dtype; /* not F16 or BF16 */
    lk_reduce_kind op;    /* SUM, PRODUCT, MIN or MAX */
    uint32_t       root;
    bool           apart;
    const void    *send; /* NULL: in place, as MPI_IN_PLACE */
    void          *recv;
    size_t         count; /* elements, at most INT_MAX */
} lki_mpi_call;

typedef struct lki_mpi_ticket lki_mpi_ticket;

/* ---- The table --------------------------------------------------------------------------- */

typedef struct {
    uint32_t revision; /* LKI_MPI_REVISION: the rest is as below */

    /* Initialises MPI unless that was done, and takes a communicator of its own over all ranks. */
    const char *(*open)(lki_mpi_world **out, uint32_t *rank, uint32_t *ranks);

    /* How many requests may be open at once; before the first of them. */
    const char *(*reserve)(lki_mpi_world *world, uint32_t slots);

    /* Collective, and waits: everybody's `bytes` bytes, in order of rank. */
    const char *(*gather)(lki_mpi_world *world, const void *mine, void *all, size_t bytes);

    /* Starts a message in a free slot; `data` is MPI's until the slot is done.  A send is done
     * when the receiver has begun to receive it.  Messages with the same tag keep their order. */
    const char *(*send)(lki_mpi_world *world, uint32_t slot, uint32_t peer, uint32_t tag,
                        const void *data, size_t bytes);
    const char *(*receive)(lki_mpi_world *world, uint32_t slot, uint32_t peer, uint32_t tag,
                           void *data, size_t bytes);

    /* Lists requests that have completed, without waiting. */
    const char *(*poll)(lki_mpi_world *world, const lki_mpi_done **done, uint32_t *count);

    /* Starts a collective.  Buffers are MPI's until test() has said that it is done; then the
     * ticket is gone.  close() waits a moment for those that are not, or leaves MPI as it is. */
    const char *(*start)(lki_mpi_world *world, const lki_mpi_call *call, lki_mpi_ticket **out);
    const char *(*test)(lki_mpi_world *world, lki_mpi_ticket *ticket, bool *done);

    /* No request is open.  Collective; finalises MPI if open() has initialised it. */
    void (*close)(lki_mpi_world *world);
} lki_mpi_module;

#endif

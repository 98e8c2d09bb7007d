/* link/mpi/module.h -- the interface between lockstep-mpi-NAME.so and the library.
 *
 * Open MPI and MPICH define the same names with different types.  All code that includes <mpi.h> is
 * therefore compiled into two modules, one for each library, which are loaded on demand.  A module
 * only numbers requests (slots), moves bytes, and forwards collectives to MPI.  A module depends on
 * libc, and on the MPI that was loaded before it, so this header uses types of the library but no
 * functions.
 *
 * Errors:  a call returns NULL or an error text, which is valid until the next call.
 * Threads: only one thread at a time may call a module.
 */
#ifndef LKI_LINK_MPI_MODULE_H
#define LKI_LINK_MPI_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lockstep/base.h"

enum { LKI_MPI_REVISION = 4, LKI_MPI_NAME_BYTES = 64 };

/* The module's only symbol, of type `const lki_mpi_module`. */
#define LKI_MPI_SYMBOL "lk_mpi_module"

typedef struct lki_mpi_world lki_mpi_world;

/* The communicator whose ranks take part. */
typedef struct {
    const void *comm;  /* points to the program's MPI_Comm or, with `fortran`, MPI_Fint; NULL =
                        * MPI_COMM_WORLD */
    size_t      bytes; /* size of the handle at `comm` */
    bool        fortran;
} lki_mpi_ranks;

/* A completed request, whose slot is free again. */
typedef struct {
    uint32_t    slot;
    size_t      bytes; /* number of bytes received */
    bool        cancelled;
    const char *error; /* NULL: success */
} lki_mpi_done;

/* ---- Collectives of MPI's own ------------------------------------------------------------ */

typedef enum {
    LKI_MPI_BROADCAST,
    LKI_MPI_ALL_GATHER, /* for this kind and the next two kinds `count` is the number of elements of
                         * one rank's part */
    LKI_MPI_ALL_TO_ALL,
    LKI_MPI_REDUCE_SCATTER,
    LKI_MPI_ALL_REDUCE,
    LKI_MPI_REDUCE,
} lki_mpi_kind;

/* A collective.  All ranks must make their calls with `apart` in one order, and their calls without
 * `apart` in one order.  The two orders are independent. */
typedef struct {
    lki_mpi_kind   kind;
    lk_dtype       dtype; /* any type but F16 and BF16 */
    lk_reduce_kind op;    /* SUM, PRODUCT, MIN or MAX */
    uint32_t       root;
    bool           apart;
    const void    *send; /* NULL: in place, as MPI_IN_PLACE */
    void          *recv;
    size_t         count; /* number of elements, at most INT_MAX */
} lki_mpi_call;

typedef struct lki_mpi_ticket lki_mpi_ticket;

/* ---- The table --------------------------------------------------------------------------- */

typedef struct {
    uint32_t revision; /* must be LKI_MPI_REVISION; otherwise the other fields may differ */

    /* Writes the name and version of the MPI library: "Open MPI 4.1.4". */
    void (*name)(char out[LKI_MPI_NAME_BYTES]);

    /* Duplicates the communicator `of`.  Collective over its ranks.  Initialises MPI before if `of`
     * is MPI_COMM_WORLD and MPI is not initialised. */
    const char *(*open)(lki_mpi_world **out, uint32_t *rank, uint32_t *ranks,
                        const lki_mpi_ranks *of);

    /* Sets the maximum number of open requests.  Must precede the first request. */
    const char *(*reserve)(lki_mpi_world *world, uint32_t slots);

    /* Gathers `bytes` bytes from all ranks, in order of rank.  Collective and blocking. */
    const char *(*gather)(lki_mpi_world *world, const void *mine, void *all, size_t bytes);

    /* Starts to send a message.  The request gets the number `slot`, which must be free.  `data`
     * must not change until poll() reports the slot.  A send is complete when the receiver has
     * begun to receive the message.  Messages with one tag stay in order. */
    const char *(*send)(lki_mpi_world *world, uint32_t slot, uint32_t peer, uint32_t tag,
                        const void *data, size_t bytes);
    /* Starts to receive a message.  The request gets the number `slot`, which must be free.  `data`
     * belongs to MPI until poll() reports the slot. */
    const char *(*receive)(lki_mpi_world *world, uint32_t slot, uint32_t peer, uint32_t tag,
                           void *data, size_t bytes);

    /* Cancels a receive, unless its message has begun to arrive.  poll() reports the slot in both
     * cases. */
    const char *(*cancel)(lki_mpi_world *world, uint32_t slot);

    /* Lists requests that have completed, without waiting. */
    const char *(*poll)(lki_mpi_world *world, const lki_mpi_done **done, uint32_t *count);

    /* Starts a collective.  Its buffers belong to MPI until test() sets *done.  close() waits
     * briefly for unfinished collectives.  If they do not finish, close() leaves MPI
     * unfinalised. */
    const char *(*start)(lki_mpi_world *world, const lki_mpi_call *call, lki_mpi_ticket **out);
    /* Tests a collective without waiting.  *done becomes true if the collective is complete; the
     * ticket is then freed. */
    const char *(*test)(lki_mpi_world *world, lki_mpi_ticket *ticket, bool *done);

    /* Closes the world.  Collective.  No message may be open.  Finalises MPI if open() initialised
     * MPI.  `stopping`: this rank was asked to stop, probably by MPI's launcher; MPI is then left
     * unfinalised on all ranks if finalising would wait for the launcher (Open MPI). */
    void (*close)(lki_mpi_world *world, bool stopping);
} lki_mpi_module;

#endif

/* comm/transport/mpi/module.h -- what lockstep-mpi-NAME.so does for the library, and nothing else.
 *
 * Open MPI and MPICH have different types behind the same names, so whatever includes <mpi.h> is
 * compiled once for each of them, into a module that is loaded when it is asked for.  A module is
 * thin: it numbers requests (slots) and moves bytes.  It stands on libc and MPI alone, so this
 * header must do without the rest of the library.
 *
 * Errors:  a call returns NULL, or what went wrong; the text stays until the next call.
 * Threads: one at a time.
 */
#ifndef LKI_TRANSPORT_MPI_MODULE_H
#define LKI_TRANSPORT_MPI_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LKI_MPI_REVISION = 1 };

/* The module's only symbol, of type `const lki_mpi_module`. */
#define LKI_MPI_SYMBOL "lk_mpi_module"

typedef struct lki_mpi_world lki_mpi_world;

/* A request that is complete, so that its slot is free again. */
typedef struct {
    uint32_t    slot;
    size_t      bytes; /* received */
    const char *error; /* NULL: it went well */
} lki_mpi_done;

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

    /* No request is open.  Collective; finalises MPI if open() has initialised it. */
    void (*close)(lki_mpi_world *world);
} lki_mpi_module;

#endif

/* base/store_engine.h -- the interface of the two transfer engines of a store. */
#ifndef LKI_STORE_ENGINE_H
#define LKI_STORE_ENGINE_H

#include "base/store.h"

/* The transfer of one slot. */
typedef struct {
    bool     under_way, write, complete;
    uint8_t *buffer;
    size_t   bytes, done;
    uint64_t offset;
    int      error; /* errno; 0: none.  If 0 and done < bytes, a system call transferred no byte */
} lki_transfer;

/* A transfer engine. start() begins transfers[slot]. test() returns true if the transfer is
 * complete. wait() returns when the transfer is complete; done < bytes means that the transfer
 * failed.  The store owns the transfers, and reads a transfer only once it is complete. */
typedef struct {
    const char *name;
    lk_status (*open)(void **out, int fd, lki_transfer *transfers);
    void (*start)(void *engine, uint32_t slot);
    bool (*test)(void *engine, uint32_t slot);
    void (*wait)(void *engine, uint32_t slot);
    void (*close)(void *engine); /* accepts NULL; no transfer is in progress */
} lki_store_engine;

/* The io_uring engine. open() fails with LK_EUNSUPPORTED if the build or the kernel lacks
 * io_uring. */
extern const lki_store_engine lki_store_uring;
/* The fallback, two threads. */
extern const lki_store_engine lki_store_threads;

#endif

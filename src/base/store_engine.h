/* base/store_engine.h -- the two ways in which a store moves bytes. */
#ifndef LKI_STORE_ENGINE_H
#define LKI_STORE_ENGINE_H

#include "base/store.h"

/* One slot's. */
typedef struct {
    bool     under_way, write, complete;
    uint8_t *buffer;
    size_t   bytes, done;
    uint64_t offset;
    int      error; /* errno, or 0; with done < bytes: nothing was moved */
} lki_transfer;

/* start() begins transfers[slot]; test() says whether it is complete, and wait() returns when it
 * is, with less done if it failed.
 * Transfers are the store's, which does not look at one that is not complete. */
typedef struct {
    const char *name;
    lk_status (*open)(void **out, int fd, lki_transfer *transfers);
    void (*start)(void *engine, uint32_t slot);
    bool (*test)(void *engine, uint32_t slot);
    void (*wait)(void *engine, uint32_t slot);
    void (*close)(void *engine); /* NULL is allowed; nothing is under way */
} lki_store_engine;

/* LK_EUNSUPPORTED where this build or the kernel has none. */
extern const lki_store_engine lki_store_uring;
extern const lki_store_engine lki_store_threads;

#endif

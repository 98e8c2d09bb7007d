/* store.c -- the file of a store, and the completion of its transfers. */
#include "base/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/store_engine.h"

enum { DIR_BYTES = 256 };

struct lki_store {
    int                     fd;
    uint64_t                bytes;
    char                    dir[DIR_BYTES], how[64]; /* dir: for messages */
    const lki_store_engine *by;
    void                   *engine;
    lki_transfer            transfers[LKI_STORE_SLOTS];
};

/* ---- The file ---------------------------------------------------------------------------- */

/* Creates a file in `dir` and removes its name at once.  Returns the descriptor. */
static int open_nameless(const char *dir)
{
    char path[DIR_BYTES + 32];
    (void)snprintf(path, sizeof path, "%s/.lockstep-XXXXXX", dir);
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        (void)unlink(path);
    return fd;
}

static lk_status take_room(const lki_store *store)
{
    int failed = fallocate(store->fd, 0, 0, (off_t)store->bytes);
    if (failed != 0 && errno == EOPNOTSUPP)
        failed = ftruncate(store->fd, (off_t)store->bytes);
    if (failed != 0)
        return lk_fail(LK_EIO, "cannot make a file of %.1f MiB in '%s': %s",
                       (double)store->bytes / 0x1p20, store->dir, strerror(errno));
    return LK_OK;
}

static lk_status open_file(lki_store *store, const char *dir)
{
    if (snprintf(store->dir, sizeof store->dir, "%s", dir) >= (int)sizeof store->dir)
        return lk_fail(LK_EINVAL, "'%.60s...' is too long for a directory's path", dir);
    store->fd = open_nameless(store->dir);
    if (store->fd < 0)
        return lk_fail(LK_EIO, "cannot make a file in '%s': %s", dir, strerror(errno));
    return take_room(store);
}

/* Enables direct I/O if the file system supports it, and returns a description. */
static const char *pass_by_cache(const lki_store *store)
{
    int flags = fcntl(store->fd, F_GETFL);
    return flags >= 0 && fcntl(store->fd, F_SETFL, flags | O_DIRECT) == 0
               ? "past the page cache" : "through the page cache";
}

static lk_status open_engine(lki_store *store)
{
    store->by = &lki_store_uring;
    if (store->by->open(&store->engine, store->fd, store->transfers) == LK_OK)
        return LK_OK;
    store->by = &lki_store_threads;
    return store->by->open(&store->engine, store->fd, store->transfers);
}

lk_status lki_store_open(lki_store **out, const char *dir, uint64_t bytes)
{
    lki_store *store = NULL;
    *out             = NULL;
    LK_ASSERT(bytes > 0 && bytes % LKI_STORE_ALIGN == 0);
    LK_TRY(LKI_NEW(&store, 1, "a file for offloaded memory"));
    store->fd        = -1;
    store->bytes     = bytes;
    lk_status status = open_file(store, dir);
    if (status == LK_OK)
        status = open_engine(store);
    if (status != LK_OK) {
        lki_store_free(store);
        return status;
    }
    (void)snprintf(store->how, sizeof store->how, "%s, %s", store->by->name,
                   pass_by_cache(store));
    *out = store;
    return LK_OK;
}

void lki_store_free(lki_store *store)
{
    if (store == NULL)
        return;
    for (uint32_t slot = 0; slot < LKI_STORE_SLOTS; slot++)
        if (store->transfers[slot].under_way)
            store->by->wait(store->engine, slot);
    if (store->by != NULL)
        store->by->close(store->engine);
    if (store->fd >= 0)
        (void)close(store->fd);
    lki_free(store);
}

const char *lki_store_how(const lki_store *store)
{
    return store->how;
}

/* ---- Transfers --------------------------------------------------------------------------- */

void lki_store_start(lki_store *store, uint32_t slot, bool write, void *buffer, size_t bytes,
                     uint64_t offset)
{
    LK_ASSERT(slot < LKI_STORE_SLOTS && !store->transfers[slot].under_way);
    LK_ASSERT(offset % LKI_STORE_ALIGN == 0 && bytes % LKI_STORE_ALIGN == 0 && bytes > 0);
    LK_ASSERT(bytes <= store->bytes && offset <= store->bytes - bytes);
    store->transfers[slot] = (lki_transfer){
        .under_way = true, .write = write, .buffer = buffer, .bytes = bytes, .offset = offset
    };
    store->by->start(store->engine, slot);
}

bool lki_store_test(lki_store *store, uint32_t slot)
{
    return !store->transfers[slot].under_way || store->by->test(store->engine, slot);
}

lk_status lki_store_wait(lki_store *store, uint32_t slot)
{
    lki_transfer *t = &store->transfers[slot];
    if (!t->under_way)
        return LK_OK;
    store->by->wait(store->engine, slot);
    t->under_way = false;
    if (t->done == t->bytes)
        return LK_OK;
    return lk_fail(LK_EIO, "cannot %s the file in '%s' at byte %" PRIu64 ": %s",
                   t->write ? "write" : "read", store->dir, t->offset + t->done,
                   t->error != 0 ? strerror(t->error)
                   : t->write    ? "nothing was accepted"
                                 : "it ends there");
}

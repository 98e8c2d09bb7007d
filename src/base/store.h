/* base/store.h -- a nameless file in which memory is laid aside, read ahead and written behind.
 *
 * The file is gone when its process ends, however that ends.  A slot carries one transfer at a
 * time; slots move independently, so a caller computes on one buffer while others are on their
 * way.
 *
 * Where the kernel lets us, transfers go through io_uring; otherwise two threads make them, with
 * the same bytes.  Where the file system takes it, they pass by the page cache (O_DIRECT): memory
 * that was laid aside is not to come back as cache.
 *
 * Threads:    one at a time.
 * Ownership:  a buffer is the store's from start to wait.
 */
#ifndef LKI_STORE_H
#define LKI_STORE_H

#include "base/status.h"

/* What buffers, sizes and offsets are multiples of. */
enum { LKI_STORE_ALIGN = 4096, LKI_STORE_SLOTS = 8 };

typedef struct lki_store lki_store;

/* Makes a file of `bytes` bytes in the directory `dir` and has room for them there: LK_EIO says why
 * not. */
LK_NODISCARD lk_status lki_store_open(lki_store **out, const char *dir, uint64_t bytes);
void                   lki_store_free(lki_store *store);

/* By what transfers are made: "io_uring, past the page cache". */
const char *lki_store_how(const lki_store *store);

/* Starts a transfer; the slot has none under way.  Whether it succeeds the wait for it says. */
void lki_store_start(lki_store *store, uint32_t slot, bool write, void *buffer, size_t bytes,
                     uint64_t offset);

/* Whether lki_store_wait() would return at once. */
bool lki_store_test(lki_store *store, uint32_t slot);

/* Until the slot's transfer is complete; at once if it has none.  LK_EIO names directory and byte.
 */
LK_NODISCARD lk_status lki_store_wait(lki_store *store, uint32_t slot);

#endif

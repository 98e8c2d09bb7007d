/* base/store.h -- an unnamed file to which memory is offloaded, with asynchronous transfers.
 *
 * The file disappears when its process ends, in whatever way.  A store has LKI_STORE_SLOTS slots,
 * and a slot has one transfer at a time.  Slots are independent, so a caller can compute on one
 * buffer while other buffers are being transferred.
 *
 * Transfers use io_uring if the kernel allows it, otherwise two threads, with the same bytes.
 * Transfers bypass the page cache (O_DIRECT) if the file system supports that, so that offloaded
 * data does not occupy memory again as cache.
 *
 * Threads:    one thread at a time may use a store.
 * Ownership:  a buffer belongs to the store from start to wait.
 */
#ifndef LKI_STORE_H
#define LKI_STORE_H

#include "base/status.h"

/* Buffers, sizes and offsets must be multiples of LKI_STORE_ALIGN. */
enum { LKI_STORE_ALIGN = 4096, LKI_STORE_SLOTS = 8 };

typedef struct lki_store lki_store;

/* Creates a file of `bytes` bytes in the directory `dir` and allocates its space.  Returns LK_EIO
 * with the reason. */
LK_NODISCARD lk_status lki_store_open(lki_store **out, const char *dir, uint64_t bytes);
void                   lki_store_free(lki_store *store);

/* Describes how transfers are performed, e.g. "io_uring, past the page cache". */
const char *lki_store_how(const lki_store *store);

/* Starts a transfer in a slot that has no transfer in progress. lki_store_wait() reports a failure
 * of the transfer. */
void lki_store_start(lki_store *store, uint32_t slot, bool write, void *buffer, size_t bytes,
                     uint64_t offset);

/* Returns true if lki_store_wait() would return at once. */
bool lki_store_test(lki_store *store, uint32_t slot);

/* Waits for the slot's transfer; returns at once if the slot has none.  On failure returns LK_EIO;
 * the message names the directory and the offset. */
LK_NODISCARD lk_status lki_store_wait(lki_store *store, uint32_t slot);

#endif

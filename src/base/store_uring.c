/* store_uring.c -- performs a store's transfers by io_uring.  The kernel performs them without a
 * thread of this process.
 *
 * A build without liburing, or a kernel that forbids io_uring, uses store_threads.c.
 */
#include "base/store_engine.h"

#ifdef LK_URING
#include <errno.h>
#include <liburing.h>
#include <string.h>

#include "base/memory.h"

typedef struct {
    struct io_uring ring;
    int             fd;
    lki_transfer   *transfers;
} engine;

static lk_status uring_open(void **out, int fd, lki_transfer *transfers)
{
    engine *e = NULL;
    *out      = NULL;
    LK_TRY(LKI_NEW(&e, 1, "a ring of transfers"));
    e->fd        = fd;
    e->transfers = transfers;
    int error    = -io_uring_queue_init(LKI_STORE_SLOTS, &e->ring, 0);
    if (error != 0) {
        lki_free(e);
        return lk_fail(LK_EUNSUPPORTED, "io_uring: %s", strerror(error));
    }
    *out = e;
    return LK_OK;
}

/* Submits the remainder of a transfer. */
static void submit(engine *e, uint32_t slot)
{
    lki_transfer        *t    = &e->transfers[slot];
    struct io_uring_sqe *sqe  = io_uring_get_sqe(&e->ring);
    uint8_t             *at   = t->buffer + t->done;
    unsigned             left = (unsigned)lki_min(t->bytes - t->done, 1u << 30);
    LK_ASSERT(sqe != NULL); /* the ring has an entry per slot */
    if (t->write)
        io_uring_prep_write(sqe, e->fd, at, left, t->offset + t->done);
    else
        io_uring_prep_read(sqe, e->fd, at, left, t->offset + t->done);
    io_uring_sqe_set_data64(sqe, slot);
    int submitted;
    do
        submitted = io_uring_submit(&e->ring);
    while (submitted == -EINTR || submitted == -EAGAIN || submitted == -EBUSY);
    t->error    = submitted < 0 ? -submitted : 0;
    t->complete = submitted < 0;
}

static void uring_start(void *self, uint32_t slot)
{
    submit(self, slot);
}

/* Records the result of a completion.  Submits the rest of an incomplete transfer. */
static void take(engine *e, uint32_t slot, int result)
{
    lki_transfer *t     = &e->transfers[slot];
    bool          again = result > 0 || result == -EINTR || result == -EAGAIN;
    t->done += result > 0 ? (size_t)result : 0;
    t->error    = again ? 0 : -result;
    t->complete = !again || t->done == t->bytes;
    if (!t->complete)
        submit(e, slot);
}

static void hear(engine *e, struct io_uring_cqe *cqe)
{
    uint32_t which = (uint32_t)io_uring_cqe_get_data64(cqe);
    int      said  = cqe->res;
    io_uring_cqe_seen(&e->ring, cqe);
    take(e, which, said);
}

static bool uring_test(void *self, uint32_t slot)
{
    engine              *e = self;
    struct io_uring_cqe *cqe;
    while (!e->transfers[slot].complete && io_uring_peek_cqe(&e->ring, &cqe) == 0)
        hear(e, cqe);
    return e->transfers[slot].complete;
}

static void uring_wait(void *self, uint32_t slot)
{
    engine *e = self;
    while (!e->transfers[slot].complete) {
        struct io_uring_cqe *cqe;
        int                  error = -io_uring_wait_cqe(&e->ring, &cqe);
        if (error == EINTR)
            continue;
        LK_ASSERT(error == 0); /* cannot fail on a valid ring of our own */
        hear(e, cqe);
    }
}

static void uring_close(void *self)
{
    engine *e = self;
    if (e == NULL)
        return;
    io_uring_queue_exit(&e->ring);
    lki_free(e);
}

const lki_store_engine lki_store_uring = { "io_uring", uring_open, uring_start,
                                           uring_test, uring_wait, uring_close };

#else

static lk_status none_open(void **out, int fd, lki_transfer *transfers)
{
    (void)fd;
    (void)transfers;
    *out = NULL;
    return lk_fail(LK_EUNSUPPORTED, "io_uring: this build has no liburing");
}

const lki_store_engine lki_store_uring = { "io_uring", none_open, NULL, NULL, NULL, NULL };
#endif

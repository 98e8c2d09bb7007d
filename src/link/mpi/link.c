/* link.c -- the link over MPI: streams of chunks, polled.  Posted transfers are in posts.c.
 *
 * A write copies into a free chunk and sends it.  A stream has a few chunks at its writer and a few
 * at its reader.  A send completes only when its receiver has matched it, so the number of chunks
 * bounds the bytes in flight.  Receives are always posted for every stream, so a peer can begin at
 * any time.  An empty message marks the end of a stream.  The writer sends one empty message for
 * each receive that the reader has posted, so that no receive stays open.
 *
 * MPI cannot sleep until a message arrives, and moves bytes only while it is polled.  wait()
 * therefore yields until no request has completed for a while, and then sleeps for growing times,
 * up to 1 ms.
 *
 * Closing sends the end to all peers, reads (and drops) incoming data until all peers have sent
 * their ends, and only then closes MPI.  MPI_Finalize waits for all ranks, and requires that no
 * request is open.  After a failure (link->hurry) peers may never close.  Closing then gives up
 * after LINGER_MS, or ENDING_MS.  It leaves MPI unfinalised and does not free the buffers, because
 * MPI may still use them.
 */
#include "link/mpi/inside.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

static int64_t mpi_now_ms(const lki_link *link)
{
    (void)link;
    return lki_mpi_now_us() / 1000;
}

/* ---- Requests ---------------------------------------------------------------------------- */

void lki_mpi_break(mpi_stream *stream, const char *why)
{
    enum { BYTES = 200 };

    if (stream->why != NULL || lki_alloc((void **)&stream->why, BYTES, "a broken stream") != LK_OK)
        return;
    (void)snprintf(stream->why, BYTES, "%s", why);
}

static void receive(mpi_link *mpi, uint32_t peer, uint32_t chunk)
{
    mpi_stream *stream = &mpi->streams[peer];
    const char *error  = mpi->module->receive(mpi->world, peer * SLOTS + OUT + chunk, peer,
                                              TAG_CHUNK, stream->in + chunk * (size_t)CHUNK, CHUNK);

    if (error != NULL)
        lki_mpi_break(stream, error);
    mpi->open += error == NULL;
}

/* Releases the first incoming chunk, all bytes of which have been read. */
static void next_chunk(mpi_link *mpi, uint32_t peer)
{
    mpi_stream *stream = &mpi->streams[peer];
    uint32_t    chunk  = stream->first;

    stream->arrived[chunk] = false;
    stream->first          = (chunk + 1) % IN;
    stream->taken          = 0;
    receive(mpi, peer, chunk);
}

static void complete(mpi_link *mpi, const lki_mpi_done *done)
{
    mpi_stream *stream = &mpi->streams[done->slot / SLOTS];
    uint32_t    part   = done->slot % SLOTS;

    mpi->open--;
    if (part >= SENDS_AT) {
        lki_mpi_complete_post(mpi, done);
        return;
    }
    if (part < OUT)
        stream->sending[part] = false;
    if (done->error != NULL) {
        lki_mpi_break(stream, done->error);
    } else if (part >= OUT && part < OUT + IN) {
        stream->arrived[part - OUT] = true;
        stream->bytes[part - OUT]   = done->bytes;
        stream->heard               = stream->heard || done->bytes > 0;
    }
}

lk_status lki_mpi_poll(mpi_link *mpi)
{
    const lki_mpi_done *done;
    uint32_t            count;

    if (mpi->stuck)
        return lk_fail(LK_EIO, "MPI did not end its transfers after a failure");
    const char *error = mpi->module->poll(mpi->world, &done, &count);
    if (error != NULL)
        return lk_fail(LK_EIO, "%s", error);
    if (count > 0)
        mpi->moved_us = lki_mpi_now_us();
    for (uint32_t i = 0; i < count; i++)
        complete(mpi, &done[i]);
    return LK_OK;
}

/* ---- Streams ----------------------------------------------------------------------------- */

/* Returns the index of an outgoing chunk that is free, or OUT if no chunk is free. */
static uint32_t free_chunk(const mpi_stream *stream)
{
    uint32_t chunk = 0;

    while (chunk < OUT && stream->sending[chunk])
        chunk++;
    return chunk;
}

/* Returns true if the first incoming chunk has bytes to read. */
static bool full(const mpi_stream *stream)
{
    return stream->arrived[stream->first] && stream->bytes[stream->first] > 0;
}

/* Returns true if the writer has closed and all earlier bytes were read.  Checks only the first
 * chunk, because a later chunk may complete before an earlier one. */
static bool ended(const mpi_stream *stream)
{
    return stream->arrived[stream->first] && stream->bytes[stream->first] == 0;
}

/* Returns true if a stream was used and has ended. */
static bool over(const mpi_stream *stream)
{
    return ended(stream) && (stream->heard || stream->out != NULL);
}

lk_status lki_mpi_broken(const mpi_link *mpi, uint32_t peer)
{
    const mpi_stream *stream = &mpi->streams[peer];

    return lk_fail(LK_EPEER, "the stream with rank %u over MPI %s%s", peer,
                   stream->why != NULL ? "is broken: " : "was closed at the other end",
                   stream->why != NULL ? stream->why : "");
}

/* Copies up to `room` bytes of the iovec parts to `chunk`, starting after the first `skip` bytes.
 * Returns the number of bytes copied. */
static size_t fill(unsigned char *chunk, size_t room, const struct iovec *parts, int count,
                   size_t skip)
{
    size_t filled = 0;

    for (int i = 0; i < count && filled < room; i++) {
        if (skip >= parts[i].iov_len) {
            skip -= parts[i].iov_len;
            continue;
        }
        size_t n = lki_min(parts[i].iov_len - skip, room - filled);
        memcpy(chunk + filled, (const unsigned char *)parts[i].iov_base + skip, n);
        filled += n;
        skip = 0;
    }
    return filled;
}

static lk_status mpi_write(lki_link *link, uint32_t peer, uint32_t index,
                           const struct iovec *parts, int count, size_t *moved)
{
    mpi_link   *mpi    = lki_mpi_of(link);
    mpi_stream *stream = &mpi->streams[peer];
    uint32_t    chunk;

    LK_ASSERT(peer < link->ranks && peer != link->rank && index == 0);
    *moved = 0;
    if (stream->out == NULL)
        LK_TRY(lki_alloc_untouched((void **)&stream->out, (size_t)OUT * CHUNK,
                                   "a stream over MPI"));
    while (stream->why == NULL && !ended(stream) && (chunk = free_chunk(stream)) < OUT) {
        unsigned char *data  = stream->out + chunk * (size_t)CHUNK;
        size_t         bytes = fill(data, CHUNK, parts, count, *moved);
        if (bytes == 0)
            break;
        const char *error = mpi->module->send(mpi->world, peer * SLOTS + chunk, peer, TAG_CHUNK,
                                              data, bytes);
        if (error != NULL) {
            lki_mpi_break(stream, error);
            break;
        }
        stream->sending[chunk] = true;
        mpi->open++;
        *moved += bytes;
    }
    return stream->why != NULL || ended(stream) ? lki_mpi_broken(mpi, peer) : LK_OK;
}

static lk_status mpi_read(lki_link *link, uint32_t peer, uint32_t index, void *data, size_t bytes,
                          size_t *moved)
{
    mpi_link   *mpi    = lki_mpi_of(link);
    mpi_stream *stream = &mpi->streams[peer];

    LK_ASSERT(peer < link->ranks && peer != link->rank && index == 0);
    *moved = 0;
    while (*moved < bytes && full(stream)) {
        const unsigned char *chunk = stream->in + stream->first * (size_t)CHUNK;
        size_t               left  = stream->bytes[stream->first] - stream->taken;
        size_t               n     = lki_min(bytes - *moved, left);
        memcpy((unsigned char *)data + *moved, chunk + stream->taken, n);
        *moved += n;
        stream->taken += n;
        if (stream->taken == stream->bytes[stream->first])
            next_chunk(mpi, peer);
    }
    if (*moved == 0 && (over(stream) || stream->why != NULL))
        return lki_mpi_broken(mpi, peer);
    return LK_OK;
}

static void mpi_watch(lki_link *link, uint32_t peer, uint32_t index, bool reading, bool writing)
{
    mpi_stream *stream = &lki_mpi_of(link)->streams[peer];

    LK_ASSERT(peer < link->ranks && index == 0);
    stream->reading = reading;
    stream->writing = writing;
}

/* ---- Waiting ----------------------------------------------------------------------------- */

static uint32_t collect(mpi_link *mpi, lki_ready *ready, uint32_t capacity)
{
    uint32_t ranks = mpi->super.ranks, count = 0, i = 0, peer = 0;

    for (; i < ranks && count < capacity; i++) {
        peer                     = (mpi->turn + i) % ranks;
        const mpi_stream *stream = &mpi->streams[peer];
        if (peer == mpi->super.rank)
            continue;
        bool gone = stream->why != NULL;
        bool r    = stream->reading && (gone || full(stream) || over(stream));
        bool w    = stream->writing && (gone || ended(stream) || free_chunk(stream) < OUT);
        if (r || w || mpi->streams[peer].completed)
            ready[count++] = (lki_ready){ peer, 0, r, w, mpi->streams[peer].completed };
        mpi->streams[peer].completed = false;
    }
    if (count == capacity)
        mpi->turn = peer + 1 < ranks ? peer + 1 : 0;
    return count;
}

void lki_mpi_rest(int64_t idle_us, int64_t left_us)
{
    if (idle_us < YIELD_US) {
        (void)sched_yield();
        return;
    }
    int64_t         us    = idle_us / 8 < SLEEP_US ? idle_us / 8 : SLEEP_US;
    struct timespec pause = { .tv_nsec = (us < left_us ? us : left_us) * 1000 };
    (void)nanosleep(&pause, NULL);
}

static lk_status mpi_wait(lki_link *link, int64_t ms, lki_ready *ready, uint32_t capacity,
                          uint32_t *count)
{
    mpi_link *mpi   = lki_mpi_of(link);
    int64_t   began = lki_mpi_now_us();

    *count = 0;
    for (;;) {
        LK_TRY(lki_mpi_poll(mpi));
        *count         = collect(mpi, ready, capacity);
        int64_t now = lki_mpi_now_us(), waited = now - began;
        if (*count > 0 || waited >= ms * 1000)
            return LK_OK;
        lki_mpi_rest(now - (began > mpi->moved_us ? began : mpi->moved_us), ms * 1000 - waited);
    }
}

/* ---- Life -------------------------------------------------------------------------------- */

void lki_mpi_link_free(lki_link *link)
{
    mpi_link *mpi = lki_mpi_of(link);

    for (uint32_t peer = 0; mpi->streams != NULL && peer < link->ranks; peer++) {
        lki_free(mpi->streams[peer].out);
        lki_free(mpi->streams[peer].in);
        lki_free(mpi->streams[peer].why);
    }
    lki_free(mpi->dump);
    lki_free(mpi->streams);
    lki_free(mpi);
}

static void send_ends(mpi_link *mpi)
{
    for (uint32_t peer = 0; peer < mpi->super.ranks; peer++)
        for (uint32_t i = 0; i < IN && peer != mpi->super.rank; i++)
            mpi->open += mpi->module->send(mpi->world, peer * SLOTS + ENDS_AT + i, peer, TAG_CHUNK,
                                           &mpi->nothing, 0) == NULL;
}

/* Drops received bytes that will not be read, so that the writers can finish. */
static void drain(mpi_link *mpi)
{
    for (uint32_t peer = 0; peer < mpi->super.ranks; peer++) {
        while (full(&mpi->streams[peer]))
            next_chunk(mpi, peer);
        if (ended(&mpi->streams[peer]))
            lki_mpi_cancel_dumps(mpi, peer);
    }
}

static void mpi_close(lki_link *link)
{
    mpi_link *mpi   = lki_mpi_of(link);
    int64_t   began = lki_mpi_now_us(), waited = 0;

    if (!lki_mpi_cancel(link))
        return;
    send_ends(mpi);
    for (;; lki_mpi_rest(waited, SLEEP_US)) {
        drain(mpi);
        waited    = lki_mpi_now_us() - began;
        bool late = link->hurry && waited >= (link->stopping ? ENDING_MS : LINGER_MS) * 1000;
        if (mpi->open == 0 || late || lki_mpi_poll(mpi) != LK_OK)
            break;
    }
    if (mpi->open > 0)
        return;
    mpi->module->close(mpi->world, link->stopping);
    lki_mpi_link_free(link);
}

static const lki_link_ops operations = {
    .name   = "mpi",
    .write  = mpi_write,
    .read   = mpi_read,
    .watch  = mpi_watch,
    .wait   = mpi_wait,
    .post_send    = lki_mpi_post_send,
    .post_receive = lki_mpi_post_receive,
    .completed    = lki_mpi_completed,
    .cancel       = lki_mpi_cancel,
    .now_ms = mpi_now_ms,
    .close  = mpi_close,
};

static void name_carrier(mpi_link *mpi)
{
    char name[LKI_MPI_NAME_BYTES];

    mpi->module->name(name);
    (void)snprintf(mpi->super.carrier, sizeof mpi->super.carrier, "MPI (%s)", name);
}

lk_status lki_mpi_link_new(lki_link **out, const lki_mpi_module *module, lki_mpi_world *world,
                           uint32_t rank, uint32_t ranks)
{
    mpi_link *mpi;

    *out = NULL;
    LK_TRY(LKI_NEW(&mpi, 1, "a link over MPI"));
    mpi->super  = (lki_link){ .ops     = &operations,
                              .rank    = rank,
                              .ranks   = ranks,
                              .streams = 1 };
    mpi->module = module;
    mpi->world  = world;
    name_carrier(mpi);
    lk_status st = LKI_NEW(&mpi->streams, ranks, "streams over MPI");
    for (uint32_t peer = 0; peer < ranks && st == LK_OK; peer++) {
        mpi->streams[peer].reading = true;
        if (peer != rank)
            st = lki_alloc_untouched((void **)&mpi->streams[peer].in, (size_t)IN * CHUNK,
                                     "a stream over MPI");
    }
    const char *error = st == LK_OK ? module->reserve(world, ranks * SLOTS) : NULL;
    if (error != NULL)
        st = lk_fail(LK_ENOMEM, "MPI: %s", error);
    if (st != LK_OK) {
        lki_mpi_link_free(&mpi->super);
        return st;
    }
    *out = &mpi->super;
    return LK_OK;
}

void lki_mpi_link_start(lki_link *link)
{
    for (uint32_t peer = 0; peer < link->ranks; peer++)
        for (uint32_t chunk = 0; chunk < IN && peer != link->rank; chunk++)
            receive(lki_mpi_of(link), peer, chunk);
}

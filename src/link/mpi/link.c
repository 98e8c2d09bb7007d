/* link.c -- the link over MPI: streams of chunks, polled.
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
#include "link/mpi/link.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"

enum {
    CHUNK_MIN = 1 << 16,
    CHUNK_MAX = (1 << 18) + (1 << 12), /* a piece of a message with its header (wire/frame.h) */
    IN_BYTES  = 1 << 26, /* incoming chunks of all streams together, if they are above CHUNK_MIN */
    OUT       = 4, /* outgoing chunks of a stream in flight */
    IN        = 4, /* incoming chunks of a stream in flight */
    SLOTS     = OUT + IN + IN, /* requests of a stream: outgoing chunks, incoming chunks, and empty
                                * messages at the end */
    YIELD_US  = 2000,
    SLEEP_US  = 1000,
    LINGER_MS = 5000,
    ENDING_MS = 500, /* if the launcher is ending the job, too */
};

/* Both directions of a stream with one peer. */
typedef struct {
    unsigned char *out; /* OUT chunks, allocated by the first write */
    unsigned char *in;  /* IN chunks */
    bool           sending[OUT];
    bool           arrived[IN];
    size_t         bytes[IN]; /* number of bytes received in each chunk */
    uint32_t       first;     /* chunk to read next */
    size_t         taken;     /* number of bytes already read from the first chunk */
    bool           heard;     /* at least one byte was received */
    bool           reading, writing; /* directions that the caller watches */
    char          *why;              /* reason why the stream is broken; NULL: not broken */
} mpi_stream;

typedef struct {
    lki_link              super;
    const lki_mpi_module *module;
    lki_mpi_world        *world;
    mpi_stream           *streams; /* of all peers; this rank's entry is unused */
    size_t                chunk;   /* size of a chunk in bytes, equal on all ranks */
    uint32_t              open;    /* number of open requests */
    uint32_t              turn;    /* peer that wait() checks first */
    int64_t               moved_us; /* time of the last completion of a request */
    unsigned char         nothing; /* buffer of empty messages */
} mpi_link;

static mpi_link *mpi_of(const lki_link *link)
{
    union {
        const lki_link *link;
        mpi_link       *mpi;
    } cast = { link };
    return cast.mpi;
}

static int64_t now_us(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static int64_t mpi_now_ms(const lki_link *link)
{
    (void)link;
    return now_us() / 1000;
}

/* ---- Requests ---------------------------------------------------------------------------- */

static void break_stream(mpi_stream *stream, const char *why)
{
    enum { BYTES = 200 };

    if (stream->why != NULL || lki_alloc((void **)&stream->why, BYTES, "a broken stream") != LK_OK)
        return;
    (void)snprintf(stream->why, BYTES, "%s", why);
}

static void receive(mpi_link *mpi, uint32_t peer, uint32_t chunk)
{
    mpi_stream *stream = &mpi->streams[peer];
    const char *error  = mpi->module->receive(mpi->world, peer * SLOTS + OUT + chunk, peer, 0,
                                              stream->in + chunk * mpi->chunk, mpi->chunk);

    if (error != NULL)
        break_stream(stream, error);
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
    if (part < OUT)
        stream->sending[part] = false;
    if (done->error != NULL) {
        break_stream(stream, done->error);
    } else if (part >= OUT && part < OUT + IN) {
        stream->arrived[part - OUT] = true;
        stream->bytes[part - OUT]   = done->bytes;
        stream->heard               = stream->heard || done->bytes > 0;
    }
}

static lk_status poll_requests(mpi_link *mpi)
{
    const lki_mpi_done *done;
    uint32_t            count;
    const char         *error = mpi->module->poll(mpi->world, &done, &count);

    if (error != NULL)
        return lk_fail(LK_EIO, "%s", error);
    if (count > 0)
        mpi->moved_us = now_us();
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

static lk_status broken(const mpi_link *mpi, uint32_t peer)
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
    mpi_link   *mpi    = mpi_of(link);
    mpi_stream *stream = &mpi->streams[peer];
    uint32_t    chunk;

    LK_ASSERT(peer < link->ranks && peer != link->rank && index == 0);
    *moved = 0;
    if (stream->out == NULL)
        LK_TRY(lki_alloc_untouched((void **)&stream->out, OUT * mpi->chunk, "a stream over MPI"));
    while (stream->why == NULL && !ended(stream) && (chunk = free_chunk(stream)) < OUT) {
        unsigned char *data  = stream->out + chunk * mpi->chunk;
        size_t         bytes = fill(data, mpi->chunk, parts, count, *moved);
        if (bytes == 0)
            break;
        const char *error = mpi->module->send(mpi->world, peer * SLOTS + chunk, peer, 0, data,
                                              bytes);
        if (error != NULL) {
            break_stream(stream, error);
            break;
        }
        stream->sending[chunk] = true;
        mpi->open++;
        *moved += bytes;
    }
    return stream->why != NULL || ended(stream) ? broken(mpi, peer) : LK_OK;
}

static lk_status mpi_read(lki_link *link, uint32_t peer, uint32_t index, void *data, size_t bytes,
                          size_t *moved)
{
    mpi_link   *mpi    = mpi_of(link);
    mpi_stream *stream = &mpi->streams[peer];

    LK_ASSERT(peer < link->ranks && peer != link->rank && index == 0);
    *moved = 0;
    while (*moved < bytes && full(stream)) {
        const unsigned char *chunk = stream->in + stream->first * mpi->chunk;
        size_t               left  = stream->bytes[stream->first] - stream->taken;
        size_t               n     = lki_min(bytes - *moved, left);
        memcpy((unsigned char *)data + *moved, chunk + stream->taken, n);
        *moved += n;
        stream->taken += n;
        if (stream->taken == stream->bytes[stream->first])
            next_chunk(mpi, peer);
    }
    if (*moved == 0 && (over(stream) || stream->why != NULL))
        return broken(mpi, peer);
    return LK_OK;
}

static void mpi_watch(lki_link *link, uint32_t peer, uint32_t index, bool reading, bool writing)
{
    mpi_stream *stream = &mpi_of(link)->streams[peer];

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
        if (r || w)
            ready[count++] = (lki_ready){ peer, 0, r, w };
    }
    if (count == capacity)
        mpi->turn = peer + 1 < ranks ? peer + 1 : 0;
    return count;
}

/* Yields the processor or sleeps for at most `left_us`.  The sleep is longer if nothing has moved
 * for longer (`idle_us`). */
static void rest(int64_t idle_us, int64_t left_us)
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
    mpi_link *mpi   = mpi_of(link);
    int64_t   began = now_us();

    *count = 0;
    for (;;) {
        LK_TRY(poll_requests(mpi));
        *count         = collect(mpi, ready, capacity);
        int64_t now = now_us(), waited = now - began;
        if (*count > 0 || waited >= ms * 1000)
            return LK_OK;
        rest(now - (began > mpi->moved_us ? began : mpi->moved_us), ms * 1000 - waited);
    }
}

/* ---- Life -------------------------------------------------------------------------------- */

void lki_mpi_link_free(lki_link *link)
{
    mpi_link *mpi = mpi_of(link);

    for (uint32_t peer = 0; mpi->streams != NULL && peer < link->ranks; peer++) {
        lki_free(mpi->streams[peer].out);
        lki_free(mpi->streams[peer].in);
        lki_free(mpi->streams[peer].why);
    }
    lki_free(mpi->streams);
    lki_free(mpi);
}

static void send_ends(mpi_link *mpi)
{
    for (uint32_t peer = 0; peer < mpi->super.ranks; peer++)
        for (uint32_t i = 0; i < IN && peer != mpi->super.rank; i++)
            mpi->open += mpi->module->send(mpi->world, peer * SLOTS + OUT + IN + i, peer, 0,
                                           &mpi->nothing, 0) == NULL;
}

/* Drops received bytes that will not be read, so that the writers can finish. */
static void drain(mpi_link *mpi)
{
    for (uint32_t peer = 0; peer < mpi->super.ranks; peer++)
        while (full(&mpi->streams[peer]))
            next_chunk(mpi, peer);
}

static void mpi_close(lki_link *link)
{
    mpi_link *mpi   = mpi_of(link);
    int64_t   began = now_us(), waited = 0;

    send_ends(mpi);
    for (;; rest(waited, SLEEP_US)) {
        drain(mpi);
        waited    = now_us() - began;
        bool late = link->hurry && waited >= (link->stopping ? ENDING_MS : LINGER_MS) * 1000;
        if (mpi->open == 0 || late || poll_requests(mpi) != LK_OK)
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
    .now_ms = mpi_now_ms,
    .close  = mpi_close,
};

/* Returns the size of a chunk.  Large chunks are faster, because MPI announces each one and waits
 * for the receiver's answer.  With many ranks chunks are smaller, because every stream has its
 * own. */
static size_t chunk_bytes(uint32_t ranks)
{
    size_t bytes = CHUNK_MAX;

    while (bytes >= 2 * CHUNK_MIN && bytes * IN * ranks > IN_BYTES)
        bytes /= 2;
    return bytes;
}

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
    mpi->chunk  = chunk_bytes(ranks);
    name_carrier(mpi);
    lk_status st = LKI_NEW(&mpi->streams, ranks, "streams over MPI");
    for (uint32_t peer = 0; peer < ranks && st == LK_OK; peer++) {
        mpi->streams[peer].reading = true;
        if (peer != rank)
            st = lki_alloc_untouched((void **)&mpi->streams[peer].in, IN * mpi->chunk,
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
            receive(mpi_of(link), peer, chunk);
}

/* link.c -- the link over MPI: streams of chunks, and posted transfers, polled.
 *
 * A write copies into a free chunk and sends it.  A stream has a few chunks at its writer and a few
 * at its reader.  A send completes only when its receiver has matched it, so the number of chunks
 * bounds the bytes in flight.  Receives are always posted for every stream, so a peer can begin at
 * any time.  An empty message marks the end of a stream.  The writer sends one empty message for
 * each receive that the reader has posted, so that no receive stays open.
 *
 * Posted transfers are messages with a tag of their own, from and into the caller's memory.  MPI
 * matches messages with one tag in order.
 *
 * After a failure cancel() cancels the posted receives that have no message yet.  Their senders
 * cannot cancel.  Each cancelled receive is therefore posted again into memory that nobody reads
 * (`dump`), so that the sends complete.  The rank that closes first cancels those of its peers'
 * messages that were never sent, after the peer's end.
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
    CHUNK     = (1 << 16) + (1 << 12), /* an eager message with its header (wire/frame.h) */
    OUT       = 4, /* outgoing chunks of a stream in flight */
    IN        = 4, /* incoming chunks of a stream in flight */
    POSTS     = LKI_LINK_POSTS,
    ENDS_AT   = OUT + IN, /* requests of a stream: outgoing chunks, incoming chunks, empty messages
                           * at the end, posted sends, posted receives */
    SENDS_AT  = ENDS_AT + IN,
    TAKES_AT  = SENDS_AT + POSTS,
    SLOTS     = TAKES_AT + POSTS,
    CANCEL_MS = 2000,
    YIELD_US  = 2000,
    SLEEP_US  = 1000,
    LINGER_MS = 5000,
    ENDING_MS = 500, /* if the launcher is ending the job, too */
};

enum { TAG_CHUNK, TAG_POST };

typedef enum { IDLE, POSTED, DUMPED } post_state;

/* The posts with a peer in one direction.  Post number n is at index n % POSTS. */
typedef struct {
    post_state state[POSTS];
    size_t     bytes[POSTS];
    uint64_t   posted, collected; /* numbers of posts */
} mpi_posts;

/* Both directions of a stream with one peer, and the posts with this peer. */
typedef struct {
    mpi_posts      sends, receives;
    bool           completed; /* a post has completed since wait() reported one */
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
    uint32_t              open;    /* number of open requests */
    uint32_t              lent;    /* number of posts whose memory MPI still has */
    size_t                largest; /* largest posted receive */
    unsigned char        *dump;    /* memory for cancelled receives */
    bool                  stuck;   /* cancel() has failed: MPI is called no more */
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
    const char *error  = mpi->module->receive(mpi->world, peer * SLOTS + OUT + chunk, peer,
                                              TAG_CHUNK, stream->in + chunk * (size_t)CHUNK, CHUNK);

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

/* Receives a message whose receive was cancelled, and drops it. */
static void dump(mpi_link *mpi, uint32_t slot, mpi_posts *posts, uint32_t at)
{
    if (mpi->dump == NULL || mpi->module->receive(mpi->world, slot, slot / SLOTS, TAG_POST,
                                                  mpi->dump, posts->bytes[at]) != NULL)
        return;
    posts->state[at] = DUMPED;
    mpi->open++;
}

static void complete_post(mpi_link *mpi, const lki_mpi_done *done)
{
    mpi_stream *stream    = &mpi->streams[done->slot / SLOTS];
    uint32_t    part      = done->slot % SLOTS;
    bool        receiving = part >= TAKES_AT;
    mpi_posts  *posts     = receiving ? &stream->receives : &stream->sends;
    uint32_t    at        = part - (receiving ? TAKES_AT : SENDS_AT);
    bool        was_lent  = posts->state[at] == POSTED;

    posts->state[at]  = IDLE;
    mpi->lent        -= was_lent;
    stream->completed = true;
    if (was_lent && done->cancelled)
        dump(mpi, done->slot, posts, at);
    else if (done->error != NULL)
        break_stream(stream, done->error);
}

static void complete(mpi_link *mpi, const lki_mpi_done *done)
{
    mpi_stream *stream = &mpi->streams[done->slot / SLOTS];
    uint32_t    part   = done->slot % SLOTS;

    mpi->open--;
    if (part >= SENDS_AT) {
        complete_post(mpi, done);
        return;
    }
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

    if (mpi->stuck)
        return lk_fail(LK_EIO, "MPI did not end its transfers after a failure");
    const char *error = mpi->module->poll(mpi->world, &done, &count);
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
        LK_TRY(lki_alloc_untouched((void **)&stream->out, (size_t)OUT * CHUNK, "a stream over MPI"));
    while (stream->why == NULL && !ended(stream) && (chunk = free_chunk(stream)) < OUT) {
        unsigned char *data  = stream->out + chunk * (size_t)CHUNK;
        size_t         bytes = fill(data, CHUNK, parts, count, *moved);
        if (bytes == 0)
            break;
        const char *error = mpi->module->send(mpi->world, peer * SLOTS + chunk, peer, TAG_CHUNK,
                                              data, bytes);
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
        if (r || w || mpi->streams[peer].completed)
            ready[count++] = (lki_ready){ peer, 0, r, w, mpi->streams[peer].completed };
        mpi->streams[peer].completed = false;
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

/* ---- Posts ------------------------------------------------------------------------------- */

static lk_status start_post(mpi_link *mpi, uint32_t peer, mpi_posts *posts, size_t bytes,
                            const char *error)
{
    mpi_stream *stream = &mpi->streams[peer];
    uint32_t    at     = posts->posted % POSTS;

    if (error != NULL)
        break_stream(stream, error);
    if (stream->why != NULL)
        return broken(mpi, peer);
    posts->state[at] = POSTED;
    posts->bytes[at] = bytes;
    posts->posted++;
    mpi->open++;
    mpi->lent++;
    return LK_OK;
}

/* Returns the slot of the next post. */
static uint32_t post_slot(uint32_t peer, const mpi_posts *posts, uint32_t first)
{
    LK_ASSERT(posts->posted - posts->collected < POSTS);
    return peer * SLOTS + first + (uint32_t)(posts->posted % POSTS);
}

static lk_status mpi_post_send(lki_link *link, uint32_t peer, const void *data, size_t bytes)
{
    mpi_link   *mpi   = mpi_of(link);
    mpi_posts  *posts = &mpi->streams[peer].sends;
    const char *error = NULL;

    if (mpi->streams[peer].why == NULL)
        error = mpi->module->send(mpi->world, post_slot(peer, posts, SENDS_AT), peer, TAG_POST,
                                  data, bytes);
    return start_post(mpi, peer, posts, bytes, error);
}

static lk_status mpi_post_receive(lki_link *link, uint32_t peer, void *data, size_t bytes)
{
    mpi_link   *mpi   = mpi_of(link);
    mpi_posts  *posts = &mpi->streams[peer].receives;
    const char *error = NULL;

    mpi->largest = lki_max(mpi->largest, bytes);
    if (mpi->streams[peer].why == NULL)
        error = mpi->module->receive(mpi->world, post_slot(peer, posts, TAKES_AT), peer, TAG_POST,
                                     data, bytes);
    return start_post(mpi, peer, posts, bytes, error);
}

static bool mpi_completed(lki_link *link, uint32_t peer, bool receiving)
{
    mpi_stream *stream = &mpi_of(link)->streams[peer];
    mpi_posts  *posts  = receiving ? &stream->receives : &stream->sends;

    if (stream->why != NULL || posts->collected == posts->posted
        || posts->state[posts->collected % POSTS] != IDLE)
        return false;
    posts->collected++;
    return true;
}

/* Cancels the receives with a peer that are in this state. */
static void cancel_receives(mpi_link *mpi, uint32_t peer, post_state state)
{
    mpi_posts *posts = &mpi->streams[peer].receives;

    for (uint32_t i = 0; i < POSTS; i++) {
        if (posts->state[i] != state)
            continue;
        (void)mpi->module->cancel(mpi->world, peer * SLOTS + TAKES_AT + i);
        posts->state[i] = state == DUMPED ? IDLE : state;
    }
}

static bool mpi_cancel(lki_link *link)
{
    mpi_link *mpi   = mpi_of(link);
    int64_t   began = now_us(), waited = 0;

    if (mpi->lent == 0 || mpi->stuck)
        return !mpi->stuck;
    if (mpi->largest > 0
        && lki_alloc_untouched((void **)&mpi->dump, mpi->largest, "cancelled receives") != LK_OK)
        mpi->dump = NULL;
    for (uint32_t peer = 0; peer < link->ranks; peer++)
        cancel_receives(mpi, peer, POSTED);
    for (; mpi->lent > 0 && waited < CANCEL_MS * 1000; rest(waited, SLEEP_US)) {
        if (poll_requests(mpi) != LK_OK)
            break;
        waited = now_us() - began;
    }
    mpi->stuck = mpi->lent > 0;
    for (uint32_t peer = 0; peer < link->ranks; peer++) {
        mpi_stream *stream         = &mpi->streams[peer];
        stream->sends.collected    = stream->sends.posted;
        stream->receives.collected = stream->receives.posted;
        if (mpi->stuck)
            break_stream(stream, "MPI did not end its transfers after a failure");
    }
    return !mpi->stuck;
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
            cancel_receives(mpi, peer, DUMPED);
    }
}

static void mpi_close(lki_link *link)
{
    mpi_link *mpi   = mpi_of(link);
    int64_t   began = now_us(), waited = 0;

    if (!mpi_cancel(link))
        return;
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
    .post_send    = mpi_post_send,
    .post_receive = mpi_post_receive,
    .completed    = mpi_completed,
    .cancel       = mpi_cancel,
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
            receive(mpi_of(link), peer, chunk);
}

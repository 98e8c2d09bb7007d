/* sim.c -- simulated pipes, clock and scheduling.
 *
 * In baton mode, every call of a link first waits until the caller holds the baton.  The caller
 * keeps the baton while it computes.  It passes the baton on in wait() and, sometimes, in read()
 * and write().  The next holder is drawn at random among the ranks that can run.  A rank can run if
 * its wait() has an event to report or has timed out.  If no rank can run, the clock advances to
 * the next arrival or the next timeout.
 *
 * Random numbers are drawn in the order of events and determine the next events.  The trace is a
 * hash of all events, so two different runs have different traces.
 */
#include "link/sim.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"

enum { ARRIVALS = 32, PIPE_BYTES = 65536, DELAY_US_MAX = 200 };

#define NOBODY UINT32_MAX

/* A delivery: the reader can read the first `upto` bytes of the pipe from time `at_us` on, counted
 * from the first byte ever written. */
typedef struct {
    uint64_t upto;
    int64_t  at_us;
} arrival;

typedef struct {
    unsigned char *bytes; /* a ring, allocated by the first write */
    uint64_t       written, read, visible;
    arrival        arrivals[ARRIVALS]; /* also a ring */
    uint32_t       first, count;
    bool           reading, writing; /* the reader watches the pipe for bytes; the writer watches it
                                      * for free space */
} sim_pipe;

typedef struct {
    lki_link       super;
    lki_sim       *sim;
    pthread_cond_t turn;
    bool           arrived, closed, dead, waiting;
    int64_t        until_us;
} sim_rank;

struct lki_sim {
    lki_sim_options options;
    pthread_mutex_t lock;
    sim_rank       *ranks;
    sim_pipe       *pipes; /* all pipes; pipe_of() returns the index */
    uint32_t        arrived, holder;
    int64_t         now_us, began_us;
    uint64_t        random, trace;
};

static sim_rank *rank_of(const lki_link *link)
{
    return &((const sim_rank *)(const void *)link)->sim->ranks[link->rank];
}

static sim_pipe *pipe_of(const lki_sim *sim, uint32_t from, uint32_t to, uint32_t stream)
{
    LK_ASSERT(from < sim->options.ranks && to < sim->options.ranks && from != to
              && stream < sim->options.streams);
    return &sim->pipes[((size_t)from * sim->options.ranks + to) * sim->options.streams + stream];
}

/* ---- Chance and time --------------------------------------------------------------------- */

/* The mixer of Steele, Lea, Flood: "Fast splittable pseudorandom number generators" (2014). */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t draw(lki_sim *sim, uint64_t below)
{
    sim->random += UINT64_C(0x9e3779b97f4a7c15);
    return mix(sim->random) % below;
}

static int64_t real_us(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static int64_t now_us(const lki_sim *sim)
{
    return sim->options.mode == LKI_SIM_FREE ? real_us() - sim->began_us : sim->now_us;
}

typedef enum { WRITE = 1, READ, WAIT, CLOSE, KILL } event;

static void note(lki_sim *sim, event what, uint32_t rank, uint32_t peer, uint32_t stream,
                 uint64_t moved)
{
    const uint64_t words[] = { what, rank, peer, stream, moved, (uint64_t)sim->now_us };

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        sim->trace = mix(sim->trace * 3 + words[i] + 1);
}

/* ---- Pipes ------------------------------------------------------------------------------- */

static size_t room_in(const lki_sim *sim, const sim_pipe *pipe)
{
    return pipe->count == ARRIVALS ? 0 : sim->options.pipe_bytes - (pipe->written - pipe->read);
}

static size_t arrived_in(const lki_sim *sim, sim_pipe *pipe)
{
    for (; pipe->count > 0 && pipe->arrivals[pipe->first].at_us <= now_us(sim); pipe->count--) {
        pipe->visible = pipe->arrivals[pipe->first].upto;
        pipe->first   = (pipe->first + 1) % ARRIVALS;
    }
    return pipe->visible - pipe->read;
}

/* Returns true if a stream was used in either direction and has ended for its reader.  It has ended
 * if the writer is dead.  It has also ended if the writer has closed and the reader has read all
 * its bytes. */
static bool over(const lki_sim *sim, const sim_rank *reader, const sim_rank *writer,
                 uint32_t stream)
{
    const sim_pipe *in  = pipe_of(sim, writer->super.rank, reader->super.rank, stream);
    const sim_pipe *out = pipe_of(sim, reader->super.rank, writer->super.rank, stream);

    return (in->bytes != NULL || out->bytes != NULL)
           && (writer->dead || (writer->closed && in->read == in->written));
}

/* Returns true if the reader can read bytes or the end of the stream. */
static bool readable(const lki_sim *sim, const sim_rank *reader, const sim_rank *writer,
                     uint32_t stream)
{
    return arrived_in(sim, pipe_of(sim, writer->super.rank, reader->super.rank, stream)) > 0
           || over(sim, reader, writer, stream);
}

static bool writable(const lki_sim *sim, const sim_pipe *pipe, const sim_rank *reader)
{
    return reader->dead || reader->closed || room_in(sim, pipe) > 0;
}

static void append(lki_sim *sim, sim_pipe *pipe, const struct iovec *parts, size_t bytes)
{
    size_t   size = sim->options.pipe_bytes;
    uint32_t last = (pipe->first + pipe->count - 1) % ARRIVALS;
    int64_t  at   = now_us(sim);

    if (sim->options.mode != LKI_SIM_FREE)
        at += (int64_t)draw(sim, (uint64_t)sim->options.delay_us_max + 1);
    if (pipe->count > 0 && pipe->arrivals[last].at_us > at)
        at = pipe->arrivals[last].at_us;
    for (size_t left = bytes, used = 0; left > 0; parts++, used = 0)
        while (used < parts->iov_len && left > 0) {
            size_t to = pipe->written % size;
            size_t n  = lki_min(lki_min(left, parts->iov_len - used), size - to);
            memcpy(pipe->bytes + to, (const unsigned char *)parts->iov_base + used, n);
            pipe->written += n;
            used          += n;
            left          -= n;
        }
    pipe->arrivals[(pipe->first + pipe->count++) % ARRIVALS] = (arrival){ pipe->written, at };
}

static void take(const lki_sim *sim, sim_pipe *pipe, unsigned char *data, size_t bytes)
{
    for (size_t size = sim->options.pipe_bytes, left = bytes; left > 0;) {
        size_t from = pipe->read % size, n = lki_min(left, size - from);
        memcpy(data, pipe->bytes + from, n);
        pipe->read += n;
        data       += n;
        left       -= n;
    }
}

/* ---- Scheduling -------------------------------------------------------------------------- */

/* Lists the streams that wait() reports to this rank, starting from a random peer. */
static uint32_t collect(lki_sim *sim, const sim_rank *me, lki_ready *ready, uint32_t capacity)
{
    uint32_t rank = me->super.rank, ranks = sim->options.ranks, count = 0;
    uint32_t first = capacity > 1 ? (uint32_t)draw(sim, ranks) : 0;

    for (uint32_t i = 0; i < ranks && count < capacity; i++)
        for (uint32_t stream = 0; stream < sim->options.streams && count < capacity; stream++) {
            uint32_t peer = (first + i) % ranks;
            if (peer == rank)
                continue;
            const sim_pipe *in  = pipe_of(sim, peer, rank, stream);
            const sim_pipe *out = pipe_of(sim, rank, peer, stream);
            bool            r   = in->reading && readable(sim, me, &sim->ranks[peer], stream);
            bool            w   = out->writing && writable(sim, out, &sim->ranks[peer]);
            if (r || w)
                ready[count++] = (lki_ready){ peer, stream, r, w, false };
        }
    return count;
}

static bool runnable(lki_sim *sim, const sim_rank *rank)
{
    lki_ready any;

    if (rank->closed)
        return false;
    return !rank->waiting || rank->dead || rank->until_us <= sim->now_us
           || collect(sim, rank, &any, 1) > 0;
}

/* Advances the clock to the next arrival of bytes or the next timeout of a wait. */
static void advance(lki_sim *sim)
{
    size_t  pipes = (size_t)sim->options.ranks * sim->options.ranks * sim->options.streams;
    int64_t next  = INT64_MAX;

    for (uint32_t i = 0; i < sim->options.ranks; i++)
        if (sim->ranks[i].waiting && sim->ranks[i].until_us < next)
            next = sim->ranks[i].until_us;
    for (size_t i = 0; i < pipes; i++)
        if (sim->pipes[i].count > 0 && sim->pipes[i].arrivals[sim->pipes[i].first].at_us < next
            && sim->pipes[i].arrivals[sim->pipes[i].first].at_us > sim->now_us)
            next = sim->pipes[i].arrivals[sim->pipes[i].first].at_us;
    LK_ASSERT(next != INT64_MAX);
    sim->now_us = next;
}

/* Passes the baton to a random rank that can run. */
static void pass(lki_sim *sim)
{
    uint32_t open = 0, can = 0;

    for (uint32_t i = 0; i < sim->options.ranks; i++)
        open += !sim->ranks[i].closed;
    sim->holder = NOBODY;
    while (open > 0 && can == 0) {
        for (uint32_t i = 0; i < sim->options.ranks; i++)
            can += runnable(sim, &sim->ranks[i]);
        if (can == 0)
            advance(sim);
    }
    if (can == 0)
        return;
    uint32_t which = (uint32_t)draw(sim, can);
    for (uint32_t i = 0; i < sim->options.ranks; i++)
        if (runnable(sim, &sim->ranks[i]) && which-- == 0) {
            sim->holder = i;
            (void)pthread_cond_signal(&sim->ranks[i].turn);
            return;
        }
}

static void await_turn(sim_rank *me)
{
    while (me->sim->holder != me->super.rank)
        (void)pthread_cond_wait(&me->turn, &me->sim->lock);
}

/* Locks the simulation at the start of a link call.  In baton mode also waits for the baton. */
static lki_sim *enter(const lki_link *link)
{
    sim_rank *me  = rank_of(link);
    lki_sim  *sim = me->sim;

    (void)pthread_mutex_lock(&sim->lock);
    if (sim->options.mode != LKI_SIM_BATON)
        return sim;
    if (!me->arrived) {
        me->arrived = true;
        if (++sim->arrived == sim->options.ranks)
            pass(sim);
    }
    await_turn(me);
    return sim;
}

/* Unlocks the simulation at the end of a link call. */
static void leave(lki_sim *sim)
{
    (void)pthread_mutex_unlock(&sim->lock);
}

/* In baton mode, passes the baton to a random rank in one of eight calls on average. */
static void stumble(lki_sim *sim, sim_rank *me)
{
    if (sim->options.mode != LKI_SIM_BATON || draw(sim, 8) != 0)
        return;
    pass(sim);
    await_turn(me);
}

/* Wakes a rank in free mode, because its streams have changed. */
static void wake(lki_sim *sim, uint32_t rank)
{
    if (sim->options.mode == LKI_SIM_FREE)
        (void)pthread_cond_broadcast(&sim->ranks[rank].turn);
}

/* ---- The link ---------------------------------------------------------------------------- */

static lk_status broken(const sim_rank *me, const sim_rank *peer, uint32_t stream,
                        const char *direction)
{
    if (me->dead)
        return lk_fail(LK_EPEER, "the host of rank %u, this one, is gone", me->super.rank);
    return lk_fail(LK_EPEER, "stream %u %s rank %u %s", stream, direction, peer->super.rank,
                   peer->dead ? "broke" : "was closed at the other end");
}

static size_t cut(lki_sim *sim, size_t bytes)
{
    if (bytes > 1 && sim->options.mode != LKI_SIM_FREE && draw(sim, 4) == 0)
        return 1 + draw(sim, bytes - 1);
    return bytes;
}

static lk_status sim_write(lki_link *link, uint32_t peer, uint32_t stream,
                           const struct iovec *parts, int count, size_t *moved)
{
    lki_sim        *sim   = enter(link);
    sim_rank       *me    = rank_of(link);
    const sim_rank *other = &sim->ranks[peer];
    sim_pipe       *pipe  = pipe_of(sim, link->rank, peer, stream);
    size_t          bytes = 0;
    lk_status       st    = LK_OK;

    stumble(sim, me);
    for (int i = 0; i < count; i++)
        bytes += parts[i].iov_len;
    *moved = cut(sim, lki_min(bytes, room_in(sim, pipe)));
    if (me->dead || other->dead || other->closed)
        st = broken(me, other, stream, "to");
    else if (pipe->bytes == NULL)
        st = lki_alloc((void **)&pipe->bytes, sim->options.pipe_bytes, "a simulated stream");
    if (st == LK_OK && *moved > 0) {
        append(sim, pipe, parts, *moved);
        wake(sim, peer);
    }
    note(sim, WRITE, link->rank, peer, stream, *moved);
    leave(sim);
    return st;
}

static lk_status sim_read(lki_link *link, uint32_t peer, uint32_t stream, void *data,
                          size_t bytes, size_t *moved)
{
    lki_sim        *sim   = enter(link);
    sim_rank       *me    = rank_of(link);
    const sim_rank *other = &sim->ranks[peer];
    sim_pipe       *pipe  = pipe_of(sim, peer, link->rank, stream);
    lk_status       st    = LK_OK;

    stumble(sim, me);
    *moved = cut(sim, lki_min(bytes, arrived_in(sim, pipe)));
    if (me->dead || over(sim, me, other, stream))
        st = broken(me, other, stream, "from");
    if (st == LK_OK && *moved > 0) {
        take(sim, pipe, data, *moved);
        wake(sim, peer);
    }
    note(sim, READ, link->rank, peer, stream, *moved);
    leave(sim);
    return st;
}

static void sim_watch(lki_link *link, uint32_t peer, uint32_t stream, bool reading, bool writing)
{
    lki_sim *sim = rank_of(link)->sim;

    (void)pthread_mutex_lock(&sim->lock);
    pipe_of(sim, peer, link->rank, stream)->reading = reading;
    pipe_of(sim, link->rank, peer, stream)->writing = writing;
    leave(sim);
}

/* Sleeps until a different rank wakes this rank, or until the time `until_us`. */
static void sleep_until(lki_sim *sim, sim_rank *me, int64_t until_us)
{
    me->until_us = until_us;
    me->waiting  = true;
    if (sim->options.mode == LKI_SIM_BATON) {
        pass(sim);
        await_turn(me);
    } else if (sim->options.mode == LKI_SIM_ALONE) {
        advance(sim);
    } else {
        int64_t         at   = sim->began_us + until_us;
        struct timespec time = { at / 1000000, at % 1000000 * 1000 };
        (void)pthread_cond_timedwait(&me->turn, &sim->lock, &time);
    }
    me->waiting = false;
}

static lk_status sim_wait(lki_link *link, int64_t ms, lki_ready *ready, uint32_t capacity,
                          uint32_t *count)
{
    lki_sim  *sim   = enter(link);
    sim_rank *me    = rank_of(link);
    int64_t   until = now_us(sim) + (ms > 0 ? ms * 1000 : 1);
    lk_status st    = LK_OK;

    stumble(sim, me);
    while ((*count = collect(sim, me, ready, capacity)) == 0 && !me->dead && now_us(sim) < until
           && !(ms <= 0 && sim->options.mode == LKI_SIM_FREE))
        sleep_until(sim, me, until);
    note(sim, WAIT, link->rank, 0, 0, *count);
    if (me->dead)
        st = lk_fail(LK_EIO, "the host of rank %u, this one, is gone", link->rank);
    leave(sim);
    return st;
}

static int64_t sim_now_ms(const lki_link *link)
{
    return lki_sim_now_us(rank_of(link)->sim) / 1000;
}

static void sim_close(lki_link *link)
{
    lki_sim  *sim = enter(link);
    sim_rank *me  = rank_of(link);

    LK_ASSERT(!me->closed);
    me->closed = true;
    note(sim, CLOSE, link->rank, 0, 0, 0);
    for (uint32_t i = 0; i < sim->options.ranks; i++)
        wake(sim, i);
    if (sim->options.mode == LKI_SIM_BATON)
        pass(sim);
    leave(sim);
}

static const lki_link_ops operations = {
    .name   = "sim",
    .write  = sim_write,
    .read   = sim_read,
    .watch  = sim_watch,
    .wait   = sim_wait,
    .now_ms = sim_now_ms,
    .close  = sim_close,
};

/* ---- Life -------------------------------------------------------------------------------- */

static void rank_init(lki_sim *sim, uint32_t rank)
{
    sim_rank          *me = &sim->ranks[rank];
    pthread_condattr_t attributes;

    me->sim   = sim;
    me->super = (lki_link){ .ops     = &operations,
                            .rank    = rank,
                            .ranks   = sim->options.ranks,
                            .streams = sim->options.streams };
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&me->turn, &attributes);
    (void)pthread_condattr_destroy(&attributes);
}

lk_status lki_sim_new(lki_sim **out, const lki_sim_options *options)
{
    size_t pipes = (size_t)options->ranks * options->ranks * options->streams;

    LK_ASSERT(options->ranks >= 1 && options->streams >= 1);
    LK_TRY(LKI_NEW(out, 1, "a simulation"));
    lki_sim *sim  = *out;
    sim->options  = *options;
    sim->holder   = NOBODY;
    sim->random   = mix(options->seed + 1);
    sim->began_us = real_us();
    if (options->pipe_bytes == 0)
        sim->options.pipe_bytes = PIPE_BYTES;
    if (options->delay_us_max == 0)
        sim->options.delay_us_max = DELAY_US_MAX;
    (void)pthread_mutex_init(&sim->lock, NULL);
    lk_status st = LKI_NEW(&sim->pipes, pipes, "simulated streams");
    if (st == LK_OK)
        st = LKI_NEW(&sim->ranks, options->ranks, "simulated ranks");
    if (st != LK_OK) {
        lki_sim_free(sim);
        *out = NULL;
        return st;
    }
    for (size_t i = 0; i < pipes; i++)
        sim->pipes[i].reading = true;
    for (uint32_t rank = 0; rank < options->ranks; rank++)
        rank_init(sim, rank);
    return LK_OK;
}

void lki_sim_free(lki_sim *sim)
{
    if (sim == NULL)
        return;
    size_t pipes = (size_t)sim->options.ranks * sim->options.ranks * sim->options.streams;

    for (size_t i = 0; sim->pipes != NULL && i < pipes; i++)
        lki_free(sim->pipes[i].bytes);
    for (uint32_t rank = 0; sim->ranks != NULL && rank < sim->options.ranks; rank++)
        (void)pthread_cond_destroy(&sim->ranks[rank].turn);
    (void)pthread_mutex_destroy(&sim->lock);
    lki_free(sim->ranks);
    lki_free(sim->pipes);
    lki_free(sim);
}

lki_link *lki_sim_link(lki_sim *sim, uint32_t rank)
{
    LK_ASSERT(rank < sim->options.ranks);
    return &sim->ranks[rank].super;
}

void lki_sim_kill(lki_sim *sim, uint32_t rank)
{
    (void)pthread_mutex_lock(&sim->lock);
    sim->ranks[rank].dead = true;
    note(sim, KILL, rank, 0, 0, 0);
    for (uint32_t i = 0; i < sim->options.ranks; i++)
        wake(sim, i);
    leave(sim);
}

uint64_t lki_sim_trace(const lki_sim *sim)
{
    return sim->trace;
}

int64_t lki_sim_now_us(const lki_sim *sim)
{
    return now_us(sim);
}

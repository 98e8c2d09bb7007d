/* comm/coll/staging_testing.h -- for staging_test.c: small operations of every kind.
 *
 * A kind starts an operation on one rank, and checks on completion that the rank has received the
 * right bytes.  Each line of 64 bytes that a rank sends has a different value.
 */
#ifndef LKI_COMM_COLL_STAGING_TESTING_H
#define LKI_COMM_COLL_STAGING_TESTING_H

#include "comm/group/group.h"

enum {
    RANKS = 3,
    BYTES = 640, /* size of a rank's buffer for one operation */
};

/* ---- The operations ---------------------------------------------------------------------- */

typedef struct {
    lk_comm       *comm;
    uint32_t       me, op;
    unsigned char *send, *recv;
    lk_request   **out;         /* room for two requests */
    uint32_t       all_started; /* number of operations that all ranks have started */
} turn;

/* Returns the first byte of the values that rank `from` sends in part `part` of operation `op`. */
static unsigned char tag(uint32_t op, uint32_t from, uint32_t part)
{
    return (unsigned char)(1 + op * 60 + from * 20 + part * 4);
}

/* Fills a rank's send buffer with values that differ in every line. */
static void fill(unsigned char *at, uint32_t op, uint32_t from)
{
    for (uint32_t i = 0; i < BYTES; i++)
        at[i] = (unsigned char)(tag(op, from, 0) + i / 64 % 10);
}

static unsigned char sent(uint32_t op, uint32_t from, size_t at)
{
    return (unsigned char)(tag(op, from, 0) + at / 64 % 10);
}

static bool holds(const unsigned char *got, size_t bytes, uint32_t op, uint32_t from, size_t at)
{
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != sent(op, from, at + i))
            return false;
    return true;
}

static bool sums(const unsigned char *got, size_t bytes, uint32_t op, size_t at)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned char sum = 0;
        for (uint32_t from = 0; from < RANKS; from++)
            sum = (unsigned char)(sum + sent(op, from, at + i));
        if (got[i] != sum)
            return false;
    }
    return true;
}

static const lk_reduce_op plus          = { LK_REDUCE_SUM, 1 };
static const size_t       uneven[RANKS] = { 150, 0, 40 }, offsets[RANKS] = { 0, 150, 150 };
static const size_t       to_each[RANKS][RANKS] = { { 0, 130, 10 }, { 70, 0, 0 }, { 20, 60, 64 } };

enum { ROOT = 1 };

static uint32_t root_of(uint32_t op)
{
    return (op + 1) % RANKS;
}

static lk_status start_broadcast(turn *t, size_t bytes)
{
    return lk_broadcast_start(t->out, t->comm, t->me == ROOT ? t->send : t->recv, bytes, ROOT);
}

static bool good_broadcast(const turn *t, size_t bytes)
{
    return t->me == ROOT || holds(t->recv, bytes, t->op, ROOT, 0);
}

static lk_status broadcast_start(turn *t)
{
    return start_broadcast(t, 96);
}
static bool broadcast_good(const turn *t)
{
    return good_broadcast(t, 96);
}
static lk_status long_broadcast_start(turn *t)
{
    return start_broadcast(t, 288);
}
static bool long_broadcast_good(const turn *t)
{
    return good_broadcast(t, 288);
}

static lk_status scatter_start(turn *t)
{
    return lk_scatter_start(t->out, t->comm, t->me == ROOT ? t->send : NULL, t->recv, 48, ROOT);
}

static bool scatter_good(const turn *t)
{
    return holds(t->recv, 48, t->op, ROOT, t->me * 48);
}

static lk_status gather_start(turn *t)
{
    return lk_gather_start(t->out, t->comm, t->send, t->me == root_of(t->op) ? t->recv : NULL, 200,
                           root_of(t->op));
}

static bool gather_good(const turn *t)
{
    bool good = true;
    for (uint32_t from = 0; from < RANKS && t->me == root_of(t->op); from++)
        good = good && holds(t->recv + from * 200, 200, t->op, from, 0);
    return good;
}

static lk_status all_gather_start(turn *t)
{
    return lk_all_gather_start(t->out, t->comm, t->send, t->recv, 72);
}

static bool all_gather_good(const turn *t)
{
    bool good = true;
    for (uint32_t from = 0; from < RANKS; from++)
        good = good && holds(t->recv + from * 72, 72, t->op, from, 0);
    return good;
}

/* Starts an all_gather_v in which rank 1 sends nothing. */
static lk_status uneven_gather_start(turn *t)
{
    return lk_all_gather_v_start(t->out, t->comm, t->send, t->recv, uneven);
}

static bool uneven_gather_good(const turn *t)
{
    bool good = true;
    for (uint32_t from = 0; from < RANKS; from++)
        good = good && holds(t->recv + offsets[from], uneven[from], t->op, from, 0);
    return good;
}

static lk_status all_reduce_start(turn *t)
{
    return lk_all_reduce_start(t->out, t->comm, t->send, t->recv, 180, LK_U8, plus);
}

static bool all_reduce_good(const turn *t)
{
    return sums(t->recv, 180, t->op, 0);
}

static lk_status reduce_start(turn *t)
{
    return lk_reduce_start(t->out, t->comm, t->send, t->recv, 300, LK_U8, plus, root_of(t->op));
}

static bool reduce_good(const turn *t)
{
    return t->me != root_of(t->op) || sums(t->recv, 300, t->op, 0);
}

static lk_status reduce_scatter_start(turn *t)
{
    return lk_reduce_scatter_start(t->out, t->comm, t->send, t->recv, 50, LK_U8, plus);
}

static bool reduce_scatter_good(const turn *t)
{
    return sums(t->recv, 50, t->op, t->me * 50);
}

static lk_status uneven_scatter_start(turn *t)
{
    return lk_reduce_scatter_v_start(t->out, t->comm, t->send, t->recv, uneven, LK_U8, plus);
}

static bool uneven_scatter_good(const turn *t)
{
    return sums(t->recv, uneven[t->me], t->op, offsets[t->me]);
}

static lk_status all_to_all_start(turn *t)
{
    return lk_all_to_all_start(t->out, t->comm, t->send, t->recv, 70);
}

static bool all_to_all_good(const turn *t)
{
    bool good = true;
    for (uint32_t from = 0; from < RANKS; from++)
        good = good && holds(t->recv + from * 70, 70, t->op, from, t->me * 70);
    return good;
}

static lk_status uneven_all_to_all_start(turn *t)
{
    size_t from_each[RANKS];
    for (uint32_t from = 0; from < RANKS; from++)
        from_each[from] = to_each[from][t->me];
    return lk_all_to_all_v_start(t->out, t->comm, t->send, to_each[t->me], t->recv, from_each);
}

static bool uneven_all_to_all_good(const turn *t)
{
    const unsigned char *at   = t->recv;
    bool                 good = true;
    for (uint32_t from = 0; from < RANKS; at += to_each[from++][t->me]) {
        size_t skipped = 0;
        for (uint32_t to = 0; to < t->me; to++)
            skipped += to_each[from][to];
        good = good && holds(at, to_each[from][t->me], t->op, from, skipped);
    }
    return good;
}

static lk_status barrier_start(turn *t)
{
    return lk_barrier_start(t->out, t->comm);
}

static bool barrier_good(const turn *t)
{
    return t->op < t->all_started;
}

static lk_status small_start(turn *t)
{
    return lk_all_gather_start(t->out, t->comm, t->send, t->recv, 8);
}

static bool small_good(const turn *t)
{
    bool good = true;
    for (uint32_t from = 0; from < RANKS; from++)
        good = good && holds(t->recv + from * 8, 8, t->op, from, 0);
    return good;
}

/* Sends a message to the next rank and receives one from the previous rank, in pieces. */
static lk_status message_start(turn *t)
{
    LK_TRY(lk_send_start(&t->out[0], t->comm, t->send, 60, (t->me + 1) % RANKS));
    return lk_recv_start(&t->out[1], t->comm, t->recv, 60, (t->me + RANKS - 1) % RANKS);
}

static bool message_good(const turn *t)
{
    return holds(t->recv, 60, t->op, (t->me + RANKS - 1) % RANKS, 0);
}

/* A kind of operation.  `shared` has a bit for each rank whose buffers are in an arena. */
typedef struct {
    const char *name;
    lk_status (*start)(turn *t);
    bool (*good)(const turn *t);
    uint32_t shared;
} kind;

static const kind kinds[] = {
    { "broadcast", broadcast_start, broadcast_good, 0 },
    { "broadcast of two chunks", long_broadcast_start, long_broadcast_good, 0 },
    { "scatter", scatter_start, scatter_good, 0 },
    { "all_gather_v", uneven_gather_start, uneven_gather_good, 0 },
    { "gather", gather_start, gather_good, 0 },
    { "all_gather", all_gather_start, all_gather_good, 0 },
    { "all_reduce", all_reduce_start, all_reduce_good, 0 },
    { "reduce", reduce_start, reduce_good, 0 },
    { "reduce_scatter", reduce_scatter_start, reduce_scatter_good, 0 },
    { "reduce_scatter_v", uneven_scatter_start, uneven_scatter_good, 0 },
    { "all_to_all", all_to_all_start, all_to_all_good, 0 },
    { "all_to_all_v", uneven_all_to_all_start, uneven_all_to_all_good, 0 },
    { "broadcast in an arena", broadcast_start, broadcast_good, 7 },
    { "all_reduce in an arena", all_reduce_start, all_reduce_good, 7 },
    { "all_reduce, one rank in an arena", all_reduce_start, all_reduce_good, 2 },
    { "all_gather_v, all but one in an arena", uneven_gather_start, uneven_gather_good, 6 },
    { "barrier", barrier_start, barrier_good, 0 },
    { "all_gather in slots", small_start, small_good, 0 },
    { "message", message_start, message_good, 0 },
};

enum { KINDS = sizeof kinds / sizeof kinds[0] };

#endif

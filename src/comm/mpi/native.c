/* native.c -- collectives that MPI performs.
 *
 * Ranks first compare fingerprints: with the slots in shared memory if all ranks are on one host,
 * else with MPI's all_gather.  Then all ranks make the call.  MPI requires the same order of
 * collectives on all ranks, but one rank may detect the end of a comparison before another does.
 * Comparisons therefore have a separate MPI communicator, and calls are made in the order of the
 * operations.
 *
 *      operation 0   | compare | call |
 *      operation 1   | compare |      | call |
 *
 * Features that MPI lacks are implemented around it: 16-bit elements are sent as FP32, factors are
 * applied before the call and averages computed after it, as in Lockstep's own algorithms.  A call
 * takes at most INT_MAX elements, so a long vector needs several calls.  Parts that are too long
 * for one call are reduced to their ranks, or broadcast by them, one after the other.
 *
 * Cost: the cost of MPI's call and of the comparison, which is one all_gather of 24 bytes, or one
 *       synchronisation on one host.
 * Order: MPI's.  Memory: the vector in FP32 for 16-bit types, and a part for calls in place.
 */
#include "comm/mpi/engine.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "comm/algorithm/schedule.h"
#include "comm/coll/reduction.h"
#include "device/partial.h"

enum { CALL_BYTES = 1 << 30, YIELDS_MS = 2, NAP_NS = 50000, PEERS_MS = 50, LATE_MS = 500 };

struct lki_native {
    const lk_request *request;
    lki_mpi_engine   *engine;
    uint64_t          number;
    enum { TO_COMPARE, COMPARING, TO_CALL, CALLING } stage;
    lki_print        *prints; /* owned: fingerprint of this rank, followed by the fingerprints of
                               * all ranks */
    lki_mpi_ticket  **tickets; /* owned */
    size_t            ticket_count, ticket_capacity;
    lk_dtype          dtype; /* type of the elements sent */
    size_t            width; /* size of the elements sent, in bytes */
    bool              wide, scaled; /* 16-bit elements are sent as FP32; elements are multiplied by
                                     * a factor */
    unsigned char    *room;  /* owned: a send or receive buffer in place of the caller's buffer */
    unsigned char    *result; /* result of a reduction, in the type in which elements are sent */
};

/* ---- Capabilities of MPI ----------------------------------------------------------------- */

static lki_op_kind kind_of(const lk_request *r)
{
    return (lki_op_kind)(r->op.print.what & 0xff);
}

/* Returns the maximum size of one call in bytes, which is equal on all ranks. */
static size_t call_bytes(const lk_comm *comm)
{
    return comm->self->tuning.segment_bytes > 0 ? comm->self->tuning.segment_bytes : CALL_BYTES;
}

/* Returns true for small integers, whose sums saturate in Open MPI but wrap around in Lockstep. */
static bool saturates(const lki_reduction *v)
{
    return v->dtype == LK_I8 || v->dtype == LK_U8 || v->dtype == LK_I16 || v->dtype == LK_U16;
}

bool lki_native_can(const lk_request *r)
{
    if (!lki_engine_serves(r->comm->self->engine, r->comm) || r->reduce.parts != NULL ||
        saturates(&r->reduce))
        return false;
    switch ((int)kind_of(r)) {
    case LKI_OP_BROADCAST:
    case LKI_OP_ALL_GATHER:
    case LKI_OP_ALL_REDUCE:
    case LKI_OP_REDUCE:
    case LKI_OP_REDUCE_SCATTER: return true;
    case LKI_OP_ALL_TO_ALL: return r->bytes <= call_bytes(r->comm) / r->comm->size;
    default: return false;
    }
}

/* ---- Calls ------------------------------------------------------------------------------- */

static lk_status start(lki_native *n, lki_mpi_call call)
{
    void *tickets = n->tickets;

    LK_TRY(lki_reserve(&tickets, &n->ticket_capacity, n->ticket_count, sizeof *n->tickets,
                       "calls of MPI"));
    n->tickets        = tickets;
    const char *error = n->engine->module->start(n->engine->world, &call,
                                                 &n->tickets[n->ticket_count]);
    if (error != NULL)
        return lk_fail(LK_EPEER, "%s", error);
    n->ticket_count++;
    return LK_OK;
}

/* Starts a call on vectors of `count` elements, as several calls if necessary. */
static lk_status start_long(lki_native *n, lki_mpi_call call, size_t count)
{
    size_t most = lki_max(call_bytes(n->request->comm) / n->width, 1);

    for (size_t at = 0; at < count; at += most) {
        lki_mpi_call piece = call;
        piece.count        = lki_min(count - at, most);
        piece.send = call.send == NULL ? NULL : (const char *)call.send + at * n->width;
        piece.recv = call.recv == NULL ? NULL : (char *)call.recv + at * n->width;
        LK_TRY(start(n, piece));
    }
    return LK_OK;
}

/* Returns true if parts of `part` elements fit in one call. */
static bool fits(const lki_native *n, size_t part)
{
    const lk_comm *comm = n->request->comm;
    return part <= call_bytes(comm) / n->width / comm->size;
}

static lk_status call_broadcast(lki_native *n)
{
    const lk_request *r = n->request;

    return start_long(n, (lki_mpi_call){ .kind = LKI_MPI_BROADCAST, .dtype = LK_U8,
                                         .root = r->root, .recv = r->recv }, r->bytes);
}

static lk_status call_all_gather(lki_native *n)
{
    const lk_request *r     = n->request;
    size_t            bytes = r->send_bytes;

    if (bytes == 0)
        return LK_OK;
    unsigned char *mine = r->recv + r->comm->rank * bytes;
    if (fits(n, bytes))
        return start(n, (lki_mpi_call){ .kind  = LKI_MPI_ALL_GATHER,
                                        .dtype = LK_U8,
                                        .send  = r->send == mine ? NULL : r->send,
                                        .recv  = r->recv,
                                        .count = bytes });
    if (r->send != mine)
        memcpy(mine, r->send, bytes);
    for (uint32_t rank = 0; rank < r->comm->size; rank++)
        LK_TRY(start_long(n, (lki_mpi_call){ .kind = LKI_MPI_BROADCAST, .dtype = LK_U8,
                                             .root = rank, .recv = r->recv + rank * bytes },
                          bytes));
    return LK_OK;
}

static lk_status call_all_to_all(lki_native *n)
{
    const lk_request *r = n->request;

    if (r->bytes == 0)
        return LK_OK;
    return start(n, (lki_mpi_call){ .kind  = LKI_MPI_ALL_TO_ALL,
                                    .dtype = LK_U8,
                                    .send  = r->send == r->recv ? NULL : r->send,
                                    .recv  = r->recv,
                                    .count = r->bytes });
}

/* ---- Sums -------------------------------------------------------------------------------- */

static lk_reduce_kind op_of(const lk_request *r)
{
    lk_reduce_kind kind = r->reduce.op.kind;
    return kind == LK_REDUCE_AVG || kind == LK_REDUCE_PREMUL_SUM ? LK_REDUCE_SUM : kind;
}

/* Converts elements to the type in which they are sent.  With `root` converts the result back to
 * the caller's type. */
static void convert(const lki_native *n, bool root, const void *from, size_t count, void *to)
{
    const lk_request      *r    = n->request;
    const lki_partial_node node = { 0, root ? r->comm->size : 1, !root, from };
    const lki_partial      p    = { .dtype      = r->reduce.dtype,
                                    .op         = r->reduce.op,
                                    .leaves     = r->comm->size,
                                    .count      = node.count,
                                    .root       = root,
                                    .nodes      = &node,
                                    .node_count = 1 };
    if (count > 0)
        lki_partial_combine(&p, count, to);
}

static lk_status make_room(lki_native *n, size_t count)
{
    return lki_alloc((void **)&n->room, count * n->width + 1, "an operation of MPI");
}

/* Starts an all_reduce or reduce. */
static lk_status call_reduce(lki_native *n)
{
    const lk_request *r        = n->request;
    bool              all      = kind_of(r) == LKI_OP_ALL_REDUCE;
    bool              receives = all || r->root == r->comm->rank;
    size_t            count    = r->reduce.count;
    const void       *send     = r->send;

    n->result = receives ? r->recv : NULL;
    if (n->wide || (n->scaled && !receives)) {
        LK_TRY(make_room(n, count));
        n->result = n->room;
    }
    if (n->wide || n->scaled) {
        convert(n, false, send, count, n->result);
        send = n->result;
    }
    return start_long(n, (lki_mpi_call){ .kind  = all ? LKI_MPI_ALL_REDUCE : LKI_MPI_REDUCE,
                                         .dtype = n->dtype,
                                         .op    = op_of(r),
                                         .root  = all ? 0 : r->root,
                                         .send  = receives && send == n->result ? NULL : send,
                                         .recv  = receives ? n->result : NULL }, count);
}

/* Starts a reduce_scatter.  The parts of all ranks are consecutive in send.  Their sum is stored in
 * recv, or in `room` if recv is a part of send. */
static lk_status call_reduce_scatter(lki_native *n)
{
    const lk_request *r     = n->request;
    uint32_t          size  = r->comm->size;
    size_t            part  = r->longest / r->reduce.width, total = part * size;
    bool              made  = n->wide || n->scaled;
    bool              apart = made || r->recv == lki_at(r->send, r->comm->rank * r->longest);
    const char       *send  = (const char *)r->send;

    n->result = r->recv;
    if (apart) {
        LK_TRY(make_room(n, part + (made ? total : 0)));
        n->result = n->room;
    }
    if (made) {
        convert(n, false, send, total, n->room + part * n->width);
        send = (const char *)n->room + part * n->width;
    }
    lki_mpi_call call = { .kind = LKI_MPI_REDUCE_SCATTER, .dtype = n->dtype, .op = op_of(r),
                          .send = send, .recv = n->result, .count = part };
    if (part == 0)
        return LK_OK;
    if (fits(n, part))
        return start(n, call);
    call.kind = LKI_MPI_REDUCE;
    for (call.root = 0; call.root < size; call.root++) {
        call.send = send + call.root * part * n->width;
        call.recv = call.root == r->comm->rank ? n->result : NULL;
        LK_TRY(start_long(n, call, part));
    }
    return LK_OK;
}

/* Converts or copies the result after MPI is done. */
static void finish(const lki_native *n)
{
    const lk_request *r     = n->request;
    size_t            count = r->reduce.count;

    if (r->reduce.width == 0)
        return;
    if (kind_of(r) == LKI_OP_REDUCE_SCATTER)
        count = r->longest / r->reduce.width;
    else if (kind_of(r) == LKI_OP_REDUCE && r->root != r->comm->rank)
        return;
    if (n->wide || r->reduce.op.kind == LK_REDUCE_AVG)
        convert(n, true, n->result, count, r->recv);
    else if (n->result != r->recv && count > 0)
        memcpy(r->recv, n->result, count * n->width);
}

static lk_status call(lki_native *n)
{
    switch ((int)kind_of(n->request)) {
    case LKI_OP_BROADCAST: return call_broadcast(n);
    case LKI_OP_ALL_GATHER: return call_all_gather(n);
    case LKI_OP_ALL_TO_ALL: return call_all_to_all(n);
    case LKI_OP_REDUCE_SCATTER: return call_reduce_scatter(n);
    default: return call_reduce(n);
    }
}

/* ---- Comparing --------------------------------------------------------------------------- */

static lk_status start_comparing(lki_native *n)
{
    LK_TRY(LKI_NEW(&n->prints, (size_t)n->request->comm->size + 1, "fingerprints of all ranks"));
    n->prints[0] = n->request->op.print;
    return start(n, (lki_mpi_call){ .kind  = LKI_MPI_ALL_GATHER,
                                    .dtype = LK_U64,
                                    .apart = true,
                                    .send  = &n->prints[0],
                                    .recv  = &n->prints[1],
                                    .count = sizeof *n->prints / sizeof(uint64_t) });
}

/* Compares the fingerprints of all ranks.  All ranks compare the same list, so all errors name the
 * same two ranks. */
static lk_status compare(const lki_native *n)
{
    lk_comm         *comm  = n->request->comm;
    const lki_print *all   = n->prints + 1;
    uint32_t         other = 1;
    char             texts[2][LKI_OPERATION_BYTES];

    while (other < comm->size && memcmp(&all[other], &all[0], sizeof *all) == 0)
        other++;
    if (other >= comm->size)
        return LK_OK;
    lki_print_text(texts[0], sizeof texts[0], all[0], n->request->op.seq, comm->group);
    lki_print_text(texts[1], sizeof texts[1], all[other], n->request->op.seq, comm->group);
    return lki_fail_group(comm, comm->world[other], LK_EMISMATCH,
                          "rank %u is in %s; rank %u is in %s%s", comm->world[0], texts[0],
                          comm->world[other], texts[1],
                          strcmp(texts[0], texts[1]) == 0 ? ", but their factors differ" : "");
}

/* ---- Moving ------------------------------------------------------------------------------ */

static lk_status test(lki_native *n, bool *all)
{
    *all = false;
    while (n->ticket_count > 0) {
        bool        done;
        const char *error = n->engine->module->test(n->engine->world,
                                                    n->tickets[n->ticket_count - 1], &done);
        if (error != NULL)
            return lk_fail(LK_EPEER, "%s", error);
        if (!done)
            return LK_OK;
        n->ticket_count--;
    }
    *all = true;
    return LK_OK;
}

lk_status lki_native_move(lki_native *n, bool *moved, bool *done)
{
    lki_mpi_engine *engine = n->engine;
    bool        all    = true;

    *done = false;
    if (n->stage == TO_COMPARE && engine->turn[0] == n->number) {
        engine->turn[0]++;
        n->stage = COMPARING;
        LK_TRY(start_comparing(n));
    }
    if (n->stage == COMPARING) {
        LK_TRY(test(n, &all));
        if (all)
            LK_TRY(compare(n));
        n->stage = all ? TO_CALL : COMPARING;
    }
    if (n->stage == TO_CALL && engine->turn[1] == n->number) {
        engine->turn[1]++;
        n->stage = CALLING;
        *moved   = true;
        LK_TRY(call(n));
    }
    if (n->stage != CALLING)
        return LK_OK;
    LK_TRY(test(n, &all));
    if (!all)
        return LK_OK;
    finish(n);
    *moved = *done = true;
    return LK_OK;
}

void lki_native_rest(int64_t waited_ms)
{
    const struct timespec nap = { .tv_nsec = NAP_NS };

    if (waited_ms < YIELDS_MS)
        (void)sched_yield();
    else
        (void)nanosleep(&nap, NULL);
}

/* ---- Life -------------------------------------------------------------------------------- */

lk_status lki_native_new(lki_native **out, const lk_request *r)
{
    const lki_reduction *v = &r->reduce;
    lki_native          *n;

    *out = NULL;
    LK_TRY(LKI_NEW(&n, 1, "an operation of MPI"));
    n->request = r;
    n->engine  = (lki_mpi_engine *)r->comm->self->engine;
    n->number  = n->engine->next++;
    n->width   = 1;
    if (v->width != 0) {
        n->width  = lki_partial_width(v->dtype);
        n->wide   = n->width != v->width;
        n->scaled = v->op.kind == LK_REDUCE_PREMUL_SUM;
        n->dtype  = n->wide ? LK_F32 : v->dtype;
    }
    *out = n;
    return LK_OK;
}

bool lki_native_open(const lki_native *n)
{
    return n != NULL && n->ticket_count > 0;
}

void lki_native_free(lki_native *n)
{
    if (n == NULL)
        return;
    if (!lki_native_open(n)) {
        lki_free(n->room);
        lki_free(n->prints);
    }
    lki_free(n->tickets);
    lki_free(n);
}

/* ---- On one host ------------------------------------------------------------------------- */

static void plan(lk_request *r)
{
    r->rounds = 1;
}

static lk_status until_done(lk_request *r, lki_native *n)
{
    lk_comm *comm  = r->comm;
    int64_t  began = lki_now_ms(), looked = began, before = began;
    bool     moved = false, done = false;

    for (;;) {
        LK_TRY(lki_native_move(n, &moved, &done));
        if (done)
            return LK_OK;
        if (lki_failed(comm))
            return lki_group_failure(comm);
        lki_native_rest(before - began);
        int64_t now = lki_now_ms();
        began += now - before > LATE_MS ? now - before : 0; /* this process was stopped in the
                                                             * meantime */
        before = now;
        if (now - looked >= PEERS_MS) {
            looked = now;
            LK_TRY(lki_peers_check(comm, (lki_goal){ 0 }));
        }
        if (now - began >= comm->timeout_ms) {
            char text[LKI_OPERATION_BYTES];
            lki_print_text(text, sizeof text, r->op.print, r->op.seq, comm->group);
            return lki_fail_group(comm, comm->self->rank, LK_ETIMEOUT,
                                  "rank %u in %s: waited %lld ms for MPI's own collective",
                                  comm->self->rank, text, (long long)(now - began));
        }
    }
}

/* Runs an operation on one host, after all ranks have published it.  Operations run in the order of
 * their lane. */
static lk_status act(lk_request *r)
{
    lki_native *n;

    LK_TRY(lki_native_new(&n, r));
    n->stage     = TO_CALL;
    lk_status st = until_done(r, n);
    lki_native_free(n);
    return st;
}

static const lki_algorithm here = { .plan = plan, .act = act };

void lki_native_claim(lk_request *r)
{
    if (r->comm->span != NULL || r->comm->self->engine == NULL || !lki_native_can(r) ||
        r->comm->self->tuning.forced[kind_of(r)] != &lki_method_native)
        return;
    r->how  = &here;
    r->lane = LKI_LANE_NATIVE;
    r->op.print.what |= (uint64_t)lki_method_number(&lki_method_native) << 24;
}

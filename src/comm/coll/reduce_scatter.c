/* reduce_scatter.c -- the reduction of all ranks' vectors, of which each rank receives one part.
 *
 * There are three methods, which all give the same bits:
 *
 *   slot     whole vectors of up to lki_payload_most() bytes are sent in slots; each rank sums its
 *            part.
 *   direct   all `send` buffers are in arenas: each rank sums its part from them.
 *   staged   otherwise: chunk by chunk through the staging buffers, in which every rank has a
 *            share.  Rounds are as in move.c, but a rank sums elements where move.c copies them.
 *
 * Cost:    slot: one synchronisation.  Direct: two; one rank reads each element once and writes its
 *          part once.  Staged: one per chunk and one more, and one additional copy.
 * Order:   ((r0 + r1) + (r2 + r3)) + ..., for every size and method: exact.
 * Memory:  none but the existing staging buffers; with different sizes, an offset for every rank.
 */
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "comm/coll/adasum.h"
#include "device/combine.h"

/* Returns the offset of part `rank` in every send buffer, in bytes. */
static size_t part_at(const lk_request *r, uint32_t rank)
{
    return r->offsets != NULL ? r->offsets[rank] : rank * r->longest;
}

static size_t part_bytes(const lk_request *r, uint32_t rank)
{
    return r->offsets != NULL ? r->offsets[rank + 1] - r->offsets[rank] : r->longest;
}

/* Sums the vectors to which comm->pointers points; it has one pointer per rank. */
static void sum(const lk_request *r, size_t at, size_t bytes)
{
    if (bytes > 0)
        lki_combine(r->reduce.dtype, r->reduce.op, r->comm->size, r->comm->pointers,
                    bytes / r->reduce.width, r->recv + at);
}

static lk_status act_slot(const lk_request *r)
{
    lk_comm *comm  = r->comm;
    size_t   first = part_at(r, comm->rank), bytes = part_bytes(r, comm->rank);

    for (uint32_t from = 0; from < comm->size; from++) {
        unsigned char *to = comm->payloads + from * lki_payload_most(comm->size);
        LK_TRY(lki_op_read(comm, &r->op, from, first, bytes, to));
        comm->pointers[from] = to;
    }
    sum(r, 0, bytes);
    return LK_OK;
}

static void act_direct(const lk_request *r)
{
    lk_comm *comm = r->comm;

    for (uint32_t from = 0; from < comm->size; from++)
        comm->pointers[from] = lki_at(lki_place_data(comm, lki_reach_of(r, from).send),
                                      part_at(r, comm->rank));
    sum(r, 0, part_bytes(r, comm->rank));
}

/* ---- staged ------------------------------------------------------------------------------ */

static size_t in_chunk(const lk_request *r, uint32_t rank, uint64_t chunk)
{
    size_t share = lki_share(r), at = (size_t)chunk * share, bytes = part_bytes(r, rank);
    return at < bytes ? lki_min(bytes - at, share) : 0;
}

static unsigned char *slots(const lk_request *r, uint64_t chunk, uint32_t from, uint32_t to)
{
    unsigned char *at = lki_stage(r->comm, from, r->comm->chunks + chunk);
    return at + to * lki_share(r);
}

static void put(const lk_request *r, uint64_t chunk)
{
    uint32_t me    = r->comm->rank;
    bool     begun = false;

    for (uint32_t to = 0; to < r->comm->size; to++) {
        size_t n = in_chunk(r, to, chunk);
        if (to == me || n == 0)
            continue;
        if (!begun)
            (void)lki_stage_claim(r->comm, r->comm->chunks + chunk);
        begun = true;
        memcpy(slots(r, chunk, me, to), r->send + part_at(r, to) + chunk * lki_share(r), n);
    }
}

/* Checks that the staging buffers of all other ranks hold the chunk. */
static void check_stages(const lk_request *r, uint64_t chunk)
{
    for (uint32_t from = 0; from < r->comm->size; from++)
        if (from != r->comm->rank)
            lki_stage_check(r->comm, from, r->comm->chunks + chunk);
}

/* Sums a chunk of this rank's part.  The rank's own elements are read in place; in an in-place
 * operation the sum replaces them. */
static void take(const lk_request *r, uint64_t chunk)
{
    lk_comm *comm = r->comm;
    size_t   n = in_chunk(r, comm->rank, chunk), at = (size_t)chunk * lki_share(r);

    if (n == 0)
        return;
    check_stages(r, chunk);
    for (uint32_t from = 0; from < comm->size; from++)
        comm->pointers[from] = from == comm->rank ? r->send + part_at(r, from) + at
                                                  : slots(r, chunk, from, comm->rank);
    sum(r, at, n);
    check_stages(r, chunk);
}

static void act_staged(lk_request *r)
{
    if (r->filled || r->round > 0)
        take(r, r->round - !r->filled);
    if (r->round + 1 < r->rounds)
        put(r, r->round + r->filled);
    else
        r->comm->chunks += r->round + r->filled;
}

/* ---- The algorithm ----------------------------------------------------------------------- */

static void publish(lk_request *r)
{
    lk_comm *comm = r->comm;

    if (r->lane == LKI_LANE_NONE) {
        lki_payload_write(r, r->send, r->send_bytes, r->send_bytes);
        return;
    }
    lki_reach mine = { .send = lki_place_of(comm, r->send, r->send_bytes) };
    mine.direct    = mine.send.arena != 0;
    if (!mine.direct && lki_request_first(r)) {
        put(r, 0);
        mine.filled = true;
    }
    lki_reach_tell(r, &mine);
}

static void plan(lk_request *r)
{
    bool   direct = true, filled = true;
    size_t longest = 0;

    r->rounds = 1;
    if (r->lane == LKI_LANE_NONE) {
        lki_payload_await(r, r->send_bytes);
        return;
    }
    for (uint32_t rank = 0; rank < r->comm->size; rank++) {
        lki_reach reach = lki_reach_of(r, rank);
        direct          = direct && reach.direct != 0;
        filled          = filled && reach.filled != 0;
        longest         = lki_max(longest, part_bytes(r, rank));
    }
    r->staged = !direct;
    r->filled = filled;
    r->rounds = direct ? 2 : (longest + lki_share(r) - 1) / lki_share(r) + !filled;
    if (direct)
        r->lane = LKI_LANE_NONE;
}

static lk_status act(lk_request *r)
{
    if (r->staged)
        act_staged(r);
    else if (r->rounds == 1)
        return act_slot(r);
    else if (r->round == 0)
        act_direct(r);
    return LK_OK;
}

static const lki_algorithm algorithm = { .publish = publish, .plan = plan, .act = act };

/* ---- The calls --------------------------------------------------------------------------- */

/* Completes a request with its send_bytes and `longest`, or `offsets` if the parts differ, set. */
static void prepare(lk_request *r)
{
    r->how  = &algorithm;
    r->lane = r->send_bytes <= lki_payload_most(r->comm->size) ? LKI_LANE_NONE : LKI_LANE_STAGES;
}

/* Checks the arguments of a reduce_scatter with equal parts; *total is the size of all parts in
 * bytes. */
static lk_status check_even(size_t *total, lk_comm *comm, const void *send, void *recv,
                            size_t count, lk_dtype dtype, lk_reduce_op op)
{
    size_t bytes;

    LK_TRY(lki_refuse_adasum("reduce_scatter", op));
    LK_TRY(lki_check_reduction(&bytes, "reduce_scatter", send, recv, count, dtype, op));
    LK_TRY(lki_total(total, "reduce_scatter", bytes, comm->size));
    return lki_check_buffers("reduce_scatter", send, *total, recv, bytes,
                             recv == lki_at(send, comm->rank * bytes));
}

static void prepare_even(lk_request *r, lk_comm *comm, const void *send, void *recv, size_t count,
                         lk_dtype dtype, lk_reduce_op op)
{
    size_t bytes = count * lk_dtype_bytes(dtype);

    *r = (lk_request){
        .comm       = comm,
        .op.print   = lki_print_reduce(LKI_OP_REDUCE_SCATTER, dtype, op, 0, count),
        .send       = send,
        .recv       = recv,
        .longest    = bytes,
        .send_bytes = bytes * comm->size,
        .reduce     = { .dtype = dtype, .op = op, .width = lk_dtype_bytes(dtype) },
    };
    prepare(r);
}

/* Performs the slot method without a request, because creating one would double the time. */
static lk_status at_once(lk_comm *comm, const void *send, void *recv, size_t count, lk_dtype dtype,
                         lk_reduce_op op)
{
    size_t bytes = count * lk_dtype_bytes(dtype), total = bytes * comm->size;
    lki_op slot;

    LK_TRY(lki_op_exchange(&slot, comm,
                           lki_print_reduce(LKI_OP_REDUCE_SCATTER, dtype, op, 0, count), send,
                           total));
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        unsigned char *to    = comm->payloads + rank * lki_payload_most(comm->size);
        comm->pointers[rank] = rank == comm->rank ? lki_at(send, rank * bytes) : to;
        if (rank != comm->rank)
            LK_TRY(lki_op_read(comm, &slot, rank, comm->rank * bytes, bytes, to));
    }
    lki_combine(dtype, op, comm->size, comm->pointers, count, recv);
    lki_op_finish(comm, &slot, total);
    return LK_OK;
}

static lk_status fill_uneven(lk_request *r, const size_t *counts)
{
    lk_comm *comm  = r->comm;
    size_t   width = r->reduce.width, bytes;

    LK_TRY(lki_offsets(r->offsets, comm, counts, width, "reduce_scatter_v", "counts"));
    r->send_bytes = r->offsets[comm->size];
    LK_TRY(lki_check_reduction(&bytes, "reduce_scatter_v", r->send, r->recv, r->send_bytes / width,
                               r->reduce.dtype, r->reduce.op));
    r->op.print = lki_print_reduce(LKI_OP_REDUCE_SCATTER_V, r->reduce.dtype, r->reduce.op, 0,
                                   r->send_bytes / width);
    r->op.print.hash ^= lki_xxh3(counts, comm->size * sizeof *counts);
    LK_TRY(lki_check_buffers("reduce_scatter_v", r->send, r->send_bytes, r->recv,
                             part_bytes(r, comm->rank),
                             r->recv == lki_at(r->send, part_at(r, comm->rank))));
    prepare(r);
    return LK_OK;
}

static lk_status prepare_uneven(lk_request *r, lk_comm *comm, const void *send, void *recv,
                                const size_t *counts, lk_dtype dtype, lk_reduce_op op)
{
    LK_TRY(lki_refuse_adasum("reduce_scatter_v", op));
    LK_TRY(lki_combine_check(dtype, op));
    *r = (lk_request){ .comm   = comm,
                       .send   = send,
                       .recv   = recv,
                       .reduce = { .dtype = dtype, .op = op, .width = lk_dtype_bytes(dtype) } };
    LK_TRY(LKI_NEW(&r->offsets, (size_t)comm->size + 1, "offsets of parts"));
    lk_status st = fill_uneven(r, counts);
    if (st != LK_OK)
        lki_free(r->offsets);
    return st;
}

lk_status lk_reduce_scatter(lk_comm *comm, const void *send, void *recv, size_t count,
                            lk_dtype dtype, lk_reduce_op op)
{
    lk_request r;
    size_t     total;

    LK_TRY(check_even(&total, comm, send, recv, count, dtype, op));
    if (total <= lki_payload_most(comm->size) && comm->span == NULL &&
        comm->self->tuning.forced[LKI_OP_REDUCE_SCATTER] == NULL)
        return at_once(comm, send, recv, count, dtype, op);
    prepare_even(&r, comm, send, recv, count, dtype, op);
    return lki_request_run(&r);
}

lk_status lk_reduce_scatter_start(lk_request **out, lk_comm *comm, const void *send, void *recv,
                                  size_t count, lk_dtype dtype, lk_reduce_op op)
{
    lk_request r;
    size_t     total;

    *out = NULL;
    LK_TRY(check_even(&total, comm, send, recv, count, dtype, op));
    prepare_even(&r, comm, send, recv, count, dtype, op);
    return lki_request_start(out, &r);
}

lk_status lk_reduce_scatter_v(lk_comm *comm, const void *send, void *recv, const size_t *counts,
                              lk_dtype dtype, lk_reduce_op op)
{
    lk_request r;
    LK_TRY(prepare_uneven(&r, comm, send, recv, counts, dtype, op));
    return lki_request_run(&r);
}

lk_status lk_reduce_scatter_v_start(lk_request **out, lk_comm *comm, const void *send, void *recv,
                                    const size_t *counts, lk_dtype dtype, lk_reduce_op op)
{
    lk_request r;
    *out = NULL;
    LK_TRY(prepare_uneven(&r, comm, send, recv, counts, dtype, op));
    return lki_request_start(out, &r);
}

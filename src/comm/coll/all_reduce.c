/* all_reduce.c -- the reduction of all ranks' vectors on every rank, by the canonical tree.
 *
 * There are three methods.  The size and location of the buffers determine the method, never
 * timing.  The tree is elementwise, so all methods give the same bits:
 *
 *   slot     up to lki_payload_most() bytes: payloads are sent in the slots, and every rank sums.
 *   direct   all buffers in arenas: the owner of a slice reads it from all `send` buffers and
 *            writes the sum to all `recv` buffers.
 *   staged   otherwise: chunk by chunk through the staging buffers, where every rank puts the
 *            slices of the other ranks.  The owner of a slice reads its own elements in place.  It
 *            writes the sum to its vector and to its staging buffer, from which the other ranks
 *            copy it.
 *
 *      staged, one round per chunk (|):
 *          in 0 | sum 0, in 1 | out 0, sum 1, in 2 | out 1, sum 2, in 3 | out 2 ...
 *      The buffer of chunk c is reused for chunk c + 3, when all ranks have copied chunk c out.  If
 *      all ranks find their staging buffers free before they publish, they put chunk 0 in at once.
 *
 * reduce uses this code with one receiver.  A vector may be in parts; in slots and staging buffers
 * the parts are contiguous.
 *
 * Cost:    slot: one synchronisation, size * bytes read.  Direct: two synchronisations, and on each
 *          rank 2 bytes of memory traffic per payload byte.  Staged: chunks + 1 synchronisations, 4
 *          bytes.
 * Order:   ((r0 + r1) + (r2 + r3)) + ..., for every size and method: exact.
 * Memory:  none but the existing staging buffers.
 * Source:  the two-shot direct reduction is the reduce-scatter and all-gather of Rabenseifner
 *          ("Optimization of collective reduction operations", ICCS 2004, section 4), with shared
 *          memory in place of messages.
 */
#include "base/memory.h"
#include "comm/coll/adasum.h"
#include "device/combine.h"

#include <string.h>

/* ---- Parts ------------------------------------------------------------------------------- */

/* Copies bytes [at, at + bytes) of the request's vector.  If `out` is not NULL, copies from the
 * parts of the vector to `out`; otherwise from `in` to the parts. */
static void copy_parts(const lk_request *r, size_t at, size_t bytes, unsigned char *out,
                       const unsigned char *in)
{
    const lki_reduction *v = &r->reduce;

    LK_ASSERT((out == NULL) != (in == NULL));
    for (size_t k = 0; k < v->part_count && bytes > 0; k++) {
        size_t part = v->parts[k].count * v->width;
        if (at >= part) {
            at -= part;
            continue;
        }
        size_t n = lki_min(bytes, part - at);
        if (out != NULL) {
            memcpy(out, (const unsigned char *)v->parts[k].send + at, n);
            out += n;
        } else {
            memcpy((unsigned char *)v->parts[k].recv + at, in, n);
            in += n;
        }
        bytes -= n;
        at = 0;
    }
}

static void fetch(const lk_request *r, size_t at, size_t bytes, unsigned char *to)
{
    if (r->reduce.parts != NULL)
        copy_parts(r, at, bytes, to, NULL);
    else if (bytes > 0)
        memcpy(to, r->send + at, bytes);
}

static void deliver(const lk_request *r, size_t at, size_t bytes, const unsigned char *from)
{
    if (r->reduce.parts != NULL)
        copy_parts(r, at, bytes, NULL, from);
    else if (bytes > 0)
        memcpy(r->recv + at, from, bytes);
}

/* ---- Sums over ranks --------------------------------------------------------------------- */

static bool receives(const lk_request *r, uint32_t rank)
{
    return r->root == LKI_ALL_RANKS || r->root == rank;
}

/* Computes elements [0, count) of the tree over the vectors `from`, which has one vector per rank.
 * The result `out` may be one of these vectors. */
static void sum(const lk_request *r, const void *const *from, void *out, size_t count)
{
    lki_combine(r->reduce.dtype, r->reduce.op, r->comm->size, from, count, out);
}

/* Computes the slice [*first, *end) that `rank` sums, of a vector of `count` elements.  A slice is
 * a whole number of cache lines. */
static void slice_of(const lk_request *r, size_t count, uint32_t rank, size_t *first, size_t *end)
{
    size_t size = r->comm->size, width = r->reduce.width;

    LK_ASSERT(size > 0 && width > 0 && width <= LKI_LINE);
    size_t each = lki_round_up((count + size - 1) / size, LKI_LINE / width);
    *first      = lki_min(each * rank, count);
    *end        = lki_min(*first + each, count);
}

/* ---- slot -------------------------------------------------------------------------------- */

static lk_status act_slot(lk_request *r)
{
    lk_comm      *comm = r->comm;
    const void  **from = comm->pointers;
    unsigned char result[LKI_PAYLOAD_BYTES];

    if (r->bytes == 0 || !receives(r, comm->rank))
        return LK_OK;
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        unsigned char *to = comm->payloads + rank * lki_payload_most(comm->size);
        LK_TRY(lki_op_read(comm, &r->op, rank, 0, r->bytes, to));
        from[rank] = to;
    }
    if (r->reduce.parts == NULL) {
        sum(r, from, r->recv, r->reduce.count);
        return LK_OK;
    }
    sum(r, from, result, r->reduce.count);
    deliver(r, 0, r->bytes, result);
    return LK_OK;
}

/* ---- direct ------------------------------------------------------------------------------ */

static void act_direct(lk_request *r)
{
    lk_comm     *comm  = r->comm;
    const void **send  = comm->pointers;
    void       **recv  = comm->targets;
    size_t       width = r->reduce.width, first, end;
    uint32_t     receivers = 0;

    slice_of(r, r->reduce.count, comm->rank, &first, &end);
    if (first == end)
        return;
    for (uint32_t i = 0; i < comm->size; i++) {
        uint32_t  rank  = (comm->rank + i) % comm->size; /* begins with this rank's own vector */
        lki_reach reach = lki_reach_of(r, rank);
        send[rank]      = (unsigned char *)lki_place_data(comm, reach.send) + first * width;
        if (receives(r, rank))
            recv[receivers++] = (unsigned char *)lki_place_data(comm, reach.recv) + first * width;
    }
    lki_combine_all(r->reduce.dtype, r->reduce.op, comm->size, send, end - first, recv, receivers);
}

/* ---- staged ------------------------------------------------------------------------------ */

/* A chunk of a rank's vector, and slice [first, end) of its bytes. */
typedef struct {
    size_t at, bytes, first, end;
} chunk_part;

static chunk_part piece(const lk_request *r, uint64_t chunk, uint32_t rank)
{
    size_t        width = r->reduce.width;
    chunk_part p     = { .at = (size_t)chunk * r->comm->stage_bytes };

    p.bytes = p.at < r->bytes ? lki_min(r->bytes - p.at, r->comm->stage_bytes) : 0;
    slice_of(r, p.bytes / width, rank, &p.first, &p.end);
    p.first *= width;
    p.end   *= width;
    return p;
}

static uint64_t chunks_of(const lk_request *r)
{
    return (r->bytes + r->comm->stage_bytes - 1) / r->comm->stage_bytes;
}

static unsigned char *stage_of(const lk_request *r, uint64_t chunk, uint32_t rank)
{
    return lki_stage(r->comm, rank, r->comm->chunks + chunk);
}

/* Stages the slices that other ranks sum.  A vector in parts is staged whole, because its owner
 * needs it contiguous. */
static void stage_in(const lk_request *r, uint64_t chunk)
{
    uint32_t       me = r->comm->rank;
    chunk_part  p  = piece(r, chunk, me);
    unsigned char *to = stage_of(r, chunk, me);

    if (p.bytes == 0)
        return;
    (void)lki_stage_claim(r->comm, r->comm->chunks + chunk);
    if (r->reduce.parts != NULL) {
        fetch(r, p.at, p.bytes, to);
        return;
    }
    fetch(r, p.at, p.first, to);
    fetch(r, p.at + p.end, p.bytes - p.end, to + p.end);
}

/* Checks that the staging buffers of all ranks hold the chunk. */
static void check_stages(const lk_request *r, uint64_t chunk)
{
    for (uint32_t rank = 0; rank < r->comm->size; rank++)
        lki_stage_check(r->comm, rank, r->comm->chunks + chunk);
}

/* Sums this rank's slice of the chunk into its vector, and copies the sum to its staging buffer.
 * Other ranks' caches hold the lines of that buffer, and memcpy() regains them several times as
 * fast as a loop of stores. */
static void stage_sum(const lk_request *r, uint64_t chunk)
{
    lk_comm       *comm  = r->comm;
    const void   **from  = comm->pointers;
    chunk_part     p     = piece(r, chunk, comm->rank);
    unsigned char *stage = stage_of(r, chunk, comm->rank) + p.first, *out = stage;
    bool           whole = r->reduce.parts == NULL;

    if (p.first == p.end)
        return;
    for (uint32_t rank = 0; rank < comm->size; rank++)
        from[rank] = stage_of(r, chunk, rank) + p.first;
    if (whole)
        from[comm->rank] = r->send + p.at + p.first;
    if (whole && receives(r, comm->rank))
        out = r->recv + p.at + p.first;
    check_stages(r, chunk);
    sum(r, from, out, (p.end - p.first) / r->reduce.width);
    check_stages(r, chunk);
    if (out != stage && r->root == LKI_ALL_RANKS)
        memcpy(stage, out, p.end - p.first);
}

static void stage_out(const lk_request *r, uint64_t chunk)
{
    lk_comm *comm = r->comm;

    if (!receives(r, comm->rank))
        return;
    for (uint32_t i = r->reduce.parts == NULL; i < comm->size; i++) {
        uint32_t      rank = (comm->rank + i) % comm->size; /* ranks start with different peers */
        chunk_part    p    = piece(r, chunk, rank);
        if (p.bytes == 0)
            continue;
        lki_stage_check(comm, rank, comm->chunks + chunk);
        deliver(r, p.at + p.first, p.end - p.first, stage_of(r, chunk, rank) + p.first);
        lki_stage_check(comm, rank, comm->chunks + chunk);
    }
}

static void act_staged(lk_request *r)
{
    uint64_t chunks = chunks_of(r), round = r->round;

    if (!r->filled && round-- == 0) {
        stage_in(r, 0);
        return;
    }
    if (round > 0)
        stage_out(r, round - 1);
    if (round < chunks) {
        stage_sum(r, round);
        stage_in(r, round + 1);
    } else {
        r->comm->chunks += chunks;
    }
}

/* ---- The algorithm ----------------------------------------------------------------------- */

static void publish(lk_request *r)
{
    lk_comm  *comm = r->comm;
    lki_reach mine = { .direct = r->reduce.parts == NULL };

    if (r->lane == LKI_LANE_NONE) {
        fetch(r, 0, r->bytes, comm->payloads);
        lki_payload_write(r, comm->payloads, r->bytes, r->bytes);
        return;
    }
    mine.send   = lki_place_of(comm, r->send, r->bytes);
    mine.direct = mine.direct && mine.send.arena != 0;
    if (receives(r, comm->rank)) {
        mine.recv   = lki_place_of(comm, r->recv, r->bytes);
        mine.direct = mine.direct && mine.recv.arena != 0;
    }
    if (!mine.direct && lki_request_first(r)) { /* the method will be staged */
        stage_in(r, 0);
        mine.filled = true;
    }
    lki_reach_tell(r, &mine);
}

static void plan(lk_request *r)
{
    bool direct = true, filled = true;

    r->rounds = 1;
    if (r->lane == LKI_LANE_NONE) {
        lki_payload_await(r, r->bytes);
        return;
    }
    for (uint32_t rank = 0; rank < r->comm->size; rank++) {
        lki_reach reach = lki_reach_of(r, rank);
        direct          = direct && reach.direct != 0;
        filled          = filled && reach.filled != 0;
    }
    r->staged = !direct;
    r->filled = filled;
    r->rounds = 2;
    if (direct)
        r->lane = LKI_LANE_NONE;
    else
        r->rounds = chunks_of(r) + 1 + !filled;
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

void lki_all_reduce_init(lk_request *r)
{
    r->how   = &algorithm;
    r->bytes = r->reduce.count * r->reduce.width;
    r->lane  = r->bytes <= lki_payload_most(r->comm->size) ? LKI_LANE_NONE : LKI_LANE_STAGES;
}

/* ---- The calls --------------------------------------------------------------------------- */

lk_status lki_check_reduction(size_t *bytes, const char *name, const void *send, const void *recv,
                              size_t count, lk_dtype dtype, lk_reduce_op op)
{
    size_t width = lk_dtype_bytes(dtype);

    LK_TRY(lki_combine_check(dtype, op));
    LK_TRY(lki_total(bytes, name, count, width));
    if (count > 0 && ((uintptr_t)send % width != 0 || (uintptr_t)recv % width != 0))
        return lk_fail(LK_EINVAL, "%s: %s is not aligned to the %zu bytes of %s", name,
                       (uintptr_t)send % width != 0 ? "send" : "recv", width, lk_dtype_name(dtype));
    return LK_OK;
}

static lk_status check(size_t *bytes, const void *send, const void *recv, size_t count,
                       lk_dtype dtype, lk_reduce_op op)
{
    LK_TRY(lki_check_reduction(bytes, "all_reduce", send, recv, count, dtype, op));
    return lki_check_buffers("all_reduce", send, *bytes, recv, *bytes, send == recv);
}

static void prepare(lk_request *r, lk_comm *comm, const void *send, void *recv, size_t count,
                    lk_dtype dtype, lk_reduce_op op)
{
    *r = (lk_request){
        .comm     = comm,
        .op.print = lki_print_reduce(LKI_OP_ALL_REDUCE, dtype, op, 0, count),
        .send     = send,
        .recv     = recv,
        .root     = LKI_ALL_RANKS,
        .reduce   = { .dtype = dtype, .op = op, .count = count, .width = lk_dtype_bytes(dtype) },
    };
    lki_all_reduce_init(r);
}

/* Performs the slot method without a request, because creating one would double the time. */
static lk_status at_once(lk_comm *comm, const void *send, void *recv, size_t count, lk_dtype dtype,
                         lk_reduce_op op)
{
    size_t bytes = count * lk_dtype_bytes(dtype);
    lki_op slot;

    LK_TRY(lki_op_exchange(&slot, comm, lki_print_reduce(LKI_OP_ALL_REDUCE, dtype, op, 0, count),
                           send, bytes));
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        unsigned char *to    = comm->payloads + rank * lki_payload_most(comm->size);
        comm->pointers[rank] = rank == comm->rank ? send : to;
        if (rank != comm->rank)
            LK_TRY(lki_op_read(comm, &slot, rank, 0, bytes, to));
    }
    lki_combine(dtype, op, comm->size, comm->pointers, count, recv);
    lki_op_finish(comm, &slot, bytes);
    return LK_OK;
}

lk_status lk_all_reduce(lk_comm *comm, const void *send, void *recv, size_t count, lk_dtype dtype,
                        lk_reduce_op op)
{
    lk_request r;
    size_t     bytes;

    LK_TRY(check(&bytes, send, recv, count, dtype, op));
    if (op.kind == LK_REDUCE_ADASUM)
        return lki_adasum_reduce(comm, send, recv, count, dtype, LKI_ALL_RANKS);
    if (bytes <= lki_payload_most(comm->size) && comm->span == NULL &&
        comm->self->tuning.forced[LKI_OP_ALL_REDUCE] == NULL)
        return at_once(comm, send, recv, count, dtype, op);
    prepare(&r, comm, send, recv, count, dtype, op);
    return lki_request_run(&r);
}

lk_status lk_all_reduce_start(lk_request **out, lk_comm *comm, const void *send, void *recv,
                              size_t count, lk_dtype dtype, lk_reduce_op op)
{
    lk_request r;
    size_t     bytes;

    *out = NULL;
    LK_TRY(check(&bytes, send, recv, count, dtype, op));
    LK_TRY(lki_refuse_adasum("all_reduce_start", op));
    prepare(&r, comm, send, recv, count, dtype, op);
    return lki_request_start(out, &r);
}

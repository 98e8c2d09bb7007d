/* all_reduce.c -- the sum of all ranks' vectors on every rank, by the canonical tree over ranks.
 *
 * Three ways; which one is taken depends on the size and on where the buffers lie, never on
 * timing, and none of them can change a bit, since the tree is elementwise:
 *
 *   slot     up to LKI_BODY_BYTES: payloads travel in the slots, everybody sums everything.
 *   direct   all buffers in arenas: the owner of a slice reads it from all `send` buffers and
 *            writes the sum into all `recv` buffers, block by block while it is in cache.
 *   staged   else: chunk after chunk through the staging buffers.  The owner of a slice leaves
 *            its sum in its own staging buffer, and everybody copies it from there.
 *
 *      staged, one synchronisation a chunk (|):
 *          in 0 | sum 0, in 1 | out 0, sum 1, in 2 | out 1, sum 2, in 3 | out 2 ...
 *      The buffer of chunk c is filled again with chunk c + 3, which nobody does before
 *      everybody has copied chunk c out.
 *
 * Cost:    slot: one synchronisation, size * bytes read.  Direct: two, and 2 bytes of memory
 *          traffic a payload byte on each rank.  Staged: chunks + 1, and two more copies.
 * Order:   ((r0 + r1) + (r2 + r3)) + ..., whatever the size and the way.
 * Memory:  the staging buffers, which exist anyway.
 * Source:  the two-shot direct reduction is the reduce-scatter and all-gather of Rabenseifner
 *          ("Optimization of collective reduction operations", ICCS 2004, section 4) with shared
 *          memory in the place of messages.
 */
#include <string.h>

#include "base/memory.h"
#include "comm/group.h"

enum {
    BLOCK_BYTES = 8192, /* of a slice: what was summed is still in the first cache when copied */
    GRAIN       = 16,   /* elements; a slice begins on a cache line of the buffer */
};

typedef struct {
    size_t   count;
    lk_dtype dtype;
    size_t   width; /* bytes of an element */
} vector;

/* Where a rank's two buffers are; the bool says it in one word: both in arenas. */
typedef struct {
    lki_place send, recv;
    bool      in_arena;
} places;

/* ---- Sums over ranks --------------------------------------------------------------------- */

/* One element of the canonical tree over ranks [first, first + count), in double. */
static double tree_f64(const double *const *from, size_t i, uint32_t first, uint32_t count)
{
    if (count == 1)
        return from[first][i];
    uint32_t left = lki_tree_left(count);
    return tree_f64(from, i, first, left) + tree_f64(from, i, first + left, count - left);
}

/* out[0 .. count) = the tree over from[rank][0 .. count); `out` may be one of them. */
static void sum(lk_comm *comm, const void *const *from, void *out, size_t count, lk_dtype dtype)
{
    if (dtype == LK_F64) {
        for (size_t i = 0; i < count; i++)
            ((double *)out)[i] = tree_f64((const double *const *)from, i, 0, comm->size);
        return;
    }
    for (uint32_t rank = 0; rank < comm->size; rank++)
        comm->inputs[rank] = (lki_tree_input){ rank, 1, from[rank] };
    lki_tree_sum_f32(comm->size, comm->inputs, comm->size, count, out);
}

/* The slice that `rank` sums, of a vector of `count` elements. */
static void slice_of(const lk_comm *comm, size_t count, uint32_t rank, size_t *first, size_t *end)
{
    size_t each = lki_round_up((count + comm->size - 1) / comm->size, GRAIN);
    *first      = lki_min(each * rank, count);
    *end        = lki_min(*first + each, count);
}

/* ---- slot -------------------------------------------------------------------------------- */

static lk_status small(lk_comm *comm, const lki_op *op, const void *send, void *recv, vector v)
{
    size_t       bytes = v.count * v.width;
    const void **from  = comm->pointers;

    if (bytes > 0)
        memcpy(lki_op_payload(comm, op, comm->rank, bytes), send, bytes);
    lki_op_publish(comm, op);
    LK_TRY(lki_op_meet(comm, op));
    for (uint32_t rank = 0; rank < comm->size; rank++)
        from[rank] = lki_op_payload(comm, op, rank, bytes);
    if (bytes > 0)
        sum(comm, from, recv, v.count, v.dtype);
    return LK_OK;
}

/* ---- direct ------------------------------------------------------------------------------ */

static lk_status direct(lk_comm *comm, const lki_op *op, vector v)
{
    const void **from  = comm->pointers;
    const void **send  = from + comm->size;
    void       **recv  = comm->targets;
    size_t       block = BLOCK_BYTES / v.width, first, end;

    for (uint32_t rank = 0; rank < comm->size; rank++) {
        places p;
        memcpy(&p, lki_op_payload(comm, op, rank, sizeof p), sizeof p);
        send[rank] = lki_place_data(comm, p.send);
        recv[rank] = lki_place_data(comm, p.recv);
    }
    slice_of(comm, v.count, comm->rank, &first, &end);
    for (size_t at = first; at < end; at += block) {
        size_t         n   = lki_min(block, end - at);
        unsigned char *out = (unsigned char *)recv[comm->rank] + at * v.width;
        for (uint32_t rank = 0; rank < comm->size; rank++)
            from[rank] = (const unsigned char *)send[rank] + at * v.width;
        sum(comm, from, out, n, v.dtype);
        for (uint32_t rank = 0; rank < comm->size; rank++)
            if (recv[rank] != recv[comm->rank])
                memcpy((unsigned char *)recv[rank] + at * v.width, out, n * v.width);
    }
    return lki_sync(comm);
}

/* ---- staged ------------------------------------------------------------------------------ */

static void stage_in(lk_comm *comm, uint64_t chunk, const void *send, size_t bytes, size_t at)
{
    if (at < bytes)
        memcpy(lki_stage(comm, comm->rank, chunk), (const unsigned char *)send + at,
               lki_min(bytes - at, LKI_STAGE_BYTES));
}

/* Sums my slice of the chunk, which has `count` elements, in my staging buffer. */
static void stage_sum(lk_comm *comm, uint64_t chunk, size_t count, vector v)
{
    const void **from = comm->pointers;
    size_t       first, end;

    slice_of(comm, count, comm->rank, &first, &end);
    if (first == end)
        return;
    for (uint32_t rank = 0; rank < comm->size; rank++)
        from[rank] = (unsigned char *)lki_stage(comm, rank, chunk) + first * v.width;
    sum(comm, from, (unsigned char *)lki_stage(comm, comm->rank, chunk) + first * v.width,
        end - first, v.dtype);
}

static void stage_out(lk_comm *comm, uint64_t chunk, unsigned char *recv, size_t count, vector v)
{
    for (uint32_t i = 0; i < comm->size; i++) {
        uint32_t rank = (comm->rank + i) % comm->size; /* not all from the same at once */
        size_t   first, end;
        slice_of(comm, count, rank, &first, &end);
        memcpy(recv + first * v.width,
               (unsigned char *)lki_stage(comm, rank, chunk) + first * v.width,
               (end - first) * v.width);
    }
}

/* `filled`: every rank's first chunk was in place before the slots were published. */
static lk_status staged(lk_comm *comm, const void *send, void *recv, vector v, bool filled)
{
    size_t bytes = v.count * v.width;

    if (!filled)
        LK_TRY(lki_sync(comm));
    for (size_t at = 0; at < bytes; at += LKI_STAGE_BYTES, comm->chunks++) {
        size_t count = lki_min(bytes - at, LKI_STAGE_BYTES) / v.width;
        stage_sum(comm, comm->chunks, count, v);
        stage_in(comm, comm->chunks + 1, send, bytes, at + LKI_STAGE_BYTES);
        LK_TRY(lki_sync(comm));
        stage_out(comm, comm->chunks, (unsigned char *)recv + at, count, v);
    }
    return LK_OK;
}

/* ---- Choosing ---------------------------------------------------------------------------- */

static lk_status large(lk_comm *comm, const lki_op *op, const void *send, void *recv, vector v)
{
    size_t bytes = v.count * v.width;
    places mine;
    bool   all = true, none = true;

    memset(&mine, 0, sizeof mine);
    mine.send     = lki_place_of(comm, send, bytes);
    mine.recv     = lki_place_of(comm, recv, bytes);
    mine.in_arena = mine.send.arena != 0 && mine.recv.arena != 0;
    if (!mine.in_arena) /* then the staged way it will be, whatever the others have */
        stage_in(comm, comm->chunks, send, bytes, 0);
    memcpy(lki_op_payload(comm, op, comm->rank, sizeof mine), &mine, sizeof mine);
    lki_op_publish(comm, op);
    LK_TRY(lki_op_meet(comm, op));
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        places p;
        memcpy(&p, lki_op_payload(comm, op, rank, sizeof p), sizeof p);
        all  = all && p.in_arena;
        none = none && !p.in_arena;
    }
    if (all)
        return direct(comm, op, v);
    if (mine.in_arena)
        stage_in(comm, comm->chunks, send, bytes, 0);
    return staged(comm, send, recv, v, none);
}

static lk_status check(const void *send, const void *recv, size_t count, lk_dtype dtype)
{
    uintptr_t a = (uintptr_t)send, b = (uintptr_t)recv;
    size_t    bytes;

    if (dtype != LK_F32 && dtype != LK_F64)
        return lk_fail(LK_EUNSUPPORTED, "all_reduce of %s: F32 and F64 are possible",
                       lk_dtype_name(dtype));
    if (__builtin_mul_overflow(count, lk_dtype_bytes(dtype), &bytes))
        return lk_fail(LK_EINVAL, "all_reduce of %zu elements: more than memory can hold", count);
    if (a != b && (a < b ? b - a : a - b) < bytes)
        return lk_fail(LK_EINVAL, "all_reduce of %zu bytes: send and recv overlap but are not the "
                       "same; give the same pointer twice to reduce in place", bytes);
    return LK_OK;
}

lk_status lk_all_reduce(lk_comm *comm, const void *send, void *recv, size_t count, lk_dtype dtype)
{
    lki_op op;
    vector v = { .count = count, .dtype = dtype, .width = lk_dtype_bytes(dtype) };

    LK_TRY(check(send, recv, count, dtype));
    LK_TRY(lki_op_open(&op, comm, lki_print_make(LKI_OP_ALL_REDUCE, dtype, 0, count)));
    LK_TRY(count * v.width <= LKI_BODY_BYTES ? small(comm, &op, send, recv, v)
                                             : large(comm, &op, send, recv, v));
    lki_op_close(comm, &op);
    lki_ring(comm);
    return LK_OK;
}

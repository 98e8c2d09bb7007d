/* all_reduce_many.c -- all_reduce of many tensors in few operations.
 *
 * Neighbours in the list that have the same type and at most PART_BYTES each are reduced as one
 * vector of up to RUN_BYTES.  They are copied part by part into and out of the slots or staging
 * buffers.  A larger tensor is reduced separately, in place if it is in an arena.  Only sizes and
 * types determine which tensors are reduced together, so all ranks divide the same list in the same
 * way.  The fingerprint of a run includes the counts of its parts.
 *
 * Cost:    as all_reduce.c for every run; no copies but those of staging.
 * Order:   elementwise, as in separate calls: exact.
 * Memory:  none.
 */
#include "base/hash.h"
#include "base/memory.h"
#include "comm/coll/reduction.h"

enum { PART_BYTES = 65536, RUN_BYTES = 1 << 20 };

static size_t bytes_of(const lk_reduce_part *part)
{
    return part->count * lk_dtype_bytes(part->dtype);
}

static bool overlap(const lk_reduce_part *a, const lk_reduce_part *b)
{
    uintptr_t x = (uintptr_t)a->recv, y = (uintptr_t)b->recv, z = (uintptr_t)b->send;
    size_t    m = bytes_of(a), n = bytes_of(b);
    return m > 0 && n > 0 && ((x < y + n && y < x + m) || (x < z + n && z < x + m));
}

static lk_status check(const lk_reduce_part *parts, size_t count, lk_reduce_op op)
{
    for (size_t k = 0; k < count; k++) {
        const lk_reduce_part *p = &parts[k];
        size_t                bytes;
        LK_TRY(lki_check_reduction(&bytes, "all_reduce_many", p->send, p->recv, p->count, p->dtype,
                                   op));
        LK_TRY(lki_check_buffers("all_reduce_many", p->send, bytes, p->recv, bytes,
                                 p->send == p->recv));
        if (k > 0 && (overlap(&parts[k - 1], p) || overlap(p, &parts[k - 1])))
            return lk_fail(LK_EINVAL, "all_reduce_many: parts %zu and %zu overlap", k - 1, k);
    }
    return LK_OK;
}

/* Returns the number of parts, from the first one on, that are reduced together.  It is 1 for
 * Adasum, which is not elementwise. */
static size_t run_length(const lk_reduce_part *parts, size_t count, lk_reduce_op op)
{
    size_t length = 0, bytes = 0;

    if (op.kind == LK_REDUCE_ADASUM)
        return 1;
    while (length < count && parts[length].dtype == parts[0].dtype &&
           bytes_of(&parts[length]) <= PART_BYTES && bytes + bytes_of(&parts[length]) <= RUN_BYTES)
        bytes += bytes_of(&parts[length++]);
    return lki_max(length, 1);
}

static lk_status run(lk_comm *comm, const lk_reduce_part *parts, size_t length, lk_reduce_op op)
{
    lk_dtype   dtype    = parts[0].dtype;
    lk_request r        = { .comm   = comm,
                            .root   = LKI_ALL_RANKS,
                            .reduce = { .dtype      = dtype,
                                        .op         = op,
                                        .width      = lk_dtype_bytes(dtype),
                                        .parts      = parts,
                                        .part_count = length } };
    uint64_t   words[2] = { length, 0 };

    for (size_t k = 0; k < length; k++) {
        r.reduce.count += parts[k].count;
        words[1] ^= parts[k].count;
        words[1] = lki_xxh3(words, sizeof words);
    }
    r.op.print = lki_print_reduce(LKI_OP_ALL_REDUCE, dtype, op, 0, r.reduce.count);
    r.op.print.hash ^= words[1];
    lki_all_reduce_init(&r);
    return lki_request_run(&r);
}

lk_status lk_all_reduce_many(lk_comm *comm, const lk_reduce_part *parts, size_t part_count,
                             lk_reduce_op op)
{
    LK_TRY(lki_check_given("all_reduce_many", "parts", parts, part_count));
    LK_TRY(check(parts, part_count, op));
    for (size_t k = 0; k < part_count;) {
        size_t length = run_length(parts + k, part_count - k, op);
        if (length == 1)
            LK_TRY(lk_all_reduce(comm, parts[k].send, parts[k].recv, parts[k].count, parts[k].dtype,
                                 op));
        else
            LK_TRY(run(comm, parts + k, length, op));
        k += length;
    }
    return LK_OK;
}

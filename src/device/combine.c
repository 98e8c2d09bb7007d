/* combine.c -- elementwise reductions of every type, along the canonical tree.
 *
 * A kind of reduction consists of up to three loops.  `load` converts elements to accumulators
 * (16-bit floats are widened, premultiplied sums multiplied).  `combine` combines two vectors of
 * accumulators.  `store` converts them back (averages are multiplied; 16-bit floats are rounded,
 * only here).  If a type is its own accumulator, `load` and `store` are NULL and nothing is copied.
 *
 * Every float result passes clean(), which makes all NaNs equal.  Otherwise an addition of two NaNs
 * would return either of them, depending on the processor and on the compiler's order of the
 * operands.  The choice could differ between the vector part of a loop and its remainder, and thus
 * between two divisions of the same work.
 *
 * The loops are compiled for several instruction sets, which differ only in speed.
 *
 * In the most common case (the sum of two vectors of FP32 or 16 bits, for two ranks), each line of
 * the result is stored to both destinations from a register.  In all other cases the result is
 * copied block by block.  The lines of the other rank's destination are in its caches.  For vectors
 * of up to FETCH_BYTES these lines are prefetched for writing, which saves a second request per
 * line.  Longer vectors do not fit in the caches.
 *
 * Cost:  elements are processed in blocks that remain in the first-level cache, as in reduce.c.
 *        Every input is read once and the output written once.
 * Order: elementwise, so the bits do not depend on how the elements and the work are divided.
 */
#include "device/combine.h"

#include <stdalign.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "device/combine_loops.h"
#include "device/reduce.h"

enum {
    BLOCK_BYTES = 4096,    /* bytes of accumulators; each level of the tree holds one block */
    FETCH_BYTES = 2 << 20, /* two such slices fit in the second-level cache and the shared cache */
};

/* ---- Names and checks -------------------------------------------------------------------- */

static const char *const kind_names[] = {
#define KIND_NAME(name, code, text) [code] = text,
    LK_REDUCE_TABLE(KIND_NAME)
#undef KIND_NAME
};

const char *lki_reduce_name(uint64_t kind)
{
    return kind < sizeof kind_names / sizeof kind_names[0] ? kind_names[kind] : "?";
}

static bool is_integral(double factor)
{
    return factor >= -0x1p53 && factor <= 0x1p53 && (double)(int64_t)factor == factor;
}

lk_status lki_combine_check(lk_dtype dtype, lk_reduce_op op)
{
    if (lk_dtype_bytes(dtype) == 0)
        return lk_fail(LK_EINVAL, "%d is no data type", (int)dtype);
    if ((unsigned)op.kind > LK_REDUCE_ADASUM)
        return lk_fail(LK_EINVAL, "%d is no reduction", (int)op.kind);
    if (op.kind == LK_REDUCE_AVG && lki_combine_portable[dtype].integer)
        return lk_fail(LK_EINVAL, "avg of %s: integers have no exact one; take the sum and divide",
                       lk_dtype_name(dtype));
    if (op.kind == LK_REDUCE_ADASUM && lki_combine_portable[dtype].integer)
        return lk_fail(LK_EINVAL, "adasum of %s: it is for floating point only",
                       lk_dtype_name(dtype));
    if (op.kind == LK_REDUCE_PREMUL_SUM && lki_combine_portable[dtype].integer
        && !is_integral(op.factor))
        return lk_fail(LK_EINVAL, "premul_sum of %s by %g: integers need an integral factor of at "
                       "most 2^53", lk_dtype_name(dtype), op.factor);
    return LK_OK;
}

/* ---- Along the tree ---------------------------------------------------------------------- */

typedef struct {
    const lki_type_loops *type;
    lki_combine_loop      combine;
    lki_convert_loop      load, store;
    double             load_factor, store_factor;
    const void *const *from;
    size_t             at, n; /* the current block */
} evaluation;

static const void *leaf(const evaluation *e, uint32_t index, void *to)
{
    const void *data = (const unsigned char *)e->from[index] + e->at * e->type->width;
    if (e->load == NULL)
        return data;
    e->load(e->n, data, e->load_factor, to);
    return to;
}

/* Returns the accumulators of node [first, first + count).  A leaf is used in place; other nodes
 * are computed in `to`. */
static const void *evaluate(const evaluation *e, uint32_t first, uint32_t count, void *to)
{
    alignas(64) unsigned char other[BLOCK_BYTES];

    if (count == 1)
        return leaf(e, first, to);
    uint32_t    half  = lki_tree_left(count);
    const void *left  = evaluate(e, first, half, to);
    const void *right = evaluate(e, first + half, count - half, other);
    e->combine(e->n, left, right, to);
    return to;
}

/* Evaluates the root of one block.  Writes the result last, because `out` may be a leaf. */
static void evaluate_root(const evaluation *e, uint32_t leaves, void *out)
{
    alignas(64) unsigned char left[BLOCK_BYTES], right[BLOCK_BYTES];

    if (leaves == 1) {
        const void *data = leaf(e, 0, left);
        if (e->store != NULL)
            e->store(e->n, data, e->store_factor, out);
        else if (data != out)
            memcpy(out, data, e->n * e->type->width);
        return;
    }
    uint32_t    half = lki_tree_left(leaves);
    const void *a    = evaluate(e, 0, half, left);
    const void *b    = evaluate(e, half, leaves - half, right);
    e->combine(e->n, a, b, e->store == NULL ? out : left);
    if (e->store != NULL)
        e->store(e->n, left, e->store_factor, out);
}

const lki_type_loops *lki_combine_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return lki_combine_avx512;
    if (__builtin_cpu_supports("avx2"))
        return lki_combine_avx2;
#endif
    return lki_combine_portable;
}

double lki_combine_share(const lki_type_loops *type, lk_reduce_op op, uint32_t leaves)
{
    if (op.kind != LK_REDUCE_AVG)
        return 1;
    return type->accumulator == 4 ? (double)(1.0f / (float)leaves) : 1.0 / (double)leaves;
}

void lki_combine(lk_dtype dtype, lk_reduce_op op, uint32_t leaves, const void *const *from,
                 size_t count, void *out)
{
    lki_combine_by(lki_combine_best(), dtype, op, leaves, from, count, out);
}

void lki_combine_all(lk_dtype dtype, lk_reduce_op op, uint32_t leaves, const void *const *from,
                     size_t count, void *const *out, uint32_t out_count)
{
    lki_combine_all_by(lki_combine_best(), dtype, op, leaves, from, count, out, out_count);
}

/* Combines two vectors into one or two destinations directly.  Returns false if there is no such
 * loop for this type and operation. */
static bool combine_pair(const lki_type_loops *type, lk_reduce_op op, const void *const *from,
                         size_t count, void *const *out, uint32_t out_count)
{
    bool own = out_count == 1;

    if (own && type->load == NULL && op.kind <= LK_REDUCE_MAX) {
        type->combine[op.kind](count, from[0], from[1], out[0]);
        return true;
    }
    if (out_count > 2 || op.kind != LK_REDUCE_SUM || type->sum_twice == NULL)
        return false;
    bool fetch = !own && count * type->width <= FETCH_BYTES;
    type->sum_twice(count, from[0], from[1], out[0], out[own ? 0 : 1], fetch);
    return true;
}

void lki_combine_by(const lki_type_loops *table, lk_dtype dtype, lk_reduce_op op, uint32_t leaves,
                    const void *const *from, size_t count, void *out)
{
    lki_combine_all_by(table, dtype, op, leaves, from, count, &out, 1);
}

void lki_combine_all_by(const lki_type_loops *table, lk_dtype dtype, lk_reduce_op op,
                        uint32_t leaves, const void *const *from, size_t count, void *const *out,
                        uint32_t out_count)
{
    const lki_type_loops *type   = &table[dtype];
    bool                  premul = op.kind == LK_REDUCE_PREMUL_SUM, avg = op.kind == LK_REDUCE_AVG;
    size_t                block  = BLOCK_BYTES / type->accumulator;
    LK_ASSERT(leaves > 0 && type->width > 0 && (unsigned)op.kind <= LK_REDUCE_PREMUL_SUM);

    if (leaves == 2 && combine_pair(type, op, from, count, out, out_count))
        return;
    evaluation e = {
        .type         = type,
        .combine      = type->combine[premul || avg ? LK_REDUCE_SUM : op.kind],
        .load         = premul ? type->load_scaled : type->load,
        .store        = avg ? type->store_scaled : type->store,
        .load_factor  = op.factor,
        .store_factor = !avg ? 1 : type->accumulator == 4 ? (double)(1.0f / (float)leaves)
                                                          : 1.0 / (double)leaves,
        .from         = from,
    };
    for (; e.at < count; e.at += block) {
        e.n = lki_min(block, count - e.at);
        unsigned char *mine = (unsigned char *)out[0] + e.at * type->width;
        evaluate_root(&e, leaves, mine);
        for (uint32_t k = 1; k < out_count; k++)
            if (out[k] != out[0])
                memcpy((unsigned char *)out[k] + e.at * type->width, mine, e.n * type->width);
    }
}

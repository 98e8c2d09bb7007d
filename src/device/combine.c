/* combine.c -- elementwise reductions of every type, along the canonical tree.
 *
 * A kind of reduction is up to three loops: `load` makes an accumulator of each element (16-bit
 * floats widen, premultiplied sums multiply), `combine` joins two vectors of accumulators, and
 * `store` makes elements of them again (averages multiply, 16-bit floats round: the only time).
 * Where a type is its own accumulator, load and store are NULL and nothing is copied.
 *
 * Every float result passes clean(): which of two NaNs an addition returns is up to the processor
 * and to how the compiler arranged the operands, and would else differ between the vector part of
 * a loop and its rest, so between two cuts of the same work.
 *
 * Cost:  elements are taken in blocks that stay in the first-level cache, as in reduce.c: every
 *        input is read once and the output written once.
 * Order: elementwise, hence the same bits for every cut of the elements and of the work.
 */
#include "device/combine.h"

#include <stdalign.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "device/half.h"
#include "device/reduce.h"

enum { BLOCK_BYTES = 4096 }; /* of accumulators; each level of the tree holds one */

typedef void (*combine_loop)(size_t n, const void *left, const void *right, void *out);
typedef void (*load_loop)(size_t n, const void *from, double factor, void *to);
typedef void (*store_loop)(size_t n, const void *from, double factor, void *to);

/* ---- Integers ---------------------------------------------------------------------------- */

/* Arithmetic in 64 unsigned bits and a cut give what the type's own bits would, wrapping. */
#define INTEGER_LOOPS(name, type)                                                                \
    static void name##_sum(size_t n, const void *left, const void *right, void *out)             \
    {                                                                                            \
        const type *a = left, *b = right;                                                        \
        type       *o = out;                                                                     \
        for (size_t i = 0; i < n; i++)                                                           \
            o[i] = (type)((uint64_t)a[i] + (uint64_t)b[i]);                                      \
    }                                                                                            \
    static void name##_product(size_t n, const void *left, const void *right, void *out)         \
    {                                                                                            \
        const type *a = left, *b = right;                                                        \
        type       *o = out;                                                                     \
        for (size_t i = 0; i < n; i++)                                                           \
            o[i] = (type)((uint64_t)a[i] * (uint64_t)b[i]);                                      \
    }                                                                                            \
    static void name##_min(size_t n, const void *left, const void *right, void *out)             \
    {                                                                                            \
        const type *a = left, *b = right;                                                        \
        type       *o = out;                                                                     \
        for (size_t i = 0; i < n; i++)                                                           \
            o[i] = a[i] < b[i] ? a[i] : b[i];                                                    \
    }                                                                                            \
    static void name##_max(size_t n, const void *left, const void *right, void *out)             \
    {                                                                                            \
        const type *a = left, *b = right;                                                        \
        type       *o = out;                                                                     \
        for (size_t i = 0; i < n; i++)                                                           \
            o[i] = a[i] > b[i] ? a[i] : b[i];                                                    \
    }                                                                                            \
    static void name##_scaled(size_t n, const void *from, double factor, void *to)               \
    {                                                                                            \
        const type *a = from;                                                                    \
        type       *o = to;                                                                      \
        uint64_t    f = (uint64_t)(int64_t)factor;                                               \
        for (size_t i = 0; i < n; i++)                                                           \
            o[i] = (type)((uint64_t)a[i] * f);                                                   \
    }

INTEGER_LOOPS(i8, int8_t)
INTEGER_LOOPS(u8, uint8_t)
INTEGER_LOOPS(i16, int16_t)
INTEGER_LOOPS(u16, uint16_t)
INTEGER_LOOPS(i32, int32_t)
INTEGER_LOOPS(u32, uint32_t)
INTEGER_LOOPS(i64, int64_t)
INTEGER_LOOPS(u64, uint64_t)

/* ---- Floats ------------------------------------------------------------------------------ */

static inline double f64_from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint64_t f64_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Equal operands differ at most in the sign of zero: the sign bit decides, set for the minimum
 * (or) and clear for the maximum (and). */
#define FLOAT_LOOPS(name, type, bits_of, from_bits, quiet)                                       \
    static inline type name##_clean(type x)                                                      \
    {                                                                                            \
        return x == x ? x : from_bits(quiet);                                                    \
    }                                                                                            \
    static void name##_sum(size_t n, const void *left, const void *right, void *out)             \
    {                                                                                            \
        const type *a = left, *b = right;                                                        \
        type       *o = out;                                                                     \
        for (size_t i = 0; i < n; i++)                                                           \
            o[i] = name##_clean(a[i] + b[i]);                                                    \
    }                                                                                            \
    static void name##_product(size_t n, const void *left, const void *right, void *out)         \
    {                                                                                            \
        const type *a = left, *b = right;                                                        \
        type       *o = out;                                                                     \
        for (size_t i = 0; i < n; i++)                                                           \
            o[i] = name##_clean(a[i] * b[i]);                                                    \
    }                                                                                            \
    static void name##_min(size_t n, const void *left, const void *right, void *out)             \
    {                                                                                            \
        const type *a = left, *b = right;                                                        \
        type       *o = out;                                                                     \
        for (size_t i = 0; i < n; i++) {                                                         \
            type x = a[i], y = b[i];                                                             \
            type zero = from_bits(bits_of(x) | bits_of(y));                                      \
            type rest = x == y ? zero : from_bits(quiet);                                        \
            o[i] = x < y ? x : y < x ? y : rest;                                                 \
        }                                                                                        \
    }                                                                                            \
    static void name##_max(size_t n, const void *left, const void *right, void *out)             \
    {                                                                                            \
        const type *a = left, *b = right;                                                        \
        type       *o = out;                                                                     \
        for (size_t i = 0; i < n; i++) {                                                         \
            type x = a[i], y = b[i];                                                             \
            type zero = from_bits(bits_of(x) & bits_of(y));                                      \
            type rest = x == y ? zero : from_bits(quiet);                                        \
            o[i] = x > y ? x : y > x ? y : rest;                                                 \
        }                                                                                        \
    }                                                                                            \
    static void name##_scaled(size_t n, const void *from, double factor, void *to)               \
    {                                                                                            \
        const type *a = from;                                                                    \
        type       *o = to, f = (type)factor;                                                    \
        for (size_t i = 0; i < n; i++)                                                           \
            o[i] = name##_clean(a[i] * f);                                                       \
    }

FLOAT_LOOPS(f32, float, lki_f32_bits, lki_f32_from_bits, 0x7fc00000)
FLOAT_LOOPS(f64, double, f64_bits, f64_from_bits, UINT64_C(0x7ff8000000000000))

#define HALF_LOOPS(name)                                                                         \
    static void name##_widen(size_t n, const void *from, double factor, void *to)                \
    {                                                                                            \
        const uint16_t *a = from;                                                                \
        float          *o = to;                                                                  \
        (void)factor;                                                                            \
        for (size_t i = 0; i < n; i++)                                                           \
            o[i] = lki_##name##_widen(a[i]);                                                     \
    }                                                                                            \
    static void name##_widen_scaled(size_t n, const void *from, double factor, void *to)         \
    {                                                                                            \
        const uint16_t *a = from;                                                                \
        float          *o = to, f = (float)factor;                                               \
        for (size_t i = 0; i < n; i++)                                                           \
            o[i] = f32_clean(lki_##name##_widen(a[i]) * f);                                      \
    }                                                                                            \
    static void name##_narrow(size_t n, const void *from, double factor, void *to)               \
    {                                                                                            \
        const float *a = from;                                                                   \
        uint16_t    *o = to;                                                                     \
        float        f = (float)factor;                                                          \
        for (size_t i = 0; i < n; i++)                                                           \
            o[i] = lki_##name##_narrow(a[i] * f);                                                \
    }

HALF_LOOPS(f16)
HALF_LOOPS(bf16)

/* ---- The table --------------------------------------------------------------------------- */

typedef struct {
    size_t       width, accumulator; /* bytes */
    bool         integer;
    combine_loop combine[4];         /* sum, product, min, max */
    load_loop    load, load_scaled;
    store_loop   store, store_scaled;
} type_loops;

#define PLAIN_ROW(code, name, type, is_integer)                                                  \
    [code] = { sizeof(type), sizeof(type), is_integer,                                           \
               { name##_sum, name##_product, name##_min, name##_max },                           \
               NULL, name##_scaled, NULL, name##_scaled }
#define HALF_ROW(code, name)                                                                     \
    [code] = { 2, sizeof(float), false, { f32_sum, f32_product, f32_min, f32_max },              \
               name##_widen, name##_widen_scaled, name##_narrow, name##_narrow }

static const type_loops types[] = {
    PLAIN_ROW(LK_F32, f32, float, false),    HALF_ROW(LK_F16, f16),
    HALF_ROW(LK_BF16, bf16),                 PLAIN_ROW(LK_F64, f64, double, false),
    PLAIN_ROW(LK_I8, i8, int8_t, true),      PLAIN_ROW(LK_U8, u8, uint8_t, true),
    PLAIN_ROW(LK_I16, i16, int16_t, true),   PLAIN_ROW(LK_U16, u16, uint16_t, true),
    PLAIN_ROW(LK_I32, i32, int32_t, true),   PLAIN_ROW(LK_U32, u32, uint32_t, true),
    PLAIN_ROW(LK_I64, i64, int64_t, true),   PLAIN_ROW(LK_U64, u64, uint64_t, true),
};

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
    if ((unsigned)op.kind > LK_REDUCE_PREMUL_SUM)
        return lk_fail(LK_EINVAL, "%d is no reduction", (int)op.kind);
    if (op.kind == LK_REDUCE_AVG && types[dtype].integer)
        return lk_fail(LK_EINVAL, "avg of %s: integers have no exact one; take the sum and divide",
                       lk_dtype_name(dtype));
    if (op.kind == LK_REDUCE_PREMUL_SUM && types[dtype].integer && !is_integral(op.factor))
        return lk_fail(LK_EINVAL, "premul_sum of %s by %g: integers need an integral factor of at "
                       "most 2^53", lk_dtype_name(dtype), op.factor);
    return LK_OK;
}

/* ---- Along the tree ---------------------------------------------------------------------- */

typedef struct {
    const type_loops  *type;
    combine_loop       combine;
    load_loop          load;  /* NULL: elements are accumulators */
    store_loop         store; /* NULL: accumulators are elements */
    double             load_factor, store_factor;
    const void *const *from;
    size_t             at, n; /* this block */
} evaluation;

static const void *leaf(const evaluation *e, uint32_t index, void *to)
{
    const void *data = (const unsigned char *)e->from[index] + e->at * e->type->width;
    if (e->load == NULL)
        return data;
    e->load(e->n, data, e->load_factor, to);
    return to;
}

/* The accumulators of node [first, first + count): where a leaf lies, or in `to`. */
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

/* The root of one block, written last: `out` may be a leaf. */
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

void lki_combine(lk_dtype dtype, lk_reduce_op op, uint32_t leaves, const void *const *from,
                 size_t count, void *out)
{
    const type_loops *type   = &types[dtype];
    bool              premul = op.kind == LK_REDUCE_PREMUL_SUM, avg = op.kind == LK_REDUCE_AVG;
    size_t            block  = BLOCK_BYTES / type->accumulator;
    LK_ASSERT(leaves > 0 && type->width > 0 && (unsigned)op.kind <= LK_REDUCE_PREMUL_SUM);

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
        evaluate_root(&e, leaves, (unsigned char *)out + e.at * type->width);
    }
}

/* device/plain_testing.h -- for tests: naive reductions, one element at a time.
 *
 * Shares no code with combine.c. 16-bit floats are looked up in tables of all their values in
 * double; integers use 64 bits and a mask.  Slow.  Call plain_init() first.
 */
#ifndef LKI_DEVICE_PLAIN_TESTING_H
#define LKI_DEVICE_PLAIN_TESTING_H

#include <math.h>
#include <string.h>

#include "lockstep/base.h"

static const lk_dtype plain_dtypes[] = { LK_F32, LK_F16, LK_BF16, LK_F64, LK_I8,  LK_U8,
                                         LK_I16, LK_U16, LK_I32,  LK_U32, LK_I64, LK_U64 };
enum { PLAIN_DTYPES = sizeof plain_dtypes / sizeof plain_dtypes[0] };

typedef struct {
    double value[2][0x8000]; /* values of the non-negative bit patterns: F16, BF16 */
} plain_tables;

static inline void plain_init(plain_tables *t)
{
    for (int h = 0; h < 0x8000; h++) {
        int e16 = h >> 10, m16 = h & 0x3ff, e8 = h >> 7, m8 = h & 0x7f;
        t->value[0][h] = e16 == 31  ? (double)(m16 == 0 ? INFINITY : NAN)
                         : e16 == 0 ? ldexp(m16, -24)
                                    : ldexp(1024 + m16, e16 - 25);
        t->value[1][h] = e8 == 255 ? (double)(m8 == 0 ? INFINITY : NAN)
                         : e8 == 0 ? ldexp(m8, -133)
                                   : ldexp(128 + m8, e8 - 134);
    }
}

static inline float plain_widen(const plain_tables *t, bool bf16, uint16_t h)
{
    double magnitude = t->value[bf16][h & 0x7fff];
    return (float)(h & 0x8000 ? -magnitude : magnitude);
}

/* Finds the nearest value by bisection.  A tie goes to the even pattern. */
static inline uint16_t plain_narrow(const plain_tables *t, bool bf16, float x)
{
    const double *value    = t->value[bf16];
    int           infinite = bf16 ? 0x7f80 : 0x7c00, low = 0, high = infinite;
    double        magnitude = fabs((double)x);
    uint16_t      sign      = signbit(x) ? 0x8000 : 0;
    /* infinity is treated as the finite value that would follow the largest one */
    double beyond = 2 * value[infinite - 1] - value[infinite - 2];

    if (isnan(x))
        return bf16 ? 0x7fc0 : 0x7e00;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (value[middle] <= magnitude)
            low = middle;
        else
            high = middle;
    }
    double above = high == infinite ? beyond : value[high],
           half  = value[low] + (above - value[low]) / 2;
    if (magnitude > half || (magnitude == half && low % 2 == 1))
        low = high;
    return (uint16_t)(sign | low);
}

/* An accumulator of any type. */
typedef union {
    float    f32;
    double   f64;
    uint64_t word; /* integers, sign-extended if the type is signed */
} plain_value;

static inline bool plain_is_signed(lk_dtype d)
{
    return d == LK_I8 || d == LK_I16 || d == LK_I32 || d == LK_I64;
}

static inline bool plain_is_float(lk_dtype d)
{
    return d == LK_F32 || d == LK_F64 || d == LK_F16 || d == LK_BF16;
}

/* Returns the low bits of the word, sign- or zero-extended for the type. */
static inline uint64_t plain_cut(lk_dtype d, uint64_t word)
{
    unsigned bits = 8 * (unsigned)lk_dtype_bytes(d);
    if (bits == 64)
        return word;
    uint64_t mask = (UINT64_C(1) << bits) - 1;
    word &= mask;
    return plain_is_signed(d) && word >> (bits - 1) != 0 ? word | ~mask : word;
}

static inline float plain_quiet_f32(float x)
{
    const uint32_t bits = 0x7fc00000;
    if (isnan(x))
        memcpy(&x, &bits, sizeof x);
    return x;
}

static inline double plain_quiet_f64(double x)
{
    const uint64_t bits = UINT64_C(0x7ff8000000000000);
    if (isnan(x))
        memcpy(&x, &bits, sizeof x);
    return x;
}

static inline plain_value plain_load(const plain_tables *t, lk_dtype d, lk_reduce_op op,
                                     const void *data, size_t i)
{
    size_t      width = lk_dtype_bytes(d);
    plain_value v     = { .word = 0 };
    uint16_t    h     = 0;
    const char *at    = (const char *)data + i * width;
    bool        times = op.kind == LK_REDUCE_PREMUL_SUM;

    if (d == LK_F64) {
        memcpy(&v.f64, at, 8);
        v.f64 = times ? plain_quiet_f64(v.f64 * op.factor) : v.f64;
    } else if (plain_is_float(d)) {
        memcpy(d == LK_F32 ? (void *)&v.f32 : (void *)&h, at, width);
        v.f32 = d == LK_F32 ? v.f32 : plain_widen(t, d == LK_BF16, h);
        v.f32 = times ? plain_quiet_f32(v.f32 * (float)op.factor) : v.f32;
    } else {
        memcpy(&v.word, at, width); /* little-endian */
        v.word = plain_cut(d, v.word);
        v.word = times ? plain_cut(d, v.word * (uint64_t)(int64_t)op.factor) : v.word;
    }
    return v;
}

static inline double plain_pick(bool largest, double a, double b)
{
    if (isnan(a) || isnan(b))
        return (double)NAN;
    if (a == b)
        return (signbit(a) != 0) == largest ? b : a;
    return (a > b) == largest ? a : b;
}

static inline plain_value plain_join(lk_dtype d, lk_reduce_kind kind, plain_value a, plain_value b)
{
    bool        max = kind == LK_REDUCE_MAX, pick = max || kind == LK_REDUCE_MIN;
    bool        product = kind == LK_REDUCE_PRODUCT;
    plain_value v       = { .word = 0 };

    if (d == LK_F64) {
        v.f64 = pick ? plain_pick(max, a.f64, b.f64) : product ? a.f64 * b.f64 : a.f64 + b.f64;
        v.f64 = plain_quiet_f64(v.f64);
    } else if (plain_is_float(d)) {
        v.f32 = pick      ? (float)plain_pick(max, (double)a.f32, (double)b.f32)
                : product ? a.f32 * b.f32
                          : a.f32 + b.f32;
        v.f32 = plain_quiet_f32(v.f32);
    } else if (pick) {
        bool less = plain_is_signed(d) ? (int64_t)a.word < (int64_t)b.word : a.word < b.word;
        v.word    = less != max ? a.word : b.word;
    } else {
        v.word = plain_cut(d, product ? a.word * b.word : a.word + b.word);
    }
    return v;
}

static inline plain_value plain_tree(const plain_tables *t, lk_dtype d, lk_reduce_op op,
                                     uint32_t first, uint32_t count, const void *const *from,
                                     size_t i)
{
    uint32_t left = 1;
    if (count == 1)
        return plain_load(t, d, op, from[first], i);
    while (2 * left < count)
        left *= 2;
    return plain_join(d, op.kind, plain_tree(t, d, op, first, left, from, i),
                      plain_tree(t, d, op, first + left, count - left, from, i));
}

/* Computes element i of the reduction of from[0 .. leaves) into out[0 .. width). */
static inline void plain_reduce(const plain_tables *t, lk_dtype d, lk_reduce_op op, uint32_t leaves,
                                const void *const *from, size_t i, void *out)
{
    plain_value v   = plain_tree(t, d, op, 0, leaves, from, i);
    bool        avg = op.kind == LK_REDUCE_AVG;
    uint16_t    h;

    if (d == LK_F64) {
        v.f64 = avg ? plain_quiet_f64(v.f64 * (1.0 / leaves)) : v.f64;
    } else if (plain_is_float(d)) {
        v.f32 = avg ? plain_quiet_f32(v.f32 * (1.0f / (float)leaves)) : v.f32;
        h     = plain_narrow(t, d == LK_BF16, v.f32);
        if (d != LK_F32) {
            memcpy(out, &h, sizeof h);
            return;
        }
    }
    memcpy(out, &v, lk_dtype_bytes(d));
}

/* Fills a vector with random bit patterns, valid in every type.  Some are special: zeros, ones,
 * infinities, NaNs, subnormals, the largest numbers. */
static inline void plain_fill(lk_dtype d, void *data, size_t count, uint64_t seed)
{
    size_t width = lk_dtype_bytes(d);

    for (size_t i = 0; i < count; i++) {
        uint64_t x = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) + i * UINT64_C(0xd1342543de82ef95);
        x ^= x >> 32;
        x *= UINT64_C(0xd6e8feb86659fd93);
        x ^= x >> 29;
        uint64_t bits = x * UINT64_C(0xa0761d6478bd642f);
        unsigned top  = d == LK_F64 ? 52 : d == LK_F32 ? 23 : d == LK_F16 ? 10 : 7; /* mantissa */
        uint64_t ones = d == LK_F64 ? 2047 : d == LK_F16 ? 31 : 255, sign = ones + 1;
        if (plain_is_float(d) && x % 8 != 0) /* near 1, so that sums are rounded */
            bits = (bits & ((UINT64_C(1) << top) - 1)) | (ones / 2 - 2 + (bits >> 60) % 5) << top |
                   (bits >> 63) * (sign << top);
        else if (plain_is_float(d) && x % 16 == 0)
            bits = (ones << top) * (x >> 8 & 1) | (sign << top) * (x >> 9 & 1) | (x >> 10 & 1);
        memcpy((char *)data + i * width, &bits, width);
    }
}

#endif

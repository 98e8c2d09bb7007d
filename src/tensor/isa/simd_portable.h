/* tensor/isa/simd_portable.h -- the lanes of simd.h in the compiler's own vectors.
 *
 * The compiler divides them into the registers of the target (SSE2, NEON). fmaf() is correctly
 * rounded in every implementation, so the bits are those of the other files.  On an x86 processor
 * without FMA it is a slow call, but the bits are equal.
 */
#ifndef LKI_TENSOR_ISA_SIMD_PORTABLE_H
#define LKI_TENSOR_ISA_SIMD_PORTABLE_H

#include <string.h>

/* A vector operation is many instructions here, and an fma can be sixteen calls.  If long functions
 * were inlined into every kernel, compiling would take minutes and nothing would be faster. */
#define LKI_SIMD_LONG static __attribute__((noinline, unused))

/* Vectors wider than registers are passed only to inlined functions or within one file, so no ABI
 * is affected. */
#pragma GCC diagnostic ignored "-Wpsabi"

typedef float    v16 __attribute__((vector_size(64)));
typedef int32_t  v16i __attribute__((vector_size(64)));
typedef uint32_t v16u __attribute__((vector_size(64)));
typedef v16i     m16; /* each lane is all ones or all zeros */
typedef double   d16 __attribute__((vector_size(128)));

LKI_SIMD v16i v16_bits(v16 x) { return (v16i)x; }
LKI_SIMD v16  v16_from_bits(v16i x) { return (v16)x; }
LKI_SIMD v16i v16i_set1(int32_t x) { return x - (v16i){ 0 }; }
LKI_SIMD v16  v16_zero(void) { return (v16){ 0 }; }

LKI_SIMD v16 v16_set1(float x)
{
    int32_t bits;
    /* set by bits, because arithmetic with zeros would lose the sign of -0 */
    memcpy(&bits, &x, sizeof bits);
    return v16_from_bits(v16i_set1(bits));
}

LKI_SIMD v16 v16_load(const float *p)
{
    v16 x;
    memcpy(&x, p, sizeof x);
    return x;
}

LKI_SIMD v16 v16_load_n(const float *p, size_t n)
{
    v16 x = v16_zero();
    for (size_t i = 0; i < n; i++)
        x[i] = p[i];
    return x;
}

LKI_SIMD void v16_store(float *p, v16 x) { memcpy(p, &x, sizeof x); }

LKI_SIMD void v16_store_n(float *p, size_t n, v16 x)
{
    for (size_t i = 0; i < n; i++)
        p[i] = x[i];
}

LKI_SIMD v16 v16_add(v16 a, v16 b) { return a + b; }
LKI_SIMD v16 v16_sub(v16 a, v16 b) { return a - b; }
LKI_SIMD v16 v16_mul(v16 a, v16 b) { return a * b; }
LKI_SIMD v16 v16_div(v16 a, v16 b) { return a / b; }

LKI_SIMD_LONG v16 v16_fma(v16 a, v16 b, v16 c)
{
    for (int i = 0; i < 16; i++) /* four instructions on NEON */
        c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}

LKI_SIMD v16 v16_sqrt(v16 a)
{
    for (int i = 0; i < 16; i++)
        a[i] = __builtin_sqrtf(a[i]);
    return a;
}

LKI_SIMD m16 v16_lt(v16 a, v16 b) { return a < b; }
LKI_SIMD m16 v16_le(v16 a, v16 b) { return a <= b; }
LKI_SIMD m16 v16_eq(v16 a, v16 b) { return a == b; }
LKI_SIMD m16 m16_and(m16 a, m16 b) { return a & b; }
LKI_SIMD m16 m16_or(m16 a, m16 b) { return a | b; }
LKI_SIMD m16 m16_not(m16 a) { return ~a; }

LKI_SIMD uint32_t m16_mask(m16 a)
{
    uint32_t mask = 0;
    for (int i = 0; i < 16; i++)
        mask |= (uint32_t)(a[i] & 1) << i;
    return mask;
}

LKI_SIMD v16i v16i_select(m16 m, v16i yes, v16i no) { return (yes & m) | (no & ~m); }

LKI_SIMD v16 v16_select(m16 m, v16 yes, v16 no)
{
    return v16_from_bits(v16i_select(m, v16_bits(yes), v16_bits(no)));
}

LKI_SIMD v16 v16_max(v16 a, v16 b) { return v16_select(a > b, a, b); }
LKI_SIMD v16 v16_min(v16 a, v16 b) { return v16_select(a < b, a, b); }

/* Converts to int.  Values out of range give INT32_MIN, as with the x86 instruction. */
LKI_SIMD v16i v16_to_int(v16 x)
{
    v16i y;
    for (int i = 0; i < 16; i++)
        y[i] = x[i] >= -0x1p31f && x[i] < 0x1p31f ? (int32_t)x[i] : INT32_MIN;
    return y;
}

LKI_SIMD v16 v16_from_int(v16i x) { return __builtin_convertvector(x, v16); }

LKI_SIMD v16i v16i_load(const int32_t *p)
{
    v16i x;
    memcpy(&x, p, sizeof x);
    return x;
}

LKI_SIMD void v16i_store(int32_t *p, v16i x) { memcpy(p, &x, sizeof x); }

LKI_SIMD v16i v16i_load_words(const void *p)
{
    v16i x;
    memcpy(&x, p, sizeof x);
    return x;
}

LKI_SIMD v16i v16i_load_u16_n(const uint16_t *p, size_t n)
{
    v16i x = { 0 };
    for (size_t i = 0; i < n; i++)
        x[i] = p[i];
    return x;
}

LKI_SIMD void v16i_store_u16_n(uint16_t *p, size_t n, v16i x)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint16_t)x[i];
}

LKI_SIMD v16i v16i_add(v16i a, v16i b) { return (v16i)((v16u)a + (v16u)b); }
LKI_SIMD v16i v16i_sub(v16i a, v16i b) { return (v16i)((v16u)a - (v16u)b); }
LKI_SIMD v16i v16i_and(v16i a, v16i b) { return a & b; }
LKI_SIMD v16i v16i_or(v16i a, v16i b) { return a | b; }
LKI_SIMD v16i v16i_xor(v16i a, v16i b) { return a ^ b; }
LKI_SIMD v16i v16i_shl(v16i a, int n) { return (v16i)((v16u)a << n); }
LKI_SIMD v16i v16i_shr(v16i a, int n) { return (v16i)((v16u)a >> n); }
LKI_SIMD m16  v16i_eq(v16i a, v16i b) { return a == b; }
LKI_SIMD m16  v16i_lt(v16i a, v16i b) { return a < b; } /* signed */

/* Computes the 64-bit products of unsigned words. */
LKI_SIMD void v16i_mul_wide(v16i a, v16i b, v16i *high, v16i *low)
{
    for (int i = 0; i < 16; i++) {
        uint64_t product = (uint64_t)(uint32_t)a[i] * (uint32_t)b[i];
        (*high)[i] = (int32_t)(product >> 32);
        (*low)[i]  = (int32_t)(uint32_t)product;
    }
}

LKI_SIMD float v16_sum(v16 x)
{
    for (int step = 8; step > 0; step /= 2)
        for (int i = 0; i < step; i++)
            x[i] += x[i + step];
    return x[0];
}

LKI_SIMD float v16_hmax(v16 x)
{
    for (int step = 8; step > 0; step /= 2)
        for (int i = 0; i < step; i++)
            x[i] = x[i] > x[i + step] ? x[i] : x[i + step];
    return x[0];
}

LKI_SIMD d16 d16_zero(void) { return (d16){ 0 }; }
LKI_SIMD d16 d16_set1(double x) { return x - (d16){ 0 }; }
LKI_SIMD d16 d16_from(v16 x) { return __builtin_convertvector(x, d16); }
LKI_SIMD d16 d16_add(d16 a, d16 b) { return a + b; }

/* Returns a * b + sum, rounded once as by an fma, since a product of floats is exact in double. */
LKI_SIMD d16 d16_fma(v16 a, v16 b, d16 sum) { return d16_from(a) * d16_from(b) + sum; }

LKI_SIMD double d16_sum(d16 x)
{
    for (int step = 8; step > 0; step /= 2)
        for (int i = 0; i < step; i++)
            x[i] += x[i + step];
    return x[0];
}

typedef int64_t d16i __attribute__((vector_size(128)));

/* Replaces values below `least` by zeros of the same sign. */
LKI_SIMD d16 d16_flush(d16 x, double least)
{
    d16i bits = (d16i)x, sign = bits & INT64_MIN;
    d16i tiny = (d16)(bits & INT64_MAX) < d16_set1(least);
    return (d16)((bits & ~tiny) | (sign & tiny));
}

/* Returns sum + a b of floats, rounded once.  A double holds the exact product, and has more than
 * twice the digits of a float. 2^-126 - 2^-151 is the smallest value that rounds to a normal
 * number. */
LKI_SIMD_LONG v16 v16_fma_flushed(v16 a, v16 b, v16 sum)
{
    d16 x = d16_flush(d16_from(a), 0x1p-126), y = d16_flush(d16_from(b), 0x1p-126);
    d16 z = x * y + d16_flush(d16_from(sum), 0x1p-126);
    return __builtin_convertvector(d16_flush(z, 0x1.ffffffp-127), v16);
}

#define LKI_FLUSH_MODE 0 /* operations that flush need no mode */
LKI_SIMD v16 v16_add_flushed(v16 a, v16 b)
{
    return v16_fma_flushed(a, v16_set1(1.0f), b);
}

LKI_SIMD_LONG v16 v16_dot2(v16 a, v16 b, v16 sum)
{
    v16i x = v16_bits(a), y = v16_bits(b), odd = v16i_set1((int32_t)0xffff0000);
    sum = v16_fma_flushed(v16_from_bits(x & odd), v16_from_bits(y & odd), sum);
    return v16_fma_flushed(v16_from_bits(v16i_shl(x, 16)), v16_from_bits(v16i_shl(y, 16)), sum);
}

/* Moves word w of lane l to index 4 l + w of the 64 words.  x[0] then holds indices 0 .. 15. */
LKI_SIMD_LONG void v16_interleave4(v16 x[4])
{
    v16 y[4];
    for (int i = 0; i < 64; i++)
        y[i / 16][i % 16] = x[i % 4][i / 4];
    for (int i = 0; i < 4; i++)
        x[i] = y[i];
}

/* Transposes: lane j of x[i] moves to lane i of x[j]. */
LKI_SIMD_LONG void v16_transpose(v16 x[16])
{
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < i; j++) {
            float kept = x[i][j];
            x[i][j]    = x[j][i];
            x[j][i]    = kept;
        }
}

#endif

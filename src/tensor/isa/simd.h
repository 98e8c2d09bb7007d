/* tensor/isa/simd.h -- sixteen virtual lanes, the same on every processor.
 *
 * Kernels are written once on the types below and compiled once for each instruction set by the
 * files avx512.c, avx2.c, neon.c and portable.c, each with its own flags.  All operations are
 * elementwise IEEE operations (fma included), except sums over lanes, which have a fixed order.  So
 * every instruction set computes the same bits.
 *
 *      v16     16 floats        v16_load, _load_n (n < 16 lanes, the rest 0), _store, _store_n
 *      v16i    16 int32 words   v16i_add, _and, _shl, ... ; _mul_wide for unsigned words
 *      m16     16 truth values  from v16_lt and similar, for v16_select(m, yes, no)
 *      d16     16 doubles       d16_fma(a, b, sum) with floats a and b: exact products
 *
 * v16_sum() and d16_sum() add lane i to lane i + 8, then i + 4, i + 2, i + 1: the lane tree.
 * v16_max(a, b) is a > b ? a : b, so a NaN or a zero of the other sign in `a` yields b.
 * v16_round() rounds to nearest even and is valid for |x| < 2^22.  Do not include this header in
 * other translation units: use the table in kernels.h.
 */
#ifndef LKI_TENSOR_ISA_SIMD_H
#define LKI_TENSOR_ISA_SIMD_H

#include <stddef.h>
#include <stdint.h>

#define LKI_SIMD static inline __attribute__((always_inline))

/* Unrolls the loop that follows, which has at most `most` rounds: a constant number after inlining.
 * If clang is given another number than that of the rounds, it unrolls so late that arrays stay in
 * memory, and kernels take three to five times as long. */
#define LKI_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define LKI_UNROLL(most) LKI_PRAGMA(clang loop unroll(full))
#else
#define LKI_UNROLL(most) LKI_PRAGMA(GCC unroll most)
#endif

#if defined(LKI_SIMD_SCALAR) /* one lane, on request */
#include "tensor/isa/simd_scalar.h"
#elif defined(__AVX512F__) && defined(__AVX512DQ__)
#include "tensor/isa/simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "tensor/isa/simd_avx2.h"
#elif defined(__aarch64__) && !defined(LKI_SIMD_PORTABLE)
#include "tensor/isa/simd_neon.h"
#else
#include "tensor/isa/simd_portable.h"
#endif

/* declaration of long functions, which a file may define as not inlined */
#if !defined(LKI_SIMD_LONG)
#define LKI_SIMD_LONG LKI_SIMD
#endif

LKI_SIMD v16 v16_round(v16 x)
{
    v16 magic = v16_set1(0x1.8p23f);
    return v16_sub(v16_add(x, magic), magic);
}

LKI_SIMD v16 v16_abs(v16 x)
{
    return v16_from_bits(v16i_and(v16_bits(x), v16i_set1(0x7fffffff)));
}

LKI_SIMD v16 v16_neg(v16 x)
{
    return v16_from_bits(v16i_xor(v16_bits(x), v16i_set1(INT32_MIN)));
}

/* Returns x, which must not be negative, with the sign of `sign`. */
LKI_SIMD v16 v16_with_sign(v16 x, v16 sign)
{
    return v16_from_bits(v16i_or(v16_bits(x), v16i_and(v16_bits(sign), v16i_set1(INT32_MIN))));
}

/* Returns 2^n for an integral n in -126 .. 127. */
LKI_SIMD v16 v16_exp2_int(v16i n)
{
    return v16_from_bits(v16i_shl(v16i_add(n, v16i_set1(127)), 23));
}

#if !defined(LKI_SIMD_SCALES)
/* Returns x 2^n for an integral n in -150 .. 128 and an x near 1.  It rounds only once, because
 * multiplying by the first of the two factors is exact. */
LKI_SIMD v16 v16_scale(v16 x, v16 n)
{
    v16 half = v16_round(v16_mul(n, v16_set1(0.5f)));
    x        = v16_mul(x, v16_exp2_int(v16_to_int(half)));
    return v16_mul(x, v16_exp2_int(v16_to_int(v16_sub(n, half))));
}
#endif

#if !defined(LKI_SIMD_LOADS_TURNED) && !defined(LKI_SIMD_SCALAR)
/* Loads the transpose of 16 x 16 values whose rows are `stride` apart. */
LKI_SIMD void v16_load_turned(const float *p, size_t stride, v16 x[16])
{
    for (size_t i = 0; i < 16; i++)
        x[i] = v16_load(p + i * stride);
    v16_transpose(x);
}
#endif

#if !defined(LKI_SIMD_ADDS_SQUARES) && !defined(LKI_SIMD_SCALAR)
/* Adds the squares of 16 values to the sums, in double precision. */
LKI_SIMD d16 d16_add_squares(const float *p, d16 sum)
{
    v16 x = v16_load(p);
    return d16_fma(x, x, sum);
}
#endif

/* Returns the values of the low or high halves of words of two bf16 values. */
LKI_SIMD v16 v16_low_half(v16 words)
{
    return v16_from_bits(v16i_shl(v16_bits(words), 16));
}

LKI_SIMD v16 v16_high_half(v16 words)
{
    return v16_from_bits(v16i_and(v16_bits(words), v16i_set1((int32_t)0xffff0000)));
}

/* Returns c - a * b, rounded once. */
LKI_SIMD v16 v16_fnma(v16 a, v16 b, v16 c)
{
    return v16_fma(v16_neg(a), b, c);
}

#endif

/* tensor/isa/simd_avx512.h -- the lanes of simd.h in one 512-bit register. */
#ifndef LKI_TENSOR_ISA_SIMD_AVX512_H
#define LKI_TENSOR_ISA_SIMD_AVX512_H

#include <immintrin.h>

typedef __m512    v16;
typedef __m512i   v16i;
typedef __mmask16 m16;
typedef struct {
    __m512d low, high;
} d16;

LKI_SIMD __mmask16 v16_first(size_t n)
{
    return (__mmask16)((1u << n) - 1u);
}

LKI_SIMD v16 v16_zero(void)
{
    return _mm512_setzero_ps();
}
LKI_SIMD v16 v16_set1(float x)
{
    return _mm512_set1_ps(x);
}
LKI_SIMD v16 v16_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

LKI_SIMD v16 v16_load_n(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps(v16_first(n), p);
}

LKI_SIMD void v16_store(float *p, v16 x)
{
    _mm512_storeu_ps(p, x);
}
LKI_SIMD void v16_store_n(float *p, size_t n, v16 x)
{
    _mm512_mask_storeu_ps(p, v16_first(n), x);
}

LKI_SIMD v16 v16_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}
LKI_SIMD v16 v16_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}
LKI_SIMD v16 v16_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}
LKI_SIMD v16 v16_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}
LKI_SIMD v16 v16_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
LKI_SIMD v16 v16_sqrt(v16 a)
{
    return _mm512_sqrt_ps(a);
}
LKI_SIMD v16 v16_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}
LKI_SIMD v16 v16_min(v16 a, v16 b)
{
    return _mm512_min_ps(a, b);
}

LKI_SIMD m16 v16_lt(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
LKI_SIMD m16 v16_le(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
}
LKI_SIMD m16 v16_eq(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
LKI_SIMD v16 v16_select(m16 m, v16 yes, v16 no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}
LKI_SIMD v16i v16i_select(m16 m, v16i yes, v16i no)
{
    return _mm512_mask_blend_epi32(m, no, yes);
}
LKI_SIMD m16 m16_and(m16 a, m16 b)
{
    return (m16)(a & b);
}
LKI_SIMD m16 m16_or(m16 a, m16 b)
{
    return (m16)(a | b);
}
LKI_SIMD m16 m16_not(m16 a)
{
    return (m16)~a;
}
LKI_SIMD uint32_t m16_mask(m16 a)
{
    return a;
}

LKI_SIMD v16i v16_bits(v16 x)
{
    return _mm512_castps_si512(x);
}
LKI_SIMD v16 v16_from_bits(v16i x)
{
    return _mm512_castsi512_ps(x);
}
LKI_SIMD v16i v16_to_int(v16 x)
{
    return _mm512_cvttps_epi32(x);
}
#define LKI_SIMD_SCALES /* this file defines v16_scale() */
LKI_SIMD v16 v16_scale(v16 x, v16 n)
{
    return _mm512_scalef_ps(x, n);
}
LKI_SIMD v16 v16_from_int(v16i x)
{
    return _mm512_cvtepi32_ps(x);
}

LKI_SIMD v16i v16i_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}
LKI_SIMD v16i v16i_load(const int32_t *p)
{
    return _mm512_loadu_si512(p);
}
LKI_SIMD void v16i_store(int32_t *p, v16i x)
{
    _mm512_storeu_si512(p, x);
}
LKI_SIMD v16i v16i_load_words(const void *p)
{
    return _mm512_loadu_si512(p);
}
LKI_SIMD v16i v16i_load_u16_n(const uint16_t *p, size_t n)
{
    if (n == 16)
        return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(v16_first(n), p));
}
/* Joins 32 values of 16 bits of each of two rows to 32 words, whose halves they are. */
LKI_SIMD void u16_zip(const uint16_t *low, const uint16_t *high, float *to)
{
    const __m512i first = _mm512_set_epi16(
        47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4,
        35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    __m512i       a = _mm512_loadu_si512(low), b = _mm512_loadu_si512(high);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(a, first, b));
    _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi16(a, second, b));
}
/* Joins 16 values of each of two rows to words. */
LKI_SIMD v16i v16i_zip_u16(const uint16_t *low, const uint16_t *high)
{
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9,
                                           24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1,
                                           16, 0);
    __m512i both = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)low));
    both         = _mm512_inserti64x4(both, _mm256_loadu_si256((const void *)high), 1);
    return _mm512_permutexvar_epi16(order, both);
}
LKI_SIMD void v16i_store_u16_n(uint16_t *p, size_t n, v16i x)
{
    if (n == 16)
        _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(x));
    else
        _mm512_mask_cvtepi32_storeu_epi16(p, v16_first(n), x);
}
LKI_SIMD v16i v16i_add(v16i a, v16i b)
{
    return _mm512_add_epi32(a, b);
}
LKI_SIMD v16i v16i_sub(v16i a, v16i b)
{
    return _mm512_sub_epi32(a, b);
}
LKI_SIMD v16i v16i_and(v16i a, v16i b)
{
    return _mm512_and_si512(a, b);
}
LKI_SIMD v16i v16i_or(v16i a, v16i b)
{
    return _mm512_or_si512(a, b);
}
LKI_SIMD v16i v16i_xor(v16i a, v16i b)
{
    return _mm512_xor_si512(a, b);
}
LKI_SIMD v16i v16i_shl(v16i a, unsigned n)
{
    return _mm512_slli_epi32(a, n);
}
LKI_SIMD v16i v16i_shr(v16i a, unsigned n)
{
    return _mm512_srli_epi32(a, n);
} /* shifts in zeros */
LKI_SIMD m16 v16i_eq(v16i a, v16i b)
{
    return _mm512_cmpeq_epi32_mask(a, b);
}
LKI_SIMD m16 v16i_lt(v16i a, v16i b)
{
    return _mm512_cmplt_epi32_mask(a, b);
} /* signed */

#define LKI_SIMD_NARROWS /* this file defines v16_to_bf16() */
LKI_SIMD v16i v16_to_bf16(v16 x)
{
    v16i bits = _mm512_castps_si512(x);
    m16  odd  = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(1 << 16));
    m16  nan  = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    v16i half = _mm512_mask_mov_epi32(_mm512_set1_epi32(0x7fff), odd, _mm512_set1_epi32(0x8000));
    v16i up   = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    return _mm512_mask_mov_epi32(up, nan, _mm512_set1_epi32(0x7fc0));
}

/* Computes the 64-bit products of unsigned words. */
LKI_SIMD void v16i_mul_wide(v16i a, v16i b, v16i *high, v16i *low)
{
    __m512i even = _mm512_mul_epu32(a, b);
    __m512i odd  = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), _mm512_srli_epi64(b, 32));
    *high        = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
    *low         = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}

LKI_SIMD float v16_sum(v16 x)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b        = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}

LKI_SIMD float v16_hmax(v16 x)
{
    __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b        = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}

LKI_SIMD d16 d16_zero(void)
{
    return (d16){ _mm512_setzero_pd(), _mm512_setzero_pd() };
}

LKI_SIMD d16 d16_from(v16 x)
{
    return (d16){ _mm512_cvtps_pd(_mm512_castps512_ps256(x)),
                  _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)) };
}

LKI_SIMD d16 d16_add(d16 a, d16 b)
{
    return (d16){ _mm512_add_pd(a.low, b.low), _mm512_add_pd(a.high, b.high) };
}

LKI_SIMD d16 d16_fma(v16 a, v16 b, d16 sum)
{
    d16 x = d16_from(a), y = d16_from(b);
    return (d16){ _mm512_fmadd_pd(x.low, y.low, sum.low),
                  _mm512_fmadd_pd(x.high, y.high, sum.high) };
}

#define LKI_SIMD_ADDS_SQUARES /* this file defines d16_add_squares() */
/* Widens each half during the load, which needs no shuffle. */
LKI_SIMD d16 d16_add_squares(const float *p, d16 sum)
{
    __m512d low  = _mm512_cvtps_pd(_mm256_loadu_ps(p));
    __m512d high = _mm512_cvtps_pd(_mm256_loadu_ps(p + 8));
    return (d16){ _mm512_fmadd_pd(low, low, sum.low), _mm512_fmadd_pd(high, high, sum.high) };
}

LKI_SIMD double d16_sum(d16 x)
{
    __m512d a = _mm512_add_pd(x.low, x.high);
    __m256d b = _mm256_add_pd(_mm512_castpd512_pd256(a), _mm512_extractf64x4_pd(a, 1));
    __m128d c = _mm_add_pd(_mm256_castpd256_pd128(b), _mm256_extractf128_pd(b, 1));
    return _mm_cvtsd_f64(_mm_add_sd(c, _mm_unpackhi_pd(c, c)));
}

/* In this mode the operations that end with "flushed" replace subnormal operands and results by
 * zero. */
#define LKI_FLUSH_MODE LKI_FLOAT_FLUSH
LKI_SIMD v16 v16_fma_flushed(v16 a, v16 b, v16 sum)
{
    return v16_fma(a, b, sum);
}

LKI_SIMD v16 v16_add_flushed(v16 a, v16 b)
{
    return v16_add(a, b);
}

/* Without the bf16 instruction, v16_dot2() consists of two fma in a mode that flushes subnormal
 * values to zero. */
#if defined(__AVX512BF16__)
/* v16_dot2() is one instruction, and v16i_quads() prepares its operands */
#define LKI_SIMD_HAS_DOT2
LKI_SIMD v16 v16_dot2(v16 a, v16 b, v16 sum)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

/* Reorders each four values of 16 bits, x0 x1 x2 x3, to x2 x0 x3 x1. */
LKI_SIMD v16i v16i_quads(v16i x)
{
    const __m128i order = _mm_set_epi64x(0x0b0a0f0e09080d0c, 0x0302070601000504);
    return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(order));
}

/* Copies `count` <= 32 values of 16 bits, a multiple of four, in the order of v16i_quads(). */
LKI_SIMD void u16_copy_quads(size_t count, const uint16_t *from, uint16_t *to)
{
    __mmask32 all = (__mmask32)(0xffffffffu >> (32 - count));
    _mm512_mask_storeu_epi16(to, all, v16i_quads(_mm512_maskz_loadu_epi16(all, from)));
}
#else
#define LKI_DOT2_MODE LKI_FLOAT_FLUSH
LKI_SIMD v16 v16_dot2(v16 a, v16 b, v16 sum)
{
    v16i x = v16_bits(a), y = v16_bits(b), odd = v16i_set1((int32_t)0xffff0000);
    sum = v16_fma(v16_from_bits(v16i_and(x, odd)), v16_from_bits(v16i_and(y, odd)), sum);
    return v16_fma(v16_from_bits(v16i_shl(x, 16)), v16_from_bits(v16i_shl(y, 16)), sum);
}
#endif

/* Moves word w of lane l to index 4 l + w of the 64 words.  x[0] then holds indices 0 .. 15. */
LKI_SIMD void v16_interleave4(v16 x[4])
{
    __m512 a = _mm512_unpacklo_ps(x[0], x[1]), b = _mm512_unpackhi_ps(x[0], x[1]);
    __m512 c = _mm512_unpacklo_ps(x[2], x[3]), d = _mm512_unpackhi_ps(x[2], x[3]);
    __m512 p = _mm512_shuffle_ps(a, c, 0x44), q = _mm512_shuffle_ps(a, c, 0xee);
    __m512 r = _mm512_shuffle_ps(b, d, 0x44), s = _mm512_shuffle_ps(b, d, 0xee);
    /* p holds lanes 0, 4, 8, 12 (128 bits each), q lanes 1, 5, 9, 13, r lanes 2, 6, ..., s lanes 3,
     * 7, ... */
    __m512 e = _mm512_shuffle_f32x4(p, q, 0x44), f = _mm512_shuffle_f32x4(p, q, 0xee);
    __m512 g = _mm512_shuffle_f32x4(r, s, 0x44), h = _mm512_shuffle_f32x4(r, s, 0xee);
    x[0] = _mm512_shuffle_f32x4(e, g, 0x88);
    x[1] = _mm512_shuffle_f32x4(e, g, 0xdd);
    x[2] = _mm512_shuffle_f32x4(f, h, 0x88);
    x[3] = _mm512_shuffle_f32x4(f, h, 0xdd);
}

/* Transposes: lane j of x[i] moves to lane i of x[j]. */
LKI_SIMD void v16_transpose(v16 x[16])
{
    v16 t[16];
    for (int i = 0; i < 16; i += 4) {
        __m512 a = _mm512_unpacklo_ps(x[i], x[i + 1]), b = _mm512_unpackhi_ps(x[i], x[i + 1]);
        __m512 c = _mm512_unpacklo_ps(x[i + 2], x[i + 3]),
               d = _mm512_unpackhi_ps(x[i + 2], x[i + 3]);
        t[i]     = _mm512_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
    /* quarter q of t[4 r + c] is column 4 q + c of rows 4 r .. 4 r + 3. */
    for (int c = 0; c < 4; c++) {
        __m512 e  = _mm512_shuffle_f32x4(t[c], t[4 + c], 0x88);
        __m512 f  = _mm512_shuffle_f32x4(t[c], t[4 + c], 0xdd);
        __m512 g  = _mm512_shuffle_f32x4(t[8 + c], t[12 + c], 0x88);
        __m512 h  = _mm512_shuffle_f32x4(t[8 + c], t[12 + c], 0xdd);
        x[c]      = _mm512_shuffle_f32x4(e, g, 0x88);
        x[4 + c]  = _mm512_shuffle_f32x4(f, h, 0x88);
        x[8 + c]  = _mm512_shuffle_f32x4(e, g, 0xdd);
        x[12 + c] = _mm512_shuffle_f32x4(f, h, 0xdd);
    }
}

/* Loads four values of each of the rows 0, 4, 8 and 12. */
LKI_SIMD v16 v16_load_quarters(const float *p, size_t stride)
{
    v16 x = _mm512_castps128_ps512(_mm_loadu_ps(p));
    x     = _mm512_mask_broadcast_f32x4(x, 0x00f0, _mm_loadu_ps(p + 4 * stride));
    x     = _mm512_mask_broadcast_f32x4(x, 0x0f00, _mm_loadu_ps(p + 8 * stride));
    return _mm512_mask_broadcast_f32x4(x, 0xf000, _mm_loadu_ps(p + 12 * stride));
}

#define LKI_SIMD_LOADS_TURNED /* this file also defines v16_load_turned(), and a quarter of it */
/* Loads four columns of 16 rows.  Quarters are loaded directly into their lanes, which halves the
 * shuffles. */
LKI_SIMD void v16_load_turned_4(const float *p, size_t stride, v16 x[4])
{
    v16 r[4];
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++)
        r[i] = v16_load_quarters(p + i * stride, stride);
    __m512 a = _mm512_unpacklo_ps(r[0], r[1]), b = _mm512_unpackhi_ps(r[0], r[1]);
    __m512 c = _mm512_unpacklo_ps(r[2], r[3]), d = _mm512_unpackhi_ps(r[2], r[3]);
    x[0] = _mm512_shuffle_ps(a, c, 0x44);
    x[1] = _mm512_shuffle_ps(a, c, 0xee);
    x[2] = _mm512_shuffle_ps(b, d, 0x44);
    x[3] = _mm512_shuffle_ps(b, d, 0xee);
}

LKI_SIMD void v16_load_turned(const float *p, size_t stride, v16 x[16])
{
#pragma GCC unroll 4
    for (size_t q = 0; q < 4; q++)
        v16_load_turned_4(p + 4 * q, stride, x + 4 * q);
}

#endif

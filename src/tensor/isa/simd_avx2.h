/* tensor/isa/simd_avx2.h -- the lanes of simd.h in two 256-bit registers (four for doubles). */
#ifndef LKI_TENSOR_ISA_SIMD_AVX2_H
#define LKI_TENSOR_ISA_SIMD_AVX2_H

#include <immintrin.h>

typedef struct {
    __m256 low, high;
} v16;
typedef struct {
    __m256i low, high;
} v16i;
typedef struct {
    __m256 low, high;
} m16; /* each lane is all ones or all zeros */
typedef struct {
    __m256d part[4];
} d16;

/* Returns a mask of the first n of 8 lanes, loaded from an array of ones followed by zeros. */
LKI_SIMD __m256i v8_first(size_t n)
{
    static const int32_t window[16] = { -1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0 };
    return _mm256_loadu_si256((const __m256i *)(const void *)(window + 8 - n));
}

LKI_SIMD v16 v16_set1(float x)
{
    return (v16){ _mm256_set1_ps(x), _mm256_set1_ps(x) };
}
LKI_SIMD v16 v16_zero(void)
{
    return (v16){ _mm256_setzero_ps(), _mm256_setzero_ps() };
}

LKI_SIMD v16 v16_load(const float *p)
{
    return (v16){ _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) };
}

LKI_SIMD v16 v16_load_n(const float *p, size_t n)
{
    if (n == 16)
        return v16_load(p);
    if (n >= 8)
        return (v16){ _mm256_loadu_ps(p), _mm256_maskload_ps(p + 8, v8_first(n - 8)) };
    return (v16){ _mm256_maskload_ps(p, v8_first(n)), _mm256_setzero_ps() };
}

LKI_SIMD void v16_store(float *p, v16 x)
{
    _mm256_storeu_ps(p, x.low);
    _mm256_storeu_ps(p + 8, x.high);
}

/* A store with a mask takes about ten cycles more on a Zen 3, even if all its lanes are set. */
LKI_SIMD void v16_store_n(float *p, size_t n, v16 x)
{
    if (n == 16) {
        v16_store(p, x);
    } else if (n >= 8) {
        _mm256_storeu_ps(p, x.low);
        _mm256_maskstore_ps(p + 8, v8_first(n - 8), x.high);
    } else {
        _mm256_maskstore_ps(p, v8_first(n), x.low);
    }
}

/* Defines a function of sixteen lanes by the instruction for eight lanes. */
#define LKI_LANES_2(name, type, op)                                                                \
    LKI_SIMD type name(type a, type b)                                                             \
    {                                                                                              \
        return (type){ op(a.low, b.low), op(a.high, b.high) };                                     \
    }
LKI_LANES_2(v16_add, v16, _mm256_add_ps)
LKI_LANES_2(v16_sub, v16, _mm256_sub_ps)
LKI_LANES_2(v16_mul, v16, _mm256_mul_ps)
LKI_LANES_2(v16_div, v16, _mm256_div_ps)
LKI_LANES_2(v16_max, v16, _mm256_max_ps)
LKI_LANES_2(v16_min, v16, _mm256_min_ps)
LKI_LANES_2(m16_and, m16, _mm256_and_ps)
LKI_LANES_2(m16_or, m16, _mm256_or_ps)
LKI_LANES_2(v16i_add, v16i, _mm256_add_epi32)
LKI_LANES_2(v16i_sub, v16i, _mm256_sub_epi32)
LKI_LANES_2(v16i_and, v16i, _mm256_and_si256)
LKI_LANES_2(v16i_or, v16i, _mm256_or_si256)
LKI_LANES_2(v16i_xor, v16i, _mm256_xor_si256)
#undef LKI_LANES_2

LKI_SIMD v16 v16_fma(v16 a, v16 b, v16 c)
{
    return (v16){ _mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high) };
}

LKI_SIMD v16 v16_sqrt(v16 a)
{
    return (v16){ _mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high) };
}

LKI_SIMD m16 v16_lt(v16 a, v16 b)
{
    return (m16){ _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ),
                  _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ) };
}

LKI_SIMD m16 v16_le(v16 a, v16 b)
{
    return (m16){ _mm256_cmp_ps(a.low, b.low, _CMP_LE_OQ),
                  _mm256_cmp_ps(a.high, b.high, _CMP_LE_OQ) };
}

LKI_SIMD m16 v16_eq(v16 a, v16 b)
{
    return (m16){ _mm256_cmp_ps(a.low, b.low, _CMP_EQ_OQ),
                  _mm256_cmp_ps(a.high, b.high, _CMP_EQ_OQ) };
}

LKI_SIMD v16 v16_select(m16 m, v16 yes, v16 no)
{
    return (v16){ _mm256_blendv_ps(no.low, yes.low, m.low),
                  _mm256_blendv_ps(no.high, yes.high, m.high) };
}

LKI_SIMD m16 m16_not(m16 a)
{
    __m256 ones = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    return (m16){ _mm256_xor_ps(a.low, ones), _mm256_xor_ps(a.high, ones) };
}

LKI_SIMD uint32_t m16_mask(m16 a)
{
    return (uint32_t)_mm256_movemask_ps(a.low) | (uint32_t)_mm256_movemask_ps(a.high) << 8;
}

LKI_SIMD v16i v16_bits(v16 x)
{
    return (v16i){ _mm256_castps_si256(x.low), _mm256_castps_si256(x.high) };
}

LKI_SIMD v16 v16_from_bits(v16i x)
{
    return (v16){ _mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high) };
}

LKI_SIMD v16i v16_to_int(v16 x)
{
    return (v16i){ _mm256_cvttps_epi32(x.low), _mm256_cvttps_epi32(x.high) };
}

LKI_SIMD v16 v16_from_int(v16i x)
{
    return (v16){ _mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high) };
}

LKI_SIMD v16i v16i_select(m16 m, v16i yes, v16i no)
{
    return v16_bits(v16_select(m, v16_from_bits(yes), v16_from_bits(no)));
}

LKI_SIMD v16i v16i_set1(int32_t x)
{
    return (v16i){ _mm256_set1_epi32(x), _mm256_set1_epi32(x) };
}

LKI_SIMD v16i v16i_load(const int32_t *p)
{
    return (v16i){ _mm256_loadu_si256((const __m256i *)(const void *)p),
                   _mm256_loadu_si256((const __m256i *)(const void *)(p + 8)) };
}

LKI_SIMD void v16i_store(int32_t *p, v16i x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, x.low);
    _mm256_storeu_si256((__m256i *)(void *)(p + 8), x.high);
}

LKI_SIMD v16i v16i_load_words(const void *p)
{
    const __m256i *from = p;
    return (v16i){ _mm256_loadu_si256(from), _mm256_loadu_si256(from + 1) };
}

LKI_SIMD v16i v16i_load_u16_n(const uint16_t *p, size_t n)
{
    uint16_t some[16] = { 0 };
    if (n < 16) {
        for (size_t i = 0; i < n; i++)
            some[i] = p[i];
        p = some;
    }
    return (v16i){ _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)),
                   _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 8))) };
}

/* Stores words below 2^16 as 16-bit values. */
LKI_SIMD void v16i_store_u16_n(uint16_t *p, size_t n, v16i x)
{
    uint16_t some[16];
    __m256i  pairs = _mm256_packus_epi32(x.low, x.high); /* quarters: low, high, low, high */
    _mm256_storeu_si256((__m256i *)(void *)(n < 16 ? some : p),
                        _mm256_permute4x64_epi64(pairs, 0xd8));
    for (size_t i = 0; n < 16 && i < n; i++)
        p[i] = some[i];
}

LKI_SIMD v16i v16i_shl(v16i a, int n)
{
    return (v16i){ _mm256_slli_epi32(a.low, n), _mm256_slli_epi32(a.high, n) };
}

LKI_SIMD v16i v16i_shr(v16i a, int n)
{
    return (v16i){ _mm256_srli_epi32(a.low, n), _mm256_srli_epi32(a.high, n) };
}

LKI_SIMD m16 v16i_eq(v16i a, v16i b)
{
    return (m16){ _mm256_castsi256_ps(_mm256_cmpeq_epi32(a.low, b.low)),
                  _mm256_castsi256_ps(_mm256_cmpeq_epi32(a.high, b.high)) };
}

LKI_SIMD m16 v16i_lt(v16i a, v16i b) /* signed */
{
    return (m16){ _mm256_castsi256_ps(_mm256_cmpgt_epi32(b.low, a.low)),
                  _mm256_castsi256_ps(_mm256_cmpgt_epi32(b.high, a.high)) };
}

LKI_SIMD void v8i_mul_wide(__m256i a, __m256i b, __m256i *high, __m256i *low)
{
    __m256i even = _mm256_mul_epu32(a, b);
    __m256i odd  = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
    *high        = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    *low         = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}

LKI_SIMD void v16i_mul_wide(v16i a, v16i b, v16i *high, v16i *low)
{
    v8i_mul_wide(a.low, b.low, &high->low, &low->low);
    v8i_mul_wide(a.high, b.high, &high->high, &low->high);
}

LKI_SIMD float v16_sum(v16 x)
{
    __m256 a = _mm256_add_ps(x.low, x.high);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b        = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}

LKI_SIMD float v16_hmax(v16 x)
{
    __m256 a = _mm256_max_ps(x.low, x.high);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b        = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}

LKI_SIMD d16 d16_zero(void)
{
    __m256d zero = _mm256_setzero_pd();
    return (d16){ { zero, zero, zero, zero } };
}

LKI_SIMD d16 d16_from(v16 x)
{
    return (d16){ { _mm256_cvtps_pd(_mm256_castps256_ps128(x.low)),
                    _mm256_cvtps_pd(_mm256_extractf128_ps(x.low, 1)),
                    _mm256_cvtps_pd(_mm256_castps256_ps128(x.high)),
                    _mm256_cvtps_pd(_mm256_extractf128_ps(x.high, 1)) } };
}

LKI_SIMD d16 d16_add(d16 a, d16 b)
{
    for (int i = 0; i < 4; i++)
        a.part[i] = _mm256_add_pd(a.part[i], b.part[i]);
    return a;
}

LKI_SIMD d16 d16_fma(v16 a, v16 b, d16 sum)
{
    d16 x = d16_from(a), y = d16_from(b);
    for (int i = 0; i < 4; i++)
        sum.part[i] = _mm256_fmadd_pd(x.part[i], y.part[i], sum.part[i]);
    return sum;
}

#define LKI_SIMD_ADDS_SQUARES /* this file defines d16_add_squares() */
/* Widens each quarter during the load, which needs no shuffle. */
LKI_SIMD d16 d16_add_squares(const float *p, d16 sum)
{
    for (int i = 0; i < 4; i++) {
        __m256d x   = _mm256_cvtps_pd(_mm_loadu_ps(p + 4 * i));
        sum.part[i] = _mm256_fmadd_pd(x, x, sum.part[i]);
    }
    return sum;
}

LKI_SIMD double d16_sum(d16 x)
{
    __m256d a = _mm256_add_pd(_mm256_add_pd(x.part[0], x.part[2]),
                              _mm256_add_pd(x.part[1], x.part[3]));
    __m128d c = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(c, _mm_unpackhi_pd(c, c)));
}

/* Interleaves the words of four 8-lane rows: a quarter of v16_interleave4(). */
LKI_SIMD void v8_interleave4(__m256 x0, __m256 x1, __m256 x2, __m256 x3, v16 *first, v16 *second)
{
    __m256 a = _mm256_unpacklo_ps(x0, x1), b = _mm256_unpackhi_ps(x0, x1);
    __m256 c = _mm256_unpacklo_ps(x2, x3), d = _mm256_unpackhi_ps(x2, x3);
    __m256 p = _mm256_shuffle_ps(a, c, 0x44), q = _mm256_shuffle_ps(a, c, 0xee);
    __m256 r = _mm256_shuffle_ps(b, d, 0x44), s = _mm256_shuffle_ps(b, d, 0xee);
    *first  = (v16){ _mm256_permute2f128_ps(p, q, 0x20), _mm256_permute2f128_ps(r, s, 0x20) };
    *second = (v16){ _mm256_permute2f128_ps(p, q, 0x31), _mm256_permute2f128_ps(r, s, 0x31) };
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

/* v16_dot2() consists of two fma in a mode that flushes subnormal values to zero. */
#define LKI_DOT2_MODE LKI_FLOAT_FLUSH
LKI_SIMD v16 v16_dot2(v16 a, v16 b, v16 sum)
{
    v16i x = v16_bits(a), y = v16_bits(b), odd = v16i_set1((int32_t)0xffff0000);
    sum = v16_fma(v16_from_bits(v16i_and(x, odd)), v16_from_bits(v16i_and(y, odd)), sum);
    return v16_fma(v16_from_bits(v16i_shl(x, 16)), v16_from_bits(v16i_shl(y, 16)), sum);
}

/* Moves word w of lane l to index 4 l + w of the 64 words.  x[0] then holds indices 0 .. 15. */
LKI_SIMD void v16_interleave4(v16 x[4])
{
    v16 y[4];
    v8_interleave4(x[0].low, x[1].low, x[2].low, x[3].low, &y[0], &y[1]);
    v8_interleave4(x[0].high, x[1].high, x[2].high, x[3].high, &y[2], &y[3]);
    for (int i = 0; i < 4; i++)
        x[i] = y[i];
}

LKI_SIMD void v8_transpose(__m256 x[8])
{
    __m256 t[8];
    for (int i = 0; i < 8; i += 4) {
        __m256 a = _mm256_unpacklo_ps(x[i], x[i + 1]), b = _mm256_unpackhi_ps(x[i], x[i + 1]);
        __m256 c = _mm256_unpacklo_ps(x[i + 2], x[i + 3]),
               d = _mm256_unpackhi_ps(x[i + 2], x[i + 3]);
        t[i]     = _mm256_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
    for (int c = 0; c < 4; c++) {
        x[c]     = _mm256_permute2f128_ps(t[c], t[4 + c], 0x20);
        x[4 + c] = _mm256_permute2f128_ps(t[c], t[4 + c], 0x31);
    }
}

/* Transposes: lane j of x[i] moves to lane i of x[j]. */
LKI_SIMD void v16_transpose(v16 x[16])
{
    __m256 a[8], b[8], c[8], d[8];
    for (int i = 0; i < 8; i++) {
        a[i] = x[i].low;
        b[i] = x[i].high;
        c[i] = x[8 + i].low;
        d[i] = x[8 + i].high;
    }
    v8_transpose(a);
    v8_transpose(b);
    v8_transpose(c);
    v8_transpose(d);
    for (int i = 0; i < 8; i++) {
        x[i]     = (v16){ a[i], c[i] };
        x[8 + i] = (v16){ b[i], d[i] };
    }
}

#endif

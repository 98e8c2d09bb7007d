/* tensor/isa/simd_neon.h -- the lanes of simd.h in four 128-bit registers (eight for doubles).
 *
 * The compiler would pass vectors of 64 bytes through memory.  With four explicit vectors the lanes
 * of a micro-tile stay in the 32 registers.  Each C operator is a single instruction here, and no
 * two are fused (-ffp-contract=off).
 */
#ifndef LKI_TENSOR_ISA_SIMD_NEON_H
#define LKI_TENSOR_ISA_SIMD_NEON_H

#include <arm_neon.h>

typedef struct {
    float32x4_t part[4];
} v16;
typedef struct {
    int32x4_t part[4];
} v16i;
typedef struct {
    uint32x4_t part[4];
} m16; /* each lane is all ones or all zeros */
typedef struct {
    float64x2_t part[8];
} d16;

/* Defines a function of sixteen lanes by a function of four lanes. */
#define LKI_LANES_1(name, to, from, op)                                                            \
    LKI_SIMD to name(from a)                                                                       \
    {                                                                                              \
        return (to){ { op(a.part[0]), op(a.part[1]), op(a.part[2]), op(a.part[3]) } };             \
    }
#define LKI_LANES_2(name, to, from, op)                                                            \
    LKI_SIMD to name(from a, from b)                                                               \
    {                                                                                              \
        return (to){ { op(a.part[0], b.part[0]), op(a.part[1], b.part[1]),                         \
                       op(a.part[2], b.part[2]), op(a.part[3], b.part[3]) } };                     \
    }

/* Returns a > b ? a : b, including for NaNs and for zeros of either sign. */
LKI_SIMD float32x4_t v4_max(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
LKI_SIMD float32x4_t v4_min(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}

/* Converts to int.  Values out of range give INT32_MIN, as with the x86 instruction. */
LKI_SIMD int32x4_t v4_to_int(float32x4_t x)
{
    uint32x4_t fits = vandq_u32(vcgeq_f32(x, vdupq_n_f32(-0x1p31f)),
                                vcltq_f32(x, vdupq_n_f32(0x1p31f)));
    return vbslq_s32(fits, vcvtq_s32_f32(x), vdupq_n_s32(INT32_MIN));
}

LKI_LANES_2(v16_add, v16, v16, vaddq_f32)
LKI_LANES_2(v16_sub, v16, v16, vsubq_f32)
LKI_LANES_2(v16_mul, v16, v16, vmulq_f32)
LKI_LANES_2(v16_div, v16, v16, vdivq_f32)
LKI_LANES_2(v16_max, v16, v16, v4_max)
LKI_LANES_2(v16_min, v16, v16, v4_min)
LKI_LANES_1(v16_sqrt, v16, v16, vsqrtq_f32)
LKI_LANES_2(v16_lt, m16, v16, vcltq_f32)
LKI_LANES_2(v16_le, m16, v16, vcleq_f32)
LKI_LANES_2(v16_eq, m16, v16, vceqq_f32)
LKI_LANES_2(m16_and, m16, m16, vandq_u32)
LKI_LANES_2(m16_or, m16, m16, vorrq_u32)
LKI_LANES_1(m16_not, m16, m16, vmvnq_u32)
LKI_LANES_1(v16_bits, v16i, v16, vreinterpretq_s32_f32)
LKI_LANES_1(v16_from_bits, v16, v16i, vreinterpretq_f32_s32)
LKI_LANES_1(v16_to_int, v16i, v16, v4_to_int)
LKI_LANES_1(v16_from_int, v16, v16i, vcvtq_f32_s32)
LKI_LANES_2(v16i_add, v16i, v16i, vaddq_s32)
LKI_LANES_2(v16i_sub, v16i, v16i, vsubq_s32)
LKI_LANES_2(v16i_and, v16i, v16i, vandq_s32)
LKI_LANES_2(v16i_or, v16i, v16i, vorrq_s32)
LKI_LANES_2(v16i_xor, v16i, v16i, veorq_s32)
LKI_LANES_2(v16i_eq, m16, v16i, vceqq_s32)
LKI_LANES_2(v16i_lt, m16, v16i, vcltq_s32) /* signed */
#undef LKI_LANES_1
#undef LKI_LANES_2

/* ---- Loads and stores -------------------------------------------------------------------- */

LKI_SIMD v16 v16_set1(float x)
{
    float32x4_t all = vdupq_n_f32(x);
    return (v16){ { all, all, all, all } };
}

LKI_SIMD v16 v16_zero(void)
{
    return v16_set1(0.0f);
}

LKI_SIMD v16 v16_load(const float *p)
{
    return (v16){ { vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12) } };
}

LKI_SIMD void v16_store(float *p, v16 x)
{
    vst1q_f32(p, x.part[0]);
    vst1q_f32(p + 4, x.part[1]);
    vst1q_f32(p + 8, x.part[2]);
    vst1q_f32(p + 12, x.part[3]);
}

/* Loads four lanes, or only the first n and zeros for the rest. */
LKI_SIMD float32x4_t v4_load_n(const float *p, size_t n)
{
    float32x4_t x = vdupq_n_f32(0.0f);
    if (n >= 4)
        return vld1q_f32(p);
    if (n >= 1)
        x = vld1q_lane_f32(p, x, 0);
    if (n >= 2)
        x = vld1q_lane_f32(p + 1, x, 1);
    if (n >= 3)
        x = vld1q_lane_f32(p + 2, x, 2);
    return x;
}

LKI_SIMD void v4_store_n(float *p, size_t n, float32x4_t x)
{
    if (n >= 4) {
        vst1q_f32(p, x);
        return;
    }
    if (n >= 1)
        vst1q_lane_f32(p, x, 0);
    if (n >= 2)
        vst1q_lane_f32(p + 1, x, 1);
    if (n >= 3)
        vst1q_lane_f32(p + 2, x, 2);
}

LKI_SIMD v16 v16_load_n(const float *p, size_t n)
{
    v16 x = v16_zero();
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++)
        if (n > 4 * i)
            x.part[i] = v4_load_n(p + 4 * i, n - 4 * i);
    return x;
}

LKI_SIMD void v16_store_n(float *p, size_t n, v16 x)
{
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++)
        if (n > 4 * i)
            v4_store_n(p + 4 * i, n - 4 * i, x.part[i]);
}

LKI_SIMD v16i v16i_set1(int32_t x)
{
    int32x4_t all = vdupq_n_s32(x);
    return (v16i){ { all, all, all, all } };
}

LKI_SIMD v16i v16i_load(const int32_t *p)
{
    return (v16i){ { vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12) } };
}

LKI_SIMD void v16i_store(int32_t *p, v16i x)
{
    vst1q_s32(p, x.part[0]);
    vst1q_s32(p + 4, x.part[1]);
    vst1q_s32(p + 8, x.part[2]);
    vst1q_s32(p + 12, x.part[3]);
}

LKI_SIMD int32x4_t v4i_load_bytes(const uint8_t *p)
{
    return vreinterpretq_s32_u8(vld1q_u8(p));
}

LKI_SIMD v16i v16i_load_words(const void *p)
{
    const uint8_t *from = p; /* may have any alignment */
    return (v16i){ { v4i_load_bytes(from), v4i_load_bytes(from + 16), v4i_load_bytes(from + 32),
                     v4i_load_bytes(from + 48) } };
}

LKI_SIMD v16i v16i_load_u16_n(const uint16_t *p, size_t n)
{
    uint16_t some[16] = { 0 };
    if (n < 16) {
        for (size_t i = 0; i < n; i++)
            some[i] = p[i];
        p = some;
    }
    uint16x8_t low = vld1q_u16(p), high = vld1q_u16(p + 8);
    return (v16i){ { vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
                     vreinterpretq_s32_u32(vmovl_high_u16(low)),
                     vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
                     vreinterpretq_s32_u32(vmovl_high_u16(high)) } };
}

/* Returns the low halves of eight words. */
LKI_SIMD uint16x8_t v8i_narrow(int32x4_t low, int32x4_t high)
{
    return vuzp1q_u16(vreinterpretq_u16_s32(low), vreinterpretq_u16_s32(high));
}

LKI_SIMD void v16i_store_u16_n(uint16_t *p, size_t n, v16i x)
{
    uint16_t some[16], *to = n < 16 ? some : p;
    vst1q_u16(to, v8i_narrow(x.part[0], x.part[1]));
    vst1q_u16(to + 8, v8i_narrow(x.part[2], x.part[3]));
    for (size_t i = 0; n < 16 && i < n; i++)
        p[i] = some[i];
}

/* ---- Arithmetic -------------------------------------------------------------------------- */

LKI_SIMD v16 v16_fma(v16 a, v16 b, v16 c)
{
    return (v16){ { vfmaq_f32(c.part[0], a.part[0], b.part[0]),
                    vfmaq_f32(c.part[1], a.part[1], b.part[1]),
                    vfmaq_f32(c.part[2], a.part[2], b.part[2]),
                    vfmaq_f32(c.part[3], a.part[3], b.part[3]) } };
}

LKI_SIMD v16 v16_select(m16 m, v16 yes, v16 no)
{
    return (v16){ { vbslq_f32(m.part[0], yes.part[0], no.part[0]),
                    vbslq_f32(m.part[1], yes.part[1], no.part[1]),
                    vbslq_f32(m.part[2], yes.part[2], no.part[2]),
                    vbslq_f32(m.part[3], yes.part[3], no.part[3]) } };
}

LKI_SIMD v16i v16i_select(m16 m, v16i yes, v16i no)
{
    return v16_bits(v16_select(m, v16_from_bits(yes), v16_from_bits(no)));
}

/* Returns a mask in which bit i is lane i. */
LKI_SIMD uint32_t m16_mask(m16 a)
{
    uint32x4_t bits = { 1, 2, 4, 8 };
    return vaddvq_u32(vandq_u32(a.part[0], bits)) | vaddvq_u32(vandq_u32(a.part[1], bits)) << 4 |
           vaddvq_u32(vandq_u32(a.part[2], bits)) << 8 |
           vaddvq_u32(vandq_u32(a.part[3], bits)) << 12;
}

LKI_SIMD v16i v16i_shl(v16i a, int n)
{
    int32x4_t by = vdupq_n_s32(n);
    return (v16i){ { vshlq_s32(a.part[0], by), vshlq_s32(a.part[1], by), vshlq_s32(a.part[2], by),
                     vshlq_s32(a.part[3], by) } };
}

LKI_SIMD int32x4_t v4i_shr(int32x4_t a, int32x4_t by)
{
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vnegq_s32(by)));
}

LKI_SIMD v16i v16i_shr(v16i a, int n) /* shifts in zeros */
{
    int32x4_t by = vdupq_n_s32(n);
    return (v16i){ { v4i_shr(a.part[0], by), v4i_shr(a.part[1], by), v4i_shr(a.part[2], by),
                     v4i_shr(a.part[3], by) } };
}

/* Computes the 64-bit products of unsigned words.  The processor is little-endian, so even words
 * are the low words. */
LKI_SIMD void v4i_mul_wide(int32x4_t a, int32x4_t b, int32x4_t *high, int32x4_t *low)
{
    uint32x4_t x = vreinterpretq_u32_s32(a), y = vreinterpretq_u32_s32(b);
    int32x4_t  first = vreinterpretq_s32_u64(vmull_u32(vget_low_u32(x), vget_low_u32(y)));
    int32x4_t  last  = vreinterpretq_s32_u64(vmull_high_u32(x, y));
    *low             = vuzp1q_s32(first, last);
    *high            = vuzp2q_s32(first, last);
}

LKI_SIMD void v16i_mul_wide(v16i a, v16i b, v16i *high, v16i *low)
{
    v4i_mul_wide(a.part[0], b.part[0], &high->part[0], &low->part[0]);
    v4i_mul_wide(a.part[1], b.part[1], &high->part[1], &low->part[1]);
    v4i_mul_wide(a.part[2], b.part[2], &high->part[2], &low->part[2]);
    v4i_mul_wide(a.part[3], b.part[3], &high->part[3], &low->part[3]);
}

LKI_SIMD float v16_sum(v16 x)
{
    float32x4_t a = vaddq_f32(vaddq_f32(x.part[0], x.part[2]), vaddq_f32(x.part[1], x.part[3]));
    float32x2_t b = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(b, 0) + vget_lane_f32(b, 1);
}

LKI_SIMD float v16_hmax(v16 x)
{
    float32x4_t a = v4_max(v4_max(x.part[0], x.part[2]), v4_max(x.part[1], x.part[3]));
    float32x4_t b = v4_max(a, vextq_f32(a, a, 2));
    float       first = vgetq_lane_f32(b, 0), second = vgetq_lane_f32(b, 1);
    return first > second ? first : second;
}

/* ---- Doubles ----------------------------------------------------------------------------- */

LKI_SIMD d16 d16_zero(void)
{
    float64x2_t zero = vdupq_n_f64(0.0);
    return (d16){ { zero, zero, zero, zero, zero, zero, zero, zero } };
}

LKI_SIMD d16 d16_from(v16 x)
{
    return (d16){ { vcvt_f64_f32(vget_low_f32(x.part[0])), vcvt_high_f64_f32(x.part[0]),
                    vcvt_f64_f32(vget_low_f32(x.part[1])), vcvt_high_f64_f32(x.part[1]),
                    vcvt_f64_f32(vget_low_f32(x.part[2])), vcvt_high_f64_f32(x.part[2]),
                    vcvt_f64_f32(vget_low_f32(x.part[3])), vcvt_high_f64_f32(x.part[3]) } };
}

LKI_SIMD d16 d16_add(d16 a, d16 b)
{
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        a.part[i] = vaddq_f64(a.part[i], b.part[i]);
    return a;
}

LKI_SIMD d16 d16_fma(v16 a, v16 b, d16 sum)
{
    d16 x = d16_from(a), y = d16_from(b);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        sum.part[i] = vfmaq_f64(sum.part[i], x.part[i], y.part[i]);
    return sum;
}

LKI_SIMD double d16_sum(d16 x)
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        x.part[i] = vaddq_f64(x.part[i], x.part[i + 4]);
    float64x2_t a = vaddq_f64(vaddq_f64(x.part[0], x.part[2]), vaddq_f64(x.part[1], x.part[3]));
    return vgetq_lane_f64(a, 0) + vgetq_lane_f64(a, 1);
}

/* ---- Products of bf16 -------------------------------------------------------------------- */

/* Replaces values below `least` by zeros of the same sign. */
LKI_SIMD float64x2_t d2_flush(float64x2_t x, double least)
{
    uint64x2_t sign = vandq_u64(vreinterpretq_u64_f64(x), vdupq_n_u64(UINT64_C(1) << 63));
    return vbslq_f64(vcaltq_f64(x, vdupq_n_f64(least)), vreinterpretq_f64_u64(sign), x);
}

/* Returns sum + a b of floats, with the bits of the portable lanes.  FPCR.FZ is not used because it
 * flushes values below 2^-126 before they are rounded, while the x86 mode flushes them after
 * rounding.  BFDOT is not used because it rounds to odd. */
LKI_SIMD float64x2_t d2_fma_flushed(float64x2_t a, float64x2_t b, float64x2_t sum)
{
    float64x2_t x = d2_flush(a, 0x1p-126), y = d2_flush(b, 0x1p-126);
    float64x2_t z = vfmaq_f64(d2_flush(sum, 0x1p-126), x, y);
    return d2_flush(z, 0x1.ffffffp-127);
}

LKI_SIMD float32x4_t v4_fma_flushed(float32x4_t a, float32x4_t b, float32x4_t sum)
{
    float64x2_t low  = d2_fma_flushed(vcvt_f64_f32(vget_low_f32(a)), vcvt_f64_f32(vget_low_f32(b)),
                                      vcvt_f64_f32(vget_low_f32(sum)));
    float64x2_t high = d2_fma_flushed(vcvt_high_f64_f32(a), vcvt_high_f64_f32(b),
                                      vcvt_high_f64_f32(sum));
    return vcvt_high_f32_f64(vcvt_f32_f64(low), high);
}

LKI_SIMD v16 v16_fma_flushed(v16 a, v16 b, v16 sum)
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        sum.part[i] = v4_fma_flushed(a.part[i], b.part[i], sum.part[i]);
    return sum;
}

#define LKI_FLUSH_MODE 0 /* operations that flush need no mode */
LKI_SIMD v16 v16_add_flushed(v16 a, v16 b)
{
    return v16_fma_flushed(a, v16_set1(1.0f), b);
}

LKI_SIMD v16 v16_dot2(v16 a, v16 b, v16 sum)
{
    v16i x = v16_bits(a), y = v16_bits(b), odd = v16i_set1((int32_t)0xffff0000);
    sum = v16_fma_flushed(v16_from_bits(v16i_and(x, odd)), v16_from_bits(v16i_and(y, odd)), sum);
    return v16_fma_flushed(v16_from_bits(v16i_shl(x, 16)), v16_from_bits(v16i_shl(y, 16)), sum);
}

/* ---- Moving lanes ------------------------------------------------------------------------- */

/* Transposes 4 x 4 values. */
LKI_SIMD void v4_transpose(float32x4_t *a, float32x4_t *b, float32x4_t *c, float32x4_t *d)
{
    float64x2_t p = vreinterpretq_f64_f32(vtrn1q_f32(*a, *b)); /* a0 b0 a2 b2 */
    float64x2_t q = vreinterpretq_f64_f32(vtrn2q_f32(*a, *b)); /* a1 b1 a3 b3 */
    float64x2_t r = vreinterpretq_f64_f32(vtrn1q_f32(*c, *d));
    float64x2_t s = vreinterpretq_f64_f32(vtrn2q_f32(*c, *d));
    *a = vreinterpretq_f32_f64(vzip1q_f64(p, r));
    *b = vreinterpretq_f32_f64(vzip1q_f64(q, s));
    *c = vreinterpretq_f32_f64(vzip2q_f64(p, r));
    *d = vreinterpretq_f32_f64(vzip2q_f64(q, s));
}

/* Moves word w of lane l to index 4 l + w of the 64 words.  x[0] then holds indices 0 .. 15. */
LKI_SIMD void v16_interleave4(v16 x[4])
{
    v16 y[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        y[i] = (v16){ { x[0].part[i], x[1].part[i], x[2].part[i], x[3].part[i] } };
        v4_transpose(&y[i].part[0], &y[i].part[1], &y[i].part[2], &y[i].part[3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        x[i] = y[i];
}

/* Transposes: lane j of x[i] moves to lane i of x[j]. */
LKI_SIMD void v16_transpose(v16 x[16])
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            v4_transpose(&x[4 * i].part[j], &x[4 * i + 1].part[j], &x[4 * i + 2].part[j],
                         &x[4 * i + 3].part[j]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) /* exchanges the blocks of four */
#pragma GCC unroll 4
        for (int j = 0; j < i; j++)
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                float32x4_t kept       = x[4 * i + k].part[j];
                x[4 * i + k].part[j]   = x[4 * j + k].part[i];
                x[4 * j + k].part[i]   = kept;
            }
}

#endif

/* device/half.h -- 16-bit floats to FP32 and back, exactly and without branches.
 *
 * Widening is exact.  Narrowing rounds once, to nearest even.  Values that are too large become
 * infinity, subnormals are preserved, and every NaN becomes the positive quiet NaN.  No result
 * depends on a subnormal FP32 operand, so the bits are the same on a host that flushes subnormals
 * to zero.
 */
#ifndef LKI_DEVICE_HALF_H
#define LKI_DEVICE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t lki_f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float lki_f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float lki_bf16_widen(uint16_t h)
{
    return lki_f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t lki_bf16_narrow(float x)
{
    uint32_t bits    = lki_f32_bits(x);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

/* Widens fp16.  The exponents' biases differ by 112; a subnormal is an integer times 2^-24. */
static inline float lki_f16_widen(uint16_t h)
{
    uint32_t magnitude = h & 0x7fffu, sign = (h & 0x8000u) << 16;
    uint32_t normal  = (magnitude << 13) + (112u << 23);
    uint32_t special = magnitude << 13 | 0x7f800000;
    uint32_t tiny    = lki_f32_bits((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t bits    = magnitude < 0x400 ? tiny : magnitude < 0x7c00 ? normal : special;
    return lki_f32_from_bits(sign | bits);
}

/* Narrows to fp16.  Below 2^-14, adding 0.5, whose last place is 2^-24, rounds the value. */
static inline uint16_t lki_f16_narrow(float x)
{
    uint32_t bits = lki_f32_bits(x), sign = bits >> 16 & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    uint32_t normal    = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    uint32_t tiny      = lki_f32_bits(lki_f32_from_bits(magnitude) + 0.5f) - 0x3f000000;
    uint32_t finite    = magnitude < 0x38800000 ? tiny : normal;
    uint32_t result    = sign | (magnitude >= 0x477ff000 ? 0x7c00 : finite);
    return (uint16_t)(magnitude > 0x7f800000 ? 0x7e00 : result);
}

#endif

/* device/blocks.h -- encoders whose elements are integers times a factor that a block shares.
 *
 *     x        0.30  -1.27   0.02 ...        largest magnitude 1.27
 *     factor   1.27 / 127, rounded up to 16 significant bits: 0.0100002...
 *     integer    30   -127      2 ...        x / factor, to nearest, ties to even
 *     value    0.300..  -1.270..  0.020..    integer times factor, exactly
 *
 * LEVELS is the integer that the largest magnitude becomes, in this example 127.
 *
 * Quantising is idempotent, so callers need not know whether a vector is already quantised.  For
 * this reason a factor has 16 bits.  Its product with an integer is exact in FP32, and rounding the
 * factor up moves the largest magnitude, which becomes LEVELS factors, by less than half a step.
 * The limits of a factor, 2^-100 and 1/LEVELS of the largest number, make its inverse and all
 * products normal and finite.  Magnitudes below half of 2^-100 become 0.
 *
 * The factor of a block with an infinite or NaN element is NaN.  The whole block then becomes NaN,
 * and so does the sum.
 *
 * Error:  at most half a factor.
 * Bytes:  4 for the factor, then the integers, as the encoder packs them.
 * Order:  a block is processed as a whole, so work is divided only between blocks.  The maximum of
 *         several integers is the same in any order; all other operations are elementwise.
 *
 * An encoder defines pack() and unpack(), marked LKI_BLOCK_PART, and then LKI_BLOCK_ENCODER.  All
 * functions are inlined into loops that are compiled once for each instruction set.
 */
#ifndef LKI_DEVICE_BLOCKS_H
#define LKI_DEVICE_BLOCKS_H

#include <stdint.h>
#include <string.h>

#include "device/encoder.h"
#include "device/half.h"

/* A function that every loop compiles for its own instruction set. */
#define LKI_BLOCK_PART static inline __attribute__((always_inline))

/* A float whose sum with a float x has the integer nearest to x in its low bits. */
#define LKI_TO_NEAREST 0x1.8p23f

enum { LKI_FACTOR_BYTES = 4 };

/* ---- One block --------------------------------------------------------------------------- */

LKI_BLOCK_PART float lki_factor_of(const float *x, float levels)
{
    int32_t  most = 0;
    uint32_t top  = lki_f32_bits(0x1.fffffep127f / levels) & ~UINT32_C(0xff);

    for (size_t i = 0; i < LKI_QUANTISED; i++) {
        int32_t magnitude = (int32_t)(lki_f32_bits(x[i]) & 0x7fffffff);
        most              = magnitude > most ? magnitude : most;
    }
    if (most >= 0x7f800000)
        return lki_f32_from_bits(0x7fc00000);
    uint32_t bits = lki_f32_bits(lki_f32_from_bits((uint32_t)most) / levels);
    bits          = (bits + 0xff) & ~UINT32_C(0xff);
    bits          = bits > top ? top : bits;
    float factor  = lki_f32_from_bits(bits);
    return factor > 0x1p-100f ? factor : 0x1p-100f;
}

LKI_BLOCK_PART void lki_fill_with_nan(float *x)
{
    for (size_t i = 0; i < LKI_QUANTISED; i++)
        x[i] = lki_f32_from_bits(0x7fc00000);
}

LKI_BLOCK_PART void lki_round_block(const float *x, float levels, float *out)
{
    float factor = lki_factor_of(x, levels), inverse = 1.0f / factor;

    if (factor != factor) {
        lki_fill_with_nan(out);
        return;
    }
    for (size_t i = 0; i < LKI_QUANTISED; i++) {
        float integer = (x[i] * inverse + LKI_TO_NEAREST) - LKI_TO_NEAREST;
        out[i]        = integer * factor;
    }
}

/* Computes the block's integers and returns its factor. */
LKI_BLOCK_PART float lki_count_block(const float *x, float levels, int8_t *integers)
{
    float factor = lki_factor_of(x, levels), inverse = 1.0f / factor;

    if (factor != factor) {
        memset(integers, 0, LKI_QUANTISED);
        return factor;
    }
    for (size_t i = 0; i < LKI_QUANTISED; i++)
        integers[i] = (int8_t)(uint8_t)lki_f32_bits(x[i] * inverse + LKI_TO_NEAREST);
    return factor;
}

LKI_BLOCK_PART void lki_spread_block(const int8_t *integers, float factor, float *out)
{
    if (factor != factor) {
        lki_fill_with_nan(out);
        return;
    }
    for (size_t i = 0; i < LKI_QUANTISED; i++)
        out[i] = (float)integers[i] * factor;
}

/* ---- Vectors of blocks ------------------------------------------------------------------- */

/* Returns the block at x.  If fewer than LKI_QUANTISED elements remain, returns a copy padded with
 * zeros. */
LKI_BLOCK_PART const float *lki_block_at(const float *x, size_t left, float copy[LKI_QUANTISED])
{
    if (left >= LKI_QUANTISED)
        return x;
    memset(copy, 0, LKI_QUANTISED * sizeof *copy);
    memcpy(copy, x, left * sizeof *copy);
    return copy;
}

/* Returns `out`, or `block` if `out` has no room for a whole block. */
LKI_BLOCK_PART float *lki_room_at(float *out, size_t left, float block[LKI_QUANTISED])
{
    return left >= LKI_QUANTISED ? out : block;
}

LKI_BLOCK_PART void lki_put_rest(const float *block, size_t left, float *out)
{
    if (left < LKI_QUANTISED)
        memcpy(out, block, left * sizeof *out);
}

/* Defines the four loops for one instruction set and their table, loops_SET. */
#define LKI_BLOCK_LOOPS(set, target, levels, payload)                                             \
    target static void store_##set(size_t n, const void *from, double factor, void *to)           \
    {                                                                                             \
        const float   *x  = from;                                                                 \
        unsigned char *at = to;                                                                   \
        float          copy[LKI_QUANTISED];                                                       \
        int8_t         integers[LKI_QUANTISED];                                                   \
        (void)factor;                                                                             \
        for (size_t i = 0; i < n; i += LKI_QUANTISED, at += LKI_FACTOR_BYTES + (payload)) {       \
            float shared = lki_count_block(lki_block_at(x + i, n - i, copy), levels, integers);   \
            memcpy(at, &shared, LKI_FACTOR_BYTES);                                                \
            pack(integers, at + LKI_FACTOR_BYTES);                                                \
        }                                                                                         \
    }                                                                                             \
    target static void load_##set(size_t n, const void *from, double factor, void *to)            \
    {                                                                                             \
        const unsigned char *at = from;                                                           \
        float               *o  = to, copy[LKI_QUANTISED], shared;                                \
        int8_t               integers[LKI_QUANTISED];                                             \
        (void)factor;                                                                             \
        for (size_t i = 0; i < n; i += LKI_QUANTISED, at += LKI_FACTOR_BYTES + (payload)) {       \
            memcpy(&shared, at, LKI_FACTOR_BYTES);                                                \
            unpack(at + LKI_FACTOR_BYTES, integers);                                              \
            lki_spread_block(integers, shared, lki_room_at(o + i, n - i, copy));                  \
            lki_put_rest(copy, n - i, o + i);                                                     \
        }                                                                                         \
    }                                                                                             \
    target static void rounded_##set(size_t n, const void *from, double factor, void *to)         \
    {                                                                                             \
        const float *x = from;                                                                    \
        float       *o = to, copy[LKI_QUANTISED], block[LKI_QUANTISED];                           \
        (void)factor;                                                                             \
        for (size_t i = 0; i < n; i += LKI_QUANTISED) {                                           \
            lki_round_block(lki_block_at(x + i, n - i, copy), levels,                             \
                            lki_room_at(o + i, n - i, block));                                    \
            lki_put_rest(block, n - i, o + i);                                                    \
        }                                                                                         \
    }                                                                                             \
    target static void rounded_sum_##set(size_t n, const void *left, const void *right, void *out)\
    {                                                                                             \
        const float *x = left, *y = right;                                                        \
        float       *o = out, a[LKI_QUANTISED], b[LKI_QUANTISED], copy[LKI_QUANTISED];            \
        for (size_t i = 0; i < n; i += LKI_QUANTISED) {                                           \
            lki_round_block(lki_block_at(x + i, n - i, copy), levels, a);                         \
            lki_round_block(lki_block_at(y + i, n - i, copy), levels, b);                         \
            for (size_t k = 0; k < LKI_QUANTISED; k++)                                            \
                a[k] = a[k] + b[k];                                                               \
            lki_round_block(a, levels, lki_room_at(o + i, n - i, b));                             \
            lki_put_rest(b, n - i, o + i);                                                        \
        }                                                                                         \
    }                                                                                             \
    static const lki_type_loops loops_##set = { .accumulator = sizeof(float),                     \
                                                .block       = LKI_FACTOR_BYTES + (payload),      \
                                                .load        = load_##set,                        \
                                                .store       = store_##set,                       \
                                                .rounded     = rounded_##set,                     \
                                                .rounded_sum = rounded_sum_##set };

/* Defines lki_encoder_NAME.  `levels`: the integer of the largest magnitude.  `payload`: the bytes
 * that pack() writes for a block. */
#if defined(__x86_64__)
#define LKI_FOR_AVX2 __attribute__((target("avx2")))
#if defined(__clang__)
#define LKI_FOR_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define LKI_FOR_AVX512                                                                            \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif
#define LKI_BLOCK_ENCODER(name, levels, payload)                                                  \
    LKI_BLOCK_LOOPS(portable, , levels, payload)                                                  \
    LKI_BLOCK_LOOPS(avx2, LKI_FOR_AVX2, levels, payload)                                          \
    LKI_BLOCK_LOOPS(avx512, LKI_FOR_AVX512, levels, payload)                                      \
    const lki_encoder lki_encoder_##name = { LKI_QUANTISED,                                       \
                                             LKI_FACTOR_BYTES + (payload),                        \
                                             { &loops_portable, &loops_avx2, &loops_avx512 } };
#else
#define LKI_BLOCK_ENCODER(name, levels, payload)                                                  \
    LKI_BLOCK_LOOPS(portable, , levels, payload)                                                  \
    const lki_encoder lki_encoder_##name = { LKI_QUANTISED,                                       \
                                             LKI_FACTOR_BYTES + (payload),                        \
                                             { &loops_portable } };
#endif

#endif

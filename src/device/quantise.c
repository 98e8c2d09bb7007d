/* quantise.c -- blocks whose elements are integers times a common factor.
 *
 *     x        0.30  -1.27   0.02 ...        largest magnitude 1.27
 *     factor   1.27 / 127, rounded up to 16 significant bits: 0.0100002...
 *     integer    30   -127      2 ...        x / factor, to nearest, ties to even
 *     value    0.300..  -1.270..  0.020..    integer times factor, exactly
 *
 * Quantising is idempotent, so callers need not know whether a vector is already quantised.  For
 * this reason a factor has 16 bits.  Its product with an integer is exact in FP32, and rounding it
 * up moves the largest magnitude, which becomes 127 factors, by less than half a step.  The limits
 * of a factor, 2^-100 and 1/127 (or 1/7) of the largest number, make its inverse and all products
 * normal and finite.  Magnitudes below half of 2^-100 become 0.
 *
 * The factor of a block with an infinite or NaN element is NaN.  The whole block then becomes NaN,
 * and so does the sum.
 *
 * Error:  at most half a factor: 1/254 (or 1/14) of the largest magnitude in the block.
 * Bytes:  4 for the factor, then one per integer, or one per two integers: element i in the low
 *         bits, i + 128 in the high bits.
 * Order:  a block is processed as a whole, so work is divided only between blocks.  The largest of
 *         integers is the same in any order; all other operations are elementwise.
 */
#include "device/quantise.h"

size_t lki_rounded_bytes(lk_dtype rounded, size_t count)
{
    size_t blocks = (count + LKI_QUANTISED - 1) / LKI_QUANTISED;
    return lki_quantises(rounded) ? blocks * lki_quantise_portable[rounded == LK_I4].block
                                  : count * lk_dtype_bytes(rounded == 0 ? LK_F32 : rounded);
}

static const lki_type_loops *best(void)
{
#if defined(__x86_64__)
    const lki_type_loops *loops = lki_combine_best();
    if (loops == lki_combine_avx512)
        return lki_quantise_avx512;
    if (loops == lki_combine_avx2)
        return lki_quantise_avx2;
#endif
    return lki_quantise_portable;
}

const lki_type_loops *lki_rounding_loops(lk_dtype rounded)
{
    return lki_quantises(rounded) ? &best()[rounded == LK_I4] : &lki_combine_best()[rounded];
}

void lki_quantise(lk_dtype dtype, size_t count, const float *from, void *to)
{
    lki_rounding_loops(dtype)->store(count, from, 1, to);
}

void lki_dequantise(lk_dtype dtype, size_t count, const void *from, float *to)
{
    lki_rounding_loops(dtype)->load(count, from, 1, to);
}

/* quantise.c -- blocks whose elements are integers times a factor of the block's.
 *
 *      x        0.30  -1.27   0.02 ...        largest magnitude 1.27
 *      factor   1.27 / 127, rounded up to 16 significant bits: 0.0100002...
 *      integer    30   -127      2 ...        x over the factor, to the nearest, ties to even
 *      value    0.300..  -1.270..  0.020..    integer times factor, exactly
 *
 * What has been quantised and is quantised again stays as it is, so that nobody need know whether
 * it has.  That is why a factor has 16 bits: an integer times it is exact in FP32, and rounding it
 * up moves the largest magnitude, now 127 times it, by less than half a step.  Its limits, 2^-100
 * and a 127th (or 7th) of the largest number, keep its inverse and all products normal and finite:
 * what is smaller than half of 2^-100 becomes 0.
 *
 * A block with an element that is no number, or infinite, has a NaN for its factor: all of it is
 * NaN then, and whoever looks at the sum sees it.
 *
 * Error:  at most half a factor: of the largest magnitude in the block a 254th, or a 14th.
 * Bytes:  4 for the factor, then one for each integer, or one for two: element i in the low bits,
 *         i + 128 in the high ones.
 * Order:  a block is looked at as a whole, so all that is cut is cut between blocks.  The largest
 *         of integers is the same in any order; all else is elementwise.
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

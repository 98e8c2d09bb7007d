/* device/quantise.h -- blocks of elements that share a factor: 8 or 4 bits each.
 *
 * A block is LKI_QUANTISED neighbours, or what is left of them, as FP32.  Quantised, it is a factor
 * and an integer for each element, which is what the element was over the factor, rounded to the
 * nearest; 127 (LK_I8) or 7 (LK_I4) stand for the largest magnitude.  See quantise.c.
 */
#ifndef LKI_DEVICE_QUANTISE_H
#define LKI_DEVICE_QUANTISE_H

#include "device/combine_loops.h"

enum { LKI_QUANTISED = 256 };

static inline bool lki_quantises(lk_dtype dtype)
{
    return dtype == LK_I8 || dtype == LK_I4;
}

/* Bytes of `count` elements that are rounded to `rounded`, as they travel: blocks from the first
 * element on, of which the last has all its bytes. */
size_t lki_rounded_bytes(lk_dtype rounded, size_t count);

/* FP32 from and to these bytes. */
void lki_quantise(lk_dtype dtype, size_t count, const float *from, void *to);
void lki_dequantise(lk_dtype dtype, size_t count, const void *from, float *to);

/* The loops for what is rounded to LK_F16, LK_BF16, LK_I8 or LK_I4: store gives what travels, load
 * takes it, `rounded` and `rounded_sum` stay in FP32.  Those of blocks begin with a block. */
const lki_type_loops *lki_rounding_loops(lk_dtype rounded);

/* By dtype == LK_I4. */
extern const lki_type_loops lki_quantise_portable[2];
#if defined(__x86_64__)
extern const lki_type_loops lki_quantise_avx2[2], lki_quantise_avx512[2];
#endif

#endif

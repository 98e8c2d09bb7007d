/* device/quantise.h -- blocks of elements that share a factor: 8 or 4 bits each.
 *
 * A block is LKI_QUANTISED consecutive FP32 elements, or the rest of a vector.  A quantised block
 * is a factor and an integer per element.  The integer is the element divided by the factor,
 * rounded to nearest.  The largest magnitude becomes 127 (LK_I8) or 7 (LK_I4).  See quantise.c.
 */
#ifndef LKI_DEVICE_QUANTISE_H
#define LKI_DEVICE_QUANTISE_H

#include "device/combine_loops.h"

enum { LKI_QUANTISED = 256 };

static inline bool lki_quantises(lk_dtype dtype)
{
    return dtype == LK_I8 || dtype == LK_I4;
}

/* Returns the number of bytes in which `count` elements rounded to `rounded` are sent.  Blocks
 * begin with the first element; the last block is padded. */
size_t lki_rounded_bytes(lk_dtype rounded, size_t count);

/* Converts FP32 to these bytes. */
void lki_quantise(lk_dtype dtype, size_t count, const float *from, void *to);
/* Converts these bytes to FP32. */
void lki_dequantise(lk_dtype dtype, size_t count, const void *from, float *to);

/* Returns the loops for rounding to LK_F16, LK_BF16, LK_I8 or LK_I4.  `store` produces the bytes to
 * send, and `load` reads them.  `rounded` and `rounded_sum` produce FP32.  With LK_I8 and LK_I4
 * vectors must begin with a block. */
const lki_type_loops *lki_rounding_loops(lk_dtype rounded);

/* Indexed by dtype == LK_I4. */
extern const lki_type_loops lki_quantise_portable[2];
#if defined(__x86_64__)
extern const lki_type_loops lki_quantise_avx2[2], lki_quantise_avx512[2];
#endif

#endif

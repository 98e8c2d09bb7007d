/* device/quantise.h -- rounding to the types of encoders (encoder.h), for users of encoders.
 *
 * A quantised type divides a vector into blocks of LKI_QUANTISED consecutive FP32 elements; the
 * last block may be shorter.  A quantised block has one factor, and one integer per element.  See
 * blocks.h.
 */
#ifndef LKI_DEVICE_QUANTISE_H
#define LKI_DEVICE_QUANTISE_H

#include "device/encoder.h"

/* Returns true if elements are rounded in blocks of LKI_QUANTISED, which must not be divided. */
bool lki_quantises(lk_dtype dtype);

/* Returns the number of bytes in which `count` elements rounded to `rounded` are sent.  Blocks
 * begin with the first element; the last block is padded. */
size_t lki_rounded_bytes(lk_dtype rounded, size_t count);

/* Converts FP32 to the lki_rounded_bytes() bytes in which the elements are sent. */
void lki_quantise(lk_dtype dtype, size_t count, const float *from, void *to);
/* Converts the bytes in which elements are sent to FP32. */
void lki_dequantise(lk_dtype dtype, size_t count, const void *from, float *to);

/* Returns the loops for rounding to a type that has an encoder.  `store` produces the bytes to
 * send, and `load` reads them.  `rounded` and `rounded_sum` produce FP32.  With a quantised type,
 * vectors must begin with a block. */
const lki_type_loops *lki_rounding_loops(lk_dtype rounded);

#endif

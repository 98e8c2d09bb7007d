/* tensor/attention_cache.h -- attention to earlier positions, whose keys and values are in a cache.
 *
 * The shape's rows are at the positions from cache.first on, of at most cache.positions.  Their
 * keys and values are appended to the cache.  y has the bits of the same rows of a call of
 * lki_attention() with all rows from position 0 on.  There is no dropout.  `scratch` is that of
 * lki_attention().
 *
 * In bf16 there is an exception, because chunks of 32 positions are summed: a call with all rows
 * adds +0 times the later values of a chunk, which the cache does not have yet.  There y is NaN if
 * such a value is infinite or NaN, and a zero whose sum has underflowed may have another sign.
 */
#ifndef LKI_TENSOR_ATTENTION_CACHE_H
#define LKI_TENSOR_ATTENTION_CACHE_H

#include "tensor/ops.h"

typedef struct {
    void  *memory; /* zeros at first */
    size_t first, positions;
} lki_attention_cache;

/* Returns the bytes of a cache for as many positions as the shape has rows. */
size_t lki_attention_cache_bytes(const lki_attention_shape *shape);
size_t lki_attention_bf16_cache_bytes(const lki_attention_shape *shape);

void lki_attention_cached(lk_exec *exec, const lki_attention_shape *shape, lki_attention_input x,
                          lki_attention_cache cache, float *y, void *scratch);
void lki_attention_bf16_cached(lk_exec *exec, const lki_attention_shape *shape,
                               lki_attention_input x, lki_attention_cache cache, uint16_t *y,
                               void *scratch);

#endif

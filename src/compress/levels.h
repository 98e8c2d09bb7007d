/* compress/levels.h -- random rounding to a few levels, and their bits in a message.
 *
 * An element is its sign and a level from 0 to `levels`.  It stands for level x scale / levels.  A
 * level is one of the two that are next to the element, at random, so that its mean over all seeds
 * is the element.
 *
 * The bits of 32 elements are words, one for each bit of an element: the signs, then the bits of
 * the levels, the lowest first.  So a message has exactly lki_level_bits() bits for an element.
 */
#ifndef LKI_COMPRESS_LEVELS_H
#define LKI_COMPRESS_LEVELS_H

#include "compress/chosen.h"
#include "compress/scan.h"

enum { LKI_LEVELS_MAX = 127 };

/* Returns the bits of an element: 1 + ceil(log2(levels + 1)). */
static inline uint32_t lki_level_bits(uint32_t levels)
{
    return 33 - (uint32_t)__builtin_clz(levels);
}

/* Returns the words of the bits of `count` elements. */
static inline size_t lki_level_words(size_t count, uint32_t levels)
{
    return (count + LKI_LEVEL_BLOCK - 1) / LKI_LEVEL_BLOCK * lki_level_bits(levels);
}

/* Returns the scale for a largest magnitude or norm that all elements are within.  It is NaN if an
 * element is not finite, which the sum of squares says, and at most FLT_MAX otherwise. */
float lki_level_scale(double squares, double scale);

/* Writes the bits of elements [first, first + count), where `first` is a multiple of 32, and
 * subtracts what they stand for.  values[0] is element `first`.  With a scale of NaN all elements
 * stand for NaN. */
void lki_levels_put(const lk_compression *options, const lk_compress_key *key, uint32_t levels,
                    float scale, size_t first, size_t count, float *values, uint32_t *bits);

/* Writes what elements [first, first + count) stand for to `out`. */
void lki_levels_get(uint32_t levels, float scale, const uint32_t *bits, size_t first, size_t count,
                    float *out);

#endif

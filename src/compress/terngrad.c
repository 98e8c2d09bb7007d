/* terngrad.c -- terngrad: sends -1, 0 or 1 for an element, and a scale for the tensor (Wen et al.,
 * TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning, 2017,
 * algorithm 1 with layer-wise ternarizing and gradient clipping).
 *
 * The scale is the largest magnitude, but at most `clip` standard deviations, at which magnitudes
 * are cut off.  An element is the scale with its sign, with the probability of its share of the
 * scale, and 0 otherwise.  So the mean over all seeds is the element, after clipping.
 *
 * The standard deviation is the root of the mean square, as for gradients with the mean 0.  So a
 * tensor of one element, or of equal ones, is not cut off.
 *
 * A message is the scale, then two bits for an element.  The scale is NaN if an element is not
 * finite, and then all elements are decoded as NaN.
 *
 * Cost: two passes, because rounding needs the scale, and a random number for each element.
 */
#include <math.h>

#include "compress/levels.h"
#include "compress/table.h"

static size_t bytes(const lk_compression *options, const lk_compress_key *key, uint32_t round)
{
    (void)options, (void)round;
    size_t count = lki_compress_count(key);
    return count == 0 || count > UINT32_MAX ? 0 : 4 * (1 + lki_level_words(count, 1));
}

static void encode(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                   const lk_compress_part *part, const void *before, float *values, void *message)
{
    (void)round, (void)part, (void)before;
    size_t    count = lki_compress_count(key);
    float    *scale = message, largest;
    uint32_t *bits  = (uint32_t *)message + 1;
    double    squares = lki_scan_best()->squares(count, values, &largest);
    double    limit   = options->clip * sqrt(squares / (double)count);
    *scale = lki_level_scale(squares, (double)largest < limit ? (double)largest : limit);
    lki_levels_put(options, key, 1, *scale, 0, count, values, bits);
}

static void decode(const lk_compression *options, const lk_compress_key *key,
                   const void *const *messages, size_t first, size_t count, float *out)
{
    (void)options, (void)key;
    const float    *scale = messages[0];
    const uint32_t *bits  = (const uint32_t *)messages[0] + 1;
    lki_levels_get(1, *scale, bits, first, count, out);
}

const lk_compressor lki_compressor_terngrad = {
    .name     = "terngrad",
    .text     = "-1, 0 or 1 for every element, at random, and a scale",
    .combine  = LK_COMBINE_GATHER,
    .rounds   = 1,
    .feedback = LK_FEEDBACK_OFF, /* unbiased */
    .bytes    = bytes,
    .encode   = encode,
    .decode   = decode,
};

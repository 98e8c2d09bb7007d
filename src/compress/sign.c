/* sign.c -- sign: sends one bit for an element, and the mean magnitude of the tensor.
 *
 * EF-signSGD (Karimireddy et al., Error Feedback Fixes SignSGD and other Gradient Compression
 * Schemes, 2019, algorithm 1 with the scaled sign).  1-bit SGD (Seide et al., 2014) has the same
 * idea, with two scales a column.
 *
 * A message is the scale, then the bits, 32 in a word: 1 where the element is below 0.  Zeros of
 * both signs are positive.  An element is decoded as +scale or -scale; the residual is the element
 * less that.
 *
 * The scale is a sum in FP64: blocks of 4096 elements in 16 lanes, then the canonical tree over the
 * blocks.  It is not finite if an element is not finite, and then no decoded element is.
 *
 * Cost: two passes, because the residual needs the scale.
 */
#include <string.h>

#include "base/memory.h"
#include "compress/chosen.h"
#include "compress/scan.h"
#include "compress/signs.h"
#include "compress/table.h"

enum { WORD = 32 };

/* ---- Messages of signs -------------------------------------------------------------------- */

size_t lki_signs_bytes(const lk_compression *options, const lk_compress_key *key, uint32_t round)
{
    (void)options, (void)round;
    size_t count = lki_compress_count(key);
    return count == 0 ? 0 : sizeof(float) + lki_round_up(count, WORD) / WORD * sizeof(uint32_t);
}

void lki_signs_decode(const lk_compression *options, const lk_compress_key *key,
                      const void *const *messages, size_t first, size_t count, float *out)
{
    (void)options, (void)key;
    const float    *number = messages[0];
    const uint32_t *bits   = (const uint32_t *)messages[0] + 1;
    lki_scan_best()->spread(bits, first, count, *number, out);
}

double lki_signs_of_block(const float *values, size_t at, size_t count, void *message)
{
    uint32_t *bits = (uint32_t *)message + 1;
    return lki_scan_best()->signs(lki_min(LKI_SIGNS_BLOCK, count - at), values + at,
                                  bits + at / WORD);
}

void lki_signs_set(void *message, float number)
{
    const uint32_t nan = 0x7fc00000;
    if (number != number)
        memcpy(message, &nan, sizeof nan);
    else
        memcpy(message, &number, sizeof number);
}

/* ---- sign --------------------------------------------------------------------------------- */

static void encode(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                   const lk_compress_part *part, const void *before, float *values, void *message)
{
    (void)options, (void)round, (void)part, (void)before;
    size_t count = lki_compress_count(key);
    lki_block_tree sums = { .depth = 0 };
    for (size_t at = 0; at < count; at += LKI_SIGNS_BLOCK)
        lki_block_tree_push(&sums, at / LKI_SIGNS_BLOCK,
                            lki_signs_of_block(values, at, count, message));
    lki_signs_set(message, (float)(lki_block_tree_root(&sums) / (double)count));
    lki_scan_best()->subtract(count, *(const float *)message, values);
}

const lk_compressor lki_compressor_sign = {
    .name    = "sign",
    .text    = "the sign of every element, and the mean magnitude of the tensor",
    .combine = LK_COMBINE_GATHER,
    .rounds  = 1,
    .bytes   = lki_signs_bytes,
    .encode  = encode,
    .decode  = lki_signs_decode,
};

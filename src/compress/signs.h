/* compress/signs.h -- messages of a number and the signs of all elements, for sign.c and vote.c.
 *
 * A message is a float, then the signs, 32 in a word: 1 where the element is below 0.  An element
 * is decoded as +number or -number.
 */
#ifndef LKI_COMPRESS_SIGNS_H
#define LKI_COMPRESS_SIGNS_H

#include "lockstep/compress.h"

enum { LKI_SIGNS_BLOCK = 4096 }; /* elements whose magnitudes are summed at once */

/* Functions of lk_compressor; defined in sign.c. */
size_t lki_signs_bytes(const lk_compression *options, const lk_compress_key *key, uint32_t round);
void   lki_signs_decode(const lk_compression *options, const lk_compress_key *key,
                        const void *const *messages, size_t first, size_t count, float *out);

/* Writes the signs of a block, which is number `at` / LKI_SIGNS_BLOCK of a tensor of `count`
 * elements, and returns the sum of its magnitudes. */
double lki_signs_of_block(const float *values, size_t at, size_t count, void *message);

/* Sums in the canonical tree over blocks.  Holds the left siblings whose right siblings are not
 * complete yet; levels are the set bits of the number of blocks. */
typedef struct {
    double   sums[64];
    uint32_t depth;
} lki_block_tree;

/* Adds the sum of block number `index`. */
static inline void lki_block_tree_push(lki_block_tree *t, size_t index, double sum)
{
    for (; (index & 1) != 0; index >>= 1)
        sum = t->sums[--t->depth] + sum;
    t->sums[t->depth++] = sum;
}

static inline double lki_block_tree_root(const lki_block_tree *t)
{
    double sum = t->depth > 0 ? t->sums[t->depth - 1] : 0;
    for (uint32_t i = t->depth; i > 1; i--)
        sum = t->sums[i - 2] + sum;
    return sum;
}

/* Sets the number of a message.  All values that are not numbers become one NaN. */
void lki_signs_set(void *message, float number);

#endif

/* compress/chosen.h -- the number of elements that topk and randomk send. */
#ifndef LKI_COMPRESS_CHOSEN_H
#define LKI_COMPRESS_CHOSEN_H

#include "lockstep/compress.h"

static inline size_t lki_compress_count(const lk_compress_key *key)
{
    return key->rows * key->cols;
}

/* Returns ceil(ratio x elements), at least 1.  The factor undoes the rounding of the ratio and of
 * the product, so that 0.01 of 700 is 7. */
static inline size_t lki_chosen(const lk_compression *options, const lk_compress_key *key)
{
    size_t count  = lki_compress_count(key);
    double wanted = options->ratio * (double)count * (1 - 0x1p-50);
    size_t chosen = (size_t)wanted;
    chosen += (double)chosen < wanted;
    return chosen < 1 ? 1 : chosen > count ? count : chosen;
}

#endif

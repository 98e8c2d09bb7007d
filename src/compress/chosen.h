/* compress/chosen.h -- numbers of elements: of a tensor, of its parts, and those that topk and
 * randomk send. */
#ifndef LKI_COMPRESS_CHOSEN_H
#define LKI_COMPRESS_CHOSEN_H

#include "lockstep/compress.h"

static inline size_t lki_compress_count(const lk_compress_key *key)
{
    return key->rows * key->cols;
}

enum { LKI_PART = 1 << 16 }; /* elements of a part, about: they fit into a core's cache */

/* Finds part `index` of `count` elements in which `unit` neighbours stay together.  Returns false
 * after the last. */
static inline bool lki_part_of(size_t count, size_t unit, uint32_t index, lk_compress_part *out)
{
    const size_t most = LKI_PART / unit > 0 ? LKI_PART / unit * unit : unit;
    const size_t first = index * most;
    if (first >= count)
        return false;
    out->first  = first;
    out->count  = count - first < most ? count - first : most;
    out->rows   = 1;
    out->stride = out->count;
    return true;
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

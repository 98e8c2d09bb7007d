/* onebit.c -- momenta in one bit for an element, for onebit-adam.
 *
 * 1-bit Adam (Tang et al., 1-bit Adam: Communication Efficient Large-Scale Training with Adam's
 * Convergence Speed, 2021, algorithm 1), with the scale of DeepSpeed's code: the norm over the root
 * of the number of elements.  Each group encodes
 *
 *     beta1 momentum + (1 - beta1) g + error
 *
 * where the momentum is common to all groups.  What the message does not say is the next error.
 *
 * One bit has no 0.  An element whose second moment was 0 when it was frozen is absent: its
 * momentum and error are 0, and no scale counts it.
 *
 * The scale of a group is that of a tensor.  Its squares are summed in FP64: blocks of 4096
 * elements in 16 lanes, then the canonical tree over the blocks.
 */
#include <math.h>

#include "base/memory.h"
#include "compress/chosen.h"
#include "compress/rules.h"
#include "compress/scan.h"
#include "compress/signs.h"

static size_t count_present(size_t count, const uint32_t *absent)
{
    size_t present = count;
    for (size_t i = 0; i < (count + 31) / 32; i++)
        present -= (size_t)__builtin_popcount(absent[i]);
    return present;
}

void lki_onebit_encode(size_t count, const float *values, const uint32_t *absent, void *message)
{
    const size_t   present = count_present(count, absent);
    lki_block_tree sums    = { .depth = 0 };
    for (size_t at = 0; at < count; at += LKI_SIGNS_BLOCK) {
        float largest;
        (void)lki_signs_of_block(values, at, count, message);
        lki_block_tree_push(&sums, at / LKI_SIGNS_BLOCK,
                            lki_scan_best()->squares(lki_min(LKI_SIGNS_BLOCK, count - at),
                                                     values + at, &largest));
    }
    lki_signs_set(message, present == 0
                               ? 0
                               : (float)sqrt(lki_block_tree_root(&sums) / (double)present));
}

static void encode(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                   const lk_compress_part *part, const void *before, float *values, void *message)
{
    const size_t count = lki_compress_count(key);
    (void)options, (void)round, (void)part;
    lki_onebit_encode(count, values, before, message);
    lki_scan_best()->subtract(count, *(const float *)message, values);
}

const lk_compressor lki_compressor_onebit = {
    .name    = "onebit",
    .text    = "the sign of every element of the momentum, and its root mean square",
    .combine = LK_COMBINE_GATHER,
    .rounds  = 1,
    .bytes   = lki_signs_bytes,
    .encode  = encode,
    .decode  = lki_signs_decode,
};

/* ---- The rule ---------------------------------------------------------------------------- */

static void before_encoding(const lki_kept *k, float *values)
{
    const float beta = k->momentum, rest = 1 - beta, samples = (float)k->samples;
    for (size_t i = 0; i < k->count; i++) {
        if (k->samples == 0 || lki_onebit_lacks(k->absent, i))
            values[i] = 0;
        else
            values[i] = samples * (beta * k->common[i] + rest * (values[i] / samples) +
                                   k->kept[0][i]);
    }
}

static void after_encoding(const lki_kept *k, const float *residual)
{
    const float samples = (float)k->samples;
    for (size_t i = 0; i < k->count && k->samples > 0; i++)
        k->kept[0][i] = lki_onebit_lacks(k->absent, i) ? 0 : residual[i] / samples;
}

const lki_rule lki_rule_onebit = {
    .name         = "onebit",
    .text         = "the residual of the momentum is added to the next one",
    .kept         = { "error" },
    .has_momentum = true,
    .estimates    = true,
    .before       = before_encoding,
    .after        = after_encoding,
};

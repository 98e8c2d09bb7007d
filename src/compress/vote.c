/* vote.c -- vote: groups vote on the sign of every element (Bernstein et al., signSGD with Majority
 * Vote is Communication Efficient and Fault Tolerant, 2019, algorithm 1).
 *
 * A message is a weight, then the bits, 32 in a word: 1 where the element is below 0.  Zeros of
 * both signs vote for +.  The weight is 1.  It is 0 if all elements are 0, as in a group without
 * samples: then all bits are 1, so that the group's votes are -0.  It is NaN if an element is not
 * finite.
 *
 * Votes are summed, which is exact.  The mean gradient is then +1 or -1: the sign of the sum, + for
 * a tie.  It is 0 if no group has voted, which a sum of -0 says.
 *
 * Cost: one pass, and one bit for an element.
 */
#include <math.h>
#include <string.h>

#include "compress/chosen.h"
#include "compress/signs.h"
#include "compress/table.h"

static void encode(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                   const lk_compress_part *part, const void *before, float *values, void *message)
{
    (void)options, (void)round, (void)part, (void)before;
    size_t count = lki_compress_count(key);
    double sum   = 0;
    for (size_t at = 0; at < count; at += LKI_SIGNS_BLOCK)
        sum += lki_signs_of_block(values, at, count, message);
    lki_signs_set(message, !isfinite(sum) ? NAN : sum > 0 ? 1 : 0);
    if (sum == 0)
        memset((float *)message + 1, 0xff, lki_signs_bytes(options, key, 0) - sizeof(float));
}

static void conclude(const lk_compression *options, const lk_compress_key *key, uint64_t samples,
                     size_t count, float *sums)
{
    (void)options, (void)key;
    const float one = (float)samples;
    for (size_t i = 0; i < count; i++) {
        const bool nobody = sums[i] == 0 && signbit(sums[i]);
        if (!isnan(sums[i]))
            sums[i] = nobody ? 0 : sums[i] < 0 ? -one : one;
    }
}

const lk_compressor lki_compressor_vote = {
    .name     = "vote",
    .text     = "the sign of every element, by the majority of groups",
    .combine  = LK_COMBINE_GATHER,
    .rounds   = 1,
    .feedback = LK_FEEDBACK_SIGNUM,
    .bytes    = lki_signs_bytes,
    .encode   = encode,
    .decode   = lki_signs_decode,
    .conclude = conclude,
};

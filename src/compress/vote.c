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

#include "base/memory.h"
#include "compress/chosen.h"
#include "compress/scan.h"
#include "compress/table.h"

enum { BLOCK = 4096, WORD = 32 };

static size_t bytes(const lk_compression *options, const lk_compress_key *key, uint32_t round)
{
    (void)options, (void)round;
    size_t count = lki_compress_count(key);
    return count == 0 ? 0 : 4 + lki_round_up(count, WORD) / WORD * 4;
}

static void encode(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                   const void *before, float *values, void *message)
{
    (void)options, (void)round, (void)before;
    const uint32_t nan   = 0x7fc00000; /* the one that is sent for all */
    size_t         count = lki_compress_count(key);
    float         *weight = message;
    uint32_t      *bits   = (uint32_t *)message + 1;
    double         sum    = 0;
    for (size_t at = 0; at < count; at += BLOCK)
        sum += lki_scan_best()->signs(lki_min(BLOCK, count - at), values + at, bits + at / WORD);
    *weight = sum > 0;
    if (!isfinite(sum))
        memcpy(weight, &nan, sizeof nan);
    if (sum == 0)
        memset(bits, 0xff, lki_round_up(count, WORD) / WORD * sizeof *bits);
}

static void decode(const lk_compression *options, const lk_compress_key *key,
                   const void *const *messages, size_t first, size_t count, float *out)
{
    (void)options, (void)key;
    const float    *weight = messages[0];
    const uint32_t *bits   = (const uint32_t *)messages[0] + 1;
    lki_scan_best()->spread(bits, first, count, *weight, out);
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
    .bytes    = bytes,
    .encode   = encode,
    .decode   = decode,
    .conclude = conclude,
};

/* qsgd.c -- qsgd: sends each element's sign and level, and the norm of each bucket (Alistarh et
 * al., QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding, 2017).
 *
 * A bucket is 512 neighbouring elements of a tensor by default.  An element is rounded at random to
 * a multiple of norm / levels, so that the mean over all seeds is the element.  The norm is L2: it
 * bounds the number of levels above 0 in a bucket, but needs more levels than the largest magnitude
 * would for the same error.  Levels have a fixed number of bits, not Elias codes: so the bytes of a
 * message are known without values.
 *
 * A message is the norms of all buckets, then the bits.  A bucket with an element that is not
 * finite has the norm NaN, and then all its elements are decoded as NaN.
 *
 * Cost: two passes over a bucket, which is in a cache, and a random number for each element.
 */
#include <math.h>

#include "base/memory.h"
#include "compress/levels.h"
#include "compress/table.h"

static size_t buckets_of(const lk_compression *options, const lk_compress_key *key)
{
    return (lki_compress_count(key) + options->bucket - 1) / options->bucket;
}

static size_t bytes(const lk_compression *options, const lk_compress_key *key, uint32_t round)
{
    (void)round;
    size_t count = lki_compress_count(key);
    if (count == 0 || count > UINT32_MAX)
        return 0;
    return 4 * (buckets_of(options, key) + lki_level_words(count, options->levels));
}

/* A part is whole buckets. */
static bool part(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                 uint32_t index, lk_compress_part *out)
{
    (void)round;
    return lki_part_of(lki_compress_count(key), options->bucket, index, out);
}

static void encode(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                   const lk_compress_part *part, const void *before, float *values, void *message)
{
    (void)round, (void)before;
    float    *norms = message;
    uint32_t *bits  = (uint32_t *)message + buckets_of(options, key);
    size_t    end   = part->first + part->count;
    for (size_t first = part->first; first < end; first += options->bucket) {
        size_t b = first / options->bucket, n = lki_min(options->bucket, end - first);
        float  largest;
        double squares = lki_scan_best()->squares(n, values + first, &largest);
        norms[b]       = lki_level_scale(squares, sqrt(squares));
        lki_levels_put(options, key, options->levels, norms[b], first, n, values + first, bits);
    }
}

static void decode(const lk_compression *options, const lk_compress_key *key,
                   const void *const *messages, size_t first, size_t count, float *out)
{
    const float    *norms = messages[0];
    const uint32_t *bits  = (const uint32_t *)messages[0] + buckets_of(options, key);
    for (size_t done = 0; done < count;) {
        size_t b = (first + done) / options->bucket;
        size_t n = lki_min(count - done, (b + 1) * options->bucket - first - done);
        lki_levels_get(options->levels, norms[b], bits, first + done, n, out + done);
        done += n;
    }
}

const lk_compressor lki_compressor_qsgd = {
    .name     = "qsgd",
    .text     = "a few levels, rounded at random, and the norms of buckets",
    .combine  = LK_COMBINE_GATHER,
    .rounds   = 1,
    .feedback = LK_FEEDBACK_OFF, /* unbiased */
    .bytes    = bytes,
    .part     = part,
    .encode   = encode,
    .decode   = decode,
};

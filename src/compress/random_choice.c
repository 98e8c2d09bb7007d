/* random_choice.c -- randomk: sends k = ceil(ratio x n) elements at random places.
 *
 * The places depend on the seed, the step and the tensor, and are the same for all groups.  So a
 * message is k values without indices, and messages are summed like vectors (Stich et al.,
 * Sparsified SGD with Memory, 2018).  Values are sent as they are; the residual is 0 where an
 * element was sent, and the element elsewhere.
 *
 * The places are the first k of a permutation of [0, n), which is computed, not stored: a Feistel
 * network (base/feistel.h), as for the order of samples.  Its rounds mix with keys from Philox
 * instead of running Philox: nobody gains by predicting the places.
 *
 * A tensor with a value that is not finite has one in its message: if it was not chosen, it takes
 * the place of the first chosen one.
 *
 * Cost: one pass over the tensor for such values, and k permutations.  A range is decoded by
 *       permuting the k places, or by the inverse of all places of the range, whichever are fewer.
 */
#include <string.h>

#include "base/feistel.h"
#include "base/memory.h"
#include "base/rng.h"
#include "compress/chosen.h"
#include "compress/scan.h"
#include "compress/table.h"

enum { BATCH = 64, LARGEST_FINITE = 0x7f7fffff };

typedef struct {
    uint32_t count, half; /* elements; width of a half in bits */
    uint32_t keys[LKI_FEISTEL_ROUNDS];
} network;

static network network_of(const lk_compression *options, const lk_compress_key *key)
{
    network n = { .count = (uint32_t)lki_compress_count(key) };
    n.half    = lki_feistel_half(n.count);
    for (uint32_t i = 0; i < LKI_FEISTEL_ROUNDS; i++)
        n.keys[i] = lki_philox(options->seed, LKI_RNG_CHOICE, (uint32_t)key->step,
                               (uint32_t)(key->step >> 32), key->tensor, i / 4)
                        .word[i % 4];
    return n;
}

/* Mixes a half, which has at most 16 bits.  The multipliers are those of XXH32. */
static uint32_t mix(const void *context, uint32_t half, uint32_t round)
{
    uint32_t x = (half ^ ((const network *)context)->keys[round]) * 0x9E3779B1u;
    x          = (x ^ x >> 15) * 0x85EBCA77u;
    return x ^ x >> 16;
}

/* Returns the place of element `index` of the permutation. */
static uint32_t place_of(const network *n, uint32_t index)
{
    return (uint32_t)lki_feistel_place(n->count, n->half, mix, n, index);
}

/* Writes the places of elements [first, end), but of no more than BATCH.  Returns their number.
 * Batches let the processor read several places at a time. */
static size_t places_of(const network *n, size_t first, size_t end, uint32_t places[BATCH])
{
    size_t count = lki_min(end - first, BATCH);
    for (size_t i = 0; i < count; i++)
        places[i] = place_of(n, (uint32_t)(first + i));
    return count;
}

/* Returns the index of which `place` is the place. */
static uint32_t index_of(const network *n, uint32_t place)
{
    return (uint32_t)lki_feistel_element(n->count, n->half, mix, n, place);
}

static size_t bytes(const lk_compression *options, const lk_compress_key *key, uint32_t round)
{
    (void)round;
    size_t count = lki_compress_count(key);
    return count == 0 || count > UINT32_MAX ? 0 : 4 * lki_chosen(options, key);
}

static void encode(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                   const lk_compress_part *part, const void *before, float *values, void *message)
{
    (void)round, (void)part, (void)before;
    network  n     = network_of(options, key);
    size_t   count = n.count, k = lki_chosen(options, key), found = 0;
    float   *sent  = message;
    uint32_t places[BATCH], place;
    for (size_t i = 0; i < k; i += BATCH) {
        size_t batch = places_of(&n, i, k, places);
        for (size_t j = 0; j < batch; j++)
            __builtin_prefetch(&values[places[j]], 1);
        for (size_t j = 0; j < batch; j++) {
            sent[i + j]       = values[places[j]];
            values[places[j]] = 0;
        }
    }
    (void)lki_scan_best()->above(values, 0, count, LARGEST_FINITE, &place, &found, 1);
    if (found > 0)
        sent[0] = values[place];
}

static void decode(const lk_compression *options, const lk_compress_key *key,
                   const void *const *messages, size_t first, size_t count, float *out)
{
    network      n    = network_of(options, key);
    size_t       k    = lki_chosen(options, key);
    const float *sent = messages[0];
    uint32_t     places[BATCH];
    memset(out, 0, count * sizeof *out);
    if (k <= count)
        for (size_t i = 0; i < k; i += BATCH) {
            size_t batch = places_of(&n, i, k, places);
            for (size_t j = 0; j < batch; j++)
                if (places[j] >= first && places[j] - first < count)
                    out[places[j] - first] = sent[i + j];
        }
    else
        for (size_t i = 0; i < count; i++) {
            size_t index = index_of(&n, (uint32_t)(first + i));
            if (index < k)
                out[i] = sent[index];
        }
}

const lk_compressor lki_compressor_randomk = {
    .name    = "randomk",
    .text    = "elements at random places, the same for all groups",
    .combine = LK_COMBINE_TREE,
    .rounds  = 1,
    .selects = true,
    .bytes   = bytes,
    .encode  = encode,
    .decode  = decode,
};

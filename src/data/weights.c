/* weights.c -- numbers for samples: how often they are drawn, what they count for in the loss.
 *
 * In the loss: a weight is a whole number of 65536ths, and a sample is as good as so many, so that
 * weights that are all the same give the bits of none where they are powers of two, and sums of
 * weights are exact.  4 bytes a sample.
 *
 * Samples drawn with replacement, each as often as its weight says:
 * The weights are added up once, one after the other, in the order of the training part; what they
 * have come to after each sample is kept, 8 bytes a sample.  Position p of epoch e draws 53 bits
 * for (seed, e, p), as a fraction of the whole, and takes the sample in whose share that falls, by
 * bisection.  So nothing is stored for a position, any of them is found at once, and a sample of
 * weight 0, whose share is empty, never comes.  (The alias method would save the bisection, some
 * tens of nanoseconds, and cost another 8 bytes a sample.)
 */
#include "data/source.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "data/files.h"

enum { LOSS_WEIGHT_MAX = 256 }; /* and so 2^24 steps, which FP32 has all of */

typedef struct {
    double *values; /* of all samples of the files */
    size_t  count, capacity;
} weights;

static lk_status check_weight(double value, const char *path, size_t index)
{
    if (value >= 0 && isfinite(value))
        return LK_OK;
    return lk_fail(LK_EFORMAT, "'%s': weight %zu is %g; weights are finite and at least 0", path,
                   index, value);
}

static lk_status read_npy(weights *out, const lki_map *map, const char *path)
{
    lki_npy array;
    LK_TRY(lki_npy_parse(&array, map->data, map->bytes, path));
    if (array.rank != 1)
        return lk_fail(LK_EFORMAT, "'%s' has %u dimensions; weights have one", path, array.rank);
    LK_TRY(LKI_NEW(&out->values, array.count, "weights"));
    out->count = array.count;
    for (size_t i = 0; i < array.count; i++) {
        out->values[i] = (double)lki_npy_number(&array, i);
        LK_TRY(check_weight(out->values[i], path, i));
    }
    return LK_OK;
}

/* A number between white space. */
static lk_status add_word(weights *out, const uint8_t *word, size_t length, const char *path)
{
    char   text[64] = "", *end = text;
    double value    = 0;
    if (length < sizeof text) {
        memcpy(text, word, length);
        value = strtod(text, &end);
    }
    if (length >= sizeof text || *end != '\0' || end == text)
        return lk_fail(LK_EFORMAT, "'%s': weight %zu is '%.*s', which is no number", path,
                       out->count, (int)lki_min(length, 40), (const char *)word);
    LK_TRY(check_weight(value, path, out->count));
    LK_TRY(lki_reserve((void **)&out->values, &out->capacity, out->count, sizeof *out->values,
                       "weights"));
    out->values[out->count++] = value;
    return LK_OK;
}

static bool is_space(uint8_t c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static lk_status read_text(weights *out, const lki_map *map, const char *path)
{
    for (size_t at = 0; at < map->bytes;) {
        size_t end = at;
        while (end < map->bytes && !is_space(map->data[end]))
            end++;
        if (end > at)
            LK_TRY(add_word(out, map->data + at, end - at, path));
        at = end + 1;
    }
    return LK_OK;
}

/* The data set's own content hash becomes one of data and weights. */
static lk_status add_hash(lk_dataset *dataset, const lki_map *map)
{
    char hashes[2][33];
    memcpy(hashes[0], dataset->info.content_hash, sizeof hashes[0]);
    lki_xxh3_128(map->data, map->bytes, hashes[1]);
    return lki_hash_of_hashes(dataset->info.content_hash, hashes, 2);
}

/* Of the training part's samples. */
static lk_status add_up(lk_dataset *dataset, const weights *all, const char *path)
{
    uint64_t n   = dataset->info.train_count;
    double   sum = 0;
    LK_ASSERT(all->values != NULL); /* one for each sample */
    LK_TRY(LKI_NEW(&dataset->cumulative, n, "weights"));
    for (uint64_t i = 0; i < n; i++)
        dataset->cumulative[i] = sum += all->values[lki_sample_place(dataset, false, i)];
    if (!(sum > 0) || !isfinite(sum))
        return lk_fail(LK_EFORMAT, "'%s': the weights of the %llu samples to train on come to %g",
                       path, (unsigned long long)n, sum);
    return LK_OK;
}

/* In whole 65536ths. */
static lk_status count_for_loss(lk_dataset *dataset, const weights *all, const char *path)
{
    uint64_t sum = 0;
    LK_ASSERT(all->values != NULL);
    LK_TRY(LKI_NEW(&dataset->loss_weights, all->count, "weights in the loss"));
    for (size_t i = 0; i < all->count; i++) {
        if (all->values[i] > LOSS_WEIGHT_MAX)
            return lk_fail(LK_EFORMAT, "'%s': weight %zu is %g; in the loss they are at most %d; "
                                       "divide all by the same number, which changes nothing else",
                           path, i, all->values[i], LOSS_WEIGHT_MAX);
        dataset->loss_weights[i] = (uint32_t)(all->values[i] * LK_WEIGHT_ONE + 0.5);
    }
    for (uint64_t i = 0; i < dataset->info.train_count; i++)
        sum += dataset->loss_weights[lki_sample_place(dataset, false, i)];
    if (sum == 0)
        return lk_fail(LK_EFORMAT, "'%s': no sample to train on has a weight of 1/131072 or more",
                       path);
    return LK_OK;
}

/* For drawing, or for the loss. */
static lk_status open_weights(lk_dataset *dataset, const char *spec, const char *path, bool drawing)
{
    static const uint8_t magic[] = { 0x93, 'N', 'U', 'M', 'P', 'Y' };
    weights              all     = { NULL, 0, 0 };
    lki_map              map;
    if (dataset->info.tokens)
        return lk_fail(LK_EINVAL, "%s are of samples with labels; '%s' has tokens",
                       drawing ? "--weights" : "--loss-weights", spec);
    LK_TRY(lki_map_open(&map, path));
    bool      npy    = map.bytes >= sizeof magic && memcmp(map.data, magic, sizeof magic) == 0;
    lk_status status = npy ? read_npy(&all, &map, path) : read_text(&all, &map, path);
    if (status == LK_OK && all.count != dataset->total - dataset->held_out)
        status = lk_fail(LK_EFORMAT, "'%s' has %zu weights, but '%s' has %llu samples", path,
                         all.count, spec,
                         (unsigned long long)(dataset->total - dataset->held_out));
    if (status == LK_OK)
        status = drawing ? add_up(dataset, &all, path) : count_for_loss(dataset, &all, path);
    if (status == LK_OK)
        status = add_hash(dataset, &map);
    lki_map_close(&map);
    lki_free(all.values);
    return status;
}

lk_status lki_weights_open(lk_dataset *dataset, const char *spec)
{
    const lk_dataset_options *options = &dataset->options;
    if (options->weights != NULL)
        LK_TRY(open_weights(dataset, spec, options->weights, true));
    if (options->loss_weights != NULL)
        LK_TRY(open_weights(dataset, spec, options->loss_weights, false));
    return LK_OK;
}

/* The permutation's numbers have half the bits of a sample above the round in their last word, at
 * least one; here that is 0, so the two never share any. */
uint64_t lki_weighted_at(const lk_dataset *dataset, uint64_t seed, uint64_t epoch,
                         uint64_t position)
{
    lki_random random = lki_philox(seed, LKI_RNG_ORDER, (uint32_t)position,
                                   (uint32_t)(position >> 32), (uint32_t)epoch,
                                   (uint32_t)(epoch >> 32) & 0xff);
    uint64_t bits  = (uint64_t)random.word[0] << 21 | random.word[1] >> 11;
    uint64_t n     = dataset->info.train_count;
    double   point = (double)bits * 0x1p-53 * dataset->cumulative[n - 1];
    uint64_t low   = 0, high = n - 1; /* the first sample whose sum is above the point */
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (dataset->cumulative[middle] > point)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

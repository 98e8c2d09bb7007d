/* weights.c -- weights of samples, for drawing samples and for the loss.
 *
 * In the loss, a weight is an integer number of 65536ths, and a sample counts that many times.
 * Sums of weights are therefore exact, and equal weights that are powers of two give the bits of an
 * unweighted run.  Memory: 4 bytes per sample.
 *
 * For drawing with replacement, the weights of the training part are summed once, in order, and all
 * prefix sums are stored, 8 bytes per sample.  Position p of epoch e draws 53 bits by (seed, e, p),
 * as a fraction of the total, and finds by bisection the sample whose interval contains it.  So
 * nothing is stored per position, every position is computed directly, and a sample of weight 0,
 * whose interval is empty, never occurs.  (The alias method would save the bisection, some tens of
 * nanoseconds, and cost another 8 bytes per sample.)
 */
#include "data/source.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "data/files.h"

enum { LOSS_WEIGHT_MAX = 256 }; /* at most 2^24 units of 1 / LK_WEIGHT_ONE, which FP32 represents
                                 * exactly */

typedef struct {
    double *values; /* one per sample of the files */
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

/* Adds a number from a text file. */
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

/* Replaces the content hash of the data set by a hash of the old content hash and of the
 * weights. */
static lk_status add_hash(lk_dataset *dataset, const lki_map *map)
{
    char hashes[2][33];
    memcpy(hashes[0], dataset->info.content_hash, sizeof hashes[0]);
    lki_xxh3_128(map->data, map->bytes, hashes[1]);
    return lki_hash_of_hashes(dataset->info.content_hash, hashes, 2);
}

/* Computes the prefix sums of the training part's weights. */
static lk_status add_up(lk_dataset *dataset, const weights *all, const char *path)
{
    uint64_t n   = dataset->info.train_count;
    double   sum = 0;
    LK_ASSERT(all->values != NULL); /* one per sample */
    LK_TRY(LKI_NEW(&dataset->cumulative, n, "weights"));
    for (uint64_t i = 0; i < n; i++)
        dataset->cumulative[i] = sum += all->values[lki_sample_place(dataset, false, i)];
    if (!(sum > 0) || !isfinite(sum))
        return lk_fail(LK_EFORMAT, "'%s': the weights of the %llu samples to train on come to %g",
                       path, (unsigned long long)n, sum);
    return LK_OK;
}

/* Converts the weights to 65536ths. */
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

/* Opens a weight file, for drawing or for the loss. */
static lk_status open_weights(lk_dataset *dataset, const char *spec, const char *path, bool drawing)
{
    static const uint8_t magic[] = { 0x93, 'N', 'U', 'M', 'P', 'Y' };
    weights              all     = { NULL, 0, 0 };
    lki_map              map;
    if (dataset->info.tokens)
        return lk_fail(LK_EINVAL, "%s are of samples with labels; '%s' has tokens",
                       drawing ? "`weights`" : "`loss_weights`", spec);
    if (!drawing && dataset->info.targets > 1)
        return lk_fail(LK_EINVAL, "`loss_weights` are of samples with one target; those of '%s' "
                                  "have %u", spec, dataset->info.targets);
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
    memcpy(dataset->content, dataset->info.content_hash, sizeof dataset->content);
    if (options->weights != NULL)
        LK_TRY(open_weights(dataset, spec, options->weights, true));
    if (options->loss_weights != NULL)
        LK_TRY(open_weights(dataset, spec, options->loss_weights, false));
    return LK_OK;
}

/* Draws a sample.  The permutation of order.c uses the same purpose.  In the last word of the
 * permutation's counter, the bits above the number of the Feistel round hold half the width of a
 * sample number (at least 1).  Here these bits are 0.  So drawing and the permutation never use the
 * same random numbers. */
uint64_t lki_weighted_at(const lk_dataset *dataset, uint64_t seed, uint64_t epoch,
                         uint64_t position)
{
    lki_random random = lki_philox(seed, LKI_RNG_ORDER, (uint32_t)position,
                                   (uint32_t)(position >> 32), (uint32_t)epoch,
                                   (uint32_t)(epoch >> 32) & 0xff);
    uint64_t bits  = (uint64_t)random.word[0] << 21 | random.word[1] >> 11;
    uint64_t n     = dataset->info.train_count;
    double   point = (double)bits * 0x1p-53 * dataset->cumulative[n - 1];
    uint64_t low   = 0, high = n - 1; /* bisection: finds the first sample whose prefix sum is above
                                       * the drawn point */
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (dataset->cumulative[middle] > point)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

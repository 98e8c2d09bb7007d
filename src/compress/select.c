/* select.c -- topk: sends the k = ceil(ratio x n) elements with the largest magnitudes, exactly.
 *
 * A message is k indices, ascending, and their k values.  The residual is 0 where an element was
 * sent, and the element elsewhere (Stich et al., Sparsified SGD with Memory, 2018; Aji and
 * Heafield, Sparse Communication for Distributed Gradient Descent, 2017).
 *
 * Magnitudes are compared as integers, so the choice is exact and has no sums that could be
 * rounded.  Of equal magnitudes the lowest index is sent first.  A NaN's magnitude is above
 * infinity, so values that are not finite are sent before all others.
 *
 *     sample    guesses a bar below which the k largest magnitudes hardly end
 *     scan      collects the places above the bar, in one pass over the tensor
 *     thin      keeps the k largest of the collected places.  If there is no room for more, this
 *               is done before the end, and raises the bar to the smallest of them
 *
 * If fewer than k places are above the guessed bar, the scan is repeated without one.  So the guess
 * changes the time, but never the choice.
 *
 * Cost:   one pass over the tensor, and two over the 1 to 2 k places that it collects: one decides
 *         by bins that were counted in the scan, one sends.
 *         Values that ascend are thinned every k elements, so the cost stays linear.
 * Memory: the places are collected in the message, which has room for 2 k of them.
 */
#include <string.h>

#include "base/memory.h"
#include "compress/chosen.h"
#include "compress/scan.h"
#include "compress/table.h"

enum {
    DIGIT    = 11,      /* bits of a digit; 3 digits cover the 31 bits of a magnitude */
    FEW      = 2048,    /* places that are collected even if k is small: thinning is then rare */
    SAMPLE   = 1 << 16, /* elements of a sample at most */
    SPARSE   = 64,      /* elements of the tensor for one of the sample */
    STRETCH  = 1 << 14, /* elements whose places are counted while they are in a cache */
    BINS     = 1 << 10, /* narrow bins just above the bar */
    BIN_BITS = 12,      /* bits of a magnitude that a bin ignores */
    CLOSE    = 1 << 11, /* places in one bin that are compared at most */
    AHEAD    = 32,      /* places between an element that is read and one that is asked for */
};

/* ---- The n-th largest magnitude ---------------------------------------------------------- */

/* Elements of a tensor: those at `places` or, without places, every `stride`-th. */
typedef struct {
    const float    *values;
    const uint32_t *places;
    size_t          stride, count;
} subset;

static inline uint32_t magnitude_at(const subset *s, size_t i)
{
    return (uint32_t)lki_magnitude(s->values[s->places != NULL ? s->places[i] : i * s->stride]);
}

/* Returns the magnitude of which fewer than *rank are larger, and at least *rank are larger or
 * equal.  Subtracts the number of larger ones from *rank. */
static uint32_t nth_largest(const subset *s, size_t *rank)
{
    uint32_t histogram[1 << DIGIT], found = 0, known = 0;
    for (int shift = 2 * DIGIT; shift >= 0; shift -= DIGIT) {
        memset(histogram, 0, sizeof histogram);
        for (size_t i = 0; i < s->count; i++) {
            uint32_t magnitude = magnitude_at(s, i);
            if ((magnitude & known) == found)
                histogram[magnitude >> shift & ((1u << DIGIT) - 1)]++;
        }
        uint32_t digit = (1u << DIGIT) - 1;
        for (; histogram[digit] < *rank; digit--)
            *rank -= histogram[digit];
        found |= digit << shift;
        known |= ((1u << DIGIT) - 1) << shift;
    }
    return found;
}

/* ---- The choice -------------------------------------------------------------------------- */

/* Returns a bar that probably more than k magnitudes exceed, but not many more: the rank of a
 * sample's element is 3 standard deviations below the expected one. */
static int32_t guess(const float *values, size_t count, size_t k)
{
    size_t size = lki_min(count / SPARSE, SAMPLE), deviation = 1;
    if (size == 0 || count <= FEW || count <= 2 * k)
        return -1;
    size_t expected = (size_t)((double)k / (double)count * (double)size) + 1;
    while (deviation * deviation < expected)
        deviation++;
    size_t rank = expected + 3 * deviation;
    if (rank >= size)
        return -1;
    subset sample = { .values = values, .stride = count / size, .count = size };
    return (int32_t)nth_largest(&sample, &rank) - 1;
}

/* Keeps the k largest of the collected places.  Returns the smallest magnitude kept: later places
 * must exceed it. */
static int32_t thin(const float *values, uint32_t *places, size_t *count, size_t k)
{
    subset  collected = { .values = values, .places = places, .count = *count };
    size_t  equal     = k, kept = 0;
    int32_t least     = (int32_t)nth_largest(&collected, &equal);
    for (size_t i = 0; i < *count; i++) {
        uint32_t place     = places[i];
        int32_t  magnitude = lki_magnitude(values[place]);
        bool     keep      = magnitude > least || (magnitude == least && equal > 0);
        equal -= keep && magnitude == least;
        places[kept] = place;
        kept += keep;
    }
    *count = kept;
    return least;
}

/* The magnitudes above the bar, counted by narrow bins while they are in a cache. */
typedef struct {
    uint32_t low;        /* the smallest magnitude above the bar */
    uint32_t bins[BINS]; /* the last one also counts what is above it */
} tally;

static inline uint32_t bin_of(const tally *t, float value)
{
    uint32_t bin = ((uint32_t)lki_magnitude(value) - t->low) >> BIN_BITS;
    return bin < BINS ? bin : BINS - 1;
}

/* Merges the ascending list `more` into the ascending list `places`. */
static void merge(uint32_t *places, size_t count, const uint32_t *more, size_t more_count)
{
    while (more_count > 0) {
        bool from_places = count > 0 && places[count - 1] > more[more_count - 1];
        size_t   end     = count + more_count - 1;
        places[end]      = from_places ? places[--count] : more[--more_count];
    }
}

/* Asks for the element of a later place, because the processor does not foresee places. */
static inline void prefetch(const float *values, const uint32_t *places, size_t i, size_t count)
{
    if (i + AHEAD < count)
        __builtin_prefetch(&values[places[i + AHEAD]], 1);
}

/* Keeps the k largest of the collected places, like thin(), but reads the tensor only once: places
 * in bins above that of the k-th are sent, those below are not, and the few in it are compared.
 * Returns false, with nothing done, if they are not few. */
static bool thin_by_bins(const float *values, const tally *t, uint32_t *places, size_t *count,
                         size_t k)
{
    uint32_t close[CLOSE], bin = BINS - 1;
    size_t   sure = 0, kept = 0, close_count = 0;
    while (sure + t->bins[bin] < k)
        sure += t->bins[bin--];
    if (t->bins[bin] > CLOSE)
        return false;
    for (size_t i = 0; i < *count; i++) {
        prefetch(values, places, i, *count);
        uint32_t place = places[i], own = bin_of(t, values[place]);
        if (own == bin)
            close[close_count++] = place;
        places[kept] = place;
        kept += own > bin;
    }
    (void)thin(values, close, &close_count, k - sure);
    merge(places, kept, close, close_count);
    *count = k;
    return true;
}

/* Collects the places of the k largest magnitudes above the bar.  Returns false if there are fewer
 * than k. */
static bool collect(const float *values, size_t count, size_t k, int32_t bar, uint32_t *places,
                    size_t room)
{
    const lki_scan *scan   = lki_scan_best();
    tally           t      = { .low = (uint32_t)(bar + 1) };
    size_t          found  = 0, at = 0, counted = 0;
    bool            binned = true;
    while (at < count) {
        size_t end = lki_min(count, (at / STRETCH + 1) * STRETCH);
        at         = scan->above(values, at, end, bar, places, &found, room);
        for (; binned && counted < found; counted++)
            t.bins[bin_of(&t, values[places[counted]])]++;
        if (at < end) {
            bar    = thin(values, places, &found, k);
            binned = false;
        }
    }
    if (found > k && !(binned && thin_by_bins(values, &t, places, &found, k)))
        (void)thin(values, places, &found, k);
    return found == k;
}

/* ---- The compressor ---------------------------------------------------------------------- */

static size_t bytes(const lk_compression *options, const lk_compress_key *key, uint32_t round)
{
    (void)round;
    size_t count = lki_compress_count(key);
    return count == 0 || count > UINT32_MAX ? 0 : 8 * lki_chosen(options, key);
}

static void encode(const lk_compression *options, const lk_compress_key *key, uint32_t round,
                   const lk_compress_part *part, const void *before, float *values, void *message)
{
    (void)round, (void)part, (void)before;
    size_t    count = lki_compress_count(key), k = lki_chosen(options, key);
    uint32_t *indices = message, few[FEW];
    float    *sent    = (float *)message + k;
    bool      small   = 2 * k <= FEW;
    uint32_t *places  = small ? few : indices;
    size_t    room    = small ? FEW : 2 * k;
    if (!collect(values, count, k, guess(values, count, k), places, room))
        (void)collect(values, count, k, -1, places, room);
    if (small)
        memcpy(indices, few, k * sizeof *few);
    for (size_t i = 0; i < k; i++) {
        prefetch(values, indices, i, k);
        sent[i]            = values[indices[i]];
        values[indices[i]] = 0;
    }
}

/* Returns the number of indices below `end`. */
static size_t below(const uint32_t *indices, size_t k, size_t end)
{
    size_t low = 0, high = k;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (indices[middle] < end)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void decode(const lk_compression *options, const lk_compress_key *key,
                   const void *const *messages, size_t first, size_t count, float *out)
{
    size_t          k       = lki_chosen(options, key);
    const uint32_t *indices = messages[0];
    const float    *sent    = (const float *)messages[0] + k;
    memset(out, 0, count * sizeof *out);
    for (size_t i = below(indices, k, first); i < k && indices[i] < first + count; i++)
        out[indices[i] - first] = sent[i];
}

const lk_compressor lki_compressor_topk = {
    .name    = "topk",
    .text    = "the largest elements of a tensor, with their indices",
    .combine = LK_COMBINE_GATHER,
    .rounds  = 1,
    .selects = true,
    .bytes   = bytes,
    .encode  = encode,
    .decode  = decode,
};

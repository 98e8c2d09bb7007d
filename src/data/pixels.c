/* pixels.c -- standardises bytes of images: v becomes (v/255 - mean) / deviation.
 *
 * Mean and deviation are constants of the source, numbers that are given, or those of the training
 * part.  For the last, the bytes and their squares are summed as integers, so the numbers do not
 * depend on an order.  With n bytes of sum S and squares Q the mean is S / (255 n), and the
 * deviation the square root of (n Q - S^2) / (255 n)^2, in FP64, rounded to FP32.
 */
#include "data/pixels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "data/lanes.h"
#include "data/stream.h"

/* Fills the table that sources without wide loops use.  Computes in FP32, in this order. */
static void fill_table(lki_pixels *pixels)
{
    for (uint32_t c = 0; c < pixels->channels; c++)
        for (int v = 0; v < 256; v++)
            pixels->value[c][v] = ((float)v / 255.0f - pixels->mean[c]) / pixels->deviation[c];
}

void lki_pixels_set(lk_dataset *dataset, uint32_t channels, const float *mean,
                    const float *deviation)
{
    lki_pixels *pixels = &dataset->pixels;
    LK_ASSERT(channels >= 1 && channels <= LK_CHANNELS_MAX);
    pixels->channels = channels;
    memcpy(pixels->mean, mean, channels * sizeof *mean);
    memcpy(pixels->deviation, deviation, channels * sizeof *deviation);
    fill_table(pixels);
}

void lki_pixels_convert(const lk_dataset *dataset, size_t count, const uint8_t *from, float *to)
{
    const lki_pixels *pixels = &dataset->pixels;
    if (pixels->channels == 1)
        lki_lanes_best()->pixels(count, pixels->mean[0], pixels->deviation[0], from, to);
    else
        for (size_t i = 0; i < count; i++)
            to[i] = pixels->value[i % pixels->channels][from[i]];
}

/* ---- The numbers of the training part --------------------------------------------------- */

__extension__ typedef unsigned __int128 wide;

typedef struct {
    uint64_t sum, squares;
} total;

/* Adds a sample, which was read with mean 0 and deviation 1, so its values are v/255. */
static void add_sample(const lk_dataset *dataset, const float *x, total totals[LK_CHANNELS_MAX])
{
    const uint32_t channels = dataset->pixels.channels;
    for (uint32_t c = 0; c < channels; c++)
        for (size_t i = c; i < dataset->elements; i += channels) {
            const uint64_t v = (uint64_t)(uint32_t)(x[i] * 255.0f + 0.5f);
            totals[c].sum += v;
            totals[c].squares += v * v;
        }
}

static lk_status add_samples(const lk_dataset *dataset, total totals[LK_CHANNELS_MAX])
{
    float    *x = NULL;
    int32_t   label;
    lk_status status = LK_OK;
    LK_TRY(LKI_NEW(&x, dataset->elements, "an image"));
    for (uint64_t i = 0; i < dataset->info.train_count && status == LK_OK; i++) {
        status = lki_sample_read(dataset, lki_sample_place(dataset, false, i), NULL, x, &label);
        if (status == LK_OK)
            add_sample(dataset, x, totals);
    }
    lki_free(x);
    return status;
}

/* Measures mean and deviation of the training part.  The deviation of equal bytes is 0, which
 * divides nothing, so it becomes 1. */
static lk_status measure(lk_dataset *dataset, uint32_t channels)
{
    static const float zero[LK_CHANNELS_MAX] = { 0 }, one[LK_CHANNELS_MAX] = { 1, 1, 1, 1 };
    total              totals[LK_CHANNELS_MAX] = { { 0 } };
    float              mean[LK_CHANNELS_MAX], deviation[LK_CHANNELS_MAX];
    const uint64_t     n = dataset->info.train_count * (dataset->elements / channels);
    lki_pixels_set(dataset, channels, zero, one);
    LK_TRY(add_samples(dataset, totals));
    for (uint32_t c = 0; c < channels; c++) {
        const wide sum    = totals[c].sum;
        const wide spread = n * (wide)totals[c].squares - sum * sum;
        mean[c]      = (float)((double)totals[c].sum / ((double)n * 255));
        deviation[c] = (float)(sqrt((double)spread) / ((double)n * 255));
        if (!(deviation[c] > 0))
            deviation[c] = 1;
    }
    lki_pixels_set(dataset, channels, mean, deviation);
    return LK_OK;
}

/* ---- The option ---------------------------------------------------------------------------- */

static lk_status refuse(const lk_dataset *dataset, const char *spec)
{
    return lk_fail(LK_EINVAL, "`normalize` %s of '%s': write train, source, none, or means and "
                              "deviations of pixels in [0, 1], one each or one for each of %u "
                              "channels, such as 0.5/0.25 or 0.485,0.456,0.406/0.229,0.224,0.225",
                   dataset->options.normalize, spec, dataset->all_channels);
}

/* Reads up to LK_CHANNELS_MAX numbers with commas between them.  Returns their count; 0: there are
 * too many, or the text is something else. */
static uint32_t read_numbers(const char *text, size_t length, float out[LK_CHANNELS_MAX])
{
    const char *end = text + length;
    for (uint32_t count = 0; count < LK_CHANNELS_MAX;) {
        char        *after;
        const double value = strtod(text, &after);
        if (after == text || after > end || !isfinite(value))
            return 0;
        out[count++] = (float)value;
        if (after == end)
            return count;
        if (*after != ',')
            return 0;
        text = after + 1;
    }
    return 0;
}

static lk_status take_numbers(lk_dataset *dataset, const char *spec)
{
    float          mean[LK_CHANNELS_MAX], deviation[LK_CHANNELS_MAX];
    const char    *text  = dataset->options.normalize;
    const char    *slash = strchr(text, '/');
    const uint32_t count = slash != NULL ? read_numbers(text, (size_t)(slash - text), mean) : 0;
    if (count == 0 || read_numbers(slash + 1, strlen(slash + 1), deviation) != count ||
        (count != 1 && count != dataset->all_channels))
        return refuse(dataset, spec);
    for (uint32_t c = 0; c < count; c++)
        if (!(deviation[c] > 0))
            return refuse(dataset, spec);
    lki_pixels_set(dataset, count, mean, deviation);
    return LK_OK;
}

/* Adds the numbers to the description and to the content hash. */
static lk_status describe(lk_dataset *dataset)
{
    const lki_pixels *pixels = &dataset->pixels;
    lk_dataset_info  *info   = &dataset->info;
    char              hashes[2][33];
    info->normalized = pixels->channels;
    memcpy(info->mean, pixels->mean, sizeof info->mean);
    memcpy(info->deviation, pixels->deviation, sizeof info->deviation);
    const float numbers[2][LK_CHANNELS_MAX] = {
        { info->mean[0], info->mean[1], info->mean[2], info->mean[3] },
        { info->deviation[0], info->deviation[1], info->deviation[2], info->deviation[3] }
    };
    memcpy(hashes[0], info->content_hash, sizeof hashes[0]);
    lki_xxh3_128(numbers, sizeof numbers, hashes[1]);
    return lki_hash_of_hashes(info->content_hash, hashes, 2);
}

lk_status lki_pixels_normalize(lk_dataset *dataset, const char *spec)
{
    static const float zero[] = { 0 }, one[] = { 1 };
    const char        *how      = dataset->options.normalize;
    const bool         is_auto  = how != NULL && strcmp(how, "auto") == 0;
    const uint64_t     channels = dataset->info.x.rank == 3 ? dataset->info.x.dims[2] : 1;
    dataset->all_channels = channels <= LK_CHANNELS_MAX ? (uint32_t)channels : 1;
    if (how == NULL || strcmp(how, "source") == 0 || (is_auto && !dataset->pixels.by_training))
        return LK_OK;
    if (dataset->pixels.channels == 0)
        return lk_fail(LK_EINVAL, "`normalize` is for bytes of images, and '%s' has none", spec);
    if (strcmp(how, "train") != 0 && !is_auto && strcmp(how, "none") != 0)
        LK_TRY(take_numbers(dataset, spec));
    else if (strcmp(how, "none") == 0)
        lki_pixels_set(dataset, 1, zero, one);
    else if (lki_dataset_is_stream(dataset))
        return lk_fail(LK_EINVAL, "`normalize` train reads all samples first, and '%s' is read "
                                  "once: give means and deviations", spec);
    else
        LK_TRY(measure(dataset, dataset->all_channels));
    return describe(dataset);
}

/* resize.c -- resizes an image of any size to the model's image size, in integer arithmetic.
 *
 * Crop:    the largest centred rectangle of the target's shape.  The crop has the full length of
 *          one side.  Its other side follows from the target's aspect ratio, rounded to the nearest
 *          pixel.  If an odd number of pixels is cut off, the larger half is at the right or
 *          bottom.
 * Resize:  a pixel of the target covers a rectangle of the source.  Its value is the mean over that
 *          rectangle, with each source pixel weighted by the covered area, rounded half up.  In
 *          units of 1 / (height x width) of a source pixel areas are integers, so the mean is exact
 *          before it is rounded, and equal on all processors.  An image of the right size is
 *          unchanged; a smaller image is enlarged by the same rule.
 * Cost:    each row is summed horizontally once, then these sums are summed vertically.  This takes
 *          one multiplication for every byte of the crop, and one for every byte of (crop height +
 *          height) x width.
 */
#include <string.h>

#include "base/memory.h"
#include "data/image.h"

static lki_rectangle crop(const lki_image *image, uint32_t height, uint32_t width)
{
    uint64_t      w = image->width, h = image->height;
    lki_rectangle r = { 0, 0, image->width, image->height };
    if (w * height > h * width)
        r.width = (uint32_t)lki_max(1, (2 * h * width + height) / (2 * (uint64_t)height));
    else
        r.height = (uint32_t)lki_max(1, (2 * w * height + width) / (2 * (uint64_t)width));
    r.left = (image->width - r.width) / 2;
    r.top  = (image->height - r.height) / 2;
    return r;
}

/* Computes `count` sums over equal runs of a row of `pixels` pixels, in units of 1 / count of a
 * pixel. */
static void sum_row(uint32_t *sums, uint32_t count, const uint8_t *row, uint32_t pixels,
                    uint32_t channels)
{
    uint32_t left = count; /* units of the current pixel not yet added */
    for (uint32_t i = 0; i < count; i++, sums += channels) {
        memset(sums, 0, channels * sizeof *sums);
        for (uint32_t wanted = pixels; wanted > 0;) {
            uint32_t taken = wanted < left ? wanted : left;
            for (uint32_t c = 0; c < channels; c++)
                sums[c] += taken * row[c];
            wanted -= taken;
            left -= taken;
            if (left == 0) {
                left = count;
                row += channels;
            }
        }
    }
}

static void fit(const lki_image *image, lki_rectangle from, uint32_t height, uint32_t width,
                uint8_t *out, uint32_t *sums, uint64_t *totals)
{
    size_t         channels = image->channels, values = width * channels;
    size_t         stride   = image->width * channels;
    const uint8_t *row      = image->pixels + from.top * stride + from.left * channels;
    uint64_t       area     = (uint64_t)from.width * from.height;
    uint32_t       left     = 0; /* units of the row in `sums` not yet added */
    LK_ASSERT(area > 0);
    for (uint32_t j = 0; j < height; j++, out += values) {
        memset(totals, 0, values * sizeof *totals);
        for (uint32_t wanted = from.height; wanted > 0;) {
            if (left == 0) {
                sum_row(sums, width, row, from.width, image->channels);
                row += stride;
                left = height;
            }
            uint32_t taken = wanted < left ? wanted : left;
            for (size_t i = 0; i < values; i++)
                totals[i] += (uint64_t)taken * sums[i];
            wanted -= taken;
            left -= taken;
        }
        for (size_t i = 0; i < values; i++)
            out[i] = (uint8_t)((totals[i] + area / 2) / area);
    }
}

lk_status lki_image_fit(const lki_image *image, const lki_rectangle *part, uint32_t height,
                        uint32_t width, uint8_t *out)
{
    lki_rectangle from = part != NULL ? *part : crop(image, height, width);

    uint64_t *totals = NULL;
    uint32_t *sums   = NULL;
    size_t    values = (size_t)width * image->channels;
    lk_status status = LKI_NEW(&totals, values, "sums of pixels");
    if (status == LK_OK)
        status = LKI_NEW(&sums, values, "sums of pixels");
    if (status == LK_OK)
        fit(image, from, height, width, out, sums, totals);
    lki_free(sums);
    lki_free(totals);
    return status;
}

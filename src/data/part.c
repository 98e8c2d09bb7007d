/* part.c -- resizes random parts of an image: RandomResizedCrop.
 *
 * A part has a share of the image's area drawn uniformly from [resized_crop, 1], and an aspect
 * ratio from 3:4 to 4:3 whose logarithm is drawn uniformly; both sides are rounded.  A part that
 * does not fit in the image is drawn again, at most ten times.  After that the largest centred part
 * with an allowed ratio is used (Szegedy et al., "Going deeper with convolutions", CVPR 2015,
 * section 6, as torchvision implements it).  Draws are keyed by (seed, epoch, sample, try).
 *
 * A pixel of the result is the mean over the area that it covers, as in resize.c.  If a source's
 * images have different sizes, the part is taken from the original image (read_part).  Otherwise
 * the part is taken from the sample, whose FP32 values are summed in FP64, row by row.
 *
 * Cost: about four multiplications per value, or one per source pixel under a pixel of the
 * result.
 */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "data/source.h"
#include "tensor/ops.h"

enum { TRIES = 10 };

#define LOG_WIDEST 0.28768207F /* log(4/3) */

/* Draws uniformly from [0, count), with a bias below count / 2^32. */
static uint32_t draw_below(uint32_t word, uint64_t count)
{
    return (uint32_t)(word * count >> 32);
}

/* Draws a part; returns true if it fits in the image. */
static bool draw_part(lki_rectangle *out, const lki_random *random, double least, uint32_t height,
                      uint32_t width)
{
    double share = least + (1 - least) * (double)lki_random_unit(random->word[0]);
    double ratio = (double)lki_expf((2 * lki_random_unit(random->word[1]) - 1) * LOG_WIDEST);
    double area  = share * (double)height * (double)width;
    double w = floor(sqrt(area * ratio) + 0.5), h = floor(sqrt(area / ratio) + 0.5);
    if (!(w >= 1 && w <= (double)width && h >= 1 && h <= (double)height))
        return false;
    out->width  = (uint32_t)w;
    out->height = (uint32_t)h;
    out->left   = draw_below(random->word[2], (uint64_t)width - out->width + 1);
    out->top    = draw_below(random->word[3], (uint64_t)height - out->height + 1);
    return true;
}

/* Returns the largest centred part with an allowed aspect ratio. */
static lki_rectangle middle(uint32_t height, uint32_t width)
{
    uint64_t      widest  = (uint64_t)height * 4 / 3, highest = (uint64_t)width * 4 / 3;
    lki_rectangle r = { .width  = (uint32_t)lki_max(1, lki_min(width, widest)),
                        .height = (uint32_t)lki_max(1, lki_min(height, highest)) };
    r.left = (width - r.width) / 2;
    r.top  = (height - r.height) / 2;
    return r;
}

lki_rectangle lki_part_of(const lk_dataset *dataset, const lki_draw *draw, uint32_t height,
                          uint32_t width)
{
    lki_rectangle part;
    for (uint32_t try = 1; try <= TRIES; try++) {
        /* keyed differently from the draws of augment.c, whose counter has 0 in place of `try` */
        lki_random random = lki_philox(dataset->options.seed, LKI_RNG_AUGMENT,
                                       (uint32_t)draw->index, (uint32_t)(draw->index >> 32),
                                       (uint32_t)draw->epoch,
                                       try << 16 | ((uint32_t)(draw->epoch >> 32) & 0xffff));
        if (draw_part(&part, &random, dataset->options.augment.resized_crop, height, width))
            return part;
    }
    return middle(height, width);
}

/* ---- Parts of the sample itself ------------------------------------------------------------- */

/* Returns the overlap of source pixel `p` with pixel `i` of the result, in units of 1 / count.  The
 * `count` pixels of the result together cover `pixels` source pixels. */
static uint64_t covered(uint64_t p, uint64_t i, uint64_t count, uint64_t pixels)
{
    uint64_t first = lki_max(p * count, i * pixels);
    uint64_t last  = lki_min((p + 1) * count, (i + 1) * pixels);
    return last - first;
}

/* Computes one value of the result: channel `c` of the pixel in row `j` and column `i`. */
static float mean_of(const float *from, const lki_rectangle *part, lk_shape shape, size_t j,
                     size_t i, size_t c)
{
    uint64_t height = shape.dims[0], width = shape.dims[1], channels = shape.dims[2];
    size_t   top  = j * part->height / height, end = ((j + 1) * part->height - 1) / height;
    size_t   left = i * part->width / width, side = ((i + 1) * part->width - 1) / width;
    double   sum  = 0;
    for (size_t y = top; y <= end; y++)
        for (size_t x = left; x <= side; x++) {
            uint64_t area = covered(y, j, height, part->height) * covered(x, i, width, part->width);
            size_t   at   = ((part->top + y) * width + part->left + x) * channels + c;
            sum += (double)area * (double)from[at];
        }
    return (float)(sum / ((double)part->width * (double)part->height));
}

lk_status lki_part_fit(const lk_dataset *dataset, const lki_draw *draw, float *x)
{
    lk_shape      shape = dataset->info.x;
    lki_rectangle part  = lki_part_of(dataset, draw, (uint32_t)shape.dims[0],
                                      (uint32_t)shape.dims[1]);
    float        *whole = NULL;
    LK_TRY(lki_alloc_array((void **)&whole, dataset->elements, sizeof *whole, "an image"));
    memcpy(whole, x, dataset->elements * sizeof *whole);
    for (size_t j = 0; j < shape.dims[0]; j++)
        for (size_t i = 0; i < shape.dims[1]; i++)
            for (size_t c = 0; c < shape.dims[2]; c++)
                *x++ = mean_of(whole, &part, shape, j, i, c);
    lki_free(whole);
    return LK_OK;
}

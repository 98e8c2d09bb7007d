/* augment.c -- shifts and mirrors training images.
 *
 * The augmentation of an image is a function of (seed, epoch, sample).  So it does not depend on
 * ranks or batch slots, and a resumed run uses the same augmentation as an uninterrupted one.  A
 * draw yields four random words.  The first word determines the horizontal shift, the second the
 * vertical shift, and the third the mirroring.  So the `flip` option does not change the shifts.
 *
 * An image is shifted and mirrored in place, row by row.  This needs no additional memory, and
 * takes a few microseconds for a CIFAR-10 image.  Resized crops are in part.c and use separate
 * draws.
 */
#include "data/pixels.h"

#include <string.h>

lk_status lki_augment_check(const lk_dataset *dataset, const char *spec)
{
    const lk_augment *augment = &dataset->options.augment;
    lk_shape          x       = dataset->info.x;
    if (augment->crop == 0 && !augment->flip && augment->resized_crop == 0)
        return LK_OK;
    if (!(augment->resized_crop >= 0 && augment->resized_crop <= 1))
        return lk_fail(LK_EINVAL, "`augment` resized-crop=%g is no share of an area: above 0 and "
                                  "at most 1", augment->resized_crop);
    if (augment->resized_crop > 0 && augment->crop > 0)
        return lk_fail(LK_EINVAL, "`augment` has crop=%u and resized-crop=%g; there is one of them",
                       augment->crop, augment->resized_crop);
    if (dataset->info.tokens || x.rank != 3)
        return lk_fail(LK_EINVAL, "`augment` is for images, but '%s' has none", spec);
    if (augment->crop < x.dims[0] && augment->crop < x.dims[1])
        return LK_OK;
    return lk_fail(LK_EINVAL, "`augment` crop=%u can move images of '%s' out of sight: they are "
                              "%llu x %llu", augment->crop, spec, (unsigned long long)x.dims[0],
                   (unsigned long long)x.dims[1]);
}

/* Draws uniformly from [-most, most], with a bias below (2 most + 1) / 2^32. */
static int64_t draw_shift(uint32_t word, uint32_t most)
{
    return (int64_t)(word * (2 * (uint64_t)most + 1) >> 32) - (int64_t)most;
}

static void blank(const lk_dataset *dataset, float *to, size_t pixels)
{
    size_t channels = dataset->info.x.dims[2];
    for (size_t i = 0; i < pixels; i++)
        for (size_t c = 0; c < channels; c++)
            to[i * channels + c] = lki_pixel(dataset, c, 0);
}

/* Sets row `to` of the image to row `from`, shifted to the right by `right` pixels. */
static void move_row(const lk_dataset *dataset, float *to, const float *from, int64_t right)
{
    size_t width = dataset->info.x.dims[1], channels = dataset->info.x.dims[2];
    size_t gap  = (size_t)(right < 0 ? -right : right);
    size_t rest = width - gap;
    if (right >= 0) {
        memmove(to + gap * channels, from, rest * channels * sizeof *to);
        blank(dataset, to, gap);
    } else {
        memmove(to, from + gap * channels, rest * channels * sizeof *to);
        blank(dataset, to + rest * channels, gap);
    }
}

/* Shifts an image in place.  The rows are processed in an order that reads each row before it is
 * overwritten. */
static void move(const lk_dataset *dataset, float *x, int64_t right, int64_t down)
{
    int64_t height = (int64_t)dataset->info.x.dims[0];
    size_t  row    = dataset->info.x.dims[1] * dataset->info.x.dims[2];
    for (int64_t i = 0; i < height; i++) {
        int64_t to = down > 0 ? height - 1 - i : i, from = to - down;
        if (from >= 0 && from < height)
            move_row(dataset, x + (size_t)to * row, x + (size_t)from * row, right);
        else
            blank(dataset, x + (size_t)to * row, dataset->info.x.dims[1]);
    }
}

static void mirror(const lk_dataset *dataset, float *x)
{
    size_t height = dataset->info.x.dims[0], width = dataset->info.x.dims[1],
           channels = dataset->info.x.dims[2];
    for (size_t i = 0; i < height; i++, x += width * channels)
        for (size_t left = 0, right = width - 1; left < right; left++, right--)
            for (size_t c = 0; c < channels; c++) {
                float kept              = x[left * channels + c];
                x[left * channels + c]  = x[right * channels + c];
                x[right * channels + c] = kept;
            }
}

lk_status lki_augment_apply(const lk_dataset *dataset, const lki_draw *draw, bool part, float *x)
{
    const lk_augment *augment = &dataset->options.augment;
    if (augment->resized_crop > 0 && !part)
        LK_TRY(lki_part_fit(dataset, draw, x));
    if (augment->crop == 0 && !augment->flip)
        return LK_OK;
    lki_random random = lki_philox(dataset->options.seed, LKI_RNG_AUGMENT, (uint32_t)draw->index,
                                   (uint32_t)(draw->index >> 32), (uint32_t)draw->epoch,
                                   (uint32_t)(draw->epoch >> 32) & 0xffffff);
    int64_t right = draw_shift(random.word[0], augment->crop);
    int64_t down  = draw_shift(random.word[1], augment->crop);
    if (right != 0 || down != 0)
        move(dataset, x, right, down);
    if (augment->flip && random.word[2] >> 31 != 0)
        mirror(dataset, x);
    return LK_OK;
}

/* data/pixels.h -- the values that bytes of images have in a sample. */
#ifndef LKI_DATA_PIXELS_H
#define LKI_DATA_PIXELS_H

#include "data/source.h"

/* Says that the samples of a source are bytes, with one constant per channel.  `channels`: 1, for
 * all channels together, or the last dimension of a sample.  Until lki_pixels_normalize() a byte v
 * becomes (v/255 - mean) / deviation. */
void lki_pixels_set(lk_dataset *dataset, uint32_t channels, const float *mean,
                    const float *deviation);

/* Applies lk_dataset_options.normalize, once the samples of the training part are known.  Adds the
 * numbers to the content hash if they are not the source's.  Returns LK_EINVAL if the option does
 * not suit the source. */
LK_NODISCARD lk_status lki_pixels_normalize(lk_dataset *dataset, const char *spec);

/* Converts bytes with the channels innermost. */
void lki_pixels_convert(const lk_dataset *dataset, size_t count, const uint8_t *from, float *to);

/* Returns the value of byte `v` in a channel; 0 for a black pixel of a source without bytes. */
static inline float lki_pixel(const lk_dataset *dataset, size_t channel, uint8_t v)
{
    const lki_pixels *pixels = &dataset->pixels;
    return pixels->channels == 0 ? 0 : pixels->value[channel % pixels->channels][v];
}

#endif

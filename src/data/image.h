/* data/image.h -- JPEG and PNG images, decoded from memory and resized. */
#ifndef LKI_DATA_IMAGE_H
#define LKI_DATA_IMAGE_H

#include "base/status.h"
#include "data/source.h"

/* The position of an image, for messages. */
typedef struct {
    const char *path, *member;
    uint64_t    offset;
} lki_image_place;

typedef struct {
    uint32_t width, height, channels; /* 1 channel: grey; 3 channels: red, green, blue */
    uint8_t *pixels;                  /* (height, width, channels); freed by lki_image_free() */
} lki_image;

#define LKI_IMAGE_PIXELS_MAX ((uint64_t)1 << 26)

/* Decodes a JPEG.  `channels` is 1 or 3.  Grey is copied to three channels; colour becomes its luma
 * (299 R + 587 G + 114 B) / 1000, rounded; transparency is dropped.  Returns LK_EFORMAT for any
 * problem that the decoder finds, so that a damaged file never yields invented pixels. */
LK_NODISCARD lk_status lki_jpeg_decode(lki_image *out, const uint8_t *data, size_t bytes,
                                       uint32_t channels, const lki_image_place *place);
/* Decodes a PNG, with the conversions and failures of lki_jpeg_decode(). */
LK_NODISCARD lk_status lki_png_decode(lki_image *out, const uint8_t *data, size_t bytes,
                                      uint32_t channels, const lki_image_place *place);
void lki_image_free(lki_image *image);

/* Resizes a part of the image to `height` x `width`; see resize.c.  If `part` is NULL, uses the
 * largest centred rectangle with the aspect ratio of the result. `out` is (height, width,
 * image->channels). */
LK_NODISCARD lk_status lki_image_fit(const lki_image *image, const lki_rectangle *part,
                                     uint32_t height, uint32_t width, uint8_t *out);

#endif

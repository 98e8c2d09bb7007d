/* data/image.h -- pictures in files: JPEG and PNG, decoded from memory and made to fit. */
#ifndef LKI_DATA_IMAGE_H
#define LKI_DATA_IMAGE_H

#include "base/status.h"
#include "data/source.h"

/* Where a picture stands, for messages. */
typedef struct {
    const char *path, *member;
    uint64_t    offset;
} lki_image_place;

typedef struct {
    uint32_t width, height, channels; /* 1: grey; 3: red, green, blue */
    uint8_t *pixels;                  /* (height, width, channels); lki_image_free() */
} lki_image;

#define LKI_IMAGE_PIXELS_MAX ((uint64_t)1 << 26)

/* `channels` is what is wanted, 1 or 3.  What is grey gets three equal channels; a colour becomes
 * its luma (299 R + 587 G + 114 B) / 1000, rounded; transparency is left out.  LK_EFORMAT if the
 * decoder finds anything wrong: nothing is made up where a file is damaged. */
LK_NODISCARD lk_status lki_jpeg_decode(lki_image *out, const uint8_t *data, size_t bytes,
                                       uint32_t channels, const lki_image_place *place);
LK_NODISCARD lk_status lki_png_decode(lki_image *out, const uint8_t *data, size_t bytes,
                                      uint32_t channels, const lki_image_place *place);
void lki_image_free(lki_image *image);

/* A part of the image, or with NULL its middle, as much of it as has the shape of `height` x
 * `width`, resized to that; see resize.c.  `out` is (height, width, image->channels). */
LK_NODISCARD lk_status lki_image_fit(const lki_image *image, const lki_rectangle *part,
                                     uint32_t height, uint32_t width, uint8_t *out);

#endif

/* picture.c -- any bytes as an image, decoded by its format and resized. */
#include "fuzz.h"

#include "data/image.h"

static const lki_image_place place = { "input", "member", 0 };

static void make_fit(lki_image *image)
{
    uint8_t out[5 * 7 * 3];
    LK_ASSERT(image->width > 0 && image->height > 0);
    LK_ASSERT(lki_image_fit(image, NULL, 5, 7, out) == LK_OK);
    lki_image_free(image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    lki_image image;
    for (uint32_t channels = 1; channels <= 3; channels += 2) {
        if (lki_png_decode(&image, data, bytes, channels, &place) == LK_OK)
            make_fit(&image);
        if (lki_jpeg_decode(&image, data, bytes, channels, &place) == LK_OK)
            make_fit(&image);
    }
    return 0;
}

/* resize_test.c -- tests that resizing an image to the model's size is exact.
 *
 * Goal:   a pixel is the rounded mean over the area of the centred crop that it covers.
 * Method: compute each pixel separately from areas in integers, and compare the result.
 */
#include "data/data_testing.h"

#include "base/memory.h"
#include "data/image.h"

static uint8_t value_at(uint32_t x, uint32_t y, uint32_t c)
{
    return (uint8_t)((x * 37 + y * 101 + c * 59 + x * y * 13) % 256);
}

static lki_image make(uint32_t width, uint32_t height, uint32_t channels)
{
    lki_image image = { width, height, channels, NULL };
    LKT_OK(lki_alloc((void **)&image.pixels, (size_t)width * height * channels, "image"));
    for (uint32_t y = 0; y < height; y++)
        for (uint32_t x = 0; x < width; x++)
            for (uint32_t c = 0; c < channels; c++)
                image.pixels[((size_t)y * width + x) * channels + c] = value_at(x, y, c);
    return image;
}

static uint64_t overlap(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint64_t from = a > c ? a : c, to = b < d ? b : d;
    return to > from ? to - from : 0;
}

/* Computes pixel (i, j) of a w x h target that covers the rectangle (left, top, cw, ch). */
static uint8_t mean(uint32_t left, uint32_t top, uint64_t cw, uint64_t ch, uint64_t w, uint64_t h,
                    uint64_t i, uint64_t j, uint32_t c)
{
    uint64_t sum = 0;
    for (uint32_t y = 0; y < ch; y++)
        for (uint32_t x = 0; x < cw; x++)
            sum += overlap(x * w, (x + 1) * w, i * cw, (i + 1) * cw) *
                   overlap(y * h, (y + 1) * h, j * ch, (j + 1) * ch) *
                   value_at(left + x, top + y, c);
    return (uint8_t)((sum + cw * ch / 2) / (cw * ch));
}

static const struct {
    uint32_t width, height, w, h; /* sizes of the image and of the target */
    uint32_t left, top, cw, ch;   /* the centred rectangle */
} cases[] = {
    { 8, 8, 8, 8, 0, 0, 8, 8 },    { 8, 8, 4, 4, 0, 0, 8, 8 },   { 10, 6, 4, 4, 2, 0, 6, 6 },
    { 6, 11, 4, 4, 0, 2, 6, 6 },   { 7, 5, 3, 2, 0, 0, 7, 5 },   { 13, 9, 5, 7, 3, 0, 6, 9 },
    { 3, 2, 7, 7, 0, 0, 2, 2 },    { 1, 1, 4, 3, 0, 0, 1, 1 },   { 50, 1, 3, 9, 24, 0, 1, 1 },
    { 33, 31, 8, 8, 1, 0, 31, 31 }, { 5, 4, 10, 8, 0, 0, 5, 4 }, { 1, 60, 8, 2, 0, 29, 1, 1 },
};

static void pixels_are_means_over_areas(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++)
        for (uint32_t channels = 1; channels <= 3; channels += 2) {
            uint8_t   out[3 * 128];
            uint32_t  w = cases[k].w, h = cases[k].h;
            lki_image image = make(cases[k].width, cases[k].height, channels);
            LKT_OK(lki_image_fit(&image, NULL, h, w, out));
            for (uint32_t j = 0; j < h; j++)
                for (uint32_t i = 0; i < w; i++)
                    for (uint32_t c = 0; c < channels; c++)
                        assert_int_equal(out[(j * w + i) * channels + c],
                                         mean(cases[k].left, cases[k].top, cases[k].cw,
                                              cases[k].ch, w, h, i, j, c));
            lki_image_free(&image);
        }
}

static void constant_images_stay_constant(void **state)
{
    (void)state;
    static const uint8_t values[] = { 0, 1, 254, 255 };
    for (size_t k = 0; k < sizeof values; k++) {
        uint8_t   out[49];
        lki_image image = make(1000, 700, 1);
        memset(image.pixels, values[k], 700000);
        LKT_OK(lki_image_fit(&image, NULL, 7, 7, out));
        for (size_t i = 0; i < sizeof out; i++)
            assert_int_equal(out[i], values[k]);
        lki_image_free(&image);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pixels_are_means_over_areas),
        cmocka_unit_test(constant_images_stay_constant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

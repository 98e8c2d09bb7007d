/* pixels_test.c -- tests how bytes of images become values. */
#include "data/data_testing.h"

#include <math.h>

#include "data/source.h"

enum { SAMPLES = 20, SIDE = 3, PIXELS = SIDE * SIDE };

/* Writes images whose bytes are a function of their number, and returns them.  `marked`: all bytes
 * of this image are 255. */
static void write_images(uint8_t out[SAMPLES][PIXELS], size_t marked)
{
    uint8_t images[16 + SAMPLES * PIXELS] = { 0, 0, 8, 3, 0, 0, 0, SAMPLES, 0, 0, 0, SIDE,
                                              0, 0, 0, SIDE };
    uint8_t labels[8 + SAMPLES]           = { 0, 0, 8, 1, 0, 0, 0, SAMPLES };
    for (size_t i = 0; i < SAMPLES; i++)
        for (size_t k = 0; k < PIXELS; k++)
            out[i][k] = i == marked ? 255 : (uint8_t)(i * 37 + k * k * 11);
    memcpy(images + 16, out, sizeof images - 16);
    for (size_t i = 0; i < SAMPLES; i++)
        labels[8 + i] = (uint8_t)(i % 2);
    lkt_write("images", images, sizeof images);
    lkt_write("labels", labels, sizeof labels);
}

/* Writes four images of two pixels with three channels.  The second channel is constant. */
static void write_colours(void)
{
    static const char header[] = "{'descr': '|u1', 'fortran_order': False, "
                                 "'shape': (4, 1, 2, 3), }";
    static const char column[] = "{'descr': '|u1', 'fortran_order': False, 'shape': (4,), }";
    uint8_t           x[128 + 24], y[128 + 4] = { 0 };
    memset(x, ' ', 128);
    memset(y, ' ', 128);
    memcpy(x, "\x93NUMPY\1\0\x76\0", 10);
    memcpy(y, x, 10);
    memcpy(x + 10, header, sizeof header - 1);
    memcpy(y + 10, column, sizeof column - 1);
    x[127] = y[127] = '\n';
    for (size_t i = 0; i < 8; i++) {
        x[128 + 3 * i]     = (uint8_t)(10 * i);
        x[128 + 3 * i + 1] = 51;
        x[128 + 3 * i + 2] = (uint8_t)(255 - i);
    }
    lkt_write("x.npy", x, sizeof x);
    lkt_write("y.npy", y, sizeof y);
}

static const lk_dataset_info *describe(const char *spec, const lk_dataset_options *options,
                                       lk_dataset **set)
{
    *set = lkt_open(spec, options);
    return lk_dataset_describe(*set);
}

/* Computes mean and deviation of the training part from the values that `none` gives. */
static void two_passes(double *mean, double *deviation)
{
    float       x[SAMPLES * PIXELS];
    int32_t     y;
    lk_dataset *set = lkt_open("idx:images,labels", LKT_DATASET(.validation = 0.25,
                                                                .normalize = "none"));
    const uint64_t n = lk_dataset_describe(set)->train_count;
    double         sum = 0, squares = 0;
    for (uint64_t i = 0; i < n; i++)
        LKT_OK(lk_dataset_read(set, false, 0, i, x + i * PIXELS, &y));
    for (size_t i = 0; i < n * PIXELS; i++)
        sum += (double)x[i];
    *mean = sum / (double)(n * PIXELS);
    for (size_t i = 0; i < n * PIXELS; i++)
        squares += ((double)x[i] - *mean) * ((double)x[i] - *mean);
    *deviation = sqrt(squares / (double)(n * PIXELS));
    lk_dataset_free(set);
}

static void the_training_part_decides(void **state)
{
    (void)state;
    static const char     spec[] = "idx:images,labels";
    lk_dataset           *set, *plain;
    uint8_t               bytes[SAMPLES][PIXELS];
    float                 x[PIXELS], before;
    int32_t               y;
    double                mean, deviation;
    const lk_dataset_options *by_train = LKT_DATASET(.validation = 0.25, .normalize = "train");
    write_images(bytes, SAMPLES);
    two_passes(&mean, &deviation);
    const lk_dataset_info *info = describe(spec, by_train, &set);
    assert_int_equal(info->normalized, 1);
    assert_true(fabs((double)info->mean[0] - mean) < 1e-7);
    assert_true(fabs((double)info->deviation[0] - deviation) < 1e-7);
    for (uint64_t i = 0; i < SAMPLES; i++) { /* both parts */
        const bool     held  = i >= info->train_count;
        const uint64_t index = held ? i - info->train_count : i;
        const uint64_t place = lki_sample_place(set, held, index);
        LKT_OK(lk_dataset_read(set, held, 0, index, x, &y));
        for (size_t k = 0; k < PIXELS; k++)
            assert_true(x[k] == ((float)bytes[place][k] / 255.0f - info->mean[0]) /
                                    info->deviation[0]);
    }
    before               = info->mean[0];
    const uint64_t held  = lki_sample_place(set, true, 0), kept = lki_sample_place(set, false, 0);
    plain                = lkt_open(spec, LKT_DATASET(.validation = 0.25));
    assert_string_not_equal(info->content_hash, lk_dataset_describe(plain)->content_hash);
    lk_dataset_free(plain);
    lk_dataset_free(set);
    write_images(bytes, held);
    assert_true(describe(spec, by_train, &set)->mean[0] == before);
    lk_dataset_free(set);
    write_images(bytes, kept);
    assert_true(describe(spec, by_train, &set)->mean[0] != before);
    lk_dataset_free(set);
}

static void channels_have_numbers_of_their_own(void **state)
{
    (void)state;
    lk_dataset *set;
    float       x[6];
    int32_t     y;
    write_colours();
    const lk_dataset_info *info = describe("npy:x.npy,y.npy", LKT_DATASET(.normalize = "auto"),
                                           &set);
    assert_int_equal(info->normalized, 3);
    assert_true(info->mean[0] == 35.0f / 255.0f && info->mean[1] == 51.0f / 255.0f);
    assert_true(info->mean[2] == 251.5f / 255.0f && info->deviation[1] == 1);
    LKT_OK(lk_dataset_read(set, false, 0, 0, x, &y));
    assert_true(x[1] == 51.0f / 255.0f - info->mean[1]);
    assert_true(x[3] == (10.0f / 255.0f - info->mean[0]) / info->deviation[0]);
    lk_dataset_free(set);
    set = lkt_open("npy:x.npy,y.npy", LKT_DATASET(.normalize = "0,0.5,1/1,2,4"));
    LKT_OK(lk_dataset_read(set, false, 0, 1, x, &y));
    assert_true(x[1] == (51.0f / 255.0f - 0.5f) / 2.0f && x[2] == (253.0f / 255.0f - 1.0f) / 4.0f);
    lk_dataset_free(set);
    set = lkt_open("npy:x.npy,y.npy", LKT_DATASET(.normalize = "source"));
    LKT_OK(lk_dataset_read(set, false, 0, 1, x, &y));
    assert_true(x[1] == (51.0f / 255.0f - 0.5f) / 0.5f);
    lk_dataset_free(set);
}

/* Reads floats, which `auto` leaves as they are. */
static void numbers_are_not_pixels(void **state)
{
    static const char header[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2), }";
    const float       values[] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    uint8_t           file[128 + sizeof values];
    float             x[2];
    int32_t           y;
    (void)state;
    write_colours(); /* the labels */
    memset(file, ' ', 128);
    memcpy(file, "\x93NUMPY\1\0\x76\0", 10);
    memcpy(file + 10, header, sizeof header - 1);
    file[127] = '\n';
    memcpy(file + 128, values, sizeof values);
    lkt_write("floats.npy", file, sizeof file);
    lk_dataset *set = lkt_open("npy:floats.npy,y.npy", LKT_DATASET(.normalize = "auto"));
    LKT_OK(lk_dataset_read(set, false, 0, 3, x, &y));
    assert_true(x[0] == 7 && x[1] == 8 && lk_dataset_describe(set)->normalized == 0);
    lk_dataset_free(set);
    lkt_refuses("npy:floats.npy,y.npy", LKT_DATASET(.normalize = "train"), LK_EINVAL,
                "is for bytes of images", "floats.npy");
}

static void mistakes_are_named(void **state)
{
    static const char *const bad[] = { "mean", "0.5", "0.5/", "/0.5", "0.5/0", "0.5/-1", "nan/1",
                                       "1,2/3,4", "1,2,3/4,5", "1,2,3,4,5/1,2,3,4,5", "1,/2,",
                                       "0.5/0.5x", "1,2,3/4,5,6,", "" };
    (void)state;
    write_colours();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        lkt_refuses("npy:x.npy,y.npy", LKT_DATASET(.normalize = bad[i]), LK_EINVAL,
                    "of 'npy:x.npy,y.npy': write train, source, none", "each of 3 channels");
    lkt_refuses("synthetic:images=4,h=2,w=2,c=1,classes=2", LKT_DATASET(.normalize = "train"),
                LK_EINVAL, "`normalize` is for bytes of images", "synthetic:");
    lkt_write_text("text", "some text that is long enough");
    lkt_refuses("text:text", LKT_DATASET(.context = 4, .normalize = "none"), LK_EINVAL,
                "`normalize` is for bytes of images", "text:text");
    lk_dataset_free(lkt_open("text:text", LKT_DATASET(.context = 4, .normalize = "auto")));
    lkt_refuses("stream:-?h=2&w=2&c=1&classes=2", LKT_DATASET(.normalize = "train"), LK_EINVAL,
                "is read once", "give means and deviations");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_training_part_decides),
        cmocka_unit_test(channels_have_numbers_of_their_own),
        cmocka_unit_test(numbers_are_not_pixels),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, lkt_enter_folder, lkt_leave_folder);
}

/* augment_test.c -- tests that images are augmented as a function of (seed, epoch, sample), and
 * only in training.
 *
 * Goal:   an augmented sample is the original image, padded with black, cropped and perhaps
 *         mirrored; or a resized part of the image, with an allowed area and aspect ratio.  All
 *         shifts are equally frequent.  Only training images are augmented.
 * Method: construct every possible result naively, and search these results for the one that was
 *         returned.
 */
#include "data/tar_testing.h"

enum { H = 7, W = 9, SIDE = H * W, N = 40, CROP = 2, MOVES = (2 * CROP + 1) * (2 * CROP + 1) };

static const lk_dataset_options plain = { .struct_size = sizeof(lk_dataset_options), .seed = 11 };

static lk_dataset_options with(uint32_t crop, bool flip)
{
    lk_dataset_options options = plain;
    options.augment = (lk_augment){ .crop = crop, .flip = flip };
    return options;
}

/* Writes images without two equal rows or columns and without black pixels. */
static void write_images(void)
{
    static uint8_t images[16 + N * SIDE], labels[8 + N];
    const uint8_t  head[16] = { 0, 0, 8, 3, 0, 0, 0, N, 0, 0, 0, H, 0, 0, 0, W };
    const uint8_t  label_head[8] = { 0, 0, 8, 1, 0, 0, 0, N };
    uint32_t       state = 1;
    memcpy(images, head, sizeof head);
    memcpy(labels, label_head, sizeof label_head);
    for (size_t i = 16; i < sizeof images; i++) {
        state     = state * 1664525 + 1013904223;
        images[i] = (uint8_t)(1 + (state >> 16) % 255);
    }
    for (size_t i = 0; i < N; i++)
        labels[8 + i] = (uint8_t)(i % 10);
    lkt_write("images", images, sizeof images);
    lkt_write("labels", labels, sizeof labels);
}

/* Returns the pixel at (row, column) of `image` after an augmentation. */
static float pixel_after(const float *image, int right, int down, bool flip, int row, int column,
                         size_t channels, size_t c, float black)
{
    int from_row    = row - down;
    int from_column = (flip ? W - 1 - column : column) - right;
    bool inside     = from_row >= 0 && from_row < H && from_column >= 0 && from_column < W;
    return inside ? image[(size_t)(from_row * W + from_column) * channels + c] : black;
}

static bool is_it(const float *got, const float *image, int right, int down, bool flip,
                  size_t channels, float black)
{
    for (int row = 0; row < H; row++)
        for (int column = 0; column < W; column++)
            for (size_t c = 0; c < channels; c++) {
                float want = pixel_after(image, right, down, flip, row, column, channels, c,
                                         black);
                if (memcmp(&got[(size_t)(row * W + column) * channels + c], &want,
                           sizeof want) != 0)
                    return false;
            }
    return true;
}

/* Returns the index of the augmentation that turns `image` into `got`.  Mirrored augmentations have
 * indices in the second half.  Fails the test if no augmentation matches. */
static size_t find(const float *got, const float *image, size_t channels, float black)
{
    size_t found = SIZE_MAX;
    for (size_t k = 0; k < 2 * MOVES; k++) {
        int right = (int)(k % MOVES) / (2 * CROP + 1) - CROP;
        int down  = (int)(k % MOVES) % (2 * CROP + 1) - CROP;
        if (is_it(got, image, right, down, k >= MOVES, channels, black)) {
            assert_int_equal(found, SIZE_MAX);
            found = k;
        }
    }
    assert_int_not_equal(found, SIZE_MAX);
    return found;
}

static void all_shifts_are_equally_frequent(void **state)
{
    (void)state;
    lk_dataset_options options = with(CROP, true);
    lk_dataset *set = lkt_open("idx:images,labels", &plain);
    lk_dataset *moving = lkt_open("idx:images,labels", &options);
    uint32_t seen[2 * MOVES] = { 0 };
    float    image[SIDE], got[SIDE];
    int32_t  label, same;
    for (uint64_t epoch = 0; epoch < 50; epoch++)
        for (uint64_t i = 0; i < N; i++) {
            LKT_OK(lk_dataset_read(set, false, epoch, i, image, &label));
            LKT_OK(lk_dataset_read(moving, false, epoch, i, got, &same));
            assert_int_equal(label, same);
            seen[find(got, image, 1, -1.0f)]++;
        }
    for (size_t k = 0; k < 2 * MOVES; k++) /* expected 2000 / 50 = 40, plus or minus 6 */
        assert_in_range(seen[k], 15, 70);
    lk_dataset_free(moving);
    lk_dataset_free(set);
}

/* Checks that seed, epoch and sample each change the augmentation, and that a second read gives the
 * same augmentation. */
static void draws_depend_on_seed_epoch_and_sample(void **state)
{
    (void)state;
    lk_dataset_options options = with(CROP, true), other = options;
    other.seed++;
    lk_dataset *a = lkt_open("idx:images,labels", &options);
    lk_dataset *b = lkt_open("idx:images,labels", &options);
    lk_dataset *c = lkt_open("idx:images,labels", &other);
    size_t   epochs = 0, seeds = 0, samples = 0;
    float    x[5][SIDE], image[2][SIDE];
    int32_t  y;
    lk_dataset *set = lkt_open("idx:images,labels", &plain);
    for (uint64_t i = 0; i + 1 < N; i++) {
        LKT_OK(lk_dataset_read(a, false, 3, i, x[0], &y));
        LKT_OK(lk_dataset_read(b, false, 4, i, x[1], &y));
        LKT_OK(lk_dataset_read(b, false, 3, i, x[2], &y));
        LKT_OK(lk_dataset_read(c, false, 3, i, x[3], &y));
        LKT_OK(lk_dataset_read(a, false, 3, i + 1, x[4], &y));
        LKT_OK(lk_dataset_read(set, false, 3, i, image[0], &y));
        LKT_OK(lk_dataset_read(set, false, 3, i + 1, image[1], &y));
        assert_memory_equal(x[0], x[2], sizeof x[0]);
        epochs += memcmp(x[0], x[1], sizeof x[0]) == 0;
        seeds += memcmp(x[0], x[3], sizeof x[0]) == 0;
        samples += find(x[0], image[0], 1, -1.0f) == find(x[4], image[1], 1, -1.0f);
    }
    assert_true(epochs < 6 && seeds < 6 && samples < 6); /* one match is expected by chance */
    lk_dataset_free(set);
    lk_dataset_free(a);
    lk_dataset_free(b);
    lk_dataset_free(c);
}

static void draws_are_frozen(void **state)
{
    (void)state;
    static const size_t want[8] = { 8, 24, 44, 15, 17, 44, 27, 29 };
    lk_dataset_options options = with(CROP, true);
    lk_dataset *set = lkt_open("idx:images,labels", &plain);
    lk_dataset *moving = lkt_open("idx:images,labels", &options);
    float   image[SIDE], got[SIDE];
    int32_t y;
    for (uint64_t i = 0; i < 8; i++) {
        LKT_OK(lk_dataset_read(set, false, 0, i, image, &y));
        LKT_OK(lk_dataset_read(moving, false, 5 + (UINT64_C(1) << 32) * (i / 4), i, got, &y));
        assert_int_equal(find(got, image, 1, -1.0f), want[i]);
    }
    lk_dataset_free(moving);
    lk_dataset_free(set);
}

/* Checks that crop alone and flip alone give the shifts and the mirroring that they give
 * together. */
static void crop_and_flip_are_independent(void **state)
{
    (void)state;
    lk_dataset_options both = with(CROP, true), crop = with(CROP, false), flip = with(0, true);
    lk_dataset *set[4] = { lkt_open("idx:images,labels", &plain),
                           lkt_open("idx:images,labels", &both),
                           lkt_open("idx:images,labels", &crop),
                           lkt_open("idx:images,labels", &flip) };
    float   x[4][SIDE];
    int32_t y;
    for (uint64_t i = 0; i < N; i++) {
        for (size_t s = 0; s < 4; s++)
            LKT_OK(lk_dataset_read(set[s], false, 1, i, x[s], &y));
        size_t k = find(x[1], x[0], 1, -1.0f), still = (MOVES - 1) / 2;
        assert_int_equal(find(x[2], x[0], 1, -1.0f), k % MOVES);
        assert_int_equal(find(x[3], x[0], 1, -1.0f), still + k / MOVES * MOVES);
    }
    for (size_t s = 0; s < 4; s++)
        lk_dataset_free(set[s]);
}

/* Checks that the channels of a pixel move together, and that black is each channel's own value. */
static void channels_stay_together(void **state)
{
    (void)state;
    static uint8_t record[3073];
    for (size_t i = 0; i < 3072; i++)
        record[1 + i] = (uint8_t)(i % 1024 % 251 + 1);
    (void)mkdir("cifar", 0700);
    lkt_write("cifar/data_batch_1.bin", record, sizeof record);
    lk_dataset_options options = with(4, true);
    lk_dataset *set = lkt_open("cifar10:cifar", &options);
    static float x[3072];
    int32_t      y;
    for (uint64_t epoch = 0; epoch < 20; epoch++) {
        LKT_OK(lk_dataset_read(set, false, epoch, 0, x, &y));
        for (size_t i = 0; i < 1024; i++) {
            float v[3] = { x[3 * i] * 0.2470f + 0.4914f, x[3 * i + 1] * 0.2435f + 0.4822f,
                           x[3 * i + 2] * 0.2616f + 0.4465f };
            assert_float_equal(v[0], v[1], 1e-5);
            assert_float_equal(v[0], v[2], 1e-5);
            assert_true(v[0] > -1e-5f);
        }
    }
    lk_dataset_free(set);
}

static void only_training_is_augmented(void **state)
{
    (void)state;
    lk_dataset_options options = with(CROP, true), without = plain;
    options.validation = without.validation = 0.5;
    lk_dataset *set = lkt_open("idx:images,labels", &without);
    lk_dataset *moving = lkt_open("idx:images,labels", &options);
    size_t   same = 0;
    float    a[SIDE], b[SIDE];
    int32_t  y;
    for (uint64_t i = 0; i < N / 2; i++) {
        LKT_OK(lk_dataset_read(set, true, 2, i, a, &y));
        LKT_OK(lk_dataset_read(moving, true, 2, i, b, &y));
        assert_memory_equal(a, b, sizeof a);
        LKT_OK(lk_dataset_read(set, false, 2, i, a, &y));
        LKT_OK(lk_dataset_read(moving, false, 2, i, b, &y));
        same += memcmp(a, b, sizeof a) == 0;
    }
    assert_true(same < 5);
    lk_dataset_free(moving);
    lk_dataset_free(set);
}

static void augmenting_data_without_images_is_refused(void **state)
{
    (void)state;
    lk_dataset_options options = with(CROP, false), far = with(H, false), flip = with(0, true);
    options.context = 8;
    lkt_refuses("synthetic:tokens=1000,vocab=9", &options, LK_EINVAL, "`augment` is for images",
                "tokens=1000");
    lkt_refuses("synthetic:samples=10,features=4,classes=2", &flip, LK_EINVAL, "images",
                "features=4");
    lkt_refuses("idx:images,labels", &far, LK_EINVAL, "crop=7", "7 x 9");
}

static int enter(void **state)
{
    if (lkt_enter_folder(state) != 0)
        return -1;
    write_images();
    return 0;
}

/* ---- Resized parts -------------------------------------------------------------------------- */

typedef struct {
    int left, top, width, height;
} part;

/* Computes pixel (row, column) of a resized part by adding up areas of 1 / H by 1 / W of a pixel,
 * one at a time. */
static double fitted(const float *image, int stride, size_t channels, size_t c, part p, int h,
                     int w, int row, int column)
{
    double sum = 0;
    for (int y = row * p.height; y < (row + 1) * p.height; y++)
        for (int x = column * p.width; x < (column + 1) * p.width; x++)
            sum += (double)
                image[(size_t)((p.top + y / h) * stride + p.left + x / w) * channels + c];
    return sum / (p.width * p.height);
}

/* Returns true if no pixel of `got` differs from the result of fitted() by more than `off`. */
static bool is_part(const float *got, const float *image, int stride, size_t channels, part p,
                    int h, int w, bool mirrored, double off)
{
    for (int row = 0; row < h; row++)
        for (int column = 0; column < w; column++)
            for (size_t c = 0; c < channels; c++) {
                int    to   = mirrored ? w - 1 - column : column;
                double want = fitted(image, stride, channels, c, p, h, w, row, column);
                double is   = (double)got[(size_t)(row * w + to) * channels + c];
                if (is < want - off || is > want + off)
                    return false;
            }
    return true;
}

/* Finds the only part of a `height` x `width` image that gives `got` when it is resized to `h` x
 * `w`. */
static part find_part(const float *got, const float *image, int height, int width, size_t channels,
                      int h, int w, bool *mirrored, double off)
{
    part found = { 0, 0, 0, 0 };
    for (int at = 0; at < 2 * height * width; at++)
        for (int tall = 1; tall <= height - at / 2 % height; tall++)
            for (int wide = 1; wide <= width - at / 2 / height; wide++) {
                part p = { at / 2 / height, at / 2 % height, wide, tall };
                if (!is_part(got, image, width, channels, p, h, w, at % 2 == 1, off))
                    continue;
                assert_int_equal(found.width, 0);
                *mirrored = at % 2 == 1;
                found     = p;
            }
    assert_int_not_equal(found.width, 0);
    return found;
}

/* Checks that part `p` has an allowed area and aspect ratio.  Allows for rounding, which changes a
 * side by at most 0.5. */
static void assert_allowed(part p, int height, int width, double least)
{
    double area = (double)height * width, w = p.width, h = p.height;
    assert_true((w + 0.5) * (h + 0.5) >= least * area && (w - 0.5) * (h - 0.5) <= area);
    assert_true((w + 0.5) / (h - 0.5) >= 0.75 && (w - 0.5) / (h + 0.5) <= 4.0 / 3);
}

static void resized_crops_fit_the_model(void **state)
{
    enum { EPOCHS = 8 };
    (void)state;
    lk_dataset_options options = plain;
    options.augment = (lk_augment){ .resized_crop = 0.3, .flip = true };
    lk_dataset *set = lkt_open("idx:images,labels", &plain);
    lk_dataset *cut = lkt_open("idx:images,labels", &options);
    float    image[SIDE], got[SIDE], again[SIDE];
    int32_t  label, same;
    int      flips = 0, widths[W + 1] = { 0 }, lefts = 0, tops = 0;
    double   areas = 0;
    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++)
        for (uint64_t i = 0; i < N; i++) {
            bool mirrored = false;
            LKT_OK(lk_dataset_read(set, false, epoch, i, image, &label));
            LKT_OK(lk_dataset_read(cut, false, epoch, i, got, &same));
            LKT_OK(lk_dataset_read(cut, false, epoch, i, again, &same));
            assert_int_equal(label, same);
            assert_memory_equal(got, again, sizeof got);
            part p = find_part(got, image, H, W, 1, H, W, &mirrored, 1e-6);
            assert_allowed(p, H, W, 0.3);
            flips += mirrored;
            lefts += p.left;
            tops += p.top;
            areas += p.width * p.height;
            widths[p.width]++;
        }
    assert_in_range(flips, 120, 200);                    /* of 320 reads */
    assert_true(areas > 0.50 * SIDE * 320 && areas < 0.75 * SIDE * 320); /* the mean is 0.65 */
    assert_true(lefts > 320 && tops > 100);
    for (int w = 5; w <= 8; w++)
        assert_true(widths[w] > 10);
    lk_dataset_free(cut);
    lk_dataset_free(set);
}

/* Checks that a part of an image in an archive is cut from the original image, not from the resized
 * one. */
static void crops_are_cut_from_the_original_image(void **state)
{
    enum { LARGE = 13, SMALL = 5 };
    static lkt_file archive;
    float           image[LARGE * LARGE * 3], got[SMALL * SMALL * 3];
    int32_t         label;
    int             wide = 0;
    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        char key[8];
        (void)snprintf(key, sizeof key, "%u", i);
        lkt_tar_sample(&archive, key, LARGE, i + 1, 0);
    }
    lkt_tar_end(&archive);
    lkt_write("p.tar", archive.bytes, archive.count);
    lk_dataset_options options = plain;
    options.augment = (lk_augment){ .resized_crop = 0.2 };
    lk_dataset *set = lkt_open("tar:p.tar?h=13&w=13", &plain);
    lk_dataset *cut = lkt_open("tar:p.tar?h=5&w=5", &options);
    for (uint64_t i = 0; i < 6; i++) {
        bool mirrored = false;
        LKT_OK(lk_dataset_read(set, false, 0, i, image, &label));
        LKT_OK(lk_dataset_read(cut, false, 0, i, got, &label));
        part p = find_part(got, image, LARGE, LARGE, 3, SMALL, SMALL, &mirrored, 1.01 / 255);
        assert_allowed(p, LARGE, LARGE, 0.2);
        assert_false(mirrored);
        wide += p.width > SMALL;
    }
    assert_true(wide > 0);
    lk_dataset_free(cut);
    lk_dataset_free(set);
}

static void invalid_crop_shares_are_refused(void **state)
{
    static const lk_augment bad[] = { { .resized_crop = 1.01 }, { .resized_crop = -0.5 },
                                      { .resized_crop = 0.5, .crop = 1 } };
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        lk_dataset_options options = plain;
        options.augment = bad[i];
        lkt_refuses("idx:images,labels", &options, LK_EINVAL, "resized-crop=",
                    i < 2 ? "no share" : "one of them");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_shifts_are_equally_frequent),
        cmocka_unit_test(draws_depend_on_seed_epoch_and_sample),
        cmocka_unit_test(draws_are_frozen),
        cmocka_unit_test(crop_and_flip_are_independent),
        cmocka_unit_test(channels_stay_together),
        cmocka_unit_test(only_training_is_augmented),
        cmocka_unit_test(resized_crops_fit_the_model),
        cmocka_unit_test(crops_are_cut_from_the_original_image),
        cmocka_unit_test(invalid_crop_shares_are_refused),
        cmocka_unit_test(augmenting_data_without_images_is_refused),
    };
    return cmocka_run_group_tests(tests, enter, lkt_leave_folder);
}

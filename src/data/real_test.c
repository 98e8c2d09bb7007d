/* real_test.c -- tests with ten thousand MNIST digits and Tiny Shakespeare, if these files are
 * present.
 *
 * The files are expected in the folder LOCKSTEP_TEST_DATA, or in shared/data beside the source
 * tree.  Without them the test is skipped.
 */
#include "data/data_testing.h"

#include "data/source.h"

static char images[512], labels[512], shakespeare[512];

static void digits_are_split_as_requested(void **state)
{
    (void)state;
    char spec[1200];
    (void)snprintf(spec, sizeof spec, "idx:%s,%s", images, labels);
    lk_dataset *set = lkt_open(spec, LKT_DATASET(.validation = 0.2));
    const lk_dataset_info *info = lk_dataset_describe(set);
    assert_int_equal(info->train_count, 8000);
    assert_int_equal(info->validation_count, 2000);
    assert_int_equal(info->classes, 10);
    assert_int_equal(info->x.dims[0], 28);
    assert_int_equal(info->x.dims[1], 28);
    uint32_t per_class[2][10] = { { 0 } };
    for (uint64_t i = 0; i < 10000; i++) {
        float   x[784];
        int32_t y;
        bool    validation = i >= 8000;
        LKT_OK(lk_dataset_read(set, validation, 0, validation ? i - 8000 : i, x, &y));
        assert_in_range(y, 0, 9);
        per_class[validation][y]++;
    }
    static const uint32_t published[10] = { 980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009 };
    for (int k = 0; k < 10; k++) {
        assert_int_equal(per_class[0][k] + per_class[1][k], published[k]);
        assert_in_range(per_class[1][k], published[k] / 5 - 40, published[k] / 5 + 40);
    }
    lk_dataset_free(set);
}

static void shakespeare_is_read_unchanged(void **state)
{
    (void)state;
    char spec[600];
    (void)snprintf(spec, sizeof spec, "text:%s", shakespeare);
    lk_dataset *set = lkt_open(spec, LKT_DATASET(.context = 64, .validation = 0.1, .seed = 1));
    const lk_dataset_info *info = lk_dataset_describe(set);
    assert_int_equal(info->train_count, (1115394 - 111539 - 64) / 64);
    assert_int_equal(info->validation_count, (111539 - 64) / 64);

    FILE   *file = fopen(shakespeare, "rb");
    uint8_t bytes[65];
    int32_t x[64], y[64];
    assert_non_null(file);
    LKT_OK(lk_dataset_read(set, false, 3, 1000, x, y));
    assert_int_equal(fseek(file, (long)lki_window_offset(1, 3, 64) + 64000, SEEK_SET), 0);
    assert_int_equal(fread(bytes, 1, 65, file), 65);
    (void)fclose(file);
    for (int t = 0; t < 64; t++) {
        assert_int_equal(x[t], bytes[t]);
        assert_int_equal(y[t], bytes[t + 1]);
    }
    lk_dataset_free(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digits_are_split_as_requested),
        cmocka_unit_test(shakespeare_is_read_unchanged),
    };
    if (lkt_real_file(images, sizeof images, "mnist10k/t10k-images-idx3-ubyte.gz") == NULL ||
        lkt_real_file(labels, sizeof labels, "mnist10k/t10k-labels-idx1-ubyte.gz") == NULL ||
        lkt_real_file(shakespeare, sizeof shakespeare, "text/tinyshakespeare.txt") == NULL) {
        printf("skipped: no MNIST digits and Tiny Shakespeare; set LOCKSTEP_TEST_DATA\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

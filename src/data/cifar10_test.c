/* cifar10_test.c -- tests CIFAR-10's records: the conversion of planes to pixels, the role of each
 * file, and invalid files. */
#include "data/data_testing.h"

enum { RECORD = 3073 };

static const lk_dataset_options none = LK_DATASET_OPTIONS_INIT;

/* Writes `count` records with labels from `label` on; byte i of record r is (i + r) mod 256. */
static void write_records(const char *path, size_t count, uint8_t label)
{
    static uint8_t bytes[8 * RECORD];
    for (size_t r = 0; r < count; r++)
        for (size_t i = 0; i < RECORD; i++)
            bytes[r * RECORD + i] = i == 0 ? (uint8_t)(label + r) : (uint8_t)(i - 1 + r);
    lkt_write(path, bytes, count * RECORD);
}

static void make_folder(void)
{
    (void)mkdir("cifar", 0700);
    (void)unlink("cifar/test_batch.bin");
    write_records("cifar/data_batch_1.bin", 3, 0);
    write_records("cifar/data_batch_2.bin", 2, 3);
    write_records("cifar/batches.meta.txt", 0, 0);
}

static int32_t label_of(const lk_dataset *set, bool validation, uint64_t index)
{
    float   x[3072];
    int32_t y;
    LKT_OK(lk_dataset_read(set, validation, 0, index, x, &y));
    return y;
}

static void reads_planes_as_pixels(void **state)
{
    (void)state;
    static const float mean[3] = { 0.4914f, 0.4822f, 0.4465f };
    static const float deviation[3] = { 0.2470f, 0.2435f, 0.2616f };
    make_folder();
    lk_dataset            *set  = lkt_open("cifar10:cifar", &none);
    const lk_dataset_info *info = lk_dataset_describe(set);
    assert_int_equal(info->train_count, 5);
    assert_int_equal(info->validation_count, 0);
    assert_int_equal(info->classes, 10);
    assert_int_equal(info->x.rank, 3);
    assert_int_equal(info->x.dims[2], 3);
    for (uint64_t s = 0; s < 5; s++) {
        float   x[3072];
        int32_t y;
        LKT_OK(lk_dataset_read(set, false, 0, s, x, &y));
        assert_int_equal(y, s);
        for (size_t i = 0; i < 1024; i++)
            for (size_t c = 0; c < 3; c++) {
                uint8_t v    = (uint8_t)(c * 1024 + i + (s < 3 ? s : s - 3));
                float   want = ((float)v / 255.0f - mean[c]) / deviation[c];
                assert_memory_equal(&x[3 * i + c], &want, sizeof want);
            }
    }
    lk_dataset_free(set);
}

static void the_test_batch_validates_unless_a_fraction_is_given(void **state)
{
    (void)state;
    make_folder();
    write_records("cifar/test_batch.bin", 3, 7);
    lk_dataset *set = lkt_open("cifar10:cifar", &none);
    assert_int_equal(lk_dataset_describe(set)->train_count, 5);
    assert_int_equal(lk_dataset_describe(set)->validation_count, 3);
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(label_of(set, true, i), 7 + i);
    assert_int_equal(label_of(set, false, 4), 4);
    lk_dataset_free(set);

    set = lkt_open("cifar10:cifar", LKT_DATASET(.validation = 0.4));
    assert_int_equal(lk_dataset_describe(set)->train_count, 3);
    assert_int_equal(lk_dataset_describe(set)->validation_count, 2);
    uint32_t seen = 0;
    for (uint64_t i = 0; i < 5; i++)
        seen |= 1u << label_of(set, i >= 3, i >= 3 ? i - 3 : i);
    assert_int_equal(seen, 0x1f); /* labels 0 to 4 once each, and no label of the test batch */
    lk_dataset_free(set);
}

static void refuses_bad_files(void **state)
{
    (void)state;
    make_folder();
    (void)mkdir("bare", 0700);
    lkt_refuses("cifar10:missing", &none, LK_EIO, "missing", "No such file");
    lkt_refuses("cifar10:bare", &none, LK_EIO, "'bare'", "no data_batch_*.bin");
    write_records("cifar/data_batch_2.bin", 2, 9);
    lkt_refuses("cifar10:cifar", &none, LK_EFORMAT, "record 1 has label 10", "0 to 9");
    lkt_write("cifar/data_batch_2.bin", "", 0);
    lkt_refuses("cifar10:cifar", &none, LK_EFORMAT, "cifar/data_batch_2.bin", "empty");
    static const uint8_t zeros[RECORD + 1];
    lkt_write("cifar/data_batch_2.bin", zeros, RECORD + 1);
    lkt_refuses("cifar10:cifar", &none, LK_EFORMAT, "3074 bytes", "1 left over");
    make_folder();
    lkt_write("cifar/test_batch.bin", zeros, 5);
    lkt_refuses("cifar10:cifar", &none, LK_EFORMAT, "test_batch.bin", "5 bytes: 0 records");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_planes_as_pixels),
        cmocka_unit_test(the_test_batch_validates_unless_a_fraction_is_given),
        cmocka_unit_test(refuses_bad_files),
    };
    return cmocka_run_group_tests(tests, lkt_enter_folder, lkt_leave_folder);
}

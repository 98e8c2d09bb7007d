/* text_test.c -- tests bytes as tokens: windows, their offsets, the validation part, folders, and
 * invalid input.
 *
 * Method: texts whose byte at position p encodes p, so that a window shows its position.
 */
#include "data/data_testing.h"

#include "base/hash.h"
#include "data/source.h"

enum { LENGTH = 250 };

/* Writes a text of LENGTH distinct bytes 1, 2, 3, ... */
static void write_ramp(const char *path)
{
    uint8_t bytes[LENGTH];
    for (size_t i = 0; i < LENGTH; i++)
        bytes[i] = (uint8_t)(i + 1);
    lkt_write(path, bytes, LENGTH);
}

static void windows_cover_the_text(void **state)
{
    (void)state;
    write_ramp("ramp");
    for (uint32_t context = 1; context <= LENGTH / 2; context++) {
        lk_dataset *set = NULL;
        LKT_OK(lk_dataset_open(&set, "text:ramp", LKT_DATASET(.context = context, .seed = 5)));
        const lk_dataset_info *info = lk_dataset_describe(set);
        assert_int_equal(info->train_count, (LENGTH - context) / context);
        assert_int_equal(info->validation_count, 0);
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            uint32_t offset = lki_window_offset(5, epoch, context);
            for (uint64_t i = 0; i < info->train_count; i++) {
                int32_t x[LENGTH], y[LENGTH];
                LKT_OK(lk_dataset_read(set, false, epoch, i, x, y));
                for (uint32_t t = 0; t < context; t++) {
                    assert_int_equal(x[t], offset + i * context + t + 1);
                    assert_int_equal(y[t], x[t] + 1);
                }
            }
        }
        lk_dataset_free(set);
    }
}

static void offsets_differ_by_epoch_and_seed(void **state)
{
    (void)state;
    size_t same_epoch = 0, same_seed = 0, low = 0;
    for (uint64_t e = 0; e < 1000; e++) {
        uint32_t here = lki_window_offset(1, e, 64);
        assert_true(here < 64);
        same_epoch += here == lki_window_offset(1, e + 1, 64);
        same_seed  += here == lki_window_offset(2, e, 64);
        low        += here < 32;
    }
    assert_true(same_epoch < 50 && same_seed < 50);
    assert_in_range(low, 400, 600);
}

static void the_tail_is_for_validation(void **state)
{
    (void)state;
    write_ramp("ramp");
    lk_dataset *set = NULL;
    LKT_OK(lk_dataset_open(&set, "text:ramp", LKT_DATASET(.context = 10,
                                                          .validation = 0.2,
                                                          .seed = 1)));
    const lk_dataset_info *info = lk_dataset_describe(set);
    assert_int_equal(info->train_count, 19);
    assert_int_equal(info->validation_count, 4);
    assert_true(info->tokens);
    assert_int_equal(info->classes, 256);
    assert_int_equal(info->x.rank, 1);
    assert_int_equal(info->x.dims[0], 10);
    for (uint64_t i = 0; i < 4; i++) {
        int32_t x[10], y[10];
        LKT_OK(lk_dataset_read(set, true, 7 * i, i, x, y));
        for (int32_t t = 0; t < 10; t++) {
            assert_int_equal(x[t], 201 + (int32_t)i * 10 + t);
            assert_int_equal(y[t], x[t] + 1);
        }
    }
    for (uint64_t epoch = 0; epoch < 30; epoch++) { /* training never sees the tail */
        int32_t x[10], y[10];
        LKT_OK(lk_dataset_read(set, false, epoch, 18, x, y));
        assert_true(y[9] <= 200);
    }
    lk_dataset_free(set);
}

static void a_folder_is_read_in_byte_order(void **state)
{
    (void)state;
    assert_int_equal(mkdir("tree", 0700), 0);
    assert_int_equal(mkdir("tree/a", 0700), 0);
    assert_int_equal(mkdir("tree/a/build", 0700), 0);
    assert_int_equal(mkdir("tree/.git", 0700), 0);
    lkt_write_text("tree/a.txt", "first ");
    lkt_write_text("tree/a/z", "second ");
    lkt_write_text("tree/a/empty", "");
    lkt_write_text("tree/b", "third");
    lkt_write_text("tree/B", "capital ");
    lkt_write_text("tree/.hidden", "never");
    lkt_write_text("tree/.git/config", "never");
    lkt_write_text("tree/a/build/out", "never");
    lkt_write("tree/a/image", "ne\0ver", 6);
    assert_int_equal(symlink("b", "tree/link"), 0);
    assert_int_equal(symlink("..", "tree/a/up"), 0);

    static const char want[] = "capital first second third";
    char              hash[33];
    lki_xxh3_128(want, strlen(want), hash);
    lk_dataset *set = NULL;
    LKT_OK(lk_dataset_open(&set, "text:tree", LKT_DATASET(.context = 1)));
    const lk_dataset_info *info = lk_dataset_describe(set);
    assert_string_equal(info->content_hash, hash);
    assert_int_equal(info->train_count, strlen(want) - 1);
    for (uint64_t i = 0; i < info->train_count; i++) {
        int32_t x, y;
        LKT_OK(lk_dataset_read(set, false, 0, i, &x, &y));
        assert_int_equal(x, want[i]);
        assert_int_equal(y, want[i + 1]);
    }
    lk_dataset_free(set);
}

static void bad_texts_are_refused(void **state)
{
    (void)state;
    const lk_dataset_options ten = { .struct_size = sizeof(lk_dataset_options), .context = 10 };
    lkt_write_text("empty", "");
    lkt_write_text("short", "0123456789012345678");
    assert_int_equal(mkdir("bare", 0700), 0);
    assert_int_equal(mkfifo("pipe", 0600), 0);
    lkt_refuses("text:missing", &ten, LK_EIO, "missing", "No such file");
    lkt_refuses("text:empty", &ten, LK_EFORMAT, "empty", "empty");
    lkt_refuses("text:short", &ten, LK_EFORMAT, "19",
                "needs 20; give more data, lower `context` to at most 9");
    lkt_refuses("text:bare", &ten, LK_EFORMAT, "bare", "no text");
    lkt_refuses("text:/dev/null", &ten, LK_EIO, "/dev/null", "not a regular file");
    lkt_refuses("text:pipe", &ten, LK_EIO, "pipe", "not a regular file"); /* without a writer */
    lkt_refuses("text:short", LKT_DATASET(), LK_EINVAL, "short", "`context`");
    lkt_refuses("text:", &ten, LK_EINVAL, "text:", "no data");
    lkt_refuses("texts:short", &ten, LK_EINVAL, "texts:short", "unknown data source");
    lkt_refuses("short", &ten, LK_EINVAL, "'short'", "unknown data source");
    lkt_refuses("", &ten, LK_EINVAL, "''", "unknown data source");
    write_ramp("ramp");
    lkt_refuses("text:ramp", LKT_DATASET(.context = 10, .validation = 0.01),
                LK_EFORMAT, "2 of them for validation", "`validation`");
    lkt_refuses("text:ramp", LKT_DATASET(.context = 10, .validation = 1), LK_EINVAL,
                "`validation` 1", "fraction");
    lkt_refuses("text:ramp", LKT_DATASET(.context = 10, .validation = -0.5),
                LK_EINVAL, "`validation` -0.5", "fraction");
    lkt_refuses("text:ramp", LKT_DATASET(.context = 10, .validation = 0.0 / 0.0),
                LK_EINVAL, "nan", "fraction");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_cover_the_text),
        cmocka_unit_test(offsets_differ_by_epoch_and_seed),
        cmocka_unit_test(the_tail_is_for_validation),
        cmocka_unit_test(a_folder_is_read_in_byte_order),
        cmocka_unit_test(bad_texts_are_refused),
    };
    return cmocka_run_group_tests(tests, lkt_enter_folder, lkt_leave_folder);
}

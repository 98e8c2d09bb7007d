/* tokens_test.c -- tests files of token ids: widths, headers, shards as one stream, and invalid
 * files. */
#include "data/data_testing.h"

#include "data/files.h"

enum { COUNT = 100, HEADER = 256 };

static const lk_dataset_options ten = { .struct_size = sizeof(lk_dataset_options), .context = 10 };

static void write_u16(const char *path, uint16_t first, size_t count)
{
    uint16_t tokens[COUNT];
    for (size_t i = 0; i < count; i++)
        tokens[i] = (uint16_t)(first + i);
    lkt_write(path, tokens, count * sizeof *tokens);
}

static void write_u32(const char *path, uint32_t first, size_t count)
{
    uint32_t tokens[COUNT];
    for (size_t i = 0; i < count; i++)
        tokens[i] = first + (uint32_t)i;
    lkt_write(path, tokens, count * sizeof *tokens);
}

/* Writes a file whose header claims `said` tokens, followed by `bytes` bytes of tokens. */
static void write_with_header(const char *path, int32_t magic, int32_t version, int32_t said,
                              size_t bytes)
{
    int32_t header[HEADER + COUNT] = { magic, version, said };
    for (size_t i = 0; i < COUNT; i++) {
        uint16_t narrow = (uint16_t)(500 + i);
        if (magic == 20240520)
            memcpy((uint8_t *)(header + HEADER) + 2 * i, &narrow, 2);
        else
            header[HEADER + i] = 70000 + (int32_t)i;
    }
    lkt_write(path, header, 4 * HEADER + bytes);
}

/* Checks that the windows of the stream are first, first + 1, ... */
static void assert_ramp(const char *spec, int32_t first, uint32_t count, uint32_t classes)
{
    lk_dataset *set = lkt_open(spec, LKT_DATASET(.context = 1));
    assert_true(lk_dataset_describe(set)->tokens);
    assert_int_equal(lk_dataset_describe(set)->classes, classes);
    assert_int_equal(lk_dataset_describe(set)->train_count, count - 1);
    for (uint32_t i = 0; i + 1 < count; i++) {
        int32_t x, y;
        LKT_OK(lk_dataset_read(set, false, 0, i, &x, &y));
        assert_int_equal(x, first + (int32_t)i);
        assert_int_equal(y, x + 1);
    }
    lk_dataset_free(set);
}

static void reads_every_kind(void **state)
{
    (void)state;
    write_u16("a.u16", 65000, COUNT);
    write_u32("a.u32", 100000, COUNT);
    assert_ramp("tokens:a.u16", 65000, COUNT, 65100);
    assert_ramp("tokens:a.u32", 100000, COUNT, 100100);
    assert_ramp("tokens:a.u32?vocab=128256", 100000, COUNT, 128256);
    write_u16("plain", 7, COUNT);
    assert_ramp("tokens:plain?width=16", 7, COUNT, 107);
    assert_ramp("tokens:plain?width=16&vocab=50257", 7, COUNT, 50257);
    write_with_header("gpt2.bin", 20240520, 1, COUNT, 2 * COUNT);
    assert_ramp("tokens:gpt2.bin", 500, COUNT, 600);
    write_with_header("llama3.bin", 20240801, 7, COUNT, 4 * COUNT);
    assert_ramp("tokens:llama3.bin", 70000, COUNT, 70100);
}

static void shards_are_one_stream(void **state)
{
    (void)state;
    assert_int_equal(mkdir("shards", 0700), 0);
    write_u16("shards/b.u16", 430, 1);
    write_u16("shards/a.u16", 400, 30);
    write_u32("shards/c.u32", 431, 69);
    write_with_header("shards/d.bin", 20240520, 1, COUNT, 2 * COUNT);
    lkt_write_text("shards/README", "not a shard");
    lkt_write_text("shards/.c.u32.swp", "hidden");
    assert_ramp("shards:shards", 400, 200, 600);

    lk_dataset *set = lkt_open("shards:shards", LKT_DATASET(.context = 30, .validation = 0.7));
    int32_t x[30], y[30];
    assert_int_equal(lk_dataset_describe(set)->validation_count, 3);
    for (int32_t i = 0; i < 3; i++) { /* the last 140 tokens begin at 460 */
        LKT_OK(lk_dataset_read(set, true, 0, (uint64_t)i, x, y));
        for (int32_t t = 0; t < 30; t++) {
            assert_int_equal(x[t], 460 + 30 * i + t);
            assert_int_equal(y[t], x[t] + 1);
        }
    }
    lk_dataset_free(set);
}

static void content_decides_the_hash(void **state)
{
    (void)state;
    write_u16("one.u16", 1, COUNT);
    write_u16("same.u16", 1, COUNT);
    write_u16("other.u16", 2, COUNT);
    lk_dataset *one   = lkt_open("tokens:one.u16", &ten);
    lk_dataset *same  = lkt_open("tokens:same.u16", &ten);
    lk_dataset *other = lkt_open("tokens:other.u16", &ten);
    assert_string_equal(lk_dataset_describe(one)->content_hash,
                        lk_dataset_describe(same)->content_hash);
    assert_string_not_equal(lk_dataset_describe(one)->content_hash,
                            lk_dataset_describe(other)->content_hash);
    lk_dataset_free(one);
    lk_dataset_free(same);
    lk_dataset_free(other);
}

static void refuses_bad_files(void **state)
{
    (void)state;
    write_u16("a.u16", 100, COUNT);
    lkt_refuses("tokens:missing.u16", &ten, LK_EIO, "missing.u16", "No such file");
    lkt_write("empty.u16", "", 0);
    lkt_refuses("tokens:empty.u16", &ten, LK_EFORMAT, "empty.u16", "is empty");
    lkt_write("odd.u16", "123", 3);
    lkt_refuses("tokens:odd.u16", &ten, LK_EFORMAT, "3 bytes", "no multiple");
    write_u16("plain", 1, COUNT);
    lkt_refuses("tokens:plain", &ten, LK_EFORMAT, "'plain'", "?width=16");
    lkt_refuses("tokens:a.u16?vocab=199", &ten, LK_EFORMAT, "token 199", "less than 199");
    lkt_refuses("tokens:a.u16?vocab=0", &ten, LK_EINVAL, "vocab", "from 1 to");
    lkt_refuses("tokens:a.u16?width=24", &ten, LK_EINVAL, "16 or 32", "not 24");
    lkt_refuses("tokens:a.u16?width=8", &ten, LK_EINVAL, "16 or 32", "not 8");
    lkt_refuses("tokens:a.u16?words=3", &ten, LK_EINVAL, "words=3", "no setting");
    lkt_refuses("tokens:a.u16?width", &ten, LK_EINVAL, "'width'", "there are vocab=N, width=N");
    lkt_refuses("tokens:?width=16", &ten, LK_EINVAL, "'?width=16' names no file",
                "write FILE?width=16");
    lkt_refuses("shards:?width=8", &ten, LK_EINVAL, "'?width=8' names no file", "write");
    write_u32("wide.u32", 0x7ffffff0u, COUNT);
    lkt_refuses("tokens:wide.u32", &ten, LK_EFORMAT, "token 2147483731", "2147483647");
    write_u16("few.u16", 1, 19);
    lkt_refuses("tokens:few.u16", &ten, LK_EFORMAT, "19 tokens",
                "needs 20; give more data, lower `context` to at most 9");
    write_with_header("bad.bin", 20240520, 1, COUNT, 2 * COUNT - 1);
    lkt_refuses("tokens:bad.bin", &ten, LK_EFORMAT, "truncated", "100 tokens of 2 bytes");
    write_with_header("bad.bin", 20240520, 1, COUNT, 2 * COUNT + 1);
    lkt_refuses("tokens:bad.bin", &ten, LK_EFORMAT, "left over", "201 bytes");
    write_with_header("bad.bin", 20240520, 1, -1, 2 * COUNT);
    lkt_refuses("tokens:bad.bin", &ten, LK_EFORMAT, "truncated", "4294967295 tokens");
    write_with_header("bad.bin", 20240520, 2, COUNT, 2 * COUNT);
    lkt_refuses("tokens:bad.bin", &ten, LK_EFORMAT, "version 2", "expected 1");
    write_with_header("bad.bin", 20240520, 1, 0, 0);
    lkt_refuses("tokens:bad.bin", &ten, LK_EFORMAT, "empty", "no tokens");
    lkt_write("bad.bin", "\x88\xd8\x34\x01 and no more", 16);
    lkt_refuses("tokens:bad.bin", &ten, LK_EFORMAT, "16 bytes", "1024");
    lkt_write("bad.bin", "abc", 3);
    lkt_refuses("tokens:bad.bin", &ten, LK_EFORMAT, "'bad.bin'", "does not begin");
}

static void refuses_bad_folders(void **state)
{
    (void)state;
    assert_int_equal(mkdir("bare", 0700), 0);
    lkt_refuses("shards:missing", &ten, LK_EIO, "missing", "No such file");
    lkt_refuses("shards:bare", &ten, LK_EIO, "'bare'", "no token files: 0 files");
    write_u16("bare/a.u16", 1, COUNT);
    lkt_write("bare/b.u16", "", 0);
    lkt_refuses("shards:bare", &ten, LK_EFORMAT, "bare/b.u16", "is empty");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_kind),
        cmocka_unit_test(shards_are_one_stream),
        cmocka_unit_test(content_decides_the_hash),
        cmocka_unit_test(refuses_bad_files),
        cmocka_unit_test(refuses_bad_folders),
    };
    return cmocka_run_group_tests(tests, lkt_enter_folder, lkt_leave_folder);
}

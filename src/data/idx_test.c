/* idx_test.c -- tests IDX files, plain and gzip: the values read from valid files, and the errors
 * for invalid ones. */
#include "data/data_testing.h"

#include <zlib.h>

#include "base/hash.h"
#include "data/files.h"

enum { N = 10, H = 3, W = 4, IMAGES = 16 + N * H * W, LABELS = 8 + N };

static const lk_dataset_options none = LK_DATASET_OPTIONS_INIT;

static void put32(uint8_t *p, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* Writes ten images whose bytes count up, with labels 0 1 2 0 1 2 ... */
static void make_images(uint8_t out[IMAGES])
{
    put32(out, 0x803);
    put32(out + 4, N);
    put32(out + 8, H);
    put32(out + 12, W);
    for (size_t i = 0; i < N * H * W; i++)
        out[16 + i] = (uint8_t)(2 * i);
}

static void make_labels(uint8_t out[LABELS])
{
    put32(out, 0x801);
    put32(out + 4, N);
    for (size_t i = 0; i < N; i++)
        out[8 + i] = (uint8_t)(i % 3);
}

static void write_good(void)
{
    uint8_t images[IMAGES], labels[LABELS];
    make_images(images);
    make_labels(labels);
    lkt_write("images", images, IMAGES);
    lkt_write("labels", labels, LABELS);
}

static size_t write_member(const char *path, const char *mode, const void *data, size_t bytes)
{
    gzFile file = gzopen(path, mode);
    assert_non_null(file);
    assert_int_equal(gzwrite(file, data, (unsigned)bytes), bytes);
    assert_int_equal(gzclose(file), Z_OK);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return (size_t)info.st_size;
}

static size_t write_gz(const char *path, const void *data, size_t bytes)
{
    return write_member(path, "wb9", data, bytes);
}

static void reads_pixels_and_labels(void **state)
{
    (void)state;
    write_good();
    lk_dataset            *set  = lkt_open("idx:images,labels", &none);
    const lk_dataset_info *info = lk_dataset_describe(set);
    assert_false(info->tokens);
    assert_int_equal(info->x.rank, 3);
    assert_int_equal(info->x.dims[0], H);
    assert_int_equal(info->x.dims[1], W);
    assert_int_equal(info->x.dims[2], 1);
    assert_int_equal(info->classes, 3);
    assert_int_equal(info->train_count, N);
    for (uint64_t i = 0; i < N; i++) {
        float   x[H * W];
        int32_t y;
        LKT_OK(lk_dataset_read(set, false, 0, i, x, &y));
        assert_int_equal(y, i % 3);
        for (size_t e = 0; e < H * W; e++) {
            float want = ((float)(2 * (i * H * W + e)) / 255.0f - 0.5f) / 0.5f;
            assert_memory_equal(&x[e], &want, sizeof want);
        }
    }
    lk_dataset_free(set);
}

static void gzip_is_the_same_data(void **state)
{
    (void)state;
    uint8_t images[IMAGES], labels[LABELS];
    make_images(images);
    make_labels(labels);
    write_good();
    write_gz("images.gz", images, 7); /* three members, the first of which ends in the header */
    write_member("images.gz", "ab9", images + 7, 20);
    write_member("images.gz", "ab9", images + 27, IMAGES - 27);
    write_gz("labels.gz", labels, LABELS);
    lk_dataset *plain = lkt_open("idx:images,labels", &none);
    lk_dataset *gz    = lkt_open("idx:images.gz,labels.gz", &none);
    assert_string_equal(lk_dataset_describe(plain)->content_hash,
                        lk_dataset_describe(gz)->content_hash);
    for (uint64_t i = 0; i < N; i++) {
        float   x[2][H * W];
        int32_t y[2];
        LKT_OK(lk_dataset_read(plain, false, 0, i, x[0], &y[0]));
        LKT_OK(lk_dataset_read(gz, false, 0, i, x[1], &y[1]));
        assert_memory_equal(x[0], x[1], sizeof x[0]);
        assert_int_equal(y[0], y[1]);
    }
    lk_dataset_free(plain);
    lk_dataset_free(gz);
}

static void refuses_images(const uint8_t *data, size_t bytes, const char *a, const char *b)
{
    lkt_write("bad", data, bytes);
    lkt_refuses("idx:bad,labels", &none, LK_EFORMAT, a, b);
}

static void refuses_bad_files(void **state)
{
    (void)state;
    uint8_t images[IMAGES + 1] = { 0 };
    write_good();
    make_images(images);
    lkt_refuses("idx:images", &none, LK_EINVAL, "'images'", "IMAGES,LABELS");
    lkt_refuses("idx:images,labels,more", &none, LK_EINVAL, "more", "one comma");
    lkt_refuses("idx:,labels", &none, LK_EINVAL, ",labels", "one comma");
    lkt_refuses("idx:nothing,labels", &none, LK_EIO, "nothing", "No such file");
    lkt_refuses("idx:images,nothing", &none, LK_EIO, "nothing", "No such file");
    lkt_refuses("idx:labels,images", &none, LK_EFORMAT, "0x00000801", "in this order");
    refuses_images(images, 0, "'bad'", "empty");
    refuses_images(images, 15, "has 15 bytes", "has 16");
    refuses_images(images, IMAGES - 1, "truncated", "136 bytes in all, it has 135");
    refuses_images(images, IMAGES + 1, "left over", "136 bytes in all, it has 137");
    images[2] = 0x0d;
    refuses_images(images, IMAGES, "0x00000d03", "0x00000803");
    make_images(images);
    put32(images + 8, 0);
    refuses_images(images, IMAGES, "empty", "dimension 2 of 3");
    make_images(images);
    for (size_t i = 4; i < 16; i++)
        images[i] = 0xff;
    refuses_images(images, IMAGES, "'bad'", "more than any file holds");
    put32(images + 4, 0xffffffff);
    put32(images + 8, 0xffff);
    put32(images + 12, 1);
    refuses_images(images, IMAGES, "truncated", "281470681677841 bytes in all");
}

static void refuses_labels_that_do_not_match(void **state)
{
    (void)state;
    uint8_t labels[LABELS];
    write_good();
    make_labels(labels);
    put32(labels + 4, N - 1);
    lkt_write("fewer", labels, LABELS - 1);
    lkt_refuses("idx:images,fewer", &none, LK_EFORMAT, "10 images", "9 labels");
    lkt_write("short", labels, LABELS - 2);
    lkt_refuses("idx:images,short", &none, LK_EFORMAT, "'short'", "truncated");
}

static void refuses_bad_gzip(void **state)
{
    (void)state;
    uint8_t images[IMAGES + 1] = { 0 }, gz[4096];
    write_good();
    make_images(images);
    size_t bytes = write_gz("good.gz", images, IMAGES);
    FILE  *file  = fopen("good.gz", "rb");
    assert_non_null(file);
    assert_int_equal(fread(gz, 1, sizeof gz, file), bytes);
    (void)fclose(file);

    for (size_t cut = 1; cut < bytes; cut++) { /* every truncation is detected */
        lkt_write("bad", gz, cut);
        lkt_refuses("idx:bad,labels", &none, LK_EFORMAT, "'bad'", "");
    }
    refuses_images(gz, bytes - 1, "truncated", "gzip stream breaks off after 136 bytes");
    gz[bytes] = 0;
    refuses_images(gz, bytes + 1, "1 bytes after the end of its gzip", "'bad'");
    gz[bytes - 8] ^= 1;
    refuses_images(gz, bytes, "damaged", "incorrect data check");
    write_gz("bad", images, 3);
    lkt_refuses("idx:bad,labels", &none, LK_EFORMAT, "3 bytes of content", "has 16");
    write_gz("bad", images, IMAGES - 1);
    lkt_refuses("idx:bad,labels", &none, LK_EFORMAT, "truncated",
                "136 bytes of content, it has 135");
    write_gz("bad", images, IMAGES + 1);
    lkt_refuses("idx:bad,labels", &none, LK_EFORMAT, "content after the 136 bytes", "'bad'");
    put32(images + 4, 0x7fffffff); /* a small file that claims 24 GiB */
    write_gz("bad", images, IMAGES);
    lkt_refuses("idx:bad,labels", &none, LK_EFORMAT, "claims 25769803764 bytes", "can hold");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_pixels_and_labels),
        cmocka_unit_test(gzip_is_the_same_data),
        cmocka_unit_test(refuses_bad_files),
        cmocka_unit_test(refuses_labels_that_do_not_match),
        cmocka_unit_test(refuses_bad_gzip),
    };
    return cmocka_run_group_tests(tests, lkt_enter_folder, lkt_leave_folder);
}

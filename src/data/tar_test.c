/* tar_test.c -- tests how images in archives are found, decoded and resized.
 *
 * Goal:   every member is added to its sample, in the order of the archives; decoded images have
 *         the pixels that other decoders produce; an error names the damaged file, member and byte.
 * Method: archives and PNGs written by hand; one JPEG from cjpeg, with the pixels of djpeg.
 */
#include "data/tar_testing.h"

#include "base/memory.h"
#include "data/files.h"
#include "data/image.h"

static const lk_dataset_options none = LK_DATASET_OPTIONS_INIT;

/* The output of cjpeg -quality 50 -optimize (libjpeg-turbo 2.1.5): 22 x 13, colours at half the
 * resolution. */
static const uint8_t jpeg[376] = {
    255, 216, 255, 224, 0, 16, 74, 70, 73, 70, 0, 1, 1, 0, 0, 1, 0, 1,
    0, 0, 255, 219, 0, 67, 0, 16, 11, 12, 14, 12, 10, 16, 14, 13, 14, 18,
    17, 16, 19, 24, 40, 26, 24, 22, 22, 24, 49, 35, 37, 29, 40, 58, 51, 61,
    60, 57, 51, 56, 55, 64, 72, 92, 78, 64, 68, 87, 69, 55, 56, 80, 109, 81,
    87, 95, 98, 103, 104, 103, 62, 77, 113, 121, 112, 100, 120, 92, 101, 103, 99, 255,
    219, 0, 67, 1, 17, 18, 18, 24, 21, 24, 47, 26, 26, 47, 99, 66, 56, 66,
    99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 255, 192, 0, 17,
    8, 0, 13, 0, 22, 3, 1, 34, 0, 2, 17, 1, 3, 17, 1, 255, 196, 0,
    23, 0, 0, 3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 3, 5, 4, 255, 196, 0, 38, 16, 0, 0, 5, 2, 3, 9, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 3, 4, 5, 17, 1, 2, 19, 49, 98, 6,
    18, 20, 33, 34, 51, 97, 146, 209, 255, 196, 0, 21, 1, 1, 1, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 6, 255, 196, 0, 26, 17,
    0, 2, 3, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 3,
    0, 2, 4, 17, 18, 255, 218, 0, 12, 3, 1, 0, 2, 17, 3, 17, 0, 63,
    0, 144, 67, 118, 145, 64, 134, 237, 34, 185, 9, 108, 24, 213, 188, 88, 129, 113,
    137, 184, 76, 77, 200, 234, 196, 137, 154, 82, 185, 71, 144, 221, 122, 88, 194, 69,
    32, 112, 104, 99, 79, 154, 14, 152, 194, 155, 185, 100, 0, 130, 182, 129, 92, 118,
    83, 250, 221, 244, 2, 117, 129, 254, 140, 169, 162, 244, 114, 127, 255, 217,
};

static lkt_file archive; /* the archive under construction */

static void save(const char *path)
{
    lkt_write(path, archive.bytes, archive.count);
}

/* Summarises the pixels of a decoder in two numbers. */
static void digest(const uint8_t *pixels, size_t count, uint64_t *sum, uint64_t *weighted)
{
    *sum = *weighted = 0;
    for (size_t i = 0; i < count; i++) {
        *sum += pixels[i];
        *weighted += (i + 1) * pixels[i];
    }
}

static const lki_image_place here = { "file", "member", 0 };

static void a_jpeg_has_the_pixels_of_djpeg(void **state)
{
    (void)state;
    uint64_t  sum, weighted;
    lki_image image;
    LKT_OK(lki_jpeg_decode(&image, jpeg, sizeof jpeg, 3, &here));
    assert_int_equal(image.width, 22);
    assert_int_equal(image.height, 13);
    digest(image.pixels, 22 * 13 * 3, &sum, &weighted);
    assert_int_equal(sum, 112184);
    assert_int_equal(weighted, 50985303);
    lki_image_free(&image);
    LKT_OK(lki_jpeg_decode(&image, jpeg, sizeof jpeg, 1, &here)); /* djpeg -grayscale */
    digest(image.pixels, 22 * 13, &sum, &weighted);
    assert_int_equal(sum, 36408);
    assert_int_equal(weighted, 5871190);
    lki_image_free(&image);
}

/* Checks the pixels of a 4 x 2 PNG, decoded as colour or grey. */
static void assert_png(uint8_t depth, uint8_t type, const uint8_t *palette, const uint8_t *rows,
                       size_t stride, uint32_t channels, const uint8_t *want)
{
    static lkt_file file;
    lki_image       image;
    lkt_png(&file, 4, 2, depth, type, palette, rows, stride);
    LKT_OK(lki_png_decode(&image, file.bytes, file.count, channels, &here));
    assert_int_equal(image.width, 4);
    assert_int_equal(image.height, 2);
    assert_int_equal(image.channels, channels);
    assert_memory_equal(image.pixels, want, 8 * channels);
    lki_image_free(&image);
}

static void every_kind_of_png_becomes_bytes(void **state)
{
    (void)state;
    static const uint8_t grey[8] = { 0, 10, 20, 255, 7, 8, 9, 100 };
    static const uint8_t bits[2] = { 0xa0, 0x50 };            /* 1010, 0101 */
    static const uint8_t as_bits[8] = { 255, 0, 255, 0, 0, 255, 0, 255 };
    static const uint8_t wide[16] = { 1, 0, 1, 128, 1, 130, 255, 255, 0, 0, 0, 128, 0, 127, 2, 2 };
    static const uint8_t narrow[8] = { 1, 1, 2, 255, 0, 0, 0, 2 }; /* v * 255 / 65535, rounded */
    uint8_t colours[24], clear[32], palette[768], indices[8], lumas[8], three[24];
    for (size_t i = 0; i < 24; i++)
        colours[i] = (uint8_t)(i * 11);
    for (size_t i = 0; i < 768; i++)
        palette[i] = (uint8_t)(255 - i);
    for (size_t i = 0; i < 8; i++) {
        memcpy(clear + 4 * i, colours + 3 * i, 3);
        clear[4 * i + 3] = (uint8_t)(i * 30); /* alpha: dropped */
        indices[i]       = (uint8_t)(i * 3);
        lumas[i] = (uint8_t)((299 * colours[3 * i] + 587 * colours[3 * i + 1] +
                              114 * colours[3 * i + 2] + 500) / 1000);
        memset(three + 3 * i, grey[i], 3);
    }
    assert_png(8, 0, NULL, grey, 4, 1, grey);
    assert_png(8, 0, NULL, grey, 4, 3, three);
    assert_png(1, 0, NULL, bits, 1, 1, as_bits);
    assert_png(16, 0, NULL, wide, 8, 1, narrow);
    assert_png(8, 2, NULL, colours, 12, 3, colours);
    assert_png(8, 2, NULL, colours, 12, 1, lumas);
    assert_png(8, 6, NULL, clear, 16, 3, colours);
    for (size_t i = 0; i < 8; i++)
        memcpy(three + 3 * i, palette + 3 * indices[i], 3);
    assert_png(8, 3, palette, indices, 4, 3, three);
}

/* ---- Archives ------------------------------------------------------------------------------- */

/* Makes four samples in two folders, some ignored members, and a key without a sample. */
static void make_archive(void)
{
    archive.count = 0;
    lkt_tar_add(&archive, "a/", '5', "", 0);
    lkt_tar_sample(&archive, "a/one", 8, 1, 2);
    lkt_tar_text(&archive, "a/one.json", "{}");
    lkt_tar_text(&archive, "a/README", "none of the samples");
    lkt_tar_text(&archive, "a/two.cls", "0");
    lkt_tar_add(&archive, "a/two.JPG", '0', jpeg, sizeof jpeg);
    lkt_tar_add(&archive, "a/link", '2', "", 0);
    lkt_tar_sample(&archive, "b/one", 5, 3, 1);
    lkt_tar_sample(&archive, "b.x/two", 8, 4, 4);
    lkt_tar_end(&archive);
}

static void samples_are_found_in_order(void **state)
{
    (void)state;
    static const int32_t labels[4] = { 2, 0, 1, 4 };
    make_archive();
    save("x.tar");
    lk_dataset            *set  = lkt_open("tar:x.tar?h=8&w=8", &none);
    const lk_dataset_info *info = lk_dataset_describe(set);
    assert_int_equal(info->train_count, 4);
    assert_int_equal(info->classes, 5);
    assert_int_equal(info->x.dims[0] * 100 + info->x.dims[1] * 10 + info->x.dims[2], 883);
    float   x[192];
    int32_t y;
    for (uint64_t i = 0; i < 4; i++) {
        LKT_OK(lk_dataset_read(set, false, 0, i, x, &y));
        assert_int_equal(y, labels[i]);
    }
    for (size_t i = 0; i < 192; i++) { /* pixels of the last sample, an image of the right size */
        uint8_t v    = (uint8_t)((i * 7 + 4 * 31 + i / 5 * 4) % 256);
        float   want = ((float)v / 255.0f - 0.5f) / 0.5f;
        assert_memory_equal(&x[i], &want, sizeof want);
    }
    lk_dataset_free(set);
}

static void a_picture_is_cropped_and_resized(void **state)
{
    (void)state;
    make_archive();
    save("x.tar");
    lk_dataset *set = lkt_open("tar:x.tar?h=4&w=6&c=1&classes=9", &none);
    uint8_t     want[24];
    float       x[24];
    int32_t     y;
    lki_image   image;
    assert_int_equal(lk_dataset_describe(set)->classes, 9);
    LKT_OK(lki_jpeg_decode(&image, jpeg, sizeof jpeg, 1, &here));
    LKT_OK(lki_image_fit(&image, NULL, 4, 6, want));
    lki_image_free(&image);
    LKT_OK(lk_dataset_read(set, false, 0, 1, x, &y));
    for (size_t i = 0; i < 24; i++)
        assert_true(x[i] == ((float)want[i] / 255.0f - 0.5f) / 0.5f);
    lk_dataset_free(set);
}

/* Checks that long names are read in GNU's form, in pax form, and split into prefix and name as in
 * ustar. */
static void long_names_are_read(void **state)
{
    (void)state;
    char           name[300], record[400], prefix[156] = "";
    lki_tar        tar;
    lki_tar_member member;
    bool           more;
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    archive.count = 0;
    lkt_tar_add(&archive, "././@LongLink", 'L', name, sizeof name);
    lkt_tar_text(&archive, "nnnn", "gnu");
    (void)snprintf(record, sizeof record, "309 path=%s\n12 size=003\n", name);
    lkt_tar_add(&archive, "PaxHeaders/n", 'x', record, strlen(record));
    lkt_tar_add(&archive, "short", '0', "pax", 3);
    memset(prefix, 'p', sizeof prefix - 1);
    size_t at = archive.count;
    lkt_tar_text(&archive, "rest", "ustar");
    memcpy(archive.bytes + at + 345, prefix, 155); /* the checksum is adjusted below */
    (void)snprintf((char *)archive.bytes + at + 148, 8, "%06o",
                   (unsigned)(strtoul((char *)archive.bytes + at + 148, NULL, 8) + 155 * 'p'));
    lkt_tar_end(&archive);
    lki_tar_begin(&tar, archive.bytes, archive.count, "x");
    for (int i = 0; i < 3; i++) {
        LKT_OK(lki_tar_next(&tar, &member, &more));
        assert_true(more);
        assert_int_equal(strlen(member.name), i < 2 ? 299 : 155 + 1 + 4);
        assert_int_equal(member.bytes, i < 2 ? 3 : 5);
        assert_memory_equal(archive.bytes + member.offset, i == 0 ? "gnu" : i == 1 ? "pax" : "ust",
                            3);
    }
    LKT_OK(lki_tar_next(&tar, &member, &more));
    assert_false(more);
}

static void shards_are_read_in_order(void **state)
{
    (void)state;
    static const char *const names[] = { "s/b/1.tar", "s/a.tar", "s/c.tar" };
    static const char *const same[] = { "r-08.tar", "r-09.tar", "r-10.tar" };
    (void)mkdir("s", 0700);
    (void)mkdir("s/b", 0700);
    lkt_write_text("s/notes.txt", "no archive");
    for (uint32_t k = 0; k < 3; k++) {
        archive.count = 0;
        lkt_tar_sample(&archive, "one", 4, 10 * k, (int)k);
        lkt_tar_sample(&archive, "two", 4, 10 * k + 1, (int)k + 3);
        lkt_tar_end(&archive);
        save(names[k]);
        save(same[k == 1 ? 0 : k == 0 ? 1 : 2]);
    }
    static const int32_t order[6] = { 1, 4, 0, 3, 2, 5 };
    lk_dataset *folder = lkt_open("tar:s?h=4&w=4", &none);
    lk_dataset *range  = lkt_open("tar:r-{08..10}.tar?h=4&w=4", &none);
    assert_int_equal(lk_dataset_describe(folder)->train_count, 6);
    assert_string_equal(lk_dataset_describe(folder)->content_hash,
                        lk_dataset_describe(range)->content_hash);
    for (uint64_t i = 0; i < 6; i++) {
        float   x[2][48];
        int32_t y[2];
        LKT_OK(lk_dataset_read(folder, false, 0, i, x[0], &y[0]));
        LKT_OK(lk_dataset_read(range, false, 0, i, x[1], &y[1]));
        assert_int_equal(y[0], order[i]);
        assert_memory_equal(x[0], x[1], sizeof x[0]);
    }
    lk_dataset_free(folder);
    lk_dataset_free(range);
    lkt_refuses("tar:r-{08..11}.tar", &none, LK_EIO, "r-11.tar", "");
    lkt_refuses("tar:r-{8-10}.tar", &none, LK_EINVAL, "write the range as {000..127}", "{8-10}");
    lkt_refuses("tar:r-{9..8}.tar", &none, LK_EINVAL, "write the range", "");
    (void)mkdir("empty", 0700);
    lkt_refuses("tar:empty", &none, LK_EIO, "'empty' has no .tar file", "");
}

/* ---- Damage --------------------------------------------------------------------------------- */

static void an_archive_cut_off_anywhere_is_refused(void **state)
{
    (void)state;
    lki_tar_member member;
    lki_tar        tar;
    make_archive();
    for (size_t bytes = 0; bytes < archive.count - 512; bytes++) {
        uint8_t *exact = malloc(bytes > 0 ? bytes : 1);
        bool     more  = true;
        assert_non_null(exact);
        memcpy(exact, archive.bytes, bytes);
        lki_tar_begin(&tar, exact, bytes, "cut.tar");
        lk_status status = LK_OK;
        while (status == LK_OK && more)
            status = lki_tar_next(&tar, &member, &more);
        assert_int_equal(status, LK_EFORMAT);
        assert_non_null(strstr(lk_error_last()->message, "'cut.tar' ends at byte "));
        assert_non_null(strstr(lk_error_last()->message, "truncated"));
        free(exact);
    }
    lkt_write("cut.tar", archive.bytes, 1100);
    lkt_refuses("tar:cut.tar", &none, LK_EFORMAT, "'cut.tar' ends at byte 1100, inside the member "
                                                  "'a/one.png' at byte 512", "truncated");
}

static void a_damaged_header_is_refused(void **state)
{
    (void)state;
    make_archive();
    for (size_t i = 512; i < 1024; i++) { /* every byte of the second header */
        lki_tar_member member;
        lki_tar        tar;
        bool           more = true;
        if (i - 512 >= 148 && i - 512 < 156) /* the checksum itself */
            continue;
        archive.bytes[i] ^= 0x10;
        lki_tar_begin(&tar, archive.bytes, archive.count, "x.tar");
        assert_int_equal(lki_tar_next(&tar, &member, &more), LK_EFORMAT);
        assert_non_null(strstr(lk_error_last()->message, "at byte 512 is no header"));
        archive.bytes[i] ^= 0x10;
    }
    char text[600];
    memset(text, 't', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    lkt_write_text("text.tar", text);
    lkt_refuses("tar:text.tar", &none, LK_EFORMAT, "'text.tar' is no tar archive", "byte 0");
}

/* Makes an archive with these members; each ".png" contains an image. */
static void make_members(const char *const *members)
{
    static lkt_file       picture;
    static const uint8_t  rows[4] = { 1, 2, 3, 4 };
    lkt_png(&picture, 2, 2, 8, 0, NULL, rows, 2);
    archive.count = 0;
    for (; *members != NULL; members += 2)
        if (strcmp(members[1], "PNG") == 0)
            lkt_tar_add(&archive, members[0], '0', picture.bytes, picture.count);
        else
            lkt_tar_text(&archive, members[0], members[1]);
    lkt_tar_end(&archive);
    save("x.tar");
}

static void incomplete_samples_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *members[9], *first, *second;
    } bad[] = {
        { { "d/a.png", "PNG", "d/a.cls", "1", "d/b.png", "PNG" },
          "'x.tar': the sample 'd/b' at byte 2048 has an image but no class", ".cls" },
        { { "a.png", "PNG", "b.txt", "1", "a.cls", "1" },
          "'x.tar': the sample 'a' at byte 0 has an image but no class", ".cls" },
        { { "a.cls", "1", "b.cls", "2" }, "the sample 'a' at byte 0 has a class but no image",
          ".png" },
        { { "a.cls", "1", "a.png", "PNG", "a.jpg", "x" },
          "'a.jpg' at byte 2048 is the second image of its sample", "'x.tar'" },
        { { "a.cls", "1", "a.cls", "1", "a.png", "PNG" },
          "'a.cls' at byte 1024 is the second class", "'x.tar'" },
        { { "a.png", "PNG", "a.cls", "cat" },
          "'a.cls' at byte 1024 is no class: 'cat'", "'x.tar'" },
        { { "a.png", "PNG", "a.cls", "-1" }, "is no class: '-1'", "'x.tar'" },
        { { "a.png", "PNG", "a.cls", "2147483647" }, "is no class: '2147483647'", "'x.tar'" },
        { { "a.png", "PNG", "a.cls", "" }, "is no class: ''", "'x.tar'" },
        { { "a.txt", "1" }, "'x.tar' has no samples: 1 archives", ".cls" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        make_members(bad[i].members);
        lkt_refuses("tar:x.tar", &none, LK_EFORMAT, bad[i].first, bad[i].second);
    }
    static const char *const good[] = { "a.png", "PNG", "a.cls", " 1", "a.cls", "3\r\n", NULL };
    make_members(good + 4);
    lkt_refuses("tar:x.tar", &none, LK_EFORMAT, "has a class but no image", "'a'");
    static const char *const three[] = { "a.png", "PNG", "a.cls", "3\r\n", NULL };
    make_members(three);
    lkt_refuses("tar:x.tar?classes=3", &none, LK_EFORMAT, "a sample of class 3, but classes=3",
                "0 to 2");
    lkt_refuses("tar:x.tar?c=2", &none, LK_EINVAL, "c is 1 (grey) or 3 (colours)", "");
    lkt_refuses("tar:x.tar?side=2", &none, LK_EINVAL, "'side=2' is no setting", "");
    lkt_refuses("tar:nowhere.tar", &none, LK_EIO, "nowhere.tar", "");
}

/* Makes an archive of a good image and a damaged image, `bytes`.  Checks that the damaged image is
 * refused when it is read, with a message that contains `why`. */
static void refuses_picture(const char *name, const uint8_t *bytes, size_t count, const char *why)
{
    char    text[128];
    float   x[48];
    int32_t y;
    archive.count = 0;
    lkt_tar_add(&archive, "good.jpg", '0', jpeg, sizeof jpeg);
    lkt_tar_text(&archive, "good.cls", "0");
    lkt_tar_add(&archive, name, '0', bytes, count);
    lkt_tar_text(&archive, "bad.cls", "1");
    lkt_tar_end(&archive);
    save("x.tar");
    lk_dataset *set = lkt_open("tar:x.tar?h=4&w=4", &none);
    LKT_OK(lk_dataset_read(set, false, 0, 0, x, &y));
    assert_int_equal(lk_dataset_read(set, false, 0, 1, x, &y), LK_EFORMAT);
    (void)snprintf(text, sizeof text, "'x.tar': '%s' at byte 2048 is no good %s", name, why);
    if (strstr(lk_error_last()->message, text) == NULL)
        fail_msg("'%s' lacks '%s'", lk_error_last()->message, text);
    lk_dataset_free(set);
}

static void a_damaged_picture_is_named(void **state)
{
    (void)state;
    static lkt_file picture;
    static uint8_t  rows[8 * 8], damaged[sizeof jpeg];
    lkt_png(&picture, 8, 8, 8, 0, NULL, rows, 8);
    refuses_picture("bad.jpg", jpeg, 350, "JPEG: Premature end of JPEG file");
    refuses_picture("bad.jpg", jpeg, 100, "JPEG: ");
    refuses_picture("bad.jpg", rows, 64, "JPEG: Not a JPEG file");
    refuses_picture("bad.jpg", (const uint8_t *)"", 0, "JPEG: ");
    memcpy(damaged, jpeg, sizeof damaged);
    damaged[330] = 0xff; /* in the pixels: a marker that is not allowed there */
    damaged[331] = 0xd8;
    refuses_picture("bad.jpg", damaged, sizeof damaged, "JPEG: ");
    refuses_picture("bad.png", picture.bytes, picture.count - 20, "PNG: ");
    refuses_picture("bad.png", rows, 64, "PNG: Not a PNG file");
    picture.bytes[picture.count - 22] ^= 1;
    refuses_picture("bad.png", picture.bytes, picture.count, "PNG: ");
    lkt_png(&picture, 8, 8, 8, 0, NULL, rows, 8);
    picture.bytes[18] = 0xff; /* claims 65,288 columns */
    uint32_t crc = (uint32_t)crc32(0, picture.bytes + 12, 17);
    for (int i = 0; i < 4; i++)
        picture.bytes[29 + i] = (uint8_t)(crc >> (24 - 8 * i));
    refuses_picture("bad.png", picture.bytes, picture.count, "PNG: it claims more pixels than");
}

/* Checks that a loader delivers all samples before the damage, then reports it at every call. */
static void a_loader_reports_a_damaged_sample(void **state)
{
    (void)state;
    archive.count = 0;
    for (int i = 0; i < 9; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%d.jpg", i);
        lkt_tar_add(&archive, name, '0', jpeg, i == 7 ? 350 : sizeof jpeg);
        (void)snprintf(name, sizeof name, "%d.cls", i);
        lkt_tar_text(&archive, name, "1");
    }
    lkt_tar_end(&archive);
    save("x.tar");
    lk_dataset *set = lkt_open("tar:x.tar?h=4&w=4", &none);
    for (uint32_t threads = 1; threads <= 4; threads++) {
        lk_loader_options options = { .struct_size = sizeof(lk_loader_options),
                                      .global_batch = 2, .micro_batch = 2, .virtual_workers = 1,
                                      .count = 1, .end_step = 5, .order = LK_ORDER_SEQUENTIAL,
                                      .threads = threads };
        lk_loader *loader = NULL;
        lk_batch   batch;
        LKT_OK(lk_loader_open(&loader, set, &options));
        for (int i = 0; i < 3; i++)
            LKT_OK(lk_loader_next(loader, &batch));
        for (int i = 0; i < 3; i++) {
            assert_int_equal(lk_loader_next(loader, &batch), LK_EFORMAT);
            assert_non_null(strstr(lk_error_last()->message, "'7.jpg' at byte 14336 is no good"));
        }
        lk_loader_free(loader);
    }
    lk_dataset_free(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_jpeg_has_the_pixels_of_djpeg),
        cmocka_unit_test(every_kind_of_png_becomes_bytes),
        cmocka_unit_test(samples_are_found_in_order),
        cmocka_unit_test(a_picture_is_cropped_and_resized),
        cmocka_unit_test(long_names_are_read),
        cmocka_unit_test(shards_are_read_in_order),
        cmocka_unit_test(an_archive_cut_off_anywhere_is_refused),
        cmocka_unit_test(a_damaged_header_is_refused),
        cmocka_unit_test(incomplete_samples_are_named),
        cmocka_unit_test(a_damaged_picture_is_named),
        cmocka_unit_test(a_loader_reports_a_damaged_sample),
    };
    return cmocka_run_group_tests(tests, lkt_enter_folder, lkt_leave_folder);
}

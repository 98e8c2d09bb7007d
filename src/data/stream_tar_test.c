/* stream_tar_test.c -- tests images from an archive that is read once, as a stream.
 *
 * Goal:   stream: gives the batches that tar: gives for the same archives, augmented or not, from
 *         any sample on.  Several archives may follow each other, also in a file of tar:, but other
 *         bytes may not follow.  An archive truncated anywhere delivers its complete batches, then
 *         reports the byte and the member at which the archive ends.
 * Method: archives generated here, in a file and in a pipe opened by its name in /proc.
 */
#include "data/tar_testing.h"

#include "data/stream.h"

enum { BATCH = 4, SAMPLES = 10, SIDE = 8, VALUES = SIDE * SIDE * 3 };

#define SETTINGS "h=8&w=8&classes=4"

static lkt_file archive;
static size_t   ends[SAMPLES]; /* where each sample ends */

/* Creates an archive.  In some samples the class comes first, in others the image.  Some samples
 * also have other members. */
static void make_archive(uint32_t first, uint32_t count)
{
    archive.count = 0;
    for (uint32_t i = first; i < first + count; i++) {
        char key[16], name[32];
        (void)snprintf(key, sizeof key, "d/%u", i);
        (void)snprintf(name, sizeof name, "d/%u.json", i);
        if (i % 3 == 2)
            lkt_tar_class(&archive, key, (int)(i % 4));
        lkt_tar_picture(&archive, key, 7 + i % 4, i);
        if (i % 3 != 2)
            lkt_tar_class(&archive, key, (int)(i % 4));
        ends[i - first] = archive.count;
        lkt_tar_text(&archive, i % 2 == 0 ? name : "note", "{}");
    }
    lkt_tar_end(&archive);
}

static void write_archive(const char *path)
{
    lkt_write(path, archive.bytes, archive.count);
}

/* Reads batches from sample `skip` to the end or a failure.  Returns the number of samples. */
static uint64_t read_all(const lk_dataset *set, uint64_t skip, float *x, int32_t *y,
                         lk_status *status)
{
    lki_stream *stream = NULL;
    uint64_t    count = 0, got = 0;
    bool        last  = false;
    LKT_OK(lki_stream_open(&stream, set, skip, BATCH));
    for (*status = LK_OK; *status == LK_OK && !last; count += got) {
        got     = 0;
        *status = lki_stream_take(stream, -1, BATCH, x + count * VALUES, y + count, &got, &last);
        assert_true(*status != LK_OK || last || got == BATCH);
        got = *status == LK_OK ? got : 0;
    }
    lki_stream_close(stream);
    return count;
}

static void assert_same(const lk_dataset *tar, const lk_dataset *set, uint64_t skip,
                        uint64_t count)
{
    static float   x[(SAMPLES + BATCH) * VALUES];
    static int32_t y[SAMPLES + BATCH];
    float          want[VALUES];
    int32_t        label;
    lk_status      status;
    assert_int_equal(read_all(set, skip, x, y, &status), count - skip);
    assert_int_equal(status, LK_OK);
    for (uint64_t i = skip; i < count; i++) {
        LKT_OK(lk_dataset_read(tar, false, 0, i, want, &label));
        assert_memory_equal(want, x + (i - skip) * VALUES, sizeof want);
        assert_int_equal(y[i - skip], label);
    }
}

static void batches_are_those_of_the_archive(void **state)
{
    static const lk_augment ways[] = {
        { 0 },
        { .crop = 2, .flip = true },
        { .resized_crop = 0.2, .flip = true },
    };
    (void)state;
    make_archive(0, SAMPLES);
    write_archive("a.tar");
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        const lk_dataset_options *way = LKT_DATASET(.seed = 7, .augment = ways[i]);
        lk_dataset               *tar = lkt_open("tar:a.tar?" SETTINGS, way);
        lk_dataset               *set = lkt_open("stream:a.tar?tar=1&" SETTINGS, way);
        for (uint64_t skip = 0; skip <= SAMPLES; skip++)
            assert_same(tar, set, skip, SAMPLES);
        lk_dataset_free(set);
        lk_dataset_free(tar);
    }
}

static void archives_follow_each_other_in_a_pipe(void **state)
{
    int  fds[2];
    char spec[128];
    (void)state;
    assert_int_equal(pipe(fds), 0);
    for (uint32_t k = 0; k < 2; k++) {
        make_archive(k * SAMPLES / 2, SAMPLES / 2);
        (void)snprintf(spec, sizeof spec, "%u.tar", k);
        write_archive(spec);
        assert_int_equal(write(fds[1], archive.bytes, archive.count), (ssize_t)archive.count);
    }
    (void)close(fds[1]);
    (void)snprintf(spec, sizeof spec, "stream:/proc/self/fd/%d?tar=1&" SETTINGS, fds[0]);
    lk_dataset *tar = lkt_open("tar:{0..1}.tar?" SETTINGS, LKT_DATASET(.seed = 1));
    lk_dataset *set = lkt_open(spec, LKT_DATASET(.seed = 1));
    assert_same(tar, set, 0, SAMPLES);
    lk_dataset_free(set);
    lk_dataset_free(tar);
    (void)close(fds[0]);
}

/* Checks that zeros after an archive are skipped, that a second archive is read, and that other
 * bytes are refused with their offset. */
static void bytes_after_an_archive_are_checked(void **state)
{
    static lkt_file          whole;
    static float             x[(SAMPLES + BATCH) * VALUES];
    static int32_t           y[SAMPLES + BATCH];
    const lk_dataset_options options = { .struct_size = sizeof(lk_dataset_options), .seed = 1 };
    char                     place[64], junk[512];
    lk_status                status;
    (void)state;
    whole.count = 0;
    for (uint32_t k = 0; k < 2; k++) {
        make_archive(k * SAMPLES / 2, SAMPLES / 2);
        lkt_add(&whole, archive.bytes, archive.count);
        lkt_tar_end(&whole); /* two more blocks of zeros */
    }
    make_archive(0, SAMPLES);
    write_archive("one.tar");
    lkt_write("both.tar", whole.bytes, whole.count);
    lk_dataset *one  = lkt_open("tar:one.tar?" SETTINGS, &options);
    lk_dataset *both = lkt_open("tar:both.tar?" SETTINGS, &options);
    lk_dataset *set  = lkt_open("stream:both.tar?tar=1&" SETTINGS, &options);
    assert_int_equal(lk_dataset_describe(both)->train_count, SAMPLES);
    assert_same(both, set, 0, SAMPLES);
    assert_same(one, set, 0, SAMPLES);
    (void)snprintf(place, sizeof place, "what stands at byte %zu is no header", whole.count);
    memset(junk, 'x', sizeof junk);
    lkt_add(&whole, junk, sizeof junk);
    lkt_write("both.tar", whole.bytes, whole.count);
    lkt_refuses("tar:both.tar", &options, LK_EFORMAT, place, "'both.tar'");
    (void)read_all(set, 0, x, y, &status);
    assert_int_equal(status, LK_EFORMAT);
    assert_non_null(strstr(lk_error_last()->message, place));
    lk_dataset_free(set);
    lk_dataset_free(both);
    lk_dataset_free(one);
}

/* Truncates an archive.  Expects that whole batches are delivered, and that the message has the
 * byte and the member at which the archive ends. */
static void cut_at(size_t bytes, const lk_dataset *set)
{
    static float   x[(SAMPLES + BATCH) * VALUES];
    static int32_t y[SAMPLES + BATCH];
    char           end[64];
    lk_status      status;
    assert_int_equal(truncate("cut.tar", (off_t)bytes), 0);
    uint64_t count = read_all(set, 0, x, y, &status), whole = 0;
    while (whole < SAMPLES && ends[whole] <= bytes)
        whole++;
    /* one sample more if only its padding is cut off */
    assert_in_range(count, whole / BATCH * BATCH, (whole + 1) / BATCH * BATCH);
    assert_int_equal(status, LK_EFORMAT);
    (void)snprintf(end, sizeof end, "'stream:cut.tar' ends at byte %zu", bytes);
    const char *said = lk_error_last()->message;
    if (strstr(said, end) == NULL ||
        (strstr(said, "inside the member '") == NULL && strstr(said, "it is truncated") == NULL))
        fail_msg("cut at %zu: %s", bytes, said);
}

static void a_truncated_archive_is_reported(void **state)
{
    (void)state;
    make_archive(0, SAMPLES);
    size_t whole = archive.count - 1024; /* size of the archive without the two blocks of zeros at
                                          * its end */
    write_archive("cut.tar");
    lk_dataset *set = lkt_open("stream:cut.tar?tar=1&" SETTINGS, LKT_DATASET(.seed = 1));
    for (size_t bytes = whole + 511; bytes > 700; bytes -= bytes > whole - 512 ? 1 : 131)
        cut_at(bytes, set);
    cut_at(512 + 40, set);
    assert_non_null(strstr(lk_error_last()->message, "inside the member 'd/0.png' at byte 0: it "));
    cut_at(0, set);
    lk_dataset_free(set);
}

static void refuses(const char *settings, const char *text)
{
    static float   x[(SAMPLES + BATCH) * VALUES];
    static int32_t y[SAMPLES + BATCH];
    char           spec[128];
    lk_status      status;
    (void)snprintf(spec, sizeof spec, "stream:bad.tar?tar=1&h=8&w=8&%s", settings);
    write_archive("bad.tar");
    lk_dataset *set = lkt_open(spec, LKT_DATASET(.seed = 1));
    (void)read_all(set, 0, x, y, &status);
    assert_int_equal(status, LK_EFORMAT);
    if (strstr(lk_error_last()->message, text) == NULL)
        fail_msg("'%s', not '%s'", lk_error_last()->message, text);
    lk_dataset_free(set);
}

static void invalid_members_are_named(void **state)
{
    const lk_dataset_options none = { .struct_size = sizeof(lk_dataset_options), .seed = 1 };
    (void)state;
    make_archive(0, SAMPLES);
    refuses("classes=3", "'d/3.cls' at byte ");
    memset(archive.bytes + 512 + 60, 0, 20);
    refuses("classes=4", "'d/0.png'");
    archive.count = 0;
    lkt_tar_text(&archive, "0.cls", "1");
    lkt_tar_end(&archive);
    refuses("classes=4", "the sample '0' at byte 0 has a class but no image");
    memset(archive.bytes, 'x', 512);
    refuses("classes=4", "what stands at byte 0 is no header");
    lkt_refuses("stream:-?tar=1", &none, LK_EINVAL, "must have classes=", "stream:-");
    lkt_refuses("stream:-?tar=1&classes=2&c=2", &none, LK_EINVAL, "c is 1 (grey) or 3", "stream:-");
    lkt_refuses("stream:-?tar=1&classes=2&width=16", &none, LK_EINVAL, "tar=1 and classes=", "-");
    lkt_refuses("stream:-?h=2&w=2&classes=257", &none, LK_EINVAL, "at most 256", "stream:-");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_are_those_of_the_archive),
        cmocka_unit_test(archives_follow_each_other_in_a_pipe),
        cmocka_unit_test(bytes_after_an_archive_are_checked),
        cmocka_unit_test(a_truncated_archive_is_reported),
        cmocka_unit_test(invalid_members_are_named),
    };
    return cmocka_run_group_tests(tests, lkt_enter_folder, lkt_leave_folder);
}

/* file_watch_test.c -- tests that files that change while a data set uses them are reported by
 * name, and that no other files are reported. */
#include "data/data_testing.h"

#include <fcntl.h>

enum { TEXT = 4096 };

static const lk_dataset_options options = { .struct_size = sizeof(lk_dataset_options),
                                            .context     = 16 };

static lk_dataset *open_text(void)
{
    static const char filling[TEXT] = { 'a' };
    lk_dataset       *dataset       = NULL;
    lkt_write("text", filling, sizeof filling);
    LKT_OK(lk_dataset_open(&dataset, "text:text", &options));
    LKT_OK(lk_dataset_check(dataset));
    return dataset;
}

static void assert_changed(const lk_dataset *dataset, const char *words)
{
    assert_int_equal(lk_dataset_check(dataset), LK_EIO);
    if (strstr(lk_error_last()->message, "'text' has changed since it was opened") == NULL ||
        strstr(lk_error_last()->message, words) == NULL)
        fail_msg("no '%s' in: %s", words, lk_error_last()->message);
}

static void write_at(const char *path, off_t at)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "b", 1, at), 1);
    assert_int_equal(close(fd), 0);
}

static struct timespec changed(const char *path)
{
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    return status.st_mtim;
}

/* Waits until the clock of the file system has advanced. */
static void let_time_pass(void)
{
    lkt_write_text("clock", "x");
    struct timespec before = changed("clock"), now = before;
    while (now.tv_sec == before.tv_sec && now.tv_nsec == before.tv_nsec) {
        (void)usleep(1000);
        lkt_write_text("clock", "x");
        now = changed("clock");
    }
}

static void a_file_that_changes_in_place_is_named(void **state)
{
    (void)state;
    lk_dataset *dataset = open_text();
    let_time_pass();
    write_at("text", 7);
    assert_changed(dataset, "written at 20");
    lk_dataset_free(dataset);

    dataset = open_text();
    write_at("text", TEXT);
    assert_changed(dataset, "from 4096 bytes to 4097");
    lk_dataset_free(dataset);

    dataset = open_text();
    assert_int_equal(truncate("text", 100), 0);
    assert_changed(dataset, "from 4096 bytes to 100");
    lk_dataset_free(dataset);
}

/* Checks that a data set continues to use the file that it opened. */
static void a_file_that_is_replaced_or_removed_does_no_harm(void **state)
{
    (void)state;
    int32_t     x[16], y[16], again[16];
    lk_dataset *dataset = open_text();
    LKT_OK(lk_dataset_read(dataset, false, 0, 0, x, y));
    let_time_pass();
    lkt_write_text("other", "something else");
    assert_int_equal(rename("other", "text"), 0);
    LKT_OK(lk_dataset_check(dataset));
    assert_int_equal(unlink("text"), 0);
    LKT_OK(lk_dataset_check(dataset));
    LKT_OK(lk_dataset_read(dataset, false, 0, 0, again, y));
    assert_memory_equal(x, again, sizeof x);
    lk_dataset_free(dataset);
}

static void every_file_of_a_folder_counts(void **state)
{
    static const char        zeros[400];
    static const char *const shards[] = { "shards/a.u16", "shards/b.u16" };
    (void)state;
    assert_int_equal(mkdir("shards", 0700), 0);
    for (size_t i = 0; i < 2; i++) {
        lk_dataset *dataset = NULL;
        for (size_t k = 0; k < 2; k++)
            lkt_write(shards[k], zeros, sizeof zeros);
        LKT_OK(lk_dataset_open(&dataset, "shards:shards", &options));
        let_time_pass();
        write_at(shards[i], 3);
        assert_int_equal(lk_dataset_check(dataset), LK_EIO);
        assert_non_null(strstr(lk_error_last()->message, shards[i]));
        lk_dataset_free(dataset);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_that_changes_in_place_is_named),
        cmocka_unit_test(a_file_that_is_replaced_or_removed_does_no_harm),
        cmocka_unit_test(every_file_of_a_folder_counts),
    };
    return cmocka_run_group_tests(tests, lkt_enter_folder, lkt_leave_folder);
}

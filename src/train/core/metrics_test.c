/* metrics_test.c -- checks the lock of the metrics while another run replaces the file. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmocka.h>

#include "train/core/metrics.h"

enum { LOCKS_MAX = 200 }; /* more than a run may try */

/* Another run, which replaces the file just before each attempt to lock it. */
static struct {
    const char *path; /* NULL: there is none */
    int         lock; /* on its newest file */
    int         tries;
} other;

static char folder[40], path[64], draft[72];

static int make_file(const char *name)
{
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    return fd;
}

int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);

int __wrap_flock(int fd, int operation)
{
    if (other.path == NULL)
        return __real_flock(fd, operation);
    assert_true(++other.tries < LOCKS_MAX);
    int next = make_file(draft);
    assert_int_equal(__real_flock(next, LOCK_EX), 0);
    assert_int_equal(rename(draft, other.path), 0);
    (void)close(other.lock);
    other.lock = next;
    return __real_flock(fd, operation);
}

/* Waiting takes no time here. */
int __wrap_nanosleep(const struct timespec *wanted, struct timespec *left);
int __wrap_nanosleep(const struct timespec *wanted, struct timespec *left)
{
    (void)wanted;
    (void)left;
    return 0;
}

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/lockstep-metrics-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    (void)snprintf(path, sizeof path, "%s/m.prom", folder);
    (void)snprintf(draft, sizeof draft, "%s.new", path);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(folder);
}

static void a_file_that_another_run_replaces_is_refused(void **state)
{
    lki_metrics mine;
    (void)state;
    other.lock = make_file(path);
    assert_int_equal(__real_flock(other.lock, LOCK_EX), 0);
    other.path = path;
    lki_metrics_open(&mine, path);
    assert_int_equal(lki_metrics_begin(&mine), LK_EIO);
    assert_non_null(strstr(lk_error_last()->message, "another run is writing the `metrics`"));
    other.path = NULL;
    lki_metrics_close(&mine);
    assert_int_equal(access(path, F_OK), 0); /* it is that of the other run */
    (void)close(other.lock);
    lki_metrics_open(&mine, path);
    assert_int_equal(lki_metrics_begin(&mine), LK_OK);
    lki_metrics_close(&mine);
    assert_int_equal(access(path, F_OK), 0);
}

static void a_file_that_was_made_for_nothing_is_removed(void **state)
{
    lki_metrics mine;
    (void)state;
    (void)unlink(path);
    lki_metrics_open(&mine, path);
    assert_int_equal(lki_metrics_begin(&mine), LK_OK);
    assert_int_equal(access(path, F_OK), 0);
    lki_metrics_close(&mine);
    assert_int_equal(access(path, F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_that_another_run_replaces_is_refused),
        cmocka_unit_test(a_file_that_was_made_for_nothing_is_removed),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

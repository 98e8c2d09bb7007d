/* sweep_test.c -- a writer survives others that sweep its directory before it holds its draft.
 *
 * Method: the linker replaces C library functions by those below (sweep_test.wrap lists them).
 *         They do what another writer can do just then: it takes the new directory for one that a
 *         killed process has left, and removes it, or it publishes the same step.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/checkpoint_testing.h"
#include "checkpoint/directory.h"

#include <cmocka.h>

typedef enum { NEVER, MADE, OPENED, LOCKING, PUBLISHED } moment;

static moment   when;
static unsigned times; /* number of times that the directory will be removed */

int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode);
int __real_open(const char *path, int flags, mode_t mode);
int __wrap_open(const char *path, int flags, ...);
int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);

/* Returns true if the other writer acts now, on this path. */
static bool acts(moment now, const char *path)
{
    if (when != now || times == 0 || strstr(path, "/.tmp-") == NULL)
        return false;
    times--;
    return true;
}

static void sweep(void)
{
    const moment now = when;
    when             = NEVER; /* the other writer's own calls are not replaced */
    lki_directory_sweep(folder);
    when = now;
}

/* The other writer is a child, because names of temporary directories have the process's id. */
static void publish(void)
{
    int         end   = -1;
    const pid_t child = fork();
    if (child == 0)
        _exit(small_write(folder, 1, 0) == LK_OK ? 0 : 1);
    assert_int_equal(waitpid(child, &end, 0), child);
    assert_int_equal(end, 0);
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    int made = __real_mkdir(path, mode);
    if (made == 0 && acts(MADE, path))
        sweep();
    if (made == 0 && acts(PUBLISHED, path))
        publish();
    return made;
}

int __wrap_open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    int fd = __real_open(path, flags, mode);
    if (fd >= 0 && (flags & O_DIRECTORY) != 0 && acts(OPENED, path))
        sweep();
    return fd;
}

/* The other writer has the lock, and removes the directory a little later. */
int __wrap_flock(int fd, int operation)
{
    char    link[64], path[512];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    if (!acts(LOCKING, path))
        return __real_flock(fd, operation);
    int other = __real_open(path, O_RDONLY | O_DIRECTORY, 0);
    assert_int_equal(__real_flock(other, LOCK_EX), 0);
    int got = __real_flock(fd, operation), error = errno;
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(close(other), 0);
    errno = error;
    return got;
}

static void a_draft_that_is_swept_is_made_again(void **state)
{
    (void)state;
    uint64_t step = 1;
    for (when = MADE; when <= LOCKING; when++)
        for (unsigned count = 1; count <= 3; count++, step++) {
            times = count;
            if (small_write(folder, step, 0) != LK_OK)
                fail_msg("moment %d, %u times: %s", (int)when, count, lk_error_last()->message);
            assert_int_equal(times, 0);
        }
    when = NEVER;
    assert_int_equal(entries(folder, "step-"), 9);
    assert_int_equal(entries(folder, ".tmp-"), 0);
}

/* Another writer publishes the same step first. */
static void a_step_of_another_writer_is_kept(void **state)
{
    (void)state;
    lk_checkpoint *c;
    when  = PUBLISHED;
    times = 1;
    assert_int_equal(small_write(folder, 1, 0), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "another process has written"));
    when = NEVER;
    assert_int_equal(lk_checkpoint_open_step(&c, folder, 1), LK_OK);
    lk_checkpoint_free(c);
    assert_int_equal(entries(folder, ".tmp-"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_draft_that_is_swept_is_made_again, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_step_of_another_writer_is_kept, make_folder,
                                        remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

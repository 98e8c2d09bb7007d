/* crash_test.c -- tests a crash, a power failure and an error at every system call of a write.
 *
 * Goal:   whatever happens while step 2 is written, by one process or in parts, opening the
 *         directory finds step 1 or step 2, intact.  A final name only ever refers to a complete
 *         step, and the next write works.
 * Method: the linker replaces C library functions by the functions below (crash_test.wrap lists
 *         them).  A forked child writes step 1, then step 2 with a fault at the k-th call. k
 *         increases until a write completes without reaching its fault.
 *
 * A power failure is modelled at its worst.  Files lose all data not followed by an fsync of the
 * file.  Directories lose the new entries and renames not followed by an fsync of the directory.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/wait.h>

#include "checkpoint/checkpoint_testing.h"

#include <cmocka.h>

typedef enum { NOTHING, CRASH, POWER_LOSS, ERROR_ONCE, ERROR_FROM_THEN_ON, DRIBBLE } fault;

enum { FILES_MAX = 64, CRASHED = 99, NOT_REACHED = 77, REFUSED = 1, WRONG = 2 };

typedef struct { ino_t inode, parent; int fd; bool data_safe, entry_safe; } made_file;
typedef struct { ino_t parent; char from[512], to[512]; } made_rename;

/* The state of the child in which the fault occurs. */
static struct {
    fault       kind;
    long        calls, at;
    int         error;
    ino_t       failed_fsync;
    bool        parts; /* step 2 is written in parts */
    made_file   files[FILES_MAX];
    made_rename renames[FILES_MAX];
    size_t      file_count, rename_count;
} now;

int     __real_open(const char *path, int flags, mode_t mode);
ssize_t __real_write(int fd, const void *data, size_t bytes);
int     __real_rename(const char *from, const char *to);
int     __real_mkdir(const char *path, mode_t mode);
int     __real_unlink(const char *path);
int     __real_rmdir(const char *path);

int     __wrap_open(const char *path, int flags, ...);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);
int     __wrap_fsync(int fd);
int     __wrap_rename(const char *from, const char *to);
int     __wrap_mkdir(const char *path, mode_t mode);
int     __wrap_unlink(const char *path);
int     __wrap_rmdir(const char *path);

/* ---- The disk after a power failure -------------------------------------------------------- */

static void lose_power(void)
{
    for (size_t i = now.rename_count; i-- > 0;)
        (void)__real_rename(now.renames[i].to, now.renames[i].from);
    for (size_t i = 0; i < now.file_count; i++) {
        char    link[64], path[512];
        ssize_t length;
        if (!now.files[i].data_safe)
            (void)!ftruncate(now.files[i].fd, 0);
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", now.files[i].fd);
        length = readlink(link, path, sizeof path - 1); /* its current path */
        if (!now.files[i].entry_safe && length > 0) {
            path[length] = '\0';
            (void)__real_unlink(path);
        }
    }
}

static ino_t inode_of_parent(const char *path)
{
    char        parent[512];
    struct stat info;
    (void)snprintf(parent, sizeof parent, "%s", path);
    *strrchr(parent, '/') = '\0';
    return stat(parent, &info) == 0 ? info.st_ino : 0;
}

/* Counts a call; returns true if the fault occurs at this call. */
static bool strikes(void)
{
    if (now.kind == NOTHING || now.kind == DRIBBLE)
        return false;
    now.calls++;
    if (now.calls < now.at || (now.calls > now.at && now.kind != ERROR_FROM_THEN_ON))
        return false;
    if (now.kind == POWER_LOSS)
        lose_power();
    if (now.kind == CRASH || now.kind == POWER_LOSS)
        _exit(CRASHED);
    errno = now.error;
    return true;
}

/* ---- The calls ----------------------------------------------------------------------------- */

int __wrap_open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (strikes())
        return -1;
    int fd = __real_open(path, flags, mode);
    if (fd >= 0 && (flags & O_CREAT) != 0 && now.kind == POWER_LOSS) {
        struct stat info;
        if (now.file_count == FILES_MAX || fstat(fd, &info) != 0)
            _exit(WRONG);
        now.files[now.file_count++] =
            (made_file){ info.st_ino, inode_of_parent(path), dup(fd), false, false };
    }
    return fd;
}

ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
    if (now.kind == DRIBBLE) {
        now.calls++;
        errno = EINTR;
        return now.calls % 3 == 0 ? -1 : __real_write(fd, data, bytes < 7 ? bytes : 7);
    }
    return strikes() ? -1 : __real_write(fd, data, bytes);
}

int __wrap_fsync(int fd)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || (now.failed_fsync != 0 && info.st_ino == now.failed_fsync))
        _exit(WRONG); /* a second fsync after a failed one could report false success */
    if (strikes()) {
        now.failed_fsync = info.st_ino;
        return -1;
    }
    for (size_t i = 0; i < now.file_count; i++) {
        now.files[i].data_safe |= now.files[i].inode == info.st_ino;
        now.files[i].entry_safe |= now.files[i].parent == info.st_ino;
    }
    size_t left = 0;
    for (size_t i = 0; i < now.rename_count; i++)
        if (now.renames[i].parent != info.st_ino)
            now.renames[left++] = now.renames[i];
    now.rename_count = left;
    return 0; /* no real sync is needed, because the model above is the disk */
}

int __wrap_rename(const char *from, const char *to)
{
    if (strikes())
        return -1;
    int result = __real_rename(from, to);
    if (result == 0 && now.kind == POWER_LOSS && now.rename_count < FILES_MAX) {
        made_rename *made = &now.renames[now.rename_count++];
        made->parent      = inode_of_parent(to);
        (void)snprintf(made->from, sizeof made->from, "%s", from);
        (void)snprintf(made->to, sizeof made->to, "%s", to);
    }
    return result;
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    return strikes() ? -1 : __real_mkdir(path, mode);
}

int __wrap_unlink(const char *path)
{
    return strikes() ? -1 : __real_unlink(path);
}

int __wrap_rmdir(const char *path)
{
    return strikes() ? -1 : __real_rmdir(path);
}

/* ---- One write with one fault -------------------------------------------------------------- */

static _Noreturn void child(fault kind, long at, int error, bool with_old)
{
    if (with_old && small_write(folder, 1, 0) != LK_OK)
        _exit(WRONG);
    now.at           = at;
    now.error        = error;
    now.kind         = kind;
    lk_status status = now.parts ? small_write_parts(folder, 2, 1) : small_write(folder, 2, 1);
    now.kind         = NOTHING;
    if (status == LK_OK)
        _exit(now.calls < at ? NOT_REACHED : 0);
    const char *message = lk_error_last()->message;
    bool        good    = status == LK_EIO && strstr(message, folder) != NULL &&
                strstr(message, strerror(error)) != NULL;
    if (!good)
        fprintf(stderr, "call %ld: %s: %s\n", at, lk_status_name(status), message);
    _exit(good ? REFUSED : WRONG);
}

/* Forks a child that writes with a fault, and returns its exit status. */
static int write_with(fault kind, long at, int error, bool with_old)
{
    int   status;
    pid_t id = fork();
    assert_true(id >= 0);
    if (id == 0)
        child(kind, at, error, with_old);
    assert_int_equal(waitpid(id, &status, 0), id);
    if (!WIFEXITED(status) || WEXITSTATUS(status) == WRONG)
        fail_msg("fault %d (%s) at call %ld: status %d", (int)kind, strerror(error), at, status);
    return WEXITSTATUS(status);
}

/* Returns the step that is found when the directory is opened; 0 if there is none. */
static uint64_t opens_to(long at)
{
    lk_checkpoint *checkpoint;
    char           notes[1000];
    bool           exists;
    assert_int_equal(lk_checkpoint_exists(folder, &exists), LK_OK);
    if (lk_checkpoint_open(&checkpoint, folder, notes, sizeof notes) != LK_OK) {
        if (exists)
            fail_msg("call %ld: %s", at, lk_error_last()->message);
        return 0;
    }
    if (strstr(notes, "step-00000002") != NULL)
        fail_msg("call %ld: the new one has its name but is not whole: %s", at, notes);
    uint64_t step = lk_checkpoint_describe(checkpoint)->step;
    assert_memory_equal(lk_checkpoint_tensor(checkpoint, 3)->data, &step, sizeof step);
    lk_checkpoint_free(checkpoint);
    return step;
}

static void assert_goes_on(void)
{
    assert_int_equal(small_write(folder, 3, 2), LK_OK);
    assert_int_equal(opens_to(0), 3);
    assert_int_equal(entries(folder, ".tmp-"), 0);
}

static void start_again(void)
{
    remove_all(folder);
    assert_int_equal(mkdir(folder, 0777), 0);
}

static void strike_everywhere(fault kind, bool with_old)
{
    bool     done  = false;
    uint64_t last  = with_old ? 1 : 0;
    long     calls = 0;
    for (long at = 1; !done; at++) {
        int result = write_with(kind, at, EIO, with_old);
        done       = result == NOT_REACHED;
        assert_true(done || result == CRASHED);
        uint64_t step = opens_to(at);
        assert_true(step == last || step == 2); /* for faults up to some call the old step is found,
                                                 * and for later faults step 2 */
        last  = step;
        calls = at;
        assert_goes_on();
        start_again();
    }
    assert_int_equal(last, 2);
    assert_true(calls >= 18);
}

static void survives_crashes(void **state)
{
    (void)state;
    strike_everywhere(CRASH, true);
    strike_everywhere(CRASH, false);
}

static void survives_crashes_between_parts(void **state)
{
    (void)state;
    now.parts = true;
    strike_everywhere(CRASH, true);
    strike_everywhere(POWER_LOSS, true);
    now.parts = false;
}

static void survives_power_failures(void **state)
{
    (void)state;
    strike_everywhere(POWER_LOSS, true);
    strike_everywhere(POWER_LOSS, false);
}

/* Checks that either step 2 exists and is complete, or the write reports the reason and leaves
 * nothing. */
static void reports_every_error(void **state)
{
    (void)state;
    static const int errors[] = { ENOSPC, EACCES };
    for (size_t e = 0; e < sizeof errors / sizeof errors[0]; e++) {
        bool done = false;
        for (long at = 1; !done; at++) {
            int result = write_with(ERROR_ONCE, at, errors[e], true);
            done       = result == NOT_REACHED;
            assert_int_equal(opens_to(at), result == REFUSED ? 1 : 2);
            if (result == REFUSED)
                assert_int_equal(entries(folder, ".tmp-"), 0);
            assert_goes_on();
            start_again();
        }
    }
}

/* Tests a disk that fails permanently.  Nothing can be cleaned up.  Expects that the old step can
 * still be opened. */
static void a_failing_disk_leaves_the_old_checkpoint(void **state)
{
    (void)state;
    bool done = false;
    for (long at = 1; !done; at++) {
        int result = write_with(ERROR_FROM_THEN_ON, at, EIO, true);
        done       = result == NOT_REACHED;
        uint64_t step = opens_to(at);
        assert_true(step == 2 || (step == 1 && result == REFUSED));
        assert_goes_on();
        start_again();
    }
}

static void short_writes_are_continued(void **state)
{
    (void)state;
    assert_int_equal(write_with(DRIBBLE, 0, EIO, true), 0);
    assert_int_equal(opens_to(0), 2);
    assert_goes_on();
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(survives_crashes),
        CASE(survives_power_failures),
        CASE(survives_crashes_between_parts),
        CASE(reports_every_error),
        CASE(a_failing_disk_leaves_the_old_checkpoint),
        CASE(short_writes_are_continued),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

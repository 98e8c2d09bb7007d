/* lock_test.c -- checks the lock of a checkpoint directory on file systems without locks, and if
 * the lock file changes during locking. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "train/saves/lock.h"

static struct {
    int         error;   /* error of locking; 0: locking works */
    const char *removed; /* file removed just before the next lock; NULL: none */
} now;

int __real_fcntl(int fd, int command, void *argument);
int __wrap_fcntl(int fd, int command, void *argument);

int __wrap_fcntl(int fd, int command, void *argument)
{
    if (command == F_OFD_SETLK && now.removed != NULL) {
        (void)unlink(now.removed);
        now.removed = NULL;
    }
    if (command == F_OFD_SETLK && now.error != 0) {
        errno = now.error;
        return -1;
    }
    return __real_fcntl(fd, command, argument);
}

static char folder[40], path[64];

static int make_folder(void **state)
{
    (void)state;
    now = (__typeof__(now)){ 0, NULL };
    strcpy(folder, "/tmp/lockstep-lock-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    (void)snprintf(path, sizeof path, "%s/.lock", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(folder);
}

static void a_lock_is_taken_once_and_leaves_no_file(void **state)
{
    int mine, other = -1;
    (void)state;
    assert_int_equal(lki_lock_check(folder), LK_OK);
    assert_int_equal(lki_lock_take(&mine, folder, NULL), LK_OK);
    assert_int_equal(lki_lock_check(folder), LK_EIO);
    assert_int_equal(lki_lock_take(&other, folder, NULL), LK_EIO);
    assert_int_equal(other, -1);
    assert_non_null(strstr(lk_error_last()->message, folder));
    lki_lock_drop(mine, folder);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(lki_lock_check(folder), LK_OK);
}

static void a_removed_lock_file_is_no_lock(void **state)
{
    int mine, other;
    (void)state;
    now.removed = path; /* a run ends just after its lock file was opened */
    assert_int_equal(lki_lock_take(&mine, folder, NULL), LK_OK);
    assert_int_equal(lki_lock_take(&other, folder, NULL), LK_EIO);
    lki_lock_drop(mine, folder);
}

/* Writes to `out` the note that rank 0 prints if locking fails with `error`. */
static void note_of(int error, char *out, size_t bytes)
{
    lk_train_config config  = { .struct_size = sizeof(lk_train_config), .quiet = true };
    lki_journal    *journal = NULL;
    char            said[64];
    int             mine, before = dup(STDERR_FILENO);
    (void)snprintf(said, sizeof said, "%s.said", folder);
    assert_int_equal(lki_journal_open(&journal, &config), LK_OK);
    assert_non_null(freopen(said, "w", stderr));
    now.error        = error;
    lk_status status = lki_lock_take(&mine, folder, journal);
    (void)fflush(stderr);
    (void)dup2(before, STDERR_FILENO);
    (void)close(before);
    assert_int_equal(status, LK_OK);
    FILE *file = fopen(said, "r");
    assert_non_null(file);
    out[fread(out, 1, bytes - 1, file)] = '\0';
    (void)fclose(file);
    (void)unlink(said);
    lki_lock_drop(mine, folder);
    lki_journal_free(journal);
}

static void a_file_system_without_locks_is_noted(void **state)
{
    static const int errors[] = { ENOLCK, EOPNOTSUPP, EINVAL };
    (void)state;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        char said[512], wanted[256];
        note_of(errors[i], said, sizeof said);
        (void)snprintf(wanted, sizeof wanted, "note: '%s' cannot be locked (%s): see to it that",
                       folder, strerror(errors[i]));
        assert_non_null(strstr(said, wanted));
    }
}

/* Lets another run sign the lock file on a file system whose locks have no effect.  Expects that
 * the first run detects the new signature. */
static void a_lost_lock_is_detected(void **state)
{
    int mine, status;
    (void)state;
    assert_int_equal(lki_lock_take(&mine, folder, NULL), LK_OK);
    assert_int_equal(lki_lock_hold(mine, folder), LK_OK);
    assert_int_equal(lki_lock_hold(-1, folder), LK_OK);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0); /* empty, as on a full disk, where no run can sign */
    assert_int_equal(lki_lock_hold(mine, folder), LK_OK);
    pid_t other = fork();
    if (other == 0) {
        const lk_train_config config  = { .struct_size = sizeof(lk_train_config), .quiet = true };
        lki_journal          *journal = NULL;
        now.error                     = ENOLCK;
        bool opened = lki_journal_open(&journal, &config) == LK_OK;
        _exit(opened && lki_lock_take(&mine, folder, journal) == LK_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(other, &status, 0), other);
    assert_int_equal(status, 0);
    assert_int_equal(lki_lock_hold(mine, folder), LK_EIO);
    char wanted[64];
    (void)snprintf(wanted, sizeof wanted, "another run (pid %d on ", (int)other);
    assert_memory_equal(lk_error_last()->message, wanted, strlen(wanted));
    lki_lock_drop(mine, folder);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_lock_is_taken_once_and_leaves_no_file),
        CASE(a_removed_lock_file_is_no_lock),
        CASE(a_file_system_without_locks_is_noted),
        CASE(a_lost_lock_is_detected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

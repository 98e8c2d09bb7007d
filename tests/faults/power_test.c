/* power_test.c -- simulates a power failure just after a checkpoint got its final name, and checks
 * that the log has every step up to the checkpoint.
 *
 * Goal:   a run that resumes from any surviving checkpoint finds a log with every step before it,
 *         so that the finished log has every step once.
 * Method: a run in this process.  The linker replaces the C library's fsync() and rename() by the
 *         functions below (power_test.wrap).  When a checkpoint gets its name the power fails, in
 *         the worst way: the log loses all bytes written after its last fsync, and its name unless
 *         its directory was synced.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "lockstep/launch.h"
#include "lockstep/train.h"

enum { EVERY = 2, STEPS = 6, CRASHED = 99 };

static struct {
    const char *fatal;     /* the power fails at this name; NULL: never */
    off_t       log_safe;  /* number of bytes of the log that are on the disk */
    bool        name_safe; /* the log's directory entry is on the disk */
} disk;

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_fsync(int fd);

int __wrap_fsync(int fd)
{
    struct stat synced, log, here;
    if (fstat(fd, &synced) != 0 || stat("logs", &here) != 0)
        return -1;
    if (stat("logs/log", &log) != 0)
        return 0; /* the run has not made it yet */
    if (synced.st_ino == log.st_ino)
        disk.log_safe = log.st_size;
    disk.name_safe |= synced.st_ino == here.st_ino;
    return 0;
}

int __wrap_rename(const char *from, const char *to)
{
    int result = __real_rename(from, to);
    if (disk.fatal != NULL && strstr(to, disk.fatal) != NULL) {
        if (truncate("logs/log", disk.log_safe) != 0 ||
            (!disk.name_safe && unlink("logs/log") != 0))
            _exit(1);
        _exit(CRASHED);
    }
    return result;
}

static lk_status run_training(lk_comm *comm, void *context)
{
    lk_train_result result;
    return lk_train_run(comm, context, &result);
}

static lk_status train(bool resume)
{
    lk_train_config config = { .struct_size       = sizeof(lk_train_config),
                               .model             = "mlp",
                               .data.source       = "synthetic:samples=64,features=4,classes=3",
                               .global_batch      = 8,
                               .steps             = STEPS,
                               .schedule          = { .lr = 0.1 },
                               .workers           = 1,
                               .checkpoint.folder = "ck",
                               .checkpoint.every  = EVERY,
                               .checkpoint.keep   = STEPS,
                               .checkpoint.resume = resume,
                               .checkpoint.resume_step = -1,
                               .log                    = "logs/log",
                               .quiet                  = true };
    lk_status       status = lk_train_check(&config);
    return status == LK_OK ? lk_launch_threads(1, 0, run_training, &config) : status;
}

/* Runs in a separate process, in which the power fails at `fatal`.  Returns its exit status. */
static int run_until(const char *fatal)
{
    int   status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        disk.fatal = fatal;
        _exit(train(false) == LK_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Reads the next line about a step or the end.  A resumed run may lack lines about checkpoints, and
 * has a first line of its own. */
static void next_line(char *line, int size, FILE *log)
{
    do
        assert_non_null(fgets(line, size, log));
    while (strstr(line, "\"checkpoint\"") != NULL || strstr(line, "\"config\"") != NULL ||
           strstr(line, "\"workers\"") != NULL);
}

/* Checks that the log has the steps 1 to `steps` in order, and then only the end. */
static void assert_log(unsigned long steps)
{
    char  line[8192];
    FILE *log = fopen("logs/log", "r");
    assert_non_null(log);
    for (unsigned long wanted = 1; wanted <= steps; wanted++) {
        unsigned long step = 0;
        next_line(line, sizeof line, log);
        (void)sscanf(line, "{\"step\": %lu, \"epoch\"", &step);
        assert_int_equal(step, wanted);
    }
    next_line(line, sizeof line, log);
    assert_non_null(strstr(line, "\"weights\""));
    (void)fclose(log);
}

static void no_step_before_a_checkpoint_is_lost(void **state)
{
    static const char *const names[] = { "/step-00000002", "/step-00000004", "/step-00000006" };
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_int_equal(mkdir("logs", 0700), 0); /* only the log would sync this directory */
        assert_int_equal(run_until(names[i]), CRASHED);
        assert_int_equal(train(true), LK_OK);
        assert_log(STEPS);
        assert_int_equal(system("rm -rf ck logs"), 0);
    }
}

static int enter_folder(void **state)
{
    static char folder[] = "/tmp/lockstep-power-XXXXXX";
    *state               = folder;
    return mkdtemp(folder) == NULL ? -1 : chdir(folder);
}

static int leave_folder(void **state)
{
    return chdir("/") == 0 ? rmdir(*state) : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_step_before_a_checkpoint_is_lost),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}

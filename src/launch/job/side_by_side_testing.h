/* launch/job/side_by_side_testing.h -- runs tests side by side, each in its own process, because
 * they spend most of their time waiting.
 *
 * The program is started again for each test, with the arguments "only TEST" (see only_one()).
 */
#ifndef LKI_LAUNCH_JOB_SIDE_BY_SIDE_TESTING_H
#define LKI_LAUNCH_JOB_SIDE_BY_SIDE_TESTING_H

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { TESTS_MAX = 16 };

/* Restricts cmocka to the test that the arguments name.  Returns false if the arguments name no
 * test. */
static inline bool only_one(int argc, char **argv)
{
    if (argc < 3 || strcmp(argv[1], "only") != 0)
        return false;
    cmocka_set_test_filter(argv[2]);
    return true;
}

static inline pid_t start_only(char *program, char *name, int output)
{
    char *argv[] = { program, (char[]){ "only" }, name, NULL };

    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        (void)dup2(output, STDOUT_FILENO);
        (void)dup2(output, STDERR_FILENO);
        (void)execv(program, argv);
        _exit(127);
    }
    return pid;
}

/* Runs the named tests, and fails with the output of all tests that have failed. */
static inline void run_side_by_side(char *program, char *const *names, size_t count)
{
    static char text[16384];
    pid_t       pids[TESTS_MAX];
    int         outputs[TESTS_MAX], failed = 0;

    assert_true(count <= TESTS_MAX);
    for (size_t i = 0; i < count; i++) {
        outputs[i] = memfd_create(names[i], MFD_CLOEXEC);
        pids[i]    = start_only(program, names[i], outputs[i]);
        assert_true(outputs[i] >= 0 && pids[i] > 0);
    }
    for (size_t i = 0; i < count; i++) {
        int status = 0;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        ssize_t got             = pread(outputs[i], text, sizeof text - 1, 0);
        text[got > 0 ? got : 0] = '\0';
        (void)close(outputs[i]);
        if (status != 0)
            print_error("%s: status %#x\n%s\n", names[i], status, text);
        failed += status != 0;
    }
    assert_int_equal(failed, 0);
}

#endif

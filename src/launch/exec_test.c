/* exec_test.c -- tests that an exec that does not return ends at a deadline, with an error that
 * names the rank.
 *
 * Method: the linker replaces the C library's execvpe() by the function below (exec_test.wrap).  In
 *         rank 1 the function hangs, as on a file system that does not answer.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "lockstep/launch.h"

int __real_execvpe(const char *file, char *const argv[], char *const environment[]);
int __wrap_execvpe(const char *file, char *const argv[], char *const environment[]);

int __wrap_execvpe(const char *file, char *const argv[], char *const environment[])
{
    for (size_t i = 0; environment[i] != NULL; i++)
        while (strcmp(environment[i], "RANK=1") == 0)
            (void)pause();
    return __real_execvpe(file, argv, environment);
}

static void an_exec_that_hangs_is_named(void **state)
{
    char             *argv[]  = {(char[]){"sleep"}, (char[]){"100"}, NULL};
    lk_launch_options options = {.struct_size = sizeof(lk_launch_options),
                                 .workers = 3, .argv = argv, .timeout_ms = 5000};
    lk_launch_result  result;
    unsigned          rank = 9;
    int               pid  = 0;
    char              rest[256] = "";
    (void)state;
    assert_int_equal(lk_launch(&options, &result), LK_ETIMEOUT);
    const char *message = lk_error_last()->message;
    if (sscanf(message, "rank %u (pid %d) %255[^\n]", &rank, &pid, rest) != 3 || rank != 1 ||
        strncmp(rest, "has not become sleep within 5 s", 31) != 0)
        fail_msg("it says: %s", message);
    assert_int_equal(kill(pid, 0), -1); /* no process is left */
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(result.exit_code, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_exec_that_hangs_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

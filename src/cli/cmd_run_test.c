/* cmd_run_test.c -- tests the output and exit status of `lockstep run` and `lockstep doctor`. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

static char said[65536]; /* stdout and stderr of the last command */

/* Runs a shell command line, where $L is the program.  Returns the exit status. */
static int shell(const char *line)
{
    char command[1024];

    (void)setenv("L", LK_TEST_COMMAND, 1);
    (void)snprintf(command, sizeof command, "{ %s ; } 2>&1", line);
    FILE  *pipe = popen(command, "r");
    size_t got  = fread(said, 1, sizeof said - 1, pipe);
    said[got]   = '\0';
    int status  = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void assert_run(const char *line, int status, const char *words)
{
    int got = shell(line);
    if (got != status || strstr(said, words) == NULL)
        fail_msg("%s\nexits with %d (not %d) and says (without \"%s\"):\n%s", line, got, status,
                 words, said);
}

static void runs_any_program(void **state)
{
    (void)state;
    assert_run("$L run -n 2 -- sh -c 'echo I am $RANK of $WORLD_SIZE'", 0, "[1] I am 1 of 2\n");
    assert_run("$L run -n 2 --no-prefix sh -c 'echo I am $RANK'", 0, "I am 0\n");
    assert_null(strstr(said, "["));
    assert_run("$L run --workers 1 -- sh -c 'echo aside >&2' 2>&1 >/dev/null", 0, "[0] aside\n");
}

static void reports_the_first_failure(void **state)
{
    (void)state;
    assert_run("$L run -n 2 -- sh -c 'test $RANK = 0 || exit 3; sleep 30'", 3,
               "lockstep run: rank 1 (pid ");
    assert_non_null(strstr(said, "exited with status 3\n"));
    assert_run("$L run -n 2 -- sh -c 'test $RANK = 1 || kill -9 $$; sleep 30'", 128 + 9,
               "was killed by SIGKILL\n");
    assert_non_null(strstr(said, "\n(if nobody sent SIGKILL, the kernel did for lack of memory"));
    assert_run("$L run -n 2 -- sh -c 'test $RANK = 1 || kill -BUS $$; sleep 30'", 128 + 7,
               "\n(usually a file was truncated while it was read, such as the data: restore it)");
    for (int i = 8; i < 14; i++) {
        char line[80];
        (void)snprintf(line, sizeof line, "ulimit -n %d; $L run -n 4 --no-prefix -- true", i);
        assert_run(line, 1, "Too many open files; ulimit -n allows how many descriptors");
    }
    assert_run("$L run -n 2 no-such-program", 127, "cannot run no-such-program");
    assert_run("$L run -n 2 /", 126, "cannot run /");
}

static void passes_signals_on(void **state)
{
    (void)state;
    assert_run("f=$(mktemp); $L run -n 2 -- sh -c 'trap \"echo asked; exit 75\" TERM; echo ready; "
               "while :; do sleep 0.05; done' >$f & until test $(grep -c ready $f) = 2; do "
               "sleep 0.05; done; kill -TERM $!; wait $!; s=$?; cat $f; rm $f; exit $s",
               75, "[1] asked\n");
    assert_run("f=$(mktemp); $L run -n 2 -- sh -c 'echo ready; exec sleep 100' >$f & "
               "until test $(grep -c ready $f) = 2; do sleep 0.05; done; "
               "kill -TERM $!; wait $!; s=$?; rm $f; exit $s",
               128 + 15, "SIGTERM");
}

static void run_prints_help_and_refuses_usage_errors(void **state)
{
    (void)state;
    assert_run("$L run --help", 0, "lockstep run -n 4 ./my_training");
    assert_run("$L run -n 2", 2, "PROGRAM");
    assert_run("$L run ls", 2, "-n N is missing");
    assert_run("$L run -n 0 ls", 2, "-n 0: must be");
    assert_run("$L run -n x ls", 2, "-n x: must be");
    assert_run("$L run -n 2 --frobnicate ls", 2, "frobnicate");
    assert_run("$L run -n 2 --timeout 0 ls", 2, "timeout");
}

static void run_ends_when_its_output_is_closed(void **state)
{
    (void)state;
    assert_run("$L run -n 2 yes 2>/dev/null | head -1", 0, "y\n");
}

/* Checks that output for a closed descriptor is lost with an error, and silence is no loss. */
static void run_refuses_to_lose_output(void **state)
{
    (void)state;
    assert_run("$L run -n 2 echo hello >&-", 1, "standard output could not be written");
    assert_run("$L run -n 2 --no-prefix /bin/echo hello >&-", 1, "exited with status 1");
    assert_run("$L run -n 2 true >&-", 0, "");
    assert_run("$L run -n 1 -- sh -c 'cat; echo aside >&2' <&- 2>&-", 0, "");
}

static void doctor_reports_the_requirements(void **state)
{
    (void)state;
    assert_run("$L doctor", 0, "ok       pidfd");
    assert_non_null(strstr(said, "cores"));
    assert_null(strstr(said, "\nmissing"));
    assert_run("ulimit -n 66; $L doctor", 0, "warn     open files");
    assert_run("$L doctor --help", 0, "lockstep doctor");
    assert_run("$L doctor now", 2, "now");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_any_program),
        cmocka_unit_test(reports_the_first_failure),
        cmocka_unit_test(passes_signals_on),
        cmocka_unit_test(run_prints_help_and_refuses_usage_errors),
        cmocka_unit_test(run_ends_when_its_output_is_closed),
        cmocka_unit_test(run_refuses_to_lose_output),
        cmocka_unit_test(doctor_reports_the_requirements),
    };
    return cmocka_run_group_tests_name("cli.cmd_run", tests, NULL, NULL);
}

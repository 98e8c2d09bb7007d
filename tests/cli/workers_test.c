/* workers_test.c -- tests how ps shows a run: the names of the command and of each worker's
 * process. */
#include "faults/job.h"

static void read_proc(pid_t pid, const char *name, char *out, size_t bytes)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    out[fread(out, 1, bytes - 1, file)] = '\0';
    (void)fclose(file);
}

static void worker_processes_have_names(void **state)
{
    static job j;
    job_start(&j, *state, 3, MLP "--steps 100000000 --log pipe");
    job_await_step(&j, HIT_AT);
    for (uint32_t i = 0; i < 3; i++) {
        char name[64], wanted[64], command[4096]; /* the first argument ends with a NUL */
        read_proc(j.worker[i], "comm", name, sizeof name);
        (void)snprintf(wanted, sizeof wanted, "lockstep:%u\n", i);
        assert_string_equal(name, wanted);
        read_proc(j.worker[i], "cmdline", command, sizeof command);
        assert_string_equal(command, LK_TEST_COMMAND);
    }
    job_hit(&j, j.pid, SIGTERM);
    (void)job_wait(&j);
    assert_int_equal(j.result.status, 75);
}

/* Checks that the command works even if its file is removed (as in an upgrade) while the command
 * starts. */
static void workers_start_from_a_removed_command(void **state)
{
    static command_result r;
    char                  wanted[65], digits[65];
    run_command(&r, *state, MLP "--steps 3 --workers 2 --quiet");
    read_weights(&r, wanted);
    (void)run_shell(&r, *state,
                    "cp " LK_TEST_COMMAND " self && exec 3<self && rm self && /proc/self/fd/3 " MLP
                    "--steps 3 --workers 2 --quiet");
    assert_int_equal(r.status, 0);
    read_weights(&r, digits);
    assert_string_equal(digits, wanted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker_processes_have_names),
        cmocka_unit_test(workers_start_from_a_removed_command),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

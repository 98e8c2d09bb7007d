/* workers_test.c -- tests how ps shows a run, by the names of the command and of each worker's
 * process, and what a terminal shows after Ctrl-C. */
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

/* Starts a line of the shell whose stderr is a terminal.  Presses Ctrl-C once the bar is there, and
 * reads all that is written.  Returns the exit status. */
static int press_ctrl_c(const char *line, char *out, size_t bytes)
{
    char   path[64];
    int    terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), status;
    size_t used     = 0;
    bool   pressed  = false;
    assert_true(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    assert_int_equal(ptsname_r(terminal, path, sizeof path), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const int theirs = setsid() < 0 ? -1 : open(path, O_RDWR); /* the controlling terminal */
        if (theirs < 0 || dup2(theirs, STDERR_FILENO) < 0 || setenv("TERM", "xterm", 1) != 0)
            _exit(126);
        (void)execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    for (ssize_t got; (got = read(terminal, out + used, bytes - 1 - used)) > 0;) {
        used += (size_t)got;
        out[used] = '\0';
        if (!pressed && strstr(out, "0/100000000  computing step 1") != NULL)
            pressed = write(terminal, "\003", 1) == 1;
    }
    (void)close(terminal);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The launcher's answer to Ctrl-C takes the place of the bar, which a worker has drawn. */
static void an_answer_takes_the_place_of_the_bar(void **state)
{
    static const char *const modes[] = { "processes", "threads" };
    static char              out[65536];
    for (size_t i = 0; i < 2; i++) {
        char line[1024];
        (void)snprintf(line, sizeof line, "cd %s && rm -rf kept && exec " LK_TEST_COMMAND " " MLP
                       "--steps 100000000 --workers 2 --checkpoint kept --worker-mode %s >out",
                       (const char *)*state, modes[i]);
        const int status = press_ctrl_c(line, out, sizeof out);
        if (status != 75)
            fail_msg("status %d: %s", status, out);
        assert_says(out, "\r\033[Klockstep train: note: the workers are asked to save and end");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker_processes_have_names),
        cmocka_unit_test(workers_start_from_a_removed_command),
        cmocka_unit_test(an_answer_takes_the_place_of_the_bar),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

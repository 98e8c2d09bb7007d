/* launch_test.c -- tests lk_launch() with real processes, which call lk_join().
 *
 * The workers are this program: started with "worker MODE" it runs a function of launch_testing.h,
 * and the tests check its exit status.  Memory files in place of standard output and error capture
 * the output.
 */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/pidfd.h"
#include "launch/launch_testing.h"
#include "launch/self_testing.h"

/* ---- Launching and catching -------------------------------------------------------------- */

typedef struct {
    lk_status        status;
    lk_launch_result result;
    char             out[65536], err[65536];
} outcome;

static int catch_stream(int fd, int *saved)
{
    int caught = memfd_create("caught", MFD_CLOEXEC);
    *saved     = fcntl(fd, F_DUPFD_CLOEXEC, 10);
    (void)dup2(caught, fd);
    return caught;
}

static void release_stream(int fd, int saved, int caught, char *text, size_t bytes)
{
    (void)dup2(saved, fd);
    (void)close(saved);
    ssize_t got = pread(caught, text, bytes - 1, 0);
    text[got > 0 ? got : 0] = '\0';
    (void)close(caught);
}

static char self[SELF_BYTES];

static void launch_program(outcome *o, lk_launch_options options, char *const *argv)
{
    int saved[2], caught[2];

    options.argv = argv;
    (void)fflush(NULL);
    caught[0] = catch_stream(1, &saved[0]);
    caught[1] = catch_stream(2, &saved[1]);
    o->status = lk_launch(&options, &o->result);
    release_stream(1, saved[0], caught[0], o->out, sizeof o->out);
    release_stream(2, saved[1], caught[1], o->err, sizeof o->err);
}

/* Launches this program with the arguments "worker MODE".  The returned outcome remains valid until
 * the next launch. */
static const outcome *launch(lk_launch_options options, const char *mode)
{
    static outcome o;
    char           word[] = "worker", copy[32];
    char          *argv[] = {self, word, copy, NULL};

    (void)snprintf(copy, sizeof copy, "%s", mode);
    options.struct_size = sizeof options;
    if (options.timeout_ms == 0)
        options.timeout_ms = 20000;
    launch_program(&o, options, argv);
    return &o;
}

/* A grace period for workers that end by themselves, long enough for a busy machine. */
enum { PATIENT_MS = 60000 };

static lk_launch_options plain(uint32_t workers)
{
    return (lk_launch_options){.struct_size = sizeof(lk_launch_options),
                               .workers = workers, .grace_ms = PATIENT_MS};
}

static lk_launch_options prefixed(uint32_t workers)
{
    return (lk_launch_options){.struct_size = sizeof(lk_launch_options),
                               .workers = workers, .prefix_output = true, .grace_ms = PATIENT_MS};
}

static void assert_cause(const outcome *o, uint32_t rank, int exit_code, const char *words)
{
    char start[64];

    assert_int_equal(o->status, LK_OK);
    assert_true(o->result.failed);
    assert_int_equal(o->result.rank, rank);
    assert_int_equal(o->result.exit_code, exit_code);
    (void)snprintf(start, sizeof start, "rank %u (pid %d) ", rank, o->result.pid);
    if (strncmp(o->result.cause, start, strlen(start)) != 0 ||
        strstr(o->result.cause, words) == NULL)
        fail_msg("cause is \"%s\", not \"%s...%s\"", o->result.cause, start, words);
    assert_null(strchr(o->result.cause, '\n'));
}

static void assert_good(const outcome *o)
{
    assert_string_equal(o->result.cause, "");
    assert_int_equal(o->status, LK_OK);
    assert_false(o->result.failed);
    assert_int_equal(o->result.exit_code, 0);
}

static bool has_line(const char *text, const char *line)
{
    size_t length = strlen(line);
    for (const char *at = strstr(text, line); at != NULL; at = strstr(at + 1, line))
        if ((at == text || at[-1] == '\n') && at[length] == '\n')
            return true;
    return false;
}

/* ---- Tests ------------------------------------------------------------------------------- */

static void workers_receive_their_environment(void **state)
{
    (void)state;
    (void)setenv("CANARY", "sings", 1);
    (void)setenv("RANK", "77", 1); /* as if a launcher had started this process */
    (void)unsetenv("OMP_NUM_THREADS");
    const outcome *o = launch(prefixed(3), "environment");
    (void)unsetenv("RANK");
    assert_good(o);
    static const char *const lines[] = {
        "[0] RANK=0",       "[1] RANK=1",        "[2] RANK=2",
        "[0] WORLD_SIZE=3", "[2] WORLD_SIZE=3",  "[1] LOCAL_WORLD_SIZE=3",
        "[0] CANARY=sings", "[2] LOCAL_RANK=2",  "[1] MASTER_ADDR=127.0.0.1",
        "[0] OMP_NUM_THREADS=1",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        if (!has_line(o->out, lines[i]))
            fail_msg("no line \"%s\" in:\n%s", lines[i], o->out);
}

static void workers_learn_whether_they_may_continue(void **state)
{
    (void)state;
    lk_launch_options options = plain(2);
    const outcome    *o       = launch(options, "environment");
    assert_good(o);
    assert_true(has_line(o->out, "LOCKSTEP_CONTINUES=(none)"));
    options.on_failure = LK_ON_FAILURE_CONTINUE;
    o                  = launch(options, "environment");
    assert_good(o);
    assert_true(has_line(o->out, "LOCKSTEP_CONTINUES=1"));
}

static void the_users_thread_count_is_kept(void **state)
{
    (void)state;
    (void)setenv("OMP_NUM_THREADS", "5", 1);
    const outcome *o = launch(prefixed(1), "environment");
    (void)unsetenv("OMP_NUM_THREADS");
    assert_good(o);
    assert_true(has_line(o->out, "[0] OMP_NUM_THREADS=5"));
    assert_false(has_line(o->out, "[0] OMP_NUM_THREADS=1"));
}

static void prefixes_whole_lines(void **state)
{
    (void)state;
    const outcome *o = launch(prefixed(2), "lines");
    assert_good(o);
    assert_true(has_line(o->out, "[1] one"));
    assert_true(has_line(o->out, "[1] two"));
    assert_true(has_line(o->out, "[1] "));
    assert_true(has_line(o->out, "[1] last")); /* the worker wrote no newline */
    assert_string_equal(o->err, "[1] aside\n");

    size_t x = 0, lines = 0; /* rank 0's long line arrived complete, in three pieces */
    for (const char *c = o->out; *c != '\0'; c++) {
        x += *c == 'x';
        lines += *c == '\n';
    }
    assert_int_equal(x, 20000);
    assert_int_equal(lines, 4 + 3);
}

static void inherits_output_as_it_is(void **state)
{
    (void)state;
    const outcome *o = launch(plain(1), "leaves_child");
    assert_good(o);
    assert_string_equal(o->out, "gone\n");
}

static void children_of_workers_are_not_waited_for(void **state)
{
    (void)state;
    const outcome *o = launch(prefixed(2), "leaves_child");
    assert_good(o);
    assert_true(has_line(o->out, "[0] gone") && has_line(o->out, "[1] gone"));
}

static void gives_input_to_rank_0_alone(void **state)
{
    (void)state;
    int ends[2], saved = dup(0);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "hello", 5), 5);
    (void)close(ends[1]);
    (void)dup2(ends[0], 0);
    const outcome *o = launch(prefixed(2), "input");
    (void)dup2(saved, 0);
    (void)close(saved);
    (void)close(ends[0]);
    assert_good(o);
    assert_true(has_line(o->out, "[0] hello"));
    assert_true(has_line(o->out, "[1] nothing"));
}

static void reports_an_exit_status(void **state)
{
    (void)state;
    const outcome *o = launch(plain(3), "exit3");
    assert_cause(o, 1, 3, "exited with status 3");
}

static void reports_a_killed_worker_and_wakes_its_peers(void **state)
{
    (void)state;
    const outcome *o = launch(prefixed(3), "kill9");
    char           words[96];
    assert_cause(o, 1, 128 + SIGKILL, "was killed by SIGKILL at step 12 in backward");
    assert_int_equal(o->result.signal, SIGKILL);
    (void)snprintf(words, sizeof words, "rank 1 (pid %d) was killed by SIGKILL", o->result.pid);
    assert_non_null(strstr(o->err, "[0] "));
    assert_non_null(strstr(o->err, "[2] "));
    assert_non_null(strstr(o->err, words));
}

static void the_cause_is_reported_not_its_consequences(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++)
        assert_cause(launch(plain(4), "quiet"), 1, 7, "exited with status 7");
    assert_cause(launch(plain(2), "told_first"), 1, 128 + SIGKILL, "was killed by SIGKILL");
    assert_cause(launch(plain(3), "slow_to_leave"), 0, 5, "0 ranks");
    lk_launch_options impatient = {.struct_size = sizeof(lk_launch_options), .workers = 3};
    assert_cause(launch(impatient, "never_leaves"), 0, 1, "0 ranks");
}

static void the_error_of_a_worker_is_reported(void **state)
{
    (void)state;
    const outcome *o = launch(plain(3), "error");
    assert_cause(o, 2, 1, "failed at step 3 in forward: ");
    assert_non_null(strstr(o->result.cause, "0 ranks"));
}

static void reports_a_stopped_worker(void **state)
{
    (void)state;
    const outcome *o = launch(plain(3), "stopped");
    assert_cause(o, 1, 128 + SIGKILL, "is stopped");
}

static void invalid_programs_and_options_are_refused(void **state)
{
    (void)state;
    static outcome o;
    char           missing[] = "no-such-program-here", directory[] = "/tmp";
    char          *argv[]    = {missing, NULL};
    lk_launch_options two = {.struct_size = sizeof(lk_launch_options), .workers = 2};
    lk_launch_options none = LK_LAUNCH_OPTIONS_INIT;

    launch_program(&o, two, argv);
    assert_int_equal(o.status, LK_EINVAL);
    assert_int_equal(o.result.exit_code, 127);
    assert_non_null(strstr(lk_error_last()->message, "cannot run no-such-program-here"));
    argv[0] = directory;
    launch_program(&o, two, argv);
    assert_int_equal(o.status, LK_EINVAL);
    assert_int_equal(o.result.exit_code, 126);
    launch_program(&o, none, argv);
    assert_int_equal(o.status, LK_EINVAL);
    argv[0] = NULL;
    launch_program(&o, two, argv);
    assert_int_equal(o.status, LK_EINVAL);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no process is left, running or not */
}

static void a_stop_request_ends_the_job_with_status_75(void **state)
{
    (void)state;
    static const char *const modes[] = {"stop", "stop_all"};
    for (int i = 0; i < 2; i++) {
        const outcome *o = launch(plain(3), modes[i]);
        assert_string_equal(o->result.cause, "");
        assert_false(o->result.failed);
        assert_int_equal(o->result.exit_code, 75);
    }
}

static void passes_signals_on_to_plain_programs(void **state)
{
    (void)state;
    const outcome *o = launch(prefixed(2), "plain");
    assert_good(o);
    assert_true(has_line(o->out, "[0] asked") && has_line(o->out, "[1] asked"));
    (void)setenv("USR1", "1", 1);
    o = launch(prefixed(2), "plain");
    (void)unsetenv("USR1");
    assert_true(has_line(o->out, "[0] asked") && has_line(o->out, "[1] asked"));
    assert_int_equal(o->result.exit_code, 20);
}

static void a_second_signal_ends_deaf_workers(void **state)
{
    (void)state;
    const outcome *o = launch((lk_launch_options){.workers = 2, .grace_ms = 100}, "deaf");
    assert_true(o->result.failed);
    assert_int_equal(o->result.exit_code, 128 + SIGTERM);
    assert_non_null(strstr(o->result.cause, "second SIGTERM"));
}

static void workers_that_ignore_requests_are_ended(void **state)
{
    (void)state;
    const outcome *o = launch((lk_launch_options){.workers = 2, .grace_ms = 100}, "heedless");
    assert_true(o->result.failed);
    assert_int_equal(o->result.exit_code, 128 + SIGTERM);
    assert_non_null(strstr(o->result.cause, "lk_stop_requested()"));
}

static void leaves_the_callers_signals_as_they_were(void **state)
{
    (void)state;
    sigset_t before, after;
    (void)sigprocmask(SIG_SETMASK, NULL, &before);
    assert_good(launch(plain(1), "join"));
    (void)sigprocmask(SIG_SETMASK, NULL, &after);
    for (int i = 1; i < 32; i++)
        assert_int_equal(sigismember(&before, i), sigismember(&after, i));
}

/* Reads the workers' pids, kills the launcher, and checks that the workers die. */
static void workers_die_with_their_launcher(void **state)
{
    (void)state;
    int   ends[2], pidfds[2];
    assert_int_equal(pipe(ends), 0);
    pid_t launcher = fork();
    if (launcher == 0) {
        char word[] = "worker", mode[] = "pid";
        char *argv[] = {self, word, mode, NULL};
        lk_launch_options options = {.struct_size = sizeof(lk_launch_options),
                                     .workers = 2, .argv = argv};
        lk_launch_result  result;
        (void)dup2(ends[1], 1);
        (void)close(ends[1]);
        _exit(lk_launch(&options, &result) == LK_OK ? 0 : 1);
    }
    (void)close(ends[1]);
    FILE *lines = fdopen(ends[0], "r");
    for (int i = 0; i < 2; i++) {
        char line[32];
        assert_non_null(fgets(line, sizeof line, lines));
        pidfds[i] = lki_pidfd_open(atoi(line));
        assert_true(pidfds[i] >= 0);
    }
    (void)kill(launcher, SIGKILL);
    assert_int_equal(waitpid(launcher, NULL, 0), launcher);
    for (int i = 0; i < 2; i++) {
        struct pollfd ended = {.fd = pidfds[i], .events = POLLIN};
        assert_int_equal(poll(&ended, 1, 300000), 1);
        (void)close(pidfds[i]);
    }
    (void)fclose(lines);
}

static void jobs_of_many_sizes_join(void **state)
{
    (void)state;
    for (uint32_t workers = 1; workers <= 9; workers += 4)
        assert_good(launch(plain(workers), "join"));
    assert_good(launch(plain(2), "wrong_size"));
}

/* Returns the number of workers that may run on core `cpu`, from the output that the workers have
 * printed. */
static uint32_t times_dealt(const char *text, unsigned cpu)
{
    uint32_t times = 0;
    char     line[32];

    (void)snprintf(line, sizeof line, " on %u\n", cpu);
    for (const char *at = strstr(text, line); at != NULL; at = strstr(at + 1, line))
        times++;
    return times;
}

static void cores_are_distributed_to_workers(void **state)
{
    cpu_set_t mine, after;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    uint32_t cores = (uint32_t)CPU_COUNT(&mine);
    for (uint32_t workers = cores; workers <= cores + 1; workers++) {
        (void)setenv("CORES_ENOUGH", workers <= cores ? "yes" : "no", 1);
        const outcome *o = launch(prefixed(workers), "cores");
        assert_good(o);
        for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (times_dealt(o->out, cpu) != (!CPU_ISSET(cpu, &mine) ? 0
                                             : workers <= cores     ? 1
                                                                    : workers))
                fail_msg("%u workers, core %u:\n%s", workers, cpu, o->out);
    }
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&mine, &after));
}

int main(int argc, char **argv)
{
    if (self_is_worker(self, argc, argv))
        return work(argv[argc - 1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_receive_their_environment),
        cmocka_unit_test(workers_learn_whether_they_may_continue),
        cmocka_unit_test(the_users_thread_count_is_kept),
        cmocka_unit_test(prefixes_whole_lines),
        cmocka_unit_test(inherits_output_as_it_is),
        cmocka_unit_test(children_of_workers_are_not_waited_for),
        cmocka_unit_test(gives_input_to_rank_0_alone),
        cmocka_unit_test(reports_an_exit_status),
        cmocka_unit_test(reports_a_killed_worker_and_wakes_its_peers),
        cmocka_unit_test(the_cause_is_reported_not_its_consequences),
        cmocka_unit_test(the_error_of_a_worker_is_reported),
        cmocka_unit_test(reports_a_stopped_worker),
        cmocka_unit_test(invalid_programs_and_options_are_refused),
        cmocka_unit_test(a_stop_request_ends_the_job_with_status_75),
        cmocka_unit_test(passes_signals_on_to_plain_programs),
        cmocka_unit_test(a_second_signal_ends_deaf_workers),
        cmocka_unit_test(workers_that_ignore_requests_are_ended),
        cmocka_unit_test(leaves_the_callers_signals_as_they_were),
        cmocka_unit_test(workers_die_with_their_launcher),
        cmocka_unit_test(jobs_of_many_sizes_join),
        cmocka_unit_test(cores_are_distributed_to_workers),
    };
    return cmocka_run_group_tests_name("launch.launch", tests, NULL, NULL);
}

/* launch_test.c -- lk_launch() and lk_join(), with real processes.
 *
 * The workers are this very program: started with "worker MODE" it runs one of the functions of
 * the first part, and what it exits with is what the tests of the second part look at.  Output is
 * caught in memory files put in the place of standard output and error.
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
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "lockstep/launch.h"

/* ---- What the workers do ----------------------------------------------------------------- */

static int my_rank(void)
{
    const char *text = getenv("RANK");
    return text != NULL ? atoi(text) : -1;
}

static void sleep_ms(long ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&time, NULL);
}

static lk_comm *join(void)
{
    lk_comm *comm;
    if (lk_join(&comm) == LK_OK)
        return comm;
    fprintf(stderr, "%s\n", lk_error_last()->message);
    exit(90);
}

/* Ends like a program that found an error: tells it to the group, and exits with 1. */
static int give_up(lk_comm *comm)
{
    fprintf(stderr, "%s\n", lk_error_last()->message);
    lk_comm_abort(comm);
    lk_comm_free(comm);
    return 1;
}

static int work_environment(void)
{
    static const char *const names[] = {"RANK",       "WORLD_SIZE",  "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                        "MASTER_ADDR", "OMP_NUM_THREADS", "CANARY"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        printf("%s=%s\n", names[i], getenv(names[i]) != NULL ? getenv(names[i]) : "(none)");
    int port = getenv("MASTER_PORT") != NULL ? atoi(getenv("MASTER_PORT")) : 0;
    return port > 0 && port < 65536 && lk_launched() ? 0 : 4;
}

static int work_lines(void)
{
    if (my_rank() == 1) {
        printf("one\ntwo\n\nlast");
        fprintf(stderr, "aside\n");
        return 0;
    }
    for (int i = 0; i < 20000; i++)
        putchar('x');
    putchar('\n');
    return 0;
}

static int work_exit3(void)
{
    if (my_rank() == 1)
        return 3;
    sleep_ms(20000);
    return 0;
}

static int work_kill9(void)
{
    lk_comm *comm = join();

    lk_comm_note(comm, 12, "backward");
    if (lk_barrier(comm) != LK_OK)
        return give_up(comm);
    if (my_rank() == 1)
        (void)raise(SIGKILL);
    if (lk_barrier(comm) == LK_OK)
        return 0;
    return lk_error_last()->status == LK_EPEER ? give_up(comm) : 91;
}

/* As above, but nobody tells the group: the exit status is all there is. */
static int work_quiet(void)
{
    lk_comm *comm = join();

    if (lk_barrier(comm) != LK_OK)
        return 91;
    if (my_rank() == 1)
        _exit(7);
    _exit(lk_barrier(comm) == LK_OK ? 0 : 1);
}

static int work_error(void)
{
    lk_comm *comm = join();
    lk_comm *none;

    if (my_rank() == 2 && lk_comm_open_threads(&none, 0, NULL) != LK_OK) {
        lk_comm_note(comm, 3, "forward");
        return give_up(comm);
    }
    return lk_barrier(comm) == LK_OK ? 0 : give_up(comm);
}

static int work_stopped(void)
{
    lk_comm *comm = join();

    if (my_rank() == 1)
        (void)raise(SIGSTOP);
    return lk_barrier(comm) == LK_OK ? 0 : give_up(comm);
}

/* Steps until somebody was asked to stop, which all then agree on. */
static int steps_until_stop(lk_comm *comm)
{
    for (int step = 0; step < 100000; step++) {
        unsigned char mine = lk_stop_requested(comm), all[8];
        if (lk_all_gather(comm, &mine, all, 1) != LK_OK)
            return give_up(comm);
        for (uint32_t i = 0; i < lk_comm_size(comm); i++)
            if (all[i] != 0) {
                lk_comm_free(comm);
                return 75;
            }
        sleep_ms(1);
    }
    return 0;
}

static int work_stop(void)
{
    lk_comm *comm = join();
    if (my_rank() == 0)
        (void)kill(getppid(), SIGTERM);
    return steps_until_stop(comm);
}

/* What `timeout` and a terminal do: everybody gets the signal. */
static int work_stop_all(void)
{
    lk_comm *comm = join();
    (void)raise(SIGINT);
    (void)raise(SIGTERM);
    (void)raise(SIGHUP);
    return steps_until_stop(comm);
}

static void on_signal(int number)
{
    static const char text[] = "asked\n";
    (void)!write(STDOUT_FILENO, text, sizeof text - 1);
    _exit(number == SIGTERM ? 0 : 20);
}

/* A program that knows nothing of us, with a handler of its own.  Rank 0 waits until rank 1 can
 * have installed its handler. */
static int work_plain(void)
{
    (void)signal(SIGTERM, on_signal);
    (void)signal(SIGUSR1, on_signal);
    if (my_rank() == 0) {
        sleep_ms(300);
        (void)kill(getppid(), getenv("USR1") != NULL ? SIGUSR1 : SIGTERM);
    }
    sleep_ms(20000);
    return 0;
}

/* Deaf to SIGTERM; asks twice through processes that are no workers. */
static int work_deaf(void)
{
    pid_t launcher = getppid();

    (void)signal(SIGTERM, SIG_IGN);
    for (int i = 0; i < 2 && my_rank() == 0; i++) {
        sleep_ms(100);
        if (fork() == 0) {
            (void)kill(launcher, SIGTERM);
            _exit(0);
        }
        (void)wait(NULL);
    }
    sleep_ms(20000);
    return 0;
}

static int work_leaves_child(void)
{
    if (fork() == 0) {
        sleep_ms(3000);
        _exit(0);
    }
    printf("gone\n");
    return 0;
}

static int work_pid(void)
{
    printf("%d\n", (int)getpid());
    (void)fflush(stdout);
    sleep_ms(20000);
    return 0;
}

static int work_input(void)
{
    char text[16] = "nothing";
    (void)!fgets(text, sizeof text, stdin);
    printf("%s\n", text);
    return 0;
}

static int work_join(void)
{
    lk_comm *comm = join();
    int      bad  = lk_barrier(comm) != LK_OK;
    lk_comm_free(comm);
    return bad;
}

static int work_wrong_size(void)
{
    (void)setenv("WORLD_SIZE", "7", 1);
    lk_comm *comm;
    lk_status st = lk_join(&comm);
    return st == LK_EINVAL && comm == NULL && strstr(lk_error_last()->message, "7") != NULL ? 0 : 92;
}

static int work(const char *mode)
{
    static const struct {
        const char *mode;
        int (*run)(void);
    } table[] = {
        {"environment", work_environment}, {"lines", work_lines},     {"exit3", work_exit3},
        {"kill9", work_kill9},             {"quiet", work_quiet},     {"error", work_error},
        {"stopped", work_stopped},         {"stop", work_stop},       {"stop_all", work_stop_all},
        {"plain", work_plain},             {"deaf", work_deaf},       {"pid", work_pid},
        {"leaves_child", work_leaves_child}, {"input", work_input},   {"join", work_join},
        {"wrong_size", work_wrong_size},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].mode, mode) == 0)
            return table[i].run();
    return 99;
}

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

static char self[4096];

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

/* The outcome stays valid until the next launch. */
static const outcome *launch(lk_launch_options options, const char *mode)
{
    static outcome o;
    char           word[] = "worker", copy[32];
    char          *argv[] = {self, word, copy, NULL};

    (void)snprintf(copy, sizeof copy, "%s", mode);
    if (options.timeout_ms == 0)
        options.timeout_ms = 20000;
    launch_program(&o, options, argv);
    return &o;
}

static void assert_cause(const outcome *o, uint32_t rank, int exit_code, const char *words)
{
    char start[64];

    assert_int_equal(o->status, LK_OK);
    assert_true(o->result.failed);
    assert_int_equal(o->result.rank, rank);
    assert_int_equal(o->result.exit_code, exit_code);
    (void)snprintf(start, sizeof start, "rank %u (pid %d) ", rank, o->result.pid);
    if (strncmp(o->result.cause, start, strlen(start)) != 0 || strstr(o->result.cause, words) == NULL)
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

static void tells_each_worker_who_it_is(void **state)
{
    (void)state;
    (void)setenv("CANARY", "sings", 1);
    (void)setenv("RANK", "77", 1); /* of some launcher above us */
    (void)unsetenv("OMP_NUM_THREADS");
    const outcome *o = launch((lk_launch_options){.workers = 3, .prefix_output = true}, "environment");
    (void)unsetenv("RANK");
    assert_good(o);
    static const char *const lines[] = {
        "[0] RANK=0",       "[1] RANK=1",       "[2] RANK=2",              "[2] LOCAL_RANK=2",
        "[0] WORLD_SIZE=3", "[2] WORLD_SIZE=3", "[1] LOCAL_WORLD_SIZE=3", "[1] MASTER_ADDR=127.0.0.1",
        "[0] CANARY=sings", "[0] OMP_NUM_THREADS=1",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        if (!has_line(o->out, lines[i]))
            fail_msg("no line \"%s\" in:\n%s", lines[i], o->out);
}

static void respects_the_users_threads(void **state)
{
    (void)state;
    (void)setenv("OMP_NUM_THREADS", "5", 1);
    const outcome *o = launch((lk_launch_options){.workers = 1, .prefix_output = true}, "environment");
    (void)unsetenv("OMP_NUM_THREADS");
    assert_good(o);
    assert_true(has_line(o->out, "[0] OMP_NUM_THREADS=5"));
    assert_false(has_line(o->out, "[0] OMP_NUM_THREADS=1"));
}

static void prefixes_whole_lines(void **state)
{
    (void)state;
    const outcome *o = launch((lk_launch_options){.workers = 2, .prefix_output = true}, "lines");
    assert_good(o);
    assert_true(has_line(o->out, "[1] one"));
    assert_true(has_line(o->out, "[1] two"));
    assert_true(has_line(o->out, "[1] "));
    assert_true(has_line(o->out, "[1] last")); /* it had no newline */
    assert_string_equal(o->err, "[1] aside\n");

    size_t x = 0, lines = 0; /* rank 0's long line came whole, in three pieces */
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
    const outcome *o = launch((lk_launch_options){.workers = 1}, "leaves_child");
    assert_good(o);
    assert_string_equal(o->out, "gone\n");
}

static void does_not_wait_for_what_workers_leave_behind(void **state)
{
    (void)state;
    const outcome *o = launch((lk_launch_options){.workers = 2, .prefix_output = true}, "leaves_child");
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
    const outcome *o = launch((lk_launch_options){.workers = 2, .prefix_output = true}, "input");
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
    const outcome *o = launch((lk_launch_options){.workers = 3}, "exit3");
    assert_cause(o, 1, 3, "exited with status 3");
}

static void reports_a_killed_worker_and_wakes_its_peers(void **state)
{
    (void)state;
    const outcome *o = launch((lk_launch_options){.workers = 3, .prefix_output = true}, "kill9");
    char           words[96];
    assert_cause(o, 1, 128 + SIGKILL, "was killed by SIGKILL at step 12 in backward");
    assert_int_equal(o->result.signal, SIGKILL);
    (void)snprintf(words, sizeof words, "rank 1 (pid %d) was killed by SIGKILL", o->result.pid);
    assert_non_null(strstr(o->err, "[0] "));
    assert_non_null(strstr(o->err, "[2] "));
    assert_non_null(strstr(o->err, words));
}

static void reports_the_cause_not_who_heard_of_it(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++)
        assert_cause(launch((lk_launch_options){.workers = 4}, "quiet"), 1, 7, "exited with status 7");
}

static void reports_a_workers_own_words(void **state)
{
    (void)state;
    const outcome *o = launch((lk_launch_options){.workers = 3}, "error");
    assert_cause(o, 2, 1, "failed at step 3 in forward: ");
    assert_non_null(strstr(o->result.cause, "0 ranks"));
}

static void reports_a_stopped_worker(void **state)
{
    (void)state;
    const outcome *o = launch((lk_launch_options){.workers = 3, .timeout_ms = 300}, "stopped");
    assert_cause(o, 1, 128 + SIGKILL, "is stopped");
}

static void refuses_what_it_cannot_run(void **state)
{
    (void)state;
    static outcome o;
    char           missing[] = "no-such-program-here", directory[] = "/tmp";
    char          *argv[]    = {missing, NULL};
    lk_launch_options two = {.workers = 2}, none = {.workers = 0};

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
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nobody is left, running or not */
}

static void asks_the_job_to_save_and_leave(void **state)
{
    (void)state;
    static const char *const modes[] = {"stop", "stop_all"};
    for (int i = 0; i < 2; i++) {
        const outcome *o = launch((lk_launch_options){.workers = 3}, modes[i]);
        assert_string_equal(o->result.cause, "");
        assert_false(o->result.failed);
        assert_int_equal(o->result.exit_code, 75);
    }
}

static void passes_signals_on_to_plain_programs(void **state)
{
    (void)state;
    const outcome *o = launch((lk_launch_options){.workers = 2, .prefix_output = true}, "plain");
    assert_good(o);
    assert_true(has_line(o->out, "[0] asked") && has_line(o->out, "[1] asked"));
    (void)setenv("USR1", "1", 1);
    o = launch((lk_launch_options){.workers = 2, .prefix_output = true}, "plain");
    (void)unsetenv("USR1");
    assert_true(has_line(o->out, "[0] asked") && has_line(o->out, "[1] asked"));
    assert_int_equal(o->result.exit_code, 20);
}

static void a_second_signal_ends_the_deaf(void **state)
{
    (void)state;
    const outcome *o = launch((lk_launch_options){.workers = 2, .grace_ms = 100}, "deaf");
    assert_true(o->result.failed);
    assert_int_equal(o->result.exit_code, 128 + SIGTERM);
    assert_non_null(strstr(o->result.cause, "second SIGTERM"));
}

static void leaves_the_callers_signals_as_they_were(void **state)
{
    (void)state;
    sigset_t before, after;
    (void)sigprocmask(SIG_SETMASK, NULL, &before);
    assert_good(launch((lk_launch_options){.workers = 1}, "join"));
    (void)sigprocmask(SIG_SETMASK, NULL, &after);
    for (int i = 1; i < 32; i++)
        assert_int_equal(sigismember(&before, i), sigismember(&after, i));
}

/* Reads the workers' pids, kills the launcher, and watches the workers go. */
static void workers_die_with_their_launcher(void **state)
{
    (void)state;
    int   ends[2], pidfds[2];
    assert_int_equal(pipe(ends), 0);
    pid_t launcher = fork();
    if (launcher == 0) {
        char word[] = "worker", mode[] = "pid";
        char *argv[] = {self, word, mode, NULL};
        lk_launch_options options = {.workers = 2, .argv = argv};
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
        pidfds[i] = pidfd_open(atoi(line), 0);
        assert_true(pidfds[i] >= 0);
    }
    (void)kill(launcher, SIGKILL);
    assert_int_equal(waitpid(launcher, NULL, 0), launcher);
    for (int i = 0; i < 2; i++) {
        struct pollfd ended = {.fd = pidfds[i], .events = POLLIN};
        assert_int_equal(poll(&ended, 1, 5000), 1);
        (void)close(pidfds[i]);
    }
    (void)fclose(lines);
}

static void joins_in_many_sizes(void **state)
{
    (void)state;
    for (uint32_t workers = 1; workers <= 9; workers += 4)
        assert_good(launch((lk_launch_options){.workers = workers}, "join"));
    assert_good(launch((lk_launch_options){.workers = 2}, "wrong_size"));
}

static void is_alone_without_a_launcher(void **state)
{
    (void)state;
    lk_comm *comm;
    assert_false(lk_launched());
    assert_int_equal(lk_join(&comm), LK_OK);
    assert_int_equal(lk_comm_size(comm), 1);
    assert_int_equal(lk_comm_rank(comm), 0);
    assert_false(lk_stop_requested(comm));
    lk_comm_free(comm);
    (void)setenv("WORLD_SIZE", "4", 1); /* another launcher's: N lone groups would be a lie */
    assert_int_equal(lk_join(&comm), LK_EUNSUPPORTED);
    assert_null(comm);
    (void)unsetenv("WORLD_SIZE");
}

static void refuses_a_broken_environment(void **state)
{
    (void)state;
    static const char *const names[] = {"RANK", "WORLD_SIZE", "LOCKSTEP_TIMEOUT_MS",
                                        "LOCKSTEP_CONTROL_FD", "LOCKSTEP_SOCKET_FD"};
    static const char *const values[] = {NULL, "", "x", "-1", "1x", "99999999999999999999"};
    enum { NAMES = sizeof names / sizeof names[0], VALUES = sizeof values / sizeof values[0] };

    for (size_t n = 0; n < NAMES; n++)
        for (size_t v = 0; v < VALUES; v++) {
            lk_comm *comm;
            for (size_t i = 0; i < NAMES; i++)
                (void)setenv(names[i], i == 1 ? "1" : "0", 1);
            if (values[v] != NULL)
                (void)setenv(names[n], values[v], 1);
            else if (n == 3)
                continue; /* without this one there is no launcher */
            else
                (void)unsetenv(names[n]);
            assert_int_equal(lk_join(&comm), LK_EINVAL);
            assert_non_null(strstr(lk_error_last()->message, names[n]));
            assert_null(comm);
        }
    for (size_t i = 0; i < NAMES; i++)
        (void)unsetenv(names[i]);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "worker") == 0)
        return work(argv[2]);
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tells_each_worker_who_it_is),
        cmocka_unit_test(respects_the_users_threads),
        cmocka_unit_test(prefixes_whole_lines),
        cmocka_unit_test(inherits_output_as_it_is),
        cmocka_unit_test(does_not_wait_for_what_workers_leave_behind),
        cmocka_unit_test(gives_input_to_rank_0_alone),
        cmocka_unit_test(reports_an_exit_status),
        cmocka_unit_test(reports_a_killed_worker_and_wakes_its_peers),
        cmocka_unit_test(reports_the_cause_not_who_heard_of_it),
        cmocka_unit_test(reports_a_workers_own_words),
        cmocka_unit_test(reports_a_stopped_worker),
        cmocka_unit_test(refuses_what_it_cannot_run),
        cmocka_unit_test(asks_the_job_to_save_and_leave),
        cmocka_unit_test(passes_signals_on_to_plain_programs),
        cmocka_unit_test(a_second_signal_ends_the_deaf),
        cmocka_unit_test(leaves_the_callers_signals_as_they_were),
        cmocka_unit_test(workers_die_with_their_launcher),
        cmocka_unit_test(joins_in_many_sizes),
        cmocka_unit_test(is_alone_without_a_launcher),
        cmocka_unit_test(refuses_a_broken_environment),
    };
    return cmocka_run_group_tests_name("launch.launch", tests, NULL, NULL);
}

/* lock_test.c -- tests that only one run at a time uses a checkpoint directory, or a log.
 *
 * Goal:   a second run into a directory in use is refused before it does anything, with a message
 *         that names the process that uses the directory, and disturbs no run.  If several runs
 *         start together, one acquires the lock.  A lock left by a crash stops no later run.
 * Method: the command itself; the first run is blocked by its log's pipe (job.h).
 */
#include <sys/file.h>

#include "faults/job.h"

#define RUN MLP "--checkpoint ck --steps 60 "
#define HEADER "{\"step\": 0, \"lockstep\": \"1\", \"config\": {}}\n"
#define THERE MLP "--checkpoint ../ck --steps 60 "

static void assert_refused(const command_result *r, pid_t holder)
{
    char wanted[200], host[65] = "";
    (void)gethostname(host, sizeof host - 1);
    (void)snprintf(wanted, sizeof wanted, "another run is using '../ck': pid %d on %s, since 20",
                   (int)holder, host);
    if (r->status != 1)
        fail_msg("status %d: %s", r->status, r->err);
    assert_says(r->err, wanted);
    assert_says(r->err, " UTC; wait for its end, stop it, or give another --checkpoint directory");
    assert_says_not(r->err, "step 1/");
    assert_string_equal(r->out, "");
}

static void a_second_run_is_refused_and_names_the_first(void **state)
{
    static const char *const modes[] = { "--log pipe", "--log pipe --worker-mode threads" };
    static job               j;
    static command_result    r;
    char                     wanted[65], digits[65], line[512], other[48];
    (void)snprintf(other, sizeof other, "%.31s/other", (const char *)*state);
    assert_int_equal(mkdir(other, 0700), 0);
    undisturbed(*state, MLP, STEPS, wanted);
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(line, sizeof line, RUN "--checkpoint-every 5 %s", modes[i]);
        job_start(&j, *state, 2, line);
        job_await_step(&j, HIT_AT);
        run_command(&r, other, THERE "--workers 3");
        assert_refused(&r, j.worker[0]);
        run_command(&r, other, THERE "--workers 1 --resume --worker-mode threads");
        assert_refused(&r, j.worker[0]);
        (void)snprintf(line, sizeof line, "verify%s--step 3", &(THERE)[strlen("train")]);
        run_command(&r, other, line); /* writes nothing, and has no log to compare with */
        assert_int_equal(r.status, 1);
        assert_says(r.out, "not compared");
        j.hit_at = seconds_now();
        (void)memset(j.worker, 0, sizeof j.worker);
        (void)job_wait(&j);
        assert_int_equal(j.result.status, 0);
        read_weights(&j.result, digits);
        assert_string_equal(digits, wanted);
        goes_on(*state, MLP, 2, STEPS, wanted); /* "ck" then has only steps */
        forget(*state);
    }
}

/* Replaces the lock, as if a file server had granted it to a run on another host. */
static void a_lost_lock_ends_the_run(void **state)
{
    static job j;
    job_start(&j, *state, 2, RUN "--checkpoint-every 20 --log pipe");
    job_await_step(&j, HIT_AT);
    char path[64];
    (void)snprintf(path, sizeof path, "%s/ck/.lock", (const char *)*state);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    (void)fputs("pid 4711 on elsewhere\n", file);
    assert_int_equal(fclose(file), 0);
    j.hit_at = seconds_now();
    (void)job_wait(&j);
    assert_int_equal(j.result.status, 1);
    assert_says(j.result.err, "another run (pid 4711 on elsewhere) has taken 'ck', and this one "
                              "saves nothing there any more");
    assert_says_not(j.result.out, "weights ");
    forget(*state);
}

static void a_lock_left_by_a_crash_is_free(void **state)
{
    static job j;
    char       wanted[65];
    undisturbed(*state, MLP, STEPS, wanted);
    for (int launcher = 0; launcher < 2; launcher++) {
        static command_result r;
        job_start(&j, *state, 2, RUN "--checkpoint-every 5 --log pipe");
        job_await_step(&j, HIT_AT);
        job_hit(&j, launcher ? j.pid : j.worker[0], SIGKILL);
        (void)job_wait(&j);
        assert_says(j.result.err, launcher ? "if the run is killed, lockstep resume ck continues it"
                                           : "; lockstep resume ck continues after step ");
        (void)run_shell(&r, *state, "cat ck/.lock");
        assert_says(r.out, "pid "); /* otherwise the test has tested nothing */
        goes_on(*state, MLP, 3, STEPS, wanted);
        forget(*state);
    }
}

/* Starts several runs at once.  One run must do all the work, and the other runs none. */
static void only_one_simultaneous_run_gets_the_lock(void **state)
{
    enum { ROUNDS = 8, RUNS = 3 };
    static command_result r;
    char                  wanted[65];
    undisturbed(*state, MLP, STEPS, wanted);
    for (int round = 0; round < ROUNDS; round++) {
        unsigned won = 0, used = 0, later = 0;
        (void)run_shell(&r, *state,
                        "for i in 1 2 3; do " LK_TEST_COMMAND " " RUN
                        "--checkpoint-every 20 --quiet --workers $i >out$i 2>err$i & done; wait; "
                        "cat out? err?");
        for (const char *at = r.out; (at = strstr(at, "weights ")) != NULL; at++, won++)
            assert_int_equal(strncmp(at + 8, wanted, 64), 0);
        for (const char *at = r.out; (at = strstr(at, "another run is using 'ck'")) != NULL; at++)
            used++;
        for (const char *at = r.out; (at = strstr(at, "already has checkpoints")) != NULL; at++)
            later++;
        if (won != 1 || won + used + later != RUNS)
            fail_msg("round %d: %u won, %u were refused, %u came later: %s", round, won, used,
                     later, r.out);
        forget(*state);
    }
}

/* Holds the lock of a log, as a run that writes it does. */
static void a_log_in_use_is_refused_and_keeps_its_lines(void **state)
{
    static command_result r;
    char                  path[64];
    (void)snprintf(path, sizeof path, "%s/used.jsonl", (const char *)*state);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(HEADER, file) >= 0 && fflush(file) == 0);
    assert_int_equal(flock(fileno(file), LOCK_EX), 0);
    run_command(&r, *state, MLP "--steps 5 --workers 2 --log used.jsonl");
    assert_int_equal(r.status, 1);
    assert_says(r.err, "another run is writing the --log 'used.jsonl': give each run its own file");
    assert_int_equal(fclose(file), 0);
    (void)run_shell(&r, *state, "cat used.jsonl");
    assert_string_equal(r.out, HEADER);
    run_command(&r, *state, MLP "--steps 5 --workers 2 --log used.jsonl");
    assert_int_equal(r.status, 0);
}

/* Holds the lock of each file that only one run may write, as such a run does.  Expects that a run
 * which would write it is refused before it makes a directory, and that a resumed one changes
 * neither its record nor its log. */
static void a_run_that_waits_for_a_file_changes_nothing(void **state)
{
    static const struct {
        const char *held, *options, *text;
    } all[] = {
        { "one.jsonl", "--log one.jsonl", "this run has been started already: a process (pid " },
        { "one.prom", "--metrics one.prom", "another run is writing the --metrics 'one.prom'" },
        { "one.events", "--tensorboard one.events",
          "another run is writing the --tensorboard 'one.events'" },
        { "one.trace.rank-0.part", "--trace one.trace",
          "another run is writing the --trace 'one.trace'" },
    };
    static command_result before, r;
    char                  line[512];
    static const char     sums[] = "cksum one/command.json one.jsonl one.prom; ls one other";
    run_command(&r, *state, MLP "--steps 2 --log one.jsonl --metrics one.prom --tensorboard "
                                "one.events --trace one.trace --checkpoint one");
    assert_int_equal(r.status, 0);
    (void)run_shell(&r, *state, "touch one.trace.rank-0.part");
    (void)run_shell(&before, *state, sums);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        (void)snprintf(line, sizeof line, "%s/%s", (const char *)*state, all[i].held);
        int fd = open(line, O_RDONLY | O_CLOEXEC);
        assert_int_equal(flock(fd, LOCK_EX), 0);
        (void)snprintf(line, sizeof line, MLP "--steps 4 --checkpoint other %s", all[i].options);
        run_command(&r, *state, line);
        assert_int_equal(r.status, 1);
        assert_says(r.err, all[i].text);
        run_command(&r, *state, "resume one --steps 4 --workers 2");
        assert_int_equal(r.status, 1);
        assert_says(r.err, i == 0 ? "this run has been started already" : "another run is writing");
        assert_int_equal(close(fd), 0);
    }
    (void)run_shell(&r, *state, sums);
    assert_string_equal(r.out, before.out);
    run_command(&r, *state, "resume one --steps 4 --workers 2");
    if (r.status != 0)
        fail_msg("%s", r.err);
}

/* Starts two runs with the same log at once.  One is refused, and the log is that of the other. */
static void only_one_simultaneous_run_gets_the_log(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state,
                    "for i in 1 2; do (" LK_TEST_COMMAND " " MLP "--steps 9 --seed $i "
                    "--log at-once --checkpoint by$i --quiet --workers 1 >out$i 2>err$i; "
                    "echo $? >end$i) & done; "
                    "wait; "
                    "cat end1 end2 | sort | tr -d '\\n'; cat err1 err2");
    assert_true(strncmp(r.out, "01", 2) == 0 || strncmp(r.out, "02", 2) == 0);
    assert_says(r.out, "give "); /* each its own file, or another one */
    (void)run_shell(&r, *state, "grep -c loss_bits at-once");
    assert_string_equal(r.out, "9\n");
    (void)run_shell(&r, *state, "ls -d by?; ls by?/command.json");
    if (strcmp(r.out, "by1\nby1/command.json\n") != 0 &&
        strcmp(r.out, "by2\nby2/command.json\n") != 0)
        fail_msg("%s", r.out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_second_run_is_refused_and_names_the_first, begin_afresh),
        cmocka_unit_test_setup(a_lost_lock_ends_the_run, begin_afresh),
        cmocka_unit_test_setup(a_lock_left_by_a_crash_is_free, begin_afresh),
        cmocka_unit_test_setup(only_one_simultaneous_run_gets_the_lock, begin_afresh),
        cmocka_unit_test(a_log_in_use_is_refused_and_keeps_its_lines),
        cmocka_unit_test(a_run_that_waits_for_a_file_changes_nothing),
        cmocka_unit_test(only_one_simultaneous_run_gets_the_log),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

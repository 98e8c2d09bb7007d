/* log_pipe_test.c -- kills workers and holds up readers of runs whose log is a pipe.
 *
 * Goal:   the reader of the pipe gets the log of all workers, also of those that continue or start
 *         after others.  Without a reader the run goes on.  A reader that does not read ends no
 *         run that waits for it, unless the run is asked to stop or other ranks would time out.
 * Method: the reader is cat, which ends when no process has the pipe open for writing.  The reader
 *         that does not read is a descriptor of the shell.
 */
#include "faults/survivors.h"

/* Starts a run with these options whose log is a pipe.  After its third step a line of the shell
 * hits it, for which $r is the reader, $p is rank 0 and $all are the pids of all ranks.  Asks the
 * run to stop once `awaited`, a line of the shell, is true. */
static void hit(command_result *r, const char *folder, const char *options, const char *blow,
                const char *awaited)
{
    static char line[2000];
    (void)snprintf(line, sizeof line, "rm -rf pipe got ck; mkfifo pipe; cat pipe >got & r=$!; "
                   LK_TEST_COMMAND " " MLP "--steps 100000000 --log pipe %s 2>said & "
                   "until grep -q '\"step\": 3' got; do kill -0 $! || exit 9; sleep 0.1; done; "
                   "all=$(sed -n 's/^rank . (pid \\([0-9]*\\)) runs.*/\\1/p' said); "
                   "p=${all%%%%[!0-9]*}; %s; until %s; do kill -0 $! || exit 8; sleep 0.1; done; "
                   "kill -TERM $!; wait $!; s=$?; wait $r; cat said >&2; exit $s", options, blow,
                   awaited);
    (void)run_shell(r, folder, line);
    if (r->status != 75)
        fail_msg("%s, %s: status %d: %s", options, blow, r->status, r->err);
}

/* Finds a step in the log after line 2 or later with a word. */
#define HAS_STEPS_AFTER(word) "sed '1d;/\"" word "\"/,$!d' got | grep -q loss_bits"
#define READER_ENDED "! kill -0 $r"

/* Kills rank 0, or asks it to leave. */
static void a_log_keeps_its_reader_without_rank_0(void **state)
{
    static const char *const blows[] = { "kill -9 $p", "kill -TERM $p" };
    static command_result    r;
    for (size_t i = 0; i < 2; i++) {
        hit(&r, *state, GOES_ON "--workers 2", blows[i],
            READER_ENDED " || " HAS_STEPS_AFTER("membership"));
        shell(&r, state, HAS_STEPS_AFTER("membership"), 0);
    }
}

/* Kills rank 1, while rank 0 waits for the reader of a pipe that the launcher does not hold. */
static void a_log_keeps_its_reader_if_a_run_begins_anew(void **state)
{
    static command_result r;
    shell(&r, state, "rm -rf pipe fl; mkfifo pipe; " LK_TEST_COMMAND " run -n 2 " GOES_ON
          "--flight-recorder fl -- " LK_TEST_COMMAND " " MLP GOES_ON "--steps 20 --log pipe "
          "2>said & until grep -q 'waiting for a reader' said; do kill -0 $! || exit 9; "
          "sleep 0.1; done; p=$(" LK_TEST_COMMAND " inspect --flight fl | "
          "awk '$1 == 1 && $2 == \"running\" { print $3 }'); kill -9 $p; "
          "while kill -0 $p; do sleep 0.1; done; timeout 100 cat pipe >got; "
          "wait $! && cat said >&2 && grep -q '\"weights\"' got", 0);
    assert_says(r.err, "; the run begins with 1 of 2 workers; ");
}

static void a_log_keeps_its_reader_over_a_restart(void **state)
{
    static const char *const options[] = { "--checkpoint ck --restart --workers 1",
                                           "--checkpoint ck --restart --workers 2" };
    static command_result    r;
    for (size_t i = 0; i < 2; i++) {
        hit(&r, *state, options[i], "kill -9 $all", READER_ENDED " || " HAS_STEPS_AFTER("config"));
        shell(&r, state, HAS_STEPS_AFTER("config"), 0);
    }
}

/* Ends the reader of the log while rank 0 is stopped, and then kills rank 0. */
static void a_run_continues_without_the_reader_of_its_log(void **state)
{
    static command_result r;
    hit(&r, *state, GOES_ON "--workers 2",
        "kill -STOP $p; until grep -q '^State:.T' /proc/$p/status; do sleep 0.1; done; kill $r; "
        "wait $r; kill -9 $p", "grep -q 'took over' said");
    assert_says(r.err, "note: nobody reads the log 'pipe' any more; the run goes on without it");
    assert_says(r.err, "stopped on request after step ");
}

/* Runs a line of the shell after the start of a run ($!) that waits for room in its log, of which 4
 * is the reader.  Then reads what is left, and ends with the status of the run. */
static void stall(command_result *r, const char *folder, const char *options, const char *then)
{
    static char line[2000];
    (void)snprintf(line, sizeof line, "rm -rf pipe got ck; mkfifo pipe; : >said; "
                   "exec 3<>pipe 4<pipe; " LK_TEST_COMMAND " " MLP
                   "--log pipe %s 2>said 3>&- 4>&- & exec 3>&-; "
                   "until grep -q 'a full pipe, whose reader does not read' said; do "
                   "kill -0 $! || exit 9; sleep 0.1; done; %s; wait $!; s=$?; cat <&4 >>got; "
                   "cat said >&2; exit $s", options, then);
    (void)run_shell(r, folder, line);
}

static void a_run_waits_for_its_reader(void **state)
{
    static const char *const options[] = { "--workers 1 --steps 1500", "--workers 2 --steps 1500" };
    static command_result    r;
    for (size_t i = 0; i < 2; i++) {
        stall(&r, *state, options[i], "cat <&4 >got");
        if (r.status != 0)
            fail_msg("%s: status %d: %s", options[i], r.status, r.err);
        assert_int_equal(count_of(r.err, "a full pipe, whose reader does not read"), 1);
        shell(&r, state, "test $(grep -c loss_bits got) = 1500 && tail -n 1 got | grep -q weights",
              0);
    }
}

static void a_run_whose_reader_does_not_read_is_stopped(void **state)
{
    static const char *const options[] = { "--workers 1", "--workers 2",
                                           "--workers 2 --worker-mode threads" };
    static command_result    r;
    for (size_t i = 0; i < 3; i++) {
        char all[200];
        (void)snprintf(all, sizeof all, "%s --steps 100000000 --checkpoint ck", options[i]);
        stall(&r, *state, all, "kill -TERM $!");
        if (r.status != 75)
            fail_msg("%s: status %d: %s", all, r.status, r.err);
        assert_says(r.err, "note: nobody reads the log 'pipe', and the run is to stop: the log "
                    "lacks its last lines");
        assert_says(r.err, "stopped on request after step ");
        shell(&r, state, "grep -q loss_bits got && tail -n 1 got | grep -q '}$'", 0);
    }
}

static void a_run_that_cannot_wait_names_the_pipe(void **state)
{
    static command_result r;
    stall(&r, *state, "--workers 2 --steps 100000000 --timeout 8", "true");
    if (r.status != 1)
        fail_msg("status %d: %s", r.status, r.err);
    assert_says(r.err, "cannot write the log 'pipe': the pipe is full, and rank 0 has waited");
    assert_says_not(r.err, " ms for rank 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_log_keeps_its_reader_without_rank_0, begin_afresh),
        cmocka_unit_test_setup(a_log_keeps_its_reader_if_a_run_begins_anew, begin_afresh),
        cmocka_unit_test_setup(a_log_keeps_its_reader_over_a_restart, begin_afresh),
        cmocka_unit_test_setup(a_run_continues_without_the_reader_of_its_log, begin_afresh),
        cmocka_unit_test_setup(a_run_waits_for_its_reader, begin_afresh),
        cmocka_unit_test_setup(a_run_whose_reader_does_not_read_is_stopped, begin_afresh),
        cmocka_unit_test_setup(a_run_that_cannot_wait_names_the_pipe, begin_afresh),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

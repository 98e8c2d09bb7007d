/* log_pipe_test.c -- kills workers of a run whose log is a pipe.
 *
 * Goal:   the reader of the pipe gets the log of all workers, also of those that continue or start
 *         after others.  Without a reader the run goes on.
 * Method: the reader is cat, which ends when no process has the pipe open for writing.
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_log_keeps_its_reader_without_rank_0, begin_afresh),
        cmocka_unit_test_setup(a_log_keeps_its_reader_if_a_run_begins_anew, begin_afresh),
        cmocka_unit_test_setup(a_log_keeps_its_reader_over_a_restart, begin_afresh),
        cmocka_unit_test_setup(a_run_continues_without_the_reader_of_its_log, begin_afresh),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

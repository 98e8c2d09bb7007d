/* flight_test.c -- the reports of `lockstep inspect --flight` on jobs that were hit while they ran.
 *
 * Goal:   a report names a killed or stopped rank, and the operation in which the other ranks
 *         waited for that rank.  The command needs only files, and works while the job runs and
 *         afterwards.
 * Method: real training runs (job.h).  A running job is inspected repeatedly until the report has
 *         the finding.
 */
#include <jansson.h>

#include "faults/job.h"

#define ENDLESS "--steps 100000000 --log pipe --flight-recorder fl "

/* Runs inspect, with output files separate from the job's. */
static void inspect_flight(const char *folder, command_result *r, const char *options)
{
    char aside[64], line[128];
    (void)snprintf(aside, sizeof aside, "%s/look", folder);
    if (mkdir(aside, 0700) != 0)
        assert_int_equal(errno, EEXIST);
    (void)snprintf(line, sizeof line, "inspect --flight ../fl %s", options);
    run_command(r, aside, line);
}

/* Returns the text of a finding of this kind about this rank that contains `words`; NULL if there
 * is none. */
static const char *find_text(json_t *report, const char *kind, uint32_t rank, const char *words)
{
    json_t *findings = json_object_get(report, "findings"), *finding;
    size_t  i;
    json_array_foreach(findings, i, finding)
    {
        const char *text = json_string_value(json_object_get(finding, "text"));
        if (strcmp(json_string_value(json_object_get(finding, "kind")), kind) == 0 &&
            json_integer_value(json_object_get(finding, "rank")) == rank &&
            strstr(text, words) != NULL)
            return text;
    }
    return NULL;
}

static json_t *read_report(const command_result *r)
{
    json_t *report = json_loads(r->out, JSON_REJECT_DUPLICATES, NULL);
    if (report == NULL)
        fail_msg("no JSON: %s%s", r->out, r->err);
    return report;
}

static void wants_finding(json_t *report, const char *kind, uint32_t rank, const char *words)
{
    if (find_text(report, kind, rank, words) != NULL)
        return;
    fail_msg("no %s about rank %u with '%s' in %s", kind, rank, words,
             json_dumps(json_object_get(report, "findings"), 0));
}

static void a_killed_rank_is_named(void **state)
{
    static job            j;
    static command_result r;
    for (uint32_t rank = 0; rank < 3; rank++) {
        job_start(&j, *state, 3, MLP ENDLESS);
        job_await_step(&j, HIT_AT);
        job_hit(&j, j.worker[rank], SIGKILL);
        (void)job_wait(&j);
        inspect_flight(*state, &r, "--json --last 3");
        assert_int_equal(r.status, 0);
        json_t *report = read_report(&r);
        char    words[64];
        (void)snprintf(words, sizeof words, "rank %u (pid %d on ", rank, (int)j.worker[rank]);
        wants_finding(report, "death", rank, words);
        wants_finding(report, "failure", rank == 0, "was killed by SIGKILL at step ");
        json_t *killed = json_array_get(json_object_get(report, "ranks"), rank);
        assert_string_equal(json_string_value(json_object_get(killed, "state")), "gone");
        assert_true(json_integer_value(json_object_get(killed, "step")) >= HIT_AT);
        assert_int_equal(json_array_size(json_object_get(report, "operations")), 3);
        json_decref(report);
        inspect_flight(*state, &r, "");
        assert_int_equal(r.status, 0);
        assert_says(r.out, " death ");
        assert_says(r.out, "operations: the last 20 of ");
    }
}

static void a_stopped_rank_is_named_while_the_others_wait(void **state)
{
    static job            j;
    static command_result r;
    for (uint32_t rank = 0; rank < 3; rank++) {
        json_t     *report = NULL;
        const char *text   = NULL;
        job_start(&j, *state, 3, MLP ENDLESS);
        job_await_step(&j, HIT_AT);
        job_hit(&j, j.worker[rank], SIGSTOP);
        for (double since = seconds_now(); text == NULL; check_waiting(&j, since, "a finding")) {
            (void)read_log(&j, (unsigned long)-1);
            json_decref(report);
            inspect_flight(*state, &r, "--json");
            report = read_report(&r);
            char words[64];
            (void)snprintf(words, sizeof words, "s for rank %u (stopped, at step ", rank);
            text = find_text(report, "waiting", rank, words);
        }
        print_message("%s\n", text);
        json_decref(report);
        (void)kill(j.pid, SIGKILL);
        j.hit_at = seconds_now();
        (void)job_wait(&j);
    }
}

static void damage_is_reported_and_the_rest_is_shown(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--steps 5 --workers 3 --flight-recorder fl");
    assert_int_equal(r.status, 0);
    (void)run_shell(&r, *state, "rm fl/rank-0.flight; truncate -s 100000 fl/rank-1.flight");
    inspect_flight(*state, &r, "");
    assert_int_equal(r.status, 1);
    assert_says(r.out, "rank-0.flight: it is not there");
    assert_says(r.out, "rank-1.flight: it was cut short");
    assert_says(r.out, "rank    2  completed ");
    (void)run_shell(&r, *state, "rm fl/rank-2.flight; echo nonsense >fl/rank-1.flight");
    inspect_flight(*state, &r, "");
    assert_int_equal(r.status, 1);
    assert_says(r.err, "no flight record could be read; rank-1.flight: it ends after 9 bytes");
}

/* Starts workers as threads and with `run`.  Records must not contain the environment, and workers
 * without --flight-recorder must not have LOCKSTEP_FLIGHT. */
static void every_worker_mode_writes_records(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state, "rm -rf fl");
    run_command(&r, *state, MLP "--steps 5 --workers 2 --worker-mode threads --flight-recorder fl");
    assert_int_equal(r.status, 0);
    inspect_flight(*state, &r, "");
    assert_int_equal(r.status, 0);
    assert_says(r.out, "tree_reduce");
    (void)run_shell(&r, *state,
                    "SECRET=2f6e1d LOCKSTEP_FLIGHT=/nowhere " LK_TEST_COMMAND
                    " run -n 3 --flight-recorder fl -- " LK_TEST_COMMAND
                    " bench all_reduce --bytes 1K --iterations 3");
    assert_int_equal(r.status, 0);
    inspect_flight(*state, &r, "--last 1000");
    assert_int_equal(r.status, 0);
    assert_says(r.out, "all_reduce #");
    assert_says(r.out, "3 of 3");
    (void)run_shell(&r, *state, "grep -c 2f6e1d fl/*");
    assert_says(r.out, "rank-0.flight:0\n");
    (void)run_shell(&r, *state,
                    "LOCKSTEP_FLIGHT=/nowhere " LK_TEST_COMMAND
                    " run -n 2 -- sh -c 'echo $LOCKSTEP_FLIGHT.'");
    assert_says(r.out, "[0] .\n");
    assert_says(r.out, "[1] .\n");
}

static void an_invalid_directory_is_reported_first(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--steps 5 --workers 2 --flight-recorder /proc/version");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--flight-recorder /proc/version: is a file, not a directory");
    run_command(&r, *state, "inspect");
    assert_int_equal(r.status, 2);
    run_command(&r, *state, "inspect --flight fl somewhere");
    assert_int_equal(r.status, 2);
    run_command(&r, *state, "inspect --last 3 somewhere");
    assert_int_equal(r.status, 2);
}

static void a_file_of_another_kind_is_kept(void **state)
{
    static command_result r;
    run_command(&r, *state, MLP "--steps 5 --workers 1 --flight-recorder mixed");
    assert_int_equal(r.status, 0);
    (void)run_shell(&r, *state,
                    "echo 1 >mixed/rank-7.flight; cksum mixed/* >sums; " LK_TEST_COMMAND " " MLP
                    "--steps 5 --workers 1 --flight-recorder mixed");
    assert_int_equal(r.status, 1);
    assert_says(r.err, "'mixed/rank-7.flight' is a file of another kind, and would be overwritten");
    (void)run_shell(&r, *state, "cksum mixed/* | cmp - sums");
    assert_int_equal(r.status, 0);
}

static void records_of_a_running_job_are_kept(void **state)
{
    static const char     again[] = MLP "--steps 5 --workers 1 --flight-recorder fl";
    static job            j;
    static command_result r;
    job_start(&j, *state, 2, MLP ENDLESS);
    job_await_step(&j, HIT_AT);
    run_command(&r, *state, again);
    assert_int_equal(r.status, 1);
    assert_says(r.err, "another run is writing the flight record 'fl/rank-");
    assert_says(r.err, "give each run its own directory");
    inspect_flight(*state, &r, "");
    assert_says(r.out, "2 of 2");
    job_hit(&j, j.worker[0], SIGKILL);
    (void)job_wait(&j);
    run_command(&r, *state, again);
    assert_int_equal(r.status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_is_named),
        cmocka_unit_test(a_stopped_rank_is_named_while_the_others_wait),
        cmocka_unit_test(damage_is_reported_and_the_rest_is_shown),
        cmocka_unit_test(every_worker_mode_writes_records),
        cmocka_unit_test(an_invalid_directory_is_reported_first),
        cmocka_unit_test(a_file_of_another_kind_is_kept),
        cmocka_unit_test(records_of_a_running_job_are_kept),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

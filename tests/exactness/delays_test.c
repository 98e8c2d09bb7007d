/* delays_test.c -- asynchronous runs whose schedule has a bound in versions, times from a file or
 * times by tokens, and those with adaptive compensation.
 *
 * Goal:    they have the same hash for any number of workers, also if they are resumed in flight.
 *          A file of times is part of what a run is.  A bound holds.  A plan predicts the schedule.
 * Control: other times are another hash.
 */
#include "base/thorough_testing.h"
#include "cli/command.h"

enum { HEX = 64, STEPS = 6 };

static const char GPT[] = "train gpt --data synthetic:tokens=4000,vocab=31 --layers 1 --heads 2 "
                          "--width 16 --context 13 --optimizer sgd --momentum 0.5 --lr 0.05 "
                          "--global-batch 16 --micro-batch 1 --virtual-workers 8 --async virtual";
static const char DOCS[] = "train gpt --data docs:lines --layers 1 --heads 2 --width 16 "
                           "--context 24 --lr 0.05 --global-batch 16 --micro-batch 1 "
                           "--virtual-workers 8 --async virtual";

static const struct {
    const char *model, *rule;
} cases[] = { { GPT, "--staleness versions:3 --aggregate 2 --delays exponential" },
              { GPT, "--delays trace:times --slow 2:3" },
              { DOCS, "--delays tokens" },
              { GPT, "--delay-compensation adaptive:2 --delays lognormal:0.5" } };

enum { CASES = sizeof cases / sizeof cases[0] };

/* Makes files of times, and documents of which some are much longer than others. */
static int make_files(void **state)
{
    static command_result r;
    if (make_folder(state) != 0)
        return 1;
    run_shell(&r, *state, "printf '# seconds\\n0.012\\n0.02 3 # a slow one\\n\\n 0.013\\n0.04\\n' "
                          ">times; printf '0.012\\n0.02 3\\n0.013\\n0.041\\n' >others; "
                          "for i in $(seq 90); do printf '%0*d\\n' $((2 + i % 7 * i % 31)) $i; "
                          "done >lines");
    return r.status;
}

static void runs_depend_on_the_schedule_alone(void **state)
{
    char one[HEX + 1], got[HEX + 1], how[64];
    for (int i = 0; i < CASES; i++) {
        run_steps(*state, STEPS, cases[i].model, cases[i].rule, STEPS, "--workers 1", one);
        for (int n = 2; n <= (lki_brief() ? 2 : 3); n++) {
            (void)snprintf(how, sizeof how, "--workers %d%s", n,
                           n == 3 ? " --worker-mode threads" : "");
            run_steps(*state, STEPS, cases[i].model, cases[i].rule, STEPS, how, got);
            assert_string_equal(got, one);
        }
        (void)snprintf(how, sizeof how, "--workers 3 --checkpoint ck%d", i);
        run_steps(*state, STEPS, cases[i].model, cases[i].rule, 3, how, got);
        (void)snprintf(how, sizeof how, "--workers 2 --checkpoint ck%d --resume", i);
        run_steps(*state, STEPS, cases[i].model, cases[i].rule, STEPS, how, got);
        assert_string_equal(got, one);
    }
}

/* The name of a file of times does not matter, but its content does. */
static void a_file_of_times_is_part_of_a_run(void **state)
{
    static command_result r;
    char                  line[1024], one[HEX + 1], got[HEX + 1];
    run_shell(&r, *state, "cp times same");
    run_steps(*state, STEPS, GPT, "--delays trace:times", STEPS, "--workers 2", one);
    run_steps(*state, STEPS, GPT, "--delays trace:same", STEPS, "--workers 2", got);
    assert_string_equal(got, one);
    run_steps(*state, STEPS, GPT, "--delays trace:others", STEPS, "--workers 2", got);
    assert_string_not_equal(got, one);
    run_steps(*state, STEPS, GPT, "--delays trace:times", 3, "--workers 2 --checkpoint ck", got);
    (void)snprintf(line, sizeof line, "%s --steps %d --delays trace:others --checkpoint ck "
                                      "--resume", GPT, STEPS);
    run_command(&r, *state, line);
    assert_int_not_equal(r.status, 0);
    assert_says(r.err, "--delays is \"trace:");
    assert_says(r.err, "but the checkpoint was made with \"trace:");
}

/* Trains four steps, and copies the weights.  Returns what the command has said. */
static const char *weights_of(void *scratch, const char *model, const char *delays,
                              char weights[HEX + 1])
{
    static command_result r;
    char                  line[1024];
    (void)snprintf(line, sizeof line, "%s --steps 4 --workers 2 %s", model, delays);
    run_command(&r, scratch, line);
    assert_int_equal(r.status, 0);
    read_weights(&r, weights);
    return r.err;
}

/* Without documents a task is as long as it has samples, which differ in a short last batch alone:
 * the hash of the weights is that of equally long tasks. */
static void tokens_of_equal_samples_are_constant(void **state)
{
    char one[HEX + 1], got[HEX + 1];
    (void)weights_of(*state, GPT, "", one);
    assert_says(weights_of(*state, GPT, "--delays tokens", got),
                "note: all samples of these data are equally long");
    assert_string_equal(got, one);
    (void)weights_of(*state, DOCS, "--delays constant", one);
    assert_says_not(weights_of(*state, DOCS, "--delays tokens", got), "equally long");
    assert_string_not_equal(got, one);
}

/* Returns the largest staleness in a log. */
static long staleness_in(void *scratch, const char *rule)
{
    static command_result r;
    char                  hash[HEX + 1];
    (void)run_shell(&r, scratch, "rm -f log");
    run_steps(scratch, STEPS, GPT, rule, STEPS, "--workers 2 --log log", hash);
    run_shell(&r, scratch, "sed -n 's/.*staleness_max\": \\([0-9]*\\).*/\\1/p' log | sort -n | "
                           "tail -1");
    return strtol(r.out, NULL, 10);
}

static void bounds_hold(void **state)
{
    assert_true(staleness_in(*state, "--delays exponential") > 9);
    assert_int_equal(staleness_in(*state, "--delays exponential --staleness versions:9"), 9);
    assert_int_equal(staleness_in(*state, "--delays exponential --staleness versions:7"), 7);
    assert_int_equal(staleness_in(*state, "--aggregate 8 --staleness versions:0"), 0);
}

/* Plans a run, and returns what the command prints. */
static const char *plan_of(void *scratch, const char *model, const char *options)
{
    static command_result r;
    char                  line[1024];
    (void)snprintf(line, sizeof line, "plan%s %s", model + strlen("train"), options);
    run_command(&r, scratch, line);
    if (r.status != 0)
        fail_msg("%s: %s", line, r.err);
    return r.out;
}

static void plans_predict_the_schedule(void **state)
{
    const char *out = plan_of(*state, GPT, "--workers 2 --delays exponential --staleness "
                                           "versions:7");
    assert_says(out, "\n8 groups, staleness: 6.99 on average, at most 7\n"
                     "  versions behind        0       1     2-3     4-7\n"
                     "  gradients, %        0.02    0.02    0.05   99.90\n"
                     "groups wait for others in ");
    assert_says(out, "2 workers of equal speed: 1.00 of the sum of their speeds, waiting 0.");
    assert_says(out, " % of the time\nwith one of them at half speed: 0.9");
    out = plan_of(*state, DOCS, "--workers 1 --delays tokens --json --flops 1e9");
    assert_says(out, "\"async\": {\"staleness_mean\": 6.99");
    assert_says(out, "\"staleness_bins\": [0.01");
    assert_says(out, "\"slow_waiting\": 0.");
    assert_says_not(out, "step_ms");
}

/* With half of the groups as backup workers, no gradient is stale. */
static void plans_count_late_gradients(void **state)
{
    const char *out = plan_of(*state, GPT, "--workers 2 --delays exponential --aggregate 4 "
                                           "--staleness versions:0 --drop-late");
    assert_says(out, "  versions behind        0\n"
                     "  gradients, %      100.00\n"
                     "groups wait for others in ");
    assert_says(out, "simulated time\nlate gradients that are dropped: ");
}

static void mistakes_are_named(void **state)
{
    static const struct {
        const char *times, *options, *text;
    } mistakes[] = {
        { "1\\n2 x", "", "'bad', line 2: 'x' is no number of a group" },
        { "1\\n2 8", "", "'bad', line 2: there is no group 8; the 8 groups are numbered from 0" },
        { "# a\\n\\n1 2 3", "", "'bad', line 3: '3' is too much" },
        { "a", "", "'bad', line 1: 'a' is no time" },
        { "1\\n-2", "", "'bad', line 2: a time of -2; times are above 0 and finite" },
        { "1e999", "", "'bad', line 1: a time of 1e999; times are above 0 and finite" },
        { "# 1", "", "'bad' has no times of tasks" },
        { "1e308\\n1e308", "", "--delays: 'bad': a time of 1e+308 is less than a millionth" },
        { "1\\n1e-7", "", "--delays: 'bad': a time of 1e-07 is less than a millionth of the mean" },
        { "1 0\\n1 1\\n1 3", "", "'bad' has no time of group 2, and none of all groups" },
        { "1", "--staleness versions:6", "have a staleness of 7 at least; give versions:7" },
        { "1", "--staleness versions:x", "or versions:T with a number of versions" },
        { "1", "--delay-compensation adaptive", "or adaptive:L with L above 0" },
        { "1", "--delay-compensation adaptive:2 --aggregate 2", "leave out --aggregate" },
    };
    static command_result r;
    char                  line[1024];
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        (void)snprintf(line, sizeof line, "printf '%s\\n' >bad; '" LK_TEST_COMMAND "' %s --steps 1 "
                                          "--delays trace:bad %s", mistakes[i].times, GPT,
                       mistakes[i].options);
        run_shell(&r, *state, line);
        assert_int_not_equal(r.status, 0);
        assert_says(r.err, mistakes[i].text);
    }
    (void)snprintf(line, sizeof line, "%s --steps 1 --delays trace:none", GPT);
    run_command(&r, *state, line);
    assert_int_not_equal(r.status, 0);
    assert_says(r.err, "cannot open 'none'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_depend_on_the_schedule_alone),
        cmocka_unit_test(a_file_of_times_is_part_of_a_run),
        cmocka_unit_test(tokens_of_equal_samples_are_constant),
        cmocka_unit_test(bounds_hold),
        cmocka_unit_test(plans_predict_the_schedule),
        cmocka_unit_test(plans_count_late_gradients),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, make_files, remove_folder);
}

/* async_test.c -- asynchronous runs of `lockstep train`.
 *
 * Goal:    a run has the same hash for any number of workers, also if it is resumed with others
 *          while tasks are in flight.  Without staleness it is a synchronous run.
 * Control: another schedule has another hash.
 */
#include "base/thorough_testing.h"
#include "cli/command.h"

enum { HEX = 64, STEPS = 6 };

static const char GPT[] = "train gpt --data synthetic:tokens=4000,vocab=31 --layers 2 --heads 2 "
                          "--width 24 --context 13 --optimizer adamw --lr 1e-3 --validation 0.1 "
                          "--clip-norm 1 --global-batch 16 --micro-batch 1 --virtual-workers 8 "
                          "--schedule cosine --eval-every 4";
static const char RESNET[] = "train resnet --data synthetic:images=128,h=8,w=8,c=3,classes=4 "
                             "--lr 0.02 --momentum 0.5 --global-batch 16 --micro-batch 1 "
                             "--virtual-workers 8";

static const struct {
    const char *model, *rule;
} cases[] = { { GPT, "--async virtual --delays lognormal:0.5 --slow 3:3,1:2 --precision bf16" },
              { RESNET, "--async virtual --groups 4 --delays exponential --staleness 2 "
                        "--staleness-lr" },
              { GPT, "--async virtual --aggregate 2 --delays exponential" },
              { GPT, "--async virtual --delay-compensation 0.04 --optimizer sgd" } };

static void runs_depend_on_the_schedule_alone(void **state)
{
    static const char *const hows[] = { "--workers 3", "--workers 4 --worker-mode threads",
                                        "--workers 2 --speculate on", "--workers 3 --hosts 2" };
    char one[HEX + 1], got[HEX + 1], before[HEX + 1] = "";
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i += lki_brief() ? 2 : 1) {
        run_steps(*state, STEPS, cases[i].model, cases[i].rule, STEPS, "--workers 1", one);
        run_steps(*state, STEPS, cases[i].model, cases[i].rule, STEPS, hows[i % 4], got);
        assert_string_equal(got, one);
        assert_string_not_equal(one, before);
        memcpy(before, one, sizeof before);
    }
}

/* The weights of a run without staleness are those of a synchronous run.  The hashes of the runs
 * differ, because they hash the configuration, too. */
static void without_staleness_it_is_synchronous(void **state)
{
    static command_result r;
    char                  line[1024], want[HEX + 1];
    for (int i = 0; i < 2; i++) {
        (void)snprintf(line, sizeof line, "%s --steps %d --workers %d%s", GPT, STEPS, 2 + i,
                       i == 0 ? "" : " --async virtual --staleness 0 --aggregate 8");
        run_command(&r, *state, line);
        assert_int_equal(r.status, 0);
        const char *weights = strstr(r.out, "weights ");
        assert_non_null(weights);
        if (i == 0)
            (void)snprintf(want, sizeof want, "%.64s", weights + strlen("weights "));
        else
            assert_memory_equal(weights + strlen("weights "), want, HEX);
    }
}

static void checkpoints_have_tasks_in_flight(void **state)
{
    char one[HEX + 1], got[HEX + 1], how[64];
    for (int i = 0; i < 2; i++) {
        run_steps(*state, STEPS, cases[i].model, cases[i].rule, STEPS, "--workers 2", one);
        (void)snprintf(how, sizeof how, "--workers 3 --checkpoint ck%d", i);
        run_steps(*state, STEPS, cases[i].model, cases[i].rule, 3, how, got);
        assert_string_not_equal(got, one);
        (void)snprintf(how, sizeof how, "--workers 1 --checkpoint ck%d --resume", i);
        run_steps(*state, STEPS, cases[i].model, cases[i].rule, STEPS, how, got);
        assert_string_equal(got, one);
    }
    static command_result r;
    run_command(&r, *state, "inspect ck0");
    assert_non_null(strstr(r.out, "  read, norms of groups 0 to 7\n"));
    char line[1024];
    (void)snprintf(line, sizeof line, "%s --steps 6 %s --groups 4 --checkpoint ck0 --resume", GPT,
                   cases[0].rule);
    run_command(&r, *state, line);
    assert_int_not_equal(r.status, 0);
    assert_non_null(strstr(r.err, "--groups is 4, but the checkpoint was made with 8"));
}

/* Without --workers there are at most as many as groups. */
static void workers_are_at_most_groups(void **state)
{
    static command_result r;
    char                  line[1024];
    (void)snprintf(line, sizeof line, "%s --steps 1 --async virtual --groups 1", GPT);
    run_command(&r, *state, line);
    assert_int_equal(r.status, 0);
}

/* All workers report the failure of the one that applies gradients.  The test runs several times,
 * because the first worker that fails may end the others before they report it. */
static void what_is_not_finite_ends_all(void **state)
{
    static command_result r;
    for (int i = 0; i < 4; i += lki_brief() ? 3 : 1) {
        run_command(&r, *state, "train mlp --data synthetic:images=64,h=6,w=6,c=1,classes=4 "
                                "--virtual-workers 8 --global-batch 16 --lr 1e30 --steps 9 "
                                "--async virtual --workers 4");
        assert_int_not_equal(r.status, 0);
        if (strstr(r.err, "not finite") == NULL || strstr(r.err, "lockstep verify") != NULL)
            fail_msg("%s", r.err);
    }
}

/* The schedule is in the log, the same for any workers. */
static void logs_have_staleness(void **state)
{
    static command_result r;
    char                  hash[HEX + 1], lines[2][1024];
    for (int i = 0; i < 2; i++) {
        run_steps(*state, STEPS, GPT, cases[2].rule, STEPS,
                  i == 0 ? "--workers 3 --log l0" : "--workers 1 --log l1", hash);
        run_shell(&r, *state, i == 0 ? "sed -n '/staleness/s/, .waited.*//p' l0"
                                     : "sed -n '/staleness/s/, .waited.*//p' l1");
        (void)snprintf(lines[i], sizeof lines[i], "%.1023s", r.out);
    }
    assert_string_equal(lines[0], lines[1]);
    assert_non_null(strstr(lines[0], "{\"step\": 6, \"version\": 24, \"staleness_mean\": "));
}

static void mistakes_are_named(void **state)
{
    static const struct {
        const char *options, *text;
    } mistakes[] = {
        { "--async virtual --aggregate 3", "--aggregate 3 does not divide --groups 8" },
        { "--async virtual --slow 8:2", "there is no group 8; the 8 groups are numbered from 0" },
        { "--async virtual --slow 1:2,1:3", "--slow: group 1 has two factors; give one" },
        { "--async virtual --slow 1:0", "and FACTOR from 0.001 to 1e6, such as" },
        { "--async virtual --topology ring", "(--topology, --outer-optimizer)" },
        { "--async virtual --slow 1", "must be up to 8 times GROUP:FACTOR" },
        { "--async virtual --delays normal", "must be constant, exponential, tokens, trace" },
        { "--async virtual --staleness x", "must be none, a number of tasks" },
        { "--async virtual --strategy zero1", "needs --strategy ddp" },
        { "--async virtual --hosts 2 --on-failure continue", "--restart goes on from a" },
        { "--async virtual --groups 1", "--workers 2 are more than --groups 1" },
        { "--async virtual --aggregate 2 --delay-compensation 0.1", "leave out --aggregate" },
        { "--aggregate 2", "--aggregate needs --async" },
        { "--async virtual --clients 4", "rounds, which all wait for: leave out --async" },
    };
    static command_result r;
    char                  line[1024];
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        (void)snprintf(line, sizeof line, "%s --steps 1 --workers 2 %s", GPT, mistakes[i].options);
        run_command(&r, *state, line);
        assert_int_not_equal(r.status, 0);
        if (strstr(r.err, mistakes[i].text) == NULL)
            fail_msg("%s: %s", mistakes[i].options, r.err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_depend_on_the_schedule_alone),
        cmocka_unit_test(without_staleness_it_is_synchronous),
        cmocka_unit_test(checkpoints_have_tasks_in_flight),
        cmocka_unit_test(workers_are_at_most_groups),
        cmocka_unit_test(what_is_not_finite_ends_all),
        cmocka_unit_test(logs_have_staleness),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* live_test.c -- live asynchronous runs of `lockstep train`.
 *
 * Goal:    a run whose workers are killed and paused records a schedule, and any number of workers
 *          replays it with the same weights.
 * Control: a schedule with two lines exchanged is refused, and so is a run with another rate.
 */
#include "cli/command.h"

enum { HEX = 64 };

static const char GPT[] = "train gpt --data synthetic:tokens=4000,vocab=31 --layers 2 --heads 2 "
                          "--width 24 --context 13 --optimizer adamw --validation 0.1 "
                          "--clip-norm 1 --global-batch 16 --micro-batch 1 --virtual-workers 8 "
                          "--schedule cosine --eval-every 8 --steps 24 --async live";

static void weights_of(void *scratch, const char *options, char hash[HEX + 1])
{
    static command_result r;
    char                  line[1024];
    (void)snprintf(line, sizeof line, "%s --lr 1e-3 %s", GPT, options);
    run_command(&r, scratch, line);
    const char *weights = strstr(r.out, "weights ");
    if (r.status != 0 || weights == NULL)
        fail_msg("%s: %s", line, r.err);
    (void)snprintf(hash, HEX + 1, "%.64s", weights + strlen("weights "));
}

static void replays_have_the_same_weights(void **state)
{
    char want[HEX + 1], got[HEX + 1], options[128];
    for (int live = 2; live <= 3; live++) {
        (void)snprintf(options, sizeof options,
                       "--record s%d --workers %d --checkpoint c%d --checkpoint-every 3 "
                       "--restart=99 --chaos %d,6,kill,stop", live, live, live, live);
        weights_of(*state, options, want);
        for (int workers = 1; workers <= 3; workers++) {
            (void)snprintf(options, sizeof options, "--replay s%d --workers %d", live, workers);
            weights_of(*state, options, got);
            assert_string_equal(got, want);
        }
    }
}

/* A replay of a part, which ends in a checkpoint with tasks in flight, goes on. */
static void a_replay_is_resumed(void **state)
{
    char want[HEX + 1], got[HEX + 1];
    weights_of(*state, "--record s --workers 2 --aggregate 2", want);
    weights_of(*state, "--replay s --workers 3 --aggregate 2 --checkpoint c --max-samples 176",
               got);
    assert_string_not_equal(got, want);
    weights_of(*state, "--replay s --workers 1 --aggregate 2 --checkpoint c --resume", got);
    assert_string_equal(got, want);
}

static void mistakes_are_named(void **state)
{
    static const struct {
        const char *options, *text;
    } mistakes[] = {
        { "--lr 1e-3", "--async live needs --record FILE" },
        { "--lr 1e-3 --record a --replay s", "--async live needs --record FILE" },
        { "--lr 1e-3 --record a --slow 1:2", "are of simulated schedules" },
        { "--lr 2e-3 --replay s --aggregate 2", "the gradient of task " },
        { "--lr 1e-3 --replay t --aggregate 2", " the task reads a version that is" },
        { "--lr 1e-3 --replay s", "begins with \"lockstep schedule 1: groups 8, aggregate 2" },
        { "--lr 1e-3 --replay none", "none" },
        { "--lr 1e-3 --record .", "the schedule . cannot be opened" },
    };
    static command_result r;
    char                  line[1024];
    run_shell(&r, *state,
              "awk 'NR == 40 { kept = $0; next } { print } NR == 60 { print kept }' s >t");
    assert_int_equal(r.status, 0);
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        (void)snprintf(line, sizeof line, "%s --workers 2 %s", GPT, mistakes[i].options);
        run_command(&r, *state, line);
        assert_int_not_equal(r.status, 0);
        if (strstr(r.err, mistakes[i].text) == NULL)
            fail_msg("%s: %s", mistakes[i].options, r.err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replays_have_the_same_weights),
        cmocka_unit_test(a_replay_is_resumed),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

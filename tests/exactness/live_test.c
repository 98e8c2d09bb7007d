/* live_test.c -- live asynchronous runs of `lockstep train`.
 *
 * Goal:    a run whose workers are killed and paused records a schedule, and any number of workers
 *          replays it with the same weights, whatever its versions are of.
 * Control: a schedule with two lines exchanged is refused, and so is a run with another rate.
 */
#include "base/thorough_testing.h"
#include "cli/command.h"

enum { HEX = 64 };

static const char GPT[] = "train gpt --data synthetic:tokens=4000,vocab=31 --layers 2 --heads 2 "
                          "--width 24 --context 13 --optimizer adamw --validation 0.1 "
                          "--clip-norm 1 --global-batch 16 --micro-batch 1 --virtual-workers 8 "
                          "--schedule cosine --eval-every 8 --steps 24 --async live";

/* Trains, and copies the hash of the weights.  Returns what the command has said. */
static const char *weights_of(void *scratch, const char *options, char hash[HEX + 1])
{
    static command_result r;
    char                  line[1024];
    (void)snprintf(line, sizeof line, "%s --lr 1e-3 %s", GPT, options);
    run_command(&r, scratch, line);
    const char *weights = strstr(r.out, "weights ");
    if (r.status != 0 || weights == NULL)
        fail_msg("%s: %s", line, r.err);
    (void)snprintf(hash, HEX + 1, "%.64s", weights + strlen("weights "));
    return r.err;
}

/* Records a schedule while worker 1 is killed after step 9 and, once the workers are started again,
 * stopped for a while after step 16, if the run has not ended by then.  A run that ends before the
 * kill is repeated. */
static void weights_of_disturbed(void *scratch, int workers, const char *hosts,
                                 const char *options, char hash[HEX + 1])
{
    static const char script[] =
        "rm -rf s%d c%d l%d; "
        "%s %s %s %s --lr 1e-3 --record s%d --workers %d --checkpoint c%d --checkpoint-every 3 "
        "--restart=3 --log l%d 2>said & run=$!; "
        "await() { until grep -q '\"step\": '$1, l%d || ! kill -0 $run; do sleep 0.02; done; }; "
        "worker() { sed -n 's/^rank 1 (pid \\([0-9]*\\).*/\\1/p' said | tail -1; }; "
        "touch l%d; { await 9; kill -KILL $(worker); await 16; kill -STOP $(worker); sleep 0.1; "
        "kill -CONT $(worker); } 2>/dev/null; wait $run || { cat said >&2; false; } && "
        "{ grep -q 'was killed by SIGKILL' said || exit 3; }";
    static command_result r;
    char                  line[2000];
    (void)snprintf(line, sizeof line, script, workers, workers, workers, LK_TEST_COMMAND, GPT,
                   hosts, options, workers, workers, workers, workers, workers, workers);
    int tries = 5;
    do
        run_shell(&r, scratch, line);
    while (r.status == 3 && --tries > 0);
    const char *weights = strstr(r.out, "weights ");
    if (r.status != 0 || weights == NULL)
        fail_msg("status %d: %s", r.status, r.err);
    (void)snprintf(hash, HEX + 1, "%.64s", weights + strlen("weights "));
}

static void replays_have_the_same_weights(void **state)
{
    static const struct {
        int         workers;
        const char *hosts, *options;
    } lives[4] = {
        { 3, "--hosts 2", "--delay-compensation 0.02" },
        { 3, "", "--consistency shard --shards 3 --delay-compensation 0.04" },
        { 2, "--hosts 2", "--consistency span --staleness-lr" },
        { 2, "", "" },
    };
    char want[HEX + 1], got[HEX + 1], options[256];
    for (size_t i = 0; i < (lki_brief() ? 2 : lki_thorough() ? 4 : 3); i++) {
        weights_of_disturbed(*state, lives[i].workers, lives[i].hosts, lives[i].options, want);
        for (int workers = 1; workers <= 3; workers += lki_brief() ? 2 : 1) {
            (void)snprintf(options, sizeof options, "%s --replay s%d --workers %d",
                           lives[i].options, lives[i].workers, workers);
            (void)weights_of(*state, options, got);
            assert_string_equal(got, want);
        }
    }
}

#define DROPS_LATE "--record d --workers 2 --aggregate 4 --staleness versions:0 --drop-late"

/* A replay of a part, which ends in a checkpoint with tasks in flight, goes on. */
static void a_replay_is_resumed(void **state)
{
    static const char *const kinds[] = { "--record s --workers 2 --aggregate 2",
                                         "--record r --workers 2 --consistency shard",
                                         DROPS_LATE };
    char                     want[HEX + 1], got[HEX + 1], options[256];
    for (int i = 0; i < 3; i++) {
        const char file  = kinds[i][strlen("--record ")];
        const char *kind = strstr(kinds[i], i == 1 ? "--con" : "--agg");
        (void)weights_of(*state, kinds[i], want);
        (void)snprintf(options, sizeof options,
                       "--replay %c --workers 3 %s --checkpoint c%c --max-samples 176", file, kind,
                       file);
        (void)weights_of(*state, options, got);
        assert_string_not_equal(got, want);
        (void)snprintf(options, sizeof options,
                       "--replay %c --workers 1 %s --checkpoint c%c --resume", file, kind, file);
        assert_says_not(weights_of(*state, options, got), " 0 tokens/s"); /* since the resumption */
        assert_string_equal(got, want);
    }
}

static void mistakes_are_named(void **state)
{
    static const struct {
        const char *options, *text;
    } mistakes[] = {
        { "--lr 1e-3", "--async live needs --record FILE" },
        { "--lr 1e-3 --record a --replay s", "--record and --replay contradict each other" },
        { "--lr 1e-3 --record a --consistency span --aggregate 2", "leave out --aggregate" },
        { "--lr 1e-3 --record a --consistency shard --staleness versions:9", "a bound in tasks" },
        { "--lr 1e-3 --record a --consistency span --optimizer lamb", "than lars and lamb" },
        { "--lr 1e-3 --record a --drop-late", "--drop-late needs --staleness" },
        { "--lr 1e-3 --record a --staleness 2 --drop-late", "--staleness versions:T" },
        { "--lr 1e-3 --record a --shards 2", "--shards needs --consistency shard" },
        { "--lr 1e-3 --record a --slow 1:2", "are of simulated schedules" },
        { "--lr 2e-3 --replay s --aggregate 2", "the gradient of task " },
        { "--lr 1e-3 --replay t --aggregate 2", " the task reads a version that is" },
        { "--lr 1e-3 --replay s", "begins with \"lockstep schedule 1: groups 8, aggregate 2" },
        { "--lr 1e-3 --replay none", "--replay: cannot open 'none'" },
        { "--lr 1e-3 --replay crlf --aggregate 2", "line 1 ends with a carriage return" },
        { "--lr 1e-3 --replay cut --aggregate 2", "--replay: cut has the gradients of 4 steps" },
        { "--lr 1e-3 --replay tail --aggregate 2", "tail, line 195: it has another length" },
        { "--lr 1e-3 --record other", "other is not a schedule of this run" },
        { "--lr 1e-3 --record new --checkpoint cs --aggregate 2 --resume",
          "it is not the schedule of this run" },
        { "--lr 1e-3 --record s4 --checkpoint cs --aggregate 2 --resume",
          "the schedule is not the one of this checkpoint's run" },
        { "--lr 1e-3 --record .", "--record .: is a directory; name a file in it" },
        { "--lr 1e-3 --record both --log both", "--record and --log are the same file both" },
    };
    static command_result r;
    char                  line[1024];
    char                  hash[HEX + 1];
    (void)weights_of(*state, "--record s4 --workers 3 --aggregate 2", hash);
    run_shell(&r, *state,
              "seq 999 >other; cp other same; "
              "sed 's/$/\\r/' s >crlf; { cat s; echo hello; } >tail; head -n 36 s >cut; "
              "awk 'NR == 40 { kept = $0; next } { print } NR == 60 { print kept }' s >t");
    assert_int_equal(r.status, 0);
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        (void)snprintf(line, sizeof line, "%s --workers 2 %s", GPT, mistakes[i].options);
        run_command(&r, *state, line);
        assert_int_not_equal(r.status, 0);
        if (strstr(r.err, mistakes[i].text) == NULL)
            fail_msg("%s: %s", mistakes[i].options, r.err);
    }
    (void)snprintf(line, sizeof line, "%s --lr 1e-3 --record s --aggregate 2", GPT);
    run_command(&r, *state, line); /* a schedule that is complete is only repeated */
    if (strstr(r.err, "in the order of the first 192 in s, and then in that in which") == NULL ||
        strstr(r.err, "note: s has all gradients of this run already") == NULL)
        fail_msg("%s%s", r.out, r.err);
    run_shell(&r, *state, "cmp other same && test ! -e new");
    assert_int_equal(r.status, 0);
    (void)snprintf(line, sizeof line, "plan%s", GPT + strlen("train"));
    run_command(&r, *state, line); /* a plan writes no schedule */
    if (r.status != 0 || strstr(r.out, "8 groups, live: ") == NULL)
        fail_msg("%s%s", r.out, r.err);
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

/* local_test.c -- replicas of `lockstep train`: local SGD, DiLoCo and gossip.
 *
 * Goal:    a run has the same hash for any number of workers and hosts, also if it is resumed in
 *          the middle of a round with other workers.
 * Control: another number of replicas or of local steps has another hash.
 */
#include "base/thorough_testing.h"
#include "cli/command.h"

enum { HEX = 64, STEPS = 7 };

static const char GPT[] = "train gpt --data synthetic:tokens=4000,vocab=31 --layers 2 --heads 2 "
                          "--width 24 --context 13 --optimizer adamw --lr 1e-3 --validation 0.1 "
                          "--clip-norm 1 --global-batch 16 --micro-batch 1 --virtual-workers 8 "
                          "--schedule cosine";
static const char RESNET[] = "train resnet --data synthetic:images=128,h=8,w=8,c=3,classes=4 "
                             "--lr 0.1 --momentum 0.9 --global-batch 16 --micro-batch 1 "
                             "--virtual-workers 8";

static const struct {
    const char *model, *rule;
} cases[] = { { GPT, "--groups 4 --local-steps 3" },
              { GPT, "--groups 4 --diloco --local-steps 8 --fragments 2 --fragment-delay 3 "
                     "--fragment-alpha 0.5 --outer-dtype int4" },
              { RESNET, "--groups 2 --local-steps 2 --local-start 2" },
              { GPT, "--groups 2 --local-steps 2 --outer-optimizer adam --outer-dtype int8" },
              { GPT, "--groups 8 --diloco --local-steps 2 --compress topk --ratio 0.1" },
              { GPT, "--groups 4 --local-steps 2 --outer-optimizer yogi --precision bf16" },
              { RESNET, "--groups 4 --local-steps 2 --topology pairs" },
              { GPT, "--topology ring" } };

static void runs_depend_on_replicas_alone(void **state)
{
    static const char *const hows[] = { "--workers 3 --strategy zero1",
                                        "--workers 8 --worker-mode threads",
                                        "--workers 3 --hosts 3 --strategy zero3",
                                        "--workers 5 --hosts 2 --strategy zero1" };
    char                     one[HEX + 1], got[HEX + 1];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i += lki_brief() ? 3 : 1) {
        run_steps(*state, STEPS, cases[i].model, cases[i].rule, STEPS, "--workers 1", one);
        for (size_t h = i % 2; h < (i == 0 && !lki_brief() ? 4 : i % 2 + 2); h++) {
            const bool mixes = strstr(cases[i].rule, "--topology") != NULL; /* not with zero3 */
            run_steps(*state, STEPS, cases[i].model, cases[i].rule, STEPS,
                      hows[h == 2 && mixes ? 3 : h],
                   got);
            assert_string_equal(got, one);
        }
    }
}

static void other_replicas_have_other_hashes(void **state)
{
    static const char *const others[] = { "--groups 2 --local-steps 3",
                                          "--groups 4 --local-steps 2", "--groups 4",
                                          "--groups 4 --local-steps 3 --topology ring" };
    char                     one[HEX + 1], got[HEX + 1];
    run_steps(*state, STEPS, GPT, cases[0].rule, STEPS, "--workers 2", one);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i += lki_brief() ? 3 : 1) {
        run_steps(*state, STEPS, GPT, others[i], STEPS, "--workers 2", got);
        assert_string_not_equal(got, one);
    }
    run_steps(*state, STEPS, GPT, "--groups 4 --local-steps 3 --topology all", STEPS,
              "--workers 3", got);
    assert_string_equal(got, one);
}

/* Steps 1 and 5 are in the middle of a round.  After step 5 of case 1 outer gradients are
 * being sent. */
static void checkpoints_have_all_replicas(void **state)
{
    char one[HEX + 1], got[HEX + 1], how[128];
    for (int i = 0; i < (lki_brief() ? 2 : 7); i += i < 2 ? 1 : 2) {
        const char *model = cases[i].model, *rule = cases[i].rule;
        run_steps(*state, STEPS, model, rule, STEPS, "--workers 2", one);
        (void)snprintf(how, sizeof how, "--workers 3 --checkpoint ck%d", i);
        run_steps(*state, STEPS, model, rule, 1, how, got);
        (void)snprintf(how, sizeof how, "--workers 4 --hosts 2 --strategy zero1 --checkpoint ck%d "
                       "--resume", i);
        run_steps(*state, STEPS, model, rule, 5, how, got);
        assert_string_not_equal(got, one);
        (void)snprintf(how, sizeof how, "--workers 8 --checkpoint ck%d --resume", i);
        run_steps(*state, STEPS, model, rule, STEPS, how, got);
        assert_string_equal(got, one);
    }
    static command_result r;
    run_command(&r, *state, "inspect ck0");
    assert_non_null(strstr(r.out, "  weights, norms of groups 0 to 3\n"));
}

/* Outer steps are in the log, the same for any workers. */
static void logs_have_outer_steps(void **state)
{
    static command_result r;
    char                  hash[HEX + 1], lines[2][1024];
    run_steps(*state, STEPS, GPT, cases[0].rule, STEPS, "--workers 3 --log l0", hash);
    run_steps(*state, STEPS, GPT, cases[0].rule, STEPS, "--workers 4 --hosts 2 --log l1", hash);
    for (int i = 0; i < 2; i++) {
        read_log_lines(&r, *state, "outer_step", i == 0 ? "l0" : "l1");
        assert_int_equal(r.status, 0);
        (void)snprintf(lines[i], sizeof lines[i], "%.1023s", r.out);
    }
    assert_string_equal(lines[0], lines[1]);
    assert_non_null(strstr(lines[0], "{\"step\": 3, \"outer_step\": 1, \"replicas\": 4, "));
    assert_non_null(strstr(lines[0], "{\"step\": 6, \"outer_step\": 2, "));
    assert_null(strstr(lines[0], "\"step\": 7"));
    run_steps(*state, STEPS, GPT, "--topology ring", STEPS, "--workers 2 --eval-every 4 --log l2",
              hash);
    run_shell(&r, *state, "grep mixings l2");
    assert_non_null(strstr(r.out, "{\"step\": 4, \"mixings\": 4, \"replicas\": 8, \"drift\": "));
    assert_non_null(strstr(r.out, "{\"step\": 7, \"mixings\": 7, "));
    assert_null(strstr(r.out, "\"step\": 5"));
}

/* A failure names the replica and its virtual workers, the same for any workers. */
static void failures_name_the_replica(void **state)
{
    static const char DIVERGES[] = "train gpt --data synthetic:tokens=4000,vocab=31 --layers 1 "
                                   "--heads 2 --width 64 --context 8 --seed 3 --global-batch 8 "
                                   "--virtual-workers 8 --steps 1 --optimizer adamw --groups 2";
    static const struct {
        const char *rule, *text;
    } runs[] = {
        { "--local-steps 1 --lr 1e38 --weight-decay 100", "outer step 1: the weights of replica 0, "
                                                          "which has virtual workers 0 to 3" },
        { "--topology ring --lr 1e38 --weight-decay 100",
          "the mean of the replicas: the weights of replica 0" },
        { "--local-steps 1 --lr 3.3e37 --compress powersgd --rank 1",
          "in group 0, which has virtual workers 0 to 3" },
    };
    static command_result r;
    char                  line[1024];
    for (int i = 0; i < 6; i += lki_brief() ? 3 : 1) {
        (void)snprintf(line, sizeof line, "%s %s --workers %d", DIVERGES, runs[i / 2].rule,
                       i % 2 == 0 ? 1 : 4);
        run_command(&r, *state, line);
        assert_int_equal(r.status, 3);
        assert_says(r.err, runs[i / 2].text);
    }
}

static void refuse(void *scratch, const char *options, const char *text)
{
    static command_result r;
    char                  line[1024];
    (void)snprintf(line, sizeof line, "%s --steps 4 %s", GPT, options);
    run_command(&r, scratch, line);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, text));
}

static void a_run_without_outer_steps_says_so(void **state)
{
    static command_result r;
    char                  line[1024];
    for (int start = 1; start <= 2; start++) {
        (void)snprintf(line, sizeof line, "%s --steps 2 --local-steps 1 --local-start %d", GPT,
                       start);
        run_command(&r, *state, line);
        assert_int_equal(r.status, 0);
        const char *note = strstr(r.err, "there are no replicas until step 2, and");
        assert_int_equal(note != NULL, start == 2);
    }
}

static void mistakes_are_named(void **state)
{
    refuse(*state, "--groups 3 --local-steps 2", "--groups 3 cannot divide --virtual-workers 8");
    refuse(*state, "--local-steps 0", "--local-steps");
    refuse(*state, "--outer-lr 0.5", "--outer-lr needs --outer-optimizer");
    refuse(*state, "--outer-dtype int8", "give --local-steps");
    refuse(*state, "--local-steps 2 --local-start 1 --strategy zero3", "--strategy ddp or zero1");
    refuse(*state, "--local-steps 3 --fragments 2", "--fragments 2 do not divide --local-steps 3");
    refuse(*state, "--local-steps 4 --fragment-delay 4", "--fragment-delay 4 is not less than 4");
    refuse(*state, "--local-steps 4 --fragment-delay 1 --compress sign",
           "leave out --fragment-delay");
    refuse(*state, "--local-steps 2 --ema 0.9", "leave out --ema");
    refuse(*state, "--topology ring --diloco", "--topology has no outer steps: leave out "
                                               "--outer-optimizer");
    refuse(*state, "--topology ring --outer-dtype bf16", "leave out --outer-dtype");
    refuse(*state, "--topology ring --compress topk", "leave out --compress");
    refuse(*state, "--topology ring --strategy zero2", "--topology needs --strategy ddp or zero1");
    refuse(*state, "--topology ring --local-steps 4 --fragments 2", "leave out --fragments");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_depend_on_replicas_alone),
        cmocka_unit_test(other_replicas_have_other_hashes),
        cmocka_unit_test(checkpoints_have_all_replicas),
        cmocka_unit_test(logs_have_outer_steps),
        cmocka_unit_test(a_run_without_outer_steps_says_so),
        cmocka_unit_test(failures_name_the_replica),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

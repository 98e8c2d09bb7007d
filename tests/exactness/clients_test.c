/* clients_test.c -- federated averaging of `lockstep train`: FedAvg, FedProx and FedOpt.
 *
 * Goal:    a run has the same hash for any number of workers and hosts, also if it is resumed by
 *          others; options that must not matter do not; options that do not go together are named.
 * Control: other clients, batches, splits and rules have other hashes.
 */
#include "base/thorough_testing.h"
#include "cli/command.h"

enum { HEX = 64, STEPS = 5 };

static const char GPT[] = "train gpt --data synthetic:tokens=4000,vocab=31 --layers 2 --heads 2 "
                          "--width 24 --context 13 --lr 1e-2 --validation 0.1 "
                          "--clients 20 --client-fraction 0.3 --client-batch 4 ";
static const char RESNET[] = "train resnet --data synthetic:images=128,h=8,w=8,c=3,classes=4 "
                             "--lr 0.1 --momentum 0.9 --clients 12 --client-fraction 0.5 "
                             "--client-batch 4 ";

/* Trains for some of the rounds, and copies the hash of the run. */
static void run_of(void *scratch, const char *model, const char *rule, int steps, const char *how,
                   char hash[HEX + 1])
{
    char line[1024];
    (void)snprintf(line, sizeof line, "%s --steps %d %s %s", model, steps, rule, how);
    run_for_hash(scratch, line, hash);
}

static const struct {
    const char *model, *rule;
} cases[] = { { GPT, "--micro-batch 3 --local-epochs 2 --dropout 0.2 --schedule cosine" },
              { RESNET, "--outer-optimizer adam --split shards:2 --client-dropout 0.4" },
              { RESNET, "--prox-mu 0.1 --split dirichlet:0.3 --client-dropout 0.4 --precision "
                        "bf16" },
              { GPT, "--optimizer adamw --clip-norm 1 --client-batch 0 --outer-dtype int8" },
              { GPT, "--outer-optimizer nesterov --compress topk --ratio 0.1" },
              { GPT, "--client-dropout 0.95" } };
enum { CASES = sizeof cases / sizeof cases[0] };

static void runs_depend_on_clients_alone(void **state)
{
    static const char *const hows[] = { "--workers 3 --strategy zero1", "--workers 4 --hosts 2",
                                        "--workers 6 --worker-mode threads",
                                        "--workers 5 --hosts 2 --strategy zero1",
                                        "--workers 2 --speculate on",
                                        "--workers 3 --rebalance random:3 --sdc-check 0.5",
                                        "--workers 2 --on-failure continue" };
    const size_t             count = sizeof hows / sizeof hows[0];
    char                     one[HEX + 1], got[HEX + 1];
    for (size_t i = 0; i < CASES; i += lki_brief() ? 2 : 1) {
        run_of(*state, cases[i].model, cases[i].rule, STEPS, "--workers 1", one);
        const bool all = i == 1 && !lki_brief();
        for (size_t h = all ? 0 : i % 4; h < count; h += all ? 1 : count) {
            run_of(*state, cases[i].model, cases[i].rule, STEPS, hows[h], got);
            if (strcmp(got, one) != 0)
                fail_msg("%s, %s: %s, one worker: %s", cases[i].rule, hows[h], got, one);
        }
    }
}

static void checkpoints_are_resumed_by_others(void **state)
{
    char one[HEX + 1], got[HEX + 1], how[128];
    for (int i = 1; i < CASES; i += lki_brief() ? CASES : 2) {
        run_of(*state, cases[i].model, cases[i].rule, STEPS, "--workers 2", one);
        (void)snprintf(how, sizeof how, "--workers 3 --checkpoint ck%d", i);
        run_of(*state, cases[i].model, cases[i].rule, 2, how, got);
        (void)snprintf(how, sizeof how, "--workers 4 --hosts 2 --checkpoint ck%d --resume", i);
        run_of(*state, cases[i].model, cases[i].rule, STEPS, how, got);
        assert_string_equal(got, one);
    }
}

static void values_that_mean_nothing_change_nothing(void **state)
{
    static const char *const same[] = { "--prox-mu 0 --client-dropout 0",
                                        "--split iid --local-epochs 1 --outer-optimizer mean",
                                        "--outer-optimizer sgd --outer-lr 1",
                                        "--virtual-workers 6 --micro-batch 4 --global-batch 24" };
    static const char *const other[] = { "--prox-mu 0.01",      "--client-fraction 0.25",
                                         "--split shards:2", "--client-dropout 0.3",
                                         "--clients 21 --client-fraction 0.28" };
    char one[HEX + 1], got[HEX + 1], model[512];
    (void)snprintf(model, sizeof model, "%s",
                   "train mlp --data synthetic:samples=300,features=9,classes=3 --hidden 8 "
                   "--lr 0.1 --clients 20 --client-fraction 0.3 --client-batch 4");
    run_of(*state, model, "", STEPS, "--workers 1", one);
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        run_of(*state, model, same[i], STEPS, "--workers 1", got);
        assert_string_equal(got, one);
    }
    for (size_t i = 0; i < sizeof other / sizeof other[0] && !lki_brief(); i++) {
        run_of(*state, model, other[i], STEPS, "--workers 1", got);
        assert_string_not_equal(got, one);
    }
}

static void logs_have_rounds(void **state)
{
    static command_result r;
    char                  hash[HEX + 1], lines[2][1024];
    run_of(*state, GPT, cases[5].rule, STEPS, "--workers 3 --log l0", hash);
    run_of(*state, GPT, cases[5].rule, STEPS, "--workers 4 --hosts 2 --log l1", hash);
    for (int i = 0; i < 2; i++) {
        read_log_lines(&r, *state, "chosen", i == 0 ? "l0" : "l1");
        (void)snprintf(lines[i], sizeof lines[i], "%.1023s", r.out);
    }
    assert_string_equal(lines[0], lines[1]);
    assert_says(lines[0], "{\"step\": 1, \"chosen\": 6, \"stopped\": 3, \"samples\": 41, "
                          "\"drift\": 0.");
    assert_says(lines[0], "{\"step\": 2, \"chosen\": 6, \"stopped\": 6, \"samples\": 0, "
                          "\"drift\": null\n");
    run_shell(&r, *state, "grep '\"label\": \"invariant\"' l0 | grep '\"step\": 2,'");
    assert_says(r.out, "\"loss\": null");
}

/* Returns a number of the plan's first row. */
static double planned(void *scratch, const char *options, const char *name)
{
    static command_result r;
    char                  line[1024], key[64];
    (void)snprintf(line, sizeof line, "plan mlp --data synthetic:samples=300,features=9,classes=3 "
                   "--hidden 64 --lr 0.1 --steps 9 --strategy ddp --json %s", options);
    (void)snprintf(key, sizeof key, "\"%s\": ", name);
    run_command(&r, scratch, line);
    const char *at = strstr(r.out, key);
    assert_non_null(at);
    return strtod(at + strlen(key), NULL);
}

/* A server's optimizer has a momentum in its description only if it is an option of it. */
static void servers_are_described(void **state)
{
    static const char *const rules[][2] = {
        { "nesterov", ", by a step of nesterov with rate 0.7 and momentum 0.9\n" },
        { "adam", ", by a step of adam with rate 0.01\n" },
        { "mean", "in batches of 4\n" },
    };
    static command_result r;
    char                  line[1024];
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        (void)snprintf(line, sizeof line, "%s --steps 1 --workers 1 --outer-optimizer %s", RESNET,
                       rules[i][0]);
        run_command(&r, *state, line);
        assert_int_equal(r.status, 0);
        assert_says(r.err, rules[i][1]);
    }
}

/* A worker has a copy of weights, gradients and optimizer state, and hosts send what ddp sends. */
static void plans_count_copies(void **state)
{
    static const char ddp[] = "--global-batch 12 --virtual-workers 6 --workers 3 --hosts 3";
    static const char clients[] = "--clients 20 --client-fraction 0.3 --momentum 0.9 --workers 3 "
                                  "--hosts 3";
    const double copy = planned(*state, ddp, "parameters");
    assert_true(planned(*state, clients, "parameters") == 2 * copy);
    assert_true(planned(*state, clients, "gradients") ==
                planned(*state, ddp, "gradients") + copy);
    assert_true(planned(*state, clients, "optimizer") == copy);
    assert_true(planned(*state, clients, "sent_gradients") ==
                planned(*state, ddp, "sent_gradients"));
}

static void refuse(void *scratch, const char *options, const char *text)
{
    static command_result r;
    char                  line[1024];
    (void)snprintf(line, sizeof line, "%s %s", GPT, options);
    run_command(&r, scratch, line);
    assert_int_equal(r.status, 2);
    assert_says(r.err, text);
}

static void mistakes_are_named(void **state)
{
    static const struct {
        const char *options, *text;
    } bad[] = { { "", "give --steps, the number of rounds" },
                { "--steps 4 --virtual-workers 8", "--virtual-workers 8: with clients it is 6" },
                { "--steps 4 --global-batch 8", "--global-batch 8: with clients it is 24" },
                { "--steps 4 --micro-batch 5", "--micro-batch 5 is more than --client-batch 4" },
                { "--epochs 1", "count rounds with --steps" },
                { "--steps 4 --strategy zero3", "need --strategy ddp or zero1" },
                { "--steps 4 --local-steps 2", "leave out --local-steps" },
                { "--steps 4 --workers 7", "raise --client-fraction" },
                { "--steps 4 --split shards:2", "text without labels" },
                { "--steps 4 --split files", "'synthetic' data do not tell which file" },
                { "--steps 4 --split even", "must be iid, shards:S, dirichlet:ALPHA or files" },
                { "--steps 4 --client-fraction 0", "--client-fraction" },
                { "--steps 4 --clients 1000", "1000 clients cannot share" },
                { "--steps 4 --ema 0.9", "leave out --ema" },
                { "--steps 4 --optimizer onebit-lamb --freeze-step 2", "use adamw" },
                { "--steps 4 --grad-comm-dtype bf16", "as --outer-dtype" } };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refuse(*state, bad[i].options, bad[i].text);
    static command_result r;
    /* local steps without a label that counts change nothing */
    run_command(&r, *state, "train mlp --data synthetic:samples=90,features=9,classes=3 --hidden 8 "
                            "--lr 0.1 --clients 9 --client-batch 3 --ignore-label 0 --steps 3");
    assert_int_equal(r.status, 0);
    run_command(&r, *state, "train mlp --data synthetic:samples=9,features=2,classes=2 --lr 1 "
                            "--global-batch 2 --steps 1 --prox-mu 1");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--prox-mu needs --clients");
    run_command(&r, *state, "verify mlp --data synthetic:samples=90,features=9,classes=3 --lr 0.1 "
                            "--clients 9 --steps 3 --step 2 --virtual-worker 0");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "train with other --workers and compare the logs, or check while training "
                       "with --sdc-check");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_depend_on_clients_alone),
        cmocka_unit_test(checkpoints_are_resumed_by_others),
        cmocka_unit_test(values_that_mean_nothing_change_nothing),
        cmocka_unit_test(logs_have_rounds),
        cmocka_unit_test(servers_are_described),
        cmocka_unit_test(plans_count_copies),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* compression_test.c -- compressed gradients between processes and hosts.
 *
 * Goal:    an example program has the same weights for any number of workers and hosts, with every
 *          compressor and feedback, and learns.  A run of lockstep train has the same hash, also
 *          if it is resumed with other workers, and its steps before --compress-start are those
 *          without compression.
 * Control: another number of groups has other weights, and no compressor has those of any number of
 *          groups.
 */
#include "base/thorough_testing.h"
#include "cli/command.h"

enum { HEX = 64 };

/* Runs the example, and copies the hash of its weights. */
static void weights_of(void *scratch, const char *how, const char *compressor, int groups,
                       const char *feedback, char hash[HEX + 1])
{
    static command_result r;
    char                  line[1024], program[512];
    (void)snprintf(program, sizeof program, "%s", LK_TEST_COMMAND); /* BUILD/bin/lockstep */
    for (int up = 0; up < 2; up++)
        *strrchr(program, '/') = '\0';
    (void)strcat(program, "/examples/compressed_gradients");
    if (access(program, X_OK) != 0) {
        print_message("skipped: %s is not built\n", program);
        skip();
    }
    (void)snprintf(line, sizeof line, "run %s --no-prefix %s %s %d %s", how, program, compressor,
                   groups, feedback);
    run_command(&r, scratch, line);
    assert_int_equal(r.status, 0);
    const char *loss = strstr(r.out, "step 300  loss "), *weights = strstr(r.out, "weights ");
    assert_non_null(loss);
    assert_non_null(weights);
    assert_true(strtod(loss + 15, NULL) < 0.1);
    (void)snprintf(hash, HEX + 1, "%.64s", weights + 8);
}

static void weights_depend_on_groups_alone(void **state)
{
    static const struct {
        const char *name, *feedback;
    } methods[] = { { "powersgd", "" },   { "topk", "" }, { "randomk", "" },  { "sign", "" },
                    { "terngrad", "" },   { "qsgd", "" }, { "topk", "dgc" }, { "randomk", "dgc" },
                    { "qsgd", "signum" }, { "vote", "" },
                    { "topk", "ef21" },   { "topk", "ef21-sgdm" } };
    static const char *const hows[] = { "-n 3", "-n 4 --hosts 2", "-n 8", "-n 6 --hosts 3" };
    char                     one[HEX + 1], other[HEX + 1], got[HEX + 1];
    const size_t             step = lki_thorough() ? 1 : lki_brief() ? 6 : 2;
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i += step) {
        const char *name = methods[i].name, *feedback = methods[i].feedback;
        weights_of(*state, "-n 1", name, 4, feedback, one);
        for (size_t h = 0; h < (lki_brief() ? 2 : i == 0 ? 4 : 2); h++) {
            weights_of(*state, hows[h], name, 4, feedback, got);
            assert_string_equal(got, one);
        }
        weights_of(*state, "-n 1", name, 8, feedback, other);
        assert_string_not_equal(other, one);
    }
}

static void whole_gradients_do_not_depend_on_groups(void **state)
{
    char one[HEX + 1], got[HEX + 1];
    weights_of(*state, "-n 1", "none", 1, "", one);
    weights_of(*state, "-n 3", "none", 8, "", got);
    assert_string_equal(got, one);
    weights_of(*state, "-n 4 --hosts 2", "none", 2, "", got);
    assert_string_equal(got, one);
}

/* ---- lockstep train ---------------------------------------------------------------------- */

static char           weights[HEX + 1]; /* of the last run */
static command_result said;             /* by the last run */

/* Trains a small GPT for some steps, and copies the hash of the run. */
static void run_of(void *scratch, const char *compression, int steps, const char *how,
                   char hash[HEX + 1])
{
    char line[1024];
    (void)snprintf(line, sizeof line,
                   "train gpt --data synthetic:tokens=4000,vocab=31 --layers 2 --heads 2 "
                   "--width 24 --context 13 %s --lr 1e-3 --validation 0.1 --clip-norm 1 "
                   "--global-batch 16 --micro-batch 1 --virtual-workers 8 --schedule cosine "
                   "--steps 6 --max-samples %d %s %s",
                   strstr(compression, "--optimizer") == NULL ? "--optimizer adamw" : "",
                   16 * steps, compression, how);
    run_command(&said, scratch, line);
    assert_int_equal(said.status, 0);
    const char *run = strstr(said.err, "\nrun ");
    assert_non_null(run);
    (void)snprintf(hash, HEX + 1, "%.64s", run + 5);
    (void)snprintf(weights, sizeof weights, "%.64s", strstr(said.out, "weights ") + 8);
}

static void trained_runs_depend_on_groups_alone(void **state)
{
    static const char *const rules[] = { "--compress powersgd --groups 4 --rank 2",
                                         "--compress topk --groups 8 --ratio 0.05",
                                         "--compress randomk --groups 2",
                                         "--compress sign --error-scale lr", "--groups 4",
                                         "--compress topk --error-feedback ef21 --groups 4",
                                         "--compress sign --error-feedback signum" };
    static const char *const hows[]  = { "--workers 5 --strategy zero1", "--workers 4 --hosts 2",
                                         "--workers 3 --worker-mode threads",
                                         "--workers 5 --hosts 2 --strategy zero1" };
    char                     one[HEX + 1], got[HEX + 1], whole[HEX + 1];
    run_of(*state, "", 6, "--workers 2", whole);
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i += lki_brief() ? 3 : 1) {
        run_of(*state, rules[i], 6, "--workers 1", one);
        for (size_t h = i % 2; h < (i == 1 && !lki_brief() ? 4 : i % 2 + 1); h++) {
            run_of(*state, rules[i], 6, hows[h], got);
            assert_string_equal(got, one);
        }
        assert_int_equal(strcmp(one, whole) == 0, strstr(rules[i], "compress") == NULL);
    }
}

/* A run is resumed twice, each time with other workers and hosts. */
static void errors_are_in_checkpoints(void **state)
{
    static const char *const rules[] = { "--compress powersgd --groups 4 --rank 2",
                                         "--compress topk --error-feedback ef21" };
    char                     one[HEX + 1], got[HEX + 1], how[128];
    for (int i = 0; i < (lki_brief() ? 1 : 2); i++) {
        run_of(*state, rules[i], 6, "--workers 2", one);
        (void)snprintf(how, sizeof how, "--workers 3 --checkpoint ck%d", i);
        run_of(*state, rules[i], 2, how, got);
        (void)snprintf(how, sizeof how, "--workers 4 --hosts 2 --strategy zero1 --checkpoint ck%d "
                       "--resume", i);
        run_of(*state, rules[i], 4, how, got);
        assert_string_not_equal(got, one);
        (void)snprintf(how, sizeof how, "--workers 8 --checkpoint ck%d --resume", i);
        run_of(*state, rules[i], 6, how, got);
        assert_string_equal(got, one);
    }
    static command_result r;
    run_command(&r, *state, "inspect ck0");
    const char *norms = strstr(r.out, "  error, norms of groups 0 to 3\n");
    assert_non_null(norms);
    assert_true(strtod(strchr(norms, '\n') + 1, NULL) > 0);
}

/* Compression begins at step 4.  A run is resumed before that with other workers, and again after
 * it. */
static void compression_may_begin_later(void **state)
{
    static const char *const rule = "--compress powersgd --groups 4 --rank 2 --compress-start 4";
    char                     one[HEX + 1], got[HEX + 1], whole[HEX + 1];
    static command_result    r;
    run_of(*state, "", 3, "--workers 2", got);
    memcpy(whole, weights, sizeof whole);
    run_of(*state, rule, 3, "--workers 3", got);
    assert_string_equal(weights, whole);
    assert_says(said.err, "no step was compressed, because the first was to be step 4");
    run_of(*state, rule, 6, "--workers 1 --log ls", one);
    assert_says_not(said.err, "no step was compressed");
    run_shell(&r, *state, "grep -c '\"compress_start\": 4' ls");
    assert_int_equal(r.status, 0);
    run_of(*state, rule, 2, "--workers 3 --checkpoint cs", got);
    run_of(*state, rule, 5, "--workers 4 --hosts 2 --strategy zero1 --checkpoint cs --resume", got);
    assert_string_not_equal(got, one);
    run_of(*state, rule, 6, "--workers 8 --checkpoint cs --resume", got);
    assert_string_equal(got, one);
    run_of(*state, "--compress powersgd --groups 4 --rank 2 --compress-start 5", 6, "--workers 1",
           got);
    assert_string_not_equal(got, one);
}

/* The log of a run with a warm-up says the bytes of the last step.  Runs are resumed in another
 * stage. */
static void ratios_may_warm_up(void **state)
{
    static const char *const rule = "--compress topk --error-feedback dgc --groups 4 --ratio 0.01 "
                                    "--ratio-warmup 0.25,0.05 --ratio-span 2";
    static command_result    r;
    char                     one[HEX + 1], got[HEX + 1];
    run_of(*state, rule, 6, "--workers 2 --eval-every 1 --log lw", one);
    run_of(*state, rule, 1, "--workers 3 --checkpoint cw", got);
    run_of(*state, rule, 3, "--workers 4 --hosts 2 --strategy zero1 --checkpoint cw --resume", got);
    run_of(*state, rule, 6, "--workers 8 --checkpoint cw --resume", got);
    assert_string_equal(got, one);
    run_shell(&r, *state, "grep -o 'message_bytes\": [0-9]*' lw | uniq -c | tr -s ' ' | "
                          "cut -d' ' -f2 | tr '\n' ' '");
    assert_string_equal(r.out, "2 2 2 ");
    run_of(*state, "--compress topk --error-feedback dgc --groups 4 --ratio 0.01 "
                   "--ratio-warmup 0.25,0.05", 6, "--workers 2", got); /* an epoch of 17 steps */
    assert_string_not_equal(got, one);
}

/* Runs with onebit-adam, whose first steps are those of adamw. */
static void onebit_adam_depends_on_groups_alone(void **state)
{
    static const char *const rule = "--optimizer onebit-adam --freeze-step 2 --groups 4";
    char                     one[HEX + 1], got[HEX + 1], whole[HEX + 1];
    static command_result    r;
    run_of(*state, "", 2, "--workers 2", got);
    memcpy(whole, weights, sizeof whole);
    run_of(*state, rule, 2, "--workers 3", got);
    assert_string_equal(weights, whole);
    run_of(*state, rule, 6, "--workers 1", one);
    run_of(*state, rule, 6, "--workers 5 --strategy zero1", got);
    assert_string_equal(got, one);
    run_of(*state, rule, 6, "--workers 4 --hosts 2", got);
    assert_string_equal(got, one);
    run_of(*state, rule, 1, "--workers 3 --checkpoint co", got);
    run_of(*state, rule, 4, "--workers 4 --hosts 2 --strategy zero1 --checkpoint co --resume", got);
    run_of(*state, rule, 6, "--workers 8 --checkpoint co --resume", got);
    assert_string_equal(got, one);
    run_of(*state, "--optimizer onebit-adam --freeze-step 2 --groups 8", 6, "--workers 1", got);
    assert_string_not_equal(got, one);
    run_of(*state, "--optimizer onebit-adam --freeze-step 3 --groups 4", 6, "--workers 1", got);
    assert_string_not_equal(got, one);
    run_command(&r, *state, "train gpt --data synthetic:tokens=4000,vocab=31 --layers 2 --heads 2 "
                            "--width 24 --context 13 --lr 1e-3 --validation 0.1 --clip-norm 1 "
                            "--optimizer onebit-adam --freeze-step 2 --groups 8 --global-batch 16 "
                            "--micro-batch 1 --virtual-workers 8 --schedule cosine --steps 6 "
                            "--workers 1 --checkpoint co --resume");
    assert_int_not_equal(r.status, 0);
    assert_non_null(strstr(r.err, "--groups is 8, but the checkpoint was made with 4"));
    run_command(&r, *state, "inspect co");
    assert_non_null(strstr(r.out, "  server_error, norm\n"));
}

/* The second moment is frozen by a test after the warm-up, in the same step for any workers. */
static void the_freeze_may_be_automatic(void **state)
{
    static const char *const rule = "--optimizer onebit-lamb --freeze-step auto --groups 4 "
                                    "--betas 0.9,0.5 --warmup 4";
    char                     one[HEX + 1], got[HEX + 1];
    static command_result    r;
    run_of(*state, rule, 8, "--workers 1 --log la", one);
    assert_says_not(said.err, "never frozen");
    run_shell(&r, *state, "grep -o '\"step\": [0-9]*, \"freeze_step\": [0-9]*' la");
    print_message("%s", r.out);
    assert_int_equal(r.status, 0);
    run_of(*state, rule, 3, "--workers 4 --hosts 2 --strategy zero1 --checkpoint cf", got);
    assert_says(said.err, "the second moment was never frozen");
    run_of(*state, rule, 8, "--workers 3 --checkpoint cf --resume", got);
    assert_string_equal(got, one);
}

/* The line about groups in the log of the last step is the same for any workers, and has the norms
 * that inspect prints. */
static void logs_have_norms(void **state)
{
    static command_result r;
    char                  hash[HEX + 1], lines[2][512], printed[32];
    static const char *const hows[] = { "--workers 3 --log l0 --checkpoint ln",
                                        "--workers 4 --hosts 2 --strategy zero1 --log l1" };
    for (int i = 0; i < 2; i++) {
        run_of(*state, "--compress sign --groups 4", 6, hows[i], hash);
        read_log_lines(&r, *state, "error_norms", i == 0 ? "l0" : "l1");
        assert_int_equal(r.status, 0);
        (void)snprintf(lines[i], sizeof lines[i], "%.511s", r.out);
    }
    assert_string_equal(lines[0], lines[1]);
    assert_non_null(strstr(lines[0], "{\"step\": 6, \"groups\": 4, \"message_bytes\": "));
    run_command(&r, *state, "inspect ln");
    const char *norms = strstr(r.out, "norms of groups 0 to 3\n") + 23;
    (void)snprintf(printed, sizeof printed, "%.4g", strtod(strchr(lines[0], '[') + 1, NULL));
    assert_int_equal(strncmp(norms + strspn(norms, " "), printed, strlen(printed)), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trained_runs_depend_on_groups_alone),
        cmocka_unit_test(errors_are_in_checkpoints),
        cmocka_unit_test(compression_may_begin_later),
        cmocka_unit_test(ratios_may_warm_up),
        cmocka_unit_test(onebit_adam_depends_on_groups_alone),
        cmocka_unit_test(the_freeze_may_be_automatic),
        cmocka_unit_test(logs_have_norms),
        cmocka_unit_test(weights_depend_on_groups_alone),
        cmocka_unit_test(whole_gradients_do_not_depend_on_groups),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

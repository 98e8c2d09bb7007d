/* bench_step_test.c -- tests that the parts of a step in `lockstep bench step` add up, and that the
 * counts of operations match the models' definitions; also tests `bench scaling`. */
#include <jansson.h>

#include "base/thorough_testing.h"
#include "cli/command.h"

static double number(const json_t *item, const char *key)
{
    const json_t *value = json_object_get(item, key);
    if (!json_is_number(value))
        fail_msg("no number '%s'", key);
    return json_number_value(value);
}

static json_t *report_of(const char *folder, const char *arguments)
{
    static command_result r;
    json_error_t          error;
    run_command(&r, folder, arguments);
    if (r.status != 0)
        fail_msg("%s: %s", arguments, r.err);
    json_t *root = json_loads(r.out, 0, &error);
    if (root == NULL)
        fail_msg("%s: %s", error.text, r.out);
    return root;
}

/* Runs several measurements.  Returns the smallest share of a step's time that no named part
 * accounts for.  The share grows if the kernel preempts the process outside of the named parts, so
 * the minimum counts.  With LK_BRIEF=1 it runs one. */
static double least_unaccounted(const char *folder, const char *arguments, json_t **root)
{
    double least = 1;
    *root        = NULL;
    for (int i = 0; i < (lki_brief() ? 1 : 10) && least > 0.02; i++) {
        const char *name;
        json_t     *value;
        double      sum = 0;
        json_decref(*root);
        *root         = report_of(folder, arguments);
        json_t *parts = json_object_get(*root, "parts_ms");
        json_object_foreach(parts, name, value) sum += json_number_value(value);
        double share = number(parts, "unaccounted") / sum;
        least        = share < least ? share : least;
    }
    return least;
}

/* Checks that the times of the parts add up to the time of the step, and that named parts account
 * for nearly all of that time.  With LK_BRIEF=1 the mlp has an eighth of its samples, and the share
 * of the named parts is not judged: a sanitizer takes time of its own. */
static void the_parts_of_a_step_add_up(void **state)
{
    const char *const calls[] = {
        "bench step gpt --layers 2 --width 64 --global-batch 8 --micro-batch 2 --workers 2 "
        "--data synthetic:tokens=20000,vocab=65 --optimizer adamw --steps 7 --json",
        lki_brief() ? "bench step mlp --global-batch 128 --workers 1 --threads 2 --steps 9 --json"
                    : "bench step mlp --global-batch 1024 --workers 1 --threads 2 --steps 9 --json",
        "bench step resnet --depth 8 --global-batch 8 --workers 2 --worker-mode threads "
        "--micro-batch 4 --steps 3 --warm-up 1 --json",
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        json_t *root;
        double  share = least_unaccounted(*state, calls[i], &root);
        assert_true(lki_brief() || share <= 0.02);
        json_t *parts = json_object_get(root, "parts_ms");
        assert_true(json_object_size(parts) == 14 && number(root, "step_ms") > 0);
        assert_true(number(parts, "forward") > 0 && number(parts, "backward") > 0);
        assert_true(number(parts, "optimizer") > 0);
        assert_true(number(root, "samples_per_s") > 0 && number(root, "pss_bytes") > 0);
        assert_true(number(root, "utilisation") > 0 && number(root, "lost_spans") == 0);
        assert_true(number(root, "loading_ms") >= 0); /* work done in advance is not included */
        json_decref(root);
    }
}

/* Checks that samples per second are computed from the steps that are only timed (every second
 * short step). */
static void samples_are_those_of_the_steps_that_count(void **state)
{
    json_t *root = report_of(*state, "bench step mlp --hidden 8 --global-batch 4 --workers 1 "
                                     "--steps 65 --json");
    double  each = number(root, "samples_per_s") * number(root, "step_ms") / 1e3;
    assert_true(each > 3.99 && each < 4.01);
    assert_true(number(json_object_get(root, "parts_ms"), "forward") > 0);
    json_decref(root);
}

static double flops_of(const char *folder, const char *arguments)
{
    json_t *root  = report_of(folder, arguments);
    double  flops = number(root, "flops");
    json_decref(root);
    return flops;
}

static void operations_are_those_of_the_definition(void **state)
{
    /* The batch has two samples.  The forward pass and the parameter gradients have both layers,
     * the input gradient has one layer. */
    double mlp = 2 * 2 * (2 * 784 * 32 + 3 * 32 * 10);
    assert_true(flops_of(*state, "bench step mlp --hidden 32 --global-batch 2 --workers 1 "
                                 "--steps 1 --warm-up 1 --json") == mlp);
    /* T = 16, width C = 8, one layer, vocabulary V = 65.  Linear layers take 12 C^2 + C V per
     * token; on average a token has scores for half of T + 1 places. */
    double t = 16, c = 8, linear = 3 * 2 * t * (12 * c * c + c * 65), scores = 6 * t * (t + 1) * c;
    assert_true(flops_of(*state, "bench step gpt --layers 1 --heads 2 --width 8 --context 16 "
                                 "--data synthetic:tokens=2000,vocab=65 --global-batch 1 "
                                 "--workers 1 --steps 1 --warm-up 1 --json") == linear + scores);
}

static void more_workers_are_compared(void **state)
{
    static command_result r;
    run_command(&r, *state,
                "bench scaling mlp --hidden 16 --global-batch 6 --micro-batch 2 "
                "--workers 3 --rounds=1 --steps 2 --json");
    assert_int_equal(r.status, 0);
    assert_says(r.out, "{\"workers\": 1, \"rounds\": 1");
    assert_says(r.out, "{\"workers\": 2, ");
    assert_says(r.out, "{\"workers\": 3, ");
    assert_says(r.out, "\"efficiency\": 1.0000, \"efficiency_min\": 1.0000");
    run_command(&r, *state, "bench scaling mlp --workers 3 --virtual-workers 2 --rounds 1");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "virtual workers");
}

static void a_prediction_stands_beside_the_measurement(void **state)
{
    static command_result r;
    json_t *root = report_of(*state, "bench step mlp --hidden 32 --global-batch 64 --workers 2 "
                                     "--steps 3 --predict --json");
    assert_true(number(root, "predicted_ms") > 0 && number(root, "median_ms") > 0);
    json_decref(root);
    run_command(&r, *state, "bench step mlp --hidden 16 --global-batch 2 --workers 1 --steps 1 "
                            "--predicted-ms 1.5");
    assert_int_equal(r.status, 0);
    assert_says(r.out, "predicted 1.500 ms, ");
    run_command(&r, *state, "bench step mlp --workers 2 --hosts 2 --predict");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--predict is for workers of one host");
}

/* Each line has a size.  One of the sizes is the best, and the default is always among them. */
static void sweep_has_sizes(const char *folder, const char *arguments, const double *sizes)
{
    static command_result r;
    json_error_t          error;
    int                   best = 0, rows = 0;
    run_command(&r, folder, arguments);
    if (r.status != 0)
        fail_msg("%s: %s", arguments, r.err);
    for (char *line = strtok(r.out, "\n"); line != NULL; line = strtok(NULL, "\n"), rows++) {
        json_t *row = json_loads(line, 0, &error);
        assert_non_null(row);
        assert_true(number(row, "bucket_mb") == sizes[rows]);
        assert_true(number(row, "median_ms") > 0);
        assert_int_equal(json_array_size(json_object_get(row, "medians_ms")), 2);
        assert_true(sizes[rows] != 25 || number(row, "of_default") == 1);
        best += json_is_true(json_object_get(row, "best"));
        json_decref(row);
    }
    assert_true(best == 1 && sizes[rows] == 0);
}

static void sizes_of_buckets_are_swept(void **state)
{
    static command_result r;
    const double          small[] = { 0.25, 25, 0 }, large[] = { 0.25, 1, 4, 25, 0 };
    /* 50 thousand and 669 thousand parameters */
    sweep_has_sizes(*state, "bench step mlp --hidden 64 --global-batch 8 --workers 1 --steps 2 "
                            "--warm-up 1 --sweep bucket --json", small);
    sweep_has_sizes(*state, "bench step mlp --global-batch 8 --workers 2 --hosts 2 --steps 1 "
                            "--warm-up 1 --virtual-workers 2 --sweep bucket --json", large);
    run_command(&r, *state, "bench step mlp --hidden 64 --global-batch 8 --workers 2 --steps 1 "
                            "--virtual-workers 2 --warm-up 1 --worker-mode threads --sweep bucket");
    assert_int_equal(r.status, 0);
    assert_says(r.out, "best: --bucket-mb ");
    /* in the job of a launcher, which starts workers only once */
    sweep_has_sizes(*state, "run -n 2 --no-prefix " LK_TEST_COMMAND " bench step mlp --hidden 64 "
                            "--global-batch 8 --virtual-workers 2 --steps 2 --warm-up 1 "
                            "--sweep bucket --json", small);
    run_command(&r, *state, "run -n 2 --no-prefix " LK_TEST_COMMAND
                            " bench step mlp --sweep bucket --on-failure continue");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "leave out --on-failure continue");
    run_command(&r, *state, "bench step mlp --sweep bucket --bucket-mb 4");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "leave out --bucket-mb");
    run_command(&r, *state, "bench step mlp --sweep bucket --log x.jsonl");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "--log and --trace are for one");
    run_command(&r, *state, "bench step mlp --sweep rate");
    assert_int_equal(r.status, 2);
}

static void invalid_options_are_usage_errors(void **state)
{
    static command_result r;
    run_command(&r, *state, "bench step mlp --checkpoint x");
    assert_int_equal(r.status, 2);
    assert_says(r.err, "lockstep bench step: unknown option --checkpoint");
    run_command(&r, *state, "bench step");
    assert_int_equal(r.status, 2);
    run_command(&r, *state, "bench step --help");
    assert_int_equal(r.status, 0);
    assert_says(r.out, "usage: lockstep bench step MODEL");
    assert_says(r.out, "--warm-up N");
    run_command(&r, *state, "bench scaling --help");
    assert_int_equal(r.status, 0);
    assert_says(r.out, "--rounds N");
    run_command(&r, *state, "bench scaling mlp --workers 1");
    assert_int_equal(r.status, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_parts_of_a_step_add_up),
        cmocka_unit_test(samples_are_those_of_the_steps_that_count),
        cmocka_unit_test(operations_are_those_of_the_definition),
        cmocka_unit_test(more_workers_are_compared),
        cmocka_unit_test(sizes_of_buckets_are_swept),
        cmocka_unit_test(a_prediction_stands_beside_the_measurement),
        cmocka_unit_test(invalid_options_are_usage_errors),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

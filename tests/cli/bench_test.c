/* bench_test.c -- tests that `lockstep bench` verifies every operation, on one host and several,
 * and that its JSON has the documented names and bandwidths. */
#include "base/thorough_testing.h"
#include "cli/command.h"

static const char *const names[] = {
    "\"op\"",        "\"workers\"",   "\"hosts\"",  "\"dtype\"",      "\"bytes\"",
    "\"algorithm\"", "\"median_us\"", "\"p99_us\"", "\"algbw_gb_s\"", "\"busbw_gb_s\"",
    "\"verified\": true"
};

static const struct {
    const char *name;
    double      factor; /* ratio of bus to algorithm bandwidth, for three workers */
} ops[] = {
    { "all_reduce", 4. / 3 },       { "all_reduce_many", 4. / 3 }, { "reduce", 1 },
    { "reduce_scatter", 2. / 3 },   { "reduce_scatter_v", 2. / 3 }, { "tree_reduce", 2. / 3 },
    { "all_gather", 2. / 3 },       { "all_gather_v", 2. / 3 },    { "arena_mirror", 2. / 3 },
    { "gather", 2. / 3 },           { "scatter", 2. / 3 },         { "all_to_all", 2. / 3 },
    { "all_to_all_v", 2. / 3 },     { "broadcast", 1 },            { "send_recv", 1 },
    { "barrier", 0 },
};

static double value_of(const char *line, const char *name)
{
    const char *at = strstr(line, name);
    assert_non_null(at);
    return strtod(at + strlen(name) + 2, NULL);
}

/* Checks that each line is complete, verified, and has the bus bandwidth given by `factor`. */
static size_t check_lines(char *out, double factor)
{
    size_t lines = 0;

    for (char *line = strtok(out, "\n"); line != NULL; line = strtok(NULL, "\n"), lines++) {
        for (size_t n = 0; n < sizeof names / sizeof names[0]; n++)
            assert_non_null(strstr(line, names[n]));
        double algbw = value_of(line, "\"algbw_gb_s\""), busbw = value_of(line, "\"busbw_gb_s\"");
        assert_true(busbw >= 0.999 * factor * algbw && busbw <= 1.001 * factor * algbw);
        assert_true((algbw > 0) == (factor > 0));
        assert_true(value_of(line, "\"p99_us\"") >= value_of(line, "\"median_us\""));
    }
    return lines;
}

static void every_operation_is_verified(void **state)
{
    static command_result r;
    char                  line[200];

    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i += lki_brief() ? 3 : 1)
        for (int hosts = 1; hosts <= 2; hosts++) {
            (void)snprintf(line, sizeof line, "bench %s --workers 3 --hosts %d --bytes 4,1K,100K "
                           "--iterations 5 --json", ops[i].name, hosts);
            run_command(&r, *state, line);
            assert_string_equal(r.err, "");
            assert_int_equal(r.status, 0);
            assert_int_equal(check_lines(r.out, ops[i].factor), ops[i].factor == 0 ? 1 : 3);
        }
}

/* Runs every element type.  Sums of 24 or more ranks exceed the precision of bf16 between powers of
 * two. */
static void every_type_and_place_is_verified(void **state)
{
    static const char *const calls[] = {
        "all_reduce --dtype fp64 --foreign", "reduce_scatter --foreign", "all_reduce --dtype fp16",
        "all_reduce --dtype i8",             "all_gather --dtype u8",    "all_reduce --dtype i16",
        "reduce_scatter_v --dtype u64",      "reduce --dtype i32",       "broadcast --dtype u16",
        "all_reduce --dtype bf16 --workers 27", "all_to_all_v --dtype i64 --foreign",
        "all_reduce --dtype u32",
    };
    static command_result r;
    char                  line[200];

    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i += lki_brief() ? 3 : 1) {
        (void)snprintf(line, sizeof line, "bench %s --bytes 8,3K --iterations 3 --json", calls[i]);
        run_command(&r, *state, line);
        assert_string_equal(r.err, "");
        assert_int_equal(r.status, 0);
        assert_non_null(strstr(r.out, "\"verified\": true"));
        assert_says_not(r.out, "\"verified\": false");
    }
}

static void algorithms_are_explained(void **state)
{
    static const char *const each[] = { "direct", "linear", "tree",  "double_tree",
                                        "halving", "ring",  "levels" };
    static command_result    r;
    char                     name[32];

    run_command(&r, *state, "bench all_reduce --workers 4 --hosts 2 --bytes 1K --iterations 3 "
                            "--explain --json");
    assert_string_equal(r.err, "");
    assert_int_equal(r.status, 0);
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
        (void)snprintf(name, sizeof name, "\"%s\"", each[i]);
        assert_non_null(strstr(r.out, name));
    }
    assert_non_null(strstr(r.out, "\"predicted_us\""));
    const char *chosen = strstr(r.out, "\"chosen\": true");
    assert_non_null(chosen);
    assert_null(strstr(chosen + 1, "\"chosen\": true"));
    run_command(&r, *state, "bench tree_reduce --hosts 2 --bytes 1K --iterations 3 --explain "
                            "--json");
    assert_int_equal(r.status, 0);
    assert_true(strstr(r.out, "\"direct\"") != NULL && strstr(r.out, "\"linear\"") != NULL);
    run_command(&r, *state, "bench all_gather --hosts 2 --bytes 1K --algorithm ring --json");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "\"algorithm\": \"ring\""));
}

/* Runs twice with a file of constants.  Expects that the second run reads the constants that the
 * first run measured.  Also tests constants from the environment. */
static void constants_are_kept(void **state)
{
    static const char bench[] = LK_TEST_COMMAND " bench all_gather --hosts 2 --bytes 64 "
                                                "--iterations 3";
    static command_result r;
    char                  line[800];

    for (int time = 0; time < 2; time++) {
        (void)snprintf(line, sizeof line, "XDG_CACHE_HOME=$PWD/cache %s --explain", bench);
        (void)run_shell(&r, *state, line);
        assert_string_equal(r.err, "");
        assert_int_equal(r.status, 0);
        assert_non_null(strstr(r.out, time == 0 ? "constants: measured, and kept in /"
                                                : "constants: of /"));
        assert_non_null(strstr(r.out, "/cache/lockstep/tuning-tls-sealed-"));
    }
    (void)snprintf(line, sizeof line, "LOCKSTEP_ALGORITHMS=all_gather:ring %s --json", bench);
    (void)run_shell(&r, *state, line);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "\"algorithm\": \"ring\""));
    (void)snprintf(line, sizeof line, "LOCKSTEP_TUNING=/nowhere/x %s", bench);
    (void)run_shell(&r, *state, line);
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "tuning file: cannot open '/nowhere/x': No such file"));
}

static void invalid_options_are_usage_errors(void **state)
{
    static const char *const calls[] = { "bench al_reduce", "bench all_reduce --bytes 3",
                                         "bench all_reduce --bytes 8:4", "bench",
                                         "bench all_reduce --workers 0",
                                         "bench all_reduce --bytes 9 --dtype fp64",
                                         "bench all_reduce --bytes 4:64 --dtype i64",
                                         "bench all_reduce --algorithm ring",
                                         "bench all_reduce --tune /tmp/constants",
                                         "bench all_reduce --hosts 3",
                                         "bench all_reduce --hosts 2 --explain --algorithm ring",
                                         "bench send_recv --workers 1",
                                         "bench send_recv --hosts 2 --algorithm mail",
                                         "bench send_recv --hosts 2 --tune /tmp/constants",
                                         "bench all_reduce --hosts 2 --algorithm fly",
                                         "bench tree_reduce --dtype bf16",
                                         "bench arena_mirror --foreign" };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        static command_result r;
        run_command(&r, *state, calls[i]);
        assert_int_equal(r.status, 2);
    }
}

/* Requests impossible algorithms.  Expects a single error message, whether the error is detected
 * before or after all workers have joined. */
static void impossible_algorithms_are_refused(void **state)
{
    static command_result r;

    run_command(&r, *state, "bench all_reduce --hosts 2 --bytes 8 --iterations 1 --tune table");
    assert_int_equal(r.status, 0);
    run_command(&r, *state, "bench all_reduce --hosts 2 --bytes 8 --iterations 1 --tune table");
    assert_int_equal(r.status, 0);
    (void)run_shell(&r, *state, "echo '# mine' >note; " LK_TEST_COMMAND " bench all_reduce "
                                "--hosts 2 --bytes 8 --iterations 1 --tune note");
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "'note' is a file of another kind"));
    (void)run_shell(&r, *state, "cat note");
    assert_string_equal(r.out, "# mine\n");
    run_command(&r, *state, "bench broadcast --hosts 2 --algorithm ring");
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "broadcast has no \"ring\", but linear, tree, levels"));
    run_command(&r, *state, "bench all_reduce --workers 3 --hosts 2 --algorithm levels --bytes 8");
    assert_int_equal(r.status, 2);
    assert_string_equal(r.err, "lockstep bench: --algorithm: algorithms: all_reduce has no "
                               "\"levels\" where hosts do not have equally many ranks, two at "
                               "least, but direct, linear, tree, double_tree, halving, ring\n");
    run_command(&r, *state, "bench all_reduce --workers 6 --hosts 2 --algorithm levels --bytes 8");
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "has no \"levels\" among 6 ranks, 3 on each host, but direct"));
}

/* Checks that --explain says when only one algorithm is possible, and prints the number of bytes
 * moved. */
static void explain_prints_choices_and_bytes(void **state)
{
    static command_result r;

    run_command(&r, *state, "bench all_reduce --explain --bytes 1K --iterations 3");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "no choice: on one host"));
    assert_non_null(strstr(r.out, "1024  shared          yes            - "));
    run_command(&r, *state, "bench send_recv --hosts 2 --explain --bytes 64 --iterations 3 --json");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "\"algorithm\": \"mail\""));
    assert_non_null(strstr(r.out, "\"predicted_us\": null, \"chosen\": true"));
    run_command(&r, *state, "bench all_gather --workers 3 --bytes 1K --iterations 3 --json");
    assert_non_null(strstr(r.out, "\"bytes\": 1020, \"algorithm\": \"shared\""));
    run_command(&r, *state, "bench all_reduce --dtype fp64 --bytes 8 --iterations 3 --json");
    assert_non_null(strstr(r.out, "\"bytes\": 8,"));
}

static void help_names_every_operation(void **state)
{
    static command_result r;

    run_command(&r, *state, "bench --help");
    assert_int_equal(r.status, 0);
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        assert_non_null(strstr(r.out, ops[i].name));
    run_command(&r, *state, "bench fly");
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        assert_non_null(strstr(r.err, ops[i].name));
}

/* Checks that Ctrl-C and timeout(1) end the benchmark in the middle, without a message.  The signal
 * is sent after the first line, when the benchmark still has seconds to run. */
static void a_stop_request_ends_the_benchmark(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state,
                    LK_TEST_COMMAND " bench all_reduce --workers 3 --bytes 4:64M --iterations 50 "
                                    "--json >lines & "
                                    "until [ -s lines ]; do sleep 0.01; done; kill -TERM $!; "
                                    "wait $!");
    assert_string_equal(r.err, "");
    assert_int_equal(r.status, 75);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_is_verified),
        cmocka_unit_test(every_type_and_place_is_verified),
        cmocka_unit_test(algorithms_are_explained),
        cmocka_unit_test(impossible_algorithms_are_refused),
        cmocka_unit_test(explain_prints_choices_and_bytes),
        cmocka_unit_test(constants_are_kept),
        cmocka_unit_test(help_names_every_operation),
        cmocka_unit_test(invalid_options_are_usage_errors),
        cmocka_unit_test(a_stop_request_ends_the_benchmark),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

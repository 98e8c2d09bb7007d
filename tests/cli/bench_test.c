/* bench_test.c -- `lockstep bench`: its results are right, its JSON has the promised names. */
#include "cli/command.h"

static const char *const names[] = {
    "\"op\"",        "\"workers\"", "\"dtype\"",      "\"bytes\"",      "\"algorithm\"",
    "\"median_us\"", "\"p99_us\"",  "\"algbw_gb_s\"", "\"busbw_gb_s\"", "\"verified\": true"
};

static void every_operation_is_verified(void **state)
{
    static const char *const calls[] = {
        "bench all_reduce --workers 3 --bytes 4,1K,100K --iterations 5 --json",
        "bench all_reduce --workers 2 --bytes 4,1K,9K --iterations 5 --json --foreign --dtype fp64",
        "bench all_gather --workers 3 --bytes 4,1K,100K --iterations 5 --json",
        "bench reduce --workers 3 --bytes 4,1K,100K --iterations 5 --json",
        "bench reduce_scatter --workers 3 --bytes 4,1K,100K --iterations 5 --json --foreign",
        "bench all_to_all --workers 3 --bytes 4,1K,100K --iterations 5 --json",
        "bench broadcast --workers 3 --bytes 4,1K,100K --iterations 5 --json",
        "bench barrier --workers 3 --iterations 5 --json",
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        static command_result r;
        size_t                lines = 0;
        run_command(&r, *state, calls[i]);
        assert_int_equal(r.status, 0);
        assert_string_equal(r.err, "");
        for (char *line = strtok(r.out, "\n"); line != NULL; line = strtok(NULL, "\n"), lines++)
            for (size_t n = 0; n < sizeof names / sizeof names[0]; n++)
                assert_non_null(strstr(line, names[n]));
        assert_int_equal(lines, strstr(calls[i], "barrier") ? 1 : 3);
    }
}

static void nonsense_is_a_usage_error(void **state)
{
    static const char *const calls[] = { "bench al_reduce", "bench all_reduce --bytes 3",
                                         "bench all_reduce --bytes 8:4", "bench",
                                         "bench all_reduce --workers 0",
                                         "bench all_reduce --explain",
                                         "bench all_reduce --algorithm ring",
                                         "bench all_reduce --tune /tmp/constants" };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        static command_result r;
        run_command(&r, *state, calls[i]);
        assert_int_equal(r.status, 2);
    }
}

/* Ctrl-C and `timeout` end it in the middle, quietly. */
static void a_request_to_stop_ends_it(void **state)
{
    static command_result r;
    (void)run_shell(&r, *state,
                    LK_TEST_COMMAND " bench all_reduce --workers 3 --bytes 4:64M --json >lines & "
                                    "until [ -s lines ]; do sleep 0.01; done; kill -TERM $!; "
                                    "wait $!");
    assert_string_equal(r.err, "");
    assert_int_equal(r.status, 75);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_is_verified),
        cmocka_unit_test(nonsense_is_a_usage_error),
        cmocka_unit_test(a_request_to_stop_ends_it),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

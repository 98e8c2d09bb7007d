/* compression_test.c -- compressed gradients between processes and hosts.
 *
 * Goal:    an example program has the same weights for any number of workers and hosts, with every
 *          compressor, and learns.
 * Control: another number of groups has other weights, and no compressor has those of any number of
 *          groups.
 */
#include "cli/command.h"

enum { HEX = 64 };

/* Runs the example, and copies the hash of its weights. */
static void weights_of(void *scratch, const char *how, const char *compressor, int groups,
                       char hash[HEX + 1])
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
    (void)snprintf(line, sizeof line, "run %s --no-prefix %s %s %d", how, program, compressor,
                   groups);
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
    static const char *const names[] = { "powersgd", "topk", "randomk", "sign" };
    static const char *const hows[]  = { "-n 3", "-n 4 --hosts 2", "-n 8", "-n 6 --hosts 3" };
    char                     one[HEX + 1], other[HEX + 1], got[HEX + 1];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        weights_of(*state, "-n 1", names[i], 4, one);
        for (size_t h = 0; h < (i == 0 ? 4 : 2); h++) {
            weights_of(*state, hows[h], names[i], 4, got);
            assert_string_equal(got, one);
        }
        weights_of(*state, "-n 1", names[i], 8, other);
        assert_string_not_equal(other, one);
    }
}

static void whole_gradients_do_not_depend_on_groups(void **state)
{
    char one[HEX + 1], got[HEX + 1];
    weights_of(*state, "-n 1", "none", 1, one);
    weights_of(*state, "-n 3", "none", 8, got);
    assert_string_equal(got, one);
    weights_of(*state, "-n 4 --hosts 2", "none", 2, got);
    assert_string_equal(got, one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_depend_on_groups_alone),
        cmocka_unit_test(whole_gradients_do_not_depend_on_groups),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

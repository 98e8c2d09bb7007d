/* table_test.c -- `lockstep train` on tables, as the docs describe it. */
#include "command.h"

/* Trains on prices, whose mean and deviation are large, as docs/howto-data.md says. */
static void large_targets_are_named_and_can_be_learned(void **state)
{
    static const char     table[] = "train mlp --data houses.csv --target price --validation 0.2 "
                                    "--workers 1 --worker-mode threads --steps 200 ";
    static command_result r;
    char                  line[512];
    double                rmse = 0;
    (void)run_shell(&r, *state, "awk 'BEGIN { print \"area,city,price\"; for (i = 0; i < 400; i++) "
                                "{ a = 40 + i * 37 % 160; c = i % 3; "
                                "print a \",\" c \",\" a * 3000 + c * 20000 } }' >houses.csv");
    run_command(&r, *state, table);
    assert_int_equal(r.status, 3);
    assert_says(r.err, "lower the learning rate or clip the gradient (nothing was updated); "
                       "targets are not standardised, and large ones, such as prices, need adamw "
                       "with --lr 0.01, or --clip-norm 1 with --lr 1; `lockstep verify` with ");
    (void)snprintf(line, sizeof line, "%s --optimizer adamw --lr 1e-2", table);
    run_command(&r, *state, line);
    assert_int_equal(r.status, 0);
    const char *at = strstr(r.err, "RMSE ");
    assert_true(at != NULL && sscanf(at, "RMSE %lf", &rmse) == 1);
    if (!(rmse < 40000)) /* the deviation of the prices is about 140000 */
        fail_msg("RMSE %g", rmse);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_targets_are_named_and_can_be_learned),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

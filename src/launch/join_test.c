/* join_test.c -- tests lk_join() without a launcher, and with an environment that no launcher has
 * set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lockstep/launch.h"

static void a_process_without_a_launcher_is_rank_0_of_1(void **state)
{
    (void)state;
    lk_comm *comm;
    bool launched = true;
    assert_int_equal(lk_launched(&launched), LK_OK);
    assert_false(launched);
    assert_int_equal(lk_join(&comm), LK_OK);
    assert_int_equal(lk_comm_size(comm), 1);
    assert_int_equal(lk_comm_rank(comm), 0);
    assert_false(lk_stop_requested(comm));
    lk_comm_free(comm);
    (void)setenv("WORLD_SIZE", "4", 1); /* another launcher sets this variable for N processes,
                                         * which must not become N groups of one rank */
    assert_int_equal(lk_join(&comm), LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "LOCAL_RANK"));
    assert_null(comm);
    (void)unsetenv("WORLD_SIZE");
}

static void refuses_a_broken_environment(void **state)
{
    (void)state;
    static const char *const names[] = {"RANK", "WORLD_SIZE", "LOCKSTEP_TIMEOUT_MS",
                                        "LOCKSTEP_CONTROL_FD", "LOCKSTEP_SOCKET_FD"};
    static const char *const values[] = {NULL, "", "x", "-1", "1x", "99999999999999999999"};
    enum { NAMES = sizeof names / sizeof names[0], VALUES = sizeof values / sizeof values[0] };

    for (size_t n = 0; n < NAMES; n++)
        for (size_t v = 0; v < VALUES; v++) {
            lk_comm *comm;
            bool     launched = false;
            for (size_t i = 0; i < NAMES; i++)
                (void)setenv(names[i], i == 1 ? "1" : "0", 1);
            if (values[v] != NULL)
                (void)setenv(names[n], values[v], 1);
            else
                (void)unsetenv(names[n]);
            assert_int_equal(lk_join(&comm), LK_EINVAL);
            assert_non_null(strstr(lk_error_last()->message, names[n]));
            assert_null(comm);
            assert_int_equal(lk_launched(&launched), LK_EINVAL);
            assert_non_null(strstr(lk_error_last()->message, names[n]));
            assert_non_null(strstr(lk_error_last()->message, "to run alone"));
            assert_true(launched);
        }
    for (size_t i = 0; i < NAMES; i++)
        (void)unsetenv(names[i]);
}

/* Sets one variable that only Lockstep's launcher sets, without LOCKSTEP_CONTROL_FD.  Expects a
 * refusal. */
static void leftover_launcher_variables_are_refused(void **state)
{
    (void)state;
    static const char *const left[] = {"LOCKSTEP_SOCKET_FD", "LOCKSTEP_KEY_FD", "LOCKSTEP_ENTERS",
                                      "LOCKSTEP_CONTINUES"};
    for (size_t i = 0; i < sizeof left / sizeof left[0]; i++) {
        lk_comm *comm;
        bool     launched = false;
        char     wanted[64];
        (void)snprintf(wanted, sizeof wanted, "%s=5 is set, but not LOCKSTEP_CONTROL_FD", left[i]);
        (void)setenv(left[i], "5", 1);
        assert_int_equal(lk_launched(&launched), LK_EINVAL);
        assert_non_null(strstr(lk_error_last()->message, wanted));
        assert_true(launched);
        assert_int_equal(lk_join(&comm), LK_EINVAL);
        (void)unsetenv(left[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_without_a_launcher_is_rank_0_of_1),
        cmocka_unit_test(refuses_a_broken_environment),
        cmocka_unit_test(leftover_launcher_variables_are_refused),
    };
    return cmocka_run_group_tests_name("launch.join", tests, NULL, NULL);
}

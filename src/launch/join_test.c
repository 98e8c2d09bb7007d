/* join_test.c -- lk_join() without a launcher, and with an environment that no launcher made. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lockstep/launch.h"

static void is_alone_without_a_launcher(void **state)
{
    (void)state;
    lk_comm *comm;
    assert_false(lk_launched());
    assert_int_equal(lk_join(&comm), LK_OK);
    assert_int_equal(lk_comm_size(comm), 1);
    assert_int_equal(lk_comm_rank(comm), 0);
    assert_false(lk_stop_requested(comm));
    lk_comm_free(comm);
    (void)setenv("WORLD_SIZE", "4", 1); /* another launcher's: N lone groups would be a lie */
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
            for (size_t i = 0; i < NAMES; i++)
                (void)setenv(names[i], i == 1 ? "1" : "0", 1);
            if (values[v] != NULL)
                (void)setenv(names[n], values[v], 1);
            else if (n == 3)
                continue; /* without this one there is no launcher */
            else
                (void)unsetenv(names[n]);
            assert_int_equal(lk_join(&comm), LK_EINVAL);
            assert_non_null(strstr(lk_error_last()->message, names[n]));
            assert_null(comm);
        }
    for (size_t i = 0; i < NAMES; i++)
        (void)unsetenv(names[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_alone_without_a_launcher),
        cmocka_unit_test(refuses_a_broken_environment),
    };
    return cmocka_run_group_tests_name("launch.join", tests, NULL, NULL);
}

/* polling_test.c -- ranks that wait poll only if each has a core and its time.
 *
 * Method: lk_allowance_read() answers with a limit of the container that the test has chosen.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "comm/group/group.h"
#include "lockstep/base.h"

lk_allowance __wrap_lk_allowance_read(void);
lk_allowance __real_lk_allowance_read(void);

static double granted;

lk_allowance __wrap_lk_allowance_read(void)
{
    lk_allowance a  = __real_lk_allowance_read();
    a.granted_cores = granted;
    return a;
}

/* Returns true if the ranks of a group on this machine poll. */
static bool polls(uint32_t ranks, double limit)
{
    lk_comm *comms[4];
    granted = limit;
    assert_int_equal(lk_comm_open_threads(comms, ranks, NULL), LK_OK);
    const bool does = comms[0]->spins > 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        assert_int_equal(comms[rank]->spins > 0, does);
        lk_comm_free(comms[rank]);
    }
    return does;
}

static void the_time_of_a_container_is_counted(void **state)
{
    const uint32_t bound = __real_lk_allowance_read().bound_cores;
    (void)state;
    assert_true(polls(1, 0));
    assert_false(polls(1, 0.5));
    assert_true(polls(1, 1));
    assert_int_equal(polls(2, 0), bound >= 2);
    assert_int_equal(polls(2, 2), bound >= 2);
    assert_false(polls(2, 1.5));
    assert_false(polls(4, 3.9));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_time_of_a_container_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* cores_test.c -- the shares in which cores are dealt to workers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "launch/cores.h"

/* Seven cores whose neighbours are not their numbers' neighbours. */
static const lki_cores seven = { .count = 7, .order = { 0, 4, 1, 5, 2, 6, 3 } };

static void shares_are_whole_and_equal(void **state)
{
    (void)state;
    for (uint32_t workers = 1; workers <= seven.count; workers++) {
        cpu_set_t all, share, both;
        CPU_ZERO(&all);
        for (uint32_t rank = 0; rank < workers; rank++) {
            assert_true(lki_cores_share(&share, &seven, rank, workers));
            CPU_AND(&both, &all, &share);
            assert_int_equal(CPU_COUNT(&both), 0);
            CPU_OR(&all, &all, &share);
            assert_in_range(CPU_COUNT(&share), 7 / workers, (7 + workers - 1) / workers);
        }
        assert_int_equal(CPU_COUNT(&all), 7);
    }
}

static void shares_are_of_neighbours(void **state)
{
    cpu_set_t share;
    (void)state;
    assert_true(lki_cores_share(&share, &seven, 1, 3));
    assert_int_equal(CPU_COUNT(&share), 2);
    assert_true(CPU_ISSET(1, &share) && CPU_ISSET(5, &share));
}

static void too_many_workers_have_none(void **state)
{
    const lki_cores unknown = { .count = 0 };
    cpu_set_t       share;
    (void)state;
    assert_false(lki_cores_share(&share, &seven, 0, 8));
    assert_false(lki_cores_share(&share, &unknown, 0, 1));
}

static void finds_those_of_this_process(void **state)
{
    static lki_cores cores;
    cpu_set_t        mine;
    (void)state;
    lki_cores_find(&cores);
    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    assert_int_equal(cores.count, CPU_COUNT(&mine));
    for (uint32_t i = 0; i < cores.count; i++) {
        assert_true(CPU_ISSET(cores.order[i], &mine));
        CPU_CLR(cores.order[i], &mine);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_whole_and_equal),
        cmocka_unit_test(shares_are_of_neighbours),
        cmocka_unit_test(too_many_workers_have_none),
        cmocka_unit_test(finds_those_of_this_process),
    };
    return cmocka_run_group_tests_name("launch.cores", tests, NULL, NULL);
}

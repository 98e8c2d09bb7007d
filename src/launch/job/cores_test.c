/* cores_test.c -- tests which cores each worker of a job is bound to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "launch/job/cores.h"

/* Seven cores in order of proximity.  Neighbouring cores do not have consecutive numbers. */
static const lki_cores seven = { .count = 7, .order = { 0, 4, 1, 5, 2, 6, 3 } };

static void core_shares_are_equal_and_disjoint(void **state)
{
    (void)state;
    for (uint32_t workers = 1; workers <= seven.count; workers++) {
        cpu_set_t all, share, both;
        CPU_ZERO(&all);
        for (uint32_t rank = 0; rank < workers; rank++) {
            assert_true(lki_cores_share(&share, &seven, rank, workers,
                                        rank % 2 == 0 ? LK_BIND_CORES : LK_BIND_THREADS));
            CPU_AND(&both, &all, &share);
            assert_int_equal(CPU_COUNT(&both), 0);
            CPU_OR(&all, &all, &share);
            assert_in_range(CPU_COUNT(&share), 7 / workers, (7 + workers - 1) / workers);
        }
        assert_int_equal(CPU_COUNT(&all), 7);
    }
}

static void core_shares_consist_of_neighbouring_cores(void **state)
{
    cpu_set_t share;
    (void)state;
    assert_true(lki_cores_share(&share, &seven, 1, 3, LK_BIND_CORES));
    assert_int_equal(CPU_COUNT(&share), 2);
    assert_true(CPU_ISSET(1, &share) && CPU_ISSET(5, &share));
}

static void workers_beyond_the_cores_are_not_bound(void **state)
{
    const lki_cores unknown = { .count = 0 };
    cpu_set_t       share;
    (void)state;
    assert_false(lki_cores_share(&share, &seven, 0, 8, LK_BIND_CORES));
    assert_false(lki_cores_share(&share, &unknown, 0, 1, LK_BIND_CORES));
}

static void the_cores_of_this_process_are_found(void **state)
{
    static lki_cores cores;
    cpu_set_t        mine;
    (void)state;
    lki_cores_find(&cores, false);
    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    assert_int_equal(cores.count, CPU_COUNT(&mine));
    for (uint32_t i = 0; i < cores.count; i++) {
        assert_true(CPU_ISSET(cores.order[i], &mine));
        CPU_CLR(cores.order[i], &mine);
    }
}

/* Tests LK_BIND_NONE and LK_BIND_NUMA on two NUMA nodes.  One node has cores 0, 4 and 1, the other
 * has cores 5, 2, 6 and 3. */
static void workers_are_bound_as_requested(void **state)
{
    lki_cores two = seven;
    cpu_set_t share;
    (void)state;
    for (uint32_t i = 3; i < two.count; i++)
        two.node[i] = 1;
    assert_false(lki_cores_share(&share, &two, 0, 2, LK_BIND_NONE));
    assert_true(lki_cores_share(&share, &two, 0, 2, LK_BIND_NUMA));
    assert_true(CPU_COUNT(&share) == 3 && CPU_ISSET(0, &share) && CPU_ISSET(1, &share));
    assert_true(lki_cores_share(&share, &two, 1, 2, LK_BIND_NUMA));
    assert_true(CPU_COUNT(&share) == 4 && CPU_ISSET(3, &share) && CPU_ISSET(5, &share));
    assert_true(lki_cores_share(&share, &two, 13, 14, LK_BIND_NUMA)); /* more workers than cores */
    assert_int_equal(CPU_COUNT(&share), 4);
    assert_true(lki_cores_share(&share, &two, 0, 1, LK_BIND_NUMA));
    assert_int_equal(CPU_COUNT(&share), 7);
}

/* Lets hwloc describe a synthetic machine with two packages and two NUMA nodes per package.  Each
 * NUMA node has two cores with two threads.  Expects the order of the cores and the node of each
 * core, in the kernel's numbering. */
static void topologies_are_read(void **state)
{
    static lki_cores cores;
    cpu_set_t        allowed;
    (void)state;
    CPU_ZERO(&allowed);
    for (unsigned cpu = 0; cpu < 16; cpu++)
        CPU_SET(cpu, &allowed);
    assert_int_equal(setenv("HWLOC_SYNTHETIC", "pack:2 numa:2 core:2 pu:2", 1), 0);
    cores = (lki_cores){ .count = 0 };
    if (!lki_topology_read(&cores, &allowed))
        skip(); /* hwloc is not installed */
    assert_int_equal(cores.count, 16);
    assert_true(cores.packages == 2 && cores.nodes == 4 && cores.cores == 8);
    for (uint32_t i = 0; i < 16; i++)
        assert_true(cores.order[i] == i && cores.node[i] == i / 4);

    CPU_ZERO(&allowed); /* restricts the allowed cores, as a cgroup does */
    for (unsigned cpu = 3; cpu < 9; cpu++)
        CPU_SET(cpu, &allowed);
    cores = (lki_cores){ .count = 0 };
    assert_true(lki_topology_read(&cores, &allowed));
    assert_true(cores.count == 6 && cores.packages == 2 && cores.nodes == 3 && cores.cores == 4);
    assert_true(cores.order[0] == 3 && cores.node[0] == 0 && cores.node[1] == 1);

    assert_int_equal(setenv("HWLOC_SYNTHETIC", "numa:2 core:2 pu:1(indexes=0,2,1,3)", 1), 0);
    for (unsigned cpu = 0; cpu < 4; cpu++)
        CPU_SET(cpu, &allowed);
    cores = (lki_cores){ .count = 0 };
    assert_true(lki_topology_read(&cores, &allowed));
    assert_true(cores.order[1] == 2 && cores.node[1] == 0 && cores.node[2] == 1);
    assert_int_equal(unsetenv("HWLOC_SYNTHETIC"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(core_shares_are_equal_and_disjoint),
        cmocka_unit_test(core_shares_consist_of_neighbouring_cores),
        cmocka_unit_test(workers_beyond_the_cores_are_not_bound),
        cmocka_unit_test(the_cores_of_this_process_are_found),
        cmocka_unit_test(workers_are_bound_as_requested),
        cmocka_unit_test(topologies_are_read),
    };
    return cmocka_run_group_tests_name("launch.job.cores", tests, NULL, NULL);
}

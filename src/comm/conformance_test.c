/* conformance_test.c -- every operation, type, reduction, size and buffer location, compared with
 * plain loops.
 *
 * Goal:   every rank receives the right bytes, for any number of ranks.  Ranks are threads or
 *         processes, on one host or on several.  Calls are blocking or asynchronous, in place or
 *         not.  Buffers are in arenas, on the heap, or in both.  Groups have all or some of the
 *         ranks.
 * Method: comm/conformance_testing.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/thorough_testing.h"
#include "comm/conformance_testing.h"
#include "comm/hosted_testing.h"

/* Returns true if a number of ranks or hosts is tested: if time is short, only 3. */
static bool is_tested(uint32_t number)
{
    return number == 3 || !lki_brief();
}

static void every_operation_equals_plain_loops(void **state)
{
    uint32_t first = 0;
    (void)state;
    for (uint32_t size = 1; size <= 8; size++, first += 150)
        if (is_tested(size))
            assert_true(world_all(size, size % 2 == 0, conforms, &first));
    for (uint32_t size = 2; size <= 5; size++, first += 150)
        if (is_tested(size))
            assert_true(world_all(size, size % 2 == 1, conforms, &first));
}

/* Runs every operation on several hosts: first with one rank per host, then with several ranks per
 * host. */
static void every_operation_over_hosts_equals_plain_loops(void **state)
{
    uint32_t first = 5000;
    (void)state;
    for (uint32_t hosts = 1; hosts <= 9; hosts++, first += 150) {
        hosted h = { .hosts = hosts, .each = 1, .seed = first };
        if (is_tested(hosts))
            assert_true(hosted_all(h, conforms, &first));
    }
    for (uint32_t each = 2; each <= 3; each++, first += 150) {
        hosted h = { .hosts = 2, .each = each, .fewer = each - 2, .seed = first };
        if (is_tested(each))
            assert_true(hosted_all(h, conforms, &first));
    }
    for (uint32_t each = lki_brief() ? 3 : 2; each <= 4; each++, first += 150) {
        hosted h = { .hosts = each == 2 ? 3 : 2, .each = each, .segment_bytes = 4096 };
        h.algorithms = each == 3 ? "all_gather:levels,broadcast:levels"
                                 : "all_gather:levels,broadcast:levels,all_reduce:levels,"
                                   "reduce_scatter:levels";
        assert_true(hosted_all(h, conforms, &first));
    }
}

/* ---- Groups ------------------------------------------------------------------------------ */

/* Creates an arena in the first communicator.  Passes a buffer in this arena to operations in the
 * communicators of two axes. */
static bool shares_arenas(lk_comm *comm, void *context)
{
    uint32_t  me = lk_comm_rank(comm);
    lk_mesh  *mesh;
    lk_arena *arena;

    (void)context;
    CHECK(lk_comm_arena(&arena, comm, "all", lk_comm_size(comm) * sizeof(float) * 5000) == LK_OK);
    CHECK(lk_mesh_open(&mesh, comm, (const lk_mesh_axis[]){ { "data", 0 }, { "tensor", 2 } }, 2)
          == LK_OK);
    float *mine = (float *)lk_arena_data(arena) + 5000 * (size_t)me;
    for (size_t i = 0; i < 5000; i++)
        mine[i] = (float)me;
    lk_comm *tensor = lk_mesh_axis_comm(mesh, "tensor"), *data = lk_mesh_axis_comm(mesh, "data");
    CHECK(lk_all_reduce(tensor, mine, mine, 5000, LK_F32, LK_SUM) == LK_OK);
    CHECK(lk_all_reduce(data, mine, mine, 5000, LK_F32, LK_SUM) == LK_OK);
    float all = (float)(lk_comm_size(comm) * (lk_comm_size(comm) - 1) / 2);
    for (size_t i = 0; i < 5000; i++)
        CHECK(mine[i] == all);
    lk_mesh_free(mesh);
    return true;
}

static bool refuses_groups(lk_comm *comm, void *context)
{
    const uint32_t twice[] = { 1, 1 }, far[] = { 99 };
    lk_comm       *group;

    (void)context;
    CHECK(lk_comm_subset(&group, comm, twice, 2) == LK_EINVAL);
    CHECK(lk_comm_subset(&group, comm, far, 1) == LK_EINVAL);
    CHECK(lk_comm_split(&group, comm, LK_NO_COLOR, 0) == LK_OK && group == NULL);
    return true;
}

static void split_communicators_work(void **state)
{
    (void)state;
    for (uint32_t size = 4; size <= 6; size += 2)
        for (int threads = 0; threads < 2; threads++) {
            assert_true(world_all(size, threads == 1, splits, NULL));
            assert_true(world_all(size, threads == 1, shares_arenas, NULL));
            assert_true(world_all(size, threads == 1, refuses_groups, NULL));
        }
}

static void split_communicators_work_over_hosts(void **state)
{
    static const hosted shapes[] = { { .hosts = 4, .each = 1 },
                                     { .hosts = 2, .each = 2 },
                                     { .hosts = 3, .each = 2 },
                                     { .hosts = 2, .each = 4, .fewer = 2 } };
    (void)state;
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
        assert_true(hosted_all(shapes[k], splits, NULL));
        assert_true(hosted_all(shapes[k], shares_arenas, NULL));
        assert_true(hosted_all(shapes[k], refuses_groups, NULL));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_communicators_work),
        cmocka_unit_test(every_operation_equals_plain_loops),
        cmocka_unit_test(split_communicators_work_over_hosts),
        cmocka_unit_test(every_operation_over_hosts_equals_plain_loops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* limit_test.c -- a host's memory limit: arenas and the private memory of the host's ranks stay
 * below the limit together. */
#include <setjmp.h>
#include <stdarg.h>
#include <sys/resource.h>

#include "base/memory.h"
#include "base/sanitized_testing.h"
#include "comm/world_testing.h"

#include <cmocka.h>

enum { MIB = 1 << 20 };

static bool takes(size_t bytes)
{
    void     *memory;
    lk_status status = lki_alloc(&memory, bytes, "a test");
    lki_free(memory);
    return status == LK_OK;
}

/* Limits two ranks to 64 MiB in total and creates an arena of 24 MiB.  Expects that each rank can
 * allocate 20 MiB, plus at most 16 MiB for untouched memory. */
static bool stays_below(lk_comm *comm, void *context)
{
    lk_arena *arena = NULL;
    (void)context;
    CHECK(lki_comm_limit_memory(comm, 64 * MIB) == LK_OK);
    CHECK(takes(24 * MIB) && !takes(48 * MIB));
    CHECK(lk_comm_arena(&arena, comm, "a", 24 * MIB) == LK_OK);
    CHECK(takes(18 * MIB) && !takes(36 * MIB));
    CHECK(lk_comm_arena(&arena, comm, "b", 48 * MIB) == LK_ENOMEM);
    CHECK(strstr(lk_error_last()->message, "more than the 67108864 of this host") != NULL);
    return true;
}

/* Lets the ranks allocate memory.  Then creates an arena that leaves less of the limit than the
 * ranks have allocated.  Expects an error. */
static bool counts_what_is_there(lk_comm *comm, void *context)
{
    void     *memory = NULL;
    lk_arena *arena  = NULL;
    (void)context;
    CHECK(lki_comm_limit_memory(comm, 64 * MIB) == LK_OK);
    CHECK(lki_alloc(&memory, 28 * MIB, "a test") == LK_OK);
    CHECK(lk_comm_arena(&arena, comm, "a", 40 * MIB) == LK_ENOMEM);
    CHECK(strstr(lk_error_last()->message, "leaves 12582912 of this host's") != NULL);
    lki_free(memory);
    return true;
}

/* Limits two ranks to 64 MiB in total, and reserves 20 MiB of it for rank 1.  Expects that each
 * rank can allocate 22 MiB in addition to that reservation, plus at most 16 MiB for untouched
 * memory. */
static bool one_has_more(lk_comm *comm, void *context)
{
    const bool mine = lk_comm_rank(comm) == 1;
    (void)context;
    CHECK(lki_comm_limit_memory(comm, 64 * MIB) == LK_OK);
    CHECK(lki_comm_limit_one(comm, 80 * MIB, mine) == LK_ENOMEM);
    CHECK(lki_comm_limit_one(comm, 20 * MIB, mine) == LK_OK);
    CHECK(takes(20 * MIB) && takes(40 * MIB) == mine && !takes(58 * MIB));
    CHECK(lki_comm_limit_one(comm, 20 * MIB, !mine) == LK_OK);
    CHECK(takes(40 * MIB) != mine);
    return true;
}

static bool is_for_processes(lk_comm *comm, void *context)
{
    (void)context;
    CHECK(lki_comm_limit_memory(comm, 64 * MIB) == LK_EUNSUPPORTED);
    return true;
}

static void a_host_stays_below_its_limit(void **state)
{
    (void)state;
    if (LKI_SANITIZED)
        skip(); /* sanitizers need more memory than any limit leaves */
    assert_true(world_all(2, false, stays_below, NULL));
    assert_true(world_all(2, false, counts_what_is_there, NULL));
    assert_true(world_all(2, false, one_has_more, NULL));
}

static void thread_workers_have_no_memory_limit(void **state)
{
    (void)state;
    assert_true(world_all(2, true, is_for_processes, NULL));
}

/* Opens a group of one rank, which is a process, as under MPI with one rank on a host. */
static void a_rank_that_is_alone_on_its_host_has_a_limit(void **state)
{
    struct rlimit before;
    lk_comm      *comm;

    (void)state;
    if (LKI_SANITIZED)
        skip();
    assert_int_equal(getrlimit(RLIMIT_DATA, &before), 0);
    assert_int_equal(lk_comm_open_threads(&comm, 1, NULL), LK_OK);
    assert_int_equal(lki_comm_limit_memory(comm, 64 * MIB), LK_OK);
    assert_true(takes(24 * MIB));
    assert_false(takes(96 * MIB));
    assert_int_equal(setrlimit(RLIMIT_DATA, &before), 0);
    lk_comm_free(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_stays_below_its_limit),
        cmocka_unit_test(thread_workers_have_no_memory_limit),
        cmocka_unit_test(a_rank_that_is_alone_on_its_host_has_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

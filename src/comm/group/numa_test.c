/* numa_test.c -- the NUMA nodes on which the parts of an arena are requested. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <sys/mman.h>
#include <sys/syscall.h>

#include "comm/group/numa.h"
#include "comm/world_testing.h"

enum { RANKS = 4, PART = 65536, DEFAULT = 0, PREFERRED = 1, BY_ADDRESS = 2 };

/* Returns the memory policy of the page at `at`; negative if unknown. */
static int policy_of(void *at)
{
    int           mode     = -1;
    unsigned long mask[16] = { 0 };

    return syscall(SYS_get_mempolicy, &mode, mask, 1024UL, at, BY_ADDRESS) == 0 ? mode : -1;
}

/* Checks the memory policies of all parts of an arena.  This machine may have only one NUMA node.
 * A rank with an unknown NUMA node therefore stands for a rank on a second NUMA node, and its part
 * has no policy. */
static void arena_parts_prefer_the_numa_nodes_of_their_ranks(void **state)
{
    lk_comm  *comms[RANKS];
    lk_arena *arena;

    (void)state;
    assert_int_equal(lk_comm_open_threads(comms, 1, NULL), LK_OK);
    assert_int_equal(lk_comm_arena(&arena, comms[0], "one", PART), LK_OK);
    if (policy_of(lk_arena_data(arena)) < 0)
        skip(); /* this kernel has no memory policies */
    assert_int_equal(policy_of(lk_arena_data(arena)), DEFAULT);
    lk_comm_free(comms[0]);

    assert_int_equal(lk_comm_open_threads(comms, RANKS, NULL), LK_OK);
    unsigned char *memory = mmap(NULL, RANKS * PART, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        atomic_store(&comms[0]->board->ranks[rank].home, rank == 1 || rank == 2);
    lki_numa_spread(comms[0], memory, RANKS * PART);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        bool home = rank == 1 || rank == 2;
        assert_int_equal(policy_of(memory + rank * PART), home ? PREFERRED : DEFAULT);
        assert_int_equal(policy_of(memory + (rank + 1) * PART - 1), home ? PREFERRED : DEFAULT);
    }
    (void)munmap(memory, RANKS * PART);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        lk_comm_free(comms[rank]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arena_parts_prefer_the_numa_nodes_of_their_ranks),
    };
    return cmocka_run_group_tests_name("comm.group.numa", tests, NULL, NULL);
}

/* arrived_test.c -- an operation that all ranks have reached succeeds, even if one of the ranks
 * dies afterwards.  Opening the group also succeeds if a rank dies after all ranks have arrived.
 *
 * Method: the linker redirects a waiting rank's check for dead peers to the function below.  Before
 *         the first check this function lets the other rank arrive and die.  Expects that this
 *         operation succeeds and that the next operation fails.  When the group is opened, the
 *         linker redirects the function that opens the peers' descriptors, which then first waits
 *         until the other rank is dead and reaped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "comm/world_testing.h"

enum { WAITER, VICTIM };

static _Atomic int *waited; /* 1: WAITER has begun to check for dead peers, and VICTIM may arrive */
static bool         opened; /* the group is open; earlier waits are not part of the test */
static bool         early;  /* VICTIM dies as soon as it has opened the group */

lk_status __wrap_lki_peers_check(lk_comm *comm, lki_goal goal);
lk_status __real_lki_peers_check(lk_comm *comm, lki_goal goal);

lk_status __wrap_lki_peers_check(lk_comm *comm, lki_goal goal)
{
    if (opened && comm->rank == WAITER && atomic_exchange(waited, 1) == 0) {
        struct pollfd ended = { .fd = comm->self->pidfds[VICTIM], .events = POLLIN };
        if (poll(&ended, 1, WORLD_PATIENCE_MS) != 1)
            abort();
    }
    return __real_lki_peers_check(comm, goal);
}

lk_status __wrap_lki_peers_open(lk_comm *comm);
lk_status __real_lki_peers_open(lk_comm *comm);

lk_status __wrap_lki_peers_open(lk_comm *comm)
{
    while (early && comm->rank == WAITER &&
           kill(atomic_load(&lki_rank_of(comm, VICTIM)->pid), 0) == 0)
        (void)usleep(200);
    return __real_lki_peers_open(comm);
}

static bool die_at_once(lk_comm *comm, void *context)
{
    (void)context;
    if (comm->rank == VICTIM)
        (void)raise(SIGKILL);
    CHECK(lk_barrier(comm) == LK_EPEER);
    CHECK(strstr(lk_error_last()->message, "rank 1") != NULL);
    return true;
}

static void a_group_opens_if_a_rank_dies_once_all_have_joined(void **state)
{
    (void)state;
    world w = { .size = 2, .timeout_ms = WORLD_PATIENCE_MS, .victim = NOBODY };
    early   = true;
    assert_int_equal(world_run(w, die_at_once, NULL), 1 << WAITER);
    early = false;
}

static bool meet_then_die(lk_comm *comm, void *context)
{
    (void)context;
    opened = true;
    while (comm->rank == VICTIM && atomic_load(waited) == 0)
        (void)usleep(200);
    CHECK(lk_barrier(comm) == LK_OK);
    if (comm->rank == VICTIM)
        (void)raise(SIGKILL);
    CHECK(lk_barrier(comm) == LK_EPEER);
    CHECK(strstr(lk_error_last()->message, "rank 1") != NULL);
    return true;
}

static void an_operation_reached_by_all_succeeds_despite_a_death(void **state)
{
    (void)state;
    for (int deaf = 0; deaf < 2; deaf++) {
        world w = { .size = 2, .timeout_ms = WORLD_PATIENCE_MS, .victim = NOBODY,
                    .deaf = deaf != 0 };
        atomic_store(waited, 0);
        assert_int_equal(world_run(w, meet_then_die, NULL), 1 << WAITER);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_operation_reached_by_all_succeeds_despite_a_death),
        cmocka_unit_test(a_group_opens_if_a_rank_dies_once_all_have_joined),
    };
    waited = mmap(NULL, sizeof *waited, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (waited == MAP_FAILED)
        return 1;
    return cmocka_run_group_tests_name("comm.group.arrived", tests, NULL, NULL);
}

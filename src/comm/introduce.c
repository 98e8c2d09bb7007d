/* introduce.c -- the ranks of several hosts learn where the others listen.
 *
 * A rank writes its address into its record and nudges its launcher.  The launchers exchange the
 * addresses of all and write those of other hosts into the records that their workers see.
 */
#include "comm/control.h"

#include <stdio.h>

#include "comm/group.h"

enum { SLICE_MS = 50, LATE_MS = 10 * SLICE_MS };

/* The first rank that nobody can reach yet, and how many there are. */
static uint32_t first_missing(const lki_board *board, uint32_t *count)
{
    uint32_t first = board->size;

    *count = 0;
    for (uint32_t rank = board->size; rank-- > 0;)
        if (atomic_load_explicit(&board->ranks[rank].reachable, memory_order_acquire) == 0) {
            first = rank;
            ++*count;
        }
    return first;
}

static lk_status fail_late(lk_comm *comm, uint32_t first, uint32_t count, int64_t waited_ms)
{
    char who[LKI_WHO_BYTES], others[40] = "";

    lki_board_who(who, comm->board, first, "");
    if (count > 1)
        (void)snprintf(others, sizeof others, " and %u other%s", count - 1, count > 2 ? "s" : "");
    return lki_fail_group(comm, first, LK_ETIMEOUT, "rank %u has waited %lld ms to learn where "
                          "%.120s%s can be reached", comm->self->rank, (long long)waited_ms, who,
                          others);
}

/* Time in which this process did not run does not count. */
lk_status lki_comm_introduce(lk_comm *comm, const char *address)
{
    lki_rank *me     = comm->me;
    int64_t   waited = 0, before = lki_now_ms();
    uint32_t  count, bell;

    (void)snprintf(me->address, sizeof me->address, "%s", address);
    atomic_store_explicit(&me->reachable, 1, memory_order_release);
    lki_launcher_nudge(comm->self->socket);
    for (;;) {
        bell           = atomic_load(&me->bell);
        uint32_t first = first_missing(comm->board, &count);
        if (lki_failed(comm))
            return lki_group_failure(comm);
        if (count == 0)
            return LK_OK;
        if (waited >= comm->timeout_ms)
            return fail_late(comm, first, count, waited);
        LK_TRY(lki_peers_check(comm, (lki_goal){ 0 }));
        lki_sleep(comm, bell, SLICE_MS);
        int64_t now = lki_now_ms();
        waited += now - before > LATE_MS ? 0 : now - before;
        before = now;
    }
}

const char *lki_comm_address(const lk_comm *comm, uint32_t rank)
{
    LK_ASSERT(rank < comm->board->size);
    return comm->board->ranks[rank].address;
}

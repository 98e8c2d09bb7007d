/* buffer_needs.c -- the number of gradient buffers that are needed after ranks are lost.
 *
 * Buffers are counted once, for every possible number of ranks.  A host's memory has room for the
 * worst case from the beginning.
 */
#include "base/memory.h"
#include "parallel/state.h"

uint32_t lki_share_buffers(const lk_parallel *parallel, lki_share share, uint32_t joint)
{
    lki_range_order order  = { parallel->effects.largest, joint, 0 };
    uint32_t        whole  = lki_virtual_buffers(parallel->leaves, share.first, share.count, order);
    order.cut              = parallel->effects.cut;
    uint32_t        groups = lki_virtual_buffers(parallel->leaves, share.first, share.count, order);
    return parallel->effects.cut_from > 0 && whole > groups ? whole : groups;
}

/* Returns the maximum number of buffers that consecutive ranks on one host need, if there are
 * `ranks` ranks and a host has at most `here` of them.  With a ledger turns are not joined. */
static size_t most_of_neighbours(const lk_parallel *parallel, uint32_t ranks, size_t *buffers)
{
    const lki_dealing dealing = { .leaves = parallel->leaves, .ranks = ranks };
    const uint32_t    here    = parallel->ledger.here;
    size_t            total = 0, most = 0;

    for (uint32_t r = 0; r < ranks; r++) {
        buffers[r] = lki_share_buffers(parallel, lki_share_of(&dealing, r), 1) +
                     parallel->effects.spares;
        total += buffers[r] - (r >= here ? buffers[r - here] : 0);
        most = lki_max(most, total);
    }
    return most;
}

static lk_status count_neighbours(lk_parallel *parallel)
{
    size_t *buffers = NULL;
    LK_TRY(LKI_NEW(&buffers, parallel->ledger.seats, "buffers of ranks"));
    for (uint32_t ranks = 1; ranks <= parallel->ledger.seats; ranks++)
        parallel->ledger.neighbours =
            lki_max(parallel->ledger.neighbours, most_of_neighbours(parallel, ranks, buffers));
    lki_free(buffers);
    return LK_OK;
}

static lk_status count_rounds(lk_parallel *parallel)
{
    lki_ledger *ledger = &parallel->ledger;
    lk_status   status = LK_OK;
    LK_TRY(LKI_NEW(&ledger->round_buffers, (size_t)ledger->seats + 1, "buffers of rounds"));
    for (uint32_t ranks = 1; status == LK_OK && ranks <= ledger->seats; ranks++) {
        lki_round_plan plan;
        status                       = lki_round_plan_init(&plan, parallel->leaves, ranks);
        ledger->round_buffers[ranks] = plan.buffers;
        lki_round_plan_deinit(&plan);
    }
    return status;
}

lk_status lki_ledger_count(lk_parallel *parallel)
{
    if (!parallel->ledger.kept)
        return LK_OK;
    if (parallel->dealing.bounds != NULL) /* a feature has counted those of its ranges */
        return LK_OK;
    return parallel->ops->rounds ? count_rounds(parallel) : count_neighbours(parallel);
}

/* gathers.c -- counts the gathers of each unit in a step, by executing the shelf's plan. */
#include <string.h>

#include "base/memory.h"
#include "parallel/strategies/units.h"

/* Counts the gathers of one turn in passes[unit_count][2]. */
static void count_turn(lki_shelf *shelf, uint64_t (*passes)[2])
{
    uint32_t unit;
    for (uint32_t at = 0; at < shelf->read_count; at++)
        while (lki_shelf_put(shelf, at, shelf->read_count, &unit))
            passes[unit][at >= shelf->forward]++;
}

/* Counts the gathers of all turns after the first.  Once a turn does not change the assignment of
 * slots, the remaining turns are equal to it. */
static void count_others(lki_shelf *shelf, uint64_t turns, uint64_t (*passes)[2], uint32_t *before,
                         lki_gathers *out)
{
    for (uint64_t left = turns - 1, alike; left > 0; left -= alike) {
        memset(passes, 0, shelf->unit_count * sizeof *passes);
        memcpy(before, shelf->unit_in, shelf->slot_count * sizeof *before);
        count_turn(shelf, passes);
        bool again = memcmp(before, shelf->unit_in, shelf->slot_count * sizeof *before) == 0;
        alike      = again ? left : 1;
        for (uint32_t u = 0; u < shelf->unit_count; u++)
            for (int pass = 0; pass < 2; pass++)
                out[u].others[pass] += alike * passes[u][pass];
    }
}

lk_status lki_shelf_count(lki_shelf *shelf, uint64_t turns, lki_gathers *out)
{
    uint64_t (*passes)[2] = NULL;
    uint32_t  *before     = NULL;
    lk_status  status     = LKI_NEW(&passes, shelf->unit_count, "gathers of units");

    if (status == LK_OK)
        status = LKI_NEW(&before, shelf->slot_count, "buffers of units");
    if (status == LK_OK) {
        lki_shelf_clear(shelf);
        count_turn(shelf, passes);
        for (uint32_t u = 0; u < shelf->unit_count; u++)
            memcpy(out[u].first, passes[u], sizeof passes[u]);
        count_others(shelf, turns, passes, before, out);
        lki_shelf_clear(shelf);
    }
    lki_free(passes);
    lki_free(before);
    return status;
}

uint64_t lki_units_turns(const lk_parallel *parallel)
{
    return (uint64_t)parallel->rounds.rounds * parallel->micro_count;
}

lk_status lki_units_count(lk_parallel *parallel, uint64_t turns, lki_gathers *out)
{
    LK_TRY(lki_shelf_count(&parallel->shelf, turns, out));
    for (uint32_t u = 0; parallel->keeps && u < parallel->shelf.unit_count; u++)
        out[u] = (lki_gathers){ .first = { 1, 0 } };
    return LK_OK;
}

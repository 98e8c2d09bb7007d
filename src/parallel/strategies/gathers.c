/* gathers.c -- counts the gathers of each unit in a step, by executing the plan of unit buffers. */
#include <string.h>

#include "base/memory.h"
#include "parallel/strategies/units.h"

/* Counts the gathers of one turn in passes[unit_count][2]. */
static void count_turn(lki_unit_buffers *slots, uint64_t (*passes)[2])
{
    uint32_t unit;
    for (uint32_t at = 0; at < slots->read_count; at++)
        while (lki_unit_buffers_put(slots, at, slots->read_count, &unit))
            passes[unit][at >= slots->forward]++;
}

/* Counts the gathers of all turns after the first.  Once a turn does not change the assignment of
 * unit buffers, the remaining turns are equal to that turn. */
static void count_others(lki_unit_buffers *slots, uint64_t turns, uint64_t (*passes)[2],
                         uint32_t *before, lki_gathers *out)
{
    for (uint64_t left = turns - 1, alike; left > 0; left -= alike) {
        memset(passes, 0, slots->unit_count * sizeof *passes);
        memcpy(before, slots->unit_in, slots->slot_count * sizeof *before);
        count_turn(slots, passes);
        bool again = memcmp(before, slots->unit_in, slots->slot_count * sizeof *before) == 0;
        alike      = again ? left : 1;
        for (uint32_t u = 0; u < slots->unit_count; u++)
            for (int pass = 0; pass < 2; pass++)
                out[u].others[pass] += alike * passes[u][pass];
    }
}

lk_status lki_unit_buffers_count(lki_unit_buffers *slots, uint64_t turns, lki_gathers *out)
{
    uint64_t(*passes)[2] = NULL;
    uint32_t *before     = NULL;
    lk_status status     = LKI_NEW(&passes, slots->unit_count, "gathers of units");

    if (status == LK_OK)
        status = LKI_NEW(&before, slots->slot_count, "buffers of units");
    if (status == LK_OK) {
        lki_unit_buffers_clear(slots);
        count_turn(slots, passes);
        for (uint32_t u = 0; u < slots->unit_count; u++)
            memcpy(out[u].first, passes[u], sizeof passes[u]);
        count_others(slots, turns, passes, before, out);
        lki_unit_buffers_clear(slots);
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
    LK_TRY(lki_unit_buffers_count(&parallel->slots, turns, out));
    for (uint32_t u = 0; parallel->keeps && u < parallel->slots.unit_count; u++)
        out[u] = (lki_gathers){ .first = { 1, 0 } };
    return LK_OK;
}

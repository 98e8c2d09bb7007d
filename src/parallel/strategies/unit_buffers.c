/* unit_buffers.c -- assigns unit buffers (slots) to units; see unit_buffers.h. */
#include "parallel/unit_buffers.h"

#include "base/memory.h"

uint32_t lki_unit_of(const lki_layout *layout, uint32_t param)
{
    return layout->first_bucket[layout->term_of[layout->first_use[param]]];
}

/* Returns the bytes of the largest unit.  The parameters of a unit are consecutive, because its
 * terms are. */
size_t lki_unit_largest(const lki_layout *layout)
{
    size_t   most = 0, begin = 0;
    uint32_t unit = 0;

    for (uint32_t t = 0; t < layout->term_count; t++) {
        uint32_t p = layout->terms[t].param;
        if (layout->terms[t].use != 0)
            continue;
        if (lki_unit_of(layout, p) != unit)
            begin = layout->read_at[p];
        unit = lki_unit_of(layout, p);
        most = lki_max(most, layout->read_at[p] - begin + lki_layout_param_bytes(layout, p));
    }
    return most;
}

/* ---- Reads ------------------------------------------------------------------------------- */

static uint32_t end_of_block(const lki_layout *layout, uint32_t term)
{
    do
        term++;
    while (term < layout->term_count && layout->terms[term].same_block);
    return term;
}

static bool has_unit(const lki_read *read, uint32_t unit)
{
    for (uint32_t i = 0; i < read->count; i++)
        if (read->units[i] == unit)
            return true;
    return false;
}

static lk_status add_read(lki_unit_buffers *slots, const lki_layout *layout, uint32_t term)
{
    lki_read *read = &slots->reads[slots->read_count++];

    if (term >= layout->term_count || layout->terms[term].same_block)
        return lk_fail(LK_EINVAL, "a block is read whose first gradient term is %u: there is none",
                       term);
    read->term = term;
    for (uint32_t t = term, end = end_of_block(layout, term); t < end; t++) {
        uint32_t unit = lki_unit_of(layout, layout->terms[t].param);
        if (has_unit(read, unit))
            continue;
        if (read->count == LKI_UNITS_TOGETHER)
            return lk_fail(LK_EUNSUPPORTED,
                           "the block of '%s' shares parameters with more than %d others",
                           layout->params[layout->terms[term].param].name, LKI_UNITS_TOGETHER - 1);
        read->units[read->count++] = unit;
    }
    return LK_OK;
}

/* Lists the given reads; by default all blocks forward, then all backward. */
static lk_status list_reads(lki_unit_buffers *slots, const lki_layout *layout,
                            const lk_parallel_options *options)
{
    const uint32_t terms = layout->term_count;
    LK_TRY(LKI_NEW(&slots->reads, options->reads != NULL ? options->read_count + 1 : 2 * terms,
                   "reads of a turn"));
    for (uint32_t i = 0; options->reads != NULL && i < options->read_count; i++)
        LK_TRY(add_read(slots, layout, options->reads[i]));
    for (uint32_t t = terms; options->reads == NULL && t-- > 0;)
        if (!layout->terms[t].same_block)
            LK_TRY(add_read(slots, layout, t));
    for (uint32_t t = 0; options->reads == NULL && t < terms; t++)
        if (!layout->terms[t].same_block)
            LK_TRY(add_read(slots, layout, t));
    return LK_OK;
}

/* Checks that the first reads are of all blocks, once each. */
static lk_status find_forward(lki_unit_buffers *slots, const lki_layout *layout)
{
    uint8_t  *seen   = NULL;
    uint32_t  blocks = 0;
    lk_status status = LKI_NEW(&seen, layout->term_count, "blocks that are read");

    for (uint32_t t = 0; status == LK_OK && t < layout->term_count; t++)
        blocks += !layout->terms[t].same_block;
    for (uint32_t i = 0; status == LK_OK && i < blocks; i++) {
        uint32_t term = i < slots->read_count ? slots->reads[i].term : 0;
        if (i >= slots->read_count || seen[term]++)
            status = lk_fail(LK_EINVAL,
                             "options.reads must begin with each of the %u blocks once: "
                             "number %u is none or one for the second time",
                             blocks, i);
    }
    slots->forward = blocks;
    lki_free(seen);
    return status;
}

/* Lists the reads of each unit. */
static lk_status list_units(lki_unit_buffers *slots)
{
    size_t count = 0;
    for (uint32_t i = 0; i < slots->read_count; i++)
        count += slots->reads[i].count;
    LK_TRY(LKI_NEW(&slots->first_at, (size_t)slots->unit_count + 2, "reads of units"));
    LK_TRY(LKI_NEW(&slots->reads_at, count, "reads of units"));
    for (uint32_t i = 0; i < slots->read_count; i++)
        for (uint32_t k = 0; k < slots->reads[i].count; k++)
            slots->first_at[slots->reads[i].units[k] + 2]++;
    for (uint32_t u = 1; u <= slots->unit_count; u++)
        slots->first_at[u + 1] += slots->first_at[u];
    /* [u + 1] is advanced from the unit's first entry to its end */
    for (uint32_t i = 0; i < slots->read_count; i++)
        for (uint32_t k = 0; k < slots->reads[i].count; k++)
            slots->reads_at[slots->first_at[slots->reads[i].units[k] + 1]++] = i;
    return LK_OK;
}

lk_status lki_unit_buffers_init(lki_unit_buffers *slots, const lki_layout *layout,
                                const lk_parallel_options *options)
{
    uint32_t together = 1;

    *slots = (lki_unit_buffers){ .unit_count = layout->bucket_count };
    LK_TRY(list_reads(slots, layout, options));
    LK_TRY(find_forward(slots, layout));
    LK_TRY(list_units(slots));
    for (uint32_t i = 0; i < slots->read_count; i++)
        together = slots->reads[i].count > together ? slots->reads[i].count : together;
    uint32_t wanted   = options->unit_buffers ? options->unit_buffers : together + 1;
    wanted            = wanted > slots->unit_count ? slots->unit_count : wanted;
    slots->slot_count = wanted < together ? together : wanted;
    LK_TRY(LKI_NEW(&slots->slot_of, slots->unit_count, "units"));
    LK_TRY(LKI_NEW(&slots->unit_in, slots->slot_count, "buffers of units"));
    lki_unit_buffers_clear(slots);
    return LK_OK;
}

void lki_unit_buffers_deinit(lki_unit_buffers *slots)
{
    lki_free(slots->reads);
    lki_free(slots->first_at);
    lki_free(slots->reads_at);
    lki_free(slots->slot_of);
    lki_free(slots->unit_in);
    *slots = (lki_unit_buffers){ 0 };
}

/* ---- Slots ------------------------------------------------------------------------------- */

void lki_unit_buffers_clear(lki_unit_buffers *slots)
{
    for (uint32_t u = 0; u < slots->unit_count; u++)
        slots->slot_of[u] = LKI_NO_SLOT;
    for (uint32_t s = 0; s < slots->slot_count; s++)
        slots->unit_in[s] = LKI_NO_UNIT;
}

/* Returns the number of reads from read `at` until the unit is read: 0 if `at` reads it, `period`
 * if no read does. */
static uint32_t distance(const lki_unit_buffers *slots, uint32_t at, uint32_t period, uint32_t unit)
{
    const uint32_t *reads = slots->reads_at + slots->first_at[unit];
    uint32_t        low = 0, count = slots->first_at[unit + 1] - slots->first_at[unit];

    for (uint32_t high = count; low < high;) { /* finds the first read that is not before `at` */
        uint32_t middle = low + (high - low) / 2;
        bool     before = reads[middle] < at;
        low             = before ? middle + 1 : low;
        high            = before ? high : middle;
    }
    if (low < count && reads[low] < period)
        return reads[low] - at;
    return count > 0 && reads[0] < at ? period - at + reads[0] : period;
}

static uint32_t choose_slot(const lki_unit_buffers *slots, uint32_t at, uint32_t period)
{
    uint32_t best = 0, farthest = 0;

    for (uint32_t s = 0; s < slots->slot_count; s++) {
        if (slots->unit_in[s] == LKI_NO_UNIT)
            return s;
        uint32_t far = distance(slots, at, period, slots->unit_in[s]);
        if (far > farthest) {
            farthest = far;
            best     = s;
        }
    }
    LK_ASSERT(farthest > 0);
    return best;
}

static bool lacks(const lki_unit_buffers *slots, uint32_t at, uint32_t *unit)
{
    const lki_read *read = &slots->reads[at];

    for (uint32_t i = 0; i < read->count; i++)
        if (slots->slot_of[read->units[i]] == LKI_NO_SLOT) {
            *unit = read->units[i];
            return true;
        }
    return false;
}

static void put(lki_unit_buffers *slots, uint32_t unit, uint32_t slot)
{
    if (slots->unit_in[slot] != LKI_NO_UNIT)
        slots->slot_of[slots->unit_in[slot]] = LKI_NO_SLOT;
    slots->unit_in[slot] = unit;
    slots->slot_of[unit] = slot;
}

bool lki_unit_buffers_put(lki_unit_buffers *slots, uint32_t at, uint32_t period, uint32_t *unit)
{
    if (!lacks(slots, at, unit))
        return false;
    put(slots, *unit, choose_slot(slots, at, period));
    return true;
}

bool lki_unit_buffers_put_ahead(lki_unit_buffers *slots, uint32_t at, uint32_t period,
                                uint32_t *unit)
{
    uint32_t next = at + 1;

    while (next < period && !lacks(slots, next, unit))
        next++;
    if (next >= period)
        return false;
    uint32_t slot = choose_slot(slots, next, period), old = slots->unit_in[slot];
    if (old != LKI_NO_UNIT && distance(slots, at, period, old) < next - at)
        return false;
    put(slots, *unit, slot);
    return true;
}

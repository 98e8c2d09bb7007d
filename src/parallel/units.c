/* units.c -- parameters that hosts keep in parts, and that are whole while somebody reads them.
 *
 * Every host keeps a shard of the parameters (shards.c): those of a unit, which is a bucket and so
 * some whole blocks, are dealt to the owners in equal parts.  Before a block reads its parameters
 * the ranks of all hosts gather its unit: each owner puts what it keeps into a slot that is at the
 * same place in the arena of every host, and sends it to the others.  A unit stays until its slot
 * is needed (shelf.h).
 *
 *      read        others of this host are done with the slot - my part into it - to all hosts
 *
 * So all ranks read the same blocks in the same order, also those that have nothing to compute.
 *
 * Memory: a shard, and slots for so many of the largest units.
 * Cost:   of a unit of n bytes each host sends its part to all others: (H-1)/H n over all of its
 *         ranks.  A turn gathers each unit for its forward and again for its backward pass, unless
 *         it is still there.
 * (Zhao et al., PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel, 2023, section 3.)
 */
#include "parallel/units.h"

#include <string.h>

#include "base/memory.h"
#include "parallel/shards.h"

struct lki_units {
    lk_comm *comm; /* that of the job once more: gathering has an order of its own */
    lk_comm *host; /* of the ranks of this host, or NULL: each is alone on its */
    size_t  *first; /* of each unit: where it begins in the parameter space */
    size_t  *mine;  /* my spans, unit by unit: the first of each in ... */
    size_t  *first_mine; /* ... [unit_count + 1] */
    uint32_t *last; /* of each term: reads up to and with its block's last */
    uint32_t at;    /* the turn's next read */
};

/* ---- How much ---------------------------------------------------------------------------- */

/* Terms, and so parameters, follow each other unit by unit. */
static size_t largest_unit(const lki_layout *layout)
{
    size_t   most = 0, begin = 0;
    uint32_t unit = 0;

    for (uint32_t t = 0; t < layout->term_count; t++) {
        uint32_t p = layout->terms[t].param;
        if (layout->terms[t].use != 0)
            continue;
        if (lki_unit_of(layout, p) != unit)
            begin = layout->param_at[p];
        unit        = lki_unit_of(layout, p);
        size_t last = layout->first_span[p + 1] - 1;
        most        = lki_max(most, layout->spans[last].at - begin +
                                        lki_layout_width(layout, &layout->spans[last]));
    }
    return most;
}

size_t lki_units_bytes(lk_parallel *parallel)
{
    parallel->slot_elements = largest_unit(parallel->layout);
    return parallel->shelf.slot_count * parallel->slot_elements * sizeof(float);
}

void lki_units_count(lk_parallel *parallel, uint64_t *times)
{
    lki_shelf *shelf = &parallel->shelf;
    uint64_t  turns = (uint64_t)parallel->rounds.rounds * parallel->micro_count;
    uint32_t  unit;

    lki_shelf_clear(shelf);
    for (uint64_t turn = 0; turn < turns; turn++)
        for (uint32_t at = 0; at < shelf->read_count; at++)
            while (lki_shelf_put(shelf, at, shelf->read_count, &unit))
                times[unit]++;
    lki_shelf_clear(shelf);
}

/* ---- Attaching --------------------------------------------------------------------------- */

static uint32_t last_read(const lki_shelf *shelf, uint32_t term)
{
    uint32_t last = shelf->read_count;
    while (last > 0 && shelf->reads[last - 1].term != term)
        last--;
    return last;
}

static uint32_t unit_of_mine(const lk_parallel *parallel, size_t i)
{
    const lki_layout *layout = parallel->layout;
    return lki_unit_of(layout, layout->spans[parallel->mine[i]].param);
}

static lk_status sort_mine(const lk_parallel *parallel, lki_units *self)
{
    uint32_t units = parallel->layout->bucket_count;

    LK_TRY(LKI_NEW(&self->mine, parallel->mine_count + 1, "owned spans"));
    LK_TRY(LKI_NEW(&self->first_mine, (size_t)units + 2, "owned spans"));
    size_t *next = self->first_mine + 1; /* of each unit: in the end where the next one's begin */
    for (size_t i = 0; i < parallel->mine_count; i++)
        next[unit_of_mine(parallel, i) + 1]++;
    for (uint32_t u = 0; u < units; u++)
        next[u + 1] += next[u];
    for (size_t i = 0; i < parallel->mine_count; i++)
        self->mine[next[unit_of_mine(parallel, i)]++] = parallel->mine[i];
    return LK_OK;
}

lk_status lki_units_open(lk_parallel *parallel)
{
    const lki_layout *layout = parallel->layout;
    const lki_world  *world  = &parallel->world;
    lki_units        *self   = NULL;

    if (!parallel->gathers)
        return LK_OK;
    LK_TRY(LKI_NEW(&self, 1, "units of parameters"));
    parallel->units = self;
    LK_TRY(LKI_NEW(&self->first, layout->bucket_count, "units of parameters"));
    for (uint32_t u = 0; u < layout->bucket_count; u++)
        self->first[u] = SIZE_MAX;
    for (uint32_t p = 0; p < layout->param_count; p++) {
        size_t *first = &self->first[lki_unit_of(layout, p)];
        *first        = lki_min(*first, layout->param_at[p]);
    }
    LK_TRY(sort_mine(parallel, self));
    LK_TRY(LKI_NEW(&self->last, layout->term_count, "reads of blocks"));
    for (uint32_t t = 0; t < layout->term_count; t++)
        self->last[t] = layout->terms[t].same_block ? self->last[t - 1]
                                                    : last_read(&parallel->shelf, t);
    LK_TRY(lk_comm_split(&self->comm, parallel->comm, 0, parallel->rank));
    return world->widest == 1 ? LK_OK
                              : lk_comm_split(&self->host, parallel->comm,
                                              world->host_of[parallel->rank], parallel->rank);
}

void lki_units_close(lk_parallel *parallel)
{
    lki_units *self = parallel->units;
    if (self == NULL)
        return;
    lk_comm_free(self->host);
    lk_comm_free(self->comm);
    lki_free(self->first);
    lki_free(self->last);
    lki_free(self->mine);
    lki_free(self->first_mine);
    lki_free(self);
    parallel->units = NULL;
}

/* ---- Gathering --------------------------------------------------------------------------- */

static float *slot_of(const lk_parallel *parallel, uint32_t unit)
{
    return parallel->slots + parallel->shelf.slot_of[unit] * parallel->slot_elements;
}

static void put_mine(const lk_parallel *parallel, uint32_t unit)
{
    const lki_units  *self   = parallel->units;
    const lki_layout *layout = parallel->layout;
    const size_t      first  = self->first[unit];
    float            *slot   = slot_of(parallel, unit);

    for (size_t i = self->first_mine[unit]; i < self->first_mine[unit + 1]; i++) {
        const lki_param_span *span = &layout->spans[self->mine[i]];
        memcpy(slot + (span->at - first), lki_values_of(parallel, span),
               span->count * sizeof *slot);
    }
}

static lk_status gather(lk_parallel *parallel, uint32_t unit)
{
    lki_units *self = parallel->units;
    if (parallel->failure.status != LK_OK) /* nobody will hear of what is computed */
        return LK_OK;
    if (parallel->turning)
        LK_TRY(parallel->ops->settle(parallel));
    if (self->host != NULL)
        LK_TRY(lk_barrier(self->host));
    put_mine(parallel, unit);
    return lki_shards_gather_unit(parallel, self->comm, unit, slot_of(parallel, unit));
}

/* Read `at` of the list. */
static lk_status read_at(lk_parallel *parallel, uint32_t at, uint32_t period)
{
    lk_status status = LK_OK;
    uint32_t  unit;
    while (lki_shelf_put(&parallel->shelf, at, period, &unit))
        if (status == LK_OK)
            status = gather(parallel, unit);
    return status;
}

static const char *name_of(const lk_parallel *parallel, uint32_t at)
{
    const lki_layout *layout = parallel->layout;
    return layout->params[layout->terms[parallel->shelf.reads[at].term].param].name;
}

lk_status lki_units_read(lk_parallel *parallel, uint32_t term)
{
    lki_units      *self   = parallel->units;
    const lki_shelf *shelf   = &parallel->shelf;
    uint32_t        period = parallel->turning ? shelf->read_count : shelf->forward;
    uint32_t        at     = self->at % period, found = at;

    while (shelf->reads[found].term != term)
        found = (found + 1) % period;
    self->at         = found + 1;
    lk_status status = read_at(parallel, found, period);
    if (status == LK_OK && found != at)
        return lk_fail(LK_EINVAL,
                       "strategy %s gathers what is read in the order of options.reads: the block "
                       "of '%s' is next, not that of '%s'",
                       parallel->ops->name, name_of(parallel, at), name_of(parallel, found));
    return status;
}

lk_status lki_units_catch_up(lk_parallel *parallel, uint32_t term)
{
    lki_units *self = parallel->units;
    uint32_t   end  = term == UINT32_MAX ? parallel->shelf.read_count : self->last[term];
    for (; self->at < end; self->at++)
        LK_TRY(read_at(parallel, self->at, parallel->shelf.read_count));
    return LK_OK;
}

bool lki_units_passed(const lk_parallel *parallel, uint32_t term)
{
    return parallel->units->last[term] <= parallel->units->at;
}

void lki_units_begin(lk_parallel *parallel)
{
    parallel->units->at = 0;
}

void lki_units_forget(lk_parallel *parallel)
{
    lki_shelf_clear(&parallel->shelf);
    parallel->units->at = 0;
}

const float *lki_units_find(const lk_parallel *parallel, uint32_t param)
{
    const lki_layout *layout = parallel->layout;
    uint32_t          unit   = lki_unit_of(layout, param);
    if (parallel->shelf.slot_of[unit] == LKI_NO_SLOT)
        return NULL;
    return slot_of(parallel, unit) + (layout->param_at[param] - parallel->units->first[unit]);
}

/* units.c -- sharded parameters that are gathered, unit by unit, when blocks read them.
 *
 * Every host stores a shard of the parameters (shards.c).  A unit is a bucket, and therefore some
 * whole blocks; its parameters are assigned to the owners in equal parts.  Before a block reads its
 * parameters, the ranks of all hosts gather its unit.  Each owner copies its part into a unit
 * buffer (slot), at the same offset in the arena of every host, and sends it to the other hosts.
 * A unit stays in memory until its slot is needed (unit_buffers.h).
 *
 *      blocks      | unit 3 | unit 2 | unit 1 |
 *      slot 0      | 3               | 1 ...          arrives while unit 2 is read
 *      slot 1               | 2               | 0 ...
 *
 * While a unit is read, the next unit is received into its slot, as soon as all ranks of the host
 * have finished with that slot's present unit (comm/fill.h).  Transfers advance whenever a rank
 * waits, and between blocks; there is no other thread.  All ranks read the same blocks in the same
 * order, even ranks that have nothing to compute.
 *
 * A host's shard may be in files (offload/unit_reader.c), even on a single host.  A part is then
 * first read into its place in the slot, and after that sent to other hosts, or announced to the
 * host's other ranks:
 *
 *      ordered - entered - read | sent, or announced
 *
 * The steps up to "read" advance between blocks and when a rank needs a unit.  A rank must not wait
 * for anything else while it has not read a unit that another rank needs to continue.
 *
 * If parameters are read as bf16 (gather_dtype), owners round them into the slot, and half of the
 * bytes are sent and stored.  If they are read as blocks of 8 bits, owners write the blocks into a
 * parcel beside the slot, and send the parcel.  On each host the receiving ranks convert it into
 * the slot.  Parcels of all units may stay in memory until the values change.  A unit that is read
 * again is then converted from its parcel, and nothing is sent (ZeRO++'s secondary shard; Wang et
 * al. 2023).
 *
 * Memory: a shard, and slots of the size of the largest unit.  Quantised: about a quarter more for
 *         each slot, or a byte for every parameter.
 * Cost:   for a unit of n bytes, each host sends its part to all other hosts.  All ranks of a host
 *         together send (H-1)/H n bytes.  A turn gathers each unit for its forward and again for
 *         its backward pass, unless the unit is still in a slot.
 * Source: Zhao et al., PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel, 2023,
 *         section 3.
 */
#include "parallel/strategies/units.h"

#include <string.h>

#include "base/memory.h"
#include "comm/fill.h"
#include "device/quantise.h"
#include "parallel/offload/unit_reader.h"
#include "parallel/strategies/shards.h"

enum { LINE = 64 }; /* alignment of parcels in bytes */

/* A piece of a unit that this rank sends.  It is copied or rounded into the unit buffer, unless it
 * is already there. */
typedef struct {
    const float *from;
    lk_dtype     to;           /* LK_F32 or LK_BF16 */
    /* elements; bytes in the type in which they are read, with padding */
    size_t       count, bytes;
} piece;

/* A transfer into a unit buffer. */
typedef struct {
    lk_parallel *parallel;
    uint32_t     unit;
    lki_filler   filler;
    lk_request  *request; /* NULL: none is under way */
} arrival;

/* Returns true if this rank sends a span, as its owner or in place of a lost owner. */
static bool gives(const lk_parallel *parallel, const lki_param_span *span)
{
    return lki_shards_carrier(parallel, span->owner) == lk_comm_rank(parallel->peers.group);
}

/* The state for quantised units. */
typedef struct {
    size_t *spans;      /* span numbers in the order of the parameter space */
    size_t *first_span; /* [unit_count + 1]: each unit's first entry in `spans` */
    bool   *held;       /* [unit_count]: the unit's parcel is complete and current */
    /* [unit_count]: offset of the unit's parcel, if all parcels stay in memory */
    size_t *parcel_at;
    /* [ranks of the group]: zeros.  For a unit whose parcel is complete, ranks send no bytes */
    size_t *nothing;
} packing;

struct lki_units {
    /* a second communicator of the group, because gathers run in a separate order */
    lk_comm     *comm;
    /* [unit_count]: byte offset of each unit in the copy of all parameters in the type in which
     * they are read */
    size_t          *first;
    piece           *mine;       /* the pieces that this rank sends, unit by unit */
    size_t          *first_mine; /* [unit_count + 1]: each unit's first entry in `mine` */
    arrival         *coming;     /* [slot_count] */
    packing          packing;
    lki_unit_reader *reader; /* supplies parameters from files; NULL: parameters are in memory */
    /* [slot_count]: the unit that was ordered from files and is not complete, or LKI_NO_UNIT */
    uint32_t    *ordered;
    /* [term_count]: number of reads up to and including the last read of the term's block */
    uint32_t    *last;
    uint32_t     at;          /* the next read of the turn */
};

/* ---- Memory ------------------------------------------------------------------------------ */

size_t lki_units_bytes(lk_parallel *parallel)
{
    parallel->slots.slot_bytes = lki_unit_largest(parallel->layout);
    return parallel->slots.slot_count * parallel->slots.slot_bytes;
}

size_t lki_units_parcels(lk_parallel *parallel)
{
    const lki_layout *layout = parallel->layout;
    size_t            most = 0, all = 0, bytes = 0;
    uint32_t          unit = 0;

    for (uint32_t t = 0; parallel->quantised && t < layout->term_count; t++) {
        uint32_t p = layout->terms[t].param;
        if (layout->terms[t].use != 0)
            continue;
        if (lki_unit_of(layout, p) != unit)
            bytes = 0;
        unit = lki_unit_of(layout, p);
        all -= lki_round_up(bytes, LINE);
        /* a span always ends at the end of a block */
        bytes += lki_rounded_bytes(LK_I8, layout->sizes[p]);
        all += lki_round_up(bytes, LINE);
        most = lki_max(most, lki_round_up(bytes, LINE));
    }
    parallel->slots.parcel_bytes = most;
    return parallel->keeps ? all : parallel->slots.slot_count * most;
}

/* ---- Transfers --------------------------------------------------------------------------- */

static unsigned char *memory_of(const lk_parallel *parallel, uint32_t slot)
{
    return parallel->slots.slots + slot * parallel->slots.slot_bytes;
}

static void put_whole(void *context, void *to)
{
    const arrival   *a    = context;
    const lki_units *self = a->parallel->units;
    unsigned char   *at   = to;

    for (size_t i = self->first_mine[a->unit]; i < self->first_mine[a->unit + 1]; i++) {
        const piece *p = &self->mine[i];
        if (p->to == LK_BF16)
            lki_rounding_loops(LK_BF16)->store(p->count, p->from, 1, at);
        else if ((const void *)p->from != at)
            memcpy(at, p->from, p->bytes);
        at += p->bytes;
    }
}

static unsigned char *parcel_of(const lk_parallel *parallel, const arrival *a)
{
    const lki_units *self = parallel->units;
    return parallel->slots.parcels +
           (parallel->keeps ? self->packing.parcel_at[a->unit]
                            : (size_t)(a - self->coming) * parallel->slots.parcel_bytes);
}

static void put_packed(void *context, void *to)
{
    const arrival     *a        = context;
    const lk_parallel *parallel = a->parallel;
    const packing     *p        = &parallel->units->packing;
    unsigned char     *at       = to;

    for (size_t i = p->first_span[a->unit]; i < p->first_span[a->unit + 1]; i++) {
        const lki_param_span *span = &parallel->layout->spans[p->spans[i]];
        if (!gives(parallel, span))
            continue;
        lki_quantise(LK_I8, span->count, lki_values_of(parallel, span), at);
        at += lki_shards_span_bytes(parallel, span);
    }
}

/* Converts rank `giver`'s part of a parcel into the unit buffer.  The giver may be this rank. */
static void take_packed(void *context, uint32_t giver)
{
    const arrival       *a        = context;
    const lk_parallel   *parallel = a->parallel;
    const lki_units     *self     = parallel->units;
    const packing       *p        = &self->packing;
    const unsigned char *at       = parcel_of(parallel, a);
    unsigned char       *slot     = memory_of(parallel, (uint32_t)(a - self->coming));

    for (size_t i = p->first_span[a->unit]; i < p->first_span[a->unit + 1]; i++) {
        const lki_param_span *span = &parallel->layout->spans[p->spans[i]];
        if (lki_shards_carrier(parallel, span->owner) == giver)
            lki_dequantise(LK_I8, span->count, at,
                           (float *)(void *)(slot + (span->read_at - self->first[a->unit])));
        at += lki_shards_span_bytes(parallel, span);
    }
}

/* ---- Attaching --------------------------------------------------------------------------- */

static uint32_t last_read(const lki_unit_buffers *slots, uint32_t term)
{
    uint32_t last = slots->read_count;
    while (last > 0 && slots->reads[last - 1].term != term)
        last--;
    return last;
}

/* Adds a span to the pieces that this rank sends.  Neighbours in the unit and in this rank's shard
 * become one piece.  With files the piece is this rank's whole part, read into its place. */
static void add_mine(const lk_parallel *parallel, lki_units *self, const lki_param_span *span)
{
    size_t *end  = &self->first_mine[lki_unit_of(parallel->layout, span->param) + 1];
    piece   mine = { .from  = self->reader == NULL ? lki_values_of(parallel, span) : NULL,
                     .to    = lki_layout_read_dtype(parallel->layout, span->param),
                     .count = lki_layout_width(parallel->layout, span),
                     .bytes = lki_layout_read_bytes(parallel->layout, span) };
    piece  *last = *end > end[-1] ? &self->mine[*end - 1] : NULL;

    if (last != NULL && last->to == mine.to &&
        last->bytes == last->count * lk_dtype_bytes(last->to) &&
        (mine.from == NULL || last->from + last->count == mine.from)) {
        last->count += mine.count;
        last->bytes += mine.bytes;
    } else
        self->mine[(*end)++] = mine;
}

static lk_status list_mine(const lk_parallel *parallel, lki_units *self)
{
    const lki_layout *layout = parallel->layout;
    uint32_t          unit   = 0;

    LK_TRY(LKI_NEW(&self->mine, layout->span_count + 1, "pieces of units"));
    LK_TRY(LKI_NEW(&self->first_mine, (size_t)layout->bucket_count + 1, "pieces of units"));
    for (uint32_t t = 0; t < layout->term_count; t++) {
        uint32_t p = layout->terms[t].param;
        if (layout->terms[t].use != 0)
            continue;
        for (; unit < lki_unit_of(layout, p); unit++) /* the next units begin where this one ends */
            self->first_mine[unit + 2] = self->first_mine[unit + 1];
        for (size_t i = layout->first_span[p]; i < layout->first_span[p + 1]; i++)
            if (gives(parallel, &layout->spans[i]))
                add_mine(parallel, self, &layout->spans[i]);
    }
    /* units that have only further uses of shared parameters */
    for (unit += 2; unit <= layout->bucket_count; unit++)
        self->first_mine[unit] = self->first_mine[unit - 1];
    return LK_OK;
}

/* Lists spans unit by unit, in the order of terms. */
static lk_status list_spans(const lki_layout *layout, packing *p)
{
    size_t count = 0;

    LK_TRY(LKI_NEW(&p->spans, layout->span_count, "spans of units"));
    LK_TRY(LKI_NEW(&p->first_span, (size_t)layout->bucket_count + 1, "spans of units"));
    for (uint32_t t = 0; t < layout->term_count; t++) {
        uint32_t param = layout->terms[t].param;
        if (layout->terms[t].use != 0)
            continue;
        for (size_t i = layout->first_span[param]; i < layout->first_span[param + 1]; i++)
            p->spans[count++] = i;
        p->first_span[lki_unit_of(layout, param) + 1] = count;
    }
    /* units that have only further uses of shared parameters */
    for (uint32_t u = 0; u < layout->bucket_count; u++)
        p->first_span[u + 1] = lki_max(p->first_span[u + 1], p->first_span[u]);
    return LK_OK;
}

static lk_status open_packing(const lk_parallel *parallel, packing *p)
{
    const lki_layout *layout = parallel->layout;
    size_t            at     = 0;

    LK_TRY(LKI_NEW(&p->held, layout->bucket_count, "units that are kept"));
    if (!parallel->quantised)
        return LK_OK;
    LK_TRY(list_spans(layout, p));
    LK_TRY(LKI_NEW(&p->parcel_at, layout->bucket_count, "units that are kept"));
    LK_TRY(LKI_NEW(&p->nothing, lk_comm_size(parallel->peers.group), "units that are kept"));
    for (uint32_t u = 0; u < layout->bucket_count; u++) {
        p->parcel_at[u] = at;
        for (size_t i = p->first_span[u]; i < p->first_span[u + 1]; i++)
            at += lki_shards_span_bytes(parallel, &layout->spans[p->spans[i]]);
        at = lki_round_up(at, LINE);
    }
    return LK_OK;
}

static lk_status open_arrivals(lk_parallel *parallel, lki_units *self)
{
    LK_TRY(LKI_NEW(&self->coming, parallel->slots.slot_count, "buffers of units"));
    for (uint32_t s = 0; s < parallel->slots.slot_count; s++)
        self->coming[s] = (arrival){
            .parallel = parallel,
            .unit     = LKI_NO_UNIT,
            .filler   = { .put     = parallel->quantised ? put_packed : put_whole,
                          .take    = parallel->quantised ? take_packed : NULL,
                          .context = &self->coming[s] },
        };
    return open_packing(parallel, &self->packing);
}

lk_status lki_units_open(lk_parallel *parallel)
{
    const lki_layout *layout = parallel->layout;
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
        *first        = lki_min(*first, layout->read_at[p]);
    }
    LK_TRY(lki_unit_reader_open(&self->reader, parallel));
    LK_TRY(list_mine(parallel, self));
    LK_TRY(open_arrivals(parallel, self));
    LK_TRY(LKI_NEW(&self->ordered, parallel->slots.slot_count, "buffers of units"));
    for (uint32_t s = 0; s < parallel->slots.slot_count; s++)
        self->ordered[s] = LKI_NO_UNIT;
    LK_TRY(LKI_NEW(&self->last, layout->term_count, "reads of blocks"));
    for (uint32_t t = 0; t < layout->term_count; t++)
        self->last[t] = layout->terms[t].same_block ? self->last[t - 1]
                                                    : last_read(&parallel->slots, t);
    return lk_comm_split(&self->comm, parallel->peers.group, 0,
                         lk_comm_rank(parallel->peers.group));
}

void lki_units_close(lk_parallel *parallel)
{
    lki_units *self = parallel->units;
    if (self == NULL)
        return;
    for (uint32_t s = 0; self->coming != NULL && s < parallel->slots.slot_count; s++)
        lk_request_free(self->coming[s].request);
    lki_unit_reader_close(self->reader);
    lk_comm_free(self->comm);
    lki_free(self->first);
    lki_free(self->last);
    lki_free(self->mine);
    lki_free(self->first_mine);
    lki_free(self->coming);
    lki_free(self->ordered);
    lki_free(self->packing.spans);
    lki_free(self->packing.first_span);
    lki_free(self->packing.held);
    lki_free(self->packing.parcel_at);
    lki_free(self->packing.nothing);
    lki_free(self);
    parallel->units = NULL;
}

/* ---- Gathering --------------------------------------------------------------------------- */

/* Returns the address of element `at` of the parameter space in a unit's memory `to`.  All
 * parameters must be FP32. */
static float *place_in(const lki_units *self, uint32_t unit, void *to, size_t at)
{
    return (float *)to + (at - self->first[unit] / sizeof(float));
}

/* Fills a unit if only one host remains.  Its ranks copy all parts into the unit buffer, between
 * two barriers. */
static lk_status give_here(lk_parallel *parallel, uint32_t unit, uint32_t slot)
{
    lki_units *self = parallel->units;
    arrival   *a    = &self->coming[slot];
    size_t     at   = 0;

    a->unit              = unit;
    const size_t  *bytes = lki_shards_unit_bytes(parallel, unit);
    unsigned char *to    = parallel->quantised ? parcel_of(parallel, a)
                                               : memory_of(parallel, slot);
    for (uint32_t r = 0; r < lk_comm_rank(self->comm); r++)
        at += bytes[r];
    if (parallel->turn.running)
        LK_TRY(parallel->ops->settle(parallel));
    LK_TRY(lk_barrier(self->comm));
    a->filler.put(a, to + at);
    if (parallel->quantised)
        a->filler.take(a, lk_comm_rank(self->comm));
    return lk_barrier_start(&a->request, self->comm);
}

/* Sends this rank's part of a unit to other hosts.  Copies it to the unit buffer first if
 * needed. */
static lk_status give(lk_parallel *parallel, uint32_t unit, uint32_t slot)
{
    lki_units    *self  = parallel->units;
    arrival      *a     = &self->coming[slot];
    void         *to    = memory_of(parallel, slot);
    const size_t *bytes = lki_shards_unit_bytes(parallel, unit);
    size_t        at;

    if (self->reader != NULL && parallel->shards == 1)
        return lk_barrier_start(&a->request, self->comm);
    if (self->reader == NULL && lk_comm_hosts(self->comm) == 1)
        return give_here(parallel, unit, slot);
    if (self->reader != NULL && lki_unit_reader_part(self->reader, unit, &at) > 0)
        self->mine[self->first_mine[unit]].from = place_in(self, unit, to, at);
    a->unit = unit;
    if (self->packing.held[unit])
        bytes = self->packing.nothing;
    self->packing.held[unit] = parallel->keeps;
    return lki_shards_gather_unit(parallel, self->comm, bytes,
                                  parallel->quantised ? parcel_of(parallel, a) : to,
                                  &a->filler, &a->request);
}

/* Sends the units that have been read from files.  If `slot` is not LKI_NO_SLOT, first waits until
 * the unit ordered for that unit buffer is read and sent. */
static lk_status receive(lk_parallel *parallel, uint32_t slot)
{
    lki_units *self = parallel->units;
    uint32_t   unit, to;
    do {
        bool wait = slot != LKI_NO_SLOT && self->ordered[slot] != LKI_NO_UNIT;
        LK_TRY(lki_unit_reader_move(self->reader, wait, &unit));
        for (to = 0; unit != LKI_NO_UNIT && self->ordered[to] != unit;)
            to++;
        if (unit == LKI_NO_UNIT)
            break;
        self->ordered[to] = LKI_NO_UNIT;
        LK_TRY(give(parallel, unit, to));
    } while (true);
    return LK_OK;
}

/* Waits until the transfer into a unit buffer is complete. */
static lk_status finish(lk_parallel *parallel, uint32_t slot)
{
    lk_request **coming = &parallel->units->coming[slot].request;
    bool         done   = false;

    if (parallel->units->reader != NULL)
        LK_TRY(receive(parallel, slot));
    if (*coming == NULL)
        return LK_OK;
    LK_TRY(lk_request_test(*coming, &done));
    if (!done && parallel->turn.running)
        LK_TRY(parallel->ops->settle(parallel));
    LK_TRY(lk_request_wait(*coming));
    lk_request_free(*coming);
    *coming = NULL;
    return LK_OK;
}

static lk_status finish_all(lk_parallel *parallel)
{
    for (uint32_t s = 0; s < parallel->slots.slot_count; s++)
        LK_TRY(finish(parallel, s));
    return LK_OK;
}

static lk_status gather(lk_parallel *parallel, uint32_t unit)
{
    lki_units *self = parallel->units;
    uint32_t   slot = parallel->slots.slot_of[unit];
    size_t     at;

    for (uint32_t s = 0; s < parallel->slots.slot_count; s++)
        /* the unit's parcel may still be arriving */
        if (s == slot || (parallel->keeps && self->coming[s].unit == unit))
            LK_TRY(finish(parallel, s));
    if (self->reader == NULL)
        return give(parallel, unit, slot);
    self->ordered[slot] = unit;
    float *to           = (float *)(void *)memory_of(parallel, slot);
    if (lki_unit_reader_part(self->reader, unit, &at) > 0)
        to = place_in(self, unit, to, at);
    LK_TRY(lki_unit_reader_order(self->reader, unit, to));
    return receive(parallel, LKI_NO_SLOT);
}

/* Returns true after a failure, when other ranks no longer take part in transfers. */
static bool has_failed(const lk_parallel *parallel)
{
    return parallel->now.failure.status != LK_OK;
}

/* Starts transfers of the units that read `at` needs, and of the next units. */
static lk_status prepare(lk_parallel *parallel, uint32_t at, uint32_t period)
{
    lk_status status = LK_OK;
    uint32_t  unit;
    while (lki_unit_buffers_put(&parallel->slots, at, period, &unit))
        if (status == LK_OK && !has_failed(parallel))
            status = gather(parallel, unit);
    while (status == LK_OK && !has_failed(parallel) &&
           lki_unit_buffers_put_ahead(&parallel->slots, at, period, &unit))
        status = gather(parallel, unit);
    return status;
}

/* Waits until the units of a read are in memory. */
static lk_status read_at(lk_parallel *parallel, uint32_t at, uint32_t period)
{
    const lki_read *read = &parallel->slots.reads[at];
    LK_TRY(prepare(parallel, at, period));
    for (uint32_t i = 0; i < read->count && !has_failed(parallel); i++)
        LK_TRY(finish(parallel, parallel->slots.slot_of[read->units[i]]));
    return LK_OK;
}

static const char *name_of(const lk_parallel *parallel, uint32_t at)
{
    const lki_layout *layout = parallel->layout;
    return layout->params[layout->terms[parallel->slots.reads[at].term].param].name;
}

lk_status lki_units_read(lk_parallel *parallel, uint32_t term)
{
    lki_units              *self   = parallel->units;
    const lki_unit_buffers *slots  = &parallel->slots;
    uint32_t                period = parallel->turn.running ? slots->read_count : slots->forward;
    uint32_t                at = self->at % period, found = at;

    while (slots->reads[found].term != term)
        found = (found + 1) % period;
    self->at         = found + 1;
    lk_status status = read_at(parallel, found, period);
    if (status == LK_OK && found != at) /* the other ranks will fail with the same message */
        status = finish_all(parallel);
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
    uint32_t   all = parallel->slots.read_count, end = term == UINT32_MAX ? all : self->last[term];
    /* a rank that waits for a file advances its own transfers here */
    for (; self->at < end; self->at++)
        LK_TRY(self->reader == NULL ? prepare(parallel, self->at, all)
                                    : read_at(parallel, self->at, all));
    if (term != UINT32_MAX)
        return LK_OK;
    self->at = 0;
    return finish_all(parallel);
}

lk_status lki_units_progress(lk_parallel *parallel)
{
    lki_units *self = parallel->units;
    bool       done;
    if (self->reader != NULL)
        LK_TRY(receive(parallel, LKI_NO_SLOT));
    for (uint32_t s = 0; s < parallel->slots.slot_count; s++)
        if (self->coming[s].request != NULL) /* testing one request advances all requests */
            return lk_request_test(self->coming[s].request, &done);
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

lk_status lki_units_settle(lk_parallel *parallel)
{
    return parallel->units == NULL ? LK_OK : finish_all(parallel);
}

void lki_units_forget(lk_parallel *parallel)
{
    lki_unit_buffers_clear(&parallel->slots);
    memset(parallel->units->packing.held, 0, parallel->layout->bucket_count);
    parallel->units->at = 0;
}

const void *lki_units_find(const lk_parallel *parallel, uint32_t param)
{
    const lki_layout *layout = parallel->layout;
    uint32_t          unit   = lki_unit_of(layout, param);
    if (parallel->slots.slot_of[unit] == LKI_NO_SLOT)
        return NULL;
    return memory_of(parallel, parallel->slots.slot_of[unit]) +
           (layout->read_at[param] - parallel->units->first[unit]);
}

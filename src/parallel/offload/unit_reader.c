/* unit_reader.c -- reads units of parameters from files.
 *
 * A host's shard is in its ranks' files (vector_file.h), and a unit is a range of chunks in each
 * file.  A rank orders a unit that needs a unit buffer (slot, units.c).  It reads its chunks of the
 * unit through the file's buffers, as many at a time as there are buffers, and copies them to their
 * place in the slot:
 *
 *      ENTERING    until all ranks of the host have finished with the slot's present unit
 *      READING     chunk after chunk: read - compared with its hash - copied into place
 *
 * Then units.c announces the unit to the other ranks, or sends it to other hosts.  Units arrive in
 * the order in which they are ordered, which is equal on every rank.  A file is read while blocks
 * are computed, and reads are advanced between blocks.
 *
 * Memory: none but the file's buffers.
 */
#include "parallel/offload/unit_reader.h"

#include <string.h>

#include "base/memory.h"
#include "parallel/offload/vector_file.h"

typedef struct {
    uint32_t    unit;
    float      *to;
    lk_request *entered; /* NULL: all ranks have entered */
    /* chunks: the next one to read, the next one to copy, and the end */
    size_t      read, copied, end;
} order;

struct lki_unit_reader {
    lk_parallel *parallel;
    lk_comm     *host;        /* the ranks of this host; NULL: every host has one rank */
    size_t      *first_chunk; /* [unit_count + 1]: each unit's first chunk */
    order       *orders;      /* [slot_count]: a ring */
    uint32_t     first, count;
};

/* ---- Life cycle -------------------------------------------------------------------------- */

static uint32_t unit_of_chunk(const lk_parallel *parallel, size_t k)
{
    const lki_chunk *c = &parallel->offload.params->chunks[k];
    return lki_unit_of(parallel->layout,
                       parallel->layout->spans[parallel->owned.spans[c->first]].param);
}

/* Lists each unit's first chunk, because chunks are in the order of units. */
static lk_status list_chunks(lki_unit_reader *self)
{
    const lk_parallel *parallel = self->parallel;
    const uint32_t     units    = parallel->layout->bucket_count;
    const size_t       count = parallel->offload.params ? parallel->offload.params->chunk_count : 0;
    size_t             k     = 0;

    LK_TRY(LKI_NEW(&self->first_chunk, (size_t)units + 1, "units of parameters"));
    for (uint32_t u = 0; u < units; u++) {
        self->first_chunk[u] = k;
        while (k < count && unit_of_chunk(parallel, k) == u)
            k++;
    }
    LK_ASSERT(k == count);
    self->first_chunk[units] = k;
    return LK_OK;
}

static lk_status open_parts(lki_unit_reader *self)
{
    lk_parallel *parallel = self->parallel;
    LK_TRY(list_chunks(self));
    LK_TRY(LKI_NEW(&self->orders, parallel->slots.slot_count, "orders of units"));
    if (parallel->world.widest == 1)
        return LK_OK;
    return lk_comm_split(&self->host, parallel->comm, parallel->world.host_of[parallel->rank],
                         parallel->rank);
}

lk_status lki_unit_reader_open(lki_unit_reader **out, lk_parallel *parallel)
{
    lki_unit_reader *self = NULL;
    *out                  = NULL;
    if (!(parallel->offload.kinds & LK_OFFLOADED_PARAMETERS))
        return LK_OK;
    LK_TRY(LKI_NEW(&self, 1, "units out of files"));
    self->parallel   = parallel;
    lk_status status = open_parts(self);
    if (status == LK_OK)
        *out = self;
    else
        lki_unit_reader_close(self);
    return status;
}

void lki_unit_reader_close(lki_unit_reader *self)
{
    if (self == NULL)
        return;
    for (uint32_t i = 0; self->orders != NULL && i < self->parallel->slots.slot_count; i++)
        lk_request_free(self->orders[i].entered);
    lk_comm_free(self->host);
    lki_free(self->first_chunk);
    lki_free(self->orders);
    lki_free(self);
}

/* ---- This rank's part of a unit ---------------------------------------------------------- */

/* Counts one contiguous run, because an owner's spans in a unit are neighbours in the parameter
 * space. */
size_t lki_unit_reader_part(const lki_unit_reader *self, uint32_t unit, size_t *at)
{
    const lk_parallel *parallel = self->parallel;
    size_t             elements = 0;
    *at                         = 0;
    for (size_t k = self->first_chunk[unit]; k < self->first_chunk[unit + 1]; k++) {
        const lki_chunk *c = &parallel->offload.params->chunks[k];
        if (elements == 0)
            *at = parallel->layout->spans[parallel->owned.spans[c->first]].at;
        elements += c->payload / sizeof(float);
    }
    return elements;
}

/* ---- Orders ------------------------------------------------------------------------------ */

static order *order_at(const lki_unit_reader *self, uint32_t i)
{
    return &self->orders[(self->first + i) % self->parallel->slots.slot_count];
}

lk_status lki_unit_reader_order(lki_unit_reader *self, uint32_t unit, float *to)
{
    LK_ASSERT(self->count < self->parallel->slots.slot_count);
    order *o = order_at(self, self->count);
    *o       = (order){ .unit   = unit,
                        .to     = to,
                        .read   = self->first_chunk[unit],
                        .copied = self->first_chunk[unit],
                        .end    = self->first_chunk[unit + 1] };
    if (self->parallel->offload.params != NULL)
        LK_TRY(lki_vector_file_put_back(self->parallel->offload.params));
    if (self->host != NULL)
        LK_TRY(lk_barrier_start(&o->entered, self->host));
    self->count++;
    return LK_OK;
}

/* Tests whether all ranks have entered, or waits until they have.  Before a wait it settles all
 * communication that other ranks may need from this rank. */
static lk_status enter(lki_unit_reader *self, order *o, bool wait, bool *entered)
{
    lk_parallel *parallel = self->parallel;
    *entered              = o->entered == NULL;
    if (*entered)
        return LK_OK;
    LK_TRY(lk_request_test(o->entered, entered));
    if (!*entered && wait) {
        if (parallel->turn.running)
            LK_TRY(parallel->ops->settle(parallel));
        LK_TRY(lk_request_wait(o->entered));
        *entered = true;
    }
    if (*entered) {
        lk_request_free(o->entered);
        o->entered = NULL;
    }
    return LK_OK;
}

static lk_status put_in_place(lki_vector_file *file, order *o)
{
    const lki_chunk *c    = &file->chunks[o->copied];
    size_t           span = file->parallel->owned.spans[c->first];
    LK_TRY(lki_vector_file_end_read(file, o->copied));
    memcpy(o->to, lki_vector_file_find(file, span, 0), c->payload);
    o->to += c->payload / sizeof *o->to;
    o->copied++;
    return LK_OK;
}

static lk_status read_on(lki_unit_reader *self, order *o, bool wait)
{
    lki_vector_file *file = self->parallel->offload.params;
    while (o->copied < o->end) {
        for (; o->read < o->end && o->read - o->copied < file->ring; o->read++)
            LK_TRY(lki_vector_file_begin_read(file, o->read));
        if (!wait && !lki_vector_file_is_read(file, o->copied))
            return LK_OK;
        LK_TRY(put_in_place(file, o));
    }
    return LK_OK;
}

lk_status lki_unit_reader_move(lki_unit_reader *self, bool wait, uint32_t *unit)
{
    bool entered;
    *unit = LKI_NO_UNIT;
    if (self->count == 0)
        return LK_OK;
    order *o = order_at(self, 0);
    LK_TRY(enter(self, o, wait, &entered));
    if (entered)
        LK_TRY(read_on(self, o, wait));
    if (!entered || o->copied < o->end)
        return LK_OK;
    *unit       = o->unit;
    self->first = (self->first + 1) % self->parallel->slots.slot_count;
    self->count--;
    return LK_OK;
}

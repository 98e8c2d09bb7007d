/* vector_file.c -- a rank's part of some vectors, stored in chunks in a private file.
 *
 * The spans that a rank owns are divided into chunks, in order; a chunk has all columns of its
 * spans.  While chunk k is in memory it is in buffer k mod ring.  A chunk that has been read is
 * compared with its hash (XXH3) before it is used.  A chunk that was never written is all zeros and
 * is not read.
 *
 *      columns     span 0: moment, variance | span 1: moment, variance | ... | to a whole page
 *
 * If parameters are in a file, a chunk contains spans of one unit only, so that a unit is a range
 * of chunks.  One buffer is then reserved for single values, because all others hold chunks of
 * units in transfer.
 *
 * Memory: the buffers, and 12 bytes for each span of the model.
 */
#include "parallel/offload/vector_file.h"

#include <inttypes.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"

enum { SPANS_LEAST = 8, SPANS_MOST = 64, PARTS = 8 };

/* ---- Places -------------------------------------------------------------------------------- */

static const lki_param_span *span_at(const lk_parallel *parallel, size_t place)
{
    return &parallel->layout->spans[parallel->owned.spans[place]];
}

/* Returns the number of spans of a chunk.  For a small part it is an eighth of the part, so that
 * reading and computing overlap. */
static size_t chunk_spans(size_t mine)
{
    return lki_min(SPANS_MOST, lki_max(SPANS_LEAST, mine / PARTS));
}

/* Returns the end of the chunk that begins at place `first`. */
static size_t end_of_chunk(const lk_parallel *parallel, size_t first)
{
    const lki_layout *layout = parallel->layout;
    size_t            end    = first + 1;
    size_t limit = lki_min(first + chunk_spans(parallel->owned.count), parallel->owned.count);
    if (!(parallel->offload.kinds & LK_OFFLOADED_PARAMETERS))
        return limit;
    uint32_t unit = lki_unit_of(layout, span_at(parallel, first)->param);
    while (end < limit && lki_unit_of(layout, span_at(parallel, end)->param) == unit)
        end++;
    return end;
}

/* Computes the chunks, or only counts them while self->chunks is NULL. */
static uint64_t cut(lki_vector_file *self)
{
    const lk_parallel *parallel = self->parallel;
    size_t             count    = 0;
    uint64_t           offset   = 0;
    for (size_t first = 0, end; first < parallel->owned.count; first = end, count++) {
        size_t floats = 0;
        end           = end_of_chunk(parallel, first);
        for (size_t i = first; i < end; i++) {
            self->chunk_of[parallel->owned.spans[i]] = (uint32_t)count;
            self->at[parallel->owned.spans[i]]       = floats;
            floats += self->columns * lki_layout_width(parallel->layout, span_at(parallel, i));
        }
        size_t payload = floats * sizeof(float), bytes = lki_round_up(payload, LKI_STORE_ALIGN);
        if (self->chunks != NULL)
            self->chunks[count] = (lki_chunk){
                .offset = offset, .first = first, .end = end, .payload = payload, .bytes = bytes
            };
        self->widest = lki_max(self->widest, bytes);
        offset += bytes;
    }
    self->chunk_count = count;
    return offset;
}

/* Allocates all buffers as one block, which may use huge pages, so that a transfer takes few disk
 * requests. */
static lk_status open_buffers(lki_vector_file *self, bool apart)
{
    self->ring     = apart ? LKI_VECTOR_FILE_RING_APART : LKI_VECTOR_FILE_RING;
    self->own      = apart ? self->ring : 0;
    uint32_t count = self->ring + apart;
    LK_TRY(lki_alloc(&self->memory, count * self->widest + LKI_STORE_ALIGN, "values on their way"));
    uint8_t *first = self->memory;
    first += lki_round_up((uintptr_t)first, LKI_STORE_ALIGN) - (uintptr_t)first;
    for (uint32_t b = 0; b < count; b++)
        self->buffers[b] = first + b * self->widest;
    return LK_OK;
}

/* Adds the rank, the name of the values and some advice to the message of a disk error. */
static lk_status explain(const lki_vector_file *self, lk_status status, const char *advice)
{
    lk_error error = *lk_error_last();
    if (status != LK_EIO)
        return status;
    return lk_fail(status, "rank %u: %s: %.300s; %s", self->parallel->rank, self->what,
                   error.message, advice);
}

static lk_status open_parts(lki_vector_file *self, bool apart)
{
    size_t spans = self->parallel->layout->span_count;
    LK_TRY(LKI_NEW(&self->chunk_of, spans, "chunks of a file"));
    LK_TRY(LKI_NEW(&self->at, spans, "chunks of a file"));
    (void)cut(self);
    LK_TRY(LKI_NEW(&self->chunks, self->chunk_count, "chunks of a file"));
    uint64_t bytes = cut(self);
    self->here     = self->chunk_count;
    LK_TRY(open_buffers(self, apart));
    return explain(self, lki_store_open(&self->store, self->parallel->offload.folder, bytes),
                   "make room there for every rank's part, or choose another directory");
}

lk_status lki_vector_file_open(lki_vector_file **out, lk_parallel *parallel, const char *what,
                               uint32_t columns, bool apart)
{
    lki_vector_file *self = NULL;
    *out                  = NULL;
    if (columns == 0 || parallel->owned.count == 0)
        return LK_OK;
    LK_TRY(LKI_NEW(&self, 1, what));
    self->parallel   = parallel;
    self->what       = what;
    self->columns    = columns;
    lk_status status = open_parts(self, apart);
    if (status == LK_OK)
        *out = self;
    else
        lki_vector_file_close(self);
    return status;
}

void lki_vector_file_close(lki_vector_file *self)
{
    if (self == NULL)
        return;
    lki_store_free(self->store); /* freed before the buffers, which may still be in use */
    lki_free(self->memory);
    lki_free(self->chunks);
    lki_free(self->chunk_of);
    lki_free(self->at);
    lki_free(self);
}

size_t lki_vector_file_memory(const lk_parallel *parallel, uint32_t columns, bool apart)
{
    const lki_layout *layout = parallel->layout;
    size_t            spans = layout->span_count / layout->owner_count, shard = 0;
    size_t            buffers = apart ? LKI_VECTOR_FILE_RING_APART + 1 : LKI_VECTOR_FILE_RING;
    for (uint32_t s = 0; s < layout->shards; s++)
        shard = lki_max(shard, layout->shard_elements[s]);
    size_t each = lki_min(chunk_spans(spans) * LKI_NORM_BLOCK * parallel->world.widest, shard);
    return buffers * each * columns * sizeof(float);
}

/* ---- Transfers of chunks ------------------------------------------------------------------- */

static uint32_t slot_of(const lki_vector_file *self, size_t k)
{
    return (uint32_t)(k % self->ring);
}

static lk_status wait_for(lki_vector_file *self, uint32_t slot)
{
    double    asked  = lki_seconds();
    lk_status status = lki_store_wait(self->store, slot);
    self->stalled += lki_seconds() - asked;
    return explain(self, status,
                   "continue from the last checkpoint, with another directory or all in memory");
}

/* Starts a read after the buffer's last transfer is complete. */
static lk_status begin_read(lki_vector_file *self, size_t k, uint32_t slot)
{
    const lki_chunk *c = &self->chunks[k];
    LK_TRY(wait_for(self, slot));
    if (c->written)
        lki_store_start(self->store, slot, false, self->buffers[slot], c->bytes, c->offset);
    else
        memset(self->buffers[slot], 0, c->bytes);
    return LK_OK;
}

static lk_status end_read(lki_vector_file *self, size_t k, uint32_t slot)
{
    const lk_parallel *parallel = self->parallel;
    const lki_chunk   *c        = &self->chunks[k];
    LK_TRY(wait_for(self, slot));
    if (!c->written || lki_xxh3(self->buffers[slot], c->bytes) == c->hash)
        return LK_OK;
    uint32_t    from = span_at(parallel, c->first)->param;
    uint32_t    to   = span_at(parallel, c->end - 1)->param;
    const char *last = from == to ? "" : parallel->layout->params[to].name;
    return lk_fail(LK_ECORRUPT,
                   "rank %u: %s in '%s', bytes %" PRIu64 " to %" PRIu64 " (of '%.60s%s%.60s'), is "
                   "not what was written: the disk is faulty, or something else wrote there; "
                   "continue from the last checkpoint",
                   parallel->rank, self->what, parallel->offload.folder, c->offset,
                   c->offset + c->bytes, parallel->layout->params[from].name,
                   from == to ? "" : "' to '", last);
}

static void begin_write(lki_vector_file *self, size_t k, uint32_t slot)
{
    lki_chunk *c = &self->chunks[k];
    c->hash      = lki_xxh3(self->buffers[slot], c->bytes);
    c->written   = true;
    lki_store_start(self->store, slot, true, self->buffers[slot], c->bytes, c->offset);
}

lk_status lki_vector_file_begin_read(lki_vector_file *self, size_t k)
{
    return begin_read(self, k, slot_of(self, k));
}

bool lki_vector_file_is_read(lki_vector_file *self, size_t k)
{
    return lki_store_test(self->store, slot_of(self, k));
}

lk_status lki_vector_file_end_read(lki_vector_file *self, size_t k)
{
    return end_read(self, k, slot_of(self, k));
}

void lki_vector_file_begin_write(lki_vector_file *self, size_t k)
{
    begin_write(self, k, slot_of(self, k));
}

static float *find_in(const lki_vector_file *self, uint32_t slot, size_t span, uint32_t column)
{
    const lki_layout *layout = self->parallel->layout;
    return (float *)(void *)self->buffers[slot] + self->at[span] +
           column * lki_layout_width(layout, &layout->spans[span]);
}

float *lki_vector_file_find(const lki_vector_file *self, size_t span, uint32_t column)
{
    return find_in(self, slot_of(self, self->chunk_of[span]), span, column);
}

/* ---- Single values ------------------------------------------------------------------------- */

lk_status lki_vector_file_put_back(lki_vector_file *self)
{
    if (self->changed)
        begin_write(self, self->here, self->own);
    self->changed = false;
    self->here    = self->chunk_count;
    return wait_for(self, self->own);
}

lk_status lki_vector_file_settle(lki_vector_file *self)
{
    LK_TRY(lki_vector_file_put_back(self));
    for (uint32_t slot = 0; slot < self->ring; slot++)
        LK_TRY(wait_for(self, slot));
    return LK_OK;
}

/* Finds a span's column in the buffer for single values, after reading its chunk if necessary. */
static lk_status reach(lki_vector_file *self, size_t span, uint32_t column, float **out)
{
    size_t k = self->chunk_of[span];
    if (self->here != k) {
        LK_TRY(lki_vector_file_put_back(self));
        for (uint32_t slot = 0; slot < self->ring && self->own == 0; slot++)
            LK_TRY(wait_for(self, slot)); /* an update may still be writing this chunk */
        LK_TRY(begin_read(self, k, self->own));
        LK_TRY(end_read(self, k, self->own));
        self->here = k;
    }
    *out = find_in(self, self->own, span, column);
    return LK_OK;
}

lk_status lki_vector_file_get(lki_vector_file *self, size_t span, uint32_t column, size_t from,
                              size_t count, float *out)
{
    float *values;
    LK_TRY(reach(self, span, column, &values));
    memcpy(out, values + from, count * sizeof *out);
    return LK_OK;
}

lk_status lki_vector_file_put(lki_vector_file *self, size_t span, uint32_t column,
                              const float *values)
{
    float *to;
    LK_TRY(reach(self, span, column, &to));
    memcpy(to, values, self->parallel->layout->spans[span].count * sizeof *to);
    self->changed = true;
    return LK_OK;
}

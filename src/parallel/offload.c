/* offload.c -- the optimizer's state in files; see offload.h.
 *
 * Chunk k lives in buffer k mod 4 while it is there.  On the way of an update through chunk k,
 * k + 1 and k + 2 are being read, and k - 1 is being written: buffer (k + 2) mod 4 is free when
 * k - 2 has been written, which was asked for two chunks ago.
 */
#include "parallel/offload.h"

#include <inttypes.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/store.h"

enum { SPANS_LEAST = 8, SPANS_MOST = 64, PARTS = 8, AHEAD = 2 };

typedef struct {
    uint64_t offset, hash;
    size_t   first, end; /* places in parallel->mine */
    size_t   bytes;      /* in whole pages */
    bool     written;    /* else zeros */
} chunk;

struct lki_offload {
    lki_store *store;
    uint32_t   states;
    chunk     *chunks;
    size_t     chunk_count, widest;
    uint32_t  *chunk_of; /* [span_count], of my spans */
    size_t    *at;       /* likewise: elements from the beginning of its chunk */
    void      *memory;
    uint8_t   *buffers[LKI_OFFLOAD_BUFFERS]; /* in it */
    size_t     here;     /* the chunk that get() and put() have in buffer 0; chunk_count: none */
    bool       changed;  /* and is to be written */
    double     stalled;
};

/* ---- What lies where ----------------------------------------------------------------------- */

static size_t span_floats(const lki_layout *layout, const lki_param_span *span)
{
    return lki_layout_width(layout, span);
}

/* Of a small part an eighth, so that something is on its way while something is computed on. */
static size_t chunk_spans(size_t mine)
{
    return lki_min(SPANS_MOST, lki_max(SPANS_LEAST, mine / PARTS));
}

/* Fills in chunks, which may be NULL: then only counts them. */
static size_t cut(const lk_parallel *parallel, lki_offload *o, chunk *chunks)
{
    const lki_layout *layout = parallel->layout;
    const size_t      spans  = chunk_spans(parallel->mine_count);
    size_t            count  = 0;
    uint64_t          offset = 0;
    for (size_t first = 0; first < parallel->mine_count; first += spans, count++) {
        size_t end    = lki_min(first + spans, parallel->mine_count);
        size_t floats = 0;
        for (size_t i = first; i < end; i++) {
            if (chunks != NULL) {
                o->chunk_of[parallel->mine[i]] = (uint32_t)count;
                o->at[parallel->mine[i]]       = floats;
            }
            floats += o->states * span_floats(layout, &layout->spans[parallel->mine[i]]);
        }
        size_t bytes = lki_round_up(floats * sizeof(float), LKI_STORE_ALIGN);
        if (chunks != NULL)
            chunks[count] =
                (chunk){ .offset = offset, .first = first, .end = end, .bytes = bytes };
        o->widest = lki_max(o->widest, bytes);
        offset += bytes;
    }
    o->chunk_count = count;
    return (size_t)offset;
}

/* In one piece, which huge pages may hold: then a transfer is few requests to the disk. */
static lk_status open_buffers(lki_offload *o)
{
    LK_TRY(lki_alloc(&o->memory, LKI_OFFLOAD_BUFFERS * o->widest + LKI_STORE_ALIGN,
                     "the optimizer's state on its way"));
    uint8_t *first = o->memory;
    first += lki_round_up((uintptr_t)first, LKI_STORE_ALIGN) - (uintptr_t)first;
    for (size_t b = 0; b < LKI_OFFLOAD_BUFFERS; b++)
        o->buffers[b] = first + b * o->widest;
    return LK_OK;
}

/* Whose state it is, and what to do about a disk that failed it. */
static lk_status explain(const lk_parallel *parallel, lk_status status, const char *advice)
{
    lk_error error = *lk_error_last();
    if (status != LK_EIO)
        return status;
    return lk_fail(status, "rank %u: the optimizer's state: %.300s; %s", parallel->rank,
                   error.message, advice);
}

lk_status lki_offload_open(lk_parallel *parallel)
{
    lki_offload *o      = NULL;
    uint32_t     states = lk_optimizer_state_count(&parallel->optimizer);
    size_t       spans  = parallel->layout->span_count;
    if (parallel->offload_dir == NULL || states == 0 || parallel->mine_count == 0)
        return LK_OK;
    LK_TRY(LKI_NEW(&parallel->offload, 1, "the optimizer's state in a file"));
    o         = parallel->offload;
    o->states = states;
    LK_TRY(LKI_NEW(&o->chunk_of, spans, "chunks of the optimizer's state"));
    LK_TRY(LKI_NEW(&o->at, spans, "chunks of the optimizer's state"));
    (void)cut(parallel, o, NULL);
    LK_TRY(LKI_NEW(&o->chunks, o->chunk_count, "chunks of the optimizer's state"));
    size_t bytes = cut(parallel, o, o->chunks);
    o->here      = o->chunk_count;
    LK_TRY(open_buffers(o));
    return explain(parallel, lki_store_open(&o->store, parallel->offload_dir, bytes),
                   "make room there for every rank's part, or choose another directory");
}

void lki_offload_close(lk_parallel *parallel)
{
    lki_offload *o = parallel->offload;
    if (o == NULL)
        return;
    lki_store_free(o->store); /* before the buffers that it may be writing */
    lki_free(o->memory);
    lki_free(o->chunks);
    lki_free(o->chunk_of);
    lki_free(o->at);
    lki_free(o);
    parallel->offload = NULL;
}

/* Of the host that has the most, as if its spans were dealt evenly to its ranks. */
static size_t kept_bytes(const lk_parallel *parallel)
{
    size_t most = 0;
    for (uint32_t s = 0; s < parallel->layout->shards; s++)
        most = lki_max(most, parallel->layout->kept[s]);
    return most * lk_optimizer_state_count(&parallel->optimizer) * sizeof(float);
}

size_t lki_offload_memory(const lk_parallel *parallel)
{
    size_t spans = parallel->layout->span_count / parallel->layout->owner_count;
    size_t chunk_bytes = chunk_spans(spans) * LKI_NORM_BLOCK * sizeof(float) *
                         lk_optimizer_state_count(&parallel->optimizer);
    size_t buffers = LKI_OFFLOAD_BUFFERS * chunk_bytes * parallel->world.widest;
    return lki_min(buffers, LKI_OFFLOAD_BUFFERS * kept_bytes(parallel));
}

size_t lki_offload_files(const lk_parallel *parallel)
{
    return kept_bytes(parallel);
}

/* ---- Chunks on their way ------------------------------------------------------------------- */

static uint32_t slot_of(size_t k)
{
    return (uint32_t)(k % LKI_OFFLOAD_BUFFERS);
}

static lk_status wait_for(const lk_parallel *parallel, uint32_t slot)
{
    lki_offload *o      = parallel->offload;
    double       asked  = lki_seconds();
    lk_status    status = lki_store_wait(o->store, slot);
    o->stalled += lki_seconds() - asked;
    return explain(parallel, status,
                   "go on from the last checkpoint, with another directory or the state in memory");
}

/* The buffer's last transfer is complete, or this waits for it. */
static lk_status begin_read(const lk_parallel *parallel, size_t k, uint32_t slot)
{
    lki_offload *o = parallel->offload;
    const chunk *c = &o->chunks[k];
    LK_TRY(wait_for(parallel, slot));
    if (c->written)
        lki_store_start(o->store, slot, false, o->buffers[slot], c->bytes, c->offset);
    else
        memset(o->buffers[slot], 0, c->bytes);
    return LK_OK;
}

static lk_status end_read(const lk_parallel *parallel, size_t k, uint32_t slot)
{
    lki_offload *o = parallel->offload;
    const chunk *c = &o->chunks[k];
    LK_TRY(wait_for(parallel, slot));
    if (!c->written || lki_xxh3(o->buffers[slot], c->bytes) == c->hash)
        return LK_OK;
    const lki_layout *layout = parallel->layout;
    const lki_param_span *from = &layout->spans[parallel->mine[c->first]],
                         *to   = &layout->spans[parallel->mine[c->end - 1]];
    return lk_fail(LK_ECORRUPT,
                   "rank %u: the optimizer's state in '%s', bytes %" PRIu64 " to %" PRIu64
                   " (of '%.60s%s%.60s'), is not what was written: the disk is faulty, or "
                   "something else wrote there; go on from the last checkpoint",
                   parallel->rank, parallel->offload_dir, c->offset, c->offset + c->bytes,
                   layout->params[from->param].name, from->param == to->param ? "" : "' to '",
                   from->param == to->param ? "" : layout->params[to->param].name);
}

static void begin_write(lki_offload *o, size_t k, uint32_t slot)
{
    chunk *c   = &o->chunks[k];
    c->hash    = lki_xxh3(o->buffers[slot], c->bytes);
    c->written = true;
    lki_store_start(o->store, slot, true, o->buffers[slot], c->bytes, c->offset);
}

lk_status lki_offload_walk(lk_parallel *parallel, lki_offload_visit visit, void *context)
{
    lki_offload *o = parallel->offload;
    LK_TRY(lki_offload_settle(parallel));
    for (size_t k = 0; k < lki_min(AHEAD, o->chunk_count); k++)
        LK_TRY(begin_read(parallel, k, slot_of(k)));
    for (size_t k = 0; k < o->chunk_count; k++) {
        if (k + AHEAD < o->chunk_count)
            LK_TRY(begin_read(parallel, k + AHEAD, slot_of(k + AHEAD)));
        LK_TRY(end_read(parallel, k, slot_of(k)));
        visit(context, o->chunks[k].first, o->chunks[k].end);
        begin_write(o, k, slot_of(k));
    }
    return LK_OK;
}

void lki_offload_states(const lk_parallel *parallel, size_t span, float **states)
{
    const lki_offload    *o  = parallel->offload;
    const lki_param_span *s  = &parallel->layout->spans[span];
    float                *at = (float *)(void *)o->buffers[slot_of(o->chunk_of[span])];
    for (uint32_t i = 0; i < o->states; i++)
        states[i] = at + o->at[span] + i * span_floats(parallel->layout, s);
}

/* ---- One value after the other ------------------------------------------------------------- */

lk_status lki_offload_settle(lk_parallel *parallel)
{
    lki_offload *o = parallel->offload;
    if (o == NULL)
        return LK_OK;
    if (o->changed)
        begin_write(o, o->here, 0);
    o->changed = false;
    o->here    = o->chunk_count;
    return wait_for(parallel, 0);
}

/* Where a span's state is, its chunk fetched into buffer 0. */
static lk_status reach(lk_parallel *parallel, size_t span, uint32_t state, float **out)
{
    lki_offload          *o = parallel->offload;
    const lki_param_span *s = &parallel->layout->spans[span];
    if (o->here != o->chunk_of[span]) {
        LK_TRY(lki_offload_settle(parallel));
        for (uint32_t slot = 1; slot < LKI_OFFLOAD_BUFFERS; slot++)
            LK_TRY(wait_for(parallel, slot)); /* what an update has left may be this chunk's */
        LK_TRY(begin_read(parallel, o->chunk_of[span], 0));
        LK_TRY(end_read(parallel, o->chunk_of[span], 0));
        o->here = o->chunk_of[span];
    }
    *out = (float *)(void *)o->buffers[0] + o->at[span] +
           state * span_floats(parallel->layout, s);
    return LK_OK;
}

lk_status lki_offload_get(lk_parallel *parallel, size_t span, uint32_t state, size_t from,
                          size_t count, float *out)
{
    float *values;
    LK_TRY(reach(parallel, span, state, &values));
    memcpy(out, values + from, count * sizeof *out);
    return LK_OK;
}

lk_status lki_offload_put(lk_parallel *parallel, size_t span, uint32_t state, const float *values)
{
    float *to;
    LK_TRY(reach(parallel, span, state, &to));
    memcpy(to, values, parallel->layout->spans[span].count * sizeof *to);
    parallel->offload->changed = true;
    return LK_OK;
}

double lki_offload_stalled(lk_parallel *parallel)
{
    double stalled = 0;
    if (parallel->offload != NULL) {
        stalled                    = parallel->offload->stalled;
        parallel->offload->stalled = 0;
    }
    return stalled;
}

const char *lk_parallel_offload_how(const lk_parallel *parallel)
{
    return parallel->offload == NULL ? "" : lki_store_how(parallel->offload->store);
}

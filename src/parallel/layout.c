/* layout.c -- computes the two spaces, the spans, the buckets and their owners; see layout.h.
 *
 * The layout depends only on the model, the options and the owners.  The number of owners affects
 * only the assignment of elements to owners.  The assignment cannot change results, because the
 * reduction and the update are elementwise.
 */
#include "parallel/layout.h"

#include <string.h>

#include "base/memory.h"
#include "device/quantise.h"
#include "tensor/ops.h"

enum { MIB = 1 << 20, BUCKET_MIB = 25, LINE = 64, ALIGN = 16 };

_Static_assert(LKI_NORM_BLOCK % LKI_QUANTISED == 0, "no span's border cuts a block of elements");

uint32_t lki_layout_uses(const lki_layout *layout, uint32_t param)
{
    uint32_t uses = layout->params[param].uses;
    return uses == 0 ? 1 : uses;
}

size_t lki_layout_grad_at(const lki_layout *layout, const lki_param_span *span, uint32_t use)
{
    uint32_t term = layout->term_of[layout->first_use[span->param] + use];
    return layout->term_at[term] + span->inside;
}

static lk_status count_elements(size_t *out, const lk_param *param, uint32_t index)
{
    bool   fits  = true;
    size_t bytes = sizeof(float);
    if (memchr(param->name, '\0', sizeof param->name) == NULL)
        return lk_fail(LK_EINVAL, "the name of parameter %u has no end within %d bytes", index,
                       LK_NAME_MAX);
    if (param->shape.rank > LK_RANK_MAX)
        return lk_fail(LK_EINVAL, "parameter %u '%s' has %u dimensions, at most %d", index,
                       param->name, param->shape.rank, LK_RANK_MAX);
    for (uint32_t i = 0; i < param->shape.rank && bytes > 0; i++)
        fits = !__builtin_mul_overflow(bytes, param->shape.dims[i], &bytes) && fits;
    if (bytes == 0 && fits)
        return lk_fail(LK_EINVAL, "parameter %u '%s' has no elements", index, param->name);
    if (!fits || bytes > (size_t)INT64_MAX)
        return lk_fail(LK_EINVAL, "parameter %u '%s' has more elements than memory can hold", index,
                       param->name);
    *out = bytes / sizeof(float);
    return LK_OK;
}

static lk_status copy_params(lki_layout *layout, const lk_param *params, uint32_t count)
{
    if (count == 0)
        return lk_fail(LK_EINVAL, "the model has no parameters");
    LK_TRY(LKI_NEW(&layout->params, count, "parameters"));
    LK_TRY(LKI_NEW(&layout->sizes, count, "parameters"));
    LK_TRY(LKI_NEW(&layout->param_at, count, "parameters"));
    LK_TRY(LKI_NEW(&layout->read_at, count, "parameters"));
    LK_TRY(LKI_NEW(&layout->first_use, count + 1, "parameters"));
    LK_TRY(LKI_NEW(&layout->first_span, count + 1, "parameters"));
    memcpy(layout->params, params, count * sizeof *params);
    layout->param_count = count;
    for (uint32_t p = 0; p < count; p++) {
        LK_TRY(count_elements(&layout->sizes[p], &params[p], p));
        layout->first_use[p + 1] = layout->first_use[p] + lki_layout_uses(layout, p);
    }
    return LK_OK;
}

/* Copies the given terms.  The default is from the last parameter to the first, and from the last
 * use of each to the first. */
static lk_status copy_terms(lki_layout *layout, const lk_parallel_options *options)
{
    uint32_t total = layout->first_use[layout->param_count], t = 0;

    LK_TRY(LKI_NEW(&layout->terms, total, "gradient terms"));
    LK_TRY(LKI_NEW(&layout->term_at, total, "gradient terms"));
    LK_TRY(LKI_NEW(&layout->term_of, total, "gradient terms"));
    LK_TRY(LKI_NEW(&layout->named, total, "gradient terms"));
    LK_TRY(LKI_NEW(&layout->first_piece, (size_t)total + 1, "gradient terms"));
    LK_TRY(LKI_NEW(&layout->first_bucket, total, "gradient terms"));
    LK_TRY(LKI_NEW(&layout->last_bucket, total, "gradient terms"));
    layout->term_count = total;
    if (options->terms == NULL)
        for (uint32_t p = layout->param_count; p-- > 0;)
            for (uint32_t u = lki_layout_uses(layout, p); u-- > 0;)
                layout->terms[t++] = (lk_parallel_term){ .param = p, .use = u };
    else if (options->term_count == total)
        memcpy(layout->terms, options->terms, total * sizeof *layout->terms);
    else
        return lk_fail(LK_EINVAL, "%u gradient terms given, but the parameters have %u uses",
                       options->term_count, total);

    memset(layout->term_of, 0xff, total * sizeof *layout->term_of);
    for (t = 0; t < total; t++) {
        lk_parallel_term term = layout->terms[t];
        if (term.param >= layout->param_count || term.use >= lki_layout_uses(layout, term.param))
            return lk_fail(LK_EINVAL, "gradient term %u: there is no use %u of parameter %u", t,
                           term.use, term.param);
        uint32_t *of = &layout->term_of[layout->first_use[term.param] + term.use];
        if (*of != UINT32_MAX)
            return lk_fail(LK_EINVAL, "gradient terms %u and %u are both use %u of '%s'", *of, t,
                           term.use, layout->params[term.param].name);
        *of = t;
        layout->named[t] = t;
    }
    return LK_OK;
}

size_t lki_layout_piece(const lki_layout *layout, const lki_param_span *span, uint32_t use)
{
    uint32_t term = layout->term_of[layout->first_use[span->param] + use];
    return layout->first_piece[term] + span->inside / LKI_NORM_BLOCK;
}

size_t lki_layout_pieces(const lki_layout *layout)
{
    return layout->first_piece[layout->term_count];
}

static void place(lki_layout *layout, const size_t *param_at)
{
    for (uint32_t t = 0; t < layout->term_count; t++) {
        uint32_t p         = layout->terms[t].param;
        size_t   padded    = lki_round_up(layout->sizes[p], layout->align);
        layout->term_at[t] = layout->grad_elements;
        layout->grad_elements += padded;
        if (layout->terms[t].use == 0) {
            layout->param_at[p] = param_at != NULL ? param_at[p] : layout->elements;
            layout->elements += padded;
        }
    }
}

/* Counts the spans of each parameter.  Also counts, over the terms in order, the spans before each
 * term. */
static void count_spans(lki_layout *layout)
{
    for (uint32_t p = 0; p < layout->param_count; p++)
        layout->first_span[p + 1] = layout->first_span[p] +
                                    (layout->sizes[p] + LKI_NORM_BLOCK - 1) / LKI_NORM_BLOCK;
    layout->span_count = layout->first_span[layout->param_count];
    for (uint32_t t = 0; t < layout->term_count; t++) {
        uint32_t p                 = layout->terms[t].param;
        layout->first_piece[t + 1] = layout->first_piece[t] + layout->first_span[p + 1] -
                                     layout->first_span[p];
    }
}

/* ---- Parameters as they are read ---------------------------------------------------------- */

lk_dtype lki_layout_read_dtype(const lki_layout *layout, uint32_t param)
{
    return layout->bf16 && layout->params[param].bf16 ? LK_BF16 : LK_F32;
}

static size_t read_bytes(const lki_layout *layout, uint32_t param, size_t width)
{
    return lki_round_up(width * lk_dtype_bytes(lki_layout_read_dtype(layout, param)), LINE);
}

size_t lki_layout_read_bytes(const lki_layout *layout, const lki_param_span *span)
{
    return read_bytes(layout, span->param, lki_layout_width(layout, span));
}

/* All spans but the last one of a tensor are whole cache lines. */
size_t lki_layout_run_bytes(const lki_layout *layout, const lki_param_run *run)
{
    return read_bytes(layout, run->param, lki_layout_run_width(layout, run));
}

size_t lki_layout_param_bytes(const lki_layout *layout, uint32_t param)
{
    return read_bytes(layout, param, lki_round_up(layout->sizes[param], layout->align));
}

/* Places FP32 parameters at their offsets in the parameter space, and bf16 parameters without
 * gaps. */
static void place_reads(lki_layout *layout)
{
    for (uint32_t t = 0; t < layout->term_count; t++) {
        uint32_t p = layout->terms[t].param;
        if (layout->terms[t].use != 0)
            continue;
        layout->read_at[p] = layout->bf16 ? layout->read_bytes
                                          : layout->param_at[p] * sizeof(float);
        layout->read_bytes += lki_layout_param_bytes(layout, p);
    }
}

/* ---- Buckets ----------------------------------------------------------------------------- */

static size_t width_at(const lki_layout *layout, uint32_t param, size_t inside)
{
    size_t left = layout->sizes[param] - inside;
    return left <= LKI_NORM_BLOCK ? lki_round_up(left, layout->align) : LKI_NORM_BLOCK;
}

size_t lki_layout_width(const lki_layout *layout, const lki_param_span *span)
{
    return width_at(layout, span->param, span->inside);
}

size_t lki_layout_run_width(const lki_layout *layout, const lki_param_run *run)
{
    bool last = run->inside + run->count == layout->sizes[run->param];
    return last ? lki_round_up(run->count, layout->align) : run->count;
}

/* The state of the walk that forms buckets. */
typedef struct {
    size_t limits[2];
    size_t filled; /* bytes in the open bucket */
    size_t room;   /* allocated buckets */
    bool   counted;
} bucket_walk;

/* Returns true if the span of a term at `inside` opens a new bucket.  A bucket that has reached its
 * limit accepts nothing more except, with whole_blocks, the rest of a block. */
static bool opens_bucket(const bucket_walk *walk, const lki_layout *layout, uint32_t term,
                         size_t inside)
{
    bool ends = !layout->whole_blocks || (!layout->terms[term].same_block && inside == 0);
    return layout->bucket_count == 0 ||
           (ends && walk->filled >= walk->limits[layout->bucket_count > 1]);
}

static lk_status open_bucket(lki_layout *layout, bucket_walk *walk, size_t first)
{
    LK_TRY(lki_reserve((void **)&layout->buckets, &walk->room, layout->bucket_count,
                       sizeof *layout->buckets, "buckets"));
    layout->buckets[layout->bucket_count++] = (lki_bucket){ .first = first, .alike = 1 };
    walk->filled                            = 0;
    return LK_OK;
}

/* Returns how many elements, in whole spans, the open bucket accepts until it reaches its limit. */
static size_t room_in_bucket(const lki_layout *layout, const bucket_walk *walk)
{
    const size_t span  = LKI_NORM_BLOCK * sizeof(float);
    const size_t limit = walk->limits[layout->bucket_count > 1];
    const size_t left  = limit > walk->filled ? limit - walk->filled : 0;
    return lki_max(1, (left + span - 1) / span) * LKI_NORM_BLOCK;
}

/* Adds `count` elements of a term, from `inside` on, to the open bucket.  Returns the number of
 * elements of that bucket and of all equal buckets that follow it. */
static size_t fill_bucket(lki_layout *layout, bucket_walk *walk, uint32_t term, size_t inside,
                          size_t count)
{
    uint32_t    b      = layout->bucket_count - 1;
    lki_bucket *bucket = &layout->buckets[b];
    lki_param_run all    = { .param = layout->terms[term].param, .inside = inside, .count = count };
    size_t      width  = lki_layout_run_width(layout, &all);
    size_t      left   = layout->sizes[all.param] - inside;

    if (walk->counted && !layout->whole_blocks && walk->filled == 0 && b > 0 && left > count)
        /* the rest of the term fills equal buckets, which become one entry */
        bucket->alike = left / count;
    bucket->terms += inside == 0 || layout->last_bucket[term] != b;
    bucket->count += width;
    bucket->dealt += layout->terms[term].use == 0 ? width : 0;
    walk->filled += width * sizeof(float);
    if (inside == 0)
        layout->first_bucket[term] = b;
    layout->last_bucket[term] = b;
    return bucket->alike * count;
}

void lki_bucket_limits(const lk_parallel_options *options, size_t limits[2])
{
    size_t first = options->first_bucket_bytes ? options->first_bucket_bytes : (size_t)MIB;
    limits[1]    = options->bucket_bytes ? options->bucket_bytes : (size_t)BUCKET_MIB * MIB;
    limits[0]    = lki_min(first, limits[1]);
}

static lk_status make_buckets(lki_layout *layout, const lk_parallel_options *options, bool counted)
{
    bucket_walk walk = { .counted = counted };

    lki_bucket_limits(options, walk.limits);
    for (uint32_t t = 0; t < layout->term_count; t++) {
        size_t size = layout->sizes[layout->terms[t].param], inside = 0;
        while (inside < size) {
            if (opens_bucket(&walk, layout, t, inside))
                LK_TRY(open_bucket(layout, &walk, layout->term_at[t] + inside));
            size_t room = layout->whole_blocks ? size : room_in_bucket(layout, &walk);
            inside += fill_bucket(layout, &walk, t, inside, lki_min(room, size - inside));
        }
    }
    return LK_OK;
}

/* ---- Owners ------------------------------------------------------------------------------ */

static lk_status copy_owners(lki_layout *layout, const lki_deal *deal)
{
    LK_TRY(LKI_NEW(&layout->owners, deal->count, "owners"));
    LK_TRY(LKI_NEW(&layout->owned, deal->count, "owners"));
    LK_TRY(LKI_NEW(&layout->shard_elements, deal->shards, "shards"));
    memcpy(layout->owners, deal->owners, deal->count * sizeof *deal->owners);
    layout->owner_count = deal->count;
    layout->shards      = deal->shards;
    return LK_OK;
}

static size_t end_of(const lki_bucket *bucket)
{
    return bucket->first + bucket->alike * bucket->count;
}

/* Returns the bucket that contains an element of the gradient space, searching from bucket `b`
 * on. */
static uint32_t bucket_of(const lki_layout *layout, uint32_t b, size_t at)
{
    while (at >= end_of(&layout->buckets[b]))
        b++;
    return b;
}

/* Returns the owner of a span of `width` elements that begins after `done` elements of the bucket.
 * Each owner has an equal part of the bucket: the spans whose middle is in that part. */
static uint32_t owner_of(const lki_layout *layout, const lki_bucket *bucket, size_t done,
                         size_t width)
{
    return (uint32_t)((done + width / 2) * layout->owner_count / bucket->dealt);
}

/* Counts the consecutive whole spans that belong to `owner`.  The first span begins after `done`
 * elements of the bucket. */
static size_t whole_spans(const lki_layout *layout, const lki_bucket *bucket, size_t done,
                          uint32_t owner)
{
    const size_t owners = layout->owner_count;
    size_t       end    = ((owner + 1) * bucket->dealt + owners - 1) / owners;
    return (end - done - LKI_NORM_BLOCK / 2 + LKI_NORM_BLOCK - 1) / LKI_NORM_BLOCK;
}

/* Computes the owner and the length of the run that begins at `s`.  From there on, the bucket has
 * `left` elements of the term. */
static void measure(const lki_layout *layout, const lki_bucket *bucket, size_t left,
                    lki_param_run *s)
{
    size_t width = width_at(layout, s->param, s->inside);
    s->owner     = owner_of(layout, bucket, s->done, width);
    s->count     = left;
    if (left >= LKI_NORM_BLOCK) {
        size_t spans = lki_min(whole_spans(layout, bucket, s->done, s->owner),
                               left / LKI_NORM_BLOCK);
        s->count     = spans * LKI_NORM_BLOCK;
    }
}

/* Visits the runs of a term in a bucket, from s->inside on, and advances s->inside past them. */
static void walk_bucket(const lki_layout *layout, uint32_t term, const lki_bucket *bucket,
                        lki_param_run *s, lki_run_visit visit, void *context)
{
    size_t at   = layout->term_at[term] + s->inside;
    size_t end  = s->inside + bucket->count - (at - bucket->first);
    size_t stop = lki_min(end, layout->sizes[s->param]);

    s->times = bucket->alike;
    while (s->inside < stop) {
        measure(layout, bucket, stop - s->inside, s);
        visit(context, s);
        s->done += lki_layout_run_width(layout, s);
        s->inside += s->count;
    }
    s->inside += (bucket->alike - 1) * bucket->count;
}

void lki_layout_walk(const lki_layout *layout, lki_run_visit visit, void *context)
{
    uint32_t b = 0, last = UINT32_MAX;
    size_t   done = 0;

    for (uint32_t t = 0; t < layout->term_count; t++) {
        lki_param_run s = { .param = layout->terms[t].param };
        while (layout->terms[t].use == 0 && s.inside < layout->sizes[s.param]) {
            b      = bucket_of(layout, b, layout->term_at[t] + s.inside);
            s.done = b == last ? done : 0;
            last   = b;
            walk_bucket(layout, t, &layout->buckets[b], &s, visit, context);
            done = s.done;
        }
    }
}

static void count_run(void *context, const lki_param_run *s)
{
    lki_layout *layout = context;
    size_t      width  = s->times * lki_layout_run_width(layout, s);

    layout->owned[s->owner] += width * lki_layout_uses(layout, s->param);
    layout->shard_elements[layout->owners[s->owner].shard] += width;
}

/* ---- Spans and slices -------------------------------------------------------------------- */

static void put_spans(void *context, const lki_param_run *s)
{
    lki_layout *layout = context;
    size_t      wide   = lk_dtype_bytes(lki_layout_read_dtype(layout, s->param));

    for (size_t inside = s->inside; inside < s->inside + s->count; inside += LKI_NORM_BLOCK)
        layout->spans[layout->first_span[s->param] + inside / LKI_NORM_BLOCK] = (lki_param_span){
            .param   = s->param,
            .owner   = s->owner,
            .count   = (uint32_t)lki_min(LKI_NORM_BLOCK, layout->sizes[s->param] - inside),
            .at      = layout->param_at[s->param] + inside,
            .inside  = inside,
            .read_at = layout->read_at[s->param] + inside * wide,
        };
}

/* Numbers spans in order of owner, then of position: the order in which they are gathered.  With
 * one shard nothing is gathered, so spans have the numbers of their positions, which do not change
 * with the owners. */
static lk_status take_turns(lki_layout *layout)
{
    size_t *next = NULL, *shard_at = NULL, before = 0;
    LK_TRY(LKI_NEW(&next, (size_t)layout->owner_count + layout->shards + 1, "turns of owners"));
    shard_at = next + layout->owner_count + 1;
    for (size_t i = 0; i < layout->span_count; i++)
        next[layout->spans[i].owner]++;
    for (uint32_t o = 0; o <= layout->owner_count; o++) {
        size_t count = next[o];
        next[o]      = before;
        before += count;
    }
    for (size_t i = 0; i < layout->span_count; i++) {
        lki_param_span *span  = &layout->spans[i];
        uint32_t        shard = layout->owners[span->owner].shard;
        span->turn            = layout->shards == 1 ? i : next[span->owner]++;
        span->shard_at        = shard_at[shard];
        shard_at[shard] += lki_layout_width(layout, span);
    }
    lki_free(next);
    return LK_OK;
}

/* Joins neighbouring spans of one owner into one slice. */
static lk_status make_slices(lki_layout *layout)
{
    size_t   capacity = 0;
    uint32_t b = 0, open = UINT32_MAX, last = UINT32_MAX;

    for (uint32_t t = 0; t < layout->term_count; t++) {
        uint32_t p = layout->terms[t].param;
        for (size_t i = layout->first_span[p]; i < layout->first_span[p + 1]; i++) {
            const lki_param_span *span  = &layout->spans[i];
            size_t                at    = layout->term_at[t] + span->inside;
            size_t                width = lki_layout_width(layout, span);
            lki_owner             owner = layout->owners[span->owner];
            b                           = bucket_of(layout, b, at);
            lki_bucket *bucket          = &layout->buckets[b];
            if (b != open) {
                capacity = 0;
                last     = UINT32_MAX;
            }
            open = b;
            if (span->owner == last) {
                bucket->slices[bucket->slice_count - 1].count += width;
                continue;
            }
            last = span->owner;
            LK_TRY(lki_reserve((void **)&bucket->slices, &capacity, bucket->slice_count,
                               sizeof *bucket->slices, "bucket slices"));
            bucket->slices[bucket->slice_count++] = (lk_slice){ .first = at - bucket->first,
                                                                .count = width,
                                                                .owner = owner.local,
                                                                .shard = owner.shard };
        }
    }
    return LK_OK;
}

static lk_status make_tables(lki_layout *layout)
{
    LK_TRY(LKI_NEW(&layout->spans, layout->span_count, "parameter spans"));
    lki_layout_walk(layout, put_spans, layout);
    LK_TRY(take_turns(layout));
    return make_slices(layout);
}

/* ---- Opening ----------------------------------------------------------------------------- */

lk_status lki_layout_open(lki_layout **out, const lk_param *params, uint32_t param_count,
                          const lk_parallel_options *options, const lki_deal *deal)
{
    *out               = NULL;
    lki_layout *layout = NULL;
    LK_TRY(LKI_NEW(&layout, 1, "parameter layout"));
    layout->whole_blocks = deal->whole_blocks;
    layout->bf16         = deal->bf16;
    layout->align        = deal->align > 0 ? deal->align : ALIGN;
    lk_status status = copy_params(layout, params, param_count);
    if (status == LK_OK)
        status = copy_terms(layout, options);
    if (status == LK_OK) {
        place(layout, deal->param_at);
        count_spans(layout);
        place_reads(layout);
        status = make_buckets(layout, options, deal->counted);
    }
    if (status == LK_OK)
        status = copy_owners(layout, deal);
    if (status == LK_OK) {
        lki_layout_walk(layout, count_run, layout);
        status = deal->counted ? LK_OK : make_tables(layout);
    }
    if (status != LK_OK) {
        lki_layout_free(layout);
        return status;
    }
    *out = layout;
    return LK_OK;
}

void lki_layout_free(lki_layout *layout)
{
    if (layout == NULL)
        return;
    for (uint32_t b = 0; b < layout->bucket_count; b++)
        lki_free(layout->buckets[b].slices);
    void *parts[] = { layout->params,      layout->sizes,     layout->param_at,
                      layout->terms,       layout->term_at,   layout->term_of,
                      layout->first_piece, layout->first_use, layout->first_bucket,
                      layout->last_bucket, layout->spans,     layout->first_span,
                      layout->buckets,     layout->owners,    layout->shard_elements,
                      layout->owned,       layout->read_at,   layout->named };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        lki_free(parts[i]);
    lki_free(layout);
}

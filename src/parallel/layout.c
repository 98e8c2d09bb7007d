/* layout.c -- the two spaces, the spans, the buckets and their owners; see layout.h.
 *
 * Everything here is arithmetic on the model and the options; only what is dealt looks at the
 * number of owners, and that cannot change a bit: the reduction and the update are elementwise.
 */
#include "parallel/layout.h"

#include <string.h>

#include "base/memory.h"
#include "device/quantise.h"
#include "tensor/ops.h"

enum { MIB = 1 << 20, BUCKET_MIB = 25, LINE = 64 };

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

static lk_status copy_params(lki_layout *layout, const lk_param *params, uint32_t count)
{
    if (count == 0)
        return lk_fail(LK_EINVAL, "the model has no parameters");
    LK_TRY(LKI_NEW(&layout->params, count, "parameters"));
    LK_TRY(LKI_NEW(&layout->sizes, count, "parameters"));
    LK_TRY(LKI_NEW(&layout->param_at, count, "parameters"));
    LK_TRY(LKI_NEW(&layout->first_use, count + 1, "parameters"));
    LK_TRY(LKI_NEW(&layout->first_span, count + 1, "parameters"));
    memcpy(layout->params, params, count * sizeof *params);
    layout->param_count = count;
    for (uint32_t p = 0; p < count; p++) {
        layout->sizes[p] = lk_shape_count(params[p].shape);
        if (layout->sizes[p] == 0)
            return lk_fail(LK_EINVAL, "parameter %u '%s' has no elements", p, params[p].name);
        layout->first_use[p + 1] = layout->first_use[p] + lki_layout_uses(layout, p);
    }
    return LK_OK;
}

/* Terms as given, or parameters from last to first, the last use of each first. */
static lk_status copy_terms(lki_layout *layout, const lk_parallel_options *options)
{
    uint32_t total = layout->first_use[layout->param_count], t = 0;

    LK_TRY(LKI_NEW(&layout->terms, total, "gradient terms"));
    LK_TRY(LKI_NEW(&layout->term_at, total, "gradient terms"));
    LK_TRY(LKI_NEW(&layout->term_of, total, "gradient terms"));
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

static lk_status make_spans(lki_layout *layout)
{
    for (uint32_t p = 0; p < layout->param_count; p++)
        layout->first_span[p + 1] = layout->first_span[p] +
                                    (layout->sizes[p] + LKI_NORM_BLOCK - 1) / LKI_NORM_BLOCK;
    layout->span_count = layout->first_span[layout->param_count];
    LK_TRY(LKI_NEW(&layout->spans, layout->span_count, "parameter spans"));
    for (uint32_t p = 0; p < layout->param_count; p++)
        for (size_t i = layout->first_span[p]; i < layout->first_span[p + 1]; i++) {
            size_t inside    = (i - layout->first_span[p]) * LKI_NORM_BLOCK;
            size_t count     = lki_min(LKI_NORM_BLOCK, layout->sizes[p] - inside);
            layout->spans[i] = (lki_param_span){ .param  = p,
                                                 .count  = (uint32_t)count,
                                                 .at     = layout->param_at[p] + inside,
                                                 .inside = inside };
        }
    for (uint32_t t = 0; t < layout->term_count; t++) {
        uint32_t p                 = layout->terms[t].param;
        layout->first_piece[t + 1] = layout->first_piece[t] + layout->first_span[p + 1] -
                                     layout->first_span[p];
    }
    return LK_OK;
}

/* Walks the gradient space span by span. */
typedef struct {
    const lki_layout *layout;
    size_t            limits[2];
    uint32_t          bucket;
    size_t            filled; /* bytes in the open bucket */
} bucket_walk;

/* The bucket that takes span `i` of a term, `count` elements; one that has reached its limit takes
 * no more, but perhaps the rest of a block. */
static uint32_t bucket_take(bucket_walk *walk, uint32_t term, size_t i, size_t count)
{
    const lki_layout       *layout = walk->layout;
    const lk_parallel_term *t      = &layout->terms[term];
    bool ends = !layout->whole_blocks || (!t->same_block && i == layout->first_span[t->param]);

    if (ends && walk->filled >= walk->limits[walk->bucket > 0]) {
        walk->bucket++;
        walk->filled = 0;
    }
    walk->filled += count * sizeof(float);
    return walk->bucket;
}

static bucket_walk walk_begin(const lki_layout *layout, const lk_parallel_options *options)
{
    size_t cap   = options->bucket_bytes ? options->bucket_bytes : (size_t)BUCKET_MIB * MIB;
    size_t first = options->first_bucket_bytes ? options->first_bucket_bytes : (size_t)MIB;
    return (bucket_walk){ .layout = layout, .limits = { lki_min(first, cap), cap } };
}

size_t lki_layout_width(const lki_layout *layout, const lki_param_span *span)
{
    bool last = span->inside + span->count == layout->sizes[span->param];
    return last ? lki_round_up(span->count, layout->align) : span->count;
}

lk_dtype lki_layout_read_dtype(const lki_layout *layout, uint32_t param)
{
    return layout->bf16 && layout->params[param].bf16 ? LK_BF16 : LK_F32;
}

size_t lki_layout_read_bytes(const lki_layout *layout, const lki_param_span *span)
{
    size_t width = lki_layout_width(layout, span);
    return lki_round_up(width * lk_dtype_bytes(lki_layout_read_dtype(layout, span->param)), LINE);
}

/* In FP32 where they lie; else one behind the other. */
static void place_reads(lki_layout *layout)
{
    for (size_t i = 0; i < layout->span_count; i++)
        layout->spans[i].read_at = layout->spans[i].at * sizeof(float);
    layout->read_bytes = layout->bf16 ? 0 : layout->elements * sizeof(float);
    for (uint32_t t = 0; layout->bf16 && t < layout->term_count; t++) {
        uint32_t p = layout->terms[t].param;
        for (size_t i = layout->first_span[p];
             layout->terms[t].use == 0 && i < layout->first_span[p + 1]; i++) {
            layout->spans[i].read_at = layout->read_bytes;
            layout->read_bytes += lki_layout_read_bytes(layout, &layout->spans[i]);
        }
    }
}

static lk_status make_buckets(lki_layout *layout, const lk_parallel_options *options)
{
    bucket_walk walk     = walk_begin(layout, options);
    size_t      capacity = 0;

    for (uint32_t t = 0; t < layout->term_count; t++) {
        uint32_t p = layout->terms[t].param;
        for (size_t i = layout->first_span[p]; i < layout->first_span[p + 1]; i++) {
            size_t   width = lki_layout_width(layout, &layout->spans[i]);
            uint32_t b     = bucket_take(&walk, t, i, width);
            if (b == layout->bucket_count) {
                LK_TRY(lki_reserve((void **)&layout->buckets, &capacity, b, sizeof *layout->buckets,
                                   "buckets"));
                size_t at          = layout->term_at[t] + layout->spans[i].inside;
                layout->buckets[b] = (lki_bucket){ .first = at };
                layout->bucket_count++;
            }
            layout->buckets[b].count += width;
            if (i == layout->first_span[p] || layout->last_bucket[t] != b)
                layout->buckets[b].terms++;
            if (i == layout->first_span[p])
                layout->first_bucket[t] = b;
            layout->last_bucket[t] = b;
        }
    }
    return LK_OK;
}

/* Spans of use 0: equal contiguous parts of their bucket's elements. */
static lk_status deal_spans(lki_layout *layout, const lk_parallel_options *options)
{
    size_t   *totals = NULL, *done = NULL;
    lk_status status = LKI_NEW(&totals, layout->bucket_count, "bucket owners");
    if (status == LK_OK)
        status = LKI_NEW(&done, layout->bucket_count, "bucket owners");
    for (int pass = 0; status == LK_OK && pass < 2; pass++) {
        bucket_walk walk = walk_begin(layout, options);
        for (uint32_t t = 0; t < layout->term_count; t++) {
            uint32_t p = layout->terms[t].param;
            for (size_t i = layout->first_span[p]; i < layout->first_span[p + 1]; i++) {
                lki_param_span *span  = &layout->spans[i];
                size_t          width = lki_layout_width(layout, span);
                uint32_t        b     = bucket_take(&walk, t, i, width);
                if (layout->terms[t].use != 0)
                    continue;
                if (pass == 0)
                    totals[b] += width;
                else {
                    span->owner =
                        (uint32_t)((done[b] + width / 2) * layout->owner_count / totals[b]);
                    done[b] += width;
                }
            }
        }
    }
    lki_free(totals);
    lki_free(done);
    return status;
}

static lk_status copy_owners(lki_layout *layout, const lki_deal *deal)
{
    LK_TRY(LKI_NEW(&layout->owners, deal->count, "owners"));
    LK_TRY(LKI_NEW(&layout->kept, deal->shards, "shards"));
    memcpy(layout->owners, deal->owners, deal->count * sizeof *deal->owners);
    layout->owner_count  = deal->count;
    layout->shards       = deal->shards;
    return LK_OK;
}

/* In order of owner, and of spans where that is the same; with one shard nobody gathers anything by
 * that, and spans' turns are theirs whoever owns them. */
static lk_status take_turns(lki_layout *layout)
{
    size_t *next = NULL, before = 0;
    LK_TRY(LKI_NEW(&next, layout->owner_count + 1, "turns of owners"));
    for (size_t i = 0; i < layout->span_count; i++)
        next[layout->spans[i].owner]++;
    for (uint32_t o = 0; o <= layout->owner_count; o++) {
        size_t count = next[o];
        next[o]      = before;
        before += count;
    }
    for (size_t i = 0; i < layout->span_count; i++) {
        lki_param_span *span = &layout->spans[i];
        size_t         *kept = &layout->kept[layout->owners[span->owner].shard];
        span->turn           = layout->shards == 1 ? i : next[span->owner]++;
        span->kept           = *kept;
        *kept += lki_layout_width(layout, span);
    }
    lki_free(next);
    return LK_OK;
}

/* Neighbouring spans of one owner are one slice. */
static lk_status make_slices(lki_layout *layout, const lk_parallel_options *options)
{
    bucket_walk walk     = walk_begin(layout, options);
    size_t      capacity = 0;
    uint32_t    open     = UINT32_MAX, last = UINT32_MAX;

    for (uint32_t t = 0; t < layout->term_count; t++) {
        uint32_t p = layout->terms[t].param;
        for (size_t i = layout->first_span[p]; i < layout->first_span[p + 1]; i++) {
            const lki_param_span *span   = &layout->spans[i];
            size_t                width  = lki_layout_width(layout, span);
            uint32_t              b      = bucket_take(&walk, t, i, width);
            lki_bucket           *bucket = &layout->buckets[b];
            lki_owner             owner  = layout->owners[span->owner];
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
            size_t at = layout->term_at[t] + span->inside - bucket->first;
            bucket->slices[bucket->slice_count++] = (lk_slice){ .first = at,
                                                                .count = width,
                                                                .owner = owner.local,
                                                                .shard = owner.shard };
        }
    }
    return LK_OK;
}

lk_status lki_layout_open(lki_layout **out, const lk_param *params, uint32_t param_count,
                          const lk_parallel_options *options, const lki_deal *deal)
{
    *out               = NULL;
    lki_layout *layout = NULL;
    LK_TRY(LKI_NEW(&layout, 1, "parameter layout"));
    layout->whole_blocks = deal->whole_blocks;
    layout->bf16         = deal->bf16;
    layout->align        = lki_quantises(options->comm_dtype) ? LKI_QUANTISED : 16;
    lk_status status = copy_params(layout, params, param_count);
    if (status == LK_OK)
        status = copy_terms(layout, options);
    if (status == LK_OK) {
        place(layout, deal->param_at);
        status = make_spans(layout);
    }
    if (status == LK_OK) {
        place_reads(layout);
        status = make_buckets(layout, options);
    }
    if (status == LK_OK)
        status = copy_owners(layout, deal);
    if (status == LK_OK)
        status = deal_spans(layout, options);
    if (status == LK_OK)
        status = take_turns(layout);
    if (status == LK_OK)
        status = make_slices(layout, options);
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
                      layout->buckets,     layout->owners,    layout->kept };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        lki_free(parts[i]);
    lki_free(layout);
}

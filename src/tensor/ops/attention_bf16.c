/* attention_bf16.c -- causal self-attention by blocks in bf16, forward and backward.
 *
 * It works like attention.c, with these differences:
 *
 *      products   use the kernels of lki_gemm() (isa/gemm.h): words of two bf16 values, summed in
 *                 FP32 by chunks of 32 dimensions, keys or queries.
 *      softmax    in FP32, to base 2: the scale of scores contains the factor log2 e, and lse is
 *                 max + log2 sum.  The 16 lanes are summed only after a query's last key.
 *      rounding   probabilities and gradients of scores are rounded to bf16 as operands of
 *                 products, and results are rounded once.  dQ and dK are scaled by
 *                 1 / sqrt(head size) at the end.
 *
 * Order:   O and dQ are sums of chunks of ascending keys up to the end of the query's block (future
 *          keys have probability +0); dK and dV of ascending heads of queries, and in each of
 *          ascending queries from the first of the key's own block.  Chunks begin at multiples of
 *          32.
 * Memory:  a few (t, head size) matrices per thread; see lki_attention_bf16_scratch_bytes().
 *
 * With a cache, the packed copies of keys and values are in the cache.  A call appends rows to
 * them: it packs the rows of a chunk of positions again, which the cache also has as they came.
 */
#include <string.h>

#include "tensor/ops/attention.h"
#include "tensor/attention_cache.h"
#include "tensor/isa/kernels.h"

_Static_assert(QUERIES == (int)LKI_CHUNK && KEYS % LKI_CHUNK == 0, "blocks are whole chunks");

/* The packed copies of a head's data.  `rows` matrices are left operands (t, words): a row is a
 * query.  `turned` matrices are panels of keys, each (words, panel).  `zipped` matrices are panels
 * of dimensions, each (t_pad / 2, panel); their words are along queries or keys. */
typedef struct {
    size_t    words, width, t_pad, panel;
    float    *scores, *dp, *keep; /* (QUERIES, KEYS) */
    uint16_t *p, *ds;             /* (QUERIES, KEYS) */
    float    *left;               /* one of them, packed */
    float    *out;                /* (QUERIES, width) */
    float    *q_rows, *dy_rows;
    float    *k_turned, *v_turned, *q_zipped, *k_zipped, *v_zipped, *dy_zipped;
    float    *dq, *dk, *dv; /* (t_pad, width) */
} head;

typedef struct {
    const lki_bf16_kernels     *kernels;
    const lki_nn_kernels       *nn; /* for dropout */
    const lki_attention_shape  *shape;
    size_t          size;           /* size of a head */
    float           scale;          /* 1 / sqrt(size) */
    size_t          first;          /* position of the first query */
    lki_attention_input    x;
    lki_attention_gradient dx;
    const uint16_t *dy;
    uint16_t       *y;
    float          *lse;
    const uint16_t *old_y;
    const float    *old_lse;
    char           *scratch;
    size_t          scratch_each;
    float          *cache; /* NULL: none */
    size_t          cache_each, positions;
} attention;

static const float log2_e = 0x1.715476p+0f;

static size_t head_lay_out(head *h, size_t t, size_t size, size_t panel, float *base)
{
    size_t at = 0, words = lki_round_up(size, LKI_CHUNK) / 2;
    *h          = (head){ .words = words,
                          .width = lki_round_up(size, LANES),
                          .t_pad = lki_round_up(t, LKI_CHUNK),
                          .panel = panel };
    size_t rows = t * words + LKI_GEMM_ROWS_MAX, turned = lki_round_up(t, panel) * words;
    size_t zipped = h->t_pad / 2 * lki_round_up(size, panel), wide = h->t_pad * h->width;
    float *p = NULL, *ds = NULL;
    const struct { float **field; size_t count;
    } parts[] = {
        { &h->scores, QUERIES * KEYS },
        { &h->dp, QUERIES * KEYS },
        { &h->keep, QUERIES * KEYS },
        { &p, QUERIES * KEYS / 2 },
        { &ds, QUERIES * KEYS / 2 },
        { &h->left, QUERIES * KEYS / 2 + LKI_GEMM_ROWS_MAX },
        { &h->out, QUERIES * h->width },
        { &h->q_rows, rows },
        { &h->dy_rows, rows },
        { &h->k_turned, turned },
        { &h->v_turned, turned },
        { &h->q_zipped, zipped },
        { &h->k_zipped, zipped },
        { &h->v_zipped, zipped },
        { &h->dy_zipped, zipped },
        { &h->dq, wide },
        { &h->dk, wide },
        { &h->dv, wide },
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (base != NULL)
            *parts[i].field = base + at;
        at += lki_round_up(parts[i].count, LANES);
    }
    h->p  = (uint16_t *)p;
    h->ds = (uint16_t *)ds;
    return at * sizeof(float);
}

size_t lki_attention_bf16_scratch_bytes(const lk_exec *exec, const lki_attention_shape *shape)
{
    head h;
    return head_lay_out(&h, shape->t, shape->c / shape->heads, LKI_GEMM_COLUMNS_MAX, NULL) *
           lk_exec_threads(exec);
}

/* ---- A head's copies --------------------------------------------------------------------- */

/* Returns the words that k values have in packed operands. */
static size_t words_of(const attention *a, size_t k)
{
    return lki_gemm_words(a->kernels->gemm, 2, k);
}

static void pack_rows(const attention *a, const uint16_t *from, size_t stride, float *to)
{
    a->kernels->gemm->pack_a(false, a->shape->t, a->size, from, stride, to);
}

static void turn(const attention *a, const head *h, const uint16_t *from, size_t stride, float *to)
{
    size_t t = a->shape->t;
    for (size_t key = 0; key < t; key += h->panel)
        a->kernels->gemm->pack_b(true, lki_min(h->panel, t - key), a->size, from + key * stride,
                                 stride, to + key * words_of(a, a->size));
}

static void zip(const attention *a, const head *h, const uint16_t *from, size_t stride, float *to)
{
    size_t t = a->shape->t, used = words_of(a, t), words = h->t_pad / 2;
    for (size_t d = 0; d < a->size; d += h->panel, to += words * h->panel) {
        a->kernels->gemm->pack_b(false, lki_min(h->panel, a->size - d), t, from + d, stride, to);
        memset(to + used * h->panel, 0, (words - used) * h->panel * sizeof *to);
    }
}

/* Returns the first row of a head of queries.  Here and below, `index` is a pair (sample, head). */
static const uint16_t *queries_of(const attention *a, size_t index)
{
    return (const uint16_t *)a->x.rows[Q] + query_row(a->shape, index, 0, a->x.stride[Q]);
}

/* Returns the first row of the keys or values that a head of queries reads. */
static const uint16_t *keys_of(const attention *a, size_t index, int part)
{
    return (const uint16_t *)a->x.rows[part] + key_row(a->shape, index, 0, a->x.stride[part]);
}

static void head_open(const attention *a, size_t index, uint32_t thread, head *h)
{
    (void)head_lay_out(h, a->shape->t, a->size, a->kernels->gemm->columns,
                       (float *)(void *)(a->scratch + thread * a->scratch_each));
    turn(a, h, keys_of(a, index, K), a->x.stride[K], h->k_turned);
}

/* ---- Blocks ------------------------------------------------------------------------------ */

static block block_of(size_t t, size_t first_query, size_t first_key)
{
    block b = block_at(t, first_query, first_key);
    b.keys  = lki_round_up(b.keys, LKI_CHUNK);
    return b;
}

/* Computes scores, or gradients of probabilities: `to` (queries, keys) = `rows` times `turned`, the
 * packed transpose of keys or values.  `rows` begins with the call's first query. */
static void block_scores(const attention *a, const head *h, const block *b, const float *rows,
                         const float *turned, float *to)
{
    size_t words = words_of(a, a->size);
    a->kernels->gemm->block(&(lki_gemm_block){
        .m          = b->queries,
        .n          = lki_min(b->keys,
                              lki_round_up(a->first + a->shape->t - b->first_key, LANES)),
        .k          = words,
        .a          = rows + (b->first_query - a->first) * words,
        .row_stride = words,
        .b          = turned + b->first_key * words,
        .b_panel    = words * h->panel,
        .b_row      = h->panel,
        .c          = to,
        .ldc        = KEYS,
        .from_zero  = true,
    });
}

/* Adds the products of `weights` (queries, keys) and keys or values to `to` (queries, size), whose
 * rows are `width` apart. */
static void block_values(const attention *a, const head *h, const block *b, const uint16_t *weights,
                         const float *zipped, float *to)
{
    a->kernels->gemm->pack_a(false, b->queries, b->keys, weights, KEYS, h->left);
    a->kernels->gemm->block(&(lki_gemm_block){
        .m          = b->queries,
        .n          = a->size,
        .k          = b->keys / 2,
        .a          = h->left,
        .row_stride = b->keys / 2,
        .b          = zipped + b->first_key / 2 * h->panel,
        .b_panel    = h->t_pad / 2 * h->panel,
        .b_row      = h->panel,
        .c          = to,
        .ldc        = h->width,
        .from_zero  = b->first_key == 0,
    });
}

/* Adds the products of the transpose of `weights` (queries, keys) and queries or dy to `to` (keys,
 * size), whose rows are `width` apart. */
static void block_transposed(const attention *a, const head *h, const block *b,
                             const uint16_t *weights, const float *zipped, float *to)
{
    size_t words = words_of(a, b->queries);
    a->kernels->gemm->pack_a(true, b->keys, b->queries, weights, KEYS, h->left);
    a->kernels->gemm->block(&(lki_gemm_block){
        .m          = b->keys,
        .n          = a->size,
        .k          = words,
        .a          = h->left,
        .row_stride = words,
        .b          = zipped + b->first_query / 2 * h->panel,
        .b_panel    = h->t_pad / 2 * h->panel,
        .b_row      = h->panel,
        .c          = to + b->first_key * h->width,
        .ldc        = h->width,
    });
}

/* Computes the dropout factors of a block; NULL without dropout. */
static const float *block_keep(const attention *a, const head *h, const block *b, size_t index)
{
    if (!(a->shape->dropout.p > 0.0f))
        return NULL;
    for (size_t i = 0; i < b->queries; i++)
        keep_scores(a->nn, a->shape, b, index, i, h->keep + i * KEYS);
    return h->keep;
}

static lki_score_block score_block(const attention *a, const head *h, const block *b, size_t index)
{
    return (lki_score_block){
        .queries = b->queries,
        .keys    = b->keys,
        .past    = b->first_query - b->first_key + 1,
        .ld      = KEYS,
        .factor  = a->scale * log2_e,
        .scores  = h->scores,
        .keep    = block_keep(a, h, b, index),
        .p       = h->p,
        .ds      = h->ds,
    };
}

/* ---- Forward ----------------------------------------------------------------------------- */

static void forward_queries(const attention *a, const head *h, size_t index, size_t first_query)
{
    size_t t = a->first + a->shape->t, queries = block_at(t, first_query, 0).queries;
    float  max[QUERIES], sums[QUERIES * LANES] = { 0 };

    for (size_t i = 0; i < queries; i++)
        max[i] = -__builtin_inff();
    for (size_t first_key = 0; first_key < first_query + queries; first_key += KEYS) {
        block b = block_of(t, first_query, first_key);
        block_scores(a, h, &b, h->q_rows, h->k_turned, h->scores);
        lki_score_block s = score_block(a, h, &b, index);
        s.max             = max;
        s.sums            = sums;
        s.out             = first_key == 0 ? NULL : h->out;
        s.width           = h->width;
        a->kernels->scores->forward(&s);
        block_values(a, h, &b, h->p, h->v_zipped, h->out);
    }
    for (size_t i = 0; i < queries; i++) {
        float  sum = a->kernels->scores->lane_sum(sums + i * LANES);
        size_t at  = first_query - a->first + i;
        size_t row = query_row(a->shape, index, at, a->shape->c);
        a->kernels->scores->finish(a->size, 1.0f / sum, h->out + i * h->width, a->y + row, false);
        if (a->lse != NULL)
            a->lse[index * a->shape->t + at] = max[i] + lki_logf(sum) * log2_e;
    }
}

static void forward_task(void *context, size_t index, uint32_t thread)
{
    const attention *a = context;
    head             h;

    head_open(a, index, thread, &h);
    pack_rows(a, queries_of(a, index), a->x.stride[Q], h.q_rows);
    zip(a, &h, keys_of(a, index, V), a->x.stride[V], h.v_zipped);
    for (size_t query = 0; query < a->shape->t; query += QUERIES)
        forward_queries(a, &h, index, query);
}

static attention attention_of(const lk_exec *exec, const lki_attention_shape *shape,
                              lki_attention_input x, void *scratch)
{
    const lki_kernels *kernels = lki_exec_kernels(exec);
    head               h;
    size_t             size = shape->c / shape->heads;
    return (attention){
        .kernels      = kernels->bf16,
        .nn           = kernels->nn,
        .shape        = shape,
        .size         = size,
        .scale        = 1.0f / __builtin_sqrtf((float)size),
        .x            = x,
        .scratch      = scratch,
        .scratch_each = head_lay_out(&h, shape->t, size, LKI_GEMM_COLUMNS_MAX, NULL),
    };
}

void lki_attention_bf16(lk_exec *exec, const lki_attention_shape *shape, lki_attention_input x,
                        uint16_t *y, float *lse, void *scratch)
{
    attention a = attention_of(exec, shape, x, scratch);
    a.y   = y;
    a.lse = lse;
    lki_exec_run(exec, shape->b * shape->heads, forward_task, &a);
}

/* ---- With a cache ------------------------------------------------------------------------ */

/* The rows of keys and values of the chunk of positions that is not complete. */
typedef struct { uint16_t *k, *v; } recent;

/* The floats of the parts of a head's cache: packed keys, packed values, and the rows of keys, or
 * of values, that are not packed yet. */
typedef struct { size_t turned, zipped, few; } cache_parts;

static cache_parts cache_parts_of(size_t positions, size_t size)
{
    size_t words = lki_round_up(size, LKI_CHUNK) / 2;
    size_t pairs = lki_round_up(positions, LKI_CHUNK) / 2;
    return (cache_parts){ .turned = lki_round_up(positions, LKI_GEMM_COLUMNS_MAX) * words,
                          .zipped = pairs * lki_round_up(size, LKI_GEMM_COLUMNS_MAX),
                          .few    = (size_t)LKI_CHUNK * size / 2 };
}

/* Returns the number of floats of a cache for the keys and values of a head. */
static size_t cache_floats(size_t positions, size_t size)
{
    cache_parts parts = cache_parts_of(positions, size);
    return lki_round_up(parts.turned + parts.zipped + 2 * parts.few, LANES);
}

/* Points `h` and `rows` to the parts of a cache. */
static void cache_lay_out(head *h, recent *rows, size_t positions, size_t size, size_t panel,
                          float *base)
{
    cache_parts parts = cache_parts_of(positions, size);
    h->words    = lki_round_up(size, LKI_CHUNK) / 2;
    h->width    = lki_round_up(size, LANES);
    h->t_pad    = lki_round_up(positions, LKI_CHUNK);
    h->panel    = panel;
    h->k_turned = base;
    h->v_zipped = base + parts.turned;
    rows->k     = (uint16_t *)(h->v_zipped + parts.zipped);
    rows->v     = (uint16_t *)(h->v_zipped + parts.zipped + parts.few);
}

size_t lki_attention_bf16_cache_bytes(const lki_attention_shape *shape)
{
    return shape->b * shape->heads / group_of(shape) * sizeof(float) *
           cache_floats(shape->t, shape->c / shape->heads);
}

/* Packs the first `count` positions of the chunk from position `from` on. */
static void pack_chunk(const attention *a, const head *h, const recent *rows, size_t from,
                       size_t count)
{
    const lki_gemm_kernels *gemm = a->kernels->gemm;
    size_t used = words_of(a, count), words = h->t_pad / 2;
    for (size_t key = 0; key < count; key += h->panel)
        gemm->pack_b(true, lki_min(h->panel, count - key), a->size, rows->k + key * a->size,
                     a->size, h->k_turned + (from + key) * words_of(a, a->size));
    for (size_t d = 0; d < a->size; d += h->panel) {
        float *to = h->v_zipped + (d / h->panel * words + from / 2) * h->panel;
        gemm->pack_b(false, lki_min(h->panel, a->size - d), count, rows->v + d, a->size, to);
        memset(to + used * h->panel, 0, (LKI_CHUNK / 2 - used) * h->panel * sizeof *to);
    }
}

/* Appends the new rows of a head of keys and values, chunk by chunk. */
static void append_task(void *context, size_t task, uint32_t thread)
{
    const attention *a = context;
    size_t           index = task * group_of(a->shape), end = a->first + a->shape->t;
    const uint16_t  *k = keys_of(a, index, K), *v = keys_of(a, index, V);
    head             h    = { .words = 0 };
    recent           rows = { .k = NULL };
    (void)thread;
    cache_lay_out(&h, &rows, a->positions, a->size, a->kernels->gemm->columns,
                  a->cache + task * a->cache_each);
    for (size_t at = a->first; at < end; at++) {
        size_t i = at - a->first, place = at % LKI_CHUNK;
        memcpy(rows.k + place * a->size, k + i * a->x.stride[K], a->size * sizeof *k);
        memcpy(rows.v + place * a->size, v + i * a->x.stride[V], a->size * sizeof *v);
        if (place == LKI_CHUNK - 1 || at + 1 == end)
            pack_chunk(a, &h, &rows, at - place, place + 1);
    }
}

static void cached_task(void *context, size_t index, uint32_t thread)
{
    const attention *a = context;
    head             h    = { .words = 0 };
    recent           rows = { .k = NULL };

    (void)head_lay_out(&h, a->shape->t, a->size, a->kernels->gemm->columns,
                       (float *)(void *)(a->scratch + thread * a->scratch_each));
    cache_lay_out(&h, &rows, a->positions, a->size, a->kernels->gemm->columns,
                  a->cache + index / group_of(a->shape) * a->cache_each);
    pack_rows(a, queries_of(a, index), a->x.stride[Q], h.q_rows);
    for (size_t query = a->first; query < a->first + a->shape->t;
         query += QUERIES - query % QUERIES)
        forward_queries(a, &h, index, query);
}

void lki_attention_bf16_cached(lk_exec *exec, const lki_attention_shape *shape,
                               lki_attention_input x, lki_attention_cache cache, uint16_t *y,
                               void *scratch)
{
    attention a = attention_of(exec, shape, x, scratch);
    size_t    groups = shape->b * shape->heads / group_of(shape);
    a.y          = y;
    a.first      = cache.first;
    a.cache      = cache.memory;
    a.positions  = cache.positions;
    a.cache_each = cache_floats(cache.positions, a.size);
    if (shape->t == 1) /* too little work to wake threads */
        for (size_t i = 0; i < groups; i++)
            append_task(&a, i, 0);
    else
        lki_exec_run(exec, groups, append_task, &a);
    lki_exec_run(exec, shape->b * shape->heads, cached_task, &a);
}

/* ---- Backward ---------------------------------------------------------------------------- */

static void backward_block(const attention *a, const head *h, size_t index, const block *b,
                           const float *delta)
{
    block_scores(a, h, b, h->q_rows, h->k_turned, h->scores);
    block_scores(a, h, b, h->dy_rows, h->v_turned, h->dp);
    lki_score_block s = score_block(a, h, b, index);
    s.dp              = h->dp;
    s.lse             = a->old_lse + index * a->shape->t + b->first_query;
    s.delta           = delta;
    a->kernels->scores->backward(&s);
    block_transposed(a, h, b, h->p, h->dy_zipped, h->dv);
    block_transposed(a, h, b, h->ds, h->q_zipped, h->dk);
    block_values(a, h, b, h->ds, h->k_zipped, h->dq + b->first_query * h->width);
}

static void backward_queries(const attention *a, const head *h, size_t index, size_t first_query)
{
    size_t t = a->shape->t, end = lki_min(t, first_query + QUERIES);
    float  delta[QUERIES];
    for (size_t i = first_query; i < end; i++) {
        size_t row = query_row(a->shape, index, i, a->shape->c);
        delta[i - first_query] = a->kernels->scores->dot(a->size, a->dy + row, a->old_y + row);
    }
    for (size_t first_key = 0; first_key < end; first_key += KEYS) {
        block b = block_of(t, first_query, first_key);
        backward_block(a, h, index, &b, delta);
    }
}

/* Writes or adds the head's rows, times `factor`, to the gradient `part`, from element `at` on. */
static void put_rows(const attention *a, const head *h, float factor, const float *from, int part,
                     size_t at)
{
    for (size_t i = 0; a->dx.rows[part] != NULL && i < a->shape->t; i++)
        a->kernels->scores->finish(a->size, factor, from + i * h->width,
                                   (uint16_t *)a->dx.rows[part] + at + i * a->dx.stride[part],
                                   a->dx.add[part]);
}

/* Computes the gradients of a head of queries, and adds to those of its keys and values. */
static void backward_head(const attention *a, const head *h, size_t index)
{
    size_t          t = a->shape->t, c = a->shape->c;
    const uint16_t *q = queries_of(a, index), *dy = a->dy + query_row(a->shape, index, 0, c);

    pack_rows(a, q, a->x.stride[Q], h->q_rows);
    pack_rows(a, dy, c, h->dy_rows);
    zip(a, h, q, a->x.stride[Q], h->q_zipped);
    zip(a, h, dy, c, h->dy_zipped);
    for (size_t query = 0; query < t; query += QUERIES)
        backward_queries(a, h, index, query);
    put_rows(a, h, a->scale, h->dq, Q, query_row(a->shape, index, 0, a->dx.stride[Q]));
}

static void backward_task(void *context, size_t task, uint32_t thread)
{
    const attention *a = context;
    size_t           group = group_of(a->shape), first = task * group;
    head             h;

    head_open(a, first, thread, &h);
    turn(a, &h, keys_of(a, first, V), a->x.stride[V], h.v_turned);
    zip(a, &h, keys_of(a, first, K), a->x.stride[K], h.k_zipped);
    memset(h.dk, 0, h.t_pad * h.width * sizeof *h.dk);
    memset(h.dv, 0, h.t_pad * h.width * sizeof *h.dv);
    for (size_t i = 0; i < group; i++)
        backward_head(a, &h, first + i);
    put_rows(a, &h, a->scale, h.dk, K, key_row(a->shape, first, 0, a->dx.stride[K]));
    put_rows(a, &h, 1.0f, h.dv, V, key_row(a->shape, first, 0, a->dx.stride[V]));
}

void lki_attention_bf16_backward(lk_exec *exec, const lki_attention_shape *shape,
                                 lki_attention_input x, const uint16_t *y, const float *lse,
                                 const uint16_t *dy, lki_attention_gradient dx, void *scratch)
{
    attention a = attention_of(exec, shape, x, scratch);
    a.old_y   = y;
    a.old_lse = lse;
    a.dy      = dy;
    a.dx      = dx;
    lki_exec_run(exec, shape->b * shape->heads / group_of(shape), backward_task, &a);
}

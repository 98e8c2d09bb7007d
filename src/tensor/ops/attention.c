/* attention.c -- causal self-attention by blocks, forward and backward.
 *
 * A task is one head of one sample; in backward all heads of queries that read the same keys.  It
 * packs the head's keys and values once, and then processes blocks of QUERIES rows and KEYS
 * columns.  A block of scores stays in the first-level cache, and
 * there is no (t, t) tensor.  The softmax is online (isa/softmax.inc).  Blocks that are completely
 * in the future are skipped.  In other blocks a strip of STRIP queries skips the keys that follow
 * its last query, and a strip of STRIP keys skips the queries that precede its first key.  The few
 * masked scores that remain within a strip are computed, but no chain has their products: 0 times
 * an infinite value is NaN, and +0 changes a sum of -0.
 *
 *      forward    S = Q K'        O = rescaled O + P V          y = O / sum, lse = max + log sum
 *      backward   P = exp(S - lse)         dP = dY V'           dS = P (dP - delta) scale
 *                 dV += P' dY     dK += dS' Q     dQ += dS K    delta = dY . y
 *
 * The log of the denominator replaces the maximum and the sum. delta, the row's sum of P dP, equals
 * dY . y (Dao et al., "FlashAttention", 2022, section 3.1 and appendix B).  With dropout, P V and
 * dP use only the kept probabilities; both identities still hold.
 *
 * Order:   the block sizes are constants of this file.  O and dQ are chains over ascending keys, dK
 *          and dV over ascending heads of queries, and in each over ascending queries, whichever
 *          thread computes the head.
 * Cost:    4 t^2 c operations forward and 10 backward, halved by causality except in the
 *          diagonal blocks.
 * Memory:  a few (t, head size) matrices per thread; see lki_attention_scratch_bytes().
 *
 * With a cache, the copies of keys and values are in the cache, and a call appends rows to them.  A
 * query is computed as above: its bits do not depend on the other queries of a block.
 */
#include <string.h>

#include "tensor/ops/attention.h"
#include "tensor/attention_cache.h"
#include "tensor/isa/kernels.h"

enum { STRIP = 8 }; /* number of queries, or keys, that skip the same masked scores */

/* The copies of a head's data.  Rows have `width` values: the head size rounded up to a multiple of
 * 16, padded with zeros.  `k_columns` and `v_columns` are the transposes in panels of 16 keys.
 * `t_pad` is t rounded up to a multiple of 16. */
typedef struct {
    size_t width, t_pad, panel;
    float *scores, *dp;                    /* (QUERIES, KEYS) */
    float *out;                            /* (QUERIES, width): O, or dQ */
    float *keep;                           /* (KEYS) */
    float *q, *k, *v, *dy, *dk, *dv;       /* (t_pad, width) */
    float *k_columns, *v_columns;          /* (t_pad / 16, head size, 16) */
    float *delta;                          /* (t_pad) */
    bool   later; /* dk and dv have the sums of earlier heads of queries */
} head;

typedef struct {
    const lki_nn_kernels       *kernels;
    const lki_attention_shape  *shape;
    size_t       size;  /* size of a head */
    float        scale; /* 1 / sqrt(size) */
    size_t       first; /* position of the first query */
    lki_attention_input    x;
    lki_attention_gradient dx;
    const float *dy;
    float       *y, *lse;
    const float *old_y, *old_lse;
    char        *scratch;
    size_t       scratch_each;
    float       *cache; /* NULL: none */
    size_t       cache_each, positions;
} attention;

static size_t head_lay_out(head *h, size_t t, size_t size, float *base)
{
    size_t at = 0;
    *h = (head){ .width = lki_round_up(size, LANES), .t_pad = lki_round_up(t, LANES),
                 .panel = size * LANES };
    const struct { float **field; size_t count; } parts[] = {
        { &h->scores, QUERIES * KEYS },        { &h->dp, QUERIES * KEYS },
        { &h->out, QUERIES * h->width },       { &h->keep, KEYS },
        { &h->q, h->t_pad * h->width },        { &h->k, h->t_pad * h->width },
        { &h->v, h->t_pad * h->width },        { &h->dy, h->t_pad * h->width },
        { &h->dk, h->t_pad * h->width },       { &h->dv, h->t_pad * h->width },
        { &h->k_columns, h->t_pad * size },    { &h->v_columns, h->t_pad * size },
        { &h->delta, h->t_pad },
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (base != NULL)
            *parts[i].field = base + at;
        at += lki_round_up(parts[i].count, LANES);
    }
    return at * sizeof(float);
}

size_t lki_attention_scratch_bytes(const lk_exec *exec, const lki_attention_shape *shape)
{
    head h;
    return head_lay_out(&h, shape->t, shape->c / shape->heads, NULL) * lk_exec_threads(exec);
}

/* Copies (t, size) values, with rows `stride` apart, to (t, width), and fills the rest of each row
 * with zeros. */
static void copy_rows(const head *h, size_t t, size_t size, size_t stride, const float *from,
                      float *to)
{
    for (size_t i = 0; i < t; i++) {
        memcpy(to + i * h->width, from + i * stride, size * sizeof *to);
        memset(to + i * h->width + size, 0, (h->width - size) * sizeof *to);
    }
}

/* Returns the number of keys of a block to which query i, the last of its strip, may attend. */
static size_t keys_seen(const block *b, size_t i)
{
    return lki_min(b->keys, b->first_query + i + 1 - b->first_key);
}

/* Computes `to` (queries, keys): rows of `left`, `stride` apart, times the columns of `right`.
 * `left` begins with the call's first query. */
static void block_scores(const attention *a, const head *h, const block *b, const float *left,
                         size_t stride, const float *right, float *to)
{
    for (size_t i = 0; i < b->queries; i += STRIP) {
        size_t rows = lki_min(STRIP, b->queries - i);
        a->kernels->tile_rows(&(lki_tile_rows){
            .rows = rows, .columns = lki_round_up(keys_seen(b, i + rows - 1), LANES),
            .length = a->size, .a = left + (b->first_query - a->first + i) * stride, .lda = stride,
            .b = right + b->first_key / LANES * h->panel, .panel = h->panel, .step = LANES,
            .c = to + i * KEYS, .ldc = KEYS,
        });
    }
}

/* Continues the chains of h->out (queries, width) over the block's keys: scores times rows of
 * `right`.  The chains start at the first key.  The keys that only some queries of a strip see are
 * added query by query. */
static void block_values(const attention *a, const head *h, const block *b, const float *scores,
                         const float *right)
{
    for (size_t i = 0; i < b->queries; i += STRIP) {
        size_t        rows = lki_min(STRIP, b->queries - i), common = keys_seen(b, i);
        lki_tile_rows tile = {
            .rows = rows, .columns = h->width, .length = common, .a = scores + i * KEYS,
            .lda = KEYS, .b = right + b->first_key * h->width, .panel = LANES, .step = h->width,
            .c = h->out + i * h->width, .ldc = h->width, .go_on = b->first_key > 0,
        };
        a->kernels->tile_rows(&tile);
        tile.rows  = 1;
        tile.go_on = true;
        tile.b += common * h->width;
        for (size_t r = i + 1; r < i + rows && keys_seen(b, r) > common; r++) {
            tile.length = keys_seen(b, r) - common;
            tile.a      = scores + r * KEYS + common;
            tile.c      = h->out + r * h->width;
            a->kernels->tile_rows(&tile);
        }
    }
}

/* Continues the chains of `to` (keys, width) over the block's queries: transposed scores times rows
 * of `right`.  A key's chain starts at the query with the key's position, in the first head of
 * queries.  The queries that see only some keys of a strip are added key by key. */
static void block_transposed(const attention *a, const head *h, const block *b, const float *scores,
                             const float *right, float *to)
{
    for (size_t j = 0; j < b->keys; j += STRIP) {
        size_t rows = lki_min(STRIP, b->keys - j), key = b->first_key + j, i = 0;
        lki_tile_outer tile = { .rows = 1, .columns = h->width, .lda = KEYS, .ldb = h->width,
                                .ldc = h->width, .go_on = h->later };
        if (key >= b->first_query) {
            size_t first = key - b->first_query;
            i            = lki_min(b->queries, first + rows);
            for (size_t r = 0; first + r < i; r++) {
                tile.length = i - first - r;
                tile.a      = scores + (first + r) * KEYS + j + r;
                tile.b      = right + (key + r) * h->width;
                tile.c      = to + (key + r) * h->width;
                a->kernels->tile_outer(&tile);
            }
        }
        if (i < b->queries) {
            tile.rows   = rows;
            tile.length = b->queries - i;
            tile.a      = scores + i * KEYS + j;
            tile.b      = right + (b->first_query + i) * h->width;
            tile.c      = to + key * h->width;
            tile.go_on  = true;
            a->kernels->tile_outer(&tile);
        }
    }
}

/* Returns the first row of a head of queries.  Here and below, `index` is a pair (sample, head). */
static const float *queries_of(const attention *a, size_t index)
{
    return (const float *)a->x.rows[Q] + query_row(a->shape, index, 0, a->x.stride[Q]);
}

/* Returns the first row of the keys or values that a head of queries reads. */
static const float *keys_of(const attention *a, size_t index, int part)
{
    return (const float *)a->x.rows[part] + key_row(a->shape, index, 0, a->x.stride[part]);
}

/* Returns the scores of query i of a block. */
static lki_score_row score_row(const attention *a, const head *h, const block *b, size_t index,
                               size_t i)
{
    const lki_attention_shape *s = a->shape;
    size_t        query = b->first_query + i;
    size_t        past  = query < b->first_key ? 0 : query + 1 - b->first_key;
    lki_score_row row   = { .count = b->keys, .valid = lki_min(b->keys, past), .scale = a->scale,
                            .s = h->scores + i * KEYS };
    if (s->dropout.p > 0.0f) {
        keep_scores(a->kernels, s, b, index, i, h->keep);
        row.keep = h->keep;
    }
    return row;
}

static void forward_queries(const attention *a, const head *h, size_t index, size_t first_query)
{
    size_t t = a->first + a->shape->t, queries = block_at(t, first_query, 0).queries;
    const float *q = queries_of(a, index);
    float  max[QUERIES], sum[QUERIES];

    for (size_t i = 0; i < queries; i++) {
        max[i] = -__builtin_inff();
        sum[i] = 0.0f;
    }
    for (size_t first_key = 0; first_key < first_query + queries; first_key += KEYS) {
        block b = block_at(t, first_query, first_key);
        block_scores(a, h, &b, q, a->x.stride[Q], h->k_columns, h->scores);
        for (size_t i = 0; i < queries; i++) {
            lki_score_row row = score_row(a, h, &b, index, i);
            float rescale = a->kernels->score_forward(&row, &max[i], &sum[i]);
            if (first_key > 0)
                a->kernels->scale(h->width, rescale, h->out + i * h->width);
        }
        block_values(a, h, &b, h->scores, h->v);
    }
    for (size_t i = 0; i < queries; i++) {
        size_t row = first_query - a->first + i;
        float *y   = a->y + query_row(a->shape, index, row, a->shape->c);
        a->kernels->scale(h->width, 1.0f / sum[i], h->out + i * h->width);
        memcpy(y, h->out + i * h->width, a->size * sizeof *y);
        if (a->lse != NULL)
            a->lse[index * a->shape->t + row] = max[i] + lki_logf(sum[i]);
    }
}

static void head_open(const attention *a, size_t index, uint32_t thread, head *h)
{
    size_t t = a->shape->t;

    (void)head_lay_out(h, t, a->size, (float *)(void *)(a->scratch + thread * a->scratch_each));
    a->kernels->pack_transposed(t, a->size, keys_of(a, index, K), a->x.stride[K], h->k_columns);
}

static void forward_task(void *context, size_t index, uint32_t thread)
{
    const attention *a = context;
    size_t t = a->shape->t;
    head   h;

    head_open(a, index, thread, &h);
    copy_rows(&h, t, a->size, a->x.stride[V], keys_of(a, index, V), h.v);
    for (size_t query = 0; query < t; query += QUERIES)
        forward_queries(a, &h, index, query);
}

static attention attention_of(const lk_exec *exec, const lki_attention_shape *shape,
                              lki_attention_input x, void *scratch)
{
    head   h;
    size_t size = shape->c / shape->heads;
    return (attention){
        .kernels      = lki_exec_kernels(exec)->nn,
        .shape        = shape,
        .size         = size,
        .scale        = 1.0f / __builtin_sqrtf((float)size),
        .x            = x,
        .scratch      = scratch,
        .scratch_each = head_lay_out(&h, shape->t, size, NULL),
    };
}

void lki_attention(lk_exec *exec, const lki_attention_shape *shape, lki_attention_input x,
                   float *y, float *lse, void *scratch)
{
    attention a = attention_of(exec, shape, x, scratch);
    a.y   = y;
    a.lse = lse;
    lki_pool_run(lki_exec_pool(exec), shape->b * shape->heads, forward_task, &a);
}

/* ---- With a cache ------------------------------------------------------------------------ */

/* Returns the number of floats of a cache's copy of the keys of a head; its values follow. */
static size_t cache_keys(size_t positions, size_t size)
{
    return lki_round_up(lki_round_up(positions, LANES) * size, LANES);
}

/* Returns the number of floats of a cache for the keys and values of a head. */
static size_t cache_floats(size_t positions, size_t size)
{
    return cache_keys(positions, size) + lki_round_up(positions, LANES) * lki_round_up(size, LANES);
}

/* Points `h` to the copies of the keys and values in a cache. */
static void cache_lay_out(head *h, size_t positions, size_t size, float *base)
{
    h->width     = lki_round_up(size, LANES);
    h->panel     = size * LANES;
    h->t_pad     = lki_round_up(positions, LANES);
    h->k_columns = base;
    h->v         = base + cache_keys(positions, size);
}

size_t lki_attention_cache_bytes(const lki_attention_shape *shape)
{
    return shape->b * shape->heads / group_of(shape) * sizeof(float) *
           cache_floats(shape->t, shape->c / shape->heads);
}

/* Appends the new rows of a head of keys and values, of which `index` is the first reader. */
static void append(const attention *a, size_t index)
{
    const float *k = keys_of(a, index, K), *v = keys_of(a, index, V);
    head         h = { .width = 0 };
    cache_lay_out(&h, a->positions, a->size,
                  a->cache + index / group_of(a->shape) * a->cache_each);
    for (size_t i = 0; i < a->shape->t; i++) {
        size_t at     = a->first + i;
        float *column = h.k_columns + at / LANES * h.panel + at % LANES;
        for (size_t d = 0; d < a->size; d++)
            column[d * LANES] = k[i * a->x.stride[K] + d];
        memcpy(h.v + at * h.width, v + i * a->x.stride[V], a->size * sizeof *v);
    }
}

static void append_task(void *context, size_t index, uint32_t thread)
{
    const attention *a = context;
    (void)thread;
    append(a, index * group_of(a->shape));
}

static void cached_task(void *context, size_t index, uint32_t thread)
{
    const attention *a = context;
    head   h;

    (void)head_lay_out(&h, a->shape->t, a->size,
                       (float *)(void *)(a->scratch + thread * a->scratch_each));
    cache_lay_out(&h, a->positions, a->size,
                  a->cache + index / group_of(a->shape) * a->cache_each);
    for (size_t query = a->first; query < a->first + a->shape->t;
         query += QUERIES - query % QUERIES)
        forward_queries(a, &h, index, query);
}

void lki_attention_cached(lk_exec *exec, const lki_attention_shape *shape, lki_attention_input x,
                          lki_attention_cache cache, float *y, void *scratch)
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
        lki_pool_run(lki_exec_pool(exec), groups, append_task, &a);
    lki_pool_run(lki_exec_pool(exec), shape->b * shape->heads, cached_task, &a);
}

/* ---- Backward ---------------------------------------------------------------------------- */

static void backward_block(const attention *a, const head *h, size_t index, const block *b)
{
    block_scores(a, h, b, h->q, h->width, h->k_columns, h->scores);
    block_scores(a, h, b, h->dy, h->width, h->v_columns, h->dp);
    for (size_t i = 0; i < b->queries; i++) {
        size_t        query = b->first_query + i;
        lki_score_row row   = score_row(a, h, b, index, i);
        a->kernels->score_backward(&row, a->old_lse[index * a->shape->t + query], h->delta[query],
                                   h->dp + i * KEYS);
    }
    block_transposed(a, h, b, h->scores, h->dy, h->dv);
    block_transposed(a, h, b, h->dp, h->q, h->dk);
    block_values(a, h, b, h->dp, h->k);
}

/* Writes or adds rows of the head to the gradient `part`, from element `at` on. */
static void put_rows(const attention *a, const head *h, size_t rows, const float *from, int part,
                     size_t at)
{
    bool add = a->dx.add[part];
    for (size_t i = 0; a->dx.rows[part] != NULL && i < rows; i++) {
        const float *x = from + i * h->width;
        float       *y = (float *)a->dx.rows[part] + at + i * a->dx.stride[part];
        if (!add)
            memcpy(y, x, a->size * sizeof *y);
        for (size_t d = 0; add && d < a->size; d++)
            y[d] += x[d];
    }
}

static void backward_queries(const attention *a, const head *h, size_t index, size_t first_query)
{
    size_t end = lki_min(a->shape->t, first_query + QUERIES);
    for (size_t first_key = 0; first_key < end; first_key += KEYS) {
        block b = block_at(a->shape->t, first_query, first_key);
        backward_block(a, h, index, &b);
    }
    put_rows(a, h, end - first_query, h->out, Q,
             query_row(a->shape, index, first_query, a->dx.stride[Q]));
}

/* Computes the gradients of a head of queries, and adds to those of its keys and values. */
static void backward_head(const attention *a, const head *h, size_t index)
{
    size_t       t = a->shape->t, c = a->shape->c;
    const float *dy = a->dy + query_row(a->shape, index, 0, c);

    copy_rows(h, t, a->size, a->x.stride[Q], queries_of(a, index), h->q);
    copy_rows(h, t, a->size, c, dy, h->dy);
    for (size_t i = 0; i < t; i++)
        h->delta[i] = a->kernels->dot(a->size, dy + i * c,
                                      a->old_y + query_row(a->shape, index, i, c));
    for (size_t query = 0; query < t; query += QUERIES)
        backward_queries(a, h, index, query);
}

static void backward_task(void *context, size_t task, uint32_t thread)
{
    const attention *a = context;
    size_t t = a->shape->t, group = group_of(a->shape), first = task * group;
    head   h;

    head_open(a, first, thread, &h);
    copy_rows(&h, t, a->size, a->x.stride[K], keys_of(a, first, K), h.k);
    a->kernels->pack_transposed(t, a->size, keys_of(a, first, V), a->x.stride[V], h.v_columns);
    for (size_t i = 0; i < group; i++) {
        h.later = i > 0;
        backward_head(a, &h, first + i);
    }
    put_rows(a, &h, t, h.dk, K, key_row(a->shape, first, 0, a->dx.stride[K]));
    put_rows(a, &h, t, h.dv, V, key_row(a->shape, first, 0, a->dx.stride[V]));
}

void lki_attention_backward(lk_exec *exec, const lki_attention_shape *shape,
                            lki_attention_input x, const float *y, const float *lse,
                            const float *dy, lki_attention_gradient dx, void *scratch)
{
    attention a = attention_of(exec, shape, x, scratch);
    a.old_y   = y;
    a.old_lse = lse;
    a.dy      = dy;
    a.dx      = dx;
    lki_pool_run(lki_exec_pool(exec), shape->b * shape->heads / group_of(shape), backward_task, &a);
}

/* Returns the widths of the parts of a packed row. */
static void packed(const lki_attention_shape *s, size_t from[3], size_t stride[3])
{
    size_t c = s->c, keys = c / group_of(s);
    for (int i = Q; i <= V; i++) {
        from[i]   = i == Q ? 0 : i == K ? c : c + keys;
        stride[i] = c + 2 * keys;
    }
}

lki_attention_input lki_attention_packed(const lki_attention_shape *shape, lk_dtype type,
                                         const void *qkv)
{
    lki_attention_input x;
    size_t              from[3];
    packed(shape, from, x.stride);
    for (int i = Q; i <= V; i++)
        x.rows[i] = (const char *)qkv + from[i] * lk_dtype_bytes(type);
    return x;
}

lki_attention_gradient lki_attention_packed_gradient(const lki_attention_shape *shape,
                                                     lk_dtype type, void *dqkv, bool add)
{
    lki_attention_gradient dx = { .add = { add, add, add } };
    size_t                 from[3];
    packed(shape, from, dx.stride);
    for (int i = Q; i <= V; i++)
        dx.rows[i] = (char *)dqkv + from[i] * lk_dtype_bytes(type);
    return dx;
}

/* norm.c -- LayerNorm and BatchNorm, forward and backward.
 *
 * The work of LayerNorm is divided by rows, and the work on the gradients of its parameters by
 * blocks of columns.  Every element is one chain over the rows in order, which continues from the
 * contents of the buffer.
 *
 * BatchNorm sums columns of a matrix that may have sixteen columns and a hundred thousand rows, so
 * rows are also divided.  On every machine there are CHUNKS chunks, whose sums are added by a
 * balanced tree.  Columns are processed in slabs, so that the chunks' partial sums fit on the
 * stack.
 *
 *      chunk k of `rows` rows is [k rows / 8, (k + 1) rows / 8); its four chains and their sum
 *      are in isa/norm.inc; the tree is ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))
 *
 * Cost: BatchNorm reads x three times in the forward pass, and x and dy twice in the backward pass.
 * A slab's rows are whole cache lines if the number of channels is a multiple of 16.  The residual
 * sum and the ReLU after it, and their gradients, are part of these passes.
 */
#include "base/memory.h"
#include "tensor/exec.h"
#include "tensor/isa/kernels.h"
#include "tensor/ops.h"

enum {
    CHUNKS           = 8,
    SLAB = LKI_COLUMNS_MAX, /* 8 chunks x 2 sums x 128 floats are 8 KiB of stack */
    ROWS_PER_TASK    = 32,
    COLUMNS_PER_TASK = 64,
};

static const float epsilon = 1e-5f;

typedef struct {
    const lki_nn_kernels *kernels;
    lki_norm_rows         all; /* the whole width */
    const float          *beta;
    void                 *y;
    float                *mean, *rstd;
    float                *dgamma, *dbeta;
} layernorm;

/* Returns the address of element `i` of `values`, whose type is the type of the norm. */
static const void *norm_at(const lki_norm_rows *t, const void *values, size_t i)
{
    return (const char *)values + i * lk_dtype_bytes(t->type);
}

static void layernorm_task(void *context, size_t index, uint32_t thread)
{
    const layernorm *n = context;
    size_t first = index * ROWS_PER_TASK, c = n->all.columns;
    size_t rows  = lki_min(ROWS_PER_TASK, n->all.rows - first);
    (void)thread;
    n->kernels->layernorm(n->all.type, rows, c, norm_at(&n->all, n->all.x, first * c),
                          n->all.gamma, n->beta,
                          (char *)n->y + first * c * lk_dtype_bytes(n->all.type), n->mean + first,
                          n->rstd + first);
}

void lki_layernorm(lk_exec *exec, lk_dtype type, size_t rows, size_t c, const void *x,
                   const float *gamma, const float *beta, void *y, float *mean, float *rstd)
{
    layernorm n = {
        .kernels = lki_exec_kernels(exec)->nn,
        .all     = { .type = type, .rows = rows, .columns = c, .x = x, .gamma = gamma },
        .beta    = beta,
        .y       = y,
        .mean    = mean,
        .rstd    = rstd,
    };
    lki_pool_run(lki_exec_pool(exec), (rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK, layernorm_task,
                 &n);
}

static void layernorm_dx_task(void *context, size_t index, uint32_t thread)
{
    const layernorm *n = context;
    lki_norm_rows    t = n->all;
    size_t first = index * ROWS_PER_TASK, at = first * t.stride;
    (void)thread;

    t.rows = lki_min(ROWS_PER_TASK, t.rows - first);
    t.x    = norm_at(&t, t.x, at);
    t.dy   = norm_at(&t, t.dy, at);
    t.dx   = (char *)t.dx + at * lk_dtype_bytes(t.type);
    t.mean += first;
    t.rstd += first;
    n->kernels->layernorm_dx(&t);
}

static void layernorm_dparams_task(void *context, size_t index, uint32_t thread)
{
    const layernorm *n = context;
    lki_norm_rows    t = n->all;
    size_t first = index * COLUMNS_PER_TASK;
    (void)thread;

    t.columns = lki_min(COLUMNS_PER_TASK, t.columns - first);
    t.x       = norm_at(&t, t.x, first);
    t.dy      = norm_at(&t, t.dy, first);
    n->kernels->layernorm_dparams(&t, n->dgamma + first, n->dbeta + first);
}

void lki_layernorm_backward(lk_exec *exec, lk_dtype type, size_t rows, size_t c, const void *x,
                            const float *gamma, const float *mean, const float *rstd,
                            const void *dy, void *dx, bool add, float *dgamma, float *dbeta)
{
    layernorm n = {
        .kernels = lki_exec_kernels(exec)->nn,
        .all     = { .type = type, .rows = rows, .columns = c, .stride = c, .x = x, .dy = dy,
                     .mean = mean, .rstd = rstd, .gamma = gamma, .dx = dx, .add = add },
        .dgamma  = dgamma,
        .dbeta   = dbeta,
    };
    lki_pool *pool = lki_exec_pool(exec);
    /* dx may be dy, so the gradients that read dy are computed first. */
    if (dgamma != NULL)
        lki_pool_run(pool, (c + COLUMNS_PER_TASK - 1) / COLUMNS_PER_TASK, layernorm_dparams_task,
                     &n);
    lki_pool_run(pool, (rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK, layernorm_dx_task, &n);
}

/* The work on the chunks of one slab of columns, and the memory of their sums.  Each pass over the
 * slab has the chunks of a thread's share in the opposite order of the previous pass, and so begins
 * with rows that are mostly still in the thread's cache. */
typedef struct slab slab;
struct slab {
    const lki_nn_kernels *kernels;
    lki_columns           all; /* the slab's columns, all rows */
    void (*work)(const slab *s, const lki_columns *chunk, size_t index);
    float (*sums)[SLAB], (*products)[SLAB]; /* one row for each chunk */
    size_t threads;
    bool   backwards;
};

/* Returns `values` advanced by `bytes` bytes; NULL remains NULL. */
static const void *rows_on(const void *values, size_t bytes)
{
    return values == NULL ? NULL : (const char *)values + bytes;
}

static void *writable_rows_on(void *values, size_t bytes)
{
    return values == NULL ? NULL : (char *)values + bytes;
}

static void slab_chunk(const slab *s, size_t index)
{
    lki_columns chunk = s->all;
    size_t first = index * chunk.rows / CHUNKS, last = (index + 1) * chunk.rows / CHUNKS;
    size_t bytes = first * chunk.stride * lk_dtype_bytes(chunk.type);

    chunk.rows  = last - first;
    chunk.x     = rows_on(chunk.x, bytes);
    chunk.dy    = rows_on(chunk.dy, bytes);
    chunk.plus  = rows_on(chunk.plus, bytes);
    chunk.out   = rows_on(chunk.out, bytes);
    chunk.y     = writable_rows_on(chunk.y, bytes);
    chunk.dplus = writable_rows_on(chunk.dplus, bytes);
    s->work(s, &chunk, index);
}

static void slab_task(void *context, size_t index, uint32_t thread)
{
    const slab *s      = context;
    size_t      begins = lki_pool_thread_of(CHUNKS, s->threads, index);
    size_t      first  = lki_pool_first(CHUNKS, s->threads, begins);
    size_t      end    = lki_pool_first(CHUNKS, s->threads, begins + 1);
    (void)thread;
    slab_chunk(s, s->backwards ? first + end - 1 - index : index);
}

static void slab_run(lk_exec *exec, slab *s,
                     void (*work)(const slab *s, const lki_columns *chunk, size_t index))
{
    s->work    = work;
    s->threads = lk_exec_threads(exec);
    lki_pool_run(lki_exec_pool(exec), CHUNKS, slab_task, s);
    s->backwards = !s->backwards;
}

static void work_sums(const slab *s, const lki_columns *chunk, size_t index)
{
    s->kernels->column_sums(chunk, s->sums[index]);
}

static void work_squares(const slab *s, const lki_columns *chunk, size_t index)
{
    s->kernels->column_squares(chunk, s->sums[index]);
}

static void work_products(const slab *s, const lki_columns *chunk, size_t index)
{
    s->kernels->column_products(chunk, s->sums[index], s->products[index]);
}

static void work_apply(const slab *s, const lki_columns *chunk, size_t index)
{
    (void)index;
    s->kernels->batchnorm_apply(chunk);
}

static void work_dx(const slab *s, const lki_columns *chunk, size_t index)
{
    (void)index;
    s->kernels->batchnorm_dx(chunk);
}

static float fold_chunks(float (*sums)[SLAB], size_t column)
{
    float pair[4];
    for (size_t i = 0; i < 4; i++)
        pair[i] = sums[2 * i][column] + sums[2 * i + 1][column];
    return (pair[0] + pair[1]) + (pair[2] + pair[3]);
}

/* Returns the call's columns from `first` on, prepared for the forward pass. */
static lki_columns forward_columns(const lki_batchnorm_args *a, size_t first, const float *mean,
                                   const float *rstd)
{
    lk_dtype type = a->type == LK_BF16 ? LK_BF16 : LK_F32;
    size_t   at   = first * lk_dtype_bytes(type);
    return (lki_columns){ .type    = type,
                          .rows    = a->rows,
                          .columns = lki_min(SLAB, a->c - first),
                          .stride  = a->c,
                          .x       = rows_on(a->x, at),
                          .gamma   = a->gamma + first,
                          .beta    = a->beta + first,
                          .mean    = mean,
                          .rstd    = rstd,
                          .y       = writable_rows_on(a->y, at),
                          .plus    = rows_on(a->plus, at),
                          .relu    = a->relu };
}

float lki_batchnorm_rstd(float variance)
{
    return 1.0f / __builtin_sqrtf(variance + epsilon);
}

void lki_batchnorm(lk_exec *exec, const lki_batchnorm_args *a)
{
    float sums[CHUNKS][SLAB];
    for (size_t first = 0; first < a->c; first += SLAB) {
        slab s = { .kernels = lki_exec_kernels(exec)->nn,
                   .all     = forward_columns(a, first, a->mean + first, a->rstd + first),
                   .sums    = sums };
        slab_run(exec, &s, work_sums);
        for (size_t i = 0; i < s.all.columns; i++)
            a->mean[first + i] = fold_chunks(sums, i) / (float)a->rows;
        slab_run(exec, &s, work_squares);
        for (size_t i = 0; i < s.all.columns; i++) {
            float squares      = fold_chunks(sums, i);
            a->rstd[first + i] = lki_batchnorm_rstd(squares / (float)a->rows);
            a->var[first + i]  = squares / (float)(a->rows > 1 ? a->rows - 1 : 1);
        }
        slab_run(exec, &s, work_apply);
    }
}

void lki_batchnorm_moments(lk_exec *exec, const lki_batchnorm_args *a, float *totals,
                           float *squares)
{
    float sums[CHUNKS][SLAB];
    for (size_t first = 0; first < a->c; first += SLAB) {
        slab s = { .kernels = lki_exec_kernels(exec)->nn,
                   .all     = forward_columns(a, first, a->mean + first, a->rstd + first),
                   .sums    = sums };
        slab_run(exec, &s, work_sums);
        for (size_t i = 0; i < s.all.columns; i++) {
            totals[first + i]  = fold_chunks(sums, i);
            a->mean[first + i] = totals[first + i] / (float)a->rows;
        }
        slab_run(exec, &s, work_squares);
        for (size_t i = 0; i < s.all.columns; i++)
            squares[first + i] = fold_chunks(sums, i);
    }
}

void lki_batchnorm_normalize(lk_exec *exec, const lki_batchnorm_args *a)
{
    for (size_t first = 0; first < a->c; first += SLAB) {
        slab s = { .kernels = lki_exec_kernels(exec)->nn,
                   .all     = forward_columns(a, first, a->mean + first, a->rstd + first) };
        slab_run(exec, &s, work_apply);
    }
}

/* Returns the call's columns from `first` on, prepared for the backward pass. */
static lki_columns backward_columns(const lki_batchnorm_args *a, size_t first,
                                    const float *mean_dy, const float *mean_dy_xhat)
{
    lk_dtype type = a->type == LK_BF16 ? LK_BF16 : LK_F32;
    size_t   at   = first * lk_dtype_bytes(type);
    return (lki_columns){ .type         = type,
                          .rows         = a->rows,
                          .columns      = lki_min(SLAB, a->c - first),
                          .stride       = a->c,
                          .x            = rows_on(a->x, at),
                          .dy           = rows_on(a->dy, at),
                          .mean         = a->mean + first,
                          .rstd         = a->rstd + first,
                          .gamma        = a->gamma + first,
                          .mean_dy      = mean_dy,
                          .mean_dy_xhat = mean_dy_xhat,
                          .y            = writable_rows_on(a->dx, at),
                          .add          = a->add,
                          .out          = a->relu ? rows_on(a->y, at) : NULL,
                          .add_plus     = a->add_plus,
                          .dplus        = writable_rows_on(a->dplus, at) };
}

void lki_batchnorm_backward(lk_exec *exec, const lki_batchnorm_args *a)
{
    float sums[CHUNKS][SLAB], products[CHUNKS][SLAB];
    for (size_t first = 0; first < a->c; first += SLAB) {
        float mean_dy[SLAB], mean_dy_xhat[SLAB];
        slab  s = { .kernels  = lki_exec_kernels(exec)->nn,
                    .all      = backward_columns(a, first, mean_dy, mean_dy_xhat),
                    .sums     = sums,
                    .products = products };
        slab_run(exec, &s, work_products);
        for (size_t i = 0; i < s.all.columns; i++) {
            float sum = fold_chunks(sums, i), product = fold_chunks(products, i);
            mean_dy[i]      = sum / (float)a->rows;
            mean_dy_xhat[i] = product / (float)a->rows;
            a->dbeta[first + i] += sum;
            a->dgamma[first + i] += product;
        }
        slab_run(exec, &s, work_dx);
    }
}

void lki_batchnorm_products(lk_exec *exec, const lki_batchnorm_args *a, float *totals,
                            float *products)
{
    float sums[CHUNKS][SLAB], by_xhat[CHUNKS][SLAB];
    for (size_t first = 0; first < a->c; first += SLAB) {
        slab s = { .kernels  = lki_exec_kernels(exec)->nn,
                   .all      = backward_columns(a, first, NULL, NULL),
                   .sums     = sums,
                   .products = by_xhat };
        slab_run(exec, &s, work_products);
        for (size_t i = 0; i < s.all.columns; i++) {
            totals[first + i]   = fold_chunks(sums, i);
            products[first + i] = fold_chunks(by_xhat, i);
        }
    }
}

void lki_batchnorm_dx(lk_exec *exec, const lki_batchnorm_args *a, const float *mean_dy,
                      const float *mean_dy_xhat)
{
    for (size_t first = 0; first < a->c; first += SLAB) {
        slab s = { .kernels = lki_exec_kernels(exec)->nn,
                   .all     = backward_columns(a, first, mean_dy + first, mean_dy_xhat + first) };
        slab_run(exec, &s, work_dx);
    }
}

void lki_batchnorm_apply(lk_exec *exec, const lki_batchnorm_args *a, const float *mean,
                         const float *var)
{
    for (size_t first = 0; first < a->c; first += SLAB) {
        float rstd[SLAB];
        slab  s = { .kernels = lki_exec_kernels(exec)->nn,
                    .all     = forward_columns(a, first, mean + first, rstd) };
        for (size_t i = 0; i < s.all.columns; i++)
            rstd[i] = lki_batchnorm_rstd(var[first + i]);
        slab_run(exec, &s, work_apply);
    }
}

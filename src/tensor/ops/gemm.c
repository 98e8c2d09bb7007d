/* gemm.c -- the matrix product, cut into tiles of c.
 *
 * What:   c = a b, each element one chain of fma over ascending k, from 0 or from what c holds.
 *         A chain leaves the registers every LKI_GEMM_K steps and goes on from c, which rounds
 *         nothing, so neither tiles nor threads nor the instruction set can show in the bits.
 * How:    For each slab of b that fits the shared buffer: all threads pack it into panels of
 *         16 VECTORS columns; then all threads take tiles of c, and for every panel height run
 *         the micro-kernels of isa/gemm.inc over it.  a is read where it stands,
 *         unless it is transposed or its rows lie a power of two apart and would evict each
 *         other: then the thread that needs a tile of it packs that.
 * Cost:   2 m n k flops; k n floats of b are read once and written once, a once per column tile.
 *         A micro-panel of a (14 x 384 floats) stays in the first-level cache while the panels
 *         of b (48 KiB each) come from the second.
 * Source: Goto, van de Geijn: "Anatomy of high-performance matrix multiplication", ACM TOMS
 *         34(3), 2008, sections 4 and 5.
 */
#include "base/memory.h"
#include "tensor/exec.h"

enum {
    TILE_ROWS    = LKI_GEMM_M, /* 112 x 384 floats of a stay in a second-level cache */
    SLAB_COLUMNS = 1280,       /* 384 x 1280 floats of b: 1.9 MiB; narrower tiles measured slower */
    FEW_ROWS     = 48,  /* up to here c is cut by columns only, and b packed where it is used */
    ALIASED      = 512, /* rows of a so many floats apart fall into the same cache sets */
};

/* A thread's buffer: packed a, then one panel of b. */
enum { PANEL_OFFSET = TILE_ROWS * LKI_GEMM_K + LKI_GEMM_ROWS_MAX };

typedef struct {
    const lki_gemm_args    *args;
    const lki_gemm_kernels *kernels;
    lk_exec                *exec;
    float                  *packed;
    size_t                  lda, ldb, ldc;
    size_t                  col, columns; /* the slab: columns of b and c ... */
    size_t                  k, depth;     /* ... and rows of b */
    size_t                  pack_panels;  /* panels a packing task takes */
    bool                    pack_a;
    size_t                  tile_rows, tile_columns, tiles_down;
} product;

static size_t divide_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

/* The slab is stored by blocks of LKI_GEMM_K rows; within a block, panel after panel. */
static size_t padded_columns(const product *p)
{
    return lki_round_up(p->columns, p->kernels->columns);
}

static void pack_task(void *context, size_t index, uint32_t thread)
{
    (void)thread;
    const product       *p      = context;
    const lki_gemm_args *g      = p->args;
    size_t               width  = p->kernels->columns;
    size_t               groups = divide_up(divide_up(p->columns, width), p->pack_panels);
    size_t               k0     = index / groups * LKI_GEMM_K;
    size_t               k      = lki_min(LKI_GEMM_K, p->depth - k0);
    size_t               first  = index % groups * p->pack_panels * width;
    size_t               end    = lki_min(first + p->pack_panels * width, p->columns);

    for (size_t j = first; j < end; j += width) {
        size_t       row = p->k + k0, col = p->col + j;
        const float *b = g->b + (g->transpose_b ? col * p->ldb + row : row * p->ldb + col);
        p->kernels->pack_b(g->transpose_b, lki_min(width, p->columns - j), k, b, p->ldb,
                           p->packed + k0 * padded_columns(p) + j * k);
    }
}

/* Rows of a as the micro-kernels take them: in place, or packed into the thread's buffer. */
static const float *operand_a(const product *p, size_t row, size_t m, size_t k0, size_t k,
                              uint32_t thread)
{
    const lki_gemm_args *g = p->args;
    const float         *a = g->a + (g->transpose_a ? k0 * p->lda + row : row * p->lda + k0);
    if (!p->pack_a)
        return a;
    float *packed = lki_exec_private(p->exec, thread);
    p->kernels->pack_a(g->transpose_a, m, k, a, p->lda, packed);
    return packed;
}

/* What follows the chains: bias and activation, while the tile is in the cache. */
static void finish(const product *p, const lki_gemm_block *block, size_t col)
{
    const lki_gemm_args *g = p->args;
    if (g->bias != NULL || g->activation != LKI_ACT_NONE)
        p->kernels->epilogue(block->m, block->n, g->bias == NULL ? NULL : g->bias + col,
                             g->activation, block->c,
                             g->pre == NULL ? NULL : g->pre + (block->c - g->c), p->ldc);
}

static void tile_task(void *context, size_t index, uint32_t thread)
{
    const product       *p     = context;
    const lki_gemm_args *g     = p->args;
    size_t               row   = index % p->tiles_down * p->tile_rows;
    size_t               j     = index / p->tiles_down * p->tile_columns;
    lki_gemm_block       block = {
              .m          = lki_min(p->tile_rows, g->m - row),
              .n          = lki_min(p->tile_columns, p->columns - j),
              .row_stride = p->lda,
              .k_stride   = 1,
              .packed     = p->pack_a,
              .b_row      = p->kernels->columns,
              .c          = g->c + row * p->ldc + p->col + j,
              .ldc        = p->ldc,
    };
    size_t k0 = 0;
    do { /* once even for k = 0: c must still be written */
        block.k         = lki_min(LKI_GEMM_K, p->depth - k0);
        block.b         = p->packed + k0 * padded_columns(p) + j * block.k;
        block.b_panel   = block.k * p->kernels->columns;
        block.from_zero = p->k + k0 == 0 && !g->accumulate;
        block.a         = operand_a(p, row, block.m, p->k + k0, block.k, thread);
        p->kernels->block(&block);
        k0 += block.k;
    } while (k0 < p->depth);
    if (p->k + p->depth == g->k)
        finish(p, &block, p->col + j);
}

/* Few rows: nothing that a thread packs is used by another, so it packs one panel, uses it while
 * it is in the cache, and goes on.  A whole panel of a b that is not transposed is read in place.
 */
static void panel_task(void *context, size_t index, uint32_t thread)
{
    const product       *p     = context;
    const lki_gemm_args *g     = p->args;
    size_t               width = p->kernels->columns, col = index * width;
    float               *panel = lki_exec_private(p->exec, thread) + PANEL_OFFSET;
    lki_gemm_block       block = {
              .m          = g->m,
              .n          = lki_min(width, g->n - col),
              .row_stride = p->lda,
              .k_stride   = 1,
              .packed     = p->pack_a,
              .c          = g->c + col,
              .ldc        = p->ldc,
    };
    size_t k0 = 0;
    do {
        const float *b  = g->b + (g->transpose_b ? col * p->ldb + k0 : k0 * p->ldb + col);
        block.k         = lki_min(LKI_GEMM_K, g->k - k0);
        block.from_zero = k0 == 0 && !g->accumulate;
        block.a         = operand_a(p, 0, g->m, k0, block.k, thread);
        block.b         = b;
        block.b_row     = p->ldb;
        if (g->transpose_b || block.n < width) {
            p->kernels->pack_b(g->transpose_b, block.n, block.k, b, p->ldb, panel);
            block.b     = panel;
            block.b_row = width;
        }
        p->kernels->block(&block);
        k0 += block.k;
    } while (k0 < g->k);
    finish(p, &block, col);
}

/* Tiles small enough that every thread gets several, yet whole micro-tiles. */
static void choose_tiles(product *p)
{
    size_t threads = lk_exec_threads(p->exec), width = p->kernels->columns;
    size_t wanted = threads == 1 ? 1 : 4 * threads;

    p->tile_rows    = lki_min(TILE_ROWS, lki_round_up(p->args->m, p->kernels->rows));
    p->tile_columns = padded_columns(p);
    while (divide_up(p->args->m, p->tile_rows) * divide_up(p->columns, p->tile_columns) < wanted) {
        if (p->tile_columns > 2 * width)
            p->tile_columns = lki_round_up(p->tile_columns / 2, width);
        else if (p->tile_rows > 2 * p->kernels->rows)
            p->tile_rows = lki_round_up(p->tile_rows / 2, p->kernels->rows);
        else
            break;
    }
    p->tiles_down  = divide_up(p->args->m, p->tile_rows);
    p->pack_panels = lki_max(1, divide_up(p->columns, width) / wanted);
}

static void run_slab(product *p)
{
    choose_tiles(p);
    size_t panels = divide_up(p->columns, p->kernels->columns);
    lki_exec_run(p->exec, divide_up(p->depth, LKI_GEMM_K) * divide_up(panels, p->pack_panels),
                 pack_task, p);
    lki_exec_run(p->exec, p->tiles_down * divide_up(p->columns, p->tile_columns), tile_task, p);
}

void lki_gemm(lk_exec *exec, const lki_gemm_args *args)
{
    product p = {
        .args    = args,
        .kernels = lki_exec_kernels(exec)->gemm,
        .exec    = exec,
        .packed  = lki_exec_shared(exec),
        .lda     = args->lda != 0      ? args->lda
                   : args->transpose_a ? args->m
                                       : args->k,
        .ldb     = args->ldb != 0      ? args->ldb
                   : args->transpose_b ? args->k
                                       : args->n,
        .ldc     = args->ldc != 0 ? args->ldc : args->n,
    };
    if (args->m == 0 || args->n == 0)
        return;
    p.pack_a = args->transpose_a || (p.lda % ALIASED == 0 && args->n >= 2 * p.kernels->columns);
    if (args->m <= FEW_ROWS) {
        p.pack_a = args->transpose_a;
        lki_exec_run(exec, divide_up(args->n, p.kernels->columns), panel_task, &p);
        return;
    }
    for (p.col = 0; p.col < args->n; p.col += p.columns) {
        p.columns   = lki_min(SLAB_COLUMNS, args->n - p.col);
        size_t room = LKI_EXEC_SHARED / padded_columns(&p) / LKI_GEMM_K * LKI_GEMM_K;
        p.k         = 0;
        do {
            p.depth = lki_min(room, args->k - p.k);
            run_slab(&p);
            p.k += p.depth;
        } while (p.k < args->k);
    }
}

void lk_gemm(lk_exec *exec, bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k,
             const float *a, const float *b, float *c, bool accumulate)
{
    lki_gemm_args args = { .transpose_a = transpose_a,
                           .transpose_b = transpose_b,
                           .accumulate  = accumulate,
                           .m           = m,
                           .n           = n,
                           .k           = k,
                           .a           = a,
                           .b           = b,
                           .c           = c };
    lki_gemm(exec, &args);
}

typedef struct {
    const lki_gemm_kernels *kernels;
    size_t                  m, n, each;
    const float            *dy;
    float                  *db;
} bias_sums;

static void bias_task(void *context, size_t index, uint32_t thread)
{
    (void)thread;
    const bias_sums *s = context;
    size_t           j = index * s->each;
    s->kernels->column_sums(s->m, lki_min(s->each, s->n - j), s->dy + j, s->n, s->db + j);
}

void lki_bias_backward(lk_exec *exec, size_t m, size_t n, const float *dy, float *db)
{
    size_t    each = lki_max(64, lki_round_up(divide_up(n, 2 * lk_exec_threads(exec)), 16));
    bias_sums sums = { lki_exec_kernels(exec)->gemm, m, n, each, dy, db };
    lki_exec_run(exec, divide_up(n, each), bias_task, &sums);
}

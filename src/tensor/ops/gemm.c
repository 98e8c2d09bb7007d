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
 *         bf16 values go in pairs, as words: see isa/gemm.h; all sizes here are in words.
 *         A result in bf16 is summed in the thread's buffer, over the whole of k, and rounded from
 *         there.
 * Cost:   2 m n k flops; k n floats of b are read once and written once, a once per column tile.
 *         A micro-panel of a (14 x 384 floats) stays in the first-level cache while the panels
 *         of b (48 KiB each) come from the second.
 * Source: Goto, van de Geijn: "Anatomy of high-performance matrix multiplication", ACM TOMS
 *         34(3), 2008, sections 4 and 5.
 */
#include "base/memory.h"
#include "tensor/exec.h"

enum {
    TILE_ROWS    = LKI_GEMM_M, /* 112 x 384 words of a stay in a second-level cache */
    SLAB_COLUMNS = 1280,       /* 384 x 1280 words of b: 1.9 MiB; narrower tiles measured slower */
    SUM_COLUMNS  = 640,        /* of a tile whose result is bf16: its sums fit the buffer */
    FEW_ROWS     = 48,  /* up to here c is cut by columns only, and b packed where it is used */
    ALIASED      = 512, /* rows of a so many words apart fall into the same cache sets */
};

/* A thread's buffer: packed a, then one panel of b, then the sums of a tile. */
enum {
    PANEL_OFFSET = TILE_ROWS * LKI_GEMM_K + LKI_GEMM_ROWS_MAX,
    SUMS_OFFSET  = PANEL_OFFSET + LKI_GEMM_K * 32,
};
_Static_assert(SUMS_OFFSET + TILE_ROWS * SUM_COLUMNS <= LKI_EXEC_PRIVATE, "buffer too small");

typedef struct {
    const lki_gemm_args    *args;
    const lki_kernels      *all;
    const lki_gemm_kernels *kernels;
    lk_exec                *exec;
    float                  *packed;
    lk_dtype                result;
    size_t                  bytes, pair;  /* of an operand's element; elements in a word */
    size_t                  steps;        /* words of k */
    size_t                  lda, ldb, ldc;
    size_t                  col, columns; /* the slab: columns of b and c ... */
    size_t                  k, depth;     /* ... and words of k */
    size_t                  pack_panels;  /* panels a packing task takes */
    bool                    pack_a;
    size_t                  tile_rows, tile_columns, tiles_down;
} product;

static size_t divide_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

/* The slab is stored by blocks of LKI_GEMM_K words; within a block, panel after panel. */
static size_t padded_columns(const product *p)
{
    return lki_round_up(p->columns, p->kernels->columns);
}

/* Elements of k in `words` from word `first` on. */
static size_t elements(const product *p, size_t first, size_t words)
{
    return lki_min(words * p->pair, p->args->k - first * p->pair);
}

static const void *operand(const product *p, const void *base, size_t row, size_t stride,
                           size_t column)
{
    return (const char *)base + (row * stride + column) * p->bytes;
}

/* The panel of b that starts at word k0, column j. */
static void pack_b(const product *p, size_t k0, size_t k, size_t j, size_t n, float *to)
{
    const lki_gemm_args *g   = p->args;
    size_t               row = k0 * p->pair;
    p->kernels->pack_b(g->transpose_b, n, elements(p, k0, k),
                       g->transpose_b ? operand(p, g->b, j, p->ldb, row)
                                      : operand(p, g->b, row, p->ldb, j), p->ldb, to);
}

static void pack_task(void *context, size_t index, uint32_t thread)
{
    (void)thread;
    const product *p      = context;
    size_t         width  = p->kernels->columns;
    size_t         groups = divide_up(divide_up(p->columns, width), p->pack_panels);
    size_t         k0     = index / groups * LKI_GEMM_K;
    size_t         k      = lki_min(LKI_GEMM_K, p->depth - k0);
    size_t         first  = index % groups * p->pack_panels * width;
    size_t         end    = lki_min(first + p->pack_panels * width, p->columns);

    for (size_t j = first; j < end; j += width)
        pack_b(p, p->k + k0, k, p->col + j, lki_min(width, p->columns - j),
               p->packed + k0 * padded_columns(p) + j * k);
}

/* Rows of a as the micro-kernels take them: in place, or packed into the thread's buffer. */
static const float *operand_a(const product *p, size_t row, size_t m, size_t k0, size_t k,
                              uint32_t thread)
{
    const lki_gemm_args *g = p->args;
    const void          *a = g->transpose_a ? operand(p, g->a, k0 * p->pair, p->lda, row)
                                            : operand(p, g->a, row, p->lda, k0 * p->pair);
    if (!p->pack_a)
        return a;
    float *packed = lki_exec_private(p->exec, thread);
    p->kernels->pack_a(g->transpose_a, m, elements(p, k0, k), a, p->lda, packed);
    return packed;
}

/* Where the chains of the tile at (row, col) live: in c, or in the thread's buffer. */
static void place_sums(const product *p, lki_gemm_block *block, size_t row, size_t col,
                       uint32_t thread)
{
    const lki_gemm_args *g = p->args;
    if (p->result == LK_F32) {
        block->c   = (float *)g->c + row * p->ldc + col;
        block->ldc = p->ldc;
        return;
    }
    block->c   = lki_exec_private(p->exec, thread) + SUMS_OFFSET;
    block->ldc = block->n;
    for (size_t i = 0; g->accumulate && i < block->m; i++)
        p->all->elementwise->convert(block->n, LK_BF16,
                                     (const uint16_t *)g->c + (row + i) * p->ldc + col, LK_F32,
                                     block->c + i * block->n);
}

/* What follows the chains, while the tile is in the cache. */
static void finish(const product *p, const lki_gemm_block *block, size_t row, size_t col)
{
    const lki_gemm_args *g  = p->args;
    size_t               at = (row * p->ldc + col) * lk_dtype_bytes(p->result);
    if (p->result == LK_F32 && g->bias == NULL && g->activation == LKI_ACT_NONE &&
        g->residual == NULL)
        return;
    p->all->gemm_ends->finish(&(lki_gemm_finish){
        .m          = block->m,
        .n          = block->n,
        .sums       = block->c,
        .ld_sums    = block->ldc,
        .bias       = g->bias == NULL ? NULL : g->bias + col,
        .activation = g->activation,
        .type       = p->result,
        .c          = (char *)g->c + at,
        .pre        = g->pre == NULL ? NULL : (char *)g->pre + at,
        .residual   = g->residual == NULL ? NULL : (const char *)g->residual + at,
        .ldc        = p->ldc,
    });
}

static void tile_task(void *context, size_t index, uint32_t thread)
{
    const product *p     = context;
    size_t         row   = index % p->tiles_down * p->tile_rows;
    size_t         j     = index / p->tiles_down * p->tile_columns;
    lki_gemm_block block = {
        .m          = lki_min(p->tile_rows, p->args->m - row),
        .n          = lki_min(p->tile_columns, p->columns - j),
        .row_stride = p->lda / p->pair,
        .k_stride   = 1,
        .packed     = p->pack_a,
        .b_row      = p->kernels->columns,
    };
    place_sums(p, &block, row, p->col + j, thread);
    size_t k0 = 0;
    do { /* once even for k = 0: c must still be written */
        block.k         = lki_min(LKI_GEMM_K, p->depth - k0);
        block.b         = p->packed + k0 * padded_columns(p) + j * block.k;
        block.b_panel   = block.k * p->kernels->columns;
        block.from_zero = p->k + k0 == 0 && !p->args->accumulate;
        block.a         = operand_a(p, row, block.m, p->k + k0, block.k, thread);
        p->kernels->block(&block);
        k0 += block.k;
    } while (k0 < p->depth);
    if (p->k + p->depth == p->steps)
        finish(p, &block, row, p->col + j);
}

/* One panel of b for a tile of few rows: nothing that a thread packs is used by another, so it
 * packs one panel, uses it while it is in the cache, and goes on.  A whole panel of an FP32 b that
 * is not transposed is read in place. */
static void panel_task(void *context, size_t index, uint32_t thread)
{
    const product       *p     = context;
    const lki_gemm_args *g     = p->args;
    size_t               width = p->kernels->columns;
    size_t               row   = index % p->tiles_down * p->tile_rows;
    size_t               col   = index / p->tiles_down * width;
    float               *panel = lki_exec_private(p->exec, thread) + PANEL_OFFSET;
    lki_gemm_block       block = {
              .m          = lki_min(p->tile_rows, g->m - row),
              .n          = lki_min(width, g->n - col),
              .row_stride = p->lda / p->pair,
              .k_stride   = 1,
              .packed     = p->pack_a,
    };
    bool   in_place = !g->transpose_b && p->pair == 1 && block.n == width;
    size_t k0       = 0;
    place_sums(p, &block, row, col, thread);
    do {
        block.k         = lki_min(LKI_GEMM_K, p->steps - k0);
        block.from_zero = k0 == 0 && !g->accumulate;
        block.a         = operand_a(p, row, block.m, k0, block.k, thread);
        block.b         = in_place ? operand(p, g->b, k0, p->ldb, col) : panel;
        block.b_row     = in_place ? p->ldb : width;
        if (!in_place)
            pack_b(p, k0, block.k, col, block.n, panel);
        p->kernels->block(&block);
        k0 += block.k;
    } while (k0 < p->steps);
    finish(p, &block, row, col);
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

static void run_panels(product *p)
{
    p->tile_rows  = lki_min(TILE_ROWS, p->args->m);
    p->tiles_down = divide_up(p->args->m, p->tile_rows);
    size_t panels = divide_up(p->args->n, p->kernels->columns);
    lki_exec_run(p->exec, p->tiles_down * panels, panel_task, p);
}

/* Rows in place are words apart; packing costs little where they would evict each other. */
static bool must_pack_a(const product *p)
{
    const lki_gemm_args *g = p->args;
    return g->transpose_a ||
           (p->pair == 2 && (p->lda % 2 != 0 || g->k % 2 != 0 || (uintptr_t)g->a % 4 != 0)) ||
           (p->lda / p->pair % ALIASED == 0 && g->n >= 2 * p->kernels->columns && g->m > FEW_ROWS);
}

/* The columns of a slab: a result in bf16 needs all of k at once, as its sums have no place. */
static size_t slab_columns(const product *p)
{
    if (p->result == LK_F32)
        return SLAB_COLUMNS;
    return lki_min(SUM_COLUMNS, LKI_EXEC_SHARED / lki_max(p->steps, 1) / p->kernels->columns *
                                    p->kernels->columns);
}

void lki_gemm(lk_exec *exec, const lki_gemm_args *args)
{
    const lki_kernels *all   = lki_exec_kernels(exec);
    bool               brain = args->operands == LK_BF16;
    product            p     = {
                      .args    = args,
                      .all     = all,
                      .kernels = brain ? all->gemm_bf16 : all->gemm,
                      .exec    = exec,
                      .packed  = lki_exec_shared(exec),
                      .result  = args->result == LK_BF16 ? LK_BF16 : LK_F32,
                      .bytes   = brain ? 2 : 4,
                      .pair    = brain ? 2 : 1,
                      .lda     = args->lda != 0 ? args->lda : args->transpose_a ? args->m : args->k,
                      .ldb     = args->ldb != 0 ? args->ldb : args->transpose_b ? args->k : args->n,
                      .ldc     = args->ldc != 0 ? args->ldc : args->n,
    };
    if (args->m == 0 || args->n == 0)
        return;
    p.steps      = divide_up(args->k, p.pair);
    p.pack_a     = must_pack_a(&p);
    size_t limit = slab_columns(&p);
    if (args->m <= FEW_ROWS || limit == 0) {
        run_panels(&p);
        return;
    }
    for (p.col = 0; p.col < args->n; p.col += p.columns) {
        p.columns   = lki_min(limit, args->n - p.col);
        size_t room = LKI_EXEC_SHARED / padded_columns(&p);
        p.k         = 0;
        do {
            p.depth = p.steps - p.k <= room ? p.steps - p.k : room / LKI_GEMM_K * LKI_GEMM_K;
            run_slab(&p);
            p.k += p.depth;
        } while (p.k < p.steps);
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

/* gemm_turned.c -- products of few rows with the transpose of a large matrix, such as y = x w'.
 *
 * What:   c = a b', where b (n, k) has many more rows than a (m, k).  The micro-kernels need panels
 *         of columns of their right operand, so lki_gemm() would pack b, the larger one, to use it
 *         a few times.  Here c' = b a' is computed: b is the left operand, read row by row in
 *         place, and the smaller `a` is packed.
 * How:    Threads divide the rows of `a` into groups of panels, and the rows of b into shares.  A
 *         thread packs its rows of `a` and reads its rows of b, so the division with the fewest of
 *         both is chosen.  Two threads have half of b each, which is mostly in their caches when
 *         the weights are updated.  A thread sums its part of c' in its buffer, some rows of b at a
 *         time and over the whole of k, and transposes it, in blocks of 16 x 16, into columns of c,
 *         which it then finishes while they are in cache.  Threads wait only at the end.
 * Order:  each element is the same chain of fma over ascending k; the order of the two factors
 *         does not affect rounding.
 * Cost:   m k floats are packed instead of n k; m n floats are transposed.
 */
#include "tensor/ops/gemm_turned.h"

#include "base/memory.h"
#include "tensor/exec.h"
#include "tensor/isa/kernels.h"

enum {
    MOST_ROWS   = 384,  /* rows of `a` whose panels of a block of k stay in a second-level cache */
    LEAST_DEPTH = 128,  /* minimum k: transposing costs as much as some steps along k */
    TILE_ROWS   = 112,  /* rows of b at a time */
    ALIASED     = 1024, /* distance in floats at which rows of b fall into the same cache sets */
};
_Static_assert((TILE_ROWS + LKI_GEMM_ROWS_MAX) * MOST_ROWS <= LKI_EXEC_PRIVATE,
               "a thread's buffer is too small");

typedef struct {
    const lki_gemm_args *args;
    const lki_kernels   *all;
    lk_exec             *exec;
    size_t               lda, ldb, ldc;
    size_t               width, panels;  /* width of a panel of a; number of panels */
    /* groups of panels; parts of the rows of b in each group */
    size_t               groups, shares;
} turned;

/* A thread's part: some rows of `a` and of b. */
typedef struct { size_t first, rows, padded, begin, end; float *packed; } part;

static bool is_worth_it(const turned *t)
{
    const lki_gemm_args *g = t->args;
    size_t               padded = t->panels * t->width;
    return g->operands != LK_BF16 && g->result != LK_BF16 && g->transpose_b && !g->transpose_a &&
           !g->accumulate && g->m <= MOST_ROWS && g->n >= 2 * g->m && g->k >= LEAST_DEPTH &&
           8 * g->m >= 7 * padded && t->shares * padded * g->k <= LKI_EXEC_SHARED &&
           t->ldb % ALIASED != 0;
}

/* Returns the number of groups of panels with which a thread has the fewest rows of `a` and of b.
 * Threads share both evenly, and all packed rows of `a` fit into the shared buffer. */
static size_t count_groups(const turned *t, size_t threads)
{
    const lki_gemm_args *g    = t->args;
    size_t               most = lki_max(1, lki_min(t->panels, threads));
    while (threads % most != 0 || t->panels % most != 0)
        most--;
    size_t best = most;
    for (size_t groups = most - 1; groups > 0; groups--) {
        bool fits = threads / groups * t->panels * t->width * g->k <= LKI_EXEC_SHARED;
        if (most % groups == 0 && fits &&
            g->m / groups + g->n * groups / threads < g->m / best + g->n * best / threads)
            best = groups;
    }
    return best;
}

static part part_of(const turned *t, size_t thread)
{
    const lki_gemm_args *g = t->args;
    size_t each = t->panels / t->groups * t->width, units = lki_divide_up(g->n, t->all->gemm->rows);
    size_t share = thread / t->groups;
    part   p = { .first = thread % t->groups * each, .padded = each };
    p.rows   = lki_min(each, g->m - p.first);
    p.begin  = units * share / t->shares * t->all->gemm->rows;
    p.end    = lki_min(g->n, units * (share + 1) / t->shares * t->all->gemm->rows);
    p.packed = lki_exec_shared(t->exec) + thread * each * g->k;
    return p;
}

/* Packs a thread's rows of `a` by blocks of LKI_GEMM_K of k, and each block panel by panel. */
static void pack(const turned *t, const part *p)
{
    const lki_gemm_args *g = t->args;
    for (size_t k0 = 0; k0 < g->k; k0 += LKI_GEMM_K) {
        size_t k = lki_min(LKI_GEMM_K, g->k - k0);
        for (size_t i = 0; i < p->rows; i += t->width)
            t->all->gemm->pack_b(true, lki_min(t->width, p->rows - i), k,
                                 (const float *)g->a + (p->first + i) * t->lda + k0, t->lda,
                                 p->packed + k0 * p->padded + i * k);
    }
}

/* Transposes rows of c' from `row` on into columns of c, and finishes them. */
static void turn(const turned *t, const part *p, const lki_gemm_block *block, size_t row)
{
    const lki_gemm_args *g  = t->args;
    size_t               at = p->first * t->ldc + row;
    float               *c  = (float *)g->c + at;

    t->all->gemm_ends->turn(block->m, block->n, block->c, block->ldc, c, t->ldc);
    if (g->bias == NULL && g->activation == LKI_ACT_NONE && g->residual == NULL)
        return;
    lki_gemm_finish end = {
        .sums       = c,
        .ld_sums    = t->ldc,
        .bias       = g->bias == NULL ? NULL : g->bias + row,
        .activation = g->activation,
        .type       = LK_F32,
        .c          = c,
        .pre        = g->pre == NULL ? NULL : (float *)g->pre + at,
        .residual   = g->residual == NULL ? NULL : (const float *)g->residual + at,
        .ldc        = t->ldc,
    };
    t->all->gemm_ends->finish(&end, 0, 0, block->n, block->m);
}

static void tile(const turned *t, const part *p, size_t row, size_t rows, float *sums)
{
    const lki_gemm_args *g = t->args;
    lki_gemm_block block = {
        .m          = rows,
        .n          = p->rows,
        .row_stride = t->ldb,
        .b_row      = t->width,
        .c          = sums,
        .ldc        = p->padded,
    };
    for (size_t k0 = 0; k0 < g->k; k0 += block.k) {
        block.k         = lki_min(LKI_GEMM_K, g->k - k0);
        block.a         = (const float *)g->b + row * t->ldb + k0;
        block.b         = p->packed + k0 * p->padded;
        block.b_panel   = block.k * t->width;
        block.from_zero = k0 == 0;
        t->all->gemm->block(&block);
    }
    turn(t, p, &block, row);
}

static void thread_task(void *context, size_t index, uint32_t thread)
{
    const turned *t = context;
    part          p = part_of(t, index);
    size_t        each = TILE_ROWS / t->all->gemm->rows * t->all->gemm->rows;

    pack(t, &p);
    for (size_t row = p.begin; row < p.end; row += each)
        tile(t, &p, row, lki_min(each, p.end - row), lki_exec_private(t->exec, thread));
}

static turned turned_of(const lk_exec *exec, const lki_gemm_args *args)
{
    const lki_kernels *all = lki_exec_kernels(exec);
    turned             t   = {
                      .args   = args,
                      .all    = all,
                      .lda    = args->lda != 0 ? args->lda : args->k,
                      .ldb    = args->ldb != 0 ? args->ldb : args->k,
                      .ldc    = args->ldc != 0 ? args->ldc : args->n,
                      .width  = all->gemm->columns,
                      .panels = lki_divide_up(args->m, all->gemm->columns),
    };
    t.panels = lki_max(1, t.panels);
    t.groups = count_groups(&t, lk_exec_threads(exec));
    t.shares = lk_exec_threads(exec) / t.groups;
    return t;
}

bool lki_gemm_turns(const lk_exec *exec, const lki_gemm_args *args)
{
    turned t = turned_of(exec, args);
    return args->m > 0 && is_worth_it(&t);
}

bool lki_gemm_turned(lk_exec *exec, const lki_gemm_args *args)
{
    turned t = turned_of(exec, args);
    t.exec   = exec;
    if (args->m == 0 || !is_worth_it(&t))
        return false;
    lki_pool_each(lki_exec_pool(exec), thread_task, &t);
    return true;
}

/* gemm.c -- the matrix product, divided into tiles of c.
 *
 * What:   c = a b.  Each element is one chain of fma over ascending k, from 0 or from the value in
 *         c.  A chain is stored every LKI_GEMM_K steps and continues from c, without rounding.  So
 *         neither tiles nor threads nor the instruction set can change the bits.
 * How:    There are two ways.
 *         By groups: a thread takes a group of columns, packs its panels of b block by block of k,
 *         and runs the micro-kernels of isa/gemm_tile.inc over all rows.  Nothing is shared, and no
 *         thread waits.  If rows are few, the first micro-tiles pack a transposed b themselves
 *         while they multiply.
 *         By slabs: all threads first pack a slab of b, and then process tiles of c.  If `a` must
 *         be packed (it is transposed, or its rows would evict each other), each tile packs its
 *         part.  If b is not wide, kernels of 32 columns read it in place.  If `a` is packed as
 *         well, b is read panel by panel, and each panel is prefetched while the previous one is in
 *         use.  Kernels of 16 columns, which read one cache line of each row, gain from packed
 *         panels unless rows are few.
 *         Slabs are used if `a` must be packed, if b is read in place, or if there are more rows
 *         than columns.  With more rows, groups would be narrow and read `a` too often.
 *         bf16 values are processed in pairs, as words, and summed by chunks: see isa/gemm.h.  All
 *         sizes are in words.  A result in bf16 is summed in the thread's buffer, over the whole of
 *         k, and then rounded.  Each tile copies its part of an `a` that consists of windows.
 * Cost:   2 m n k flops; k n floats of b are read once and written once, `a` once per column tile.
 *         A micro-panel of `a` (14 x 384 floats) stays in the first-level cache while the panels
 *         of b (48 KiB each) are read from the second.
 * Source: Goto, van de Geijn: "Anatomy of high-performance matrix multiplication", ACM TOMS
 *         34(3), 2008, sections 4 and 5.
 */
#include "tensor/onednn/onednn.h"
#include "tensor/ops/gemm_product.h"
#include "tensor/ops/gemm_turned.h"

enum {
    TILE_ROWS     = LKI_GEMM_M, /* 112 x 384 words of `a` fit into a second-level cache */
    /* columns of a slab: 384 x 1280 words of b are 1.9 MiB; narrower slabs need more packing of
     * `a` */
    SLAB_COLUMNS  = 1280,
    NEAR_ROWS     = 64,   /* rows of a tile of windows that only so fit into NEAR_BYTES */
    NEAR_BYTES    = 48 << 10, /* of a first-level cache */
    TALL_ROWS     = 224,  /* rows of a tile if `a` is not packed */
    /* columns of a tile if `a` is not packed; all three matrices fit into a second-level cache */
    TALL_COLUMNS  = 256,
    PACKED_ROWS   = 256,  /* rows of a tile if `a` is packed and b is read panel by panel */
    WIDE          = 2304, /* from this many columns on, b is packed and not read in place */
    /* columns of a tile if the result is bf16; its sums fit into the buffer */
    SUM_COLUMNS   = 640,
    IN_PLACE_ROWS = 128,  /* rows up to which b is read in place by kernels that do not stream it */
    FEW_ROWS      = 48,   /* rows up to which b is packed panel by panel, or read in place */
    SOME_ROWS     = 384,  /* rows up to which the whole matrix `a` fits into a second-level cache */
    GROUP_COLUMNS = LKI_PRODUCT_PANELS, /* 384 x 256 words of b: 384 KiB of a second-level cache */
    GROUP_FEWER   = 96,   /* columns of a group if `a` has SOME_ROWS rows */
    /* distance in words at which rows of `a` fall into the same cache sets */
    ALIASED       = 1024,
    /* distance in words at which rows of a transposed b fall into two groups of cache sets */
    TURN_ALIASED  = 512,
    /* columns that a micro-kernel reads at once; b in place must have a multiple of them */
    LANES         = 16,
};

/* floats of a thread's buffer for the sums of a tile */
enum { SUMS_ROOM = LKI_EXEC_PRIVATE - LKI_PRODUCT_SUMS_AT };
_Static_assert((TILE_ROWS + LKI_GEMM_ROWS_MAX) * SUM_COLUMNS <= SUMS_ROOM &&
                   (TALL_ROWS + LKI_GEMM_ROWS_MAX) * TALL_COLUMNS <= SUMS_ROOM &&
                   (SOME_ROWS + LKI_GEMM_ROWS_MAX) * GROUP_FEWER <= SUMS_ROOM,
               "a thread's buffer is too small");
_Static_assert((PACKED_ROWS + LKI_GEMM_ROWS_MAX) * LKI_GEMM_K <= LKI_EXEC_PRIVATE, "the same");

typedef lki_product product;

/* Returns the padded width of the slab.  The slab is stored by blocks of LKI_GEMM_K words, and each
 * block panel by panel. */
static size_t padded_columns(const product *p)
{
    return lki_round_up(p->columns, p->kernels->columns);
}

static size_t pack_groups(const product *p)
{
    return lki_divide_up(lki_divide_up(p->columns, p->kernels->columns), p->pack_panels);
}

/* Returns the number of tasks that pack the slab. */
static size_t pack_tasks(const product *p)
{
    return lki_divide_up(p->depth, LKI_GEMM_K) * pack_groups(p);
}

static void pack_task(void *context, size_t index, uint32_t thread)
{
    (void)thread;
    const product *p      = context;
    size_t         width  = p->kernels->columns;
    size_t         groups = pack_groups(p);
    size_t         k0     = index / groups * LKI_GEMM_K;
    size_t         k      = lki_min(LKI_GEMM_K, p->depth - k0);
    size_t         first  = index % groups * p->pack_panels * width;
    size_t         end    = lki_min(first + p->pack_panels * width, p->columns);

    for (size_t j = first; j < end; j += width)
        lki_product_pack_b(p, p->k + k0, k, p->col + j, lki_min(width, p->columns - j),
                           p->packed + k0 * padded_columns(p) + j * k);
}

/* Returns true if `a` is packed and b is in place.  Each panel of b is then read once for many rows
 * of `a`. */
static bool by_columns(const product *p)
{
    return p->pack_a && p->b_in_place && p->result == LK_F32;
}

/* Returns the start of part `index` of `count` nearly equal parts of `total`, in whole units. */
static size_t share(size_t total, size_t unit, size_t count, size_t index)
{
    size_t units = lki_divide_up(total, unit);
    return lki_min(total, (units / count * index + lki_min(index, units % count)) * unit);
}

static void tile_task(void *context, size_t index, uint32_t thread)
{
    const product *p    = context;
    size_t         rows = p->kernels->rows, width = p->kernels->columns;
    size_t         down = index % p->tiles_down, across = index / p->tiles_down;
    size_t         row  = share(p->args->m, rows, p->tiles_down, down);
    size_t         j    = share(p->columns, width, p->tiles_across, across);
    lki_gemm_block block = {
        .m          = share(p->args->m, rows, p->tiles_down, down + 1) - row,
        .n          = share(p->columns, width, p->tiles_across, across + 1) - j,
        .by_columns = by_columns(p),
        .b_row      = width,
    };
    lki_product_place_sums(p, &block, row, p->col + j, thread);
    lki_gemm_finish end;
    size_t          k0 = 0;
    do { /* runs at least once, because c must be written even for k = 0 */
        block.k         = lki_min(LKI_GEMM_K, p->depth - k0);
        block.b         = p->packed + k0 * padded_columns(p) + j * block.k;
        block.b_panel   = block.k * width;
        if (p->kept != NULL) {
            block.b = lki_product_kept_b(p, p->k + k0, block.k, p->col + j);
        } else if (p->b_in_place) {
            block.b       = lki_operand_at(p->args->b, p->k + k0, p->ldb, p->col + j, p->b_bytes);
            block.b_row   = p->ldb;
            block.b_panel = width;
        }
        block.from_zero = p->k + k0 == 0 && !p->args->accumulate;
        lki_product_place_a(p, &block, row, p->k + k0, thread);
        k0 += block.k;
        if (p->k + k0 == p->steps)
            lki_product_place_end(p, &block, &end, row, p->col + j);
        p->kernels->block(&block);
        if (p->k + k0 == p->steps)
            lki_product_write_pixels(p, &block, row, p->col + j);
    } while (k0 < p->depth);
}

/* Returns true if the first tiles of a group pack b themselves.  With many rows the cost of packing
 * is negligible.  Not done if rows of b fall into the same cache sets, because they would then be
 * read again for each part. */
static bool turns_b(const product *p, const lki_gemm_block *block)
{
    size_t steps = p->kernels->turned_steps;
    return p->args->transpose_b && p->args->m <= FEW_ROWS && p->ldb % TURN_ALIASED != 0 &&
           steps > 0 && block->k % steps == 0 && block->n % p->kernels->columns == 0;
}

/* Finds the panels of b for words k0 .. k0 + k of a group.  They are packed now or by the group's
 * first tiles or, if few rows use them, read in place. */
static void group_b(const product *p, lki_gemm_block *block, size_t k0, size_t col, float *packed)
{
    const lki_gemm_args *g     = p->args;
    size_t               width = p->kernels->columns;

    block->b       = packed;
    block->b_row   = width;
    block->b_panel = width * block->k;
    if (p->kept != NULL) {
        block->b = lki_product_kept_b(p, k0, block->k, col);
        return;
    }
    if (p->b_in_place && block->n % LANES == 0) {
        block->b       = lki_operand_at(g->b, k0, p->ldb, col, p->b_bytes);
        block->b_row   = p->ldb;
        block->b_panel = width;
        return;
    }
    block->turned = NULL;
    if (turns_b(p, block)) {
        block->turned    = lki_operand_at(g->b, col, p->ldb, k0, p->b_bytes);
        block->ld_turned = p->ldb;
        block->room      = packed;
        return;
    }
    for (size_t j = 0; j < block->n; j += width)
        lki_product_pack_b(p, k0, block->k, col + j, lki_min(width, block->n - j),
                           packed + j * block->k);
}

/* Multiplies all rows of a part with the group's panels of b, for words k0 .. k0 + k. */
static void group_rows(const product *p, const lki_gemm_block *group, size_t k0, size_t row,
                       size_t col, uint32_t thread)
{
    size_t rows = p->kernels->rows, tiles = lki_divide_up(group->m, TILE_ROWS);
    for (size_t t = 0; t < tiles; t++) {
        lki_gemm_block  tile = *group;
        lki_gemm_finish end;
        size_t          first = share(group->m, rows, tiles, t);
        tile.m                = share(group->m, rows, tiles, t + 1) - first;
        lki_product_place_a(p, &tile, row + first, k0, thread);
        tile.c += first * tile.ldc;
        if (k0 + tile.k == p->steps)
            lki_product_place_end(p, &tile, &end, row + first, col);
        p->kernels->block(&tile);
        if (k0 + tile.k == p->steps)
            lki_product_write_pixels(p, &tile, row + first, col);
    }
}

/* Computes a group of columns for a part of the rows.  Only this thread uses the packed panels,
 * while they are in its cache. */
static void group_task(void *context, size_t index, uint32_t thread)
{
    const product *p     = context;
    size_t         rows  = p->kernels->rows, width = p->kernels->columns;
    size_t         down  = index % p->tiles_down, across = index / p->tiles_down;
    size_t         row   = share(p->args->m, rows, p->tiles_down, down);
    size_t         col   = share(p->args->n, width, p->tiles_across, across);
    lki_gemm_block group = {
        .m          = share(p->args->m, rows, p->tiles_down, down + 1) - row,
        .n          = share(p->args->n, width, p->tiles_across, across + 1) - col,
    };
    lki_product_place_sums(p, &group, row, col, thread);
    size_t k0 = 0;
    do { /* runs at least once, because c must be written even for k = 0 */
        group.k         = lki_min(LKI_GEMM_K, p->steps - k0);
        group.from_zero = k0 == 0 && !p->args->accumulate;
        group_b(p, &group, k0, col, lki_exec_private(p->exec, thread) + LKI_PRODUCT_B_AT);
        group_rows(p, &group, k0, row, col, thread);
        k0 += group.k;
    } while (k0 < p->steps);
}

/* Returns true if `rows` packed rows of windows, their sums, and a panel of b fit into a
 * first-level cache. */
static bool fit_near(const product *p, size_t rows)
{
    size_t words = (rows + p->kernels->columns) * p->steps + rows * p->args->n;
    return words * sizeof(float) <= NEAR_BYTES;
}

/* Returns the maximum rows of a tile whose `a` is packed. */
static size_t packed_rows(const product *p)
{
    bool near = p->args->windows != NULL && !fit_near(p, TILE_ROWS) && fit_near(p, NEAR_ROWS);
    return near ? NEAR_ROWS : by_columns(p) ? PACKED_ROWS : TILE_ROWS;
}

/* Chooses tiles so that all threads compute the same number of tiles, and so that a thread computes
 * several tiles if a single one would be too large.  Rows are divided first, because a packed `a`
 * is used by one tile only. */
static void choose_tiles(product *p)
{
    bool   tall    = !p->pack_a && p->pair == 1;
    size_t threads = lk_exec_threads(p->exec), m = p->args->m;
    size_t panels  = lki_divide_up(p->columns, p->kernels->columns);
    size_t wanted  = threads == 1 ? 1 : (by_columns(p) ? 2 : 4) * threads;
    size_t widest  = tall ? TALL_COLUMNS : by_columns(p) ? p->columns : SLAB_COLUMNS;
    size_t down    = lki_divide_up(m, tall ? TALL_ROWS : packed_rows(p));
    size_t across  = lki_divide_up(p->columns, widest);

    while (down * across < wanted || down * across % threads != 0)
        if (m / (down + 1) >= 4 * p->kernels->rows)
            down++;
        else if (across < panels / 2)
            across++;
        else
            break;
    p->tiles_down   = down;
    p->tiles_across = across;
    p->pack_panels  = lki_max(1, panels / wanted);
}

static void run_slab(product *p)
{
    choose_tiles(p);
    if (!p->b_in_place && p->kept == NULL)
        lki_exec_run(p->exec, pack_tasks(p), pack_task, p);
    lki_exec_run(p->exec, p->tiles_down * p->tiles_across, tile_task, p);
}

/* Returns true if few rows must be packed and b needs no packing.  Each thread then packs the rows
 * once. */
static bool packs_only_a(const product *p)
{
    return p->pack_a && p->b_in_place && p->args->n % LANES == 0;
}

/* Returns the maximum columns of a group: one panel if rows are few, and more if `a` is packed, so
 * that each packed row is used more often. */
static size_t group_columns(const product *p)
{
    if (packs_only_a(p))
        return p->args->n;
    if (p->args->m <= FEW_ROWS)
        return p->pack_a ? GROUP_FEWER : p->kernels->columns;
    return p->args->m <= SOME_ROWS || p->result != LK_F32 ? GROUP_FEWER : GROUP_COLUMNS;
}

/* Computes the product by groups, with the same number of groups for each thread.  Rows are divided
 * if there are too few columns. */
static void run_groups(product *p)
{
    size_t m = p->args->m, panels = lki_divide_up(p->args->n, p->kernels->columns);
    size_t threads = lk_exec_threads(p->exec);
    p->b_in_place  = !p->args->transpose_b && p->pair == 1 && m <= FEW_ROWS && p->kept == NULL;
    size_t wanted  = threads == 1 || packs_only_a(p) ? threads : 4 * threads;
    size_t across  = lki_max(lki_divide_up(p->args->n, group_columns(p)), wanted);
    size_t down    = p->result == LK_F32 ? 1 : lki_divide_up(m, p->pack_a ? TILE_ROWS : SOME_ROWS);

    p->tiles_across = lki_min(lki_round_up(across, threads), panels);
    while (p->tiles_across * down % threads != 0 && m / (down + 1) >= 2 * p->kernels->rows)
        down++;
    p->tiles_down = down;
    lki_exec_run(p->exec, p->tiles_down * p->tiles_across, group_task, p);
}

/* Returns true if `a` must be packed.  Rows in place must begin at whole words.  If rows would
 * evict each other from the cache, packing costs little. */
static bool must_pack_a(const product *p)
{
    const lki_gemm_args *g = p->args;
    return g->transpose_a || g->a == NULL ||
           (p->pair == 2 && (!p->kernels->in_place || p->lda % 2 != 0 || g->k != p->steps * 2 ||
                             (uintptr_t)g->a % 4 != 0)) ||
           (p->lda / p->pair % ALIASED == 0 && g->n >= 2 * p->kernels->columns && g->m > FEW_ROWS);
}

/* Returns true if b can be read in place.  Micro-kernels read whole panels, and rows that fall into
 * the same cache sets evict each other. */
static bool may_use_b_in_place(const product *p)
{
    const lki_gemm_args *g = p->args;
    return !g->transpose_b && p->pair == 1 && g->n % p->kernels->columns == 0 && g->n <= WIDE &&
           p->ldb % p->kernels->aliased_b != 0;
}

/* Returns true if reading b in place is faster than packing it. */
static bool uses_b_in_place(const product *p)
{
    const size_t m = p->args->m;
    return m > FEW_ROWS && p->kept == NULL && may_use_b_in_place(p) &&
           (p->kernels->streams_b || (!p->pack_a && m <= IN_PLACE_ROWS));
}

/* Returns the number of columns of a slab.  A result in bf16 needs all of k at once, because its
 * sums cannot be stored between slabs. */
static size_t slab_columns(const product *p)
{
    if (p->b_in_place || (p->kept != NULL && p->result == LK_F32))
        return p->args->n;
    if (p->kept != NULL)
        return SUM_COLUMNS;
    if (p->result == LK_F32)
        return SLAB_COLUMNS;
    return lki_min(SUM_COLUMNS, LKI_EXEC_SHARED / lki_max(p->steps, 1) / p->kernels->columns *
                                    p->kernels->columns);
}

static bool goes_by_groups(const product *p)
{
    const lki_gemm_args *g = p->args;
    if (g->m <= FEW_ROWS || slab_columns(p) == 0)
        return true;
    /* the sums of a group would not fit into the buffer */
    if (p->result != LK_F32 && g->m > SOME_ROWS)
        return false;
    return !p->pack_a && !p->b_in_place && (p->pair == 2 || g->m <= g->n);
}

static void run_slabs(product *p)
{
    size_t limit = slab_columns(p);
    for (p->col = 0; p->col < p->args->n; p->col += p->columns) {
        p->columns  = lki_min(limit, p->args->n - p->col);
        size_t room = p->b_in_place || p->kept != NULL ? p->steps
                                                       : LKI_EXEC_SHARED / padded_columns(p);
        p->k        = 0;
        do {
            p->depth = p->steps - p->k <= room ? p->steps - p->k : room / LKI_GEMM_K * LKI_GEMM_K;
            run_slab(p);
            p->k += p->depth;
        } while (p->k < p->steps);
    }
}

/* ---- Packs ------------------------------------------------------------------------------- */

/* Returns true if b has a pack.  A `b` that can be read in place has none, whatever g->m is. */
static bool has_pack(const product *p)
{
    return p->args->transpose_b || p->pair == 2 || !may_use_b_in_place(p);
}

/* Returns the number of the layout in which these kernels read b. */
static uint32_t layout_of(const product *p)
{
    bool wide = p->kernels->columns > LANES, pairs = p->kernels->in_place;
    return (uint32_t)wide | (uint32_t)pairs << 1 | (uint32_t)(p->kernels->unit > 2) << 2;
}

/* Packs the whole of b. */
static void make_pack(const product *p)
{
    product whole     = *p;
    size_t  panels    = lki_divide_up(p->args->n, p->kernels->columns);
    whole.columns     = p->args->n;
    whole.depth       = p->steps;
    whole.packed      = p->args->pack->data;
    whole.pack_panels = lki_max(1, panels / lk_exec_threads(p->exec) / 4);
    lki_exec_run(p->exec, pack_tasks(&whole), pack_task, &whole);
    lki_pack_end(p->args->pack, layout_of(p));
}

static void use_pack(product *p)
{
    lki_pack_turn turn = has_pack(p) ? lki_pack_begin(p->args->pack, layout_of(p)) : LKI_PACK_NONE;
    if (turn == LKI_PACK_MINE)
        make_pack(p);
    if (turn != LKI_PACK_NONE)
        p->kept = p->args->pack->data;
}

/* ---- The product ------------------------------------------------------------------------- */

static product product_of(const lk_exec *exec, const lki_gemm_args *args)
{
    const lki_kernels *all   = lki_exec_kernels(exec);
    bool               brain = args->operands == LK_BF16, wide = args->wide_b;
    product            p     = {
                      .args    = args,
                      .all     = all,
                      .kernels = brain ? all->bf16->gemm : all->gemm,
                      .result  = args->result == LK_BF16 ? LK_BF16 : LK_F32,
                      .bytes   = brain ? 2 : 4,
                      .b_bytes = brain && !wide ? 2 : 4,
                      .pair    = brain ? 2 : 1,
                      .lda     = args->lda != 0 ? args->lda : args->transpose_a ? args->m : args->k,
                      .ldb     = args->ldb != 0 ? args->ldb : args->transpose_b ? args->k : args->n,
                      .ldc     = args->ldc != 0 ? args->ldc : args->n,
    };
    LK_ASSERT(brain || !wide);
    LK_ASSERT(args->pixels == NULL || (p.result == LK_BF16 && !args->accumulate));
    p.pack_panel = wide ? p.kernels->pack_wide_b : p.kernels->pack_b;
    p.steps      = lki_gemm_words(p.kernels, p.pair, args->k);
    return p;
}

uint32_t lki_gemm_pack_layout(const lk_exec *exec, const lki_gemm_args *args)
{
    return layout_of(&(product){ .kernels = product_of(exec, args).kernels });
}

size_t lki_gemm_pack_bytes(const lk_exec *exec, const lki_gemm_args *args)
{
    product p = product_of(exec, args);
    if (args->m > LKI_PACKED_ROWS || !has_pack(&p) || lki_gemm_turns(exec, args))
        return 0;
    return lki_round_up(p.steps, LKI_CHUNK / 2) * lki_round_up(args->n, LKI_GEMM_COLUMNS_MAX) *
           sizeof(float);
}

void lki_gemm(lk_exec *exec, const lki_gemm_args *args)
{
    if (lki_other_gemm(exec, args) || lki_gemm_row(exec, args) || lki_gemm_turned(exec, args))
        return;
    product p = product_of(exec, args);
    p.exec    = exec;
    p.packed  = lki_exec_shared(exec);
    if (args->m == 0 || args->n == 0)
        return;
    use_pack(&p);
    p.pack_a     = must_pack_a(&p);
    p.b_in_place = uses_b_in_place(&p);
    if (goes_by_groups(&p))
        run_groups(&p);
    else
        run_slabs(&p);
}

void lk_gemm(lk_exec *exec, bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k,
             const float *a, const float *b, float *c, bool accumulate)
{
    lki_gemm_args args = { .transpose_a = transpose_a, .transpose_b = transpose_b,
                           .accumulate = accumulate, .m = m, .n = n, .k = k,
                           .a = a, .b = b, .c = c };
    lki_gemm(exec, &args);
}

/* gemm_parts.c -- the sum of the products of parts of k, by a tree.
 *
 * What:   c is the sum of count products, each over its own part of k.  Every product is the chain
 *         that lki_gemm() computes for that part alone, from 0.  The products are added by the
 *         canonical tree: neighbours first, then pairs of neighbours.
 * How:    There are three ways.  A product is short if k is small.  A thread then packs the
 *         operands of a tile of c over the whole of k, and the micro-kernels of isa/gemm_parts.inc
 *         add the parts in registers, or those of isa/gemm_chunk_parts.inc in the first-level
 *         cache.  If all parts of bf16 values are at most a chunk, those of isa/gemm_one_chunk.inc
 *         add them in registers, and those of isa/amx_parts.inc add pairs of them in tiles, unless
 *         values are so small that a sum can be subnormal.  In any other product, and on AMX tiles
 *         if a part is longer than SHORT_PART, a thread computes a tile of c part after part.  It
 *         merges the parts like a binary counter, in its buffer, so that the products are never
 *         stored in memory.
 * Cost:   that of one product over the whole of k, and count - 1 additions for each element of c.
 *         The products that are added are in registers or in the second-level cache.
 */
#include <string.h>

#include "base/memory.h"
#include "tensor/exec.h"
#include "tensor/isa/kernels.h"
#include "tensor/ops.h"
#include "tensor/part_counter.h"

enum {
    ROWS    = 56,  /* rows of a tile: 4 micro-panels of 14 */
    COLUMNS = 128, /* columns of a tile, whose 56 x 128 sums have 28 KiB */
    /* tiles of sums: those that wait for their neighbours, and the newest; log2(64) + 1 */
    SLOTS = 7,
};
/* Short products. */
enum {
    SHORT_K = 512,     /* maximum words along k */
    SHORT_B = 1 << 17, /* floats of the packed b of a tile: half of a thread's buffer */
    TILES   = 2,       /* minimum number of tiles for each thread */
    /* values of k up to which a part without the one_chunk kernels is faster in vector registers
     * than on AMX tiles, whose sums must be stored before they are added */
    SHORT_PART = 16,
};
_Static_assert(1 << (SLOTS - 1) == LKI_PARTS_MAX, "the counter has a slot for each level");

/* The offsets in a thread's buffer: packed a, packed b, and SLOTS tiles of sums. */
enum {
    B_AT     = (ROWS + LKI_GEMM_ROWS_MAX) * LKI_GEMM_K,
    SLOTS_AT = B_AT + LKI_GEMM_K * (COLUMNS + 64),
};
_Static_assert(SLOTS_AT + SLOTS * ROWS * COLUMNS <= LKI_EXEC_PRIVATE, "a thread's buffer is full");
_Static_assert(SHORT_B + (LKI_GEMM_M + LKI_GEMM_ROWS_MAX) * SHORT_K <= LKI_EXEC_PRIVATE,
               "the same for short products");

typedef struct {
    const lki_gemm_args           *args;
    const lki_parts               *parts;
    const lki_gemm_kernels        *kernels;
    const lki_elementwise_kernels *elementwise;
    lk_exec                       *exec;
    size_t bytes, pair; /* bytes of an operand's element; elements per word */
    size_t words;       /* words of all parts */
    size_t lda, ldb, ldc;
    size_t down, across; /* numbers of tiles */

    const lki_gemm_one_chunk *one;    /* NULL: not in use */
    size_t                    height; /* of a part, for `one` */
} product;

/* A tile of c. */
typedef struct {
    size_t row, rows, column, columns;
} tile;

static const void *at(const void *base, size_t row, size_t stride, size_t column, size_t bytes)
{
    return (const char *)base + (row * stride + column) * bytes;
}

/* Returns the words of k elements of a packed operand. */
static size_t words_of(const product *p, size_t k)
{
    return lki_gemm_words(p->kernels, p->pair, k);
}

/* Packs elements k0 .. k0 + k of the tile's rows of `a`. */
static void pack_a(const product *p, const tile *t, size_t k0, size_t k, float *to)
{
    const lki_gemm_args *g = p->args;
    p->kernels->pack_a(g->transpose_a, t->rows, k,
                       g->transpose_a ? at(g->a, k0, p->lda, t->row, p->bytes)
                                      : at(g->a, t->row, p->lda, k0, p->bytes),
                       p->lda, to);
}

/* Packs elements k0 .. k0 + k of the tile's columns of b. */
static void pack_b(const product *p, const tile *t, size_t k0, size_t k, float *to)
{
    const lki_gemm_args *g     = p->args;
    size_t               width = p->kernels->columns, words = words_of(p, k);
    for (size_t j = 0; j < t->columns; j += width)
        p->kernels->pack_b(g->transpose_b, lki_min(width, t->columns - j), k,
                           g->transpose_b ? at(g->b, t->column + j, p->ldb, k0, p->bytes)
                                          : at(g->b, k0, p->ldb, t->column + j, p->bytes),
                           p->ldb, to + j * words);
}

/* Computes the tile's product over elements [begin, end) of k. */
static void multiply(const product *p, const tile *t, size_t begin, size_t end, float *room,
                     float *to)
{
    lki_gemm_block block = { .m        = t->rows,
                             .n        = t->columns,
                             .packed   = p->pair == 1,
                             .a        = room,
                             .b        = room + B_AT,
                             .b_row    = p->kernels->columns,
                             .c        = to,
                             .ldc      = t->columns };
    size_t         most = LKI_GEMM_K * p->pair, k0 = begin;
    do { /* runs at least once, because the product must be written even if the part is empty */
        size_t k         = lki_min(most, end - k0);
        block.from_zero  = k0 == begin;
        block.k          = words_of(p, k);
        block.row_stride = block.k;
        block.b_panel    = block.k * block.b_row;
        pack_a(p, t, k0, k, room);
        pack_b(p, t, k0, k, room + B_AT);
        p->kernels->block(&block);
        k0 += k;
    } while (k0 < end);
}

static float *place_of(const product *p, const tile *t, size_t row)
{
    return (float *)p->args->c + (t->row + row) * p->ldc + t->column;
}

/* Writes the root of the tree, the sum of its last two tree nodes, to the tile of c. */
static void add_to_result(const product *p, const tile *t, const float *left, const float *right)
{
    for (size_t i = 0; i < t->rows; i++)
        p->elementwise->add(LK_F32, t->columns, left + i * t->columns, right + i * t->columns,
                            place_of(p, t, i));
}

/* Merges the sum of part `i` with those of earlier parts. */
static void merge(const product *p, const tile *t, uint32_t i, float **slots)
{
    uint32_t slot = lki_part_slot(i);
    for (uint32_t k = 0; k < lki_part_merges(i); k++, slot--)
        if (i + 1 == p->parts->count && slot == 1)
            add_to_result(p, t, slots[0], slots[1]);
        else
            p->elementwise->add(LK_F32, t->rows * t->columns, slots[slot - 1], slots[slot],
                                slots[slot - 1]);
}

static void tile_task(void *context, size_t index, uint32_t thread)
{
    const product *p     = context;
    tile           t     = { .row = index % p->down * ROWS, .column = index / p->down * COLUMNS };
    float         *room  = lki_exec_private(p->exec, thread), *slots[SLOTS];
    size_t         begin = 0;

    t.rows    = lki_min(ROWS, p->args->m - t.row);
    t.columns = lki_min(COLUMNS, p->args->n - t.column);
    for (size_t i = 0; i < SLOTS; i++)
        slots[i] = room + SLOTS_AT + i * ROWS * COLUMNS;
    for (uint32_t i = 0; i < p->parts->count; begin = p->parts->ends[i++]) {
        multiply(p, &t, begin, p->parts->ends[i], room, slots[lki_part_slot(i)]);
        merge(p, &t, i, slots);
    }
    for (size_t i = 0; p->parts->count == 1 && i < t.rows; i++)
        memcpy(place_of(p, &t, i), slots[0] + i * t.columns, t.columns * sizeof *slots[0]);
}

/* ---- Short products ---------------------------------------------------------------------- */

/* Returns a number of columns that are whole panels of all kernels in use. */
static size_t width_of(const product *p)
{
    return lki_max(p->kernels->columns, p->one != NULL ? p->one->columns : 1);
}

/* Divides c among the threads into tiles that are as square as possible, because fewer values are
 * then packed.  The packed b of a tile fits into half of a thread's buffer. */
static void choose_tiles(product *p)
{
    size_t threads = lk_exec_threads(p->exec), wanted = threads == 1 ? 1 : TILES * threads;
    size_t m = p->args->m, n = p->args->n, width = width_of(p);
    size_t longest = lki_max(1, lki_max(p->words, p->height * p->parts->count));
    size_t widest  = SHORT_B / longest / width * width;

    p->down   = 1;
    p->across = lki_max(1, lki_divide_up(n, widest));
    while (p->down * p->across < wanted || p->down * p->across % threads != 0)
        if (m / p->down >= n / p->across && m / p->down >= 2 * p->kernels->rows)
            p->down++;
        else if (n / p->across >= 2 * width)
            p->across++;
        else
            break;
}

/* Calls pack() for the whole of k in FP32, and for each part in bf16.  Each part has `lines` rows
 * or columns of words. */
static void pack_short(const product *p, const tile *t, size_t lines, float *to,
                       void (*pack)(const product *p, const tile *t, size_t k0, size_t k,
                                    float *to))
{
    if (p->pair == 1) {
        pack(p, t, 0, p->args->k, to);
        return;
    }
    for (size_t i = 0, begin = 0; i < p->parts->count; begin = p->parts->ends[i++]) {
        size_t k = p->parts->ends[i] - begin;
        pack(p, t, begin, k, to);
        to += lines * words_of(p, k);
    }
}

/* Packs panels of columns of a transposed `a`, or of b, for the one_chunk kernels. */
static void pack_panels(const product *p, const void *from, size_t ld, size_t first, size_t columns,
                        void (*pack)(size_t n, size_t k, size_t height, const void *from,
                                     size_t ld, float *to),
                        float *to)
{
    size_t width = p->one->columns;
    for (size_t j = 0; j < columns; j += width)
        for (size_t i = 0, begin = 0; i < p->parts->count; begin = p->parts->ends[i++]) {
            pack(lki_min(width, columns - j), p->parts->ends[i] - begin, p->height,
                 at(from, begin, ld, first + j, p->bytes), ld, to);
            to += p->height * width;
        }
}

/* Returns true if no product of values of the tile's operands, and no sum of such products, can be
 * subnormal: all are multiples of the product of the last bits of the smallest operands. */
static bool are_normal(const product *p, const tile *t)
{
    enum { BIAS = 127, LAST_BIT = 7, LEAST = 2 * (BIAS + LAST_BIT) - 126 };
    const lki_gemm_one_chunk *one = p->one;
    size_t                    k   = p->args->k;
    uint32_t a = one->least_exponent(k, t->rows, at(p->args->a, 0, p->lda, t->row, 2), p->lda);
    uint32_t b = one->least_exponent(k, t->columns, at(p->args->b, 0, p->ldb, t->column, 2),
                                     p->ldb);
    return a > 0 && b > 0 && a + b >= LEAST;
}

/* Returns how many of `left` rows are packed next.  Only the last ones are no whole panels. */
static size_t next_rows(const product *p, size_t left, bool one)
{
    size_t rows = lki_divide_up(left, lki_divide_up(left, LKI_GEMM_M));
    return one ? lki_min(left, lki_round_up(rows, p->one->columns)) : rows;
}

/* Packs the operands of a tile over the whole of k, some rows of `a` at a time, and adds the
 * products of all parts in registers. */
static void short_task(void *context, size_t index, uint32_t thread)
{
    const product *p    = context;
    size_t         down = index % p->down, across = index / p->down, width = width_of(p);
    size_t         first = p->args->m * down / p->down, end = p->args->m * (down + 1) / p->down;
    size_t         units = lki_divide_up(p->args->n, width);
    float         *room  = lki_exec_private(p->exec, thread);
    tile t    = { .row = first, .rows = end - first, .column = units * across / p->across * width };
    t.columns = lki_min(p->args->n, units * (across + 1) / p->across * width) - t.column;

    bool one = p->one != NULL && are_normal(p, &t);
    if (one)
        pack_panels(p, p->args->b, p->ldb, t.column, t.columns, p->one->pack_b, room);
    else
        pack_short(p, &t, lki_round_up(t.columns, p->kernels->columns), room, pack_b);
    for (t.row = first; t.row < end; t.row += t.rows) {
        t.rows = next_rows(p, end - t.row, one);
        if (one)
            pack_panels(p, p->args->a, p->lda, t.row, t.rows, p->one->pack_a, room + SHORT_B);
        else
            pack_short(p, &t, t.rows, room + SHORT_B, pack_a);
        lki_gemm_parts_block block = { .m     = t.rows,
                                       .n     = t.columns,
                                       .k     = one ? p->height * p->parts->count : p->args->k,
                                       .a     = room + SHORT_B,
                                       .b     = room,
                                       .parts = p->parts,
                                       .c     = place_of(p, &t, 0),
                                       .ldc   = p->ldc };
        if (one)
            p->one->parts(&block);
        else
            p->kernels->parts(&block);
    }
}

static size_t longest_of(const lki_parts *parts)
{
    size_t longest = 0;
    for (size_t i = 0, begin = 0; i < parts->count; begin = parts->ends[i++])
        longest = lki_max(longest, parts->ends[i] - begin);
    return longest;
}

/* Takes the one_chunk kernels if they can be used. */
static void take_one_chunk(product *p, const lki_gemm_one_chunk *one, size_t longest)
{
    if (one == NULL || longest > LKI_CHUNK || !p->args->transpose_a || p->args->transpose_b)
        return;
    size_t height = lki_max(2, lki_round_up(longest, 2 * one->values) / one->values);
    if (height * p->parts->count > lki_min(SHORT_K, one->height_most))
        return;
    p->one    = one;
    p->height = height;
}

/* Takes the kernels of bf16 values. */
static void take_bf16(product *p, const lki_bf16_kernels *bf16)
{
    size_t longest = longest_of(p->parts);
    take_one_chunk(p, bf16->gemm->one_chunk, longest);
    p->kernels = p->one != NULL || longest <= SHORT_PART ? bf16->short_parts : bf16->gemm;
}

void lki_gemm_parts(lk_exec *exec, const lki_gemm_args *args, const lki_parts *parts)
{
    bool               brain = args->operands == LK_BF16;
    const lki_kernels *all   = lki_exec_kernels(exec);
    product            p     = {
                       .args        = args,
                       .parts       = parts,
                       .kernels     = all->gemm,
                       .elementwise = all->elementwise,
                       .exec        = exec,
                       .bytes       = brain ? 2 : 4,
                       .pair        = brain ? 2 : 1,
                       .lda         = args->lda != 0      ? args->lda
                                      : args->transpose_a ? args->m
                                                          : args->k,
                       .ldb         = args->ldb != 0      ? args->ldb
                                      : args->transpose_b ? args->k
                                                          : args->n,
                       .ldc         = args->ldc != 0 ? args->ldc : args->n,
                       .down        = lki_divide_up(args->m, ROWS),
                       .across      = lki_divide_up(args->n, COLUMNS),
    };
    LK_ASSERT(!args->accumulate && args->result != LK_BF16 && !args->wide_b);
    LK_ASSERT(parts->count <= LKI_PARTS_MAX && (parts->count & (parts->count - 1)) == 0);
    LK_ASSERT(parts->ends[parts->count - 1] == args->k);
    if (brain)
        take_bf16(&p, all->bf16);
    for (size_t i = 0, begin = 0; i < parts->count; begin = parts->ends[i++])
        p.words += words_of(&p, parts->ends[i] - begin);
    bool is_short = p.kernels->parts != NULL && p.words <= SHORT_K;
    if (is_short)
        choose_tiles(&p);
    lki_exec_run(exec, p.down * p.across, is_short ? short_task : tile_task, &p);
}

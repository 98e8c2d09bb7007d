/* tensor/isa/gemm.h -- the kernels of the matrix product that each instruction set provides.
 *
 * Both kinds of product run on words of four bytes, and k counts words.  In FP32 a word is one
 * value, and a sum is the chain sum = fma(a, b, sum).  In bf16 a word is two values, and products
 * are summed by chunks of LKI_CHUNK values of k (isa/gemm_chunks.inc).  Values are packed by fours
 * or by chunks, and missing values are +0.
 */
#ifndef LKI_TENSOR_ISA_GEMM_H
#define LKI_TENSOR_ISA_GEMM_H

#include "tensor/ops.h"

enum {
    /* words along k in a panel, which are whole chunks; sums continue in c from panel to panel */
    LKI_GEMM_K = 384,
    LKI_CHUNK  = 32, /* bf16 values of k whose products are summed before they are added */
    /* the maximum rows of any micro-tile; packing writes whole vectors */
    LKI_GEMM_ROWS_MAX    = 32,
    LKI_GEMM_COLUMNS_MAX = 32,  /* the maximum columns of a panel of b */
    LKI_GEMM_M           = 112, /* rows of a tile of c: 8 micro-panels of 14 */
};

/* The epilogue of a block of c, after its sums over k: c = activation(sums + bias) + residual.
 * `pre` receives the value before the activation.  bias, pre and residual may be NULL.  All
 * pointers are to the block's first row and column.  c, pre and residual have the type `type` (F32
 * or BF16) and rows ldc apart; c may equal `sums`. */
typedef struct {
    const float   *sums;
    size_t         ld_sums;
    const float   *bias;
    lki_activation activation;
    lk_dtype       type;
    void          *c, *pre;
    const void    *residual;
    size_t         ldc;
} lki_gemm_finish;

typedef struct {
    /* Finishes the `m` rows from `row` on and the `n` columns from `column` on. */
    void (*finish)(const lki_gemm_finish *finish, size_t row, size_t column, size_t m, size_t n);

    /* Transposes `from` (m, n) to `to` (n, m). */
    void (*turn)(size_t m, size_t n, const float *from, size_t ld_from, float *to, size_t ld_to);
} lki_gemm_ends;

/* Computes c (m, n) += a (m, k) b (k, n), or c = a b if `from_zero`.
 *
 * Operands: if `packed` is false, word (i, p) of a is a[i * row_stride + p]; otherwise `a` has the
 * layout of micro-panels that pack_a() writes.  In bf16, `a` always has rows of words: `packed` is
 * false.  b is n / columns panels of k rows of `columns` words each; rows are `b_row` words apart,
 * and panels `b_panel` words.
 *
 * Order: micro-tiles are computed along rows of c or, with `by_columns`, down its columns.  With
 * `by_columns` a panel of b is prefetched while the previous panel is in use.  In bf16 the order is
 * the kernels' choice.
 *
 * End: after the chains of a micro-tile, `bias` (n) and then `residual` (m, n; rows ldc apart) are
 * added to it in registers.  With `finish` it is then finished while it is in the first-level
 * cache.  All three may be NULL.
 *
 * Turned: with `turned`, b is not packed yet.  `turned` is its transpose, with rows `ld_turned`
 * apart, and the first row of micro-tiles packs it into `room` while it multiplies. n is then a
 * multiple of `columns`, and k a multiple of `turned_steps`.
 */
typedef struct {
    size_t                 m, n, k;
    const float           *a;
    size_t                 row_stride;
    bool                   packed, by_columns;
    const float           *b;
    size_t                 b_panel, b_row;
    const float           *turned;
    size_t                 ld_turned;
    float                 *room;
    float                 *c;
    size_t                 ldc;
    bool                   from_zero;
    const float           *bias, *residual;
    const lki_gemm_ends   *ends;
    const lki_gemm_finish *finish;
} lki_gemm_block;

/* Computes c (m, n) as the sum of the products of `parts` of k, added by the canonical tree.  `a`
 * is packed by pack_a(), and panel after panel of b by pack_b(): in FP32 over the whole of k, in
 * bf16 part after part. */
typedef struct {
    size_t           m, n, k;
    const float     *a, *b;
    const lki_parts *parts;
    float           *c;
    size_t           ldc;
} lki_gemm_parts_block;

/* Kernels of such a sum for bf16 values if each part is at most a chunk, and no operand, product or
 * sum can be subnormal.  Operands are panels of `columns` columns, which the packing functions
 * write for part after part.  All parts have the same number of words along k, their height, which
 * is even; lki_gemm_parts_block.k is the height of all parts together. */
typedef struct {
    size_t columns;
    size_t values;      /* values of k in a word */
    size_t height_most; /* height of all parts up to which these kernels are the faster ones */

    void (*parts)(const lki_gemm_parts_block *block);

    /* Packs n columns of k rows of values, with zeros in the rest of the panel's columns and of the
     * height: the transposed `a`, or b. */
    void (*pack_a)(size_t n, size_t k, size_t height, const void *from, size_t ld, float *to);
    void (*pack_b)(size_t n, size_t k, size_t height, const void *from, size_t ld, float *to);

    /* Returns the least biased exponent of all values of x (rows, n) that are not zero, or a large
     * number if all are zero. */
    uint32_t (*least_exponent)(size_t rows, size_t n, const void *x, size_t ld);
} lki_gemm_one_chunk;

/* The kernels of one kind of product.  Operands are float or uint16_t (bf16). k and strides of the
 * packing functions are in elements. */
typedef struct {
    size_t rows, columns; /* size of the micro-tile that is held in registers */
    size_t unit;          /* words of which k of packed operands is a multiple */
    bool   in_place;      /* rows of whole words need no packing: pack_a() would only copy them */
    size_t turned_steps;  /* steps that are packed at a time in a `turned` block; 0: unsupported */
    bool   streams_b;     /* for many rows, b in place is as fast as packed b */
    /* distance in words at which rows of b in place fall into too few cache sets */
    size_t aliased_b;

    void (*block)(const lki_gemm_block *block);
    void (*parts)(const lki_gemm_parts_block *block); /* NULL: unsupported */
    const lki_gemm_one_chunk *one_chunk;              /* NULL: unsupported */

    /* Packs a (m, k) or, transposed, (k, m): in FP32 into micro-panels of nearly equal height, in
     * bf16 into rows of words.  `to` has LKI_GEMM_ROWS_MAX words of slack. */
    void (*pack_a)(bool transposed, size_t m, size_t k, const void *a, size_t lda, float *to);

    /* Packs a panel of n columns of b (n <= `columns`): rows of `columns` words, with zeros after
     * the first n words of a row.  b is (k, n) or, transposed, (n, k). */
    void (*pack_b)(bool transposed, size_t n, size_t k, const void *b, size_t ldb, float *to);

    /* Packs a panel of floats, which are rounded to the operands' type; NULL in FP32. */
    void (*pack_wide_b)(bool transposed, size_t n, size_t k, const void *b, size_t ldb, float *to);

    /* Packs values `at` .. `at` + `count` - 1 of rows first .. first + rows - 1 of windows, as the
     * columns of a panel of b that is not transposed.  `scratch` has room for `rows` rows of
     * `columns` values.  NULL in FP32. */
    void (*pack_window_columns)(const lki_windows *windows, size_t first, size_t rows, size_t at,
                                size_t count, uint16_t *scratch, float *to);

    /* Packs the same values as rows of an `a` that is not transposed. */
    void (*pack_windows)(const lki_windows *windows, size_t first, size_t rows, size_t at,
                         size_t count, float *to);

    /* Computes some thousands of independent steps of chains in registers, with numbers near `x`,
     * which is in [0.5, 1], so that no sum becomes subnormal.  Adds a non-negative number to *sink,
     * and returns the number of operations. */
    uint64_t (*multiply_adds)(float x, float *sink);
} lki_gemm_kernels;

/* Returns the words along k of packed operands with k elements, `pair` of which are a word. */
static inline size_t lki_gemm_words(const lki_gemm_kernels *kernels, size_t pair, size_t k)
{
    size_t unit = kernels->unit * pair;
    return (k + unit - 1) / unit * kernels->unit;
}

#endif

/* tensor/isa/gemm.h -- what a matrix product needs from an instruction set.
 *
 * Both kinds of product run on words of four bytes.  In FP32 a word is a value, and a step of a
 * chain is sum = fma(a, b, sum).  In bf16 a word is two values that follow each other along k, the
 * first in the low half, and a step is v16_dot2(): so k counts words, and a last value without a
 * partner is paired with +0.
 */
#ifndef LKI_TENSOR_ISA_GEMM_H
#define LKI_TENSOR_ISA_GEMM_H

#include "tensor/ops.h"

enum {
    LKI_GEMM_K        = 384, /* words a panel holds; a chain goes on through c between panels */
    LKI_GEMM_ROWS_MAX = 16,  /* no micro-tile has more rows: packing writes whole vectors */
    LKI_GEMM_M        = 112, /* rows of a tile of c: 8 micro-panels of 14 */
};

/* What follows the chains of a block: c = activation(sums + bias) + residual, the value before the
 * activation into `pre`; bias, pre and residual may be NULL.  All begin at the block's first row
 * and column.  c, pre and residual are of `type`, F32 or BF16, and their rows ldc apart; c may be
 * `sums`. */
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
    /* For the `m` rows from `row` on and the `n` columns from `column` on. */
    void (*finish)(const lki_gemm_finish *finish, size_t row, size_t column, size_t m, size_t n);

    /* `to` (n, m) = the transpose of `from` (m, n). */
    void (*turn)(size_t m, size_t n, const float *from, size_t ld_from, float *to, size_t ld_to);
} lki_gemm_ends;

/* c (m, n) += a (m, k) b (k, n), or = when `from_zero`.  Word (i, p) of a is at
 * a[i * row_stride + p * k_stride] when `packed` is false; else a is as pack_a() left it.  b is
 * n / columns panels, each k rows of `columns` words, `b_row` words apart; from panel to panel
 * there are `b_panel` words.  Micro-tiles follow each other along rows of c, or, `by_columns`,
 * down its columns: then a panel of b is fetched while the one before it is at work.  When its
 * chains are complete, `bias` (n) and then `residual` (m, n; rows ldc apart) are added to a
 * micro-tile in registers.  With `finish` it is finished next, while it is in the first-level
 * cache.  All three may be NULL.
 * With `turned` b is `room` for panels, and its values stand as their transpose, the rows of which
 * are `ld_turned` apart: the first row of micro-tiles packs them as it multiplies.  n is then a
 * multiple of `columns`, and k one of `turned_steps`. */
typedef struct {
    size_t                 m, n, k;
    const float           *a;
    size_t                 row_stride, k_stride;
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

/* One kind of product.  Operands are float or uint16_t (bf16); k and strides of packing are in
 * elements. */
typedef struct {
    size_t rows, columns; /* of the micro-tile that registers hold */
    size_t turned_steps;  /* that are packed at a time in a block that is `turned`; 0: none is */

    void (*block)(const lki_gemm_block *block);

    /* a (m, k) or, transposed, (k, m), into micro-panels of nearly equal height.  `to`
     * has LKI_GEMM_ROWS_MAX words of slack. */
    void (*pack_a)(bool transposed, size_t m, size_t k, const void *a, size_t lda, float *to);

    /* One panel of n <= columns columns: a row of `columns` words a step, zeros beyond n.  b is
     * (k, n) or, transposed, (n, k). */
    void (*pack_b)(bool transposed, size_t n, size_t k, const void *b, size_t ldb, float *to);

    /* The same of floats, which are rounded to the operands' type; NULL in FP32. */
    void (*pack_wide_b)(bool transposed, size_t n, size_t k, const void *b, size_t ldb, float *to);

    /* Some thousands of independent steps of chains in registers, of numbers around `x`, which lies
     * in [0, 1]; adds something that is not negative to *sink, and says how many operations they
     * were. */
    uint64_t (*multiply_adds)(float x, float *sink);
} lki_gemm_kernels;

#endif

/* tensor/isa/gemm.h -- what a matrix product needs from an instruction set. */
#ifndef LKI_TENSOR_ISA_GEMM_H
#define LKI_TENSOR_ISA_GEMM_H

#include "tensor/ops.h"

enum {
    LKI_GEMM_K        = 384, /* k values a panel holds; a chain goes on through c between panels */
    LKI_GEMM_ROWS_MAX = 16,  /* no micro-tile has more rows: packing writes whole vectors */
    LKI_GEMM_M        = 112, /* rows of a tile of c: 8 micro-panels of 14 */

    LKI_GEMM_PANELS_MAX = 20, /* micro-panels in a tile: 112 / 6, rounded up, and one to spare */
};

/* c (m, n) += a (m, k) b (k, n), or = when `from_zero`.  Element (i, p) of a is at
 * a[i * row_stride + p * k_stride] when `packed` is false; else a is as pack_a() left it.  b is
 * n / columns panels, each k rows of `columns` floats, `b_panel` floats apart. */
typedef struct {
    size_t       m, n, k;
    const float *a;
    size_t       row_stride, k_stride;
    bool         packed;
    const float *b;
    size_t       b_panel, b_row;
    float       *c;
    size_t       ldc;
    bool         from_zero;
} lki_gemm_block;

typedef struct {
    size_t rows, columns; /* of the micro-tile that registers hold */

    void (*block)(const lki_gemm_block *block);

    /* a (m, k) or, transposed, (k, m), into micro-panels of nearly equal height, m <= 112.  `to`
     * has LKI_GEMM_ROWS_MAX floats of slack. */
    void (*pack_a)(bool transposed, size_t m, size_t k, const float *a, size_t lda, float *to);

    /* One panel of n <= columns columns: k rows of `columns` floats, zeros beyond n.  b is (k, n)
     * or, transposed, (n, k). */
    void (*pack_b)(bool transposed, size_t n, size_t k, const float *b, size_t ldb, float *to);

    /* c = activation(c + bias), the value before it into `pre`; bias and pre may be NULL. */
    void (*epilogue)(size_t m, size_t n, const float *bias, lki_activation act, float *c,
                     float *pre, size_t ldc);

    /* db (n) += rows of dy (m, n), in order. */
    void (*column_sums)(size_t m, size_t n, const float *dy, size_t ldy, float *db);
} lki_gemm_kernels;

#endif

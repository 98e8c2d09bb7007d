/* tensor/isa/nn.h -- the kernels behind attention, norms and loss.
 *
 * One table an instruction set; the operators in ops/ cut the work and call through it.
 */
#ifndef LKI_TENSOR_ISA_NN_H
#define LKI_TENSOR_ISA_NN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lockstep/base.h"

/* c (rows, columns) = chains of fma over k ascending of a (rows, length) and b (length, columns),
 * from +0.0 or, to `go_on`, from what c holds.  b lies in panels of 16 columns: b(k, j) is
 * b[j / 16 * panel + k * step + j % 16].  columns is a multiple of 16. */
typedef struct {
    size_t       rows, columns, length;
    const float *a;
    size_t       lda;
    const float *b;
    size_t       panel, step;
    float       *c;
    size_t       ldc;
    bool         go_on;
} lki_tile_rows;

/* The same with a transposed: a (length, rows), b (length, columns) with rows ldb apart. */
typedef struct {
    size_t       rows, columns, length;
    const float *a;
    size_t       lda;
    const float *b;
    size_t       ldb;
    float       *c;
    size_t       ldc;
    bool         go_on;
} lki_tile_outer;

/* BatchNorm: some columns of matrices whose rows are `stride` apart, of `type`, F32 or BF16; the
 * vectors have `columns` values. */
typedef struct {
    lk_dtype     type;
    size_t       rows, columns, stride;
    const void  *x, *dy;
    const float *mean, *rstd, *gamma, *beta;
    const float *mean_dy, *mean_dy_xhat; /* batchnorm_dx: column means of dy and dy * xhat */
    void        *y;                      /* y or dx */
    bool         add;

    /* its end: y = relu(norm + plus), either of them optional */
    const void *plus, *out; /* backward: `out` is what relu left; NULL without it */
    void       *dplus;
    bool        relu, add_plus;
} lki_columns;

/* Rows of LayerNorm, `stride` apart, or some of their columns; mean and rstd are per row.  x, dy
 * and dx are of `type`, F32 or BF16. */
typedef struct {
    lk_dtype     type;
    size_t       rows, columns, stride;
    const void  *x, *dy;
    const float *mean, *rstd, *gamma;
    void        *dx;
    bool         add;
} lki_norm_rows;

enum { LKI_COLUMNS_MAX = 128 }; /* of sums, squares and products */

/* One row of scores against `count` keys, of which the first `valid` are in its past. */
typedef struct {
    size_t       count, valid;
    float        scale;
    const float *keep; /* 0 or 1 / (1 - p) a key; NULL without dropout */
    float       *s;    /* scores in; probabilities (dropped ones 0) out */
} lki_score_row;

typedef struct {
    void (*tile_rows)(const lki_tile_rows *tile);
    void (*tile_outer)(const lki_tile_outer *tile);
    /* Row r of `a` becomes column r of the panels of 16 columns, padded with zeros. */
    void (*pack_transposed)(size_t rows, size_t length, const float *a, size_t lda, float *panels);

    void (*layernorm)(lk_dtype type, size_t rows, size_t c, const void *x, const float *gamma,
                      const float *beta, void *y, float *mean, float *rstd);
    void (*layernorm_dx)(const lki_norm_rows *rows);
    void (*layernorm_dparams)(const lki_norm_rows *columns, float *dgamma, float *dbeta);

    void (*column_sums)(const lki_columns *columns, float *sums);
    void (*column_squares)(const lki_columns *columns, float *sums);
    void (*column_products)(const lki_columns *columns, float *sums, float *products);
    void (*batchnorm_apply)(const lki_columns *columns);
    void (*batchnorm_dx)(const lki_columns *columns);

    /* Rows follow each other; one with a negative target gets zeros. */
    void (*softmax_xent)(lk_dtype type, size_t rows, size_t classes, void *logits,
                         const int32_t *targets, float *loss, uint8_t *hit, bool gradient);

    /* Moves (max, sum) on by the row; yields the factor for what was summed under the old max. */
    float (*score_forward)(const lki_score_row *row, float *max, float *sum);
    /* dp: gradient of the dropped probabilities in, of the unscaled scores out. */
    void (*score_backward)(const lki_score_row *row, float lse, float delta, float *dp);
    void (*scale)(size_t n, float factor, float *x);
    float (*dot)(size_t n, const float *a, const float *b);
    void (*dropout_keep)(uint64_t seed, const uint32_t key[3], float p, uint64_t first, size_t n,
                         float *keep);
} lki_nn_kernels;

#endif

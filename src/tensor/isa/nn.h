/* tensor/isa/nn.h -- the kernels of attention, norms and loss.
 *
 * One table for each instruction set; the operators in ops/ divide the work and call through it.
 */
#ifndef LKI_TENSOR_ISA_NN_H
#define LKI_TENSOR_ISA_NN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lockstep/base.h"

/* Computes c (rows, columns) as chains of fma over ascending k of a (rows, length) and b (length,
 * columns).  Chains begin at +0.0 or, with `go_on`, at c.  b is in panels of 16 columns: b(k, j) is
 * b[j / 16 * panel + k * step + j % 16]. columns is a multiple of 16. */
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

/* Computes c (rows, columns) as chains of fma over ascending k of a transposed a (length, rows) and
 * b (length, columns), whose rows are ldb apart.  Chains begin at +0.0 or, with `go_on`, at c. */
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

/* Some columns of the matrices of BatchNorm.  Rows are `stride` apart, and of type `type` (F32 or
 * BF16).  The vectors have `columns` values. */
typedef struct {
    lk_dtype     type;
    size_t       rows, columns, stride;
    const void  *x, *dy;
    const float *mean, *rstd, *gamma, *beta;
    const float *mean_dy, *mean_dy_xhat; /* batchnorm_dx: column means of dy and of dy * xhat */
    void        *y;                      /* y or dx */
    bool         add;

    /* For y = relu(norm + plus), in which the sum and the ReLU are optional. */
    const void *plus, *out; /* out: the forward result, for backward; NULL without ReLU */
    void       *dplus;
    bool        relu, add_plus;
} lki_columns;

/* Rows of LayerNorm, `stride` apart, or some of their columns.  mean and rstd are per row.  x, dy
 * and dx have the type `type` (F32 or BF16). */
typedef struct {
    lk_dtype     type;
    size_t       rows, columns, stride;
    const void  *x, *dy;
    const float *mean, *rstd, *gamma;
    void        *dx;
    bool         add;
} lki_norm_rows;

enum { LKI_COLUMNS_MAX = 128 }; /* maximum columns at a time for sums, squares and products */

/* A row of scores against `count` keys, of which the query may attend to the first `valid`. */
typedef struct {
    size_t       count, valid;
    float        scale;
    const float *keep; /* for each key: 0 or 1 / (1 - p); NULL without dropout */
    float       *s;    /* on input the scores; on output the probabilities, 0 for dropped keys */
} lki_score_row;

typedef struct {
    void (*tile_rows)(const lki_tile_rows *tile);
    void (*tile_outer)(const lki_tile_outer *tile);
    /* Copies row r of `a` to column r of the panels of 16 columns, padded with zeros. */
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

    /* Computes consecutive rows.  Rows with a negative target are set to zeros. */
    void (*softmax_xent)(lk_dtype type, size_t rows, size_t classes, void *logits,
                         const int32_t *targets, float *loss, uint8_t *hit, bool gradient);
    void (*element_loss)(lk_dtype type, const lki_element_loss *how, size_t n, void *x,
                         const float *targets, float *loss, uint8_t *hit, float gradient);
    /* Return the mean of wanted - logit over a row, and smooth the gradient of a row. */
    float (*smooth_mean)(lk_dtype type, size_t classes, const void *logits, size_t target);
    void (*smooth_gradient)(lk_dtype type, size_t classes, void *row, size_t target,
                            float smoothing);

    /* Updates (max, sum) with the row.  Returns the factor for results that were summed with the
     * old max. */
    float (*score_forward)(const lki_score_row *row, float *max, float *sum);
    /* On input `dp` has the gradients of the probabilities after dropout, and on output those of
     * the unscaled scores. */
    void (*score_backward)(const lki_score_row *row, float lse, float delta, float *dp);
    void (*scale)(size_t n, float factor, float *x);
    float (*dot)(size_t n, const float *a, const float *b);
    void (*dropout_keep)(uint64_t seed, const uint32_t key[3], float p, uint64_t first, size_t n,
                         float *keep);
} lki_nn_kernels;

#endif

/* tensor/ops.h -- the operators that blocks are made of.
 *
 * All data are FP32 unless said; shapes stand beside the names, innermost last.  An operator
 * splits its work over the threads of `exec` by output tiles, so no result depends on them.
 * Gradients of parameters (dw, db, dgamma ...) always accumulate: the chain continues from what
 * the buffer holds.  Gradients of inputs (dx) are written, or added when `add` is true.
 * Each operator has a plain scalar reference in tensor/reference.h, and a test that compares.
 */
#ifndef LKI_TENSOR_OPS_H
#define LKI_TENSOR_OPS_H

#include "base/pool.h"
#include "tensor/packs.h"

lki_pool *lki_exec_pool(const lk_exec *exec);

/* ---- Matrix product ---------------------------------------------------------------------- */

typedef enum { LKI_ACT_NONE = 0, LKI_ACT_RELU, LKI_ACT_GELU_TANH, LKI_ACT_GELU_ERF } lki_activation;

/* c (m, n) = a (m, k) b (k, n), every element one chain over ascending k, from 0 or, with
 * `accumulate`, from c.  Transposed operands are stored (k, m) and (n, k).  lda, ldb, ldc are row
 * strides in elements; 0 = dense.  c must not overlap a or b.
 *
 * Operands are F32, and a step of the chain is one fma; or BF16, and a step takes two values of k:
 * sum = fma(a1, b1, sum), then sum = fma(a0, b0, sum), where subnormal operands and results are
 * zeros and an odd last value is paired with +0.  With `wide_b`, b is stored as F32 and its values
 * are rounded to BF16, to nearest even, as they are read: weights.
 *
 * Then, if `bias` (n): + bias.  Then, if `activation`: `pre` (m, n; may be NULL) receives the value
 * before it.  Then, if `residual` (m, n): + residual.  All this is in FP32.  c, pre and residual
 * are of one type, F32 or BF16, with rows ldc apart; BF16 results are rounded once, at the end.
 *
 * `pack`, if not NULL, keeps b as it is packed, and has lki_gemm_pack_bytes().  The same bits. */
typedef struct {
    bool           transpose_a, transpose_b, accumulate;
    lk_dtype       operands, result; /* LK_F32 or LK_BF16; 0 = LK_F32 */
    bool           wide_b;           /* with BF16 operands alone */
    size_t         m, n, k;
    const void    *a, *b;
    void          *c;
    size_t         lda, ldb, ldc;
    const float   *bias;
    lki_activation activation;
    void          *pre;
    const void    *residual;
    const lk_pack *pack;
} lki_gemm_args;

void lki_gemm(lk_exec *exec, const lki_gemm_args *args);

/* Of b, for products like this one with as many rows or fewer; looks at no memory.  0: it is not
 * worth it, or b is read where it stands. */
size_t lki_gemm_pack_bytes(const lk_exec *exec, const lki_gemm_args *args);

/* ---- Elementwise ------------------------------------------------------------------------- */

void lki_fill(lk_exec *exec, size_t n, float value, float *y);
/* Where there is a `type`, it is that of all values in void: F32, or BF16, which are widened,
 * computed with in FP32 and rounded once. */
void lki_add(lk_exec *exec, lk_dtype type, size_t n, const void *a, const void *b,
             void *y); /* y = a + b */
void lki_accumulate(lk_exec *exec, lk_dtype type, size_t n, const void *x, void *y); /* y = y + x */
void lki_activate(lk_exec *exec, lk_dtype type, lki_activation act, size_t n, const void *x,
                  void *y);

/* Between F32, F16 and BF16: widening is exact, narrowing rounds once, to nearest even, and every
 * NaN becomes the positive quiet one.  y may be x where the types are equally wide. */
void lki_convert(lk_exec *exec, size_t n, lk_dtype from, const void *x, lk_dtype to, void *y);

/* dx = dy times the activation's derivative at x (the value before it).  dx may be dy. */
void lki_activate_backward(lk_exec *exec, lk_dtype type, lki_activation act, size_t n,
                           const void *x, const void *dy, void *dx, bool add);

/* Backward of y = activation(z + bias), z and y (m, n): db (n) += column sums of dz, rows in order,
 * where dz = dy times the derivative at x, as lki_activate_backward() makes it; with LKI_ACT_NONE
 * it is dy, and x and dz are not looked at.  What is summed has not been rounded to `type`. */
void lki_bias_backward(lk_exec *exec, lk_dtype type, lki_activation act, size_t m, size_t n,
                       const void *x, const void *dy, void *dz, float *db);

/* Keeps each value with probability 1 - p and scales it by 1 / (1 - p).  x, y are (samples,
 * per_sample); sample s sits in slot first_slot + s of the global batch.  The same call on a
 * gradient is the backward pass.  y may be x. */
typedef struct {
    uint64_t seed;
    uint32_t step, first_slot, layer;
    float    p;
} lki_dropout_key;
void lki_dropout(lk_exec *exec, lk_dtype type, lki_dropout_key key, size_t samples,
                 size_t per_sample, const void *x, void *y, bool add);

/* ---- Normalisation ----------------------------------------------------------------------- */

/* Over rows of c values: y = (x - mean) * rstd * gamma + beta.  mean, rstd: (rows). eps 1e-5. */
void lki_layernorm(lk_exec *exec, lk_dtype type, size_t rows, size_t c, const void *x,
                   const float *gamma, const float *beta, void *y, float *mean, float *rstd);
void lki_layernorm_backward(lk_exec *exec, lk_dtype type, size_t rows, size_t c, const void *x,
                            const float *gamma, const float *mean, const float *rstd,
                            const void *dy, void *dx, bool add, float *dgamma, float *dbeta);

/* BatchNorm over columns of x (rows, c), and what follows it: y = relu(norm(x) + plus), where both
 * the sum and the ReLU are optional.  var: the unbiased variance (rows 1: the biased one). */
typedef struct {
    lk_dtype     type;              /* 0 = LK_F32 */
    size_t       rows, c;
    const void  *x;
    const float *gamma, *beta;
    const void  *plus;              /* NULL: nothing */
    bool         relu;
    void        *y;
    float       *mean, *rstd, *var; /* (c) */

    /* backward, which reads y if `relu` */
    const void  *dy;
    void        *dx, *dplus;        /* dplus may be NULL */
    bool         add, add_plus;     /* to dx, to dplus */
    float       *dgamma, *dbeta;
} lki_batchnorm_args;

/* With statistics of these rows (biased variance, eps 1e-5), which it leaves behind. */
void lki_batchnorm(lk_exec *exec, const lki_batchnorm_args *args);
void lki_batchnorm_backward(lk_exec *exec, const lki_batchnorm_args *args);
/* With given (running) statistics instead of those of `args`: evaluation. */
void lki_batchnorm_apply(lk_exec *exec, const lki_batchnorm_args *args, const float *mean,
                         const float *var);
float lki_batchnorm_rstd(float variance);

/* The same in parts, for statistics of more rows than these.  Of these rows: their sums, and those
 * of squared differences from their mean, which args->mean is left with; then y, with mean and rstd
 * as they are.  Backward: the sums of dy (masked by relu) and of dy * xhat; then dx and dplus, with
 * means over all rows.  dgamma and dbeta are the caller's. */
void lki_batchnorm_moments(lk_exec *exec, const lki_batchnorm_args *args, float *totals,
                           float *squares);
void lki_batchnorm_normalize(lk_exec *exec, const lki_batchnorm_args *args);
void lki_batchnorm_products(lk_exec *exec, const lki_batchnorm_args *args, float *totals,
                            float *products);
void lki_batchnorm_dx(lk_exec *exec, const lki_batchnorm_args *args, const float *mean_dy,
                      const float *mean_dy_xhat);

/* ---- Convolution and pooling, NHWC ------------------------------------------------------- */

/* x (n, h, w, cin), weights (cout, cin, kh, kw) as PyTorch stores them, y (n, oh, ow, cout);
 * oh = (h + 2 pad - kh) / stride + 1.  No bias.  `scratch` has lki_conv_scratch_bytes(); `pack`,
 * if not NULL, keeps the weights as this product reads them, and has lki_conv_pack_bytes(). */
typedef struct {
    size_t n, h, w, cin, cout, kh, kw, stride, pad, oh, ow;
} lki_conv_shape;
size_t lki_conv_scratch_bytes(const lk_exec *exec, const lki_conv_shape *shape);
void lki_conv(lk_exec *exec, const lki_conv_shape *shape, const float *x, const float *w, float *y,
              void *scratch, const lk_pack *pack);
void lki_conv_backward_input(lk_exec *exec, const lki_conv_shape *shape, const float *dy,
                             const float *w, float *dx, bool add, void *scratch,
                             const lk_pack *pack);
void lki_conv_backward_weights(lk_exec *exec, const lki_conv_shape *shape, const float *x,
                               const float *dy, float *dw, void *scratch);

/* The same with x, y and their gradients in bf16: weights are rounded, and products go in pairs as
 * those of lki_gemm().  y and dx pair channels, tap by tap; dw pairs neighbours of a row of dy that
 * begin at even places, with zeros where they meet padding, or, under kernels of 1 x 1, pixels as
 * they follow each other.  An odd last value is paired with +0; padding takes no other part. */
size_t lki_conv_bf16_scratch_bytes(const lk_exec *exec, const lki_conv_shape *shape);
void lki_conv_bf16(lk_exec *exec, const lki_conv_shape *shape, const uint16_t *x, const float *w,
                   uint16_t *y, void *scratch, const lk_pack *pack);
void lki_conv_bf16_backward_input(lk_exec *exec, const lki_conv_shape *shape, const uint16_t *dy,
                                  const float *w, uint16_t *dx, bool add, void *scratch,
                                  const lk_pack *pack);
void lki_conv_bf16_backward_weights(lk_exec *exec, const lki_conv_shape *shape, const uint16_t *x,
                                    const uint16_t *dy, float *dw, void *scratch);

/* Of the weights, for values of `dtype`: of y's product, or of dx's.  0: it is not worth it. */
size_t lki_conv_pack_bytes(const lki_conv_shape *shape, lk_dtype dtype, bool backward);

/* Of F32 or BF16.  Uses h, w, cin (= cout), kh, kw, stride, pad of the shape.  `argmax`
 * (n, oh, ow, c) keeps the input position h * w index of the first largest value; padding never
 * wins. */
void lki_maxpool(lk_exec *exec, lk_dtype type, const lki_conv_shape *shape, const void *x, void *y,
                 uint32_t *argmax);
void lki_maxpool_backward(lk_exec *exec, lk_dtype type, const lki_conv_shape *shape,
                          const uint32_t *argmax, const void *dy, void *dx, bool add);

/* x (n, positions, c) -> y (n, c): the mean over positions. */
void lki_avgpool(lk_exec *exec, lk_dtype type, size_t n, size_t positions, size_t c, const void *x,
                 void *y);
void lki_avgpool_backward(lk_exec *exec, lk_dtype type, size_t n, size_t positions, size_t c,
                          const void *dy, void *dx, bool add);

/* ---- Attention and embedding ------------------------------------------------------------- */

/* Causal self-attention.  qkv (b, t, 3c): q, k, v beside each other, each heads x (c / heads);
 * y (b, t, c); lse (b, heads, t) is the log of the softmax's denominator, kept for backward.
 * Scores are scaled by 1 / sqrt(c / heads).  Blocked, online softmax: no (t, t) tensor.
 * dropout.p > 0 drops probabilities (element = (head * t + i) * t + j).  */
typedef struct {
    size_t          b, t, c, heads;
    lki_dropout_key dropout;
} lki_attention_shape;
size_t lki_attention_scratch_bytes(const lk_exec *exec, const lki_attention_shape *shape);
void   lki_attention(lk_exec *exec, const lki_attention_shape *shape, const float *qkv, float *y,
                     float *lse, void *scratch);
void   lki_attention_backward(lk_exec *exec, const lki_attention_shape *shape, const float *qkv,
                              const float *y, const float *lse, const float *dy, float *dqkv,
                              bool add, void *scratch);

/* The same in bf16.  Probabilities and the gradients of scores are rounded to bf16 where they enter
 * a product, whose chains are those of lki_gemm(); all else is FP32, and lse is to base 2. */
size_t lki_attention_bf16_scratch_bytes(const lk_exec *exec, const lki_attention_shape *shape);
void   lki_attention_bf16(lk_exec *exec, const lki_attention_shape *shape, const uint16_t *qkv,
                          uint16_t *y, float *lse, void *scratch);
void   lki_attention_bf16_backward(lk_exec *exec, const lki_attention_shape *shape,
                                   const uint16_t *qkv, const uint16_t *y, const float *lse,
                                   const uint16_t *dy, uint16_t *dqkv, bool add, void *scratch);

/* A table as it is stored: F32 (or 0), or BF16 where what is made of it is. */
typedef struct {
    const void *values;
    lk_dtype    type;
} lki_table;

/* y (b, t, c) = wte[token] + wpe[position]; tokens (b, t).  wpe.values may be NULL.  Where y is
 * BF16 both are rounded to it before they are added.  Tokens are in range: the data set has checked
 * them. */
void lki_embedding(lk_exec *exec, lk_dtype type, size_t b, size_t t, size_t c,
                   const int32_t *tokens, lki_table wte, lki_table wpe, void *y);
void lki_embedding_backward(lk_exec *exec, lk_dtype type, size_t b, size_t t, size_t c,
                            const int32_t *tokens, const void *dy, float *dwte, float *dwpe);

/* ---- Loss -------------------------------------------------------------------------------- */

/* Softmax cross-entropy of logits (rows, classes) against targets (rows); a negative target
 * counts for nothing: loss 0, gradient 0, hit 0.  loss (rows) in nats; hit (rows) 1 where the
 * first largest logit is the target.  Unless `gradient` is 0, logits become (softmax - onehot)
 * times it; other factors than 1 are for F32. */
void lki_softmax_xent(lk_exec *exec, lk_dtype type, size_t rows, size_t classes, void *logits,
                      const int32_t *targets, float *loss, uint8_t *hit, float gradient);

/* ---- Parameters: initial values, norms, updates ------------------------------------------ */

/* Elements first .. first + n - 1 of parameter `index`, as `param` says, into y. */
void lki_init_param(lk_exec *exec, uint64_t seed, uint32_t index, const lk_param *param,
                    size_t first, size_t n, float *y);

enum { LKI_NORM_BLOCK = 4096 }; /* norms are sums over blocks of 4096 elements of one tensor */

/* The sum of squares of n <= LKI_NORM_BLOCK values: 16 lanes in FP64 and a fixed lane tree. */
double lki_block_sum_squares(const lk_exec *exec, size_t n, const float *x);
/* The same of `count` blocks, in less time than one after the other. */
void lki_block_sums_squares(const lk_exec *exec, size_t count, const size_t *n,
                            const float *const *x, double *sums);

/* The canonical balanced tree (left subtree: largest power of two below n) over n doubles. */
double lki_tree_sum_f64(const double *x, size_t n);

/* Decoupled weight decay as PyTorch's AdamW computes it: p -= lr wd p; m += (g - m)(1 - b1);
 * v = b2 v + (1 - b2) g g; p -= (lr / c1) m / (sqrt(v) / sqrt(c2) + eps), where
 * c1 = 1 - b1^t, c2 = 1 - b2^t.  The gradient is first multiplied by scale, then by clip. */
typedef struct {
    double lr, beta1, beta2, eps, weight_decay, correction1, correction2_sqrt;
    float  scale, clip;
} lki_adamw_step;
void lki_adamw(const lk_exec *exec, const lki_adamw_step *step, size_t n, const float *g, float *p,
               float *m, float *v);

/* As PyTorch's SGD: d = (g + wd p) inner; with momentum: b = momentum b + d (first step: b = d),
 * and d = nesterov ? d + momentum b : b; p -= outer d.  The learning rate is in `outer`, or, where
 * the momentum is to hold steps, in `inner`; a trust ratio is in `inner`.  `first` is true at the
 * first step.  b may be NULL without momentum. */
typedef struct {
    float inner, outer, momentum, weight_decay;
    bool  nesterov, first;
    float scale, clip;
} lki_sgd_step;
void lki_sgd(const lk_exec *exec, const lki_sgd_step *step, size_t n, const float *g, float *p,
             float *b);

/* LAMB in two passes.  The first moves m and v as AdamW does and leaves in place of g the direction
 * u = (m / c1) / (sqrt(v) / sqrt(c2) + eps) + wd p; the second: p -= rate u. */
void lki_lamb_direction(const lk_exec *exec, const lki_adamw_step *step, size_t n, float *g,
                        const float *p, float *m, float *v);
void lki_descend(const lk_exec *exec, float rate, size_t n, const float *u, float *p);

/* Lion: p -= lr wd p; p -= lr sign(b1 m + (1 - b1) g); m = b2 m + (1 - b2) g.  The step's eps and
 * corrections are not looked at. */
void lki_lion(const lk_exec *exec, const lki_adamw_step *step, size_t n, const float *g, float *p,
              float *m);

/* ---- Scalar functions, the same bits everywhere (no libm) --------------------------------- */

float  lki_expf(float x);
float  lki_exp2f(float x);                       /* to 2.3e-7; -126 <= x <= 127 */
float  lki_logf(float x);
float  lki_tanhf(float x);
float  lki_erff(float x);
float  lki_cosf(float x);                        /* |x| <= 2 pi * 1024 */
double lki_cos(double x);                        /* for schedules: |x| <= 16 */
double lki_pow(double x, double y);              /* for schedules: x in [0, 1], y in [0, 100] */
double lki_powi(double base, uint64_t exponent); /* bias corrections: square and multiply */

#endif

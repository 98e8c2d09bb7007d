/* tensor/ops.h -- the operators that blocks use.
 *
 * All data are FP32 unless stated otherwise.  Shapes follow the names, innermost dimension last.
 * An operator divides its work by output tiles, so no result depends on the threads of `exec`.
 * Gradients of parameters (dw, db, dgamma ...) always accumulate: the chain of operations continues
 * from the contents of the buffer.  Gradients of inputs (dx) are written, or added if `add` is
 * true.  Each operator has a plain scalar reference in tensor/reference.h, and a test that compares
 * the two.
 */
#ifndef LKI_TENSOR_OPS_H
#define LKI_TENSOR_OPS_H

#include "base/pool.h"
#include "tensor/packs.h"

lki_pool *lki_exec_pool(const lk_exec *exec);

/* ---- Matrix product ---------------------------------------------------------------------- */

typedef enum { LKI_ACT_NONE = 0, LKI_ACT_RELU, LKI_ACT_GELU_TANH, LKI_ACT_GELU_ERF } lki_activation;

/* Windows of BF16 images (n, h, w, c), as the rows of a matrix (n down across, taps_y taps_x
 * channels).  Row (sample, i, j) has the pixels from (y + i * step, x + j * step) on, with the
 * channels from `image` on.  Pixels outside the image are +0. */
typedef struct {
    const uint16_t *image;
    size_t          n, h, w, c, channels;
    ptrdiff_t       y, x;
    size_t          step, down, across, taps_y, taps_x;
} lki_windows;

/* Pixels of images (h, w, channels), as the rows of a matrix.  Row (sample, i, j), of
 * (samples down across), is pixel (y + i * step, x + j * step). */
typedef struct {
    size_t h, w, y, x, step, down, across;
} lki_pixel_rows;

/* c (m, n) = a (m, k) b (k, n).  Every element is summed over ascending k, from 0 or, with
 * `accumulate`, from c.  Transposed operands are stored (k, m) and (n, k). lda, ldb, ldc are row
 * strides in elements; 0 = dense. c must not overlap a or b.
 *
 * Operands are F32 or BF16.  In F32 the sum is one chain of fma.  In BF16 it is the sum of chunks
 * of 32 values of k, each with a chain of even and a chain of odd values (isa/gemm_chunks.inc).
 * The last chunk is filled with +0, and subnormal operands and results are replaced by zeros.  With
 * `wide_b`, b is stored as F32 (weights), and its values are rounded to BF16, to nearest even, as
 * they are read.
 *
 * After the sum, `bias` (n), if given, is added.  Then `activation` is applied, and `pre` (m, n;
 * may be NULL) receives the value before it.  Then `residual` (m, n), if given, is added.  All of
 * these are computed in FP32. c, pre and residual have one type, F32 or BF16, and rows ldc apart.
 * BF16 results are rounded once, at the end.
 *
 * `pack`, if not NULL, stores the packed b in lki_gemm_pack_bytes() bytes of memory.  It does not
 * change the bits.
 *
 * In BF16, `a` may consist of the rows of `windows`.  It is then NULL, and not transposed.  The
 * rows of a BF16 result, and of residual, may be `pixels` of images with ldc channels.
 */
typedef struct {
    bool           transpose_a, transpose_b, accumulate;
    lk_dtype       operands, result; /* LK_F32 or LK_BF16; 0 = LK_F32 */
    bool           wide_b;           /* with BF16 operands only */
    size_t         m, n, k;
    const void    *a, *b;
    void          *c;
    size_t         lda, ldb, ldc;
    const float   *bias;
    lki_activation activation;
    void          *pre;
    const void    *residual;
    const lk_pack        *pack;
    const lki_windows    *windows;
    const lki_pixel_rows *pixels;
} lki_gemm_args;

void lki_gemm(lk_exec *exec, const lki_gemm_args *args);

/* Parts of consecutive rows whose results are added by the canonical tree: neighbours first, then
 * pairs of neighbours.  Part i ends before row ends[i] and may be empty.  `count` is a power of
 * two. */
enum { LKI_PARTS_MAX = 64 };
typedef struct {
    uint32_t      count;
    const size_t *ends;
} lki_parts;

/* Computes c as the sum of the products of `parts` of k.  Each product has the bits of lki_gemm()
 * for that part of k alone.  c is F32 and is overwritten.  `args` must not set `wide_b`, `bias`,
 * `activation`, `residual` or `pack`. */
void lki_gemm_parts(lk_exec *exec, const lki_gemm_args *args, const lki_parts *parts);

/* Returns the bytes of a pack of b, for products like `args` with at most args->m rows.  They are
 * enough for the layouts of all kernels between which "auto" chooses, so that the packs of a model
 * are at the same places in all processes of a host.  Does not read the operands.  0: packing is
 * not worthwhile, or b is read in place. */
size_t lki_gemm_pack_bytes(const lk_exec *exec, const lki_gemm_args *args);

/* Returns the layout of such a pack (packs.h) for the kernels of `exec`. */
uint32_t lki_gemm_pack_layout(const lk_exec *exec, const lki_gemm_args *args);

/* ---- Elementwise ------------------------------------------------------------------------- */

void lki_fill(lk_exec *exec, size_t n, float value, float *y);

/* Computes y = a + b.  Here and below `type` is the type of all values that are passed as void.
 * BF16 values are widened, computed in FP32 and rounded once. */
void lki_add(lk_exec *exec, lk_dtype type, size_t n, const void *a, const void *b,
             void *y);
void lki_accumulate(lk_exec *exec, lk_dtype type, size_t n, const void *x, void *y); /* y = y + x */
void lki_activate(lk_exec *exec, lk_dtype type, lki_activation act, size_t n, const void *x,
                  void *y);

/* Converts between F32, F16 and BF16.  Widening is exact.  Narrowing rounds once, to nearest even,
 * and every NaN becomes the positive quiet one. y may be x if both types have the same width. */
void lki_convert(lk_exec *exec, size_t n, lk_dtype from, const void *x, lk_dtype to, void *y);

/* Computes dx = dy times the derivative of the activation at x, the value before the activation. dx
 * may be dy. */
void lki_activate_backward(lk_exec *exec, lk_dtype type, lki_activation act, size_t n,
                           const void *x, const void *dy, void *dx, bool add);

/* Computes the backward pass of y = activation(z + bias), z and y (m, n). db (n) += the column sums
 * of dz, rows in order. dz is dy times the derivative at x, as in lki_activate_backward().  With
 * LKI_ACT_NONE dz equals dy, and the arguments x and dz are not used.  The values are summed before
 * they are rounded to `type`. */
void lki_bias_backward(lk_exec *exec, lk_dtype type, lki_activation act, size_t m, size_t n,
                       const void *x, const void *dy, void *dz, float *db);

/* Acts as lki_bias_backward(), but db is overwritten by the sum over `parts` of the rows.  The
 * column sums of each part begin with 0. */
void lki_bias_backward_parts(lk_exec *exec, lk_dtype type, lki_activation act, size_t n,
                             const void *x, const void *dy, void *dz, float *db,
                             const lki_parts *parts);

/* Keeps each value with probability 1 - p and scales it by 1 / (1 - p). x and y are (samples,
 * per_sample); sample s is in slot first_slot + s of the global batch.  The same call on a gradient
 * is the backward pass. y may be x. */
typedef struct {
    uint64_t seed;
    uint32_t step, first_slot, layer;
    float    p;
} lki_dropout_key;
void lki_dropout(lk_exec *exec, lk_dtype type, lki_dropout_key key, size_t samples,
                 size_t per_sample, const void *x, void *y, bool add);

/* ---- Normalisation ----------------------------------------------------------------------- */

/* Normalises rows of c values: y = (x - mean) * rstd * gamma + beta. mean and rstd are (rows); eps
 * is 1e-5. */
void lki_layernorm(lk_exec *exec, lk_dtype type, size_t rows, size_t c, const void *x,
                   const float *gamma, const float *beta, void *y, float *mean, float *rstd);
void lki_layernorm_backward(lk_exec *exec, lk_dtype type, size_t rows, size_t c, const void *x,
                            const float *gamma, const float *mean, const float *rstd,
                            const void *dy, void *dx, bool add, float *dgamma, float *dbeta);

/* BatchNorm over columns of x (rows, c), and the end of a residual block: y = relu(norm(x) + plus),
 * in which the sum and the ReLU are optional. var is the unbiased variance or, for a single row,
 * the biased variance. */
typedef struct {
    lk_dtype     type;              /* 0 = LK_F32 */
    size_t       rows, c;
    const void  *x;
    const float *gamma, *beta;
    const void  *plus;              /* NULL: no sum */
    bool         relu;
    void        *y;
    float       *mean, *rstd, *var; /* (c) */

    /* For the backward pass, which reads y if `relu`. */
    const void  *dy;
    void        *dx, *dplus;        /* dplus may be NULL */
    /* add to dx instead of overwriting it; add_plus: for dplus */
    bool         add, add_plus;
    float       *dgamma, *dbeta;
} lki_batchnorm_args;

/* Normalises with the statistics of these rows (biased variance, eps 1e-5), and stores mean, rstd
 * and var. */
void lki_batchnorm(lk_exec *exec, const lki_batchnorm_args *args);
void lki_batchnorm_backward(lk_exec *exec, const lki_batchnorm_args *args);

/* Normalises with the given running statistics instead of args->mean and args->rstd, for
 * evaluation. */
void lki_batchnorm_apply(lk_exec *exec, const lki_batchnorm_args *args, const float *mean,
                         const float *var);
float lki_batchnorm_rstd(float variance);

/* Computes the sums of these rows, and the sums of squared differences from their mean, which is
 * stored in args->mean.  The caller can combine these moments with other rows' moments. */
void lki_batchnorm_moments(lk_exec *exec, const lki_batchnorm_args *args, float *totals,
                           float *squares);

/* Computes y with the given args->mean and args->rstd. */
void lki_batchnorm_normalize(lk_exec *exec, const lki_batchnorm_args *args);

/* Computes the sums over these rows of dy (masked by relu) and of dy * xhat.  The caller must add
 * them to dbeta and dgamma. */
void lki_batchnorm_products(lk_exec *exec, const lki_batchnorm_args *args, float *totals,
                            float *products);

/* Computes dx and dplus from means over all rows. */
void lki_batchnorm_dx(lk_exec *exec, const lki_batchnorm_args *args, const float *mean_dy,
                      const float *mean_dy_xhat);

/* ---- Convolution and pooling, NHWC ------------------------------------------------------- */

/* The shapes of a convolution: x (n, h, w, cin), weights (cout, cin, kh, kw) as PyTorch stores
 * them, y (n, oh, ow, cout); oh = (h + 2 pad - kh) / stride + 1.  There is no bias.  With `add`, a
 * gradient is added to dx or dw; otherwise it overwrites them.  `parts`, if not NULL, divides the
 * samples: dw is then the sum of the gradients of the parts, each with the bits of a call for that
 * part alone, and `add` must be false.  `scratch` has lki_conv_scratch_bytes() bytes, for up to
 * `parts` parts.  `pack`, if not NULL, stores the weights in the order in which this product reads
 * them, in lki_conv_pack_bytes() bytes. */
typedef struct {
    size_t n, h, w, cin, cout, kh, kw, stride, pad, oh, ow;
} lki_conv_shape;
size_t lki_conv_scratch_bytes(const lk_exec *exec, const lki_conv_shape *shape, uint32_t parts);
void lki_conv(lk_exec *exec, const lki_conv_shape *shape, const float *x, const float *w, float *y,
              void *scratch, const lk_pack *pack);
void lki_conv_backward_input(lk_exec *exec, const lki_conv_shape *shape, const float *dy,
                             const float *w, float *dx, bool add, void *scratch,
                             const lk_pack *pack);
void lki_conv_backward_weights(lk_exec *exec, const lki_conv_shape *shape, const float *x,
                               const float *dy, float *dw, bool add, const lki_parts *parts,
                               void *scratch);

/* Convolution with x, y and their gradients in bf16.  Weights are rounded.  The sums are those of
 * products of lki_gemm() with windows, in which padding is +0.  For y, k is (ky, kx, ci).  For dx,
 * k is (oy, ox, co), with those taps that reach an output point; the sum is added to dx before it
 * is rounded.  For dw, k is (sample, oy, ox). */
size_t lki_conv_bf16_scratch_bytes(const lk_exec *exec, const lki_conv_shape *shape,
                                   uint32_t parts);
void lki_conv_bf16(lk_exec *exec, const lki_conv_shape *shape, const uint16_t *x, const float *w,
                   uint16_t *y, void *scratch, const lk_pack *pack);
void lki_conv_bf16_backward_input(lk_exec *exec, const lki_conv_shape *shape, const uint16_t *dy,
                                  const float *w, uint16_t *dx, bool add, void *scratch,
                                  const lk_pack *pack);
void lki_conv_bf16_backward_weights(lk_exec *exec, const lki_conv_shape *shape, const uint16_t *x,
                                    const uint16_t *dy, float *dw, bool add,
                                    const lki_parts *parts, void *scratch);

/* Returns the bytes of a pack of the weights for values of `dtype`, for the product that computes y
 * or dx.  0: packing is not worthwhile. */
size_t lki_conv_pack_bytes(const lk_exec *exec, const lki_conv_shape *shape, lk_dtype dtype,
                           bool backward);

/* Computes the maximum of windows, in F32 or BF16.  Uses the fields h, w, cin (= cout), kh, kw,
 * stride and pad of the shape.  `argmax` (n, oh, ow, c) receives the position of the first largest
 * value, as an index into h * w.  Padding is never the maximum. */
void lki_maxpool(lk_exec *exec, lk_dtype type, const lki_conv_shape *shape, const void *x, void *y,
                 uint32_t *argmax);
void lki_maxpool_backward(lk_exec *exec, lk_dtype type, const lki_conv_shape *shape,
                          const uint32_t *argmax, const void *dy, void *dx, bool add);

/* Computes the mean over positions: x (n, positions, c) -> y (n, c). */
void lki_avgpool(lk_exec *exec, lk_dtype type, size_t n, size_t positions, size_t c, const void *x,
                 void *y);
void lki_avgpool_backward(lk_exec *exec, lk_dtype type, size_t n, size_t positions, size_t c,
                          const void *dy, void *dx, bool add);

/* ---- Attention --------------------------------------------------------------------------- */

/* The shapes of causal self-attention.  Queries and y are (b, t, heads, c / heads); keys and values
 * are (b, t, kv_heads, c / heads), and heads / kv_heads neighbouring heads of queries read the same
 * keys and values.  lse (b, heads, t) is the log of the softmax's denominator, stored for backward.
 * Scores are scaled by 1 / sqrt(c / heads).  The softmax is computed online, in blocks, without a
 * (t, t) tensor. dropout.p > 0 drops probabilities (element = (head * t + i) * t + j). */
typedef struct {
    size_t          b, t, c, heads, kv_heads; /* kv_heads 0: as many as heads */
    lki_dropout_key dropout;
} lki_attention_shape;

/* Queries, keys and values, or their gradients.  Rows are stride[i] elements apart.  A gradient is
 * not computed if it is NULL, and is added to the memory if add[i]. */
typedef struct {
    const void *rows[3];
    size_t      stride[3];
} lki_attention_input;
typedef struct {
    void  *rows[3];
    size_t stride[3];
    bool   add[3];
} lki_attention_gradient;

/* Returns the address of queries, keys and values that are one after another in each row of `qkv`:
 * (b, t, c + 2 kv_heads c / heads), of type F32 or BF16. */
lki_attention_input    lki_attention_packed(const lki_attention_shape *shape, lk_dtype type,
                                            const void *qkv);
lki_attention_gradient lki_attention_packed_gradient(const lki_attention_shape *shape,
                                                     lk_dtype type, void *dqkv, bool add);

size_t lki_attention_scratch_bytes(const lk_exec *exec, const lki_attention_shape *shape);
void   lki_attention(lk_exec *exec, const lki_attention_shape *shape, lki_attention_input x,
                     float *y, float *lse, void *scratch);
void   lki_attention_backward(lk_exec *exec, const lki_attention_shape *shape,
                              lki_attention_input x, const float *y, const float *lse,
                              const float *dy, lki_attention_gradient dx, void *scratch);

/* Attention in bf16.  Probabilities and the gradients of scores are rounded to bf16 as operands of
 * products, which have the chains of lki_gemm().  Everything else is FP32, and lse is a logarithm
 * to base 2. */
size_t lki_attention_bf16_scratch_bytes(const lk_exec *exec, const lki_attention_shape *shape);
void   lki_attention_bf16(lk_exec *exec, const lki_attention_shape *shape, lki_attention_input x,
                          uint16_t *y, float *lse, void *scratch);
void   lki_attention_bf16_backward(lk_exec *exec, const lki_attention_shape *shape,
                                   lki_attention_input x, const uint16_t *y, const float *lse,
                                   const uint16_t *dy, lki_attention_gradient dx, void *scratch);

/* ---- Llama's blocks ---------------------------------------------------------------------- */

/* RMSNorm: rows of c values are divided by their root mean square: y = x rstd gamma, with rstd
 * (rows) = 1 / sqrt(mean of squares + eps).  The fields from dy on are for the backward pass. */
typedef struct {
    lk_dtype     type;
    size_t       rows, c;
    float        eps;
    const void  *x;
    const float *gamma;
    void        *y;
    float       *rstd;

    const void  *dy;
    void        *dx;
    bool         add;
    float       *dgamma;
} lki_rmsnorm_args;
void lki_rmsnorm(lk_exec *exec, const lki_rmsnorm_args *args);
void lki_rmsnorm_backward(lk_exec *exec, const lki_rmsnorm_args *args);

/* Rotary embeddings.  x and y are (b, t, heads, size); y may be x.  At position p, elements i and
 * i + size / 2 of each head are rotated by the angle p f(i), or back by it.  The backward pass
 * rotates dy back. */
typedef struct {
    lk_dtype     type;
    size_t       b, t, heads, size;
    const float *table; /* (t, size) */
    const void  *x;
    void        *y;
    bool         back, add;
} lki_rope_args;
void lki_rope(lk_exec *exec, const lki_rope_args *args);

/* The frequencies f(i) = theta^(-2i / size), rounded to FP32.  With a `factor` they are scaled as
 * Llama 3.1 does for longer contexts: those that turn fewer than `low` times in `original`
 * positions are divided by it, those that turn more than `high` times are kept, and there is a
 * linear transition between the two. */
typedef struct {
    double theta, factor, low, high;
    size_t original;
} lki_rope_scale;

/* Computes the table: at each position size / 2 cosines and then size / 2 sines, correctly rounded,
 * of the angles p f(i) in FP32.  t is at most 2^20, and theta at least 1. */
void lki_rope_table(const lki_rope_scale *scale, size_t t, size_t size, float *table);

/* SwiGLU: y = gate sigmoid(gate) up.  For the backward pass dgate and dup may be NULL. */
typedef struct {
    lk_dtype    type;
    size_t      n;
    const void *gate, *up;
    void       *y;

    const void *dy;
    void       *dgate, *dup;
    bool        add_gate, add_up;
} lki_swiglu_args;
void lki_swiglu(lk_exec *exec, const lki_swiglu_args *args);
void lki_swiglu_backward(lk_exec *exec, const lki_swiglu_args *args);

/* ---- Embedding --------------------------------------------------------------------------- */

/* A table of embeddings.  `type` is LK_F32 (or 0, which means the same) or, only if the results are
 * BF16, LK_BF16. */
typedef struct {
    const void *values;
    lk_dtype    type;
} lki_table;

/* Computes y (b, t, c) = wte[token] + wpe[position]; tokens (b, t). wpe.values may be NULL.  If y
 * is BF16, both rows are rounded to BF16 before the addition.  Tokens must be in range, which the
 * data set has checked. */
void lki_embedding(lk_exec *exec, lk_dtype type, size_t b, size_t t, size_t c,
                   const int32_t *tokens, lki_table wte, lki_table wpe, void *y);
void lki_embedding_backward(lk_exec *exec, lk_dtype type, size_t b, size_t t, size_t c,
                            const int32_t *tokens, const void *dy, float *dwte, float *dwpe);

/* ---- Loss -------------------------------------------------------------------------------- */

/* Computes the softmax cross-entropy of logits (rows, classes) against targets (rows).  A row with
 * a negative target is ignored: its loss, gradient and hit are 0. loss (rows) is in nats; hit
 * (rows) is 1 if the first largest logit is the target.  If `gradient` is not 0, logits are
 * replaced by (softmax - onehot) * gradient; factors other than 1 need F32.  With `smoothing` s, a
 * row's target is the distribution (1 - s) onehot + s / classes. */
void lki_softmax_xent(lk_exec *exec, lk_dtype type, size_t rows, size_t classes, void *logits,
                      const int32_t *targets, float *loss, uint8_t *hit, float gradient,
                      float smoothing);

typedef enum { LKI_LOSS_MSE, LKI_LOSS_HUBER, LKI_LOSS_BCE } lki_loss_kind;

typedef struct {
    lki_loss_kind kind;
    float         delta; /* of Huber's loss */
} lki_element_loss;

/* Computes a loss for each of n elements: (x - t)^2; Huber's; or the binary cross-entropy of
 * sigmoid(x), whose hit is 1 if x > 0 and t > 1/2 agree.  An element whose target is not a number
 * is ignored.  If `gradient` is not 0, x is replaced by the derivative times `gradient`; factors
 * other than 1 need F32. */
void lki_element_losses(lk_exec *exec, lk_dtype type, const lki_element_loss *how, size_t n,
                        void *x, const float *targets, float *loss, uint8_t *hit, float gradient);

/* ---- Parameters: initial values, norms, updates ------------------------------------------ */

/* Computes the initial values of elements first .. first + n - 1 of parameter `index`, as specified
 * by `param`. */
void lki_init_param(lk_exec *exec, uint64_t seed, uint32_t index, const lk_param *param,
                    size_t first, size_t n, float *y);

enum { LKI_NORM_BLOCK = 4096 }; /* a norm is a sum over blocks of 4096 elements of one tensor */

/* Returns the sum of squares of n <= LKI_NORM_BLOCK values: 16 lanes in FP64 and a fixed lane
 * tree. */
double lki_block_sum_squares(const lk_exec *exec, size_t n, const float *x);

/* Computes lki_block_sum_squares() of `count` blocks, faster than one after another. */
void lki_block_sums_squares(const lk_exec *exec, size_t count, const size_t *n,
                            const float *const *x, double *sums);

/* Sums n doubles by the canonical balanced tree (left subtree: largest power of two below n). */
double lki_tree_sum_f64(const double *x, size_t n);

/* AdamW with decoupled weight decay as in PyTorch: p -= lr wd p; m += (g - m)(1 - b1); v = b2 v +
 * (1 - b2) g g; p -= (lr / c1) m / (sqrt(v) / sqrt(c2) + eps), where c1 = 1 - b1^t, c2 = 1 - b2^t.
 * The gradient is first multiplied by scale, then by clip. */
typedef struct {
    double lr, beta1, beta2, eps, weight_decay, correction1, correction2_sqrt;
    float  scale, clip;
} lki_adamw_step;
void lki_adamw(const lk_exec *exec, const lki_adamw_step *step, size_t n, const float *g, float *p,
               float *m, float *v);

/* SGD as in PyTorch: d = (g + wd p) inner.  With momentum b = momentum b + d (first step: b = d),
 * and then d = nesterov ? d + momentum b : b.  Finally p -= outer d.  The learning rate is in
 * `outer` or, if the momentum contains steps, in `inner`.  A trust ratio is in `inner`.  `first` is
 * true at the first step.  b may be NULL without momentum. */
typedef struct {
    float inner, outer, momentum, weight_decay;
    bool  nesterov, first;
    float scale, clip;
} lki_sgd_step;
void lki_sgd(const lk_exec *exec, const lki_sgd_step *step, size_t n, const float *g, float *p,
             float *b);

/* Computes the first pass of LAMB: updates m and v like AdamW, and replaces g by the direction u =
 * (m / c1) / (sqrt(v) / sqrt(c2) + eps) + wd p. */
void lki_lamb_direction(const lk_exec *exec, const lki_adamw_step *step, size_t n, float *g,
                        const float *p, float *m, float *v);

/* Computes the second pass of LAMB: p -= rate u. */
void lki_descend(const lk_exec *exec, float rate, size_t n, const float *u, float *p);

/* Computes a step of Lion: p -= lr wd p; p -= lr sign(b1 m + (1 - b1) g); m = b2 m + (1 - b2) g.
 * eps and the corrections in `step` are not used. */
void lki_lion(const lk_exec *exec, const lki_adamw_step *step, size_t n, const float *g, float *p,
              float *m);

/* Adagrad as in PyTorch: d = g + wd p; sum += d d; p -= lr d / (sqrt(sum) + eps). */
typedef struct {
    float lr, eps, weight_decay, scale, clip;
} lki_adagrad_step;
void lki_adagrad(const lk_exec *exec, const lki_adagrad_step *step, size_t n, const float *g,
                 float *p, float *sum);

/* Computes a step of Yogi: AdamW with v -= (1 - b2) sign(v - g g) g g. */
void lki_yogi(const lk_exec *exec, const lki_adamw_step *step, size_t n, const float *g, float *p,
              float *m, float *v);

/* ---- Scalar functions with the same bits on every machine (no libm) ------------------------ */

float  lki_expf(float x);
float  lki_exp2f(float x);                       /* error 2.3e-7; -126 <= x <= 127 */
float  lki_logf(float x);
float  lki_tanhf(float x);
float  lki_erff(float x);
float  lki_cosf(float x);                        /* |x| <= 2 pi * 1024 */
double lki_cos(double x);                        /* |x| <= 2^20; error 2^-52 of 1 */
double lki_sin(double x);                        /* likewise */
double lki_pow(double x, double y);              /* for schedules: x in [0, 1], y in [0, 100] */
/* for bias corrections, by squaring and multiplying */
double lki_powi(double base, uint64_t exponent);

#endif

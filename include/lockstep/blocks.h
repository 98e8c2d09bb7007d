/* lockstep/blocks.h -- the built-in block types and their options.
 *
 * A model is a list of blocks: lk_model_add() of lockstep/nn.h appends one.  Shapes are per sample.
 */
#ifndef LK_BLOCKS_H
#define LK_BLOCKS_H

#include "lockstep/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The functions and properties of a kind of block; described in lockstep/nn.h. */
typedef struct lk_block_type lk_block_type;

/* linear: (..., in) -> (..., out).  weight is (out, in), or (in, out) if `transposed`.  A second
 * input (..., out) is added to the result after the activation. */
typedef struct {
    uint64_t    out;
    bool        transposed, no_bias;
    const char *activation;   /* NULL, "relu", "gelu" (erf), "gelu_tanh" */
    /* initial values of the weight; with LK_INIT_UNIFORM also of the bias, which else is 0 */
    lk_init     init;
    float       scale;
    const char *shared;       /* full name of an (out, in) weight to share, or NULL */
} lk_linear_options;

/* embedding: token ids (T) -> (T, width).  Parameters: wte.weight (vocabulary, width) and
 * wpe.weight (positions, width), normal with standard deviation `scale`; with `no_positions` only
 * `weight` (vocabulary, width). */
typedef struct {
    uint64_t vocabulary, width;
    float    scale;
    bool     no_positions;
    uint64_t positions; /* at least T; 0: T */
} lk_embedding_options;

/* attention: causal, (T, 3C) -> (T, C); in training, dropout applies to probabilities.  It also
 * accepts three inputs, queries (T, C), keys and values (T, K): K is the width of `heads` heads, or
 * of a divisor of that number, and then neighbouring heads of queries share keys and values. */
typedef struct {
    uint64_t heads;
    float    dropout;
} lk_attention_options;

typedef struct {
    float p;
} lk_dropout_options;

/* scale: multiplies all values by a constant */
typedef struct {
    float factor;
} lk_scale_options;

/* conv: (H, W, Cin) -> (OH, OW, out), weight (out, Cin, k, k), no bias, Kaiming normal fan-out */
typedef struct {
    uint64_t out, kernel, stride, pad;
} lk_conv_options;

/* batchnorm: normalises over all but the last dimension.  A second input is added to the result,
 * and then `relu` is applied.  With `zero_gamma` the weight starts at 0. */
typedef struct {
    bool relu, zero_gamma;
} lk_batchnorm_options;

/* sync_batchnorm: batchnorm with statistics over the micro-batches of all virtual workers */

typedef struct {
    uint64_t kernel, stride, pad;
} lk_maxpool_options;

/* shortcut: every stride-th pixel, with `channels` channels; channels that x lacks are 0 */
typedef struct {
    uint64_t channels, stride;
} lk_shortcut_options;

/* rmsnorm: divides each run of `size` values by its root mean square, and multiplies it by weight
 * (size) */
typedef struct {
    float    eps;  /* is added to the mean of the squares */
    uint64_t size; /* of a head, for example; 0: the last dimension */
} lk_rmsnorm_options;

/* rope: rotary position embeddings of heads of `size` values, (T, C) -> (T, C).  Elements i and i +
 * size / 2 of a head are rotated by the position times theta^(-2i / size), in FP32.  A `factor`
 * scales the frequencies for contexts longer than `original`, as Llama 3.1 does: those with fewer
 * than `low` turns in `original` positions are divided by it, those with more than `high` are kept,
 * and there is a linear transition in between. */
typedef struct {
    uint64_t size;
    double   theta;
    double   factor, low, high; /* factor 0: not scaled */
    uint64_t original;
} lk_rope_options;

/* linear_cross_entropy: a loss block that fuses cross_entropy and linear without a bias; the logits
 * (..., classes) are never in memory as a whole.  weight (classes, in) is shared with an earlier
 * block by full name, or new: normal with standard deviation `scale`. */
typedef struct {
    uint64_t    classes;
    const char *shared;
    float       scale;
    uint64_t    rows; /* rows of logits at a time, a multiple of 32; 0: as many as take 128 MiB */
    float       smoothing; /* as in lk_cross_entropy_options */
} lk_linear_cross_entropy_options;

/* cross_entropy: a loss block that takes logits (..., classes), with one row of loss per row of
 * logits.  With `smoothing` s in [0, 1) the target of a row in training is
 * (1 - s) onehot + s / classes.  The options may be left out. */
typedef struct {
    float smoothing;
} lk_cross_entropy_options;

/* huber: a loss block with d = x - target.  The loss is d^2 / 2 if |d| <= delta, and otherwise
 * delta (|d| - delta / 2). */
typedef struct {
    float delta; /* above 0 */
} lk_huber_options;

/* Block types without options: layernorm (over the last dimension), add (two inputs), relu, swiglu
 * (x0 sigmoid(x0) x1), avgpool (the mean over all but the last dimension), flatten, and the loss
 * blocks mse, (x - target)^2, and bce, the binary cross-entropy of sigmoid(x), with targets in [0,
 * 1].  mse, huber and bce have one row of loss per element, and targets are FP32 numbers
 * (lk_block_type.numbers). */
LK_API extern const lk_block_type lk_block_linear, lk_block_layernorm, lk_block_attention,
    lk_block_embedding, lk_block_dropout, lk_block_add, lk_block_relu, lk_block_gelu_tanh,
    lk_block_scale, lk_block_conv,
    lk_block_batchnorm, lk_block_sync_batchnorm, lk_block_maxpool, lk_block_avgpool,
    lk_block_shortcut, lk_block_flatten, lk_block_rmsnorm, lk_block_rope, lk_block_swiglu,
    lk_block_cross_entropy, lk_block_linear_cross_entropy, lk_block_mse, lk_block_huber,
    lk_block_bce;

#ifdef __cplusplus
}
#endif
#endif /* LK_BLOCKS_H */

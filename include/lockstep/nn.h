/* lockstep/nn.h -- models as static lists of blocks, and the engine that walks them.
 *
 * A block turns the values of earlier blocks into one new value, and back.  It owns nothing:
 * parameters, gradients, saved activations and scratch memory arrive as pointers, laid out by
 * the engine and by the strategy that places the parameters.  Blocks see no ranks.  You add a
 * block type by filling an lk_block_type; the built-in ones use the same table.
 *
 * The engine alone walks the list: forward in order, backward in reverse, for a set of contexts
 * (virtual workers) at a time, and calls the hooks.  Data-parallel strategies are hook tables.
 *
 * Shapes are per sample; a micro-batch puts the samples in front: a value of shape (T, C) is
 * (samples, T, C) in memory.  Values are FP32, or what the engine stores them as; token ids are
 * int32.
 *
 * Threads: a model is read-only once built; one thread at a time per engine.
 */
#ifndef LK_NN_H
#define LK_NN_H

#include "lockstep/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LK_BLOCK_INPUTS_MAX 3
#define LK_BLOCK_PARAMS_MAX 8

typedef struct lk_model  lk_model;
typedef struct lk_plan   lk_plan;
typedef struct lk_engine lk_engine;
typedef uint32_t         lk_value; /* what a block puts out; 0 is the model's input */

/* ---- Block types ------------------------------------------------------------------------- */

/* What a block knows about itself: fixed once planned. */
typedef struct {
    const void *options;              /* a copy of what lk_model_add() was given */
    uint32_t    layer;                /* its place in the model: part of dropout's key */
    uint32_t    input_count;
    lk_shape    x[LK_BLOCK_INPUTS_MAX], y;
    uint32_t    param_count, state_count;
} lk_block;

/* One call of forward or backward.  Pointers are valid during the call only. */
typedef struct {
    const lk_block *block;
    lk_exec        *exec;
    bool            training;
    uint32_t        samples;          /* in this micro-batch; at least 1 */
    uint64_t        seed;
    uint32_t        step, first_slot; /* for keyed randomness: sample s is slot first_slot + s */

    lk_dtype            dtype;        /* of x, y, dy, dx: LK_F32, or LK_BF16 if the type takes it */
    const void         *x[LK_BLOCK_INPUTS_MAX];
    void               *y;
    const float *const *params;       /* [param_count], in the order planned */
    const uint16_t *const *params_bf16; /* [param_count]: where one is not NULL it is kept as bf16
                                         * and here in place of params; see bf16_params */
    const float *const *state;        /* [state_count], running values (BatchNorm) */
    void               *saved;        /* kept from forward to backward */
    void               *scratch;      /* garbage before and after every call */
    const lk_pack      *pack;         /* of the weight in this direction, or NULL */

    /* backward only */
    const void   *dy;
    void         *dx[LK_BLOCK_INPUTS_MAX];  /* NULL: nobody wants it */
    bool          add[LK_BLOCK_INPUTS_MAX]; /* add to dx (true) or write it */
    float *const *grads;              /* [param_count]; add to them, but ... */
    bool          write[LK_BLOCK_PARAMS_MAX]; /* ... write grads[i], which hold nothing yet, where
                                               * this says so: to types with writes_grads only */

    float *const *state_sums;         /* [state_count]; training forward adds samples * value */

    /* blocks with statistics, when training: all virtual workers' of forward; and of backward */
    const double *total, *total_backward;

    /* loss blocks only: targets as the data set gives them; loss and hit have a row each; grads, in
     * forward when training, for a block that does its backward pass there */
    float *const   *forward_grads;
    const int32_t  *targets;
    const uint32_t *weights; /* a row's gradient is multiplied by its own; NULL: 1 each */
    float         *loss;
    uint8_t       *hit;
    float          loss_scale; /* what all gradients are multiplied by */
} lk_block_call;

/* Floating-point operations of a sample that the definition of a block cannot do without, counted
 * as multiplications and additions of products; what is linear in the number of elements is left
 * out, and so is everything that multiplies padding. */
typedef struct {
    double forward, weights, input; /* backward: of the parameters' gradients, and of x[0]'s */
} lk_block_flops;

typedef void (*lk_row_merge)(uint32_t width, double *left, const double *right);

/* What a block wants to know of the micro-batches of all virtual workers together: each of these
 * puts in a row of FP64 values before any of them goes on.  Rows are merged along the canonical
 * tree over virtual workers, left with right, and the result is every call's `total`.  Models with
 * such blocks have all virtual workers walked block by block (lk_model_lock_step()). */
typedef struct {
    uint32_t (*width)(const lk_block *block);

    /* Called before forward() and backward(), with the same call; may write to call->saved.  A
     * virtual worker without samples has zeros. */
    void (*forward_row)(const lk_block_call *call, double *row);
    void (*backward_row)(const lk_block_call *call, double *row);

    lk_row_merge merge; /* of forward's rows; backward's are added */
} lk_block_statistics;

typedef struct {
    const char *name;

    /* Checks options and input shapes, declares output, parameters and state (lk_plan_...). */
    lk_status (*plan)(lk_plan *plan);

    /* (optional) Bytes of saved and scratch memory for micro-batches of up to `samples`, in calls
     * whose values are of `dtype`. */
    void (*buffers)(const lk_block *block, const lk_exec *exec, lk_dtype dtype, uint32_t samples,
                    size_t *saved, size_t *scratch);

    void (*forward)(const lk_block_call *call);
    void (*backward)(const lk_block_call *call);

    /* (optional) Bytes of a pack of the weight, for forward or for backward, 64-byte aligned. */
    size_t (*pack_bytes)(const lk_block *block, const lk_exec *exec, lk_dtype dtype,
                         uint32_t samples, bool backward);

    /* (optional) What a sample needs, for lk_engine_flops(). */
    lk_block_flops (*flops)(const lk_block *block);

    bool loss;           /* the last block: rows of loss instead of an output value */
    bool inplace;        /* y may share memory with x[0], which is then garbage after forward; and
                          * dx[0] with dy in backward */
    bool residual;       /* x[1], if there is one, is added to the result: dx[1] is dy, and may
                          * share its memory, which backward then leaves as it is; not with
                          * inplace */
    bool tokens;         /* x[0] is token ids (int32): the input of a model of tokens */
    bool params_unread;  /* by backward, which is called without them */
    bool writes_grads;   /* heeds call->write, and need not add to what was cleared for it */
    bool bf16;           /* takes values in bf16 as they are, where the engine stores such: then all
                          * of x, y, dy and dx are (call->dtype), the model's input included;
                          * parameters' gradients and rows of loss are FP32 as ever, and so are
                          * parameters but for bf16_params.  Other types are called with FP32
                          * copies. */
    uint32_t bf16_params; /* with bf16: bit i says that then it rounds parameter i to bf16, to
                           * nearest even, when it reads it, and takes it so, too
                           * (call->params_bf16): the same bits, whichever it gets */

    const lk_block_statistics *statistics; /* (optional) */
} lk_block_type;

/* A loss block has one input.  Its y is x[0], writable: when training, forward or backward turns
 * it into the gradient of the sum of the rows times loss_scale (dx[0] is the same memory);
 * otherwise it leaves it alone.  Its planned output is the shape of its rows of loss; a row whose
 * target is negative counts for nothing and has loss 0. */

/* For plan functions. */
LK_API const lk_block *lk_plan_block(const lk_plan *plan);
LK_API void lk_plan_output(lk_plan *plan, lk_shape shape);
/* Says that backward does not read y: a later block may work in place on it. */
LK_API void lk_plan_output_unread(lk_plan *plan);
/* The failure of a plan function: LK_EINVAL, with the block's type and name before the message. */
LK_API lk_status lk_plan_fail(const lk_plan *plan, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Declares the next parameter "BLOCK.suffix"; see lk_param for the rest. */
LK_API LK_NODISCARD lk_status lk_plan_param(lk_plan *plan, const char *suffix, lk_shape shape,
                                            lk_init init, float scale, bool no_decay);
/* Uses a parameter that an earlier block declared under its full name: one more gradient term. */
LK_API LK_NODISCARD lk_status lk_plan_param_shared(lk_plan *plan, const char *full_name,
                                                   lk_shape shape);
/* Declares running state "BLOCK.suffix": after each micro-batch index,
 * state = (1 - momentum) state + momentum (sum of state_sums over virtual workers / samples). */
LK_API LK_NODISCARD lk_status lk_plan_state(lk_plan *plan, const char *suffix, size_t count,
                                            float initial, float momentum);

/* ---- Models ------------------------------------------------------------------------------ */

/* A new model whose input has `shape` per sample: token ids if `tokens`, else FP32. */
LK_API LK_NODISCARD lk_status lk_model_new(lk_model **out, const char *name, lk_shape shape,
                                           bool tokens);
LK_API void lk_model_free(lk_model *model);

/* Appends a block.  `name` prefixes its parameters ("" for none).  Copies `options`, but not the
 * strings that they point to, nor `type`: those must outlive the model.  *out is its value.
 * LK_EINVAL says what does not fit; the model is then as before. */
LK_API LK_NODISCARD lk_status lk_model_add(lk_value *out, lk_model *model,
                                           const lk_block_type *type, const char *name,
                                           const void *options, size_t options_bytes,
                                           const lk_value *inputs, uint32_t input_count);

/* Activation checkpointing.  The blocks that are added between the two calls form a segment.  Of
 * what they compute in training, only the values that blocks outside read are kept from forward to
 * backward; the rest shares its memory with the other segments', and before the segment's backward
 * pass the engine computes it again (not for the last, which still has it).  The same bits for
 * less memory and about a third more arithmetic.  Segments do not nest: begin ends one. */
LK_API void lk_model_checkpoint_begin(lk_model *model);
LK_API void lk_model_checkpoint_end(lk_model *model);

typedef struct {
    char     name[LK_NAME_MAX];
    size_t   count;
    float    initial, momentum;
} lk_state;

/* One gradient term: use `use` of parameter `param`, made by block `block`. */
typedef struct { uint32_t param, use, block; } lk_grad_term;

LK_API const char *lk_model_name(const lk_model *model);
/* In the order of definition. */
LK_API const lk_param *lk_model_params(const lk_model *model, uint32_t *count);
LK_API const lk_state *lk_model_states(const lk_model *model, uint32_t *count);
/* In the order in which backward finishes them: the layout of gradient buffers. */
LK_API const lk_grad_term *lk_model_terms(const lk_model *model, uint32_t *count);
LK_API uint32_t lk_model_block_count(const lk_model *model);
/* The blocks whose parameters a training pass reads, in its order: all that have any, forward; then
 * backward.  Returns how many; `out` is NULL, or has room for three times the model's blocks. */
LK_API uint32_t lk_model_reads(const lk_model *model, uint32_t *out);
LK_API uint32_t lk_model_loss_rows(const lk_model *model); /* loss rows per sample: T, or 1 */
LK_API size_t lk_model_param_elements(const lk_model *model);
/* Whether there are blocks with statistics: a micro-batch of every virtual worker is walked at a
 * time. */
LK_API bool lk_model_lock_step(const lk_model *model);

/* ---- The engine -------------------------------------------------------------------------- */

/* Called between blocks; any may be NULL.  None may fail: a strategy keeps its own failure.  The
 * blocks of a checkpointed segment that run again do so between before_ and after_forward of their
 * own, ahead of the before_backward of the segment's last block. */
typedef struct {
    void *user;
    void (*before_forward)(void *user, uint32_t block);
    void (*after_forward)(void *user, uint32_t block);
    void (*before_backward)(void *user, uint32_t block);
    void (*grad_ready)(void *user, uint32_t context, uint32_t term);
    void (*after_backward)(void *user, uint32_t block); /* the last read of its parameters */

    /* Inside blocks with statistics: merges the contexts' rows, one behind the other, with those of
     * all other virtual workers along the canonical tree, into `total`.  `rows` may be used up.
     * NULL: the contexts are all virtual workers there are. */
    void (*statistics)(void *user, uint32_t width, lk_row_merge merge, double *rows,
                       double *total);
    /* Ahead of before_forward and before_backward, where the block reads parameters: only then are
     * they looked up in lk_walk's table.  In the order of lk_model_reads(). */
    void (*before_read)(void *user, uint32_t block);
} lk_hooks;

/* One context's micro-batch.  loss_sum, count and hits continue from what they hold, rows in
 * order, FP64; a row with a weight counts as so many.  A pass without samples does nothing but call
 * grad_ready.  `targets` may be NULL in evaluation: the loss is left out. */
typedef struct {
    uint32_t       samples, first_slot;
    uint32_t       length; /* positions of each sample, where every value of the model begins with
                            * the T of its input: x, targets and the work are those of a model of
                            * so many.  0 = T */
    const void    *x;
    const int32_t *targets;
    const uint32_t *weights;   /* up to 2^24, one a target; NULL: 1 each */
    float *const  *grads;      /* one a term of lk_model_terms(); NULL in evaluation */
    bool          *empty;      /* one a term: its memory holds nothing yet, so that the engine
                                * writes the gradient rather than adds it, and leaves false.
                                * NULL: none */
    float *const  *state_sums; /* one a state; NULL in evaluation */
    double         loss_sum;
    uint64_t       count, hits;
} lk_pass;

typedef struct {
    bool                training;
    uint64_t            seed;
    uint32_t            step;
    const float *const *params; /* one a parameter: fetched from the strategy for this step */
    const uint16_t *const *params_bf16; /* NULL, or one a parameter: not NULL where it is kept as
                                         * bf16 (lk_param.bf16), which is read in place of params */
    const float *const *state;  /* one a state */
    const lk_hooks     *hooks;  /* NULL: none */
    float               loss_scale; /* a power of two; 0 = 1, as it must be where values are BF16 */
    uint64_t            version;    /* of params, for packs of weights; 0: none are kept */
} lk_walk;

/* Plans activations for `contexts` passes at a time of up to `micro_batch` samples each; nothing
 * is allocated after this.  Values and their gradients are stored as `dtype`: LK_F32, LK_BF16 or
 * LK_F16 (parameters' gradients, losses and running state are FP32 always; so are parameters, of
 * which lk_walk.params_bf16 may have some as bf16, where values are).  Borrows
 * model and exec.  The last block must be a loss. */
LK_API LK_NODISCARD lk_status lk_engine_open(lk_engine **out, const lk_model *model, lk_exec *exec,
                                             lk_dtype dtype, uint32_t micro_batch,
                                             uint32_t contexts);
LK_API void lk_engine_free(lk_engine *engine);

/* The same, and of what checkpointed segments keep all but three values are in a file in `dir`
 * between forward and backward, with the same bits; in memory where dir is NULL.  The file has no
 * name, and goes with the engine. */
LK_API LK_NODISCARD lk_status lk_engine_open_offloaded(lk_engine **out, const lk_model *model,
                                                       lk_exec *exec, lk_dtype dtype,
                                                       uint32_t micro_batch, uint32_t contexts,
                                                       const char *dir);

/* After a backward pass: LK_OK, or why the file was not read or written (then nothing that the pass
 * has made is right); seconds of waiting for it since this was asked last. */
LK_API LK_NODISCARD lk_status lk_engine_status(const lk_engine *engine);
LK_API double                 lk_engine_stalled(lk_engine *engine);

/* How the file is read and written, as lk_parallel_offload_how(); "" where there is none. */
LK_API const char *lk_engine_offload_how(const lk_engine *engine);

/* Bytes that such an engine would take; a model may need more than the machine has.  `files` is
 * NULL, or what lk_engine_open_offloaded() has in a file. */
LK_API LK_NODISCARD lk_status lk_engine_bytes(size_t *out, uint64_t *files, const lk_model *model,
                                              const lk_exec *exec, lk_dtype dtype,
                                              uint32_t micro_batch, uint32_t contexts);

LK_API void lk_engine_forward(lk_engine *engine, const lk_walk *walk, lk_pass *passes,
                              uint32_t count);
LK_API void lk_engine_backward(lk_engine *engine, const lk_walk *walk, lk_pass *passes,
                               uint32_t count);

/* What a training step needs for one sample in block `block`: nothing for gradients that nobody
 * wants, such as that of the model's input. */
LK_API double lk_engine_flops(const lk_engine *engine, uint32_t block);

/* The value before the loss (logits) of a context after forward with training == false; valid
 * until the engine's next call. */
LK_API const float *lk_engine_output(const lk_engine *engine, uint32_t context);

/* ---- Built-in block types ---------------------------------------------------------------- */

/* linear: (..., in) -> (..., out).  weight (out, in), or (in, out) if `transposed`.  A second input
 * (..., out) is added to the result, after the activation. */
typedef struct {
    uint64_t    out;
    bool        transposed, no_bias;
    const char *activation;   /* NULL, "relu", "gelu" (erf), "gelu_tanh" */
    lk_init     init;         /* of the weight; LK_INIT_UNIFORM: of the bias too, else 0 */
    float       scale;
    const char *shared;       /* full name of a (out, in) weight to share, or NULL */
} lk_linear_options;

/* embedding: token ids (T) -> (T, width); parameters wte.weight (vocabulary, width) and
 * wpe.weight (T, width), normal with deviation `scale`. */
typedef struct {
    uint64_t vocabulary, width;
    float    scale;
} lk_embedding_options;

/* attention: causal, (T, 3C) -> (T, C); drops probabilities when training. */
typedef struct {
    uint64_t heads;
    float    dropout;
} lk_attention_options;

typedef struct {
    float p;
} lk_dropout_options;

/* conv: (H, W, Cin) -> (OH, OW, out), weight (out, Cin, k, k), no bias, Kaiming normal fan-out */
typedef struct {
    uint64_t out, kernel, stride, pad;
} lk_conv_options;

/* batchnorm: over all but the last dimension.  With a second input, that is added to the result;
 * `relu` comes after.  `zero_gamma` starts the weight at 0. */
typedef struct {
    bool relu, zero_gamma;
} lk_batchnorm_options;

/* sync_batchnorm: the same with statistics of all virtual workers' micro-batches, not of one's */

typedef struct {
    uint64_t kernel, stride, pad;
} lk_maxpool_options;

/* shortcut: every stride-th pixel, `channels` of them: those behind x's are 0 */
typedef struct {
    uint64_t channels, stride;
} lk_shortcut_options;

/* linear_cross_entropy: a loss block of linear's product without a bias and cross_entropy, for
 * which the logits, (..., classes), are never in memory as a whole.  weight (classes, in): an
 * earlier block's by its full name, or its own, normal with deviation `scale`. */
typedef struct {
    uint64_t    classes;
    const char *shared;
    float       scale;
    uint64_t    rows; /* of logits at a time, whole sixteens; 0: as many as take 128 MiB */
} lk_linear_cross_entropy_options;

/* Without options: layernorm (over the last dimension), add (two inputs), relu, avgpool (the mean
 * over all but the last dimension), flatten, cross_entropy (of logits (..., classes); a row of
 * loss for each). */
LK_API extern const lk_block_type lk_block_linear, lk_block_layernorm, lk_block_attention,
    lk_block_embedding, lk_block_dropout, lk_block_add, lk_block_relu, lk_block_conv,
    lk_block_batchnorm, lk_block_sync_batchnorm, lk_block_maxpool, lk_block_avgpool,
    lk_block_shortcut, lk_block_flatten, lk_block_cross_entropy, lk_block_linear_cross_entropy;

#ifdef __cplusplus
}
#endif
#endif /* LK_NN_H */

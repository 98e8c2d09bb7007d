/* lockstep/nn.h -- models as static lists of blocks, and the engine that runs them.
 *
 * A block computes one new value from the values of earlier blocks, and its gradients.  It owns
 * nothing: all memory is passed as pointers, placed by the engine and the strategy.  Blocks know no
 * ranks.  To add a block type, fill in an lk_block_type; the built-in types (lockstep/blocks.h) use
 * the same table.
 *
 * Only the engine walks the list: forward in order, backward in reverse, for a set of contexts
 * (virtual workers) at a time.  It calls the hooks.  Data-parallel strategies are hook tables.
 *
 * Shapes are per sample; in memory the samples of a micro-batch come first: a value of shape (T, C)
 * is stored as (samples, T, C).  Values are FP32, or the type in which the engine stores them;
 * token ids are int32.
 *
 * Threads: a finished model is read-only.  One thread at a time may use an engine.
 */
#ifndef LK_NN_H
#define LK_NN_H

#include "lockstep/blocks.h"
#include "lockstep/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LK_BLOCK_INPUTS_MAX 3
#define LK_BLOCK_PARAMS_MAX 8

typedef struct lk_model  lk_model;
typedef struct lk_plan   lk_plan;
typedef struct lk_engine lk_engine;
typedef uint32_t         lk_value; /* the output of a block; 0 is the model's input */

/* ---- Block types ------------------------------------------------------------------------- */

/* The description of a block, constant once planned. */
typedef struct {
    const void *options;              /* a copy of the options given to lk_model_add() */
    uint32_t    layer;                /* the block's index in the model, part of dropout's key */
    uint32_t    input_count;
    lk_shape    x[LK_BLOCK_INPUTS_MAX], y;
    uint32_t    param_count, state_count;
    const void *constants;            /* see lk_plan_constants() */
} lk_block;

/* One call of forward or backward.  Pointers are valid only during the call. */
typedef struct {
    const lk_block *block;
    lk_exec        *exec;
    bool            training;
    uint32_t        samples;          /* samples in this micro-batch; at least 1 */
    uint64_t        seed;
    uint32_t        step, first_slot; /* sample s is in batch slot first_slot + s */

    /* with lk_engine_open_cached(): position of the first row of x, positions of the model, and
     * memory of cache_bytes() bytes; else 0, 0 and NULL */
    uint32_t        first, positions;
    void           *cache;

    lk_dtype            dtype;        /* type of x, y, dy, dx: LK_F32, or LK_BF16 if type->bf16 */
    const void         *x[LK_BLOCK_INPUTS_MAX];
    void               *y;
    const float *const *params;       /* [param_count], in the order planned */
    const uint16_t *const *params_bf16; /* [param_count]; an entry that is not NULL has the
                                         * parameter as bf16, in place of params; see bf16_params */
    const float *const *state;        /* [state_count], running values (BatchNorm) */
    void               *saved;        /* kept from forward to backward */
    void               *scratch;      /* undefined before and after every call */
    const lk_pack      *pack;         /* pack of the weight for this direction, or NULL */

    /* backward only */
    const void   *dy;
    void         *dx[LK_BLOCK_INPUTS_MAX];  /* NULL: not needed */
    bool          add[LK_BLOCK_INPUTS_MAX]; /* true: add to dx; false: overwrite dx */
    float *const *grads; /* [param_count]: add to grads[i], unless write[i] is set; an entry that is
                          * NULL is that of a frozen parameter */
    bool          write[LK_BLOCK_PARAMS_MAX]; /* overwrite grads[i]; for types with writes_grads */
    const uint32_t *part_ends;  /* [part_count]: ends of virtual workers' samples; see sums_parts */
    uint32_t        part_count; /* 0: all samples are of one virtual worker */
    float *const   *state_sums; /* [state_count]; training forward adds samples * value */

    /* for blocks with statistics, in training: the totals over all virtual workers */
    const double *total, *total_backward;

    /* loss blocks only: targets as the data set returns them; loss and hit have one element per
     * row.  `forward_grads` is for blocks that compute their backward pass during forward; NULL
     * entries as in `grads` */
    float *const   *forward_grads;
    const int32_t  *targets;
    const uint32_t *weights; /* factors of the rows' gradients; NULL: 1 each */
    float         *loss;
    uint8_t       *hit;
    float          loss_scale; /* a factor on all gradients */
} lk_block_call;

/* The floating-point operations that one sample needs by the definition of a block: multiplications
 * and additions of matrix products.  Terms linear in the number of elements and products with
 * padding are not counted. */
typedef struct {
    double forward, weights, input; /* backward: `weights` for parameters, `input` for x[0] */
} lk_block_flops;

typedef void (*lk_row_merge)(uint32_t width, double *left, const double *right);

/* Statistics that a block computes over the micro-batches of all virtual workers together.  Each
 * micro-batch computes a row of FP64 values and then waits for all others.  Rows are merged along
 * the canonical tree over virtual workers, left with right.  Every call gets the result as `total`.
 * A model with such blocks runs all virtual workers block by block (lk_model_lock_step()). */
typedef struct {
    uint32_t (*width)(const lk_block *block);

    /* Called with the same arguments before forward() and backward(); may write to call->saved.
     * The row of a virtual worker without samples is zero. */
    void (*forward_row)(const lk_block_call *call, double *row);
    void (*backward_row)(const lk_block_call *call, double *row);

    lk_row_merge merge; /* merges the rows of forward; the rows of backward are added */
} lk_block_statistics;

struct lk_block_type {
    const char *name;

    /* Checks options and input shapes, declares output, parameters and state (lk_plan_...). */
    lk_status (*plan)(lk_plan *plan);

    /* (optional) Returns the bytes of saved and scratch memory for micro-batches of up to `samples`
     * and values of `dtype`. */
    void (*buffers)(const lk_block *block, const lk_exec *exec, lk_dtype dtype, uint32_t samples,
                    size_t *saved, size_t *scratch);

    void (*forward)(const lk_block_call *call);
    void (*backward)(const lk_block_call *call);

    /* (optional) Returns the bytes of a packed weight, for forward or backward, 64-byte aligned. */
    size_t (*pack_bytes)(const lk_block *block, const lk_exec *exec, lk_dtype dtype,
                         uint32_t samples, bool backward);

    /* (optional) Returns the bytes of scratch memory of calls with up to `parts` parts. */
    size_t (*part_scratch)(const lk_block *block, const lk_exec *exec, lk_dtype dtype,
                           uint32_t samples, uint32_t parts);

    /* (optional) Returns the bytes in which the block keeps what it needs of earlier positions,
     * with lk_engine_open_cached().  They are zero at first. */
    size_t (*cache_bytes)(const lk_block *block, const lk_exec *exec, lk_dtype dtype,
                          uint32_t samples);

    /* (optional) Returns the operations of one sample, for lk_engine_flops(). */
    lk_block_flops (*flops)(const lk_block *block);

    bool loss;           /* the last block: rows of loss instead of an output value */
    bool numbers;        /* of a loss block: targets are FP32 numbers, whose bits are passed as
                          * int32, in place of classes */
    bool inplace;        /* forward may overwrite x[0] by y, and backward may overwrite dy by
                          * dx[0] */
    bool residual;       /* x[1], if any, is added to the result.  dx[1] equals dy and may share
                          * dy's memory, so backward must not change dy.  Excludes `inplace` */
    bool tokens;         /* x[0] is token ids (int32): the input of a token model */
    bool params_unread;  /* backward does not read parameters and is called without them */
    bool writes_grads;   /* obeys call->write, so gradients need not be zeroed first */
    bool by_position;    /* rows of y depend only on the same rows of x, on call->first, and on the
                          * cache; their bits are those of a call with all positions */
    bool sums_parts;     /* sums the gradients of call->part_ends' parts by the tree, into grads */
    bool bf16;           /* accepts bf16 values if the engine stores them.  Then x, y, dy and dx,
                          * and the model's input, have that type (call->dtype).  Gradients of
                          * parameters, rows of loss, and parameters not in bf16_params stay FP32.
                          * Types without bf16 are called with FP32 copies */
    uint32_t bf16_params; /* with bf16, bit i: the block rounds parameter i to bf16, to nearest
                           * even, when it reads it.  It also accepts the parameter as bf16
                           * (call->params_bf16), with the same bits */
    const lk_block_statistics *statistics; /* (optional) */
};

/* A loss block has one input, and its y is x[0], writable.  In training, forward or backward
 * replaces y by the gradient of the sum of the rows times loss_scale; dx[0] is the same memory.
 * Otherwise y stays unchanged.  The planned output is the shape of the rows of loss.  A row with a
 * negative target, or with `numbers` a NaN, has loss 0 and is not counted. */

/* Returns the block being planned.  This and the next calls are for plan functions. */
LK_API const lk_block *lk_plan_block(const lk_plan *plan);
/* Declares the shape of the output. */
LK_API void lk_plan_output(lk_plan *plan, lk_shape shape);
/* Declares that backward does not read y, so that a later block may overwrite it (inplace). */
LK_API void lk_plan_output_unread(lk_plan *plan);
/* Returns LK_EINVAL for a plan function, with the block's type and name in the message. */
LK_API lk_status lk_plan_fail(const lk_plan *plan, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Declares the next parameter, "BLOCK.suffix"; lk_param describes the arguments. */
LK_API LK_NODISCARD lk_status lk_plan_param(lk_plan *plan, const char *suffix, lk_shape shape,
                                            lk_init init, float scale, bool no_decay);
/* Shares a parameter of an earlier block, given by its full name, which adds a gradient term. */
LK_API LK_NODISCARD lk_status lk_plan_param_shared(lk_plan *plan, const char *full_name,
                                                   lk_shape shape);
/* Declares running state "BLOCK.suffix".  Each micro-batch index updates the state to (1 -
 * momentum) state + momentum (sum of state_sums over virtual workers / samples). */
LK_API LK_NODISCARD lk_status lk_plan_state(lk_plan *plan, const char *suffix, size_t count,
                                            float initial, float momentum);
/* Reserves `bytes` bytes for values that plan computes and calls only read, such as tables.  The
 * model owns the memory; lk_block.constants is its address. */
LK_API LK_NODISCARD lk_status lk_plan_constants(lk_plan *plan, size_t bytes, void **out);

/* ---- Models ------------------------------------------------------------------------------ */

/* Creates a model whose input has `shape` per sample: token ids if `tokens`, else FP32. */
LK_API LK_NODISCARD lk_status lk_model_new(lk_model **out, const char *name, lk_shape shape,
                                           bool tokens);
LK_API void lk_model_free(lk_model *model);

/* Appends a block and sets *out to its value.  `name` prefixes its parameters ("" for none).
 * Copies `options`; strings in them, and `type`, must outlive the model.  LK_EINVAL names the
 * mismatch and leaves the model unchanged. */
LK_API LK_NODISCARD lk_status lk_model_add(lk_value *out, lk_model *model,
                                           const lk_block_type *type, const char *name,
                                           const void *options, size_t options_bytes,
                                           const lk_value *inputs, uint32_t input_count);

/* Activation checkpointing.  The blocks added between the two calls form a segment.  Training
 * stores only the values that blocks outside the segment read.  All other values share memory with
 * other segments, and are recomputed before the segment's backward pass (except the last one's).
 * The bits are the same, with less memory and about a third more arithmetic.  Segments do not nest:
 * begin ends an open segment. */
LK_API void lk_model_checkpoint_begin(lk_model *model);
LK_API void lk_model_checkpoint_end(lk_model *model);

/* Makes the parameters of the blocks that are added from now on frozen, or trainable again.  Frozen
 * parameters have no gradients: they are not among lk_model_params() and have no terms, so no
 * strategy sees them.  lk_engine_set_frozen() gives their values.  A block that shares a frozen
 * parameter must be frozen, too. */
LK_API void lk_model_freeze(lk_model *model, bool frozen);

typedef struct {
    char     name[LK_NAME_MAX];
    size_t   count;
    float    initial, momentum;
} lk_state;

/* One gradient term: use `use` of parameter `param`, computed by block `block`. */
typedef struct { uint32_t param, use, block; } lk_grad_term;

/* Returns the name that the model was created with. */
LK_API const char *lk_model_name(const lk_model *model);
/* Returns the parameters in the order of definition. */
LK_API const lk_param *lk_model_params(const lk_model *model, uint32_t *count);
/* Returns the frozen parameters in the order of definition. */
LK_API const lk_param *lk_model_frozen(const lk_model *model, uint32_t *count);
/* Returns the running states, such as BatchNorm's, in the order of definition. */
LK_API const lk_state *lk_model_states(const lk_model *model, uint32_t *count);
/* Returns the terms in the order in which backward finishes them, the order of gradient buffers. */
LK_API const lk_grad_term *lk_model_terms(const lk_model *model, uint32_t *count);
/* Returns the number of blocks. */
LK_API uint32_t lk_model_block_count(const lk_model *model);
/* Writes, in order, the blocks whose parameters a training pass reads: in forward all that have
 * any, then those of backward.  Returns their number.  `out`: 3 entries per block, or NULL. */
LK_API uint32_t lk_model_reads(const lk_model *model, uint32_t *out);
LK_API uint32_t lk_model_loss_rows(const lk_model *model); /* per sample: T, or 1 */
LK_API size_t lk_model_param_elements(const lk_model *model);
/* Returns true if any block has statistics, so that virtual workers must be run together. */
LK_API bool lk_model_lock_step(const lk_model *model);

/* ---- The engine -------------------------------------------------------------------------- */

/* Callbacks between blocks; each may be NULL.  A callback cannot fail: a strategy stores its own
 * failure.  Recomputing a checkpointed segment calls before_forward and after_forward once more,
 * before the before_backward of the segment's last block. */
typedef struct {
    void *user;
    void (*before_forward)(void *user, uint32_t block);
    void (*after_forward)(void *user, uint32_t block);
    void (*before_backward)(void *user, uint32_t block);
    void (*grad_ready)(void *user, uint32_t context, uint32_t term);
    void (*after_backward)(void *user, uint32_t block); /* parameters are no longer needed */
    /* Inside blocks with statistics: merges the contexts' rows, stored one after another, with the
     * rows of all other virtual workers along the canonical tree into `total`.  May overwrite
     * `rows`.  NULL: the contexts are all virtual workers. */
    void (*statistics)(void *user, uint32_t width, lk_row_merge merge, double *rows,
                       double *total);
    /* Called before before_forward and before_backward of a block that reads parameters, in
     * lk_model_reads()'s order.  lk_walk's table is read after it. */
    void (*before_read)(void *user, uint32_t block);
} lk_hooks;

/* The micro-batch of one context.  The pass adds to loss_sum, count and hits, rows in order, in
 * FP64.  A row of weight w counts w times.  A pass without samples only calls grad_ready.  In
 * evaluation `targets` may be NULL; then no loss is computed. */
typedef struct {
    uint32_t       samples, first_slot;
    uint32_t       length; /* positions of each sample, at most T, the first dimension of x, targets
                            * and all values; 0 = T */
    uint32_t       first;  /* position of the first; not 0 only with lk_engine_open_cached() */
    const void    *x;
    const int32_t *targets;
    const uint32_t *weights;   /* up to 2^24, one per target; NULL: 1 each */
    float *const  *grads;      /* one per term of lk_model_terms(); NULL in evaluation */
    bool          *empty;      /* one per term; true: the memory is undefined, so the engine
                                * overwrites it instead of adding and sets false.  NULL: all
                                * false */
    float *const  *state_sums; /* one per state; NULL in evaluation */
    double         loss_sum;
    uint64_t       count, hits;
} lk_pass;

typedef struct {
    bool                training;
    uint64_t            seed;
    uint32_t            step;
    const float *const *params; /* one per parameter, obtained from the strategy for this step */
    const uint16_t *const *params_bf16; /* NULL, or one per parameter; an entry that is not NULL
                                         * replaces that of params (lk_param.bf16) */
    const float *const *state;  /* one per state */
    const lk_hooks     *hooks;  /* NULL: none */
    float               loss_scale; /* a power of two; 0 means 1; must be 1 for BF16 values */
    uint64_t            version;    /* version of params, for packed weights; 0: none are stored */
} lk_walk;

/* Creates an engine for `contexts` simultaneous passes of up to `micro_batch` samples each.  The
 * engine allocates nothing later.  Stores values and their gradients as `dtype`: LK_F32, LK_BF16 or
 * LK_F16.  Gradients of parameters, losses and running state are always FP32, and so are
 * parameters, except those in lk_walk.params_bf16 if values are bf16.  Borrows model and exec.  The
 * last block must be a loss. */
LK_API LK_NODISCARD lk_status lk_engine_open(lk_engine **out, const lk_model *model, lk_exec *exec,
                                             lk_dtype dtype, uint32_t micro_batch,
                                             uint32_t contexts);
LK_API void lk_engine_free(lk_engine *engine);

/* Sets the addresses of the values of lk_model_frozen(), which the engine borrows.  Required before
 * the first pass if the model has any. */
LK_API void lk_engine_set_frozen(lk_engine *engine, const float *const *values);

/* Creates an engine that stores the values of checkpointed segments, except three, in an unnamed
 * file in `dir` between forward and backward; NULL: in memory.  The bits are the same.  The file
 * disappears with the engine. */
LK_API LK_NODISCARD lk_status lk_engine_open_offloaded(lk_engine **out, const lk_model *model,
                                                       lk_exec *exec, lk_dtype dtype,
                                                       uint32_t micro_batch, uint32_t contexts,
                                                       const char *dir);

/* Creates an engine for evaluation that keeps what blocks need of earlier positions, such as keys
 * and values of attention.  A pass has up to `positions` positions, from lk_pass.first on; the
 * earlier ones are those of earlier passes.  The values have the bits of one pass with all
 * positions.  LK_EINVAL, with the name of a block, if that block needs all positions at once. */
LK_API LK_NODISCARD lk_status lk_engine_open_cached(lk_engine **out, const lk_model *model,
                                                    lk_exec *exec, lk_dtype dtype,
                                                    uint32_t samples, uint32_t positions);

/* Returns LK_OK, or why the engine's file failed in a pass, whose results are then invalid. */
LK_API LK_NODISCARD lk_status lk_engine_status(const lk_engine *engine);
/* Returns the seconds spent waiting for the file since the last call. */
LK_API double                 lk_engine_stalled(lk_engine *engine);

/* Returns how the file is accessed, as lk_parallel_offload_how() does; "" if there is none. */
LK_API const char *lk_engine_offload_how(const lk_engine *engine);

/* Computes the bytes of an engine, which may exceed the machine's memory.  `files` is NULL, or
 * receives the bytes of the file of lk_engine_open_offloaded(). */
LK_API LK_NODISCARD lk_status lk_engine_bytes(size_t *out, uint64_t *files, const lk_model *model,
                                              const lk_exec *exec, lk_dtype dtype,
                                              uint32_t micro_batch, uint32_t contexts);

/* Computes `count` passes, at most `contexts`, block by block, and adds to their loss_sum, count
 * and hits.  Pass i uses context i.  All pointers are borrowed until the call returns; the values
 * for backward stay in the engine. */
LK_API void lk_engine_forward(lk_engine *engine, const lk_walk *walk, lk_pass *passes,
                              uint32_t count);
/* Adds the gradients of the passes to their `grads`, or overwrites terms that are `empty`.  The
 * last call must be lk_engine_forward() with the same arguments, in training. */
LK_API void lk_engine_backward(lk_engine *engine, const lk_walk *walk, lk_pass *passes,
                               uint32_t count);

/* Returns the operations per sample of a training step in block `block`.  Gradients that are not
 * needed, such as that of the model's input, are not counted. */
LK_API double lk_engine_flops(const lk_engine *engine, uint32_t block);

/* Returns a context's value before the loss (logits), after forward with training == false; valid
 * until the engine's next call. */
LK_API const float *lk_engine_output(const lk_engine *engine, uint32_t context);

#ifdef __cplusplus
}
#endif
#endif /* LK_NN_H */

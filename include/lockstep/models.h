/* lockstep/models.h -- the built-in models: mlp, resnet, gpt, llama. */
#ifndef LK_MODELS_H
#define LK_MODELS_H

#include "lockstep/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The scope of BatchNorm's statistics.  GHOST: the micro-batch of one virtual worker.  SYNC: the
 * micro-batches of all virtual workers, which then run in lock step. */
typedef enum { LK_BATCHNORM_GHOST = 0, LK_BATCHNORM_SYNC } lk_batchnorm;

/* Losses; lockstep/blocks.h defines them.  AUTO: MSE if targets are numbers, else cross-entropy.
 * The last three need targets that are numbers. */
typedef enum {
    LK_LOSS_AUTO = 0,
    LK_LOSS_CROSS_ENTROPY,
    LK_LOSS_MSE,
    LK_LOSS_HUBER,
    LK_LOSS_BCE,
} lk_loss;

/* Returns the loss for targets that are numbers or not: `loss`, unless it is AUTO. */
static inline lk_loss lk_loss_of(lk_loss loss, bool numbers)
{
    return loss != LK_LOSS_AUTO ? loss : numbers ? LK_LOSS_MSE : LK_LOSS_CROSS_ENTROPY;
}

/* Options of a model.  Zero means the default, which the comment after each field gives.  Each
 * model reads its own fields and the description of the data set. */
typedef struct {
    size_t struct_size; /* see LK_MODEL_OPTIONS_INIT */
    /* description of the data set */
    lk_shape input; /* of one sample */
    bool     tokens;
    uint32_t classes; /* labels or vocabulary, or the numbers that are the targets of a sample */
    bool     numbers; /* the targets are numbers */
    float    label_smoothing; /* 0; of cross-entropy */
    /* gpt and llama */
    uint32_t layers;  /* 4 */
    uint32_t heads;   /* 4 */
    uint32_t width;   /* 128 */
    uint32_t vocabulary; /* rows of the embedding, at least `classes`, the default */
    uint32_t positions;  /* the longest sequence: with gpt, rows of the position embedding; as long
                          * as a sample */
    float    dropout; /* 0; gpt only */
    bool     logits;  /* the last value is the logits, for lk_engine_output(); else the head and the
                       * loss are one block, which needs less memory */
    /* gpt and llama: low-rank adapters (LoRA, Hu et al. 2021).  All other parameters are frozen: a
     * projection is y = W x + b + lora_alpha / lora_rank B (A x), and A and B are trained */
    uint32_t lora_rank;    /* 0: none; rows of A */
    float    lora_alpha;   /* 8 */
    const char *lora_targets; /* which projections, by the ends of their names, with commas;
                               * "all-linear": all.  gpt: "c_attn"; llama: "q_proj,v_proj" */
    const char *adapter;  /* initial values of A and B: a folder of PEFT's; NULL: as PEFT's */
    /* gpt, llama and resnet: store only the outputs of layers or residual blocks, and recompute
     * the other values in backward; the bits are the same */
    bool     activation_checkpointing;
    /* llama */
    uint32_t kv_heads;     /* heads of keys and values; as many as `heads` */
    uint32_t head_size;    /* width / heads */
    uint32_t ffn;          /* width of the feed-forward layers; 8/3 width, a multiple of 32 */
    float    rope_theta;   /* 10000 */
    float    norm_eps;     /* 1e-5 */
    bool     tie;          /* the head has the weight of the embedding */
    bool     qkv_bias;     /* biases of queries, keys and values (Qwen2) */
    bool     qk_norm;      /* norms of the heads of queries and keys (Qwen3) */
    /* scaled frequencies for longer contexts (Llama 3.1); see lk_rope_options */
    float    rope_factor;   /* 0: not scaled */
    float    rope_low;      /* 1 */
    float    rope_high;     /* 4 */
    uint32_t rope_original; /* 8192 */
    /* mlp */
    uint32_t hidden[8]; /* 512, 512 */
    uint32_t hidden_count;
    lk_loss  loss;
    float    huber_delta; /* 1 */
    /* resnet */
    uint32_t depth; /* 20 (default), 32, 44 ... (6n + 2): the CIFAR family; 18, 34, 50, 101, 152:
                     * the ImageNet family */
    bool     zero_gamma;
    lk_batchnorm batchnorm;
    /* for the model "bare", of which only sizes are known: see `lockstep plan` */
    uint64_t parameters;       /* elements; required */
    uint64_t largest_layer;    /* elements of the largest layer; default: as in a GPT with that many
                                * parameters */
    uint64_t sample_tokens;    /* default 1; each token costs 6 operations per parameter */
    /* default 0; bytes per sample that are stored from forward to backward */
    uint64_t activation_bytes;
} lk_model_options;

#define LK_MODEL_OPTIONS_INIT LK_OPTIONS_INIT(lk_model_options)

/* Returns the name of the index-th built-in model that can be trained; NULL past the end. */
LK_API const char *lk_model_builtin(uint32_t index);

/* Fills in all defaults and sets unused fields to 0.  lk_model_build() uses these completed
 * options, and checkpoints record them.  For an unknown name only the description of the data
 * remains. */
LK_API LK_NODISCARD lk_status lk_model_resolve(lk_model_options *options, const char *name);

/* Builds a built-in model, or "bare", which no engine can open.  LK_EINVAL for an unknown name, or
 * for options or data that do not fit; the message suggests a change. */
LK_API LK_NODISCARD lk_status lk_model_build(lk_model **out, const char *name,
                                             const lk_model_options *options);

#ifdef __cplusplus
}
#endif
#endif /* LK_MODELS_H */

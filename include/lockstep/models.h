/* lockstep/models.h -- the built-in models: mlp, resnet, gpt. */
#ifndef LK_MODELS_H
#define LK_MODELS_H

#include "lockstep/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whose micro-batches BatchNorm has its statistics from: each virtual worker's own, or those of all
 * virtual workers together, which are then walked in lock step. */
typedef enum { LK_BATCHNORM_GHOST = 0, LK_BATCHNORM_SYNC } lk_batchnorm;

/* Zero means the default.  Each model reads its own fields and what the data set says. */
typedef struct {
    /* from the data set */
    lk_shape input; /* of one sample */
    bool     tokens;
    uint32_t classes; /* labels or vocabulary */
    /* gpt */
    uint32_t layers;  /* 4 */
    uint32_t heads;   /* 4 */
    uint32_t width;   /* 128 */
    float    dropout; /* 0 */
    bool     logits;  /* the last value is logits, for lk_engine_output(); else the head and the
                       * loss are one block, which takes less memory */
    /* gpt and resnet: keep only what layers or residual blocks put out, and compute the rest again
     * in backward; the same bits */
    bool     activation_checkpointing;
    /* mlp */
    uint32_t hidden[8]; /* 512, 512 */
    uint32_t hidden_count;
    /* resnet */
    uint32_t depth; /* 20; 32, 56: the CIFAR family; 18: ResNet-18 */
    bool     zero_gamma;
    lk_batchnorm batchnorm;
    /* bare: a model of which only sizes are known, for plans */
    uint64_t parameters;       /* elements; must be given */
    uint64_t largest_layer;    /* of these; as in a GPT of that size */
    uint64_t sample_tokens;    /* 1; each takes 6 operations of every parameter */
    uint64_t activation_bytes; /* 0; of a sample, kept from forward to backward */
} lk_model_options;

/* The names of the built-in models that can be trained, in order; NULL past the end. */
LK_API const char *lk_model_builtin(uint32_t index);

/* The options as the model takes them: defaults filled in, fields that it does not read 0.  What
 * lk_model_build() uses and checkpoints record.  An unknown name: only what is from the data. */
LK_API lk_model_options lk_model_resolve(const char *name, const lk_model_options *options);

/* Builds a built-in model, or "bare", which no engine opens.  LK_EINVAL: an unknown name, options
 * or data that do not fit, with what to change. */
LK_API LK_NODISCARD lk_status lk_model_build(lk_model **out, const char *name,
                                             const lk_model_options *options);

#ifdef __cplusplus
}
#endif
#endif /* LK_MODELS_H */

/* train/loop/trained.h -- a trained model: what a checkpoint says about it, and its weights.
 *
 * A checkpoint records the model and its options.  A single safetensors file has no options, so it
 * can only have a gpt, whose options follow from the shapes and the number of heads.
 */
#ifndef LKI_TRAIN_LOOP_TRAINED_H
#define LKI_TRAIN_LOOP_TRAINED_H

#include <jansson.h>

#include "lockstep/checkpoint.h"
#include "lockstep/train.h"

typedef struct {
    const char      *path;
    lk_checkpoint   *checkpoint; /* NULL if `file` is open instead */
    lk_safetensors  *file;
    json_t          *config;     /* of the checkpoint; NULL: there is none */
    const char      *name;       /* of the model */
    lk_model_options options;    /* as trained */
    lk_model        *model;
    uint32_t         param_count, state_count;
    const float    **params;     /* [param_count] */
    const uint16_t **params_bf16; /* [param_count], or NULL */
    const float    **state;      /* [state_count] */
    void            *values;     /* the memory behind them */
    const float    **frozen;     /* of each frozen parameter, or NULL; for lk_engine_set_frozen() */
    void            *base;       /* the memory behind those */
} lki_trained;

/* Opens a checkpoint, a directory of checkpoints, or a safetensors file, and fills in the name and
 * the options.  `heads`: 0, or the number of heads of a gpt in a safetensors file.  After a failure
 * the caller must still close it. */
LK_NODISCARD lk_status lki_trained_open(lki_trained *trained, const char *path, uint32_t heads);

/* Builds the model of trained->options, which the caller may have changed, and reads its weights or
 * moving means, and its running state.  A gpt may have fewer positions than the file.  With
 * `dtype` LK_BF16, parameters that all blocks accept in bf16 are rounded to it. */
LK_NODISCARD lk_status lki_trained_load(lki_trained *trained, lk_exec *exec, lk_weights weights,
                                        lk_dtype dtype);

void lki_trained_close(lki_trained *trained);

#endif

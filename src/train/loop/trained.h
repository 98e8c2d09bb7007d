/* train/loop/trained.h -- a trained model: what a checkpoint says about it, and its weights.
 *
 * A checkpoint records the model and its options.  A Hugging Face folder has them in config.json.
 * A single safetensors file has no options, so it can only have a gpt, whose options follow from
 * the shapes and the number of heads.
 */
#ifndef LKI_TRAIN_LOOP_TRAINED_H
#define LKI_TRAIN_LOOP_TRAINED_H

#include <jansson.h>

#include "checkpoint/folder.h"
#include "lockstep/train.h"
#include "models/peft.h"

typedef struct {
    const char      *path;
    bool             pretrained; /* `path` is a Hugging Face folder */
    const char      *adapter;    /* the folder of its adapters, or NULL */
    lki_peft         peft;       /* what that says; the options refer to it */
    lk_checkpoint   *checkpoint; /* one of these three is open */
    lk_safetensors  *file;
    lki_folder      *folder;     /* the weights of a pretrained model, or those of its adapters */
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

/* Opens a checkpoint, a directory of checkpoints, a safetensors file, or a Hugging Face folder, and
 * fills in the name and the options; the samples of a folder have all positions of its model.
 * `heads`: 0, or the number of heads of a gpt in a safetensors file.  `adapter`: NULL, or a folder
 * of adapters for a Hugging Face folder.  `tokenizer`: NULL, or one that is given, which must be
 * that of the model.  After a failure the caller must still close it. */
LK_NODISCARD lk_status lki_trained_open(lki_trained *trained, const char *path, uint32_t heads,
                                        const char *adapter, const char *tokenizer);

/* Returns the path of the tokenizer of the model: `given`, or else that of the one beside the
 * weights, written to `found`.  NULL: there is none, or each byte of a text is a token. */
const char *lki_trained_tokenizer(const lki_trained *trained, const char *given, char found[4096]);

/* Builds the model of trained->options, which the caller may have changed, and reads its weights or
 * moving means, and its running state.  A gpt may have fewer positions than the file.  With
 * `dtype` LK_BF16, parameters that all blocks accept in bf16 are rounded to it. */
LK_NODISCARD lk_status lki_trained_load(lki_trained *trained, lk_exec *exec, lk_weights weights,
                                        lk_dtype dtype);

void lki_trained_close(lki_trained *trained);

#endif

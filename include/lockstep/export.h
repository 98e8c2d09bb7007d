/* lockstep/export.h -- recognises the model in a Hugging Face folder, and writes a trained model to
 * such a folder.
 *
 * Part of lockstep/train.h, which includes it.
 */
#ifndef LK_EXPORT_H
#define LK_EXPORT_H

#include "lockstep/models.h"
#include "lockstep/trained.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads the configuration of a folder, and sets *model to the name of the built-in model for it:
 * "gpt" or "llama". */
LK_API LK_NODISCARD lk_status lk_folder_model(const char **model, const char *folder);

/* Reads the configuration of a folder, and sets the options of its model.  Those that are choices
 * of a run, such as `input` and `dropout`, are 0. */
LK_API LK_NODISCARD lk_status lk_folder_options(lk_model_options *options, const char *folder);

typedef struct {
    size_t      struct_size; /* see LK_EXPORT_OPTIONS_INIT */
    const char *path;        /* a directory of checkpoints (uses the newest), a checkpoint, or a
                              * Hugging Face folder, which is written again */
    const char *out;         /* the new folder; must not exist */
    lk_dtype    dtype;       /* LK_F32, or LK_BF16 or LK_F16, to which values are rounded to nearest
                              * even; 0 = the type that each tensor has in the folder, or had in
                              * the one with which the run began, else LK_F32.  LK_EINVAL names a
                              * value that is too large. */
    lk_weights  weights;
    uint64_t    shard_bytes; /* the largest file of weights, if no tensor is larger; 0 = 5 GB */
    /* (optional) Called every few milliseconds while weights are written.  If it returns true, what
     * was written is removed, and lk_export() returns LK_ESTOPPED. */
    bool (*stop)(void *context);
    void *stop_context;
} lk_export_options;

#define LK_EXPORT_OPTIONS_INIT LK_OPTIONS_INIT(lk_export_options)

typedef struct {
    char     type[16]; /* `model_type` of config.json: gpt2, llama, qwen2 or qwen3 */
    uint64_t step, parameters; /* step: 0 of a folder */
    lk_dtype dtype; /* of all weights; 0 if they have several types */
} lk_exported;

/* Writes config.json, the weights as model.safetensors or as shards with their index, and the
 * tokenizer and the other small files that the run has kept.  A run that began with a folder keeps
 * its config.json, of which only the type of the weights may change, as does a folder that is
 * written again.  A run with adapters (lora_rank) writes these alone, as adapter_config.json and
 * adapter_model.safetensors of PEFT.  The folder appears complete and durable, or not at all.
 * LK_EINVAL if it exists; LK_ESTOPPED if `stop` asked for it; LK_EUNSUPPORTED if transformers has
 * no such model.  `result` may be NULL. */
LK_API LK_NODISCARD lk_status lk_export(const lk_export_options *options, lk_exported *result);

#ifdef __cplusplus
}
#endif
#endif /* LK_EXPORT_H */

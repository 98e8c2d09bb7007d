/* models/hugging_face.h -- config.json of Hugging Face's transformers, read and written.
 *
 * A type of transformers (`model_type`) that a built-in model can be is a family.  hugging_face.def
 * has a table for each: the keys of config.json, and what they mean here.
 */
#ifndef LKI_MODELS_HUGGING_FACE_H
#define LKI_MODELS_HUGGING_FACE_H

#include <jansson.h>

#include "base/status.h"
#include "lockstep/models.h"

typedef struct {
    const char *type;         /* "gpt2", "llama", "qwen2", "qwen3" */
    const char *architecture; /* the class with a head, such as "LlamaForCausalLM" */
    const char *model;        /* the built-in model */
    const char *prefix;       /* of the names of all parameters but the head; the built-in model's
                               * names lack it */
    const char *embedding, *head; /* the built-in model's names of two parameters */
} lki_hf_family;

/* Returns the number with the fewest digits that is this float, as a configuration has it. */
double lki_hf_number(float value);

/* Reads a configuration, and sets all fields of *options that it determines, also where
 * transformers has a default.  The other fields are 0.  LK_EFORMAT or LK_EUNSUPPORTED names the
 * file `path`, the key and the value. */
LK_NODISCARD lk_status lki_hf_read(const lki_hf_family **out, lk_model_options *options,
                                   const json_t *config, const char *path);

/* Reads the configuration in a file.  *json becomes its content, which the caller must free. */
LK_NODISCARD lk_status lki_hf_read_file(const lki_hf_family **out, lk_model_options *options,
                                        json_t **json, const char *path);

/* Replaces the last failure, which is about options of the model that the file `path` determines,
 * by one that names this file and its keys.  Returns its status. */
lk_status lki_hf_refuse(const lki_hf_family *family, const char *path);

/* Finds the family of a built-in model.  LK_EUNSUPPORTED if transformers has no such model. */
LK_NODISCARD lk_status lki_hf_family_of(const lki_hf_family **out, const char *model,
                                        const lk_model_options *options);

/* Returns the configuration of a model with complete options (lk_model_resolve()), whose
 * `vocabulary` and `positions` are not 0.  Returns NULL if out of memory. */
json_t *lki_hf_write(const lki_hf_family *family, const lk_model_options *options);

/* Copies the field of `from` to `options`, for each field that a configuration determines and that
 * is 0 in *options.  LK_EINVAL names a field that has another value there. */
LK_NODISCARD lk_status lki_hf_complete(lk_model_options *options, const lki_hf_family *family,
                                       const lk_model_options *from, const char *path);

#endif

/* models/peft.h -- adapter_config.json of PEFT, read and written. */
#ifndef LKI_MODELS_PEFT_H
#define LKI_MODELS_PEFT_H

#include <jansson.h>

#include "base/status.h"
#include "lockstep/models.h"

#define LKI_PEFT_FILE "adapter_config.json"
#define LKI_PEFT_WEIGHTS "adapter_model.safetensors"

typedef struct {
    uint32_t rank;
    float    alpha;
    char     targets[4096]; /* as lk_model_options.lora_targets */
} lki_peft;

/* Reads a configuration of LoRA.  LK_EFORMAT or LK_EUNSUPPORTED names the file `path`, the key and
 * what is wrong. */
LK_NODISCARD lk_status lki_peft_read(lki_peft *out, const json_t *config, const char *path);
LK_NODISCARD lk_status lki_peft_read_file(lki_peft *out, const char *path);

/* Fails with LK_EINVAL if a target of a configuration is no projection of a model, which may be
 * built without adapters.  Defined in lora.c, as the next one. */
LK_NODISCARD lk_status lki_peft_check(const lki_peft *peft, const lk_model *model,
                                      const char *path);

/* Compares the targets of a configuration with the adapters of a model.  LK_EINVAL names one that
 * only one of both has. */
LK_NODISCARD lk_status lki_peft_compare(const lki_peft *peft, const lk_model *model,
                                        const char *path);

/* Returns the configuration of the adapters of a model with complete options.  `base` is the folder
 * of the model that they adapt.  Returns NULL if out of memory. */
json_t *lki_peft_write(const lk_model *model, const lk_model_options *options, const char *base);

#endif

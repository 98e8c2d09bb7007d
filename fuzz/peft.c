/* peft.c -- any bytes as adapter_config.json: what is accepted is written so that it is read as the
 * same, if the model has the targets. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "models/peft.h"

/* Builds a gpt with these adapters; NULL if it lacks a target. */
static lk_model *build(lk_model_options *options, const lki_peft *peft)
{
    lk_model *model = NULL;
    *options        = (lk_model_options){ .struct_size  = sizeof *options,
                                          .input        = { 1, { 4 } },
                                          .tokens       = true,
                                          .classes      = 4,
                                          .width        = 8,
                                          .layers       = 1,
                                          .lora_rank    = peft->rank,
                                          .lora_alpha   = peft->alpha,
                                          .lora_targets = peft->targets };
    return lk_model_resolve(options, "gpt") == LK_OK &&
                   lk_model_build(&model, "gpt", options) == LK_OK
               ? model
               : NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    lki_peft         peft, again;
    lk_model_options options;
    json_t          *json = json_loadb((const char *)data, bytes, JSON_REJECT_DUPLICATES, NULL);
    if (lki_peft_read(&peft, json, "fuzz") != LK_OK) {
        json_decref(json);
        return 0;
    }
    lk_model *model = build(&options, &peft);
    json_t   *wrote = model != NULL ? lki_peft_write(model, &options, "base") : NULL;
    if (peft.rank == 0 || !(peft.alpha > 0) || peft.targets[0] == '\0' ||
        (model != NULL && (lki_peft_read(&again, wrote, "fuzz") != LK_OK ||
                           again.rank != peft.rank || again.alpha < peft.alpha ||
                           again.alpha > peft.alpha)))
        abort();
    lk_model_free(model);
    json_decref(wrote);
    json_decref(json);
    return 0;
}

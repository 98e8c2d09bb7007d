/* hugging_face.c -- any bytes as config.json: what is accepted is a model, and is written so that
 * it is read as the same model. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "models/hugging_face.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const lki_hf_family *family = NULL, *again = NULL;
    lk_model_options     options, other, resolved;
    json_t *json = json_loadb((const char *)data, bytes, JSON_REJECT_DUPLICATES, NULL);
    if (lki_hf_read(&family, &options, json, "fuzz") != LK_OK) {
        json_decref(json);
        return 0;
    }
    resolved      = options;
    json_t *wrote = lk_model_resolve(&resolved, family->model) == LK_OK
                        ? lki_hf_write(family, &resolved) : NULL;
    if (wrote == NULL || options.vocabulary == 0 || options.positions == 0 || options.width == 0 ||
        lki_hf_read(&again, &other, wrote, "fuzz") != LK_OK || again != family ||
        lki_hf_complete(&resolved, family, &other, "fuzz") != LK_OK)
        abort();
    json_decref(wrote);
    json_decref(json);
    return 0;
}

/* resume.c -- any JSON as the configuration of a checkpoint: a run resumes only from an equal
 * configuration, and otherwise reports the difference. */
#include "fuzz.h"

#include <jansson.h>
#include <string.h>

#include "base/status.h"
#include "train/core/identity.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const lk_train_config config = { .struct_size   = sizeof(lk_train_config),
                                            .model         = "mlp",
                                            .model_options = { .hidden       = { 8, 8 },
                                                               .hidden_count = 2 },
                                            .data          = { .source = "synthetic:images" },
                                            .global_batch  = 8,
                                            .steps         = 4 };
    static const lk_dataset_info info   = { .classes = 4, .x = { .rank = 1, .dims = { 8 } } };
    json_t                      *mine   = lki_config_json(&config, &info), *stored, *key;
    size_t                       same   = 0;

    LK_ASSERT(mine != NULL);
    stored = json_loadb((const char *)data, bytes, JSON_REJECT_DUPLICATES, NULL);
    if (stored != NULL && lki_config_compare(stored, mine, LKI_COMPARE_RESUMED) == LK_OK) {
        const char *name;
        json_object_foreach(mine, name, key)
            same += json_object_get(stored, name) != NULL || strcmp(name, "precision") == 0;
        LK_ASSERT(same == json_object_size(mine));
    } else if (stored != NULL) {
        LK_ASSERT(strstr(lk_error_last()->message, "checkpoint was made with") != NULL);
    }
    json_decref(stored);
    json_decref(mine);
    return 0;
}

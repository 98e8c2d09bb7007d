/* options_hash.c -- what ranks compare of their options before the first step; see options.def. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "train/options.h"

/* Returns the part of a field that all ranks have in common. */
static json_t *common_json(const lki_field *field, const lk_train_config *config)
{
    const bool of_job = field->scope != LKI_FIELD_HOST && field->scope != LKI_FIELD_FILE;
    if (field->all_ranks)
        return json_boolean(!lki_field_is_default(field, config));
    return of_job ? lki_field_json(field, config) : NULL;
}

/* Returns the text of a value as ranks compare it: a number that was not given is the default. */
static char *common_text(const lki_field *field, const json_t *value)
{
    const bool number = field->type == LKI_FIELD_U32 || field->type == LKI_FIELD_U64;
    return number && field->unset != NULL && lki_value_is_unset(value)
               ? strdup(field->unset) : json_dumps(value, JSON_ENCODE_ANY);
}

void lki_fields_hash(const lk_train_config *config, uint64_t hashes[LKI_FIELDS_MAX])
{
    memset(hashes, 0, LKI_FIELDS_MAX * sizeof *hashes);
    for (const lki_field *f = lki_fields; f->name != NULL; f++) {
        json_t *value = common_json(f, config);
        char   *text  = value != NULL ? common_text(f, value) : NULL;
        if (text != NULL)
            hashes[f - lki_fields] = lki_xxh3(text, strlen(text));
        free(text);
        json_decref(value);
    }
}

/* options_hash.c -- what ranks compare of their options before the first step; see options.def. */
#include <stdio.h>
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

/* Returns the default of a field as a value; NULL if it is words, such as "none". */
static json_t *default_json(const lki_field *field)
{
    char text[256];
    if (field->type == LKI_FIELD_NAME || field->type == LKI_FIELD_STRING)
        return json_string(field->unset);
    (void)snprintf(text, sizeof text, "[%s]", field->unset);
    json_t *list = json_loads(text, 0, NULL);
    if (field->type == LKI_FIELD_U32_LIST || field->type == LKI_FIELD_U64_LIST)
        return list;
    json_t      *value = json_incref(json_array_get(list, 0));
    const double real  = json_number_value(value);
    json_decref(list);
    if (value != NULL && field->type == LKI_FIELD_MEBIBYTES)
        (void)json_integer_set(value, json_integer_value(value) << 20);
    if (value == NULL || (field->type != LKI_FIELD_REAL && field->type != LKI_FIELD_FLOAT))
        return value;
    json_decref(value);
    return json_real(field->type == LKI_FIELD_FLOAT ? (double)(float)real : real);
}

/* Returns the text of a value as ranks compare it: of one that was not given, the default. */
static char *common_text(const lki_field *field, const json_t *value)
{
    json_t *preset = field->unset != NULL && lki_value_is_unset(value) ? default_json(field) : NULL;
    char   *text   = json_dumps(preset != NULL ? preset : value, JSON_ENCODE_ANY);
    json_decref(preset);
    return text;
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

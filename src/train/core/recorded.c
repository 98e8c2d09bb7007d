/* recorded.c -- the model of a run, from the configuration that its checkpoints record. */
#include "train/core/recorded.h"

#include <string.h>

#include "base/status.h"
#include "train/options.h"

static void read_list(const lki_field *field, const json_t *value, unsigned char *config)
{
    uint32_t count = (uint32_t)json_array_size(value);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = (uint32_t)json_integer_value(json_array_get(value, i));
        memcpy(config + field->offset + i * sizeof number, &number, sizeof number);
    }
    memcpy(config + field->count_offset, &count, sizeof count);
}

/* Reads a recorded field of the model's options, which are of these types. */
static void read_field(const lki_field *field, const json_t *value, lk_train_config *config)
{
    unsigned char *at     = (unsigned char *)config + field->offset;
    uint32_t       number = (uint32_t)json_integer_value(value);
    float          real   = (float)json_number_value(value);
    bool           flag   = json_is_true(value);
    const char    *text   = json_string_value(value);

    if (field->type == LKI_FIELD_U32)
        memcpy(at, &number, sizeof number);
    if (field->type == LKI_FIELD_FLOAT)
        memcpy(at, &real, sizeof real);
    if (field->type == LKI_FIELD_FLAG)
        memcpy(at, &flag, sizeof flag);
    if (field->type == LKI_FIELD_U32_LIST &&
        json_array_size(value) <= sizeof config->model_options.hidden / sizeof number)
        read_list(field, value, (unsigned char *)config);
    if (field->type == LKI_FIELD_STRING)
        memcpy(at, &text, sizeof text);
    for (const lki_field_choice *c = field->choices;
         field->type == LKI_FIELD_CHOICE && text != NULL && c->name != NULL; c++)
        if (strcmp(c->name, text) == 0)
            memcpy(at, &c->value, sizeof c->value);
}

lk_status lki_recorded_model(const json_t *config, const char *path, const char **name,
                             lk_model_options *options)
{
    static const char head[] = "model_options.";
    lk_train_config   own    = { .model = NULL };
    const json_t     *input  = json_object_get(config, "input");
    size_t            rank   = json_array_size(input);

    *name = json_string_value(json_object_get(config, "model"));
    if (*name == NULL || rank > LK_RANK_MAX)
        return lk_fail(LK_EFORMAT, "'%s' does not say which model it has", path);
    for (const lki_field *f = lki_fields; f->name != NULL; f++) {
        const json_t *value = json_object_get(config, lki_field_key(f));
        if (value != NULL && strncmp(f->path, head, sizeof head - 1) == 0)
            read_field(f, value, &own);
    }
    *options             = own.model_options;
    options->struct_size = sizeof *options;
    options->tokens      = json_is_true(json_object_get(config, "tokens"));
    options->classes     = (uint32_t)json_integer_value(json_object_get(config, "classes"));
    options->input.rank  = (uint32_t)rank;
    for (size_t i = 0; i < rank; i++)
        options->input.dims[i] = (uint64_t)json_integer_value(json_array_get(input, i));
    return lk_model_resolve(options, *name);
}

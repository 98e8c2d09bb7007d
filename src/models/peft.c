/* peft.c -- adapter_config.json; see peft.h. */
#include "models/peft.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "models/build.h"
#include "models/hugging_face.h"
#include "nn/model.h"

enum { CONFIG_BYTES_MAX = 1 << 20, RANK_MAX = 4096 };

/* ---- Reading ------------------------------------------------------------------------------- */

/* Keys that must be absent, null, false, 0 or empty: these change what an adapter computes. */
static const char *const refused[] = {
    "alora_invocation_tokens", "alpha_pattern", "arrow_config", "exclude_modules",
    "layer_replication", "layers_to_transform", "lora_bias", "modules_to_save", "rank_pattern",
    "target_parameters", "trainable_token_indices", "use_dora", "use_qalora", "use_rslora",
};

static bool is_nothing(const json_t *value)
{
    return value == NULL || json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static lk_status check_refused(const json_t *config, const char *path)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (!is_nothing(json_object_get(config, refused[i])))
            return lk_fail(LK_EUNSUPPORTED, "%s: it has '%s', which adapters here lack", path,
                           refused[i]);
    const json_t *init = json_object_get(config, "init_lora_weights");
    const char   *text = json_string_value(init);
    if (text != NULL && strcmp(text, "gaussian") != 0)
        return lk_fail(LK_EUNSUPPORTED, "%s: 'init_lora_weights' is %.40s, which may have changed "
                                        "the weights of the model; true and gaussian do not", path,
                       text);
    return LK_OK;
}

static lk_status check_kind(const json_t *config, const char *path)
{
    const char *type = json_string_value(json_object_get(config, "peft_type"));
    const json_t *bias = json_object_get(config, "bias");
    if (type == NULL || strcmp(type, "LORA") != 0)
        return lk_fail(LK_EUNSUPPORTED, "%s: 'peft_type' is %.40s; only LORA can be read", path,
                       type == NULL ? "missing" : type);
    if (!is_nothing(bias) && !(json_is_string(bias) &&
                               strcmp(json_string_value(bias), "none") == 0))
        return lk_fail(LK_EUNSUPPORTED, "%s: 'bias' is %.40s; only none can be read", path,
                       json_is_string(bias) ? json_string_value(bias) : "no text");
    return LK_OK;
}

static lk_status read_numbers(lki_peft *out, const json_t *config, const char *path)
{
    const json_t *rank   = json_object_get(config, "r");
    const double  number = json_number_value(json_object_get(config, "lora_alpha"));
    if (!json_is_integer(rank) || json_integer_value(rank) < 1 ||
        json_integer_value(rank) > RANK_MAX)
        return lk_fail(LK_EFORMAT, "%s: 'r' is not a whole number from 1 to %d", path, RANK_MAX);
    if (!(number >= 1e-6 && number <= 1e6))
        return lk_fail(LK_EFORMAT, "%s: 'lora_alpha' is not a number from 1e-6 to 1e6", path);
    out->rank  = (uint32_t)json_integer_value(rank);
    out->alpha = (float)number;
    return LK_OK;
}

/* Joins the names of modules by commas. */
static lk_status read_targets(lki_peft *out, const json_t *config, const char *path)
{
    const json_t *list = json_object_get(config, "target_modules");
    const char   *text = json_string_value(list);
    size_t        used = 0;
    if (text != NULL && strcmp(text, "all-linear") == 0) {
        (void)snprintf(out->targets, sizeof out->targets, "%s", text);
        return LK_OK;
    }
    if (!json_is_array(list) || json_array_size(list) == 0)
        return lk_fail(LK_EUNSUPPORTED, "%s: 'target_modules' is not a list of names; regular "
                                        "expressions cannot be read", path);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name == NULL || *name == '\0' || strchr(name, ',') != NULL ||
            used + strlen(name) + 2 > sizeof out->targets)
            return lk_fail(LK_EFORMAT, "%s: 'target_modules' has an entry that is no name of a "
                                       "module, or more than %zu bytes of names", path,
                           sizeof out->targets);
        used += (size_t)snprintf(out->targets + used, sizeof out->targets - used, "%s%s",
                                 i > 0 ? "," : "", name);
    }
    return LK_OK;
}

lk_status lki_peft_read(lki_peft *out, const json_t *config, const char *path)
{
    *out = (lki_peft){ .rank = 0 };
    if (!json_is_object(config))
        return lk_fail(LK_EFORMAT, "%s: it is no JSON object", path);
    LK_TRY(check_kind(config, path));
    LK_TRY(check_refused(config, path));
    LK_TRY(read_numbers(out, config, path));
    return read_targets(out, config, path);
}

lk_status lki_peft_read_file(lki_peft *out, const char *path)
{
    lki_map      map;
    json_error_t error;
    json_t      *json = NULL;
    LK_TRY(lki_map_open(&map, path));
    if (map.bytes <= CONFIG_BYTES_MAX)
        json = json_loadb((const char *)map.data, map.bytes, JSON_REJECT_DUPLICATES, &error);
    else
        (void)snprintf(error.text, sizeof error.text, "too many bytes for a configuration");
    lki_map_close(&map);
    if (json == NULL)
        return lk_fail(LK_EFORMAT, "%s: %s", path, error.text);
    lk_status status = lki_peft_read(out, json, path);
    json_decref(json);
    return status;
}

/* ---- Writing ------------------------------------------------------------------------------- */

/* Appends a name to a list that may have it already. */
static void add_name(json_t *list, const char *name, size_t bytes)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *other = json_array_get(list, i);
        if (json_string_length(other) == bytes &&
            memcmp(json_string_value(other), name, bytes) == 0)
            return;
    }
    (void)json_array_append_new(list, json_stringn(name, bytes));
}

/* Returns the targets as a list.  "all-linear" becomes the names of all projections. */
static json_t *write_targets(const lk_model *model, const lk_model_options *options)
{
    static const char end[] = ".lora_A";
    json_t     *list = json_array();
    const char *at   = options->lora_targets;
    bool        all  = strcmp(at, "all-linear") == 0;
    for (size_t b = 0; all && b < model->block_count; b++) {
        const char *name = model->blocks[b].name, *tail = strstr(name, end);
        const char *from = tail;
        while (from != NULL && from > name && from[-1] != '.')
            from--;
        if (from != NULL)
            add_name(list, from, (size_t)(tail - from));
    }
    while (!all && *at != '\0') {
        size_t bytes = strcspn(at, ",");
        if (bytes > 0)
            add_name(list, at, bytes);
        at += bytes + (at[bytes] == ',');
    }
    return list;
}

json_t *lki_peft_write(const lk_model *model, const lk_model_options *options, const char *base)
{
    const double alpha = lki_hf_number(options->lora_alpha);
    json_t      *number = floor(alpha) < alpha ? json_real(alpha) : json_integer((json_int_t)alpha);
    return json_pack("{s:s, s:s, s:s, s:b, s:b, s:b, s:i, s:o, s:f, s:n, s:o, s:s, s:b, s:b}",
                     "peft_type", "LORA", "base_model_name_or_path", base, "bias", "none",
                     "fan_in_fan_out", strcmp(model->name, "gpt") == 0, "inference_mode", 1,
                     "init_lora_weights", 1, "r", (int)options->lora_rank, "lora_alpha", number,
                     "lora_dropout", 0.0, "modules_to_save", "target_modules",
                     write_targets(model, options), "task_type", "CAUSAL_LM", "use_dora", 0,
                     "use_rslora", 0);
}

/* hugging_face.c -- config.json of Hugging Face's transformers as options of a built-in model, and
 * back.
 *
 * hugging_face.def has the keys.  Keys that are not there do not change what the model computes, or
 * have one meaning only, and are not read.  Two things have no row: rotary position embeddings,
 * whose keys transformers has renamed, and keys whose values depend on other keys.
 */
#include "models/hugging_face.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"

enum { CONFIG_BYTES_MAX = 1 << 20 };

typedef enum {
    FAMILY_ROW, SIZE_ROW, NUMBER_ROW, SWITCH_ROW, IS_ROW, ALWAYS_ROW, SAYS_ROW, SAYS_SIZE_ROW
} kind;

typedef struct {
    kind                 kind;
    const char          *key;
    const char          *name; /* of the field */
    size_t               offset;
    bool                 required;
    double               other;
    const char          *values;
    const lki_hf_family *family;
} row;

/* clang-format off */
#define FAMILY(...)                                                                              \
    { .kind = FAMILY_ROW, .family = &(const lki_hf_family){ __VA_ARGS__ } },
#define FIELD_ROW(kind_, key_, field_, ...)                                                      \
    { .kind = kind_, .key = key_, .name = #field_,                                               \
      .offset = offsetof(lk_model_options, field_), __VA_ARGS__ },
#define SIZE(key_, field_) FIELD_ROW(SIZE_ROW, key_, field_, .required = true)
#define SIZE_OR(key_, field_, other_) FIELD_ROW(SIZE_ROW, key_, field_, .other = other_)
#define NUMBER(key_, field_, other_) FIELD_ROW(NUMBER_ROW, key_, field_, .other = other_)
#define SWITCH(key_, field_, other_) FIELD_ROW(SWITCH_ROW, key_, field_, .other = other_)
#define IS(key_, values_) { .kind = IS_ROW, .key = key_, .values = values_ },
#define ALWAYS(field_) FIELD_ROW(ALWAYS_ROW, NULL, field_, .other = 1)
#define SAYS(key_, field_) FIELD_ROW(SAYS_ROW, key_, field_, .other = 0)
#define SAYS_SIZE(key_, field_) FIELD_ROW(SAYS_SIZE_ROW, key_, field_, .other = 0)

static const row rows[] = {
#include "models/hugging_face.def"
    { .kind = FAMILY_ROW, .family = NULL },
};
/* clang-format on */

static const row *find_family(const char *type)
{
    for (const row *r = rows; r->kind != FAMILY_ROW || r->family != NULL; r++)
        if (r->kind == FAMILY_ROW && strcmp(r->family->type, type) == 0)
            return r;
    return NULL;
}

static const row *rows_of(const lki_hf_family *family)
{
    const row *found = find_family(family->type);
    LK_ASSERT(found != NULL);
    return found + 1;
}

/* ---- Values ------------------------------------------------------------------------------ */

/* Returns the field of a row: uint32_t, float or bool, by the kind of the row. */
static void *field_at(const lk_model_options *options, const row *r)
{
    return (void *)((uintptr_t)options + r->offset);
}

double lki_hf_number(float value)
{
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    return strtod(text, NULL);
}

/* Fails because of the value of a key. */
static lk_status refuse(const char *path, const char *key, const json_t *value, const char *why)
{
    char     *text   = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    lk_status status = lk_fail(LK_EUNSUPPORTED, "%s: `%s` is %.60s, %s", path, key,
                               text != NULL ? text : "none", why);
    free(text);
    return status;
}

/* ---- Reading ------------------------------------------------------------------------------- */

static lk_status read_size(lk_model_options *options, const row *r, const json_t *value,
                           const char *path)
{
    if (value == NULL || json_is_null(value)) {
        if (r->required)
            return lk_fail(LK_EFORMAT, "%s: it has no `%s`", path, r->key);
        *(uint32_t *)field_at(options, r) = (uint32_t)r->other;
        return LK_OK;
    }
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < 1 || number > INT32_MAX)
        return refuse(path, r->key, value, "and must be a whole number from 1 to 2147483647");
    *(uint32_t *)field_at(options, r) = (uint32_t)number;
    return LK_OK;
}

static lk_status read_number(float *out, const json_t *value, double other, const char *key,
                             const char *path)
{
    bool   said   = value != NULL && !json_is_null(value);
    double number = said ? json_number_value(value) : other;
    if ((said && !json_is_number(value)) || !((float)number > 0 && number <= 1e12))
        return refuse(path, key, value, "and must be a number above 0, at most 1e12");
    *out = (float)number;
    return LK_OK;
}

static lk_status read_switch(lk_model_options *options, const row *r, const json_t *value,
                             const char *path)
{
    if (value != NULL && !json_is_boolean(value))
        return refuse(path, r->key, value, "and must be true or false");
    *(bool *)field_at(options, r) = value != NULL ? json_is_true(value) : r->other > 0;
    return LK_OK;
}

static bool equal(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) /* 1 is 1.0, and 1e-5 the same float */
        return (float)json_number_value(a) == (float)json_number_value(b);
    return json_equal(a, b);
}

static lk_status check_value(const row *r, const json_t *value, const char *path)
{
    char    why[160];
    bool    good = value == NULL;
    json_t *list = json_loads(r->values, 0, NULL);
    for (size_t i = 0; !good && i < json_array_size(list); i++)
        good = equal(value, json_array_get(list, i));
    json_decref(list);
    (void)snprintf(why, sizeof why, "and only %s %s supported", r->values,
                   strchr(r->values, ',') != NULL ? "are" : "is");
    return good ? LK_OK : refuse(path, r->key, value, why);
}

static lk_status read_row(lk_model_options *options, const row *r, const json_t *config,
                          const char *path)
{
    const json_t *value = r->key != NULL ? json_object_get(config, r->key) : NULL;
    float         number = 0;
    switch (r->kind) {
    case SIZE_ROW: return read_size(options, r, value, path);
    case NUMBER_ROW:
        LK_TRY(read_number(&number, value, r->other, r->key, path));
        *(float *)field_at(options, r) = number;
        return LK_OK;
    case SWITCH_ROW: return read_switch(options, r, value, path);
    case IS_ROW: return check_value(r, value, path);
    case ALWAYS_ROW: *(bool *)field_at(options, r) = true; return LK_OK;
    case SAYS_ROW:
    case SAYS_SIZE_ROW:
    case FAMILY_ROW:
    default: return LK_OK;
    }
}

/* Reads the original context of scaled frequencies.  It stands beside the factors or, since
 * transformers 5, outside of their object, and is that of the model if it is in neither place. */
static lk_status read_original(lk_model_options *options, const json_t *rope, const json_t *config,
                               const char *path)
{
    static const char key[] = "original_max_position_embeddings";
    const json_t     *inner = json_object_get(rope, key), *outer = json_object_get(config, key);
    const json_t     *original = outer != NULL ? outer : inner;
    json_int_t        tokens = original == NULL ? options->positions : json_integer_value(original);
    if (tokens < 1 || tokens > 1 << 30)
        return refuse(path, key, original, "and must be a whole number from 1 to 1073741824");
    if (outer != NULL && inner != NULL && !equal(inner, outer))
        return refuse(path, key, outer, "but another number beside the factors, and which of them "
                                        "counts depends on the version of transformers: leave "
                                        "out one");
    options->rope_original = (uint32_t)tokens;
    return LK_OK;
}

/* Reads the factors of frequencies as Llama 3.1 scales them. */
static lk_status read_scaling(lk_model_options *options, const json_t *rope, const json_t *config,
                              const char *path)
{
    LK_TRY(read_number(&options->rope_factor, json_object_get(rope, "factor"), 0, "factor", path));
    LK_TRY(read_number(&options->rope_low, json_object_get(rope, "low_freq_factor"), 0,
                       "low_freq_factor", path));
    LK_TRY(read_number(&options->rope_high, json_object_get(rope, "high_freq_factor"), 0,
                       "high_freq_factor", path));
    return read_original(options, rope, config, path);
}

/* Refuses an object with neither a type nor a theta.  Its keys may be types of layers, each with an
 * object of its own. */
static lk_status check_rope(const json_t *rope, const char *key, const char *path)
{
    char        why[100];
    const char *first;
    json_t     *value;
    if (json_object_get(rope, "rope_type") != NULL || json_object_get(rope, "type") != NULL ||
        json_object_get(rope, "rope_theta") != NULL)
        return LK_OK;
    (void)snprintf(why, sizeof why, "but `%s` has neither a rope_type nor a rope_theta of its own",
                   key);
    json_object_foreach((json_t *)(uintptr_t)rope, first, value)
        return refuse(path, first, value, why);
    return LK_OK;
}

/* Reads rotary position embeddings: `rope_theta` and `rope_scaling`, or, since transformers 5, both
 * in `rope_parameters`. */
static lk_status read_rope(lk_model_options *options, const json_t *config, const char *path)
{
    const json_t *both = json_object_get(config, "rope_parameters");
    const json_t *scaling = json_object_get(config, "rope_scaling");
    const json_t *rope = both != NULL ? both : scaling;
    const json_t *theta = json_object_get(both, "rope_theta"), *part;
    const json_t *type = json_object_get(rope, "rope_type");
    type  = type != NULL ? type : json_object_get(rope, "type");
    theta = theta != NULL ? theta : json_object_get(config, "rope_theta");
    LK_TRY(check_rope(rope, both != NULL ? "rope_parameters" : "rope_scaling", path));
    LK_TRY(read_number(&options->rope_theta, theta, 10000, "rope_theta", path));
    if (both != NULL && scaling != NULL && !json_is_null(scaling) && !json_equal(both, scaling))
        return refuse(path, "rope_scaling", scaling, "and `rope_parameters` says otherwise: change "
                                                     "them, and leave out `rope_scaling`");
    part = json_object_get(rope, "partial_rotary_factor");
    part = part != NULL ? part : json_object_get(config, "partial_rotary_factor");
    if (part != NULL && !(json_number_value(part) == 1))
        return refuse(path, "partial_rotary_factor", part, "and only 1 is supported");
    if (rope == NULL || json_is_null(rope))
        return LK_OK;
    const char *name = type == NULL ? "default" : json_string_value(type);
    if (!json_is_object(rope) || name == NULL)
        return refuse(path, both != NULL ? "rope_parameters" : "rope_scaling", rope,
                      "and must be an object with a rope_type");
    if (strcmp(name, "default") == 0)
        return LK_OK;
    if (strcmp(name, "llama3") != 0)
        return refuse(path, "rope_type", type, "and only \"default\" and \"llama3\" are supported");
    return read_scaling(options, rope, config, path);
}

/* Checks keys whose values depend on others, and sets fields that follow from others. */
static lk_status read_rest(lk_model_options *o, const lki_hf_family *family, const json_t *config,
                           const char *path)
{
    const json_t *inner = json_object_get(config, "n_inner");
    const json_t *layers = json_object_get(config, "layer_types"), *layer;
    const json_t *causal = json_object_get(config, "is_causal");
    size_t        i;
    if (causal != NULL && !json_is_true(causal))
        return refuse(path, "is_causal", causal, "and only true is supported");
    if (strcmp(family->model, "gpt") == 0) {
        if (inner != NULL && !json_is_null(inner) &&
            json_integer_value(inner) != 4 * (json_int_t)o->width)
            return refuse(path, "n_inner", inner, "and only 4 times `n_embd` is supported");
        return LK_OK;
    }
    if (layers != NULL && !json_is_null(layers) && !json_is_array(layers))
        return refuse(path, "layer_types", layers, "and must be a list");
    json_array_foreach(layers, i, layer)
        if (!json_is_string(layer) || strcmp(json_string_value(layer), "full_attention") != 0)
            return refuse(path, "layer_types", layer, "and only \"full_attention\" is supported");
    if (o->head_size == 0 && o->width < o->heads)
        return refuse(path, "num_attention_heads", json_object_get(config, "num_attention_heads"),
                      "and larger than `hidden_size`");
    o->kv_heads  = o->kv_heads > 0 ? o->kv_heads : o->heads;
    o->head_size = o->head_size > 0 ? o->head_size : o->width / o->heads;
    return read_rope(o, config, path);
}

/* Finds the family by `model_type` and `architectures`, which may not contradict each other. */
static lk_status read_family(const row **out, const json_t *config, const char *path)
{
    const json_t *type = json_object_get(config, "model_type");
    const json_t *list = json_object_get(config, "architectures");
    const json_t *name = json_array_get(list, 0);
    if (!json_is_string(type))
        return lk_fail(LK_EFORMAT, "%s: it has no `model_type`", path);
    *out = find_family(json_string_value(type));
    if (*out == NULL)
        return refuse(path, "model_type", type, "and only gpt2, llama, qwen2 and qwen3 are "
                                                "supported");
    if (list == NULL || json_is_null(list))
        return LK_OK;
    const char *text = json_string_value(name);
    if (text == NULL || json_array_size(list) != 1 ||
        strcmp(text, (*out)->family->architecture) != 0) {
        char why[120];
        (void)snprintf(why, sizeof why, "and a `model_type` %s with a head is a %s",
                       (*out)->family->type, (*out)->family->architecture);
        return refuse(path, "architectures", list, why);
    }
    return LK_OK;
}

lk_status lki_hf_read(const lki_hf_family **out, lk_model_options *options, const json_t *config,
                      const char *path)
{
    const row *found = NULL;
    *options         = (lk_model_options){ .struct_size = sizeof *options, .tokens = true };
    if (!json_is_object(config))
        return lk_fail(LK_EFORMAT, "%s: it is no JSON object", path);
    LK_TRY(read_family(&found, config, path));
    for (const row *r = found + 1; r->kind != FAMILY_ROW; r++)
        LK_TRY(read_row(options, r, config, path));
    LK_TRY(read_rest(options, found->family, config, path));
    *out = found->family;
    return LK_OK;
}

lk_status lki_hf_read_file(const lki_hf_family **out, lk_model_options *options, json_t **json,
                           const char *path)
{
    lki_map      map;
    json_error_t error;
    *json = NULL;
    LK_TRY(lki_map_open(&map, path));
    if (map.bytes > CONFIG_BYTES_MAX) {
        lki_map_close(&map);
        return lk_fail(LK_EFORMAT, "%s: more than %d bytes, too many for a configuration", path,
                       CONFIG_BYTES_MAX);
    }
    *json = json_loadb((const char *)map.data, map.bytes, JSON_REJECT_DUPLICATES, &error);
    lki_map_close(&map);
    if (*json == NULL)
        return lk_fail(LK_EFORMAT, "%s: line %d: %s", path, error.line, error.text);
    lk_status status = lki_hf_read(out, options, *json, path);
    if (status != LK_OK) {
        json_decref(*json);
        *json = NULL;
    }
    return status;
}

/* ---- Completing ---------------------------------------------------------------------------- */

/* The fields of rotary position embeddings, which have no rows in the tables.  Those after the
 * factor have no effect without it. */
static const row rope_rows[] = {
    FIELD_ROW(NUMBER_ROW, "rope_theta", rope_theta, .other = 0)
    FIELD_ROW(NUMBER_ROW, "factor", rope_factor, .other = 0)
    FIELD_ROW(NUMBER_ROW, "low_freq_factor", rope_low, .other = 0)
    FIELD_ROW(NUMBER_ROW, "high_freq_factor", rope_high, .other = 0)
    FIELD_ROW(SIZE_ROW, "original_max_position_embeddings", rope_original, .other = 0)
};

static lk_status refuse_given(const row *r, double given, double stored, const char *path)
{
    return lk_fail(LK_EINVAL,
                   "`%s` is %.9g, but %s has %s%s%.9g; leave it out, and it is taken from there",
                   r->name, given, path, r->key != NULL ? r->key : "", r->key != NULL ? " " : "",
                   stored);
}

static lk_status complete_row(lk_model_options *options, const row *r, const lk_model_options *from,
                              const char *path)
{
    if (r->kind == SIZE_ROW) {
        uint32_t given  = *(const uint32_t *)field_at(options, r);
        uint32_t stored = *(const uint32_t *)field_at(from, r);
        if (given != 0 && given != stored)
            return refuse_given(r, given, stored, path);
        *(uint32_t *)field_at(options, r) = stored;
    } else if (r->kind == NUMBER_ROW) {
        float given  = *(const float *)field_at(options, r);
        float stored = *(const float *)field_at(from, r);
        if (given > 0 && given != stored)
            return refuse_given(r, lki_hf_number(given), lki_hf_number(stored), path);
        *(float *)field_at(options, r) = stored;
    } else if (r->kind == SWITCH_ROW || r->kind == ALWAYS_ROW) {
        if (*(bool *)field_at(options, r) && !*(bool *)field_at(from, r))
            return lk_fail(LK_EINVAL, "`%s` is set, but the model of %s is made without; leave it "
                                      "out", r->name, path);
        *(bool *)field_at(options, r) = *(bool *)field_at(from, r);
    }
    return LK_OK;
}

/* Refuses flags that the family has no row for. */
static lk_status refuse_others(const lk_model_options *options, const lk_model_options *from,
                               const char *path)
{
    bool bias = options->qkv_bias && !from->qkv_bias, norm = options->qk_norm && !from->qk_norm;
    if (bias || norm)
        return lk_fail(LK_EINVAL, "`%s` is set, but the model of %s is made without; leave it out",
                       bias ? "qkv_bias" : "qk_norm", path);
    return LK_OK;
}

lk_status lki_hf_complete(lk_model_options *options, const lki_hf_family *family,
                          const lk_model_options *from, const char *path)
{
    LK_TRY(refuse_others(options, from, path));
    for (const row *r = rows_of(family); r->kind != FAMILY_ROW; r++)
        LK_TRY(complete_row(options, r, from, path));
    const row *end = rope_rows + (from->rope_factor > 0 ? 5 : 2);
    for (const row *r = rope_rows; r < end; r++)
        LK_TRY(complete_row(options, r, from, path));
    return LK_OK;
}

/* ---- Other failures ------------------------------------------------------------------------ */

static bool is_row_of(const row *r, const char *name, size_t length)
{
    return r->key != NULL && r->name != NULL && strlen(r->name) == length &&
           memcmp(r->name, name, length) == 0;
}

/* Returns the key of a field, or NULL if there is none. */
static const char *key_of(const lki_hf_family *family, const char *name, size_t length)
{
    for (const row *r = rows_of(family); r->kind != FAMILY_ROW; r++)
        if (is_row_of(r, name, length))
            return r->key;
    for (size_t i = 0; i < sizeof rope_rows / sizeof rope_rows[0]; i++)
        if (is_row_of(&rope_rows[i], name, length))
            return rope_rows[i].key;
    return NULL;
}

lk_status lki_hf_refuse(const lki_hf_family *family, const char *path)
{
    const lk_error why = *lk_error_last();
    char           text[2 * sizeof why.message];
    size_t         used = 0;
    for (const char *at = why.message; *at != '\0' && used + 1 < sizeof text;) {
        const char *end = *at == '`' ? strchr(at + 1, '`') : NULL;
        const char *key = end != NULL ? key_of(family, at + 1, (size_t)(end - at - 1)) : NULL;
        if (key == NULL) {
            text[used++] = *at++;
            continue;
        }
        used += (size_t)snprintf(text + used, sizeof text - used, "'%s'", key);
        used  = lki_min(used, sizeof text - 1);
        at    = end + 1;
    }
    text[used] = '\0';
    return lk_fail(why.status, "%s: %s", path, text);
}

/* ---- Writing ------------------------------------------------------------------------------- */

lk_status lki_hf_family_of(const lki_hf_family **out, const char *model,
                           const lk_model_options *options)
{
    const char *type = strcmp(model, "gpt") == 0     ? "gpt2"
                       : strcmp(model, "llama") != 0 ? NULL
                       : options->qk_norm            ? "qwen3"
                       : options->qkv_bias           ? "qwen2"
                                                     : "llama";
    *out = NULL;
    if (type == NULL)
        return lk_fail(LK_EUNSUPPORTED, "a %s is no model of transformers; gpt and llama can be "
                                        "exported", model);
    if (options->qk_norm && options->qkv_bias)
        return lk_fail(LK_EUNSUPPORTED, "transformers has no model with both `qkv_bias` and "
                                        "`qk_norm`");
    *out = find_family(type)->family;
    return LK_OK;
}

static json_t *value_of(const row *r, const lk_model_options *options)
{
    switch (r->kind) {
    case SAYS_SIZE_ROW:
    case SIZE_ROW: return json_integer(*(const uint32_t *)field_at(options, r));
    case SAYS_ROW:
    case NUMBER_ROW: return json_real(lki_hf_number(*(const float *)field_at(options, r)));
    case SWITCH_ROW: return json_boolean(*(bool *)field_at(options, r));
    case IS_ROW: {
        json_t *list = json_loads(r->values, 0, NULL), *first = json_array_get(list, 0);
        json_incref(first);
        json_decref(list);
        return first;
    }
    case ALWAYS_ROW:
    case FAMILY_ROW:
    default: return NULL;
    }
}

/* Writes rotary position embeddings in the form that all versions of transformers read. */
static void write_rope(json_t *config, const lk_model_options *o)
{
    json_t *scaling = json_null();
    (void)json_object_set_new(config, "rope_theta", json_real(lki_hf_number(o->rope_theta)));
    if (o->rope_factor > 0)
        scaling = json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor",
                            lki_hf_number(o->rope_factor), "low_freq_factor",
                            lki_hf_number(o->rope_low), "high_freq_factor",
                            lki_hf_number(o->rope_high),
                            "original_max_position_embeddings", (json_int_t)o->rope_original);
    (void)json_object_set_new(config, "rope_scaling", scaling);
}

static json_t *release(json_t *config)
{
    json_decref(config);
    return NULL;
}

json_t *lki_hf_write(const lki_hf_family *family, const lk_model_options *options)
{
    json_t *config = json_pack("{s:s, s:[s]}", "model_type", family->type, "architectures",
                               family->architecture);
    for (const row *r = rows_of(family); config != NULL && r->kind != FAMILY_ROW; r++) {
        json_t *value = r->key == NULL ? NULL : value_of(r, options);
        if (value != NULL && json_is_null(value))
            json_decref(value);
        else if (r->key != NULL && json_object_set_new(config, r->key, value) != 0)
            config = release(config);
    }
    if (config != NULL && strcmp(family->model, "llama") == 0)
        write_rope(config, options);
    return config;
}

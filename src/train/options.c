/* options.c -- reads the fields of a configuration as JSON and answers questions about all fields;
 * see options.def. */
#include "train/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "lockstep/base.h"

/* ---- Values of a form of their own -------------------------------------------------------- */

static json_t *augment_json(const lk_train_config *config)
{
    const lk_augment *augment  = &config->data.augment;
    char              text[64] = "none", part[LK_NUMBER_BYTES];
    lk_number_text(part, augment->resized_crop);
    if (augment->crop > 0)
        (void)snprintf(text, sizeof text, "crop=%u%s", augment->crop, augment->flip ? ",flip" : "");
    else if (augment->resized_crop > 0)
        (void)snprintf(text, sizeof text, "resized-crop=%s%s", part, augment->flip ? ",flip" : "");
    else if (augment->flip)
        (void)snprintf(text, sizeof text, "flip");
    return json_string(text);
}

static json_t *normalize_json(const lk_train_config *config)
{
    return json_string(config->data.normalize != NULL ? config->data.normalize : "auto");
}

static json_t *loss_weights_json(const lk_train_config *config)
{
    return json_boolean(config->data.loss_weights != NULL);
}

static json_t *tokenizer_json(const lk_train_config *config)
{
    return json_boolean(config->data.tokenizer != NULL);
}

static json_t *resume_json(const lk_train_config *config)
{
    return json_boolean(config->checkpoint.resume);
}

static json_t *ignored_json(const lk_train_config *config)
{
    return config->data.ignores ? json_integer(config->data.ignored) : json_null();
}

static json_t *groups_json(const lk_train_config *config)
{
    json_t *groups = json_array();
    for (uint32_t i = 0; i < config->group_count; i++) {
        const lk_param_group *group = &config->groups[i];
        json_t               *one   = json_object();
        (void)json_object_set_new(one, "pattern", json_string(group->pattern));
        if (group->has_lr)
            (void)json_object_set_new(one, "lr", json_real(group->lr));
        if (group->has_decay)
            (void)json_object_set_new(one, "decay", json_real(group->weight_decay));
        (void)json_array_append_new(groups, one);
    }
    return groups;
}

static json_t *loss_scale_json(const lk_train_config *config)
{
    static const char *const names[] = { "", "none", "pytorch", "deepspeed", "fixed" };
    return json_string(names[config->scaling.rule]);
}

static json_t *initial_scale_json(const lk_train_config *config)
{
    return json_real(config->scaling.initial);
}

static json_t *offload_json(const lk_train_config *config)
{
    char text[512];
    (void)snprintf(text, sizeof text, "%u:%.480s", config->offloaded,
                   config->offload != NULL ? config->offload : "");
    return json_string(text);
}

/* Writes the ratios of a warm-up, as the option has them. */
static json_t *ratios_json(const lk_train_config *config)
{
    const lk_train_exchange *x = &config->exchange;
    char                     text[128] = "none";
    size_t                   used = 0;
    for (uint32_t i = 0; i < x->warmup_count && i < LK_WARMUP_RATIOS_MAX; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%.9g", i > 0 ? "," : "",
                                 x->warmup[i]);
    return json_string(text);
}

static json_t *split_json(const lk_train_config *config)
{
    static const char *const names[] = { "iid", "shards", "dirichlet", "files" };
    const lk_train_clients  *k       = &config->exchange.clients;
    const bool               by = k->split == LK_SPLIT_SHARDS || k->split == LK_SPLIT_DIRICHLET;
    char                     text[48], number[LK_NUMBER_BYTES];
    lk_number_text(number, k->split_by);
    (void)snprintf(text, sizeof text, "%s%s%s", names[k->split], by ? ":" : "", by ? number : "");
    return json_string(text);
}

static json_t *staleness_json(const lk_train_config *config)
{
    const lk_train_async *a = &config->exchange.async;
    char                  text[32];
    (void)snprintf(text, sizeof text, "versions:%u", a->staleness - 1);
    return a->staleness == 0 ? json_string("none")
           : a->in_versions  ? json_string(text)
                             : json_integer(a->staleness - 1);
}

static json_t *delays_json(const lk_train_config *config)
{
    const lk_train_async *a        = &config->exchange.async;
    char                  text[40];
    if (a->delays == LK_DELAYS_LOGNORMAL)
        (void)snprintf(text, sizeof text, "lognormal:%.9g", a->spread);
    else /* the name of the file does not matter */
        (void)snprintf(text, sizeof text, "trace:%s", a->trace_hash);
    return json_string(a->delays == LK_DELAYS_CONSTANT                      ? "constant"
                       : a->delays == LK_DELAYS_EXPONENTIAL                 ? "exponential"
                       : a->delays == LK_DELAYS_GIVEN && a->trace == NULL ? "tokens"
                                                                            : text);
}

static json_t *compensation_json(const lk_train_config *config)
{
    const lk_train_async *a = &config->exchange.async;
    char                  text[48], number[LK_NUMBER_BYTES];
    lk_number_text(number, a->compensation);
    (void)snprintf(text, sizeof text, "adaptive:%s", number);
    return a->adaptive ? json_string(text) : json_real(a->compensation);
}

/* Writes the slow groups, as the option has them. */
static json_t *slow_json(const lk_train_config *config)
{
    const lk_train_async *a         = &config->exchange.async;
    char                  text[320] = "none";
    size_t                used      = 0;
    for (uint32_t i = 0; i < a->slow_count && i < LK_SLOW_GROUPS_MAX; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%u:%.9g", i > 0 ? "," : "",
                                 a->slow_group[i], a->slow_factor[i]);
    return json_string(text);
}

static json_t *freeze_json(const lk_train_config *config)
{
    const uint64_t steps = config->exchange.freeze_step;
    return steps == LK_START_AUTO ? json_string("auto") : json_integer((json_int_t)steps);
}

static json_t *replicas_json(const lk_train_config *config)
{
    return json_integer(config->buddies ? 2 : 1);
}

static json_t *rebalance_json(const lk_train_config *config)
{
    char text[48];
    (void)snprintf(text, sizeof text, "%d:%llu", (int)config->elastic.rebalance,
                   (unsigned long long)config->elastic.rebalance_seed);
    return json_string(text);
}

static json_t *duplicate_json(const lk_train_config *config)
{
    return json_integer(config->elastic.duplicate);
}

/* ---- The table --------------------------------------------------------------------------- */

/* clang-format off */
#define OPTION(name_, type_, value_, field_, group_, scope_, default_, help_, more_)             \
    { .name = name_, .path = #field_, .type = LKI_FIELD_##type_,                                 \
      .scope = LKI_FIELD_##scope_, .offset = offsetof(lk_train_config, field_),                  \
      .unset = default_, more_ },
#define COMMAND_OPTION(name_, type_, value_, field_, group_, scope_, default_, help_, more_)

#define FROM(low_, high_)
#define RANGE(range_)
#define COUNT(field_, most_) .count_offset = offsetof(lk_train_config, field_),
#define CHOICES(list_) .choices = (const lki_field_choice[]){ list_ { .name = NULL } },
#define NAMED(name_, value_) { .name = name_, .value = value_ },
#define INVARIANT(name_, value_) CHOICE_OF(name_, value_, LK_LABEL_INVARIANT)
#define REPLAYED(name_, value_) CHOICE_OF(name_, value_, LK_LABEL_RECORDED)
#define TIMED(name_, value_) CHOICE_OF(name_, value_, LK_LABEL_TIMED)
#define CHOICE_OF(name_, value_, label_) { .name = name_, .value = value_, .label = label_ },
#define REFUSED(name_, value_, why_) { .name = name_, .value = value_, .refused = true },
#define LABEL(label_) .label = LK_LABEL_##label_,
#define READ(function_)
#define WRITE(function_) .write = function_,
#define NEEDS(option_) .needs = &(const lki_field_need){ option_, { NULL } },
#define WITH(option_, ...) .needs = &(const lki_field_need){ option_, { __VA_ARGS__ } },
#define ALIAS(name_) .alias = name_,
#define ALIAS_OF(name_, value_) .alias = name_,
#define COMMON
#define UNLESS(option_)
#define REQUIRED
#define ELSE(default_)
#define LETTER(letter_)
#define VALUE_OPTIONAL
#define ONCE
#define INTO(option_) .into = option_,
#define RECORDED .recorded = &(const lki_field_need){ NULL, { NULL } },
#define RECORDED_IF(option_) .recorded = &(const lki_field_need){ option_, { NULL } },
#define RECORDED_WITH(option_, ...)                                                              \
    .recorded = &(const lki_field_need){ option_, { __VA_ARGS__ } },
#define MAY_CHANGE .may_change = true,
#define MAY_COME .may_come = true,
#define LOGGED .logged = true,
#define ALL_RANKS .all_ranks = true,
#define IDENTITY(text_) .identity = text_,
#define NOTED(text_) .noted = text_,

const lki_field lki_fields[] = {
#include "train/options.def"
    { .name = "kernels", .path = "onednn", .type = LKI_FIELD_STRING, .scope = LKI_FIELD_FILE,
      .offset = offsetof(lk_train_config, onednn), .all_ranks = true },
    { .name = NULL },
};
/* clang-format on */

_Static_assert(sizeof lki_fields / sizeof lki_fields[0] <= LKI_FIELDS_MAX, "a hash for each");

const char *lki_field_key(const lki_field *field)
{
    if (field->type == LKI_FIELD_POSITIONAL)
        return "model";
    return field->alias != NULL ? field->alias : field->name;
}

const lki_field *lki_field_find(const char *key)
{
    for (const lki_field *f = lki_fields; f->name != NULL; f++)
        if (strcmp(key, f->name) == 0 || strcmp(key, lki_field_key(f)) == 0)
            return f;
    return NULL;
}

/* ---- Values ------------------------------------------------------------------------------ */

static uint32_t u32_at(const unsigned char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t u64_at(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static double real_at(const unsigned char *at)
{
    double value;
    memcpy(&value, at, sizeof value);
    return value;
}

static json_t *float_json(const unsigned char *at)
{
    float value;
    memcpy(&value, at, sizeof value);
    return json_real((double)value);
}

static json_t *text_json(const unsigned char *at)
{
    const char *text;
    memcpy(&text, at, sizeof text);
    return text != NULL ? json_string(text) : json_null();
}

/* Returns the choice with the field's value; NULL if no choice matches. */
static const lki_field_choice *find_choice(const lki_field *field, const lk_train_config *config)
{
    int value;
    memcpy(&value, (const unsigned char *)config + field->offset, sizeof value);
    for (const lki_field_choice *c = field->choices; c->name != NULL; c++)
        if (c->value == value)
            return c;
    return NULL;
}

/* Returns the choice with the field's value.  If no choice matches, returns the first one, which is
 * the default. */
static const lki_field_choice *choice_of(const lki_field *field, const lk_train_config *config)
{
    const lki_field_choice *choice = find_choice(field, config);
    return choice != NULL ? choice : field->choices;
}

static json_t *list_json(const lki_field *field, const lk_train_config *config)
{
    const unsigned char *base = (const unsigned char *)config, *at = base + field->offset;
    uint32_t             count  = u32_at(base + field->count_offset);
    json_t              *values = json_array();
    for (uint32_t i = 0; i < count; i++)
        (void)json_array_append_new(
            values, json_integer(field->type == LKI_FIELD_U32_LIST
                                     ? (json_int_t)u32_at(at + i * sizeof(uint32_t))
                                     : (json_int_t)u64_at(at + i * sizeof(uint64_t))));
    return values;
}

json_t *lki_field_json(const lki_field *field, const lk_train_config *config)
{
    const unsigned char *at = (const unsigned char *)config + field->offset;
    json_t              *pair;
    if (field->write != NULL)
        return field->write(config);
    switch (field->type) {
    case LKI_FIELD_FLAG: return json_boolean(*(const bool *)at);
    case LKI_FIELD_STRING:
    case LKI_FIELD_POSITIONAL:
    case LKI_FIELD_NAME: return text_json(at);
    case LKI_FIELD_U32:
    case LKI_FIELD_U32_SPAN:
    case LKI_FIELD_SECONDS: return json_integer(u32_at(at));
    case LKI_FIELD_U64:
    case LKI_FIELD_MEBIBYTES: return json_integer((json_int_t)u64_at(at));
    case LKI_FIELD_REAL: return json_real(real_at(at));
    case LKI_FIELD_FLOAT: return float_json(at);
    case LKI_FIELD_REAL_PAIR:
        pair = json_array();
        (void)json_array_append_new(pair, json_real(real_at(at)));
        (void)json_array_append_new(pair, json_real(real_at(at + sizeof(double))));
        return pair;
    case LKI_FIELD_U32_LIST:
    case LKI_FIELD_U64_LIST: return list_json(field, config);
    case LKI_FIELD_CHOICE: return json_string(choice_of(field, config)->name);
    case LKI_FIELD_CUSTOM:
    default: return NULL;
    }
}

lk_train_config lki_config_resolve(const lk_train_config *config)
{
    lk_train_config c = *config;

    c.model_options.struct_size = sizeof c.model_options;
    lk_status status = lk_model_resolve(&c.model_options, c.model != NULL ? c.model : "");
    LK_ASSERT(status == LK_OK);
    c.data.fold = c.data.fold > 1 ? c.data.fold : 1;
    return c;
}

/* ---- Records ----------------------------------------------------------------------------- */

bool lki_value_is_unset(const json_t *value)
{
    return value == NULL || json_is_null(value) || json_is_false(value) ||
           (json_is_number(value) && !(json_number_value(value) != 0)) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

static bool is_met(const lki_field_need *need, const lk_train_config *config)
{
    if (need == NULL || need->name == NULL)
        return true;
    json_t     *value = lki_field_json(lki_field_find(need->name), config);
    const char *text  = json_string_value(value);
    bool        met   = need->values[0] == NULL && !lki_value_is_unset(value);
    for (size_t i = 0; text != NULL && need->values[i] != NULL; i++)
        met = met || strcmp(text, need->values[i]) == 0;
    json_decref(value);
    return met;
}

bool lki_field_is_recorded(const lki_field *field, const lk_train_config *config)
{
    bool decides = field->scope == LKI_FIELD_RESULT || field->scope == LKI_FIELD_RULE;
    if (field->into != NULL || (!decides && field->recorded == NULL))
        return false;
    return is_met(field->recorded != NULL ? field->recorded : field->needs, config);
}

bool lki_field_is_free(const lki_field *field, bool stored)
{
    return field->may_change || field->scope == LKI_FIELD_RULE || (field->may_come && !stored);
}

/* ---- All fields -------------------------------------------------------------------------- */

static lk_status refuse_choice(const lki_field *field, int value)
{
    char   names[256];
    size_t used = 0;
    names[0]    = '\0';
    for (const lki_field_choice *c = field->choices; c->name != NULL && used < sizeof names; c++) {
        int wrote = snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "",
                             c->name);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    return lk_fail(LK_EINVAL, "`%s` %d: is none of: %s", field->path, value, names);
}

lk_status lki_fields_check(const lk_train_config *config)
{
    for (const lki_field *f = lki_fields; f->name != NULL; f++) {
        int value;
        if (f->type != LKI_FIELD_CHOICE || find_choice(f, config) != NULL)
            continue;
        memcpy(&value, (const unsigned char *)config + f->offset, sizeof value);
        if (value != 0)
            return refuse_choice(f, value);
    }
    return LK_OK;
}

/* Returns the label of a run with this field's value. */
static lk_label label_of(const lki_field *field, const lk_train_config *config)
{
    if (field->type == LKI_FIELD_CHOICE)
        return choice_of(field, config)->label;
    if (field->label == LK_LABEL_EXACT)
        return LK_LABEL_EXACT;
    json_t  *value = lki_field_json(field, config);
    lk_label label = lki_value_is_unset(value) ? LK_LABEL_EXACT : field->label;
    json_decref(value);
    return label;
}

lk_label lki_fields_label(const lk_train_config *config)
{
    /* The field of --kernels has no row. */
    lk_label weakest = config->onednn != NULL ? LK_LABEL_TIMED : LK_LABEL_EXACT;
    for (const lki_field *f = lki_fields; f->name != NULL; f++) {
        lk_label label = label_of(f, config);
        weakest        = label > weakest ? label : weakest;
    }
    return weakest;
}

bool lki_field_is_default(const lki_field *field, const lk_train_config *config)
{
    const lk_train_config none = { .model = config->model };
    json_t *value = lki_field_json(field, config), *other = lki_field_json(field, &none);
    bool    same = json_equal(value, other);
    json_decref(value);
    json_decref(other);
    return same;
}

/* Returns the choice of a field that is not at its default; NULL if the field is, or if the command
 * refuses the choice. */
static const lki_field_choice *chosen(const lki_field *field, const lk_train_config *config)
{
    const lki_field_choice *choice = field->choices == NULL ? NULL : choice_of(field, config);
    return choice == field->choices || choice->refused ? NULL : choice;
}

/* Returns true if a field is not at its default, and has no choice that the command refuses. */
static bool is_chosen(const lki_field *field, const lk_train_config *config)
{
    return field->type == LKI_FIELD_CHOICE ? chosen(field, config) != NULL
                                           : !lki_field_is_default(field, config);
}

/* Writes the value of a field as text. */
static void value_text(const lki_field *field, const lk_train_config *config, char *text,
                       size_t bytes)
{
    json_t *value = lki_field_json(field, config);
    char   *dump  = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY);
    (void)snprintf(text, bytes, "%s", dump != NULL ? dump : json_string_value(value));
    free(dump);
    json_decref(value);
}

void lki_fields_identity(const lk_train_config *config, char *text, size_t bytes)
{
    size_t used = 0;
    text[0]     = '\0';
    for (const lki_field *f = lki_fields; f->name != NULL && used < bytes; f++) {
        char value[128];
        if (f->identity == NULL || !is_met(f->needs, config) || !is_chosen(f, config))
            continue;
        value_text(f, config, value, sizeof value);
        int wrote = snprintf(text + used, bytes - used, "%s%s", f->identity, value);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}

bool lki_field_note(const lki_field *field, const lk_train_config *config, char *text, size_t bytes)
{
    const lki_field_choice *choice = field->noted == NULL ? NULL : chosen(field, config);
    if (choice == NULL)
        return false;
    (void)snprintf(text, bytes, "%s%s, alike for any workers; bits are not those of --%s %s",
                   field->noted, choice->name, field->name, field->choices->name);
    return true;
}

void lk_train_rules(const lk_train_config *config, char *text, size_t bytes)
{
    size_t used = 0;
    text[0]     = '\0';
    for (const lki_field *f = lki_fields; f->name != NULL && used < bytes; f++) {
        char value[64];
        if (!f->logged || !is_chosen(f, config))
            continue;
        value_text(f, config, value, sizeof value);
        int wrote = snprintf(text + used, bytes - used, ", %s %s", f->name, value);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}

/* Appends a rule and its value to a label: in brackets, separated by commas. */
static void add_rule(char *text, size_t bytes, const char *name, const char *value)
{
    size_t used = strlen(text);
    bool   more = strchr(text, '(') != NULL;
    (void)snprintf(text + used, bytes - used, "%s%s %s", more ? ", " : " (", name, value);
}

lk_label lk_train_label(const lk_train_config *config, char *text, size_t bytes)
{
    lk_label label = lki_fields_label(config);
    (void)snprintf(text, bytes, "%s", lk_label_name(label));
    if (label == LK_LABEL_EXACT)
        return label;
    for (const lki_field *f = lki_fields; f->name != NULL; f++) {
        char value[64];
        if (label_of(f, config) != label)
            continue;
        value_text(f, config, value, sizeof value);
        add_rule(text, bytes, f->name, value);
    }
    if (label == LK_LABEL_TIMED && config->onednn != NULL)
        add_rule(text, bytes, "kernels", "onednn");
    size_t used = strlen(text);
    (void)snprintf(text + used, bytes - used, ")");
    return label;
}

void lki_fields_log(const lk_train_config *config, char *text, size_t bytes)
{
    bool   any  = false;
    size_t used = 0;
    text[0]     = '\0';
    for (const lki_field *f = lki_fields; f->name != NULL; f++)
        any = any || (f->logged && !lki_field_is_default(f, config));
    for (const lki_field *f = lki_fields; any && f->name != NULL && used < bytes; f++) {
        if (!f->logged)
            continue;
        char    key[64];
        json_t *value = lki_field_json(f, config);
        bool    none  = json_is_null(value) ||
                    (json_is_integer(value) && json_integer_value(value) == 0);
        char *dump = none ? NULL : json_dumps(value, JSON_ENCODE_ANY);
        (void)snprintf(key, sizeof key, "%s", lki_field_key(f));
        for (char *hyphen = strchr(key, '-'); hyphen != NULL; hyphen = strchr(hyphen, '-'))
            *hyphen = '_';
        int wrote =
            dump == NULL ? 0 : snprintf(text + used, bytes - used, ", \"%s\": %s", key, dump);
        used += wrote > 0 ? (size_t)wrote : 0;
        free(dump);
        json_decref(value);
    }
}

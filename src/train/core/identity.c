/* identity.c -- the identity of a run: its options, exactness id and hashes. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "parallel/replicas.h"
#include "train/core/group_values.h"
#include "train/core/identity.h"
#include "train/options.h"

/* Revision numbers.  Raise one if a change alters the results of kernels, random numbers or the
 * tree.  Runs in bf16 have their own revision of kernels. */
enum { KERNEL_REVISION = 7, BF16_REVISION = 9, RNG_REVISION = 1, TREE_REVISION = 1 };

lk_model_options lki_model_options(const lk_train_config *config, const lk_dataset_info *data)
{
    lk_model_options options = config->model_options;
    options.struct_size      = sizeof options;
    options.input            = data->x;
    options.tokens           = data->tokens;
    options.classes          = data->classes;
    options.numbers          = data->numbers;
    return options;
}

lk_targets lki_targets_of(lk_loss loss)
{
    switch (loss) {
    case LK_LOSS_CROSS_ENTROPY: return LK_TARGETS_CLASSES;
    case LK_LOSS_MSE:
    case LK_LOSS_HUBER: return LK_TARGETS_NUMBERS;
    case LK_LOSS_BCE: return LK_TARGETS_LABELS;
    case LK_LOSS_AUTO: break;
    }
    return LK_TARGETS_AUTO;
}

lk_dataset_options lki_dataset_options(const lk_train_config *config)
{
    return (lk_dataset_options){ .struct_size  = sizeof(lk_dataset_options),
                                 .context      = config->context,
                                 .validation   = config->data.validation,
                                 .seed         = config->seed,
                                 .split_seed   = config->data.split_seed,
                                 .fold         = config->data.fold,
                                 .augment      = config->data.augment,
                                 .weights      = config->data.weights,
                                 .ignores      = config->data.ignores,
                                 .ignored      = config->data.ignored,
                                 .loss_weights = config->data.loss_weights,
                                 .normalize    = config->data.normalize != NULL
                                                     ? config->data.normalize : "auto",
                                 .target       = config->data.target,
                                 .targets      = lki_targets_of(config->model_options.loss),
                                 .tokenizer    = config->data.tokenizer };
}

static void put_integer(json_t *object, const char *key, uint64_t value)
{
    (void)json_object_set_new(object, key, json_integer((json_int_t)value));
}

static void put_real(json_t *object, const char *key, double value)
{
    (void)json_object_set_new(object, key, json_real(value));
}

static void put_reals(json_t *object, const char *key, const float *values, uint32_t count)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++)
        (void)json_array_append_new(list, json_real((double)values[i]));
    (void)json_object_set_new(object, key, list);
}

static json_t *column_json(const lk_column *column)
{
    json_t *object = json_object(), *levels = json_array();
    (void)json_object_set_new(object, "name", json_string(column->name));
    for (uint32_t i = 0; i < column->level_count; i++)
        (void)json_array_append_new(levels, json_string(column->levels[i]));
    if (column->level_count > 0) {
        (void)json_object_set_new(object, "levels", levels);
        return object;
    }
    json_decref(levels);
    put_real(object, "mean", column->mean);
    put_real(object, "deviation", column->deviation);
    return object;
}

static void put_columns(json_t *object, const lk_dataset_info *data)
{
    json_t *columns = json_array();
    for (uint32_t i = 0; i < data->column_count; i++)
        (void)json_array_append_new(columns, column_json(&data->columns[i]));
    (void)json_object_set_new(object, "columns", columns);
}

/* Writes the names of classes.  A name that is not UTF-8 is written as its number. */
static void put_class_names(json_t *object, const lk_dataset_info *data)
{
    json_t *names = json_array();
    for (uint32_t i = 0; i < data->classes; i++) {
        json_t *name = json_string(data->class_names[i]);
        (void)json_array_append_new(names, name != NULL ? name : json_sprintf("%u", i));
    }
    (void)json_object_set_new(object, "class_names", names);
}

static void put_data(json_t *object, const lk_dataset_info *data)
{
    json_t *input = json_array();
    if (data->class_names != NULL)
        put_class_names(object, data);
    if (data->normalized > 0) {
        put_reals(object, "pixel_mean", data->mean, data->normalized);
        put_reals(object, "pixel_deviation", data->deviation, data->normalized);
    }
    if (data->columns != NULL)
        put_columns(object, data);
    if (data->tokenizer_hash[0] != '\0')
        (void)json_object_set_new(object, LKI_TOKENIZER_KEY, json_string(data->tokenizer_hash));
    put_integer(object, "classes", data->classes);
    (void)json_object_set_new(object, "tokens", json_boolean(data->tokens));
    for (uint32_t i = 0; i < data->x.rank; i++)
        (void)json_array_append_new(input, json_integer((json_int_t)data->x.dims[i]));
    (void)json_object_set_new(object, "input", input);
}

void lki_schedule_write(json_t *object, const lk_parallel *parallel)
{
    const uint64_t hash = lk_parallel_async_step(parallel).schedule_hash;
    char           text[17];
    (void)snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    if (hash != 0)
        (void)json_object_set_new(object, LKI_SCHEDULE_KEY, json_string(text));
}

json_t *lki_scaler_json(const lk_loss_scaler *scaler)
{
    json_t *object = json_object();
    put_real(object, "scale", scaler->scale);
    put_integer(object, "good", scaler->good);
    put_integer(object, "skipped", scaler->skipped);
    put_integer(object, "hysteresis", scaler->hysteresis);
    return object;
}

void lki_scaler_read(const json_t *object, lk_loss_scaler *scaler)
{
    double scale = json_real_value(json_object_get(object, "scale"));
    if (!(scale > 0)) /* the checkpoint has no loss scaler */
        return;
    scaler->scale      = scale;
    scaler->good       = (uint64_t)json_integer_value(json_object_get(object, "good"));
    scaler->skipped    = (uint64_t)json_integer_value(json_object_get(object, "skipped"));
    scaler->hysteresis = (uint32_t)json_integer_value(json_object_get(object, "hysteresis"));
}

json_t *lki_noise_json(const lk_noise *noise)
{
    json_t *object = json_object();
    put_real(object, "square", noise->square);
    put_real(object, "trace", noise->trace);
    put_real(object, "weight", noise->weight);
    put_integer(object, "steps", noise->steps);
    return object;
}

void lki_noise_read(const json_t *object, lk_noise *noise)
{
    noise->square = json_real_value(json_object_get(object, "square"));
    noise->trace  = json_real_value(json_object_get(object, "trace"));
    noise->weight = json_real_value(json_object_get(object, "weight"));
    noise->steps  = (uint64_t)json_integer_value(json_object_get(object, "steps"));
}

json_t *lki_config_json(const lk_train_config *config, const lk_dataset_info *data)
{
    const lk_train_config c      = lki_config_resolve(config);
    json_t               *object = json_object();
    if (object == NULL)
        return NULL;
    for (const lki_field *f = lki_fields; f->name != NULL; f++)
        if (lki_field_is_recorded(f, &c))
            (void)json_object_set_new(object, lki_field_key(f), lki_field_json(f, &c));
    put_data(object, data);
    (void)json_object_set_new(object, "hook", json_boolean(config->calls.hook != NULL));
    return object;
}

const char *lk_precision_name(lk_dtype precision)
{
    switch ((int)precision) {
#define TYPE_CASE(name, text, label)                                                             \
    case LK_##name: return text;
#define WIRE_CASE(name, code, text, label)                                                       \
    case LK_##name: return text;
        LK_ENCODING_TABLE(TYPE_CASE, WIRE_CASE)
#undef TYPE_CASE
#undef WIRE_CASE
    default: return "fp32";
    }
}

/* Returns the name of a value for messages: the name of its option, or `key` if no option sets the
 * value. */
static const char *known_as(const char *key, char text[64])
{
    const lki_field *field = lki_field_find(key);
    if (strcmp(key, "model") == 0)
        return "the model";
    if (strcmp(key, "hook") == 0)
        return "the use of a gradient hook";
    if (strcmp(key, "class_names") == 0)
        return "the list of classes";
    if (strcmp(key, "pixel_mean") == 0)
        return "the mean of the pixels (`normalize`)";
    if (strcmp(key, "pixel_deviation") == 0)
        return "the deviation of the pixels (`normalize`)";
    if (strcmp(key, LKI_TOKENIZER_KEY) == 0)
        return "the hash of the tokenizer";
    (void)snprintf(text, 64, field != NULL ? "`%s`" : "'%s' of the data",
                   field != NULL ? field->path : key);
    return text;
}

/* Returns the value of option `key` in a checkpoint, or the option's default if the checkpoint
 * lacks it.  Version 0.1.0 stored models' defaults as 0 and []. */
static json_t *recorded(const json_t *stored, const char *key)
{
    const lk_train_config none   = { .model = json_string_value(json_object_get(stored, "model")) };
    const lk_train_config c      = lki_config_resolve(&none);
    const lki_field      *field  = lki_field_find(key);
    json_t               *value  = json_object_get(stored, key);
    bool                  unsaid = (json_is_integer(value) && json_integer_value(value) == 0) ||
                  (json_is_array(value) && json_array_size(value) == 0);
    bool of_model = field != NULL && field->offset < offsetof(lk_train_config, data.source);

    if (value != NULL && !(unsaid && of_model))
        return json_incref(value);
    if (field != NULL)
        return lki_field_json(field, &c);
    return strcmp(key, "hook") == 0 ? json_false() : NULL;
}

/* Writes a value for messages: that of a field that was not given by the text of its default. */
static void name_value(const char *key, const json_t *value, char text[256])
{
    const lki_field *field = lki_field_find(key);
    const char      *unset = field == NULL ? NULL : field->unset;
    char            *dump  = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    if (field == NULL || !lki_value_is_unset(value))
        (void)snprintf(text, 256, "%s", dump != NULL ? dump : "none");
    else if (unset == NULL || strcmp(unset, "none") == 0)
        (void)snprintf(text, 256, "none");
    else
        (void)snprintf(text, 256, strcmp(unset, "0") == 0 ? "%s" : "the default (%s)", unset);
    free(dump);
}

static void describe(lki_config_odd *odd, const char *key, const json_t *value,
                     const json_t *other)
{
    odd->name = known_as(key, odd->text);
    name_value(key, other, odd->stored);
    name_value(key, value, odd->mine);
}

/* Returns true if the groups of a run change its bits: they exchange or keep something, or do not
 * wait for each other. */
static bool groups_matter(const json_t *config)
{
    const char *optimizer = json_string_value(json_object_get(config, "optimizer"));
    const char *async     = json_string_value(json_object_get(config, "async"));
    return (async != NULL && strcmp(async, "off") != 0) ||
           !lki_value_is_unset(json_object_get(config, "compress")) ||
           json_integer_value(json_object_get(config, "local-steps")) > 0 ||
           (optimizer != NULL && strncmp(optimizer, "onebit-", 7) == 0);
}

/* Returns true if a difference of option `key` need not be named: that of groups that change no
 * bit, and that of the tokenizer where version 0.1.0 did not store its hash.  If the compressors
 * differ, they are named instead. */
static bool is_moot(const char *key, const json_t *stored, const json_t *mine)
{
    const json_t *there = json_object_get(stored, "compress");
    const json_t *here  = json_object_get(mine, "compress");
    if (strcmp(key, LKI_TOKENIZER_KEY) == 0)
        return json_object_get(stored, key) == NULL;
    return strcmp(key, "groups") == 0 &&
           (!groups_matter(mine) || (!lki_value_is_unset(here) && !json_equal(there, here)));
}

/* Returns true if a run that continues may change an option. */
static bool may_differ(const lki_field *field, const json_t *stored, bool exact)
{
    const bool has_bits = field != NULL && (field->identity != NULL || field->may_change);
    return field != NULL && !(exact && has_bits) &&
           lki_field_is_free(field, json_object_get(stored, lki_field_key(field)) != NULL);
}

/* Returns true if two values are equal, as far as a log has their digits if `rounded`. */
static bool are_equal(const json_t *one, const json_t *other, bool rounded)
{
    const size_t digits = JSON_ENCODE_ANY | JSON_SORT_KEYS | JSON_REAL_PRECISION(LKI_LOG_DIGITS);
    if (!rounded)
        return json_equal(one, other);
    char *a = json_dumps(one, digits), *b = json_dumps(other, digits);
    bool  same = a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
    free(a);
    free(b);
    return same;
}

bool lki_config_difference(const json_t *stored, const json_t *mine, lki_comparison how,
                           lki_config_odd *out)
{
    const char *key;
    json_t     *value;

    json_object_foreach((json_t *)(uintptr_t)mine, key, value)
    {
        if (may_differ(lki_field_find(key), stored, how == LKI_COMPARE_EXACT) ||
            is_moot(key, stored, mine))
            continue;
        json_t    *other = recorded(stored, key);
        const bool same  = are_equal(other, value, how == LKI_COMPARE_ROUNDED);
        if (!same)
            describe(out, key, value, other);
        json_decref(other);
        if (!same)
            return true;
    }
    return false;
}

lk_status lki_config_compare(const json_t *stored, const json_t *mine, lki_comparison how)
{
    lki_config_odd odd;
    if (!lki_config_difference(stored, mine, how, &odd))
        return LK_OK;
    return lk_fail(LK_EINVAL,
                   "%s is %s, but the checkpoint was made with %s" LKI_ADVICE_OPTION, odd.name,
                   odd.mine, odd.stored);
}

lk_status lk_train_compare(const char *stored, const char *mine, bool exact)
{
    lki_config_odd odd;
    json_t        *was = json_loads(stored, 0, NULL), *now = json_loads(mine, 0, NULL);
    lk_status      status = LK_OK;
    if (!json_is_object(was) || !json_is_object(now))
        status = lk_fail(LK_EFORMAT, "a recorded configuration is no JSON object");
    else if (lki_config_difference(was, now, exact ? LKI_COMPARE_EXACT : LKI_COMPARE_RESUMED,
                                   &odd))
        status = lk_fail(LK_EINVAL, "%s is recorded as %s, and not as %s", odd.name, odd.stored,
                         odd.mine);
    json_decref(was);
    json_decref(now);
    return status;
}

static bool is_stream(const lk_train_config *config)
{
    return config->data.source != NULL && strncmp(config->data.source, "stream:", 7) == 0;
}

void lki_data_write(json_t *object, const lk_train_config *config, const lk_dataset_info *data,
                    const char *unweighted)
{
    if (is_stream(config))
        return;
    json_t *about = json_pack("{s:s, s:I}", "content", data->content_hash, "samples",
                              (json_int_t)data->train_count);
    if (strcmp(unweighted, data->content_hash) != 0)
        (void)json_object_set_new(about, "unweighted", json_string(unweighted));
    (void)json_object_set_new(object, LKI_DATA_KEY, about);
}

lk_status lki_data_compare(const json_t *stored, const lk_train_config *config,
                           const lk_dataset_info *data)
{
    const char *was     = NULL;
    json_int_t  samples = 0;
    const char *also    = config->data.weights != NULL || config->data.loss_weights != NULL
                              ? " (of data and weights)"
                          : config->data.tokenizer != NULL ? " (of data and tokenizer)" : "";
    (void)json_unpack(json_object_get(stored, LKI_DATA_KEY), "{s:s, s:I}", "content", &was,
                      "samples", &samples);
    if (was == NULL || is_stream(config) || strcmp(was, data->content_hash) == 0 ||
        config->checkpoint.changed_data)
        return LK_OK;
    return lk_fail(LK_EINVAL,
                   "`data.source` %s is not the data of the checkpoint: it has %llu samples "
                   "and hash %.8s%s, but the checkpoint was made with %lld and "
                   "%.8s" LKI_ADVICE_DATA,
                   config->data.source, (unsigned long long)data->train_count, data->content_hash,
                   also, (long long)samples, was);
}

/* Returns true if the data of a checkpoint have weights of samples. */
static bool is_weighted(const json_t *stored)
{
    const char *order = json_string_value(json_object_get(stored, "order"));
    return (order != NULL && strcmp(order, "weighted") == 0) ||
           json_is_true(json_object_get(stored, "loss-weights"));
}

lk_status lki_data_compare_own(const json_t *stored, const char *source,
                               const lk_dataset_info *data, const char *path)
{
    const json_t *about = json_object_get(stored, LKI_DATA_KEY);
    const char   *was   = json_string_value(json_object_get(about, "unweighted"));
    const char   *also  = json_is_true(json_object_get(stored, "tokenizer"))
                              ? " (of data and tokenizer)" : "";
    if (was == NULL && !is_weighted(stored))
        was = json_string_value(json_object_get(about, "content"));
    if (was == NULL || strcmp(was, data->content_hash) == 0)
        return LK_OK;
    return lk_fail(LK_EINVAL,
                   "'%s' is not the data of %s any more: it has %llu samples to train on and hash "
                   "%.8s%s, but the checkpoint was made with %lld and %.8s; put the data of the "
                   "run there again, or give `source` to evaluate other data",
                   source, path, (unsigned long long)data->train_count, data->content_hash, also,
                   (long long)json_integer_value(json_object_get(about, "samples")), was);
}

/* Returns the number of characters of an exactness id before its label. */
static size_t hash_length(const char *exactness_id)
{
    const char *label = strstr(exactness_id, " (");
    return label != NULL ? (size_t)(label - exactness_id) : strlen(exactness_id);
}

lk_label lki_id_label(const char *exactness_id)
{
    const char *label = exactness_id + hash_length(exactness_id);
    if (label[0] == '\0')
        return LK_LABEL_EXACT;
    return strcmp(label, " (invariant)") == 0  ? LK_LABEL_INVARIANT
           : strcmp(label, " (recorded)") == 0 ? LK_LABEL_RECORDED
                                               : LK_LABEL_TIMED;
}

bool lki_ids_differ(const char *one, const char *other)
{
    size_t length = hash_length(one);
    return length != hash_length(other) || strncmp(one, other, length) != 0;
}

/* Writes the label behind an exactness id, in place of the one that it has. */
static void mark_id(char id[33], lk_label label)
{
    size_t used = hash_length(id);
    id[used]    = '\0';
    if (label != LK_LABEL_EXACT)
        (void)snprintf(id + used, 33 - used, " (%s)", lk_label_name(label));
}

lk_label lki_run_label(const lki_session *session)
{
    lk_label own = lki_fields_label(session->config);
    return own > session->inherited ? own : session->inherited;
}

void lki_inherit_label(lki_session *session, lk_label label)
{
    session->inherited = label;
    mark_id(session->exactness_id, lki_run_label(session));
    lki_journal_label(session->journal, lki_run_label(session));
}

void lki_exactness_id(const lk_train_config *config, const lk_dataset_info *data, char out[33])
{
    char       text[1200], fields[800], groups[32] = "", hex[65];
    lki_sha256 hash;
    lki_fields_identity(config, fields, sizeof fields);
    /* groups alone do not change bits */
    if (config->exchange.compressor != NULL || lki_replicates(config) ||
        lki_sends_momenta(config) || lki_is_async(config))
        (void)snprintf(groups, sizeof groups, " groups %u", config->exchange.groups);
    int length = snprintf(
        text, sizeof text,
        "lockstep kernels %d rng %d tree %d dtype %s%s%s%s virtual-workers %u micro-batch "
        "%u global-batch %u data %s%s%s%s",
        config->precision == LK_BF16 ? BF16_REVISION : KERNEL_REVISION, RNG_REVISION, TREE_REVISION,
        lk_precision_name(config->precision), config->scaling.rule > LK_SCALE_NONE ? " scaled" : "",
        fields, groups, config->virtual_workers, config->micro_batch, config->global_batch,
        data->content_hash, config->onednn != NULL ? " onednn" : "",
        config->calls.hook != NULL ? " hook" : "",
        config->elastic.backup_workers > 0 ? " backup workers" : "");
    lki_sha256_begin(&hash);
    lki_sha256_add(&hash, text, (size_t)length);
    lki_sha256_end(&hash, hex);
    (void)snprintf(out, 33, "%.16s", hex);
    mark_id(out, lki_fields_label(config));
}

void lki_loss_bits(double loss, char hex[17])
{
    uint64_t bits;
    memcpy(&bits, &loss, sizeof bits);
    (void)snprintf(hex, 17, "%016" PRIx64, bits);
}

void lki_loss_chain_add(char chain[65], const char bits[17])
{
    lki_sha256 hash;
    lki_sha256_begin(&hash);
    lki_sha256_add(&hash, chain, strlen(chain));
    lki_sha256_add(&hash, bits, 16);
    lki_sha256_end(&hash, chain);
}

static void hash_piece(void *context, const float *values, size_t count)
{
    lki_hash_elements(context, LK_F32, values, count * sizeof *values);
}

lk_status lki_weights_hash(const lki_session *session, char hex[65])
{
    lki_sha256 hash;

    lki_sha256_begin(&hash);
    for (uint32_t p = 0; p < session->param_count; p++) {
        const lk_tensor tensor = { session->params[p].name, LK_F32, session->params[p].shape,
                                   NULL };
        lki_hash_heading(&hash, &tensor);
        LK_TRY(lki_visit_value(session, p, 0, hash_piece, &hash));
    }
    lki_sha256_end(&hash, hex);
    return LK_OK;
}

lk_status lki_run_hash(const lki_session *session, const char *weights, char hex[65])
{
    lki_sha256 hash;
    uint32_t   slots = lk_optimizer_state_count(lki_optimizer_of(session->parallel));

    lki_sha256_begin(&hash);
    lki_sha256_add(&hash, weights, 64);
    for (uint32_t s = 0; s < session->kept_count; s++)
        lki_hash_elements(&hash, LK_F32, lk_parallel_state_data(session->parallel, s),
                          session->kept[s].count * sizeof(float));
    for (uint32_t i = 1; i <= slots; i++)
        for (uint32_t p = 0; p < session->param_count; p++)
            LK_TRY(lki_visit_value(session, p, i, hash_piece, &hash));
    LK_TRY(lki_group_visit(session, hash_piece, &hash));
    lki_sha256_add(&hash, session->progress.loss_chain, strlen(session->progress.loss_chain));
    lki_sha256_end(&hash, hex);
    return LK_OK;
}

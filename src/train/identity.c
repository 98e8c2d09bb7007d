/* identity.c -- what defines a run: its options, its exactness id, its hashes. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "train/session.h"

/* Raised by whoever changes the bits that a kernel, the random numbers or the tree produce. */
enum { KERNEL_REVISION = 7, RNG_REVISION = 1, TREE_REVISION = 1 };

lk_model_options lki_model_options(const lk_train_config *config, const lk_dataset_info *data)
{
    lk_model_options options = config->model_options;
    options.input            = data->x;
    options.tokens           = data->tokens;
    options.classes          = data->classes;
    return options;
}

lk_dataset_options lki_dataset_options(const lk_train_config *config)
{
    return (lk_dataset_options){ .context    = config->context,
                                 .validation = config->validation,
                                 .seed       = config->seed,
                                 .split_seed = config->split_seed,
                                 .fold       = config->fold,
                                 .augment    = config->augment,
                                 .weights    = config->weights,
                                 .ignores    = config->ignores,
                                 .ignored    = config->ignored,
                                 .loss_weights = config->loss_weights };
}

static void put_integer(json_t *object, const char *key, uint64_t value)
{
    (void)json_object_set_new(object, key, json_integer((json_int_t)value));
}

static void put_real(json_t *object, const char *key, double value)
{
    (void)json_object_set_new(object, key, json_real(value));
}

static void put_text(json_t *object, const char *key, const char *value)
{
    (void)json_object_set_new(object, key, json_string(value));
}

static void put_flag(json_t *object, const char *key, bool value)
{
    (void)json_object_set_new(object, key, json_boolean(value));
}

/* The model's own options, as they are without being given, too. */
static void put_model(json_t *object, const char *name, const lk_model_options *options)
{
    lk_model_options model = lk_model_resolve(name, options);
    if (model.layers > 0) {
        put_integer(object, "layers", model.layers);
        put_integer(object, "heads", model.heads);
        put_integer(object, "width", model.width);
        put_real(object, "dropout", (double)model.dropout);
    }
    if (model.depth > 0) {
        put_integer(object, "depth", model.depth);
        (void)json_object_set_new(object, "zero-gamma", json_boolean(model.zero_gamma));
        (void)json_object_set_new(
            object, "batchnorm",
            json_string(model.batchnorm == LK_BATCHNORM_SYNC ? "sync" : "ghost"));
    }
    if (model.hidden_count > 0) {
        json_t *hidden = json_array();
        for (uint32_t i = 0; i < model.hidden_count; i++)
            (void)json_array_append_new(hidden, json_integer(model.hidden[i]));
        (void)json_object_set_new(object, "hidden", hidden);
    }
}

/* As the option is written. */
static void put_augment(json_t *object, const lk_augment *augment)
{
    char text[64] = "none";
    if (augment->crop > 0)
        (void)snprintf(text, sizeof text, "crop=%u%s", augment->crop,
                       augment->flip ? ",flip" : "");
    else if (augment->resized_crop > 0)
        (void)snprintf(text, sizeof text, "resized-crop=%.17g%s", augment->resized_crop,
                       augment->flip ? ",flip" : "");
    else if (augment->flip)
        (void)snprintf(text, sizeof text, "flip");
    put_text(object, "augment", text);
}

static void put_data(json_t *object, const lk_train_config *config, const lk_dataset_info *data)
{
    json_t *input = json_array();
    if (data->tokens)
        put_integer(object, "context", config->context);
    put_integer(object, "classes", data->classes);
    (void)json_object_set_new(object, "tokens", json_boolean(data->tokens));
    for (uint32_t i = 0; i < data->x.rank; i++)
        (void)json_array_append_new(input, json_integer((json_int_t)data->x.dims[i]));
    (void)json_object_set_new(object, "input", input);
    put_augment(object, &config->augment);
    put_text(object, "order", lki_order_name(config->order));
    put_flag(object, "loss-weights", config->loss_weights != NULL);
    (void)json_object_set_new(object, "ignore-label",
                              config->ignores ? json_integer(config->ignored) : json_null());
}

static void put_rule(json_t *object, const lk_optimizer *o)
{
    put_text(object, "optimizer", lk_optimizer_name(o->kind));
    if (o->kind == LK_SGD || o->kind == LK_LARS) {
        put_real(object, "momentum", o->momentum);
        put_flag(object, "nesterov", o->nesterov);
        put_text(object, "momentum-of",
                 o->momentum_of == LK_MOMENTUM_OF_STEPS ? "steps" : "gradients");
    } else {
        json_t *betas = json_array();
        (void)json_array_append_new(betas, json_real(o->beta1));
        (void)json_array_append_new(betas, json_real(o->beta2));
        (void)json_object_set_new(object, "betas", betas);
    }
    if (o->kind == LK_LARS)
        put_real(object, "trust", o->trust);
    if (o->kind == LK_ADAMW || o->kind == LK_LAMB)
        put_flag(object, "no-bias-correction", o->uncorrected);
    if (o->kind != LK_SGD && o->kind != LK_LION)
        put_real(object, "eps", o->eps);
    put_real(object, "weight-decay", o->weight_decay);
    put_flag(object, "decay-all", o->decay_all);
}

static void put_groups(json_t *object, const lk_train_config *config)
{
    json_t *groups = json_array();
    for (uint32_t i = 0; i < config->group_count; i++) {
        const lk_param_group *group = &config->groups[i];
        json_t               *one   = json_object();
        put_text(one, "pattern", group->pattern);
        if (group->has_lr)
            put_real(one, "lr", group->lr);
        if (group->has_decay)
            put_real(one, "decay", group->weight_decay);
        (void)json_array_append_new(groups, one);
    }
    (void)json_object_set_new(object, "group", groups);
}

static void put_optimizer(json_t *object, const lk_train_config *config)
{
    const lk_schedule *s = &config->schedule;

    put_rule(object, &config->optimizer);
    put_real(object, "ema", config->optimizer.ema);
    put_groups(object, config);
    put_real(object, "clip-norm", config->clip_norm);
    put_real(object, "clip-value", config->clip_value);
    put_text(object, "schedule", lk_schedule_name(s->kind));
    put_real(object, "lr", s->lr);
    put_integer(object, "warmup", s->warmup);
    put_real(object, "warmup-from", s->warmup_from);
    if (s->kind != LK_CONSTANT && s->kind != LK_STEP) { /* only these look at the last step */
        put_real(object, "min-lr", s->min_lr);
        put_integer(object, "steps", s->steps);
    }
    if (s->kind == LK_POLY)
        put_real(object, "power", s->power);
    if (s->kind == LK_WSD)
        put_integer(object, "decay", s->decay);
    if (s->kind == LK_STEP) {
        json_t *milestones = json_array();
        put_real(object, "gamma", s->gamma);
        for (uint32_t i = 0; i < s->milestone_count; i++)
            (void)json_array_append_new(milestones, json_integer((json_int_t)s->milestones[i]));
        (void)json_object_set_new(object, "milestones", milestones);
    }
}

static void put_scaling(json_t *object, const lk_loss_scaling *scaling)
{
    static const char *const names[] = { "", "none", "pytorch", "deepspeed", "fixed" };
    if (scaling->rule <= LK_SCALE_NONE)
        return;
    put_text(object, "loss-scale", names[scaling->rule]);
    if (scaling->rule == LK_SCALE_FIXED)
        put_real(object, "initial-scale", scaling->initial);
    else
        put_integer(object, "scale-window", scaling->window);
    if (scaling->rule == LK_SCALE_DEEPSPEED)
        put_integer(object, "hysteresis", scaling->hysteresis);
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
    if (!(scale > 0)) /* it has none */
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
    json_t *object = json_object();
    if (object == NULL)
        return NULL;
    (void)json_object_set_new(object, "model", json_string(config->model));
    put_model(object, config->model, &config->model_options);
    put_data(object, config, data);
    put_real(object, "validation", config->validation);
    put_integer(object, "split-seed", config->split_seed);
    put_integer(object, "fold", config->fold > 1 ? config->fold : 1);
    put_integer(object, "seed", config->seed);
    put_integer(object, "global-batch", config->global_batch);
    put_integer(object, "micro-batch", config->micro_batch);
    put_integer(object, "virtual-workers", config->virtual_workers);
    (void)json_object_set_new(object, "precision",
                              json_string(lk_precision_name(config->precision)));
    put_text(object, "comm-dtype", lk_precision_name(config->comm_dtype));
    put_text(object, "gather-dtype", lk_precision_name(config->gather_dtype));
    put_flag(object, "hook", config->hook != NULL);
    (void)json_object_set_new(object, "drop-last", json_boolean(config->drop_last));
    put_scaling(object, &config->scaling);
    put_optimizer(object, config);
    if (config->backup_workers > 0)
        put_integer(object, "backup-workers", config->backup_workers);
    if (config->keep_best > 0)
        put_text(object, "best-by", config->best_by == LK_BEST_BY_ACCURACY ? "accuracy" : "loss");
    return object;
}

const char *lk_precision_name(lk_dtype precision)
{
    switch ((int)precision) {
    case LK_BF16: return "bf16";
    case LK_F16: return "fp16";
    case LK_I8: return "int8";
    case LK_I4: return "int4";
    default: return "fp32";
    }
}

/* How people know a value: by its option, unless it has none. */
static const char *known_as(const char *key, char text[64])
{
    static const char *const from_data[] = { "classes", "tokens", "input" };
    if (strcmp(key, "model") == 0)
        return "the model";
    for (size_t i = 0; i < sizeof from_data / sizeof from_data[0]; i++)
        if (strcmp(key, from_data[i]) == 0) {
            (void)snprintf(text, 64, "'%s' of the data", key);
            return text;
        }
    (void)snprintf(text, 64, "--%s", key);
    return text;
}

/* Options that there have not always been, as runs were without them. */
static json_t *since_then(void)
{
    json_t *since = json_object();
    put_text(since, "momentum-of", "gradients");
    put_flag(since, "no-bias-correction", false);
    put_flag(since, "decay-all", false);
    put_real(since, "warmup-from", 0);
    put_text(since, "augment", "none");
    put_text(since, "order", "permuted");
    put_integer(since, "fold", 1);
    put_real(since, "ema", 0);
    put_real(since, "clip-value", 0);
    (void)json_object_set_new(since, "group", json_array());
    put_text(since, "batchnorm", "ghost");
    put_text(since, "comm-dtype", "fp32");
    put_text(since, "gather-dtype", "fp32");
    put_flag(since, "hook", false);
    put_flag(since, "loss-weights", false);
    (void)json_object_set_new(since, "ignore-label", json_null());
    return since;
}

/* An option as a checkpoint records it.  Version 0.1.0 wrote models' defaults as 0 and []. */
static const json_t *recorded(const json_t *stored, const json_t *defaults, const json_t *since,
                              const char *key)
{
    const json_t *value      = json_object_get(stored, key),
                 *as_default = json_object_get(defaults, key);
    if (value == NULL)
        return json_object_get(since, key);
    bool unsaid              = (json_is_integer(value) && json_integer_value(value) == 0) ||
                  (json_is_array(value) && json_array_size(value) == 0);
    return unsaid && as_default != NULL ? as_default : value;
}

static lk_status refuse(const char *key, const json_t *value, const json_t *other)
{
    const size_t as_people_write = JSON_ENCODE_ANY | JSON_REAL_PRECISION(15);
    char         name[64];
    char        *was    = other == NULL ? NULL : json_dumps(other, as_people_write);
    char        *now    = json_dumps(value, as_people_write);
    lk_status    status = lk_fail(LK_EINVAL,
                                  "%s is %s, but the checkpoint was made with %s; resume with the "
                                     "same value, or start a new run in another directory",
                                  known_as(key, name), now ? now : "?", was ? was : "none");
    free(was);
    free(now);
    return status;
}

/* The precision may change, what gradients and parameters travel as, and which workers count, which
 * the exactness id tells, and then there is a loss scale or none; so may there be best checkpoints
 * from here on. */
static bool is_free(const char *key, const json_t *other)
{
    static const char *const later[] = { "loss-scale", "initial-scale", "scale-window",
                                           "hysteresis", "best-by" };
    bool may_come = false;
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++)
        may_come = may_come || strcmp(key, later[i]) == 0;
    return strcmp(key, "precision") == 0 || strcmp(key, "comm-dtype") == 0 ||
           strcmp(key, "gather-dtype") == 0 || strcmp(key, "backup-workers") == 0 ||
           (may_come && other == NULL);
}

lk_status lki_config_compare(const json_t *stored, const json_t *mine)
{
    const lk_model_options none     = { .layers = 0 };
    const char            *model    = json_string_value(json_object_get(stored, "model"));
    json_t                *defaults = json_object(), *since = since_then(), *value;
    lk_status              status   = LK_OK;
    const char            *key;

    put_model(defaults, model != NULL ? model : "", &none);
    json_object_foreach((json_t *)(uintptr_t)mine, key, value)
    {
        const json_t *other = recorded(stored, defaults, since, key);
        if (is_free(key, other))
            continue;
        if (status == LK_OK && !json_equal(other, value))
            status = refuse(key, value, other);
    }
    json_decref(defaults);
    json_decref(since);
    return status;
}

static const char label[] = " (not exact)";

bool lki_is_labelled(const char *exactness_id)
{
    return strstr(exactness_id, label) != NULL;
}

void lki_go_on_inexact(lki_session *session)
{
    char  *id   = session->exactness_id;
    size_t used = strlen(id);

    session->inexact = true;
    if (!lki_is_labelled(id))
        (void)snprintf(id + used, sizeof session->exactness_id - used, "%s", label);
    lki_journal_label(session->journal);
}

bool lki_is_exact(const lk_train_config *config)
{
    return config->comm_dtype != LK_I8 && config->comm_dtype != LK_I4 &&
           config->gather_dtype != LK_I8 && config->backup_workers == 0;
}

void lki_exactness_id(const lk_train_config *config, const lk_dataset_info *data, char out[33])
{
    const bool rounds = config->comm_dtype != LK_F32 && config->comm_dtype != 0;
    char       text[512], hex[65];
    lki_sha256 hash;
    int        length = snprintf(
               text, sizeof text,
               "lockstep kernels %d rng %d tree %d dtype %s%s%s%s%s virtual-workers %u micro-batch "
               "%u global-batch %u data %s%s%s%s",
               KERNEL_REVISION, RNG_REVISION, TREE_REVISION, lk_precision_name(config->precision),
               config->scaling.rule > LK_SCALE_NONE ? " scaled" : "",
               rounds ? " travels as " : "", rounds ? lk_precision_name(config->comm_dtype) : "",
               config->gather_dtype == LK_I8 ? " read as int8" : "", config->virtual_workers,
               config->micro_batch, config->global_batch, data->content_hash,
               config->onednn != NULL ? " onednn" : "", config->hook != NULL ? " hook" : "",
               config->backup_workers > 0 ? " backup workers" : "");
    lki_sha256_begin(&hash);
    lki_sha256_add(&hash, text, (size_t)length);
    lki_sha256_end(&hash, hex);
    (void)snprintf(out, 33, "%.16s%s", hex, lki_is_exact(config) ? "" : label);
}

void lki_loss_bits(double loss, char hex[17])
{
    uint64_t bits;
    memcpy(&bits, &loss, sizeof bits);
    (void)snprintf(hex, 17, "%016" PRIx64, bits);
}

void lki_loss_chain_add(char chain[65], double loss)
{
    char       bits[17];
    lki_sha256 hash;
    lki_loss_bits(loss, bits);
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
    uint32_t   slots = lk_optimizer_state_count(&session->config->optimizer);

    lki_sha256_begin(&hash);
    lki_sha256_add(&hash, weights, 64);
    for (uint32_t s = 0; s < session->kept_count; s++)
        lki_hash_elements(&hash, LK_F32, lk_parallel_state_data(session->parallel, s),
                          session->kept[s].count * sizeof(float));
    for (uint32_t i = 1; i <= slots; i++)
        for (uint32_t p = 0; p < session->param_count; p++)
            LK_TRY(lki_visit_value(session, p, i, hash_piece, &hash));
    lki_sha256_add(&hash, session->loss_chain, strlen(session->loss_chain));
    lki_sha256_end(&hash, hex);
    return LK_OK;
}

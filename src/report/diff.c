/* diff.c -- compares two logs, checkpoints or runs.
 *
 * What decides the result is compared first, then the logs, then the checkpoints of all steps that
 * both runs have, from the first step on, up to one that differs.  All their tensors are read, so
 * that a file that was changed later is found, too.
 */
#include "report/diff.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "report/target.h"

void lki_diff_report(lki_diff *diff, const lk_difference *difference)
{
    lk_difference d = *difference;
    d.file          = d.file != NULL ? d.file : "";
    d.name          = d.name != NULL ? d.name : "";
    d.index         = d.index != NULL ? d.index : "";
    d.a             = d.a != NULL ? d.a : "";
    d.b             = d.b != NULL ? d.b : "";
    diff->found++;
    diff->report(diff->context, &d);
}

/* ---- Configurations ------------------------------------------------------------------------ */

/* Returns a value as text, a number with as few digits as identify it; NULL for NULL. */
static char *text_of(const json_t *value)
{
    const double real = json_real_value(value);
    if (!json_is_real(value))
        return value == NULL ? NULL
                             : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS);
    char *text = malloc(32);
    for (int digits = 15; text != NULL && digits <= 17; digits++) {
        (void)snprintf(text, 32, "%.*g", digits, real);
        if (lki_bits_of(strtod(text, NULL)) == lki_bits_of(real))
            break;
    }
    return text;
}

static void report_origin(lki_diff *diff, const char *name, const char *a, const char *b)
{
    lki_diff_report(diff,
                    &(lk_difference){ .kind = LK_DIFFERENCE_CONFIG, .name = name, .a = a, .b = b });
}

static void report_key(lki_diff *diff, const char *key, const json_t *a, const json_t *b)
{
    char *x = text_of(a), *y = text_of(b);
    report_origin(diff, key, x, y);
    free(x);
    free(y);
}

/* Returns true for the state that manifests have beside the options. */
static bool is_state(const char *key)
{
    static const char *const names[] = { "loss-chain", "loss-scaler", "noise", "watch",
                                         "data" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(key, names[i]) == 0)
            return true;
    return false;
}

/* Returns true if two runs have different values of a key.  The base of adapters may be at another
 * path. */
static bool differ(const char *key, const json_t *a, const json_t *b)
{
    const bool is_base = strcmp(key, "base") == 0;
    a = is_base ? json_object_get(a, "hash") : a;
    b = is_base ? json_object_get(b, "hash") : b;
    return a == NULL || b == NULL || !json_equal(a, b);
}

void lki_diff_config(lki_diff *diff, const json_t *a, const json_t *b)
{
    const char *key;
    json_t     *value;
    if (a == NULL || b == NULL)
        return;
    diff->virtual_workers = (uint32_t)json_integer_value(json_object_get(a, "virtual-workers"));
    diff->groups          = (uint32_t)json_integer_value(json_object_get(a, "groups"));
    json_object_foreach((json_t *)(uintptr_t)a, key, value)
    {
        const json_t *other = json_object_get(b, key);
        if (!is_state(key) && differ(key, value, other))
            report_key(diff, key, value, other);
    }
    json_object_foreach((json_t *)(uintptr_t)b, key, value)
    {
        if (!is_state(key) && json_object_get(a, key) == NULL)
            report_key(diff, key, NULL, value);
    }
}

/* Compares the hashes of the data, if both runs have one and none was compared before. */
static void compare_data(lki_diff *diff, const char *a, const char *b)
{
    if (a == NULL || b == NULL || a[0] == '\0' || b[0] == '\0' || diff->data_compared)
        return;
    diff->data_compared = true;
    if (strcmp(a, b) != 0)
        report_origin(diff, "data", a, b);
}

/* Compares the first lines of two logs; with `options` their configurations, too. */
static void compare_headers(lki_diff *diff, const lki_run_log *a, const lki_run_log *b,
                            bool options)
{
    compare_data(diff, a->data, b->data);
    const bool both = a->config != NULL && b->config != NULL;
    if (both && (a->data[0] == '\0') != (b->data[0] == '\0'))
        report_origin(diff, "data", a->data[0] != '\0' ? a->data : NULL,
                      b->data[0] != '\0' ? b->data : NULL);
    if ((a->config == NULL) != (b->config == NULL))
        report_origin(diff, "first line of the log", a->config != NULL ? "present" : NULL,
                      b->config != NULL ? "present" : NULL);
    if (options)
        lki_diff_config(diff, a->config, b->config);
}

/* ---- Checkpoints --------------------------------------------------------------------------- */

static const lk_tensor *tensor_at(const void *of, size_t index, const char **file)
{
    const lk_checkpoint *checkpoint = of;
    const lk_tensor     *tensor     = lk_checkpoint_tensor(checkpoint, index);
    *file = tensor != NULL ? lk_checkpoint_tensor_file(checkpoint, index) : "";
    return tensor;
}

static const lk_tensor *file_tensor_at(const void *of, size_t index, const char **file)
{
    *file = "model.safetensors";
    return lk_safetensors_at(of, index);
}

/* Presents only the model of a checkpoint, which is at the beginning. */
static const lk_tensor *model_tensor_at(const void *of, size_t index, const char **file)
{
    const lk_tensor *tensor = tensor_at(of, index, file);
    return tensor != NULL && strcmp(*file, "model.safetensors") == 0 ? tensor : NULL;
}

static lk_status open_step(lk_checkpoint **out, const lki_target *target, uint64_t step, bool data)
{
    char name[LKI_STEP_NAME_BYTES], path[LKI_PATH_BYTES];
    if (target->is_checkpoint)
        (void)snprintf(path, sizeof path, "%s", target->path);
    else {
        lki_step_name(name, step);
        LK_TRY(lki_directory_join(path, target->path, name));
    }
    return data ? lk_checkpoint_open(out, path, NULL, 0)
                : lk_checkpoint_open_manifest(out, path, NULL, 0);
}

/* Returns the hash over the losses of all steps, or "". */
static void chain_of(const lk_checkpoint *checkpoint, char chain[65])
{
    json_t     *config = json_loads(lk_checkpoint_describe(checkpoint)->config, 0, NULL);
    const char *text   = json_string_value(json_object_get(config, "loss-chain"));
    (void)snprintf(chain, 65, "%s", text != NULL ? text : "");
    json_decref(config);
}

static void compare_text(lki_diff *diff, uint64_t step, const char *name, const char *a,
                         const char *b)
{
    if (strcmp(a, b) != 0)
        lki_diff_report(
            diff, &(lk_difference){
                      .kind = LK_DIFFERENCE_RUN, .step = step, .name = name, .a = a, .b = b });
}

static const char *content_of(const json_t *config)
{
    return json_string_value(json_object_get(json_object_get(config, "data"), "content"));
}

/* Compares what manifests say about a run: data, configuration, seed and exactness id. */
static void compare_identity(lki_diff *diff, const lk_checkpoint *a, const lk_checkpoint *b)
{
    const lk_checkpoint_info *x = lk_checkpoint_describe(a), *y = lk_checkpoint_describe(b);
    char                      seed_a[24], seed_b[24];
    json_t *config_a = json_loads(x->config, 0, NULL), *config_b = json_loads(y->config, 0, NULL);
    compare_data(diff, content_of(config_a), content_of(config_b));
    lki_diff_config(diff, config_a, config_b);
    json_decref(config_a);
    json_decref(config_b);
    (void)snprintf(seed_a, sizeof seed_a, "%" PRIu64, x->seed);
    (void)snprintf(seed_b, sizeof seed_b, "%" PRIu64, y->seed);
    compare_text(diff, x->step, "seed", seed_a, seed_b);
    compare_text(diff, x->step, "exactness id", x->exactness_id, y->exactness_id);
}

/* Compares what manifests say about a step. */
static void compare_progress(lki_diff *diff, const lk_checkpoint *a, const lk_checkpoint *b)
{
    const lk_checkpoint_info *x = lk_checkpoint_describe(a), *y = lk_checkpoint_describe(b);
    char                      text_a[65], text_b[65];
    if (x->step != y->step) {
        (void)snprintf(text_a, sizeof text_a, "%" PRIu64, x->step);
        (void)snprintf(text_b, sizeof text_b, "%" PRIu64, y->step);
        lki_diff_report(diff,
                        &(lk_difference){ .kind = LK_DIFFERENCE_STEP, .a = text_a, .b = text_b });
        return;
    }
    chain_of(a, text_a);
    chain_of(b, text_b);
    if (text_a[0] != '\0' && text_b[0] != '\0')
        compare_text(diff, x->step, "hash of all losses", text_a, text_b);
    compare_text(diff, x->step, "weights", x->weights, y->weights);
}

/* A pair of checkpoints that are open. */
typedef struct {
    lk_checkpoint *a, *b;
} pair;

static void close_pair(pair *p)
{
    lk_checkpoint_free(p->a);
    lk_checkpoint_free(p->b);
    *p = (pair){ NULL, NULL };
}

static lk_status open_pair(pair *p, const lki_target *a, const lki_target *b, uint64_t step,
                           bool data)
{
    *p = (pair){ NULL, NULL };
    LK_TRY(open_step(&p->a, a, step, data));
    lk_status status = open_step(&p->b, b, step, data);
    if (status != LK_OK)
        close_pair(p);
    return status;
}

static bool has_step(const lki_target *target, uint64_t step)
{
    for (size_t i = 0; i < target->step_count; i++)
        if (target->steps[i] == step)
            return true;
    return false;
}

enum { STEPS_TEXT = 160 };

/* Lists the steps of a run, such as "steps 2, 4, 6"; of many only the newest. */
static void steps_text(const lki_target *target, uint64_t one, char text[STEPS_TEXT])
{
    enum { MOST = 8 };
    size_t used = (size_t)snprintf(text, STEPS_TEXT, target->step_count == 1 ? "step " : "steps ");
    if (target->is_checkpoint)
        (void)snprintf(text, STEPS_TEXT, "step %" PRIu64, one);
    for (size_t i = lki_min(target->step_count, MOST); i-- > 0 && !target->is_checkpoint;)
        used += (size_t)snprintf(text + used, STEPS_TEXT - used, "%s%" PRIu64 "%s",
                                 i + 1 == MOST && target->step_count > MOST ? "..., " : "",
                                 target->steps[i], i > 0 ? ", " : "");
}

/* Makes a run stand for its step that a single checkpoint is of; of two runs, keeps in `a` only the
 * steps that both have.  Sets *any if there are such steps, and else the texts of those that each
 * has. */
static lk_status choose_steps(lki_target *a, lki_target *b, bool *any, char has_a[STEPS_TEXT],
                              char has_b[STEPS_TEXT])
{
    lk_checkpoint *one = NULL;
    *any               = a->is_checkpoint && b->is_checkpoint;
    if (*any)
        return LK_OK;
    lki_target *run = a->is_checkpoint ? b : a, *other = a->is_checkpoint ? a : b;
    uint64_t    step = 0;
    if (other->is_checkpoint) {
        LK_TRY(open_step(&one, other, 0, false));
        step = lk_checkpoint_describe(one)->step;
        lk_checkpoint_free(one);
    }
    steps_text(a, step, has_a);
    steps_text(b, step, has_b);
    size_t kept = 0;
    for (size_t i = 0; i < run->step_count; i++)
        if (other->is_checkpoint ? run->steps[i] == step : has_step(other, run->steps[i]))
            run->steps[kept++] = run->steps[i];
    run->step_count = kept;
    *any            = kept > 0;
    return LK_OK;
}

/* Returns the number of steps that choose_steps() has left, and step `i` of them, newest first. */
static size_t step_count(const lki_target *a, const lki_target *b)
{
    return a->is_checkpoint && b->is_checkpoint ? 1 : (a->is_checkpoint ? b : a)->step_count;
}

static uint64_t step_at(const lki_target *a, const lki_target *b, size_t i)
{
    const lki_target *run = a->is_checkpoint ? b : a;
    return run->steps != NULL ? run->steps[i] : 0;
}

/* Compares what manifests say about runs, from the first common step on, up to a difference. */
static lk_status compare_identities(lki_diff *diff, const lki_target *a, const lki_target *b)
{
    uint64_t before = diff->found;
    pair     p;
    for (size_t i = step_count(a, b); i-- > 0 && diff->found == before;) {
        LK_TRY(open_pair(&p, a, b, step_at(a, b, i), false));
        compare_identity(diff, p.a, p.b);
        close_pair(&p);
    }
    return LK_OK;
}

/* Compares the hashes and tensors of common steps, from the first on, up to a difference. */
static lk_status compare_checkpoints(lki_diff *diff, const lki_target *a, const lki_target *b)
{
    uint64_t  before = diff->found;
    lk_status status = LK_OK;
    pair      p;
    for (size_t i = step_count(a, b); i-- > 0 && diff->found == before && status == LK_OK;) {
        LK_TRY(open_pair(&p, a, b, step_at(a, b, i), true));
        compare_progress(diff, p.a, p.b);
        status = lki_diff_tensors(diff, lk_checkpoint_describe(p.a)->step, tensor_at, p.a,
                                  tensor_at, p.b);
        close_pair(&p);
    }
    return status;
}

/* ---- Safetensors files --------------------------------------------------------------------- */

/* The tensors of a file, or the model of a checkpoint. */
typedef struct {
    lk_safetensors *file;
    lk_checkpoint  *checkpoint;
} model;

static lk_status model_open(model *m, const lki_target *target)
{
    *m = (model){ NULL, NULL };
    return target->is_tensors ? lk_safetensors_open(&m->file, target->path)
                              : lk_checkpoint_open(&m->checkpoint, target->path, NULL, 0);
}

static void model_close(model *m)
{
    lk_safetensors_free(m->file);
    lk_checkpoint_free(m->checkpoint);
}

static lk_status compare_models(lki_diff *diff, const lki_target *a, const lki_target *b)
{
    model x, y;
    LK_TRY(model_open(&x, a));
    lk_status status = model_open(&y, b);
    if (status == LK_OK)
        status = lki_diff_tensors(diff, 0, x.file != NULL ? file_tensor_at : model_tensor_at,
                                  x.file != NULL ? (const void *)x.file : x.checkpoint,
                                  y.file != NULL ? file_tensor_at : model_tensor_at,
                                  y.file != NULL ? (const void *)y.file : y.checkpoint);
    if (status == LK_OK)
        model_close(&y);
    model_close(&x);
    return status;
}

/* ---- All together -------------------------------------------------------------------------- */

static bool has_checkpoints(const lki_target *target)
{
    return target->is_checkpoint || target->step_count > 0;
}

/* Two logs; NULL: one of the sides has none. */
typedef struct {
    lki_run_log *a, *b;
} log_pair;

static void close_logs(log_pair *logs)
{
    lki_run_log_free(logs->a);
    lki_run_log_free(logs->b);
}

static lk_status open_logs(log_pair *logs, const lki_target *a, const lki_target *b)
{
    *logs = (log_pair){ NULL, NULL };
    if (a->log[0] == '\0' || b->log[0] == '\0')
        return LK_OK;
    LK_TRY(lki_run_log_open(&logs->a, a->log));
    lk_status status = lki_run_log_open(&logs->b, b->log);
    if (status != LK_OK)
        close_logs(logs);
    return status;
}

static lk_status refuse(const lki_target *a, const lki_target *b)
{
    return lk_fail(LK_EINVAL,
                   "'%s' and '%s' have nothing in common that can be compared: give two logs, two "
                   "runs or checkpoints, or two models",
                   a->path, b->path);
}

/* Compares what runs without a checkpoint of the same step have besides: their logs.  Fails if
 * these are equal, because no tensor was compared. */
static lk_status compare_apart(lki_diff *diff, const lki_target *a, const lki_target *b,
                               const log_pair *logs, const char *has_a, const char *has_b)
{
    bool common = false;
    if (logs->a != NULL) {
        compare_headers(diff, logs->a, logs->b, true);
        common = lki_diff_logs(diff, logs->a, logs->b);
    }
    if (diff->found > 0)
        return LK_OK;
    return lk_fail(LK_EINVAL, "%s'%s' and '%s' have no checkpoint of the same step: the first has "
                   "%s, and the second %s%s", common ? "the logs are equal, but " : "", a->path,
                   b->path, has_a, has_b,
                   logs->a == NULL ? "; give two checkpoints, or runs that have logs" : "");
}

static lk_status compare(lki_diff *diff, lki_target *a, lki_target *b, const log_pair *logs)
{
    bool checkpoints = has_checkpoints(a) && has_checkpoints(b), same = true;
    bool models      = (a->is_tensors && (b->is_tensors || has_checkpoints(b))) ||
                  (b->is_tensors && has_checkpoints(a));
    bool common = checkpoints || models;
    char has_a[STEPS_TEXT], has_b[STEPS_TEXT];
    if (checkpoints)
        LK_TRY(choose_steps(a, b, &same, has_a, has_b));
    if (!same)
        return compare_apart(diff, a, b, logs, has_a, has_b);
    if (logs->a != NULL)
        compare_headers(diff, logs->a, logs->b, !checkpoints);
    if (checkpoints)
        LK_TRY(compare_identities(diff, a, b));
    if (logs->a != NULL)
        common = lki_diff_logs(diff, logs->a, logs->b) || common;
    if (!common && diff->found == 0)
        return refuse(a, b);
    if (checkpoints)
        LK_TRY(compare_checkpoints(diff, a, b));
    return models ? compare_models(diff, a, b) : LK_OK;
}

/* Refuses to call logs equal if they have values that were not compared. */
static lk_status check_whole(const lki_diff *diff, const log_pair *logs)
{
    const lki_run_log *log = logs->a == NULL || logs->a->results_lost > 0 ? logs->a : logs->b;
    if (log == NULL || log->results_lost == 0 || diff->found > 0)
        return LK_OK;
    return lk_fail(LK_EUNSUPPORTED, "found no difference, but %zu values of the log '%s' were not "
                   "compared, because its steps have more than %d values; compare checkpoints of "
                   "the runs", log->results_lost, log->path, (int)LKI_COLUMNS_MAX);
}

static lk_status compare_targets(lki_diff *diff, lki_target *a, lki_target *b)
{
    log_pair logs;
    LK_TRY(open_logs(&logs, a, b));
    lk_status status = compare(diff, a, b, &logs);
    if (status == LK_OK)
        status = check_whole(diff, &logs);
    close_logs(&logs);
    return status;
}

lk_status lk_diff(const char *a, const char *b, lk_difference_hook report, void *context,
                  bool *equal)
{
    lki_target x, y;
    lki_diff   diff = { .report = report, .context = context };
    *equal = false;
    LK_TRY(lki_check_given("lk_diff", "a", a, 1));
    LK_TRY(lki_check_given("lk_diff", "b", b, 1));
    LK_TRY(lki_target_find(&x, a));
    lk_status status = lki_target_find(&y, b);
    if (status == LK_OK) {
        status = compare_targets(&diff, &x, &y);
        lki_target_free(&y);
    }
    lki_target_free(&x);
    *equal = status == LK_OK && diff.found == 0;
    return status;
}

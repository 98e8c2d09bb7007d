/* attest.c -- statements about runs: writes, reads and compares them.
 *
 *   {"format": "lockstep-statement", "version": 2, "lockstep": VERSION,
 *    "run": path, "directory": where it was started, "options": {...} as in command.json,
 *    "configuration": {...}, "seed": "0", "exactness_id": "..."          of the newest checkpoint
 *    "data": {"content": hash in the log, "files": [{"path": "...", "bytes": 1, "sha256": "..."}]},
 *    "losses": ["4016276040000000", ...],      of steps 1, 2, ...: the bits of the double, followed
 *                                              by those of virtual workers if the log has them
 *    "checkpoints": [{"step": 2, "weights": "...", "manifest": SHA-256, "link": "..."}, ...],
 *    "fields": {"seed": "...", "options": {"lr": "...", ...}, ...}}       to name a changed field
 *
 * A link is the SHA-256 of the link before it, a line "STEP LOSS" for each step since then, and the
 * hashes of weights and manifest.  The first link continues the SHA-256 of all other keys.  The
 * fields have the first digits of the SHA-256 of each of these keys.  If the chain breaks, they
 * show which one was changed.  They prove nothing themselves; earlier versions have none.
 * Statements of version 1 have no losses of virtual workers.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "checkpoint/directory.h"
#include "checkpoint/manifest.h"
#include "lockstep/report.h"
#include "report/run_log.h"
#include "report/target.h"

#define FORMAT "lockstep-statement"
enum { VERSION = 2, FIELD_DIGITS = 16, FIELD_NAME = 128 };

struct lk_statement {
    json_t                  *root; /* owns all strings */
    char                    *command;
    lk_statement_checkpoint *checkpoints;
    size_t                   count;
};

/* ---- Hashes -------------------------------------------------------------------------------- */

static lk_status hash_file(const char *path, char hex[65], uint64_t *bytes)
{
    lki_map    map;
    lki_sha256 hash;
    LK_TRY(lki_map_open(&map, path));
    lki_sha256_begin(&hash);
    lki_sha256_add(&hash, map.data, map.bytes);
    lki_sha256_end(&hash, hex);
    *bytes = map.bytes;
    lki_map_close(&map);
    return LK_OK;
}

static void add_line(lki_sha256 *hash, const char *text)
{
    lki_sha256_add(hash, text, strlen(text));
    lki_sha256_add(hash, "\n", 1);
}

/* Computes the hash that the first link continues. */
static lk_status hash_origin(const json_t *root, char hex[65])
{
    lki_sha256 hash;
    json_t    *origin = json_copy((json_t *)(uintptr_t)root);
    (void)json_object_del(origin, "checkpoints");
    (void)json_object_del(origin, "losses");
    char *text = json_dumps(origin, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(origin);
    if (text == NULL)
        return lk_fail(LK_ENOMEM, "no memory for a statement");
    lki_sha256_begin(&hash);
    add_line(&hash, text);
    lki_sha256_end(&hash, hex);
    free(text);
    return LK_OK;
}

static json_t *hash_value(const json_t *value)
{
    char       hex[65];
    lki_sha256 hash;
    char      *text = json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
    lki_sha256_begin(&hash);
    add_line(&hash, text != NULL ? text : "");
    lki_sha256_end(&hash, hex);
    free(text);
    return json_stringn(hex, FIELD_DIGITS);
}

/* Makes the hashes of the fields: of each key, and of each key of the objects in `root`. */
static json_t *hash_fields(const json_t *root)
{
    json_t     *fields = json_object(), *value, *inner;
    const char *key, *inner_key;
    json_object_foreach((json_t *)(uintptr_t)root, key, value)
    {
        if (strcmp(key, "checkpoints") == 0 || strcmp(key, "losses") == 0 ||
            strcmp(key, "fields") == 0)
            continue;
        json_t *hashes = json_is_object(value) ? json_object() : hash_value(value);
        json_object_foreach(value, inner_key, inner)
            (void)json_object_set_new(hashes, inner_key, hash_value(inner));
        (void)json_object_set_new(fields, key, hashes);
    }
    return fields;
}

/* Writes the first difference of two lists of hashes, such as "options.lr".  Returns false if they
 * are equal. */
static bool find_difference(const json_t *stated, const json_t *found, const char *head,
                            char *name, size_t bytes)
{
    const char   *key;
    json_t       *hash;
    const json_t *lists[] = { stated, found };
    for (size_t i = 0; i < 2; i++)
        json_object_foreach((json_t *)(uintptr_t)lists[i], key, hash)
        {
            const json_t *other = json_object_get(lists[1 - i], key);
            if (json_equal(hash, other))
                continue;
            (void)snprintf(name, bytes, "%s%s", head, key);
            if (!json_is_object(hash) || !json_is_object(other))
                return true;
            char inner[FIELD_NAME];
            (void)snprintf(inner, sizeof inner, "%.60s.", key);
            return find_difference(hash, other, inner, name, bytes);
        }
    return false;
}

/* Replaces `link` by the link of a checkpoint, after that of step `from`. */
static void hash_link(char link[65], const json_t *losses, uint64_t from, uint64_t step,
                      const char *weights, const char *manifest)
{
    lki_sha256 hash;
    char       step_text[32];
    lki_sha256_begin(&hash);
    add_line(&hash, link);
    for (uint64_t i = from; i < step && i < json_array_size(losses); i++) {
        const char *bits = json_string_value(json_array_get(losses, i));
        (void)snprintf(step_text, sizeof step_text, "%" PRIu64 " ", i + 1);
        lki_sha256_add(&hash, step_text, strlen(step_text));
        add_line(&hash, bits != NULL ? bits : "");
    }
    add_line(&hash, weights);
    add_line(&hash, manifest);
    lki_sha256_end(&hash, link);
}

/* ---- Writing ------------------------------------------------------------------------------- */

/* Makes the list of the files of the data "KIND:FILE[,FILE]"; folders are left out. */
static json_t *list_files(const char *source, const char *directory)
{
    json_t     *list = json_array();
    const char *at   = source != NULL ? strchr(source, ':') : NULL;
    while (at != NULL) {
        char     path[LKI_PATH_BYTES], hex[65];
        uint64_t bytes;
        size_t   length = strcspn(++at, ",");
        (void)snprintf(path, sizeof path, "%s%s%.*s", *at == '/' ? "" : directory,
                       *at == '/' ? "" : "/", (int)length, at);
        if (hash_file(path, hex, &bytes) == LK_OK)
            (void)json_array_append_new(list, json_pack("{s:s%, s:I, s:s}", "path", at, length,
                                                        "bytes", (json_int_t)bytes, "sha256", hex));
        at = at[length] == ',' ? at + length : NULL;
    }
    return list;
}

/* Makes the text of the losses in a row of a log. */
static json_t *losses_of(const lki_run_log *log, size_t row, double loss)
{
    char   *workers = lki_run_log_losses(log, row);
    json_t *text    = json_sprintf("%016" PRIx64 "%s", lki_bits_of(loss),
                                   workers != NULL ? workers : "");
    free(workers);
    return text;
}

static lk_status add_losses(json_t *root, const char *path)
{
    lki_run_log *log;
    LK_TRY(lki_run_log_open(&log, path));
    const lki_column *loss   = lki_run_log_column(log, "loss");
    json_t           *losses = json_array();
    lk_status         status = LK_OK;
    for (size_t i = 0; i < log->rows && loss != NULL; i++) {
        if (lki_is_absent(loss->values[i]))
            continue;
        if (log->steps[i] != json_array_size(losses) + 1) {
            status = lk_fail(LK_EFORMAT, "the log '%s' has no loss of step %zu", path,
                             json_array_size(losses) + 1);
            break;
        }
        (void)json_array_append_new(losses, losses_of(log, i, loss->values[i]));
    }
    (void)json_object_set_new(root, "losses", losses);
    (void)json_object_set_new(json_object_get(root, "data"), "content", json_string(log->data));
    lki_run_log_free(log);
    return status;
}

/* Begins the statement with what the command of the run says. */
static lk_status begin(json_t **out, const char *run)
{
    char path[LKI_PATH_BYTES], *whole = realpath(run, NULL);
    (void)snprintf(path, sizeof path, "%s/command.json", run);
    json_t     *record    = json_load_file(path, 0, NULL);
    const char *directory = json_string_value(json_object_get(record, "directory"));
    json_t     *options   = json_object_get(record, "options");
    if (directory == NULL || !json_is_object(options) || whole == NULL) {
        json_decref(record);
        free(whole);
        return lk_fail(LK_EINVAL,
                       "'%s' has no usable command.json, in which a run keeps its options; give "
                       "the checkpoint directory of a run of `lockstep train`", run);
    }
    const char *source = json_string_value(json_object_get(options, "data"));
    *out = json_pack("{s:s, s:i, s:s, s:s, s:s, s:O, s:{s:o}}", "format", FORMAT, "version",
                     VERSION, "lockstep", LK_VERSION, "run", whole, "directory", directory,
                     "options", options, "data", "files", list_files(source, directory));
    json_decref(record);
    free(whole);
    return *out != NULL ? LK_OK : lk_fail(LK_ENOMEM, "no memory for a statement");
}

static lk_status add_identity(json_t *root, const lk_checkpoint_info *info)
{
    char seed[24];
    (void)snprintf(seed, sizeof seed, "%" PRIu64, info->seed);
    (void)json_object_set_new(root, "configuration", json_loads(info->config, 0, NULL));
    (void)json_object_set_new(root, "seed", json_string(seed));
    (void)json_object_set_new(root, "exactness_id", json_string(info->exactness_id));
    return LK_OK;
}

/* Adds the checkpoint of a step, without its link, and verifies all its hashes. */
static lk_status add_checkpoint(json_t *root, const char *run, uint64_t step, bool newest)
{
    lk_checkpoint *checkpoint;
    char           path[LKI_PATH_BYTES], hex[65], weights[65];
    uint64_t       bytes;
    LK_TRY(lk_checkpoint_open_step(&checkpoint, run, step));
    const lk_checkpoint_info *info   = lk_checkpoint_describe(checkpoint);
    lk_status status = lki_directory_join(path, lk_checkpoint_path(checkpoint), LKI_MANIFEST_NAME);
    if (status == LK_OK)
        status = hash_file(path, hex, &bytes);
    if (status == LK_OK && lk_checkpoint_weights_hash(checkpoint, weights) &&
        strcmp(weights, info->weights) != 0)
        status = lk_fail(LK_ECORRUPT,
                         "the weights in '%s' have the hash %s, which differs from the hash in its "
                         "manifest", lk_checkpoint_path(checkpoint), weights);
    const char *first = json_string_value(json_object_get(root, "exactness_id"));
    if (status == LK_OK && first != NULL && strcmp(first, info->exactness_id) != 0)
        status = lk_fail(LK_EINVAL,
                         "the checkpoint of step %" PRIu64 " has exactness id %s, and an earlier "
                         "one has %s: the data, the precision or the kernels have changed between "
                         "them, so nobody could replay the run", step, info->exactness_id, first);
    if (status == LK_OK && (newest || first == NULL))
        status = add_identity(root, info);
    if (status == LK_OK)
        (void)json_array_append_new(json_object_get(root, "checkpoints"),
                                    json_pack("{s:I, s:s, s:s}", "step", (json_int_t)info->step,
                                              "weights", info->weights, "manifest", hex));
    lk_checkpoint_free(checkpoint);
    return status;
}

static lk_status add_checkpoints(json_t *root, const lki_target *target)
{
    (void)json_object_set_new(root, "checkpoints", json_array());
    for (size_t i = target->step_count; i-- > 0;)
        LK_TRY(add_checkpoint(root, target->path, target->steps[i], i == 0));
    return LK_OK;
}

static const char *text_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static uint64_t step_of(const json_t *checkpoint)
{
    return (uint64_t)json_integer_value(json_object_get(checkpoint, "step"));
}

/* Reports that a statement was changed: the field, or else where its chain breaks. */
static lk_status refuse_changed(const json_t *root, uint64_t from, uint64_t step)
{
    const json_t *stated = json_object_get(root, "fields");
    json_t       *found  = hash_fields(root);
    char          name[FIELD_NAME];
    bool          named = json_is_object(stated) &&
                 find_difference(stated, found, "", name, sizeof name);
    json_decref(found);
    if (named)
        return lk_fail(LK_ECORRUPT, "the statement was changed: its '%s' is not what was stated, "
                                    "and the chain of hashes breaks", name);
    return lk_fail(LK_ECORRUPT,
                   "the statement was changed: its chain breaks at the checkpoint of step %" PRIu64
                   ", so a loss of steps %" PRIu64 "-%" PRIu64 " or a hash of that checkpoint is "
                   "not what was stated%s", step, from + 1, step,
                   stated == NULL && from == 0 ? ", or another field" : "");
}

/* Sets the link of each checkpoint, or compares it. */
static lk_status make_links(json_t *root, bool compare)
{
    char      link[65];
    uint64_t  from = 0;
    size_t    i;
    json_t   *checkpoint, *losses = json_object_get(root, "losses");
    LK_TRY(hash_origin(root, link));
    json_array_foreach(json_object_get(root, "checkpoints"), i, checkpoint)
    {
        hash_link(link, losses, from, step_of(checkpoint), text_at(checkpoint, "weights"),
                  text_at(checkpoint, "manifest"));
        if (compare && strcmp(link, text_at(checkpoint, "link")) != 0)
            return refuse_changed(root, from, step_of(checkpoint));
        from = step_of(checkpoint);
        (void)json_object_set_new(checkpoint, "link", json_string(link));
    }
    return LK_OK;
}

static lk_status fill(json_t *root, const lki_target *target)
{
    LK_TRY(add_checkpoints(root, target));
    const char *id = text_at(root, "exactness_id");
    if (strstr(id, "(timed)") != NULL || strstr(id, "(recorded)") != NULL)
        return lk_fail(LK_EINVAL,
                       "the run in '%s' has the exactness id %s, so nobody could replay it from "
                       "configuration, seed and data", target->path, id);
    if (target->log[0] == '\0')
        return lk_fail(LK_EINVAL,
                       "the run in '%s' has no log, which has the loss of each step; start runs "
                       "that are to be attested with `log`", target->path);
    LK_TRY(add_losses(root, target->log));
    size_t   steps = json_array_size(json_object_get(root, "losses"));
    uint64_t last  = target->steps[0];
    if (steps < last)
        return lk_fail(LK_EINVAL, "the log '%s' ends at step %zu, before the checkpoint of step "
                       "%" PRIu64, target->log, steps, last);
    while (json_array_size(json_object_get(root, "losses")) > last)
        (void)json_array_remove(json_object_get(root, "losses"), last);
    (void)json_object_set_new(root, "fields", hash_fields(root));
    return make_links(root, false);
}

/* Refuses to replace a file that is no statement. */
static lk_status check_output(const char *file)
{
    if (access(file, F_OK) != 0)
        return LK_OK;
    json_t    *there  = json_load_file(file, 0, NULL);
    const bool is_one = strcmp(text_at(there, "format"), FORMAT) == 0;
    json_decref(there);
    return is_one ? LK_OK
                  : lk_fail(LK_EINVAL, "'%s' is a file of another kind, and would be overwritten: "
                                       "give another one, or remove it", file);
}

static lk_status write_statement(const json_t *root, const char *file)
{
    char     *text   = json_dumps(root, JSON_INDENT(1));
    lk_status status = text == NULL ? lk_fail(LK_ENOMEM, "the statement '%s'", file)
                                    : lki_file_replace(file, text, strlen(text));
    free(text);
    return status;
}

static lk_status attest(const lki_target *target, const char *run, const char *file)
{
    json_t   *root   = NULL;
    LK_TRY(check_output(file));
    lk_status status = target->step_count > 0
                           ? begin(&root, run)
                           : lk_fail(LK_EINVAL, "'%s' has no checkpoints to attest; give the "
                                     "checkpoint directory of a run", run);
    if (status == LK_OK)
        status = fill(root, target);
    if (status == LK_OK)
        status = write_statement(root, file);
    json_decref(root);
    return status;
}

lk_status lk_attest(const char *run, const char *file)
{
    lki_target *target = NULL;
    LK_TRY(LKI_NEW(&target, 1, "a run"));
    lk_status status = lki_target_find(target, run);
    if (status == LK_OK) {
        status = attest(target, run, file);
        lki_target_free(target);
    }
    lki_free(target);
    return status;
}

/* ---- Reading ------------------------------------------------------------------------------- */

static lk_status read_checkpoints(lk_statement *s, const char *file)
{
    size_t  i;
    json_t *value, *list = json_object_get(s->root, "checkpoints");
    s->count = json_array_size(list);
    if (s->count == 0)
        return lk_fail(LK_EFORMAT, "the statement '%s' has no checkpoints", file);
    LK_TRY(LKI_NEW(&s->checkpoints, s->count, "a statement"));
    json_array_foreach(list, i, value)
    {
        s->checkpoints[i] = (lk_statement_checkpoint){ .step     = step_of(value),
                                                       .weights  = text_at(value, "weights"),
                                                       .manifest = text_at(value, "manifest") };
        if ((i > 0 && s->checkpoints[i].step <= s->checkpoints[i - 1].step) ||
            !lki_is_hex(s->checkpoints[i].weights, 64) ||
            s->checkpoints[i].step > json_array_size(json_object_get(s->root, "losses")))
            return lk_fail(LK_EFORMAT, "the statement '%s' has unusable checkpoints", file);
    }
    return LK_OK;
}

static lk_status read_statement(lk_statement *s, const char *file)
{
    json_error_t error;
    s->root = json_load_file(file, 0, &error);
    if (s->root == NULL)
        return lk_fail(LK_EFORMAT, "'%s' is no statement of `lockstep attest` (line %d: %s); give "
                                   "one, or the directory of a run", file, error.line, error.text);
    if (strcmp(text_at(s->root, "format"), FORMAT) != 0)
        return lk_fail(LK_EFORMAT, "'%s' is no statement of `lockstep attest`", file);
    const json_int_t version = json_integer_value(json_object_get(s->root, "version"));
    if (version < 1 || version > VERSION)
        return lk_fail(LK_EUNSUPPORTED, "'%s' has another version; this build reads versions 1 to "
                       "%d", file, VERSION);
    LK_TRY(read_checkpoints(s, file));
    return make_links(s->root, true);
}

lk_status lk_statement_open(lk_statement **out, const char *file)
{
    LK_TRY(LKI_NEW(out, 1, "a statement"));
    lk_status status = read_statement(*out, file);
    if (status == LK_OK) {
        json_t *command = json_pack("{s:O, s:O, s:O}", "lockstep",
                                    json_object_get((*out)->root, "lockstep"), "directory",
                                    json_object_get((*out)->root, "directory"), "options",
                                    json_object_get((*out)->root, "options"));
        (*out)->command = json_dumps(command, JSON_INDENT(1));
        json_decref(command);
        if ((*out)->command == NULL)
            status = lk_fail(LK_EFORMAT, "the statement '%s' has no options", file);
    }
    if (status == LK_OK)
        return LK_OK;
    lk_statement_free(*out);
    *out = NULL;
    return status;
}

void lk_statement_free(lk_statement *s)
{
    if (s == NULL)
        return;
    json_decref(s->root);
    free(s->command);
    lki_free(s->checkpoints);
    lki_free(s);
}

const char *lk_statement_run(const lk_statement *s)
{
    return text_at(s->root, "run");
}

const char *lk_statement_command(const lk_statement *s)
{
    return s->command;
}

bool lk_statement_has_key(const lk_statement *s, const char *key)
{
    return json_object_get(json_object_get(s->root, "configuration"), key) != NULL;
}

const lk_statement_checkpoint *lk_statement_checkpoint_at(const lk_statement *s, size_t index)
{
    return index < s->count ? &s->checkpoints[index] : NULL;
}

/* ---- Comparing ----------------------------------------------------------------------------- */

lk_status lk_statement_check_files(const lk_statement *s, const char *const *paths, size_t count)
{
    const json_t *list = json_object_get(json_object_get(s->root, "data"), "files");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *file = json_array_get(list, i);
        char          path[LKI_PATH_BYTES], hex[65];
        uint64_t      bytes;
        const char   *named = text_at(file, "path"), *folder = text_at(s->root, "directory");
        (void)snprintf(path, sizeof path, "%s%s%s", i < count || *named == '/' ? "" : folder,
                       i < count || *named == '/' ? "" : "/", i < count ? paths[i] : named);
        LK_TRY(hash_file(path, hex, &bytes));
        if (strcmp(hex, text_at(file, "sha256")) != 0)
            return lk_fail(LK_ECORRUPT,
                           "the data '%s' is not that of the statement: %" PRIu64 " bytes with "
                           "SHA-256 %.16s..., stated are %lld bytes with %.16s...", path, bytes,
                           hex, (long long)json_integer_value(json_object_get(file, "bytes")),
                           text_at(file, "sha256"));
    }
    return LK_OK;
}

lk_status lk_statement_check(const lk_statement *s, size_t index, const char *run)
{
    const lk_statement_checkpoint *stated = &s->checkpoints[index];
    lk_checkpoint                 *checkpoint;
    char                           path[LKI_PATH_BYTES], hex[65], weights[65] = "";
    uint64_t                       bytes;
    LK_TRY(lk_checkpoint_open_step(&checkpoint, run, stated->step));
    lk_status status = lki_directory_join(path, lk_checkpoint_path(checkpoint), LKI_MANIFEST_NAME);
    if (status == LK_OK)
        status = hash_file(path, hex, &bytes);
    (void)lk_checkpoint_weights_hash(checkpoint, weights);
    lk_checkpoint_free(checkpoint);
    LK_TRY(status);
    if (strcmp(weights, stated->weights) != 0 || strcmp(hex, stated->manifest) != 0)
        return lk_fail(LK_ECORRUPT,
                       "the checkpoint of step %" PRIu64 " is not that of the statement: %s",
                       stated->step, strcmp(weights, stated->weights) != 0
                                         ? "its weights have another hash"
                                         : "its manifest has another hash");
    return LK_OK;
}

/* Compares what a statement has of a step with a row of a log. */
static lk_statement_step compare_step(const char *stated, const lki_run_log *log, size_t row,
                                      double loss)
{
    lk_statement_step step    = { .step = 0, .loss = loss, .worker = LK_NO_WORKER };
    char             *workers = lki_run_log_losses(log, row);
    const char       *theirs  = strlen(stated) > LKI_LOSS_DIGITS ? stated + LKI_LOSS_DIGITS : NULL;
    const size_t      worker  = lki_first_of_losses(theirs, workers);
    const bool        other   = theirs != NULL && /* of another number of virtual workers */
                       (workers == NULL || strlen(theirs) != strlen(workers));
    step.stated = lki_loss_of_worker(stated, 0);
    if (worker != SIZE_MAX) {
        step.worker        = (uint32_t)worker;
        step.worker_stated = lki_loss_of_worker(theirs, worker);
        step.worker_loss   = lki_loss_of_worker(workers, worker);
    }
    if (other || worker != SIZE_MAX || lki_bits_of(step.stated) != lki_bits_of(loss))
        step.step = log->steps[row];
    free(workers);
    return step;
}

lk_status lk_statement_compare_log(const lk_statement *s, uint64_t from, uint64_t to,
                                   const char *path, lk_statement_step *step)
{
    lki_run_log *log;
    LK_TRY(lki_run_log_open(&log, path));
    const lki_column *loss   = lki_run_log_column(log, "loss");
    const json_t     *losses = json_object_get(s->root, "losses");
    uint64_t          next   = from + 1;
    *step                    = (lk_statement_step){ .step = 0 };
    for (size_t i = 0; i < log->rows && loss != NULL && next <= to && step->step == 0; i++) {
        const char *stated = json_string_value(json_array_get(losses, next - 1));
        if (log->steps[i] != next || lki_is_absent(loss->values[i]))
            continue;
        *step = compare_step(stated != NULL ? stated : "", log, i, loss->values[i]);
        next++;
    }
    lki_run_log_free(log);
    if (step->step == 0 && next <= to)
        return lk_fail(LK_EFORMAT, "the replay has no loss of step %" PRIu64, next);
    return LK_OK;
}

/* attest.c -- writes statements about runs.
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
 * The manifest of a checkpoint has a hash of all losses up to its step, which the run has made.  It
 * is compared with the losses, so a checkpoint of another run is found without a replay.
 * Statements of version 1 have no losses of virtual workers.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/directory.h"
#include "checkpoint/manifest.h"
#include "lockstep/data.h"
#include "lockstep/report.h"
#include "report/run_log.h"
#include "report/statement.h"
#include "report/target.h"

/* Makes the list of the files of a run's data "KIND:FILE[,FILE][?SETTINGS]"; folders are left
 * out. */
static json_t *list_files(const char *source, const char *run)
{
    json_t     *list = json_array();
    const char *at   = source != NULL ? strchr(source, ':') : NULL;
    while (at != NULL) {
        char     path[LKI_PATH_BYTES], name[LKI_PATH_BYTES], hex[65];
        uint64_t bytes;
        size_t   length = strcspn(++at, lk_dataset_path_ends(source));
        (void)snprintf(name, sizeof name, "%.*s", (int)length, at);
        if (lk_run_file(path, sizeof path, run, name) == LK_OK &&
            lki_hash_file(path, hex, &bytes) == LK_OK)
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

/* Compares the hash in the last line of a log with that of the checkpoint of its step. */
static lk_status check_last(const json_t *root, const lki_run_log *log)
{
    const json_t    *last    = log->last, *checkpoint;
    const char      *weights = json_string_value(json_object_get(last, "weights"));
    const json_int_t step    = json_integer_value(json_object_get(last, "step"));
    size_t           i;
    json_array_foreach(json_object_get(root, "checkpoints"), i, checkpoint)
        if (weights != NULL && lki_step_of(checkpoint) == (uint64_t)step &&
            strcmp(weights, lki_text_at(checkpoint, "weights")) != 0)
            return lk_fail(LK_ECORRUPT,
                           "the last line of the log '%s' has weights %.16s... after step %lld, "
                           "and the checkpoint of this step has %.16s...", log->path, weights,
                           (long long)step, lki_text_at(checkpoint, "weights"));
    return LK_OK;
}

/* Refuses a log whose lines have the label of a run that its configuration does not repeat. */
static lk_status check_label(const lki_run_log *log)
{
    if (strcmp(log->label, "timed") != 0 && strcmp(log->label, "recorded") != 0)
        return LK_OK;
    return lk_fail(LK_EINVAL,
                   "the log '%s' is of a run that is labelled %s, so nobody could replay it from "
                   "configuration, seed and data", log->path, log->label);
}

/* Refuses options with other --steps than the log.  A run with a limit of epochs, samples or tokens
 * may have had fewer. */
static lk_status check_end(const json_t *root, const lki_run_log *log)
{
    const json_t *options = json_object_get(root, "options");
    const char   *text    = json_string_value(json_object_get(options, "steps"));
    const bool    limited = json_object_get(options, "max-epochs") != NULL ||
                         json_object_get(options, "max-samples") != NULL ||
                         json_object_get(options, "max-tokens") != NULL;
    const uint64_t steps = text != NULL ? strtoull(text, NULL, 10) : 0;
    if (steps == 0 || log->end == 0 || log->end == steps || (limited && log->end < steps))
        return LK_OK;
    return lk_fail(LK_EINVAL,
                   "the options of the run have %" PRIu64 " steps, but its log '%s' is of a run of "
                   "%" PRIu64 "; restore what was changed, else the statement would be false",
                   steps, log->path, log->end);
}

static lk_status add_losses(json_t *root, const char *path)
{
    lki_run_log *log;
    LK_TRY(lki_run_log_open(&log, path));
    const lki_column *loss   = lki_run_log_column(log, "loss");
    json_t           *losses = json_array();
    lk_status         status = check_label(log);
    for (size_t i = 0; i < log->rows && loss != NULL && status == LK_OK; i++) {
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
    if (status == LK_OK)
        status = check_last(root, log);
    if (status == LK_OK)
        status = check_end(root, log);
    lki_run_log_free(log);
    return status;
}

/* Begins the statement with what the command of the run says. */
static lk_status begin(json_t **out, const char *run)
{
    char path[LKI_PATH_BYTES], *whole = realpath(run, NULL);
    (void)snprintf(path, sizeof path, "%s/" LK_RUN_COMMAND, run);
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
    const char *now    = lk_run_file(path, sizeof path, run, directory) == LK_OK ? path : directory;
    *out = json_pack("{s:s, s:i, s:s, s:s, s:s, s:O, s:{s:o}}", "format", LKI_STATEMENT_FORMAT,
                     "version", LKI_STATEMENT_VERSION, "lockstep", LK_VERSION, "run", whole,
                     "directory", now, "options", options, "data", "files",
                     list_files(source, run));
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
        status = lki_hash_file(path, hex, &bytes);
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

/* Compares the hash of all losses in each checkpoint with the losses of the log. */
static lk_status check_chains(const json_t *root, const lki_target *target)
{
    char          chain[65] = "";
    uint64_t      from      = 0;
    const json_t *losses    = json_object_get(root, "losses");
    for (size_t i = target->step_count; i-- > 0; from = target->steps[i]) {
        char           name[LKI_STEP_NAME_BYTES], path[LKI_PATH_BYTES];
        lk_checkpoint *checkpoint;
        lki_loss_chain_extend(chain, losses, from, target->steps[i]);
        lki_step_name(name, target->steps[i]);
        LK_TRY(lki_directory_join(path, target->path, name));
        LK_TRY(lk_checkpoint_open_manifest(&checkpoint, path, NULL, 0));
        lk_status status = lki_loss_chain_check(checkpoint, chain);
        lk_checkpoint_free(checkpoint);
        LK_TRY(status);
    }
    return LK_OK;
}

static lk_status fill(json_t *root, const lki_target *target)
{
    LK_TRY(add_checkpoints(root, target));
    const char *id = lki_text_at(root, "exactness_id");
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
    LK_TRY(check_chains(root, target));
    (void)json_object_set_new(root, "fields", lki_statement_fields(root));
    return lki_statement_links(root, false);
}

/* Compares the losses of the global batch of a step: statements of version 1 have no others. */
static bool is_same_loss(const json_t *one, const json_t *other)
{
    const char *first = json_string_value(one), *second = json_string_value(other);
    return first != NULL && second != NULL && strncmp(first, second, 16) == 0;
}

/* Returns true if the losses of one statement are the first ones of the other, or all.  A run may
 * have been continued, or gone back to an earlier checkpoint, and runs are moved.  Two runs with
 * the same configuration, seed and data have the same losses, and are the same run here. */
static bool are_of_one_run(const json_t *one, const json_t *other)
{
    const json_t *mine   = json_object_get(one, "losses");
    const json_t *theirs = json_object_get(other, "losses");
    const size_t  count  = lki_min(json_array_size(mine), json_array_size(theirs));
    size_t        same   = 0;
    while (same < count && is_same_loss(json_array_get(mine, same), json_array_get(theirs, same)))
        same++;
    return count > 0 && same == count;
}

/* Refuses to replace a file that is no statement, or the statement of another run. */
static lk_status check_output(const json_t *root, const char *file)
{
    if (access(file, F_OK) != 0)
        return LK_OK;
    json_t    *there  = json_load_file(file, 0, NULL);
    const bool is_one = strcmp(lki_text_at(there, "format"), LKI_STATEMENT_FORMAT) == 0;
    lk_status  status = LK_OK;
    if (!is_one)
        status = lk_fail(LK_EINVAL, "'%s' is a file of another kind, and would be overwritten: "
                                    "give another one, or remove it", file);
    else if (!are_of_one_run(root, there))
        status = lk_fail(LK_EINVAL, "'%s' is the statement of another run, of '%s', and would be "
                                    "overwritten: give another one, or remove it", file,
                         lki_text_at(there, "run"));
    json_decref(there);
    return status;
}

static lk_status write_statement(const json_t *root, const char *file)
{
    char     *text   = json_dumps(root, JSON_INDENT(1));
    lk_status status = text == NULL ? lk_fail(LK_ENOMEM, "the statement '%s'", file)
                                    : lki_file_replace(file, text, strlen(text));
    free(text);
    return status;
}

static lk_status attest(const lki_target *target, const char *run, const char *draft,
                        const char *file)
{
    json_t   *root   = NULL;
    lk_status status = target->step_count > 0
                           ? begin(&root, run)
                           : lk_fail(LK_EINVAL, "'%s' has no checkpoints to attest; give the "
                                     "checkpoint directory of a run", run);
    if (status == LK_OK)
        status = fill(root, target);
    if (status == LK_OK)
        status = check_output(root, file);
    if (status == LK_OK)
        status = write_statement(root, draft);
    json_decref(root);
    return status;
}

lk_status lk_attest_draft(const char *run, const char *draft, const char *file)
{
    lki_target *target = NULL;
    LK_TRY(lki_check_given("lk_attest_draft", "run", run, 1));
    LK_TRY(lki_check_given("lk_attest_draft", "draft", draft, 1));
    LK_TRY(lki_check_given("lk_attest_draft", "file", file, 1));
    LK_TRY(LKI_NEW(&target, 1, "a run"));
    lk_status status = lki_target_find(target, run);
    if (status == LK_OK) {
        status = attest(target, run, draft, file);
        lki_target_free(target);
    }
    lki_free(target);
    return status;
}

lk_status lk_attest(const char *run, const char *file)
{
    return lk_attest_draft(run, file, file);
}

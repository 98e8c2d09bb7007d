/* statement.c -- reads statements about runs, and compares them.  See attest.c. */
#include "report/statement.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "checkpoint/directory.h"
#include "checkpoint/manifest.h"
#include "lockstep/report.h"
#include "report/run_log.h"
#include "report/target.h"

struct lk_statement {
    json_t                  *root; /* owns all strings */
    char                    *folder; /* where the statement is */
    char                    *command;
    lk_statement_checkpoint *checkpoints;
    char                   (*chains)[65]; /* by checkpoint: the hash of all losses up to it */
    size_t                   count;
};

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
        s->checkpoints[i] = (lk_statement_checkpoint){ .step     = lki_step_of(value),
                                                       .weights  = lki_text_at(value, "weights"),
                                                       .manifest = lki_text_at(value, "manifest") };
        if ((i > 0 && s->checkpoints[i].step <= s->checkpoints[i - 1].step) ||
            !lki_is_hex(s->checkpoints[i].weights, 64) ||
            s->checkpoints[i].step > json_array_size(json_object_get(s->root, "losses")))
            return lk_fail(LK_EFORMAT, "the statement '%s' has unusable checkpoints", file);
    }
    return LK_OK;
}

/* Computes the hash of all losses up to each checkpoint, as the run has kept it. */
static lk_status make_chains(lk_statement *s)
{
    char          chain[65] = "";
    uint64_t      from      = 0;
    const json_t *losses    = json_object_get(s->root, "losses");
    LK_TRY(LKI_NEW(&s->chains, s->count, "a statement"));
    for (size_t i = 0; i < s->count; from = s->checkpoints[i++].step) {
        lki_loss_chain_extend(chain, losses, from, s->checkpoints[i].step);
        memcpy(s->chains[i], chain, sizeof chain);
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
    if (strcmp(lki_text_at(s->root, "format"), LKI_STATEMENT_FORMAT) != 0)
        return lk_fail(LK_EFORMAT, "'%s' is no statement of `lockstep attest`", file);
    const json_int_t version = json_integer_value(json_object_get(s->root, "version"));
    if (version < 1 || version > LKI_STATEMENT_VERSION)
        return lk_fail(LK_EUNSUPPORTED, "'%s' has another version; this build reads versions 1 to "
                       "%d", file, LKI_STATEMENT_VERSION);
    LK_TRY(read_checkpoints(s, file));
    LK_TRY(lki_statement_links(s->root, true));
    return make_chains(s);
}

lk_status lk_statement_open(lk_statement **out, const char *file)
{
    *out = NULL;
    LK_TRY(lki_check_given("lk_statement_open", "file", file, 1));
    const char *slash = strrchr(file, '/');
    LK_TRY(LKI_NEW(out, 1, "a statement"));
    lk_status status = read_statement(*out, file);
    (*out)->folder   = slash != NULL ? strndup(file, (size_t)(slash - file) + 1) : strdup("./");
    if (status == LK_OK && (*out)->folder == NULL)
        status = lk_fail(LK_ENOMEM, "the path of a statement");
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
    free(s->folder);
    lki_free(s->checkpoints);
    lki_free(s->chains);
    lki_free(s);
}

const char *lk_statement_run(const lk_statement *s)
{
    return lki_text_at(s->root, "run");
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

/* Finds a file beside the statement, or where it was relative to a run of the same name there. */
static bool find_beside(const lk_statement *s, const char *path, char *out, size_t bytes)
{
    const char *stated = lk_statement_run(s), *slash = strrchr(stated, '/');
    const char *name   = strrchr(path, '/');
    char        run[LKI_PATH_BYTES];
    (void)snprintf(run, sizeof run, "%s%s", s->folder, slash != NULL ? slash + 1 : stated);
    if (access(run, F_OK) == 0 && lki_file_of_run(out, bytes, stated, run,
                                                  lki_text_at(s->root, "directory"),
                                                  path) == LK_OK)
        return true;
    (void)snprintf(out, bytes, "%s%s", s->folder, name != NULL ? name + 1 : path);
    return access(out, F_OK) == 0;
}

lk_status lk_statement_file(const lk_statement *s, const char *run, const char *path, char *out,
                            size_t bytes)
{
    LK_TRY(lki_check_given("lk_statement_file", "run", run, 1));
    LK_TRY(lki_check_given("lk_statement_file", "path", path, 1));
    lk_status status = lki_file_of_run(out, bytes, lk_statement_run(s), run,
                                       lki_text_at(s->root, "directory"), path);
    lk_error  why    = *lk_error_last();
    if (status == LK_OK || find_beside(s, path, out, bytes))
        return LK_OK;
    return lk_fail(why.status, "%s", why.message);
}

static const json_t *files_of(const lk_statement *s)
{
    return json_object_get(json_object_get(s->root, "data"), "files");
}

size_t lk_statement_file_count(const lk_statement *s)
{
    return json_array_size(files_of(s));
}

lk_status lk_statement_check_files(const lk_statement *s, const char *run,
                                   const char *const *paths, size_t count)
{
    const json_t *list = files_of(s);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *file = json_array_get(list, i);
        char          path[LKI_PATH_BYTES], hex[65];
        uint64_t      bytes;
        if (i < count)
            (void)snprintf(path, sizeof path, "%s", paths[i]);
        else
            LK_TRY(lk_statement_file(s, run, lki_text_at(file, "path"), path, sizeof path));
        LK_TRY(lki_hash_file(path, hex, &bytes));
        if (strcmp(hex, lki_text_at(file, "sha256")) != 0)
            return lk_fail(LK_ECORRUPT,
                           "the data '%s' is not that of the statement: %" PRIu64 " bytes with "
                           "SHA-256 %.16s..., stated are %lld bytes with %.16s...", path, bytes,
                           hex, (long long)json_integer_value(json_object_get(file, "bytes")),
                           lki_text_at(file, "sha256"));
    }
    return LK_OK;
}

/* Hashes a checkpoint and its manifest, and compares its hash of all losses. */
static lk_status hash_checkpoint(const lk_statement *s, size_t index, const char *run,
                                 char weights[65], char manifest[65])
{
    lk_checkpoint *checkpoint;
    char           path[LKI_PATH_BYTES];
    uint64_t       bytes;
    LK_TRY(lk_checkpoint_open_step(&checkpoint, run, s->checkpoints[index].step));
    lk_status status = lki_directory_join(path, lk_checkpoint_path(checkpoint), LKI_MANIFEST_NAME);
    if (status == LK_OK)
        status = lki_hash_file(path, manifest, &bytes);
    (void)lk_checkpoint_weights_hash(checkpoint, weights);
    if (status == LK_OK)
        status = lki_loss_chain_check(checkpoint, s->chains[index]);
    lk_checkpoint_free(checkpoint);
    return status;
}

lk_status lk_statement_check(const lk_statement *s, size_t index, const char *run)
{
    LK_TRY(lki_check_given("lk_statement_check", "run", run, 1));
    const lk_statement_checkpoint *stated = &s->checkpoints[index];
    char                           manifest[65], weights[65] = "";
    LK_TRY(hash_checkpoint(s, index, run, weights, manifest));
    if (strcmp(weights, stated->weights) != 0 || strcmp(manifest, stated->manifest) != 0)
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
    LK_TRY(lki_check_given("lk_statement_compare_log", "log", path, 1));
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

/* start.c -- the initial values of a run: initialised, from a checkpoint, or from another file.
 *
 * Rank 0 reads the files and broadcasts their contents, since other hosts may not have the files.
 */
#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/directory.h"
#include "parallel/replicas.h"
#include "train/core/identity.h"
#include "train/saves/groups.h"
#include "train/saves/lock.h"
#include "train/saves/save.h"
#include "train/saves/tokenizer.h"

/* ---- Resuming ---------------------------------------------------------------------------- */

/* Creates a directory and syncs its name to disk.  Does not create missing parents, since these
 * suggest a mistyped path. */
static lk_status make_directory(const char *path, bool *made)
{
    char parent[LKI_PATH_BYTES];
    *made = mkdir(path, 0777) == 0;
    if (!*made && errno != EEXIST)
        return lk_fail(LK_EIO, "cannot create the checkpoint directory '%s': %s; %s", path,
                       strerror(errno),
                       errno == ENOENT
                           ? "create the directories above it first, or correct the path"
                           : "give another `checkpoint.folder`");
    if (!*made)
        return LK_OK;
    if (snprintf(parent, sizeof parent, "%s", path) >= (int)sizeof parent)
        return lk_fail(LK_EINVAL, "`checkpoint.folder` has a path of %zu bytes", strlen(path));
    return lki_directory_sync(dirname(parent));
}

/* Lists steps in ascending order, such as "2, 4, 6"; of many only the newest. */
static void list_steps(const uint64_t *steps, size_t count, char *text, size_t bytes)
{
    enum { MOST = 12 };
    size_t used = 0;
    text[0]     = '\0';
    for (size_t i = lki_min(count, MOST); i-- > 0 && used < bytes;)
        used += (size_t)snprintf(text + used, bytes - used, "%s%llu",
                                 used > 0 ? ", " : count > MOST ? "..., " : "",
                                 (unsigned long long)steps[i]);
}

/* Fails if there is no checkpoint of the step to resume from, and says of which there are. */
static lk_status check_step(const lk_train_config *config)
{
    uint64_t *steps = NULL;
    size_t    count = 0;
    char      text[320];
    bool      there = false;
    if (config->checkpoint.resume_step < 0)
        return LK_OK;
    LK_TRY(lki_steps_list(&steps, &count, config->checkpoint.folder));
    for (size_t i = 0; i < count; i++)
        there = there || steps[i] == (uint64_t)config->checkpoint.resume_step;
    list_steps(steps, count, text, sizeof text);
    lki_free(steps);
    if (there)
        return LK_OK;
    return lk_fail(LK_EINVAL, "there is no checkpoint of step %lld in '%s': it has those of the "
                   "steps %s; give one of them, or `resume` without a step for the newest",
                   (long long)config->checkpoint.resume_step, config->checkpoint.folder, text);
}

lk_status lki_checkpoint_check(const lk_train_config *config)
{
    bool exists = false;
    if (config->checkpoint.folder == NULL) {
        if (config->checkpoint.resume)
            return lk_fail(LK_EINVAL,
                           "`resume` needs `checkpoint.folder` DIR, the directory to resume from");
        return LK_OK;
    }
    LK_TRY(lk_checkpoint_exists(config->checkpoint.folder, &exists));
    if (exists && !config->checkpoint.resume)
        return lk_fail(LK_EINVAL,
                       "'%s' already has checkpoints; continue that run by `checkpoint.resume` %s, "
                       "or give another `checkpoint.folder` directory",
                       config->checkpoint.folder, config->checkpoint.folder);
    const bool lacks = !exists && config->checkpoint.resume_required;
    if (lacks && access(config->checkpoint.folder, F_OK) != 0)
        return lk_fail(LK_EINVAL,
                       "there is no directory '%s' to resume from: correct the path, or begin the "
                       "run by its first command and `resume`=auto",
                       config->checkpoint.folder);
    if (lacks)
        return lk_fail(LK_EINVAL,
                       "there is no checkpoint in '%s' to resume from: the run has not reached its "
                       "first one; start it again by its first command and `resume`=auto",
                       config->checkpoint.folder);
    return exists && config->checkpoint.resume ? check_step(config) : LK_OK;
}

/* Creates the directory, locks it, and checks again, since the previous run may have saved since
 * the first check.  All ranks have passed their own check by now, which would report the directory
 * as in use. */
lk_status lki_own_directory(lki_session *s)
{
    const lk_train_config *c = s->config;
    if (s->rank != 0 || c->checkpoint.folder == NULL || s->replays)
        return LK_OK;
    LK_TRY(make_directory(c->checkpoint.folder, &s->saves->made));
    if (access(c->checkpoint.folder, W_OK | X_OK) != 0)
        return lk_fail(LK_EIO, "cannot write to the checkpoint directory '%s': %s; give another "
                               "`checkpoint.folder`", c->checkpoint.folder, strerror(errno));
    LK_TRY(lki_lock_take(&s->saves->lock, c->checkpoint.folder, s->journal));
    return lki_checkpoint_check(c);
}

lk_status lki_keep_tokenizer(const lki_session *s)
{
    if (s->rank != 0 || s->config->checkpoint.folder == NULL || s->replays)
        return LK_OK;
    return lki_tokenizer_keep(s->config);
}

/* Checks that the tokenizer is that of the run. */
static lk_status check_tokenizer(const lk_train_config *config, const json_t *stored)
{
    const json_t          *classes = json_object_get(stored, "classes");
    const lk_model_options model   = { .classes = (uint32_t)json_integer_value(classes),
                                       .vocabulary = config->model_options.vocabulary };
    return config->data.tokenizer == NULL
               ? LK_OK : lki_tokenizer_fits_run(config->data.tokenizer, config->checkpoint.folder,
                                                &model, stored);
}

/* Checks that this run can continue from the checkpoint, and reads further state from it. */
static lk_status check_compatible(const lk_train_config *config, const lk_dataset_info *data,
                                  const lk_checkpoint_info *info, char loss_chain[65],
                                  lk_loss_scaler *scaler, lk_noise *noise, lki_stopping *stopping)
{
    json_error_t error;
    json_t      *stored = json_loads(info->config, 0, &error);
    json_t      *mine   = lki_config_json(config, data);
    lk_status    status = LK_OK;
    if (stored == NULL || mine == NULL)
        status = lk_fail(LK_EFORMAT, "the checkpoint's configuration is not readable: %s",
                         error.text);
    else
        status = check_tokenizer(config, stored);
    if (status == LK_OK)
        status = lki_config_compare(stored, mine, config->checkpoint.same_bits
                                                      ? LKI_COMPARE_EXACT
                                                      : LKI_COMPARE_RESUMED);
    if (status == LK_OK)
        status = lki_data_compare(stored, config, data);
    const char *chain = json_string_value(json_object_get(stored, "loss-chain"));
    (void)snprintf(loss_chain, 65, "%s", chain ? chain : "");
    lki_scaler_read(json_object_get(stored, "loss-scaler"), scaler);
    lki_noise_read(json_object_get(stored, "noise"), noise);
    lki_stopping_read(json_object_get(stored, "watch"), stopping);
    json_decref(stored);
    json_decref(mine);
    LK_TRY(status);
    if (info->step > config->steps)
        return lk_fail(LK_EINVAL,
                       "the checkpoint is at step %llu, past `steps` %llu: give more `steps`, or "
                       "begin at an earlier checkpoint with `resume`=STEP",
                       (unsigned long long)info->step, (unsigned long long)config->steps);
    return LK_OK;
}

lk_status lki_resume_check(lki_log_run *run)
{
    const lk_train_config *config = run->config;
    bool           exists     = false;
    lk_checkpoint *checkpoint = NULL;
    lk_loss_scaler scaler     = { .scale = 0 };
    lk_noise       noise;
    lki_stopping   stopping;
    char           path[4096];

    if (config->checkpoint.resume)
        LK_TRY(lk_checkpoint_exists(config->checkpoint.folder, &exists));
    if (!exists)
        return LK_OK;
    LK_TRY(lki_tokenizer_check(config)); /* the data's hash would differ, too */
    (void)snprintf(path, sizeof path, "%s", config->checkpoint.folder);
    if (config->checkpoint.resume_step >= 0)
        (void)snprintf(path, sizeof path, "%s/step-%08lld", config->checkpoint.folder,
                       (long long)config->checkpoint.resume_step);
    LK_TRY(lk_checkpoint_open_manifest(&checkpoint, path, NULL, 0));
    const lk_checkpoint_info *info = lk_checkpoint_describe(checkpoint);
    lk_status status = check_compatible(config, run->data, info, run->chain, &scaler, &noise,
                                        &stopping);
    run->start       = info->step;
    lk_checkpoint_free(checkpoint);
    return status;
}

static void note_exactness(lki_session *session, const lk_checkpoint_info *info)
{
    if (lki_ids_differ(info->exactness_id, session->exactness_id))
        lki_journal_note(session->journal,
                         "note: the checkpoint has exactness id %s, this run %s: the data, the "
                         "precision or the kernels have changed, so bits may differ from here on",
                         info->exactness_id, session->exactness_id);
}

/* Broadcasts values that rank 0 has read. */
static lk_status share(lki_session *session, float *values, size_t count)
{
    return lk_broadcast(session->comm, values, count * sizeof *values, 0);
}

/* Reads a tensor on rank 0 and broadcasts it.  `checkpoint` is NULL on the other ranks. */
static lk_status read_shared(lki_session *session, const lk_checkpoint *checkpoint,
                             const char *file, const char *name, lk_shape shape, float *values)
{
    size_t count = lk_shape_count(shape);
    if (checkpoint != NULL)
        LK_TRY(lk_checkpoint_read(checkpoint, file, name, shape, 0, count, values));
    return share(session, values, count);
}

static lk_status load_param(lki_session *session, const lk_checkpoint *checkpoint, uint32_t p,
                            float *values)
{
    const lk_param *param = &session->params[p];
    char            name[LKI_OPTIMIZER_NAME_MAX];

    LK_TRY(read_shared(session, checkpoint, LKI_MODEL_FILE, param->name, param->shape, values));
    LK_TRY(lk_parallel_load(session->parallel, p, 0, values));
    for (uint32_t w = 0; w < lk_optimizer_state_count(lki_optimizer_of(session->parallel)); w++) {
        (void)snprintf(name, sizeof name, "%s.%s", param->name,
                       lk_optimizer_state_name(lki_optimizer_of(session->parallel), w));
        LK_TRY(read_shared(session, checkpoint, LKI_OPTIMIZER_FILE, name, param->shape, values));
        LK_TRY(lk_parallel_load(session->parallel, p, w + 1, values));
    }
    return LK_OK;
}

static lk_status load_all(lki_session *session, const lk_checkpoint *checkpoint)
{
    size_t widest = 1;
    float *values = NULL;
    for (uint32_t p = 0; p < session->param_count; p++)
        widest = lki_max(widest, lk_shape_count(session->params[p].shape));
    for (uint32_t i = 0; i < session->state_count; i++)
        widest = lki_max(widest, session->states[i].count);
    LK_TRY(LKI_NEW(&values, widest, "checkpoint values"));

    lk_status status = LK_OK;
    for (uint32_t p = 0; status == LK_OK && p < session->param_count; p++)
        status = load_param(session, checkpoint, p, values);
    for (uint32_t i = 0; status == LK_OK && i < session->kept_count; i++) {
        const lk_state *state = &session->kept[i];
        lk_shape        shape = { 1, { state->count } };
        status = read_shared(session, checkpoint, LKI_STATE_FILE, state->name, shape, values);
        if (status == LK_OK)
            status = lk_parallel_load_state(session->parallel, i, values);
    }
    lki_free(values);
    return status == LK_OK ? lki_group_load(session, checkpoint) : status;
}

/* Opens the checkpoint to continue from.  Verifies all bytes, which may take a long
 * time. */
static lk_status find_checkpoint(lki_session *session, lk_checkpoint **out, lk_loss_scaler *scaler,
                                 lk_noise *noise)
{
    const lk_train_config *config      = session->config;
    char                   notes[2048] = "";

    if (config->checkpoint.resume_step >= 0)
        LK_TRY(lk_checkpoint_open_step(out, config->checkpoint.folder,
                                       (uint64_t)config->checkpoint.resume_step));
    else
        LK_TRY(lk_checkpoint_open(out, config->checkpoint.folder, notes, sizeof notes));
    if (notes[0] != '\0') /* one or more whole lines */
        lki_journal_note(session->journal, "%.*s", (int)strlen(notes) - 1, notes);
    const lk_checkpoint_info *info = lk_checkpoint_describe(*out);
    LK_TRY(check_compatible(config, lk_dataset_describe(session->dataset), info,
                            session->progress.loss_chain, scaler, noise,
                            &session->progress.stopping));
    lki_inherit_label(session, lki_id_label(info->exactness_id));
    note_exactness(session, info);
    session->progress.start = info->step;
    return LK_OK;
}

/* Fails unless the schedule that a live run or a replay continues is that of the checkpoint. */
static lk_status check_schedule(const lki_session *session, const lk_checkpoint *checkpoint)
{
    json_error_t error;
    json_t      *own    = json_object();
    json_t      *stored = json_loads(lk_checkpoint_describe(checkpoint)->config, 0, &error);
    lki_schedule_write(own, session->parallel);
    const char *want = json_string_value(json_object_get(stored, LKI_SCHEDULE_KEY));
    const char *have = json_string_value(json_object_get(own, LKI_SCHEDULE_KEY));
    const bool  same = want == NULL || have == NULL || strcmp(want, have) == 0;
    json_decref(own);
    json_decref(stored);
    return same ? LK_OK
                : lk_fail(LK_EMISMATCH, "the schedule is not the one of this checkpoint's run: "
                                        "give the file that the run has written");
}

static lk_status resume(lki_session *session)
{
    lk_checkpoint    *checkpoint = NULL;
    lk_status         status     = LK_OK;
    lki_run_progress *progress   = &session->progress;
    lk_loss_scaler    scaler     = lk_parallel_scaler(session->parallel);
    lk_noise          noise      = { 0 };

    if (session->rank == 0)
        status = find_checkpoint(session, &checkpoint, &scaler, &noise);
    if (status == LK_OK)
        status = lk_broadcast(session->comm, &progress->start, sizeof progress->start, 0);
    if (status == LK_OK)
        status = lk_broadcast(session->comm, &session->inherited, sizeof session->inherited, 0);
    if (status == LK_OK)
        lki_inherit_label(session, session->inherited);
    if (status == LK_OK)
        status = lk_broadcast(session->comm, progress->loss_chain, sizeof progress->loss_chain, 0);
    if (status == LK_OK)
        status = lk_broadcast(session->comm, &scaler, sizeof scaler, 0);
    if (status == LK_OK)
        status = lk_broadcast(session->comm, &noise, sizeof noise, 0);
    if (status == LK_OK)
        status = lk_broadcast(session->comm, &progress->stopping, sizeof progress->stopping, 0);
    lk_parallel_load_scaler(session->parallel, &scaler);
    lk_parallel_load_noise(session->parallel, &noise);
    if (status == LK_OK)
        status = lk_parallel_resume(session->parallel, progress->start);
    if (status == LK_OK && session->rank == 0)
        status = check_schedule(session, checkpoint);
    if (status == LK_OK)
        status = load_all(session, checkpoint);
    if (status == LK_OK && session->rank == 0) {
        lki_journal_say(session->journal, "resuming from %s", lk_checkpoint_path(checkpoint));
        if (progress->start >= session->config->steps)
            lki_journal_say(session->journal, "note: the run has all its %llu steps: give more "
                            "steps to go on", (unsigned long long)session->config->steps);
    }
    lk_checkpoint_free(checkpoint);
    return status;
}

/* ---- Starting ---------------------------------------------------------------------------- */

lk_status lki_start_values(lki_session *session)
{
    const lk_train_config *config = session->config;
    bool                   exists = false;
    lk_status              status = LK_OK;

    if (session->rank == 0 && config->checkpoint.resume)
        LK_TRY(lk_checkpoint_exists(config->checkpoint.folder, &exists));
    lki_let_rank_0_work(session, true);
    if (config->checkpoint.resume)
        status = lk_broadcast(session->comm, &exists, sizeof exists, 0);
    if (status == LK_OK && exists)
        status = resume(session);
    else if (status == LK_OK)
        status = lki_init_load(session);
    lki_let_rank_0_work(session, false);
    return status;
}

/* Writes lines to the file `copy`, before those that a run which was killed has kept there.  If it
 * was killed before it cut the log, the lines end with them. */
static lk_status keep_before(const char *copy, const uint8_t *lines, size_t bytes)
{
    lki_map  had;
    uint8_t *both = NULL;
    if (!lki_is_file(copy))
        return lki_file_replace(copy, lines, bytes);
    LK_TRY(lki_map_open(&had, copy));
    const bool same = had.bytes <= bytes &&
                      memcmp(lines + bytes - had.bytes, had.data, had.bytes) == 0;
    const size_t rest   = same ? 0 : had.bytes;
    lk_status    status = LKI_NEW(&both, bytes + rest, "the lines of a log");
    if (status == LK_OK) {
        memcpy(both, lines, bytes);
        memcpy(both + bytes, had.data, rest);
        status = lki_file_replace(copy, both, bytes + rest);
    }
    lki_free(both);
    lki_map_close(&had);
    return status;
}

/* Copies the lines that the log loses, since the run goes back, to the checkpoints of their
 * steps. */
static lk_status keep_lines(const lki_session *session, const lki_set_aside *later)
{
    const lk_train_config *c = session->config;
    char                   aside[LKI_PATH_BYTES], copy[LKI_PATH_BYTES];
    lki_map                log;
    if (later->count == 0 || c->log == NULL || !lki_is_file(c->log))
        return LK_OK;
    LK_TRY(lki_directory_join(aside, c->checkpoint.folder, later->name));
    LK_TRY(lki_directory_join(copy, aside, LKI_ASIDE_LOG));
    LK_TRY(lki_map_open(&log, c->log));
    const size_t kept   = lki_log_prefix(log.data, log.bytes, session->progress.start);
    lk_status    status = LK_OK;
    if (kept < log.bytes)
        status = keep_before(copy, log.data + kept, log.bytes - kept);
    lki_map_close(&log);
    return status;
}

lk_status lki_set_aside_later(lki_session *session, lki_set_aside *later)
{
    const lk_train_checkpoint *c    = &session->config->checkpoint;
    const bool                 back = c->resume && c->resume_step >= 0;
    uint64_t                   step;
    *later                          = (lki_set_aside){ .count = 0 };
    if (session->rank != 0 || session->replays || c->folder == NULL)
        return LK_OK;
    later->completes = lk_checkpoint_goes_back(c->folder, &step, later->name);
    LK_TRY(lki_steps_set_aside(later->name, &later->count, c->folder,
                               back ? session->progress.start : UINT64_MAX));
    const bool one = later->count == 1;
    if (later->count > 0)
        lki_journal_note(session->journal, "note: %zu checkpoint%s of later steps %s moved to "
                         "'%s/%s', since the run goes on from step %llu without %s", later->count,
                         one ? "" : "s", one ? "is" : "are", c->folder, later->name,
                         (unsigned long long)session->progress.start, one ? "it" : "them");
    if (keep_lines(session, later) == LK_OK)
        return LK_OK;
    lk_error why = *lk_error_last();
    lki_undo_set_aside(session, later);
    return lki_fail_again(&why);
}

lk_status lki_end_set_aside(const lki_session *session, const lki_set_aside *later)
{
    return later->name[0] != '\0' ? lki_steps_are_aside(session->config->checkpoint.folder) : LK_OK;
}

void lki_undo_set_aside(lki_session *session, const lki_set_aside *later)
{
    const char *folder = session->config->checkpoint.folder;
    if (later->count == 0 || later->completes)
        return;
    if (lki_steps_put_back(folder, later->name))
        lki_journal_note(session->journal, "note: what was moved to '%s/%s' is moved back, since "
                         "the run cannot begin", folder, later->name);
    else
        lki_journal_note(session->journal, "note: the run cannot begin, and checkpoints are still "
                         "in '%s/%s': move them back", folder, later->name);
}

/* save.c -- the checkpoints of a run.
 *
 * Rank 0 writes tensors that are in the shared memory of every host, while the other ranks wait.
 * If hosts store parts of a tensor and all see the directory, each host writes its part (parts.c).
 * If they do not all see it, they send their parts to rank 0 piece by piece, in the order in which
 * it writes.  With checkpoint_async writers copy all data instead, and write the copy in the
 * background (background.c).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "checkpoint/directory.h"
#include "data/batch.h"
#include "base/file.h"
#include "parallel/replicas.h"
#include "train/core/identity.h"
#include "train/saves/base.h"
#include "train/saves/groups.h"
#include "train/saves/lock.h"
#include "train/saves/parts.h"

/* ---- The session's state ----------------------------------------------------------------- */

lk_status lki_saves_open(lki_session *session)
{
    LK_TRY(LKI_NEW(&session->saves, 1, "checkpoints"));
    session->saves->lock = -1;
    return LK_OK;
}

void lki_saves_stop(lki_session *session)
{
    if (session->saves == NULL)
        return;
    lki_background_close(session->saves->background);
    session->saves->background = NULL;
}

void lki_saves_close(lki_session *session)
{
    const char *folder = session->config->checkpoint.folder;
    if (session->saves != NULL)
        lki_lock_drop(session->saves->lock, folder);
    if (session->saves != NULL && session->saves->made)
        (void)rmdir(folder);
    lki_free(session->saves);
    session->saves = NULL;
}

/* ---- Values of which hosts keep parts ---------------------------------------------------- */

static lk_status fetch_param(void *context, size_t tensor, size_t first, size_t count, void *out)
{
    const lki_session *session = context;
    return lk_parallel_fetch(session->parallel, (uint32_t)tensor, 0, first, count, out);
}

/* Fetches values for the optimizer's file: all states of the first parameter, then of the second,
 * and so on. */
static lk_status fetch_state(void *context, size_t tensor, size_t first, size_t count, void *out)
{
    const lki_session *session = context;
    uint32_t           slots   = lk_optimizer_state_count(lki_optimizer_of(session->parallel));
    return lk_parallel_fetch(session->parallel, (uint32_t)tensor / slots,
                             1 + (uint32_t)tensor % slots, first, count, out);
}

static void give(void *context, const float *values, size_t count)
{
    (void)context;
    (void)values;
    (void)count;
}

static lk_status give_value(const lki_session *session, uint32_t param, uint32_t which)
{
    return lk_parallel_value(session->parallel, param, which) != NULL
               ? LK_OK
               : lki_visit_value(session, param, which, give, NULL);
}

/* Sends this rank's part of the data that rank 0 fetches, file by file. */
static lk_status give_values(const lki_session *session)
{
    uint32_t slots = lk_optimizer_state_count(lki_optimizer_of(session->parallel));
    for (uint32_t p = 0; p < session->param_count; p++)
        LK_TRY(give_value(session, p, 0));
    for (uint32_t p = 0; p < session->param_count; p++)
        for (uint32_t w = 1; w <= slots; w++)
            LK_TRY(give_value(session, p, w));
    return lki_group_visit(session, give, NULL);
}

/* ---- Contents ---------------------------------------------------------------------------- */

static void optimizer_tensors(lki_session *session, lki_sheet *s, lk_tensor *at)
{
    uint32_t slots = lk_optimizer_state_count(lki_optimizer_of(session->parallel)), i = 0;
    for (uint32_t p = 0; p < session->param_count; p++)
        for (uint32_t w = 0; w < slots; w++, i++) {
            (void)snprintf(s->names[i], sizeof s->names[i], "%s.%s", session->params[p].name,
                           lk_optimizer_state_name(lki_optimizer_of(session->parallel), w));
            at[i] = (lk_tensor){ s->names[i], LK_F32, session->params[p].shape,
                                 lk_parallel_value(session->parallel, p, w + 1) };
        }
    if (i > 0)
        s->files[s->file_count++] = (lk_checkpoint_file){
            .name = LKI_OPTIMIZER_FILE, .tensors = at, .tensor_count = i,
            .fetch = fetch_state, .context = session
        };
}

lk_status lki_sheet_fill(lki_session *session, lki_sheet *s)
{
    uint32_t slots = lk_optimizer_state_count(lki_optimizer_of(session->parallel));
    size_t   count = (size_t)session->param_count * (1 + slots) + session->kept_count;
    size_t   named = (size_t)session->param_count * slots;

    LK_TRY(lki_group_list_make(&s->groups, session));
    LK_TRY(LKI_NEW(&s->tensors, count + s->groups.count, "checkpoint tensors"));
    LK_TRY(LKI_NEW(&s->names, named + s->groups.count + 1, "checkpoint tensors"));
    lk_tensor *at = s->tensors;
    for (uint32_t p = 0; p < session->param_count; p++)
        at[p] = (lk_tensor){ session->params[p].name, LK_F32, session->params[p].shape,
                             lk_parallel_value(session->parallel, p, 0) };
    s->files[s->file_count++] = (lk_checkpoint_file){
        .name = LKI_MODEL_FILE, .tensors = at, .tensor_count = session->param_count,
        .fetch = fetch_param, .context = session
    };
    optimizer_tensors(session, s, at + session->param_count);
    at += (size_t)session->param_count * (1 + slots);
    for (uint32_t i = 0; i < session->kept_count; i++)
        at[i] = (lk_tensor){ session->kept[i].name,
                             LK_F32,
                             { 1, { session->kept[i].count } },
                             lk_parallel_state_data(session->parallel, i) };
    if (session->kept_count > 0)
        s->files[s->file_count++] = (lk_checkpoint_file){
            .name = LKI_STATE_FILE, .tensors = at, .tensor_count = session->kept_count
        };
    if (s->groups.count > 0)
        s->files[s->file_count++] =
            lki_group_file(&s->groups, at + session->kept_count, s->names + named);
    return LK_OK;
}

/* Returns true if the directory already has this checkpoint: its manifest has the same losses,
 * weights and options as `info`.  A run resumed from an older step recomputes newer checkpoints bit
 * for bit. */
static bool is_there_already(const char *dir, const lk_checkpoint_info *info)
{
    lk_checkpoint *checkpoint = NULL;

    LK_ASSERT(info != NULL);
    if (lk_checkpoint_open_step(&checkpoint, dir, info->step) != LK_OK)
        return false;
    const lk_checkpoint_info *there = lk_checkpoint_describe(checkpoint);
    json_t *theirs = json_loads(there->config, 0, NULL), *ours = json_loads(info->config, 0, NULL);
    (void)json_object_del(theirs, LKI_DATA_KEY); /* earlier versions lack it, and it is in the id */
    (void)json_object_del(ours, LKI_DATA_KEY);
    bool    same = json_equal(theirs, ours) && strcmp(there->weights, info->weights) == 0 &&
                strcmp(there->exactness_id, info->exactness_id) == 0;
    json_decref(theirs);
    json_decref(ours);
    lk_checkpoint_free(checkpoint);
    return same;
}

/* Fills in all fields of the sheet except the weights' hash. */
static lk_status describe(lki_session *session, uint64_t step, lki_sheet *s)
{
    const lk_train_config *config = session->config;
    LK_TRY(lki_sheet_fill(session, s));

    json_t *object = lki_config_json(config, lk_dataset_describe(session->dataset));
    lki_data_write(object, config, lk_dataset_describe(session->dataset),
                   lki_dataset_content(session->dataset));
    (void)json_object_set_new(object, "loss-chain", json_string(session->progress.loss_chain));
    lki_schedule_write(object, session->parallel);
    lki_base_write(object, session);
    lk_loss_scaler scaler = lk_parallel_scaler(session->parallel);
    if (config->scaling.rule > LK_SCALE_NONE || scaler.skipped > 0)
        (void)json_object_set_new(object, "loss-scaler", lki_scaler_json(&scaler));
    lk_noise noise = lk_parallel_noise(session->parallel);
    if (config->noise_decay > 0)
        (void)json_object_set_new(object, "noise", lki_noise_json(&noise));
    json_t *stopping = lki_stopping_json(&session->progress.stopping, config);
    if (stopping != NULL)
        (void)json_object_set_new(object, "watch", stopping);
    s->config = json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(object);
    if (s->config == NULL)
        return lk_fail(LK_ENOMEM, "checkpoint: no memory for the configuration");
    s->info = (lk_checkpoint_info){ .step         = step,
                                    .seed         = config->seed,
                                    .exactness_id = session->exactness_id,
                                    .weights      = s->weights,
                                    .config       = s->config,
                                    .spared       = s->spared,
                                    .spared_count = session->progress.stopping.best_count };
    for (uint32_t i = 0; i < session->progress.stopping.best_count; i++)
        s->spared[i] = session->progress.stopping.best[i].step;
    return LK_OK;
}

void lki_sheet_free(lki_sheet *s)
{
    if (s == NULL)
        return;
    lki_free(s->tensors);
    lki_free(s->names);
    lki_group_list_free(&s->groups);
    for (size_t i = 0; s->own_parts != NULL && i < s->part_count; i++)
        lki_free(s->own_parts[i].stretches);
    lki_free(s->own_parts);
    lki_free(s->parts);
    free(s->config);
    lki_free(s);
}

bool lki_sheet_is_there(const lki_sheet *s, const char *dir)
{
    return is_there_already(dir, &s->info);
}

lk_status lki_sheet_write(const lki_sheet *s, const lk_train_config *config)
{
    return lk_checkpoint_write(config->checkpoint.folder, &s->info, s->files, s->file_count,
                               config->checkpoint.keep ? config->checkpoint.keep : 3);
}

/* ---- Saving ------------------------------------------------------------------------------ */

/* Prepares the sheet.  Rank 0 fills in all fields except the weights' hash, and other writers fill
 * in their parts. */
static lk_status prepare_sheet(lki_session *session, uint64_t step, lki_sheet **out)
{
    lki_sheet *s;
    *out = NULL;
    if (!lki_parts_writes(session))
        return LK_OK;
    LK_TRY(LKI_NEW(&s, 1, "a checkpoint"));
    lk_status status = session->rank == 0 ? describe(session, step, s) : lki_sheet_fill(session, s);
    if (status == LK_OK && session->saves->by_owners)
        status = lki_sheet_divide(session, s);
    if (status == LK_OK)
        *out = s;
    else
        lki_sheet_free(s);
    return status;
}

/* Computes the weights' hash.  Collective if hosts store parts of the parameters. */
static lk_status hash_weights(const lki_session *session, lki_sheet *s)
{
    char weights[65];
    if (session->rank == 0)
        return lki_weights_hash(session, s->weights);
    return lk_parallel_value(session->parallel, 0, 0) == NULL ? lki_weights_hash(session, weights)
                                                              : LK_OK;
}

/* Writes all data on rank 0, to which the other ranks send their parts. */
static lk_status save_alone(lki_session *session, const lki_sheet *s, bool wanted)
{
    uint32_t writes = wanted;
    LK_TRY(lk_broadcast(session->comm, &writes, sizeof writes, 0));
    if (writes == 0)
        return LK_OK;
    return session->rank != 0 ? give_values(session) : lki_sheet_write(s, session->config);
}

static lk_status write_parts(lki_session *session, const lki_sheet *s, lki_writing *writing)
{
    lk_error mine = { .status = LK_OK };
    if (s != NULL && lki_writing_files(writing, s, session->rank == 0) != LK_OK)
        mine = *lk_error_last();
    LK_TRY(lki_writing_gather(writing, session, &mine));
    return session->rank == 0 ? lki_writing_publish(writing, s, session->config) : LK_OK;
}

/* Writes each writer's part. */
static lk_status save_parts(lki_session *session, const lki_sheet *s, bool wanted)
{
    lki_writing writing;
    bool        begun;
    lk_status   status = lki_writing_begin(&writing, session, wanted ? s->info.step : 0, wanted,
                                           &begun);
    if (status == LK_OK && begun)
        status = write_parts(session, s, &writing);
    lki_writing_end(&writing);
    return status;
}

/* Saves while all ranks wait. */
static lk_status save_now(lki_session *session, uint64_t step)
{
    lki_sheet *s = NULL;
    LK_TRY(lki_background_settle(session, step, true));
    LK_TRY(prepare_sheet(session, step, &s));
    lk_status status = hash_weights(session, s);
    if (status == LK_OK)
        status = lki_journal_sync(session->journal);
    if (status == LK_OK) {
        bool wanted = session->rank == 0 &&
                      !lki_sheet_is_there(s, session->config->checkpoint.folder);
        status = session->saves->by_owners ? save_parts(session, s, wanted)
                                           : save_alone(session, s, wanted);
    }
    lki_sheet_free(s);
    return status;
}

/* Copies each writer's part for a draft.  Takes over `s`. */
static lk_status copy_parts(lki_session *session, uint64_t step, lki_sheet *s)
{
    lki_writing *writing = NULL;
    bool         begun   = false;
    lk_status    status  = lk_parallel_value(session->parallel, 0, 0) == NULL
                               ? hash_weights(session, s)
                               : LK_OK;
    if (status == LK_OK)
        status = LKI_NEW(&writing, 1, "a checkpoint");
    if (status == LK_OK)
        status = lki_writing_begin(writing, session, step, session->rank == 0, &begun);
    session->saves->drafting = begun;
    if (status == LK_OK && s != NULL)
        return lki_background_copy(session->saves->background, session->exec, s, writing);
    if (writing != NULL)
        lki_writing_end(writing);
    lki_free(writing);
    lki_sheet_free(s);
    return status;
}

/* Makes a copy, once the previous copy is written, and writes it in the background. */
static lk_status save_later(lki_session *session, uint64_t step)
{
    lki_sheet *s = NULL;
    LK_TRY(lki_background_settle(session, step, true));
    LK_TRY(prepare_sheet(session, step, &s));
    if (session->saves->by_owners)
        return copy_parts(session, step, s);
    if (session->rank != 0)
        return give_values(session);
    return lki_background_copy(session->saves->background, session->exec, s, NULL);
}

lk_status lki_save(lki_session *session, uint64_t step, bool later)
{
    double begun = lki_seconds();
    later        = later && session->config->checkpoint.async;
    lk_comm_note(session->comm, step, later ? "copying a checkpoint" : "writing a checkpoint");
    lki_let_rank_0_work(session, true);
    LK_TRY(lki_lock_hold(session->saves->lock, session->config->checkpoint.folder));
    LK_TRY(later ? save_later(session, step) : save_now(session, step));
    LK_TRY(lk_barrier(session->comm));
    lki_let_rank_0_work(session, false);
    double stall = lki_seconds() - begun;
    if (later)
        return lki_background_start(session->saves->background, step, stall);
    if (session->rank != 0)
        return LK_OK;
    return lki_note_saved(session, step, step, stall, stall);
}

lk_status lki_note_saved(lki_session *session, uint64_t step, uint64_t saved, double stall,
                         double seconds)
{
    lk_checkpoint_times *times = &session->saves->times;
    lki_stopping_written(&session->progress.stopping, saved);
    times->written++;
    times->stalled += stall;
    times->longest_stall = fmax(times->longest_stall, stall);
    times->longest_write = fmax(times->longest_write, seconds);
    return lki_journal_saved(session->journal, step, saved, stall, seconds, NULL);
}

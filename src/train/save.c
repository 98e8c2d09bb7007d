/* save.c -- the checkpoints that a run leaves.
 *
 * The model's values lie in the shared memory of every host, so rank 0 alone writes them, whole
 * tensors, while the others wait.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "checkpoint/directory.h"
#include "train/session.h"

enum { PATIENCE_MS = 3600 * 1000 };

typedef struct {
    lk_tensor *tensors;
    char (*names)[LKI_OPTIMIZER_NAME_MAX];
    lk_checkpoint_file files[3];
    size_t             file_count;
} sheet;

static void optimizer_tensors(const lki_session *session, sheet *s, lk_tensor *at)
{
    uint32_t slots = lk_optimizer_state_count(&session->config->optimizer), i = 0;
    for (uint32_t p = 0; p < session->param_count; p++)
        for (uint32_t w = 0; w < slots; w++, i++) {
            (void)snprintf(s->names[i], sizeof s->names[i], "%s.%s", session->params[p].name,
                           lk_optimizer_state_name(&session->config->optimizer, w));
            at[i] = (lk_tensor){ s->names[i], LK_F32, session->params[p].shape,
                                 lk_parallel_value(session->parallel, p, w + 1) };
        }
    if (i > 0)
        s->files[s->file_count++] = (lk_checkpoint_file){ LKI_OPTIMIZER_FILE, at, i };
}

static lk_status sheet_fill(const lki_session *session, sheet *s)
{
    uint32_t slots = lk_optimizer_state_count(&session->config->optimizer);
    size_t   count = (size_t)session->param_count * (1 + slots) + session->state_count;

    LK_TRY(LKI_NEW(&s->tensors, count, "checkpoint tensors"));
    LK_TRY(LKI_NEW(&s->names, (size_t)session->param_count * slots + 1, "checkpoint tensors"));
    lk_tensor *at = s->tensors;
    for (uint32_t p = 0; p < session->param_count; p++)
        at[p] = (lk_tensor){ session->params[p].name, LK_F32, session->params[p].shape,
                             lk_parallel_param(session->parallel, p) };
    s->files[s->file_count++] = (lk_checkpoint_file){ LKI_MODEL_FILE, at, session->param_count };
    optimizer_tensors(session, s, at + session->param_count);
    at += (size_t)session->param_count * (1 + slots);
    for (uint32_t i = 0; i < session->state_count; i++)
        at[i] = (lk_tensor){ session->states[i].name,
                             LK_F32,
                             { 1, { session->states[i].count } },
                             lk_parallel_state_data(session->parallel, i) };
    if (session->state_count > 0)
        s->files[s->file_count++] = (lk_checkpoint_file){ LKI_STATE_FILE, at,
                                                          session->state_count };
    return LK_OK;
}

/* Resumed from an older step, a run makes newer ones again, with the same bits: losses, weights
 * and options as that step's own manifest tells them. */
static bool is_there_already(const char *dir, const lk_checkpoint_info *info)
{
    lk_checkpoint *checkpoint = NULL;
    if (lk_checkpoint_open_step(&checkpoint, dir, info->step) != LK_OK)
        return false;
    const lk_checkpoint_info *there = lk_checkpoint_describe(checkpoint);
    json_t *theirs = json_loads(there->config, 0, NULL), *ours = json_loads(info->config, 0, NULL);
    bool    same = json_equal(theirs, ours) && strcmp(there->weights, info->weights) == 0 &&
                strcmp(there->exactness_id, info->exactness_id) == 0;
    json_decref(theirs);
    json_decref(ours);
    lk_checkpoint_free(checkpoint);
    return same;
}

static lk_status write_checkpoint(lki_session *session, uint64_t step, sheet *s)
{
    const lk_train_config *config = session->config;
    char                   weights[65];
    LK_TRY(sheet_fill(session, s));
    LK_TRY(lki_weights_hash(session, weights));

    json_t *object = lki_config_json(config, lk_dataset_describe(session->dataset));
    (void)json_object_set_new(object, "loss-chain", json_string(session->loss_chain));
    char *text = json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(object);
    if (text == NULL)
        return lk_fail(LK_ENOMEM, "checkpoint: no memory for the configuration");
    lk_checkpoint_info info   = { .step         = step,
                                  .seed         = config->seed,
                                  .exactness_id = session->exactness_id,
                                  .weights      = weights,
                                  .config       = text };
    lk_status          status = lki_journal_sync(session->journal);
    if (status == LK_OK && !is_there_already(config->checkpoint, &info))
        status = lk_checkpoint_write(config->checkpoint, &info, s->files, s->file_count,
                                     config->keep ? config->keep : 3);
    free(text);
    return status;
}

void lki_let_rank_0_work(const lki_session *session, bool work)
{
    if (session->rank != 0)
        lk_comm_set_timeout(session->comm, work ? PATIENCE_MS : 0);
}

lk_status lki_save(lki_session *session, uint64_t step)
{
    lk_status status = LK_OK;
    sheet     s      = { 0 };
    lk_comm_note(session->comm, step, "writing a checkpoint");
    if (session->rank == 0)
        status = write_checkpoint(session, step, &s);
    lki_free(s.tensors);
    lki_free(s.names);
    LK_TRY(status);
    lki_let_rank_0_work(session, true);
    status = lk_barrier(session->comm);
    lki_let_rank_0_work(session, false);
    return status;
}

/* session.c -- an empty session, and small functions that all folders of the room use. */
#include "train/core/session.h"

#include <string.h>

#include "base/memory.h"
#include "comm/worker.h"
#include "lockstep/checkpoint.h"

enum { PATIENCE_MS = 3600 * 1000 };

lki_session lki_session_of(const lk_train_config *config, lk_comm *given, lk_comm *comm)
{
    return (lki_session){ .config      = config,
                          .comm        = comm,
                          .given       = given,
                          .rank        = comm == NULL ? UINT32_MAX : lk_comm_rank(comm),
                          .ranks       = comm == NULL ? 0 : lk_comm_size(comm),
                          .outside     = comm == NULL,
                          .turn        = { .seed = config->seed },
                          .joint       = 1,
                          .micro_count = config->global_batch / config->virtual_workers /
                                         config->micro_batch };
}

lki_log_run lki_log_run_of(const lki_session *session)
{
    const lki_run_progress *p   = &session->progress;
    lki_log_run             run = { .config = session->config,
                                    .data   = lk_dataset_describe(session->dataset),
                                    .start  = p->start,
                                    .replays = session->replays,
                                    .waits = session->lost_early == 0 &&
                                             !session->config->outputs.log_has_reader };
    if (p->chained == p->start) /* else the chain has the loss of the first step */
        memcpy(run.chain, p->loss_chain, sizeof run.chain);
    return run;
}

/* Limits how long rank 0 waits for the reader of a log that is a pipe: it fails, with an error that
 * names the pipe, before other ranks time out. */
static void limit_log(lki_session *session)
{
    const bool is_awaited = session->ranks > 1 && !session->patient;
    lki_journal_limit(session->journal,
                      is_awaited ? 0.75e-3 * lki_comm_timeout_ms(session->comm) : 0,
                      session->ranks == 1);
}

lk_status lki_session_journal(lki_session *session)
{
    LK_TRY(lki_journal_open(&session->journal, session->config));
    limit_log(session);
    return LK_OK;
}

void lki_let_rank_0_work(lki_session *session, bool work)
{
    session->patient = work;
    limit_log(session);
    if (session->rank != 0)
        lk_comm_set_timeout(session->comm, work ? PATIENCE_MS : 0);
}

lk_status lki_visit_value(const lki_session *session, uint32_t param, uint32_t which,
                          void (*visit)(void *context, const float *values, size_t count),
                          void *context)
{
    const float *whole = lk_parallel_value(session->parallel, param, which);
    size_t       count = lk_shape_count(session->params[param].shape);
    float       *piece = NULL;
    lk_status    status;

    if (whole != NULL) {
        visit(context, whole, count);
        return LK_OK;
    }
    status = LKI_NEW(&piece, LK_CHECKPOINT_PIECE, "a piece of a tensor");
    for (size_t at = 0; status == LK_OK && at < count; at += LK_CHECKPOINT_PIECE) {
        size_t n = lki_min(count - at, LK_CHECKPOINT_PIECE);
        status   = lk_parallel_fetch(session->parallel, param, which, at, n, piece);
        if (status == LK_OK)
            visit(context, piece, n);
    }
    lki_free(piece);
    return status;
}

/* between_steps.c -- the work between two steps: evaluations, checkpoints, and the decision to end
 * the run.
 *
 * All ranks make the same decisions.  Most of these follow from the step number and from
 * evaluations, which are equal on all ranks.  Requests to stop and the time limit are not equal, so
 * ranks exchange them once per step.  If any rank has seen one, the run ends on all ranks after the
 * same step.
 */
#include "comm/worker.h"
#include "parallel/versions.h"
#include "tensor/exec.h"
#include "train/core/feed.h"
#include "train/core/progress.h"
#include "train/loop/loop.h"
#include "train/recover/survive.h"
#include "train/saves/save.h"

/* ---- Decisions ----------------------------------------------------------------------------- */

/* Events that some ranks may have seen and others not, in ascending precedence: a wish to leave,
 * the time limit, a request to stop. */
enum { SEES_NOTHING, SEES_WISH, SEES_TIME, SEES_REQUEST };

/* Exchanges the events that the ranks have seen, since a request may arrive at different times or
 * only on one host.  A rank that has seen the time limit reports it again in later exchanges,
 * because a loss of ranks may restart the exchange (survive.c). */
static lk_status look_round(lki_session *s, uint64_t done)
{
    const lk_train_config *c      = s->config;
    lki_track             *track  = lki_exec_track(s->exec);
    uint64_t               begun  = lki_trace_begin(track);
    uint32_t               seen[] = { lki_membership_wished(s) ? SEES_WISH : SEES_NOTHING,
                        lki_background_writes(s->saves->background) };

    if (lki_time_is_over(s))
        seen[0] = SEES_TIME;
    if (s->depleted ||
        (c->elastic.survives ? lki_comm_stop_requested(s->comm)
                             : c->calls.stop != NULL && c->calls.stop(c->calls.stop_context)))
        seen[0] = SEES_REQUEST;
    if (lki_is_async(c)) { /* ranks do not meet after each step */
        lki_versions_say(s->parallel, seen[0]);
        seen[0] = lki_versions_heard(s->parallel);
    } else
        LK_TRY(lk_all_reduce(s->comm, seen, seen, 2, LK_U32, LK_MAX));
    s->saves->drafted = seen[1] == 0;
    s->stopped = seen[0] == SEES_REQUEST;
    if (seen[0] == SEES_TIME)
        s->progress.ended = "max-time";
    if (seen[0] == SEES_WISH)
        LK_TRY(lki_membership_agree(s, done));
    lki_trace_end(track, LKI_SPAN_CONTROL, 0, begun);
    return LK_OK;
}

lk_status lki_evaluate_and_say(lki_session *s, uint64_t step, lk_train_result *result)
{
    uint64_t begun = lki_trace_begin(lki_exec_track(s->exec));
    lk_comm_note(s->comm, step, "evaluating");
    LK_TRY(lki_average_replicas(s, step));
    lki_fetch_states(s);
    LK_TRY(lki_evaluate(s, step, result));
    lki_trace_end(lki_exec_track(s->exec), LKI_SPAN_EVALUATE, 0, begun);
    return lki_say_evaluation(s, step, result);
}

/* Checks on rank 0 that the data are unchanged, and reports the result to all ranks.  Checks at the
 * beginning of an epoch, and before the run saves or ends. */
static lk_status check_data(const lki_session *s, uint64_t done, bool saving)
{
    bool begins = lki_step_span(s, done).first == 0;
    return s->rank == 0 && (saving || begins) ? lk_dataset_check(s->dataset) : LK_OK;
}

static lk_status save(lki_session *s, uint64_t step, bool later)
{
    uint64_t  begun  = lki_trace_begin(lki_exec_track(s->exec));
    lk_status status = lki_save(s, step, later);
    lki_trace_end(lki_exec_track(s->exec), LKI_SPAN_CHECKPOINT, 0, begun);
    return status;
}

/* Broadcasts the best evaluations from rank 0.  Only rank 0 knows which checkpoints could not be
 * written. */
static lk_status share_best(lki_session *s, bool *best)
{
    struct {
        lki_stopping stopping;
        bool         best;
    } said = { s->progress.stopping, *best };
    if (s->config->checkpoint.keep_best == 0 || !s->config->checkpoint.async)
        return LK_OK;
    LK_TRY(lk_broadcast(s->comm, &said, sizeof said, 0));
    s->progress.stopping    = said.stopping;
    s->progress.judged_best = *best = said.best;
    return LK_OK;
}

lk_status lki_between_steps(lki_session *s, uint64_t done, lk_train_result *result)
{
    const lk_train_config *c    = s->config;
    const lk_dataset_info *data = lk_dataset_describe(s->dataset);
    bool                   best = false;

    LK_TRY(look_round(s, done));
    LK_TRY(lki_log_outer_step(s, done));
    LK_TRY(lki_log_freeze(s, done));
    if (done == s->progress.end)
        (void)lki_last_step(c, data, &s->progress.ended);
    bool ends = done == s->progress.end || s->progress.ended != NULL;
    LK_TRY(lki_background_settle(s, done, false));
    if (data->validation_count > 0 && (ends || lki_is_due(c->eval_every, done))) {
        LK_TRY(lki_evaluate_and_say(s, done, result));
        best = lki_heed_evaluation(s, done, result->validation_loss, result->validation_accuracy);
        LK_TRY(share_best(s, &best));
    }
    bool last   = ends || s->progress.ended != NULL || s->stopped;
    bool saving = last || best ||
                  (c->checkpoint.folder != NULL && lki_is_due(c->checkpoint.every, done));
    LK_TRY(check_data(s, done, saving));
    if (last || lki_is_due(c->eval_every, done))
        LK_TRY(lki_log_groups(s, done));
    if (saving)
        LK_TRY(lki_average_replicas(s, done));
    if (c->checkpoint.folder != NULL && saving)
        LK_TRY(save(s, done, !last));
    lki_settle(s, done);
    if (lki_must_meet(s) && !last && (saving || lki_is_due(c->eval_every, done)))
        LK_TRY(lk_barrier(s->comm));
    return last ? LK_OK : lki_membership_make(s, done);
}

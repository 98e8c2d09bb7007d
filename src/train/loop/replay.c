/* replay.c -- computes one virtual worker of one step again, for `lockstep verify`.
 *
 * The steps after the checkpoint are computed as usual.  In the last step no turns are joined, and
 * the gradients of this virtual worker are examined before they are summed.  Other virtual workers
 * compute that step only if its result is wanted (lk_replay.whole).  The journal writes what is
 * computed as the log of any run, so that a reader of logs can compare the two.
 */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/float.h"
#include "base/memory.h"
#include "base/options.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/directory.h"
#include "data/stream.h"
#include "parallel/joint.h"
#include "train/core/feed.h"
#include "train/config.h"
#include "train/core/identity.h"
#include "train/core/progress.h"
#include "train/core/run_environment.h"
#include "train/loop/loop.h"
#include "train/saves/save.h"

/* ---- Where to begin ---------------------------------------------------------------------- */

/* Finds the newest checkpoint before the step.  If there is none, the run is computed from its
 * beginning, and *later becomes the newest checkpoint of the directory, which a run that goes on
 * removes last, or nothing. */
static lk_status find_start(lk_train_config *c, const lk_replay *r, lk_train_checkpoint *later)
{
    uint64_t *steps = NULL;
    size_t    count = 0, i = 0;
    bool      exists = false;

    if (c->checkpoint.folder != NULL && access(c->checkpoint.folder, F_OK) != 0)
        return lk_fail(LK_EINVAL,
                       "`checkpoint.folder`: cannot find the directory '%s': %s; leave it out "
                       "to make all from the beginning",
                       c->checkpoint.folder, strerror(errno));
    if (c->checkpoint.folder != NULL)
        LK_TRY(lk_checkpoint_exists(c->checkpoint.folder, &exists));
    if (exists)
        LK_TRY(lki_steps_list(&steps, &count, c->checkpoint.folder));
    while (i < count && steps[i] >= r->step)
        i++;
    c->checkpoint.resume = c->checkpoint.resume_required = i < count;
    c->checkpoint.resume_step                            = i < count ? (int64_t)steps[i] : -1;
    *later = (lk_train_checkpoint){ .resume_step = -1 };
    if (i == count && count > 0)
        *later = (lk_train_checkpoint){ .folder = c->checkpoint.folder, .resume = true,
                                        .resume_step = (int64_t)steps[0] };
    if (i == count) /* from the beginning */
        c->checkpoint = (lk_train_checkpoint){ .resume_step = -1 };
    lki_free(steps);
    return LK_OK;
}

static lk_status check(const lk_train_config *c, const lk_replay *r)
{
    if (r->step == 0 || r->step > c->steps)
        return lk_fail(LK_EINVAL, "there is no step %llu: they are numbered from 1, up to %llu",
                       (unsigned long long)r->step, (unsigned long long)c->steps);
    if (r->virtual_worker >= c->virtual_workers)
        return lk_fail(LK_EINVAL, "there is no virtual worker %u: they are numbered from 0, below "
                       "%u", r->virtual_worker, c->virtual_workers);
    return LK_OK;
}

/* Completes the configuration for one worker that neither prints nor saves. */
static lk_status complete(lk_train_config *c, const lk_replay *r, lk_train_checkpoint *later)
{
    c->workers           = 1;
    c->workers_here      = 0;
    c->strategy          = NULL;
    c->shard_hosts       = 0;
    c->buddies           = false;
    c->log               = NULL;
    c->outputs           = (lk_train_outputs){ 0 };
    c->trace             = NULL;
    c->report            = NULL;
    c->quiet             = true;
    c->elastic.survives  = false;
    c->audit             = 0;
    c->elastic.rebalance = LK_REBALANCE_OFF;
    c->elastic.duplicate = LK_DUPLICATE_OFF;
    c->offload           = NULL;
    c->checkpoint.async  = false;
    if (c->elastic.backup_workers > 0)
        return lk_fail(LK_EINVAL, "what a run with `backup_workers` has dropped depends on time, "
                                  "so none of its steps can be made again");
    if (lki_is_async(c))
        return lk_fail(LK_EINVAL, "the virtual workers of a run with `exchange.async.mode` read "
                                  "versions that no checkpoint has, so none is computed again "
                                  "alone");
    if (lki_federates(c))
        return lk_fail(LK_EINVAL, "the virtual workers of a run with `exchange.clients.count` are "
                                  "clients, which are not computed again alone: train with other "
                                  "`workers` and compare the logs, or check while training with "
                                  "`audit`");
    LK_TRY(lki_pretrained_compare(c, c->checkpoint.folder));
    LK_TRY(find_start(c, r, later));
    LK_TRY(lki_train_complete(c, true)); /* another run may be using the directory */
    return check(c, r);
}

/* ---- Looking at gradients ---------------------------------------------------------------- */

static void look_at_term(lki_session *s, const lk_replay *r, const lk_grad_term *terms, uint32_t t,
                         lki_sha256 *hash)
{
    const lk_param *param  = &s->params[terms[t].param];
    const lk_tensor tensor = { param->name, LK_F32, param->shape, NULL };
    const float    *values = lk_parallel_grad(s->parallel, 0, t);
    const size_t    count = lk_shape_count(param->shape), finite = lki_finite_count(values, count);

    lki_hash_heading(hash, &tensor);
    lki_hash_elements(hash, LK_F32, values, count * sizeof *values);
    if (finite == count || r->odd == NULL)
        return;
    const lk_replay_odd odd = { terms[t].block, param->name, finite, count, values[finite] };
    r->odd(r->context, &odd);
}

static void look(lki_session *s, lk_replay *r)
{
    lki_sha256          hash;
    uint32_t            count;
    const lk_grad_term *terms = lk_model_terms(s->model, &count);

    lki_sha256_begin(&hash);
    for (uint32_t t = 0; t < count; t++)
        look_at_term(s, r, terms, t, &hash);
    lki_sha256_end(&hash, r->gradient);
    r->count = s->turn.passes[0].count;
    r->loss  = r->count > 0 ? s->turn.passes[0].loss_sum / (double)r->count : 0;
}

/* ---- The turns --------------------------------------------------------------------------- */

/* Computes a micro-batch of the step.  After the last one of the virtual worker that is replayed,
 * examines its gradients, and sets *done. */
static lk_status make_turn(lki_session *s, lk_replay *r, const lk_parallel_turn *turn, bool *done)
{
    LK_TRY(lki_feed_again(s, r->step - 1, turn->virtual_worker, turn->micro_index,
                          &s->turn.batches[0]));
    lki_session_turn(s);
    LK_TRY(lk_engine_status(s->engine));
    if (turn->virtual_worker != r->virtual_worker)
        return LK_OK;
    r->samples += s->turn.batches[0].samples;
    *done = turn->micro_index + 1 == s->micro_count;
    if (*done)
        look(s, r);
    return LK_OK;
}

/* Logs a step, and what a run logs after it. */
static lk_status log_step(lki_session *s, const lk_replay *r, const lki_step_record *record)
{
    const uint64_t  done = record->step;
    lk_train_result result;
    if (r->log == NULL)
        return LK_OK;
    LK_TRY(lki_journal_step(s->journal, record));
    LK_TRY(lki_log_outer_step(s, done));
    LK_TRY(lki_log_freeze(s, done));
    LK_TRY(lki_log_groups(s, done));
    if (r->evaluates == NULL || lk_dataset_describe(s->dataset)->validation_count == 0 ||
        !r->evaluates(r->context, done))
        return LK_OK;
    return lki_evaluate_and_say(s, done, &result);
}

/* Finishes the step, and hashes the weights.  Values that are not finite have been reported. */
static lk_status finish_whole(lki_session *s, lk_replay *r)
{
    const double    scale  = lk_parallel_scaler(s->parallel).scale;
    lki_step_record record = { .step = r->step,
                               .lr   = lk_schedule_at(&s->config->schedule, r->step - 1) };
    lk_train_result end    = { .steps = r->step };
    lk_step_result  result;
    lk_status       status = lk_parallel_finish(s->parallel, record.lr, &result);
    if (status == LK_ENONFINITE)
        return LK_OK;
    LK_TRY(status);
    record.seconds = lki_seconds() - s->begun;
    lki_session_record(s, &result, scale, &record);
    lki_session_chain(s, r->step, &result);
    LK_TRY(log_step(s, r, &record));
    LK_TRY(lki_average_replicas(s, r->step));
    LK_TRY(lki_weights_hash(s, r->weights));
    if (r->log == NULL)
        return LK_OK;
    memcpy(end.weights, r->weights, sizeof end.weights);
    LK_TRY(lki_run_hash(s, end.weights, end.run));
    return lki_journal_end(s->journal, &end);
}

static lk_status make_last(lki_session *s, lk_replay *r)
{
    lk_parallel_turn turn;
    lk_step_result   unused;
    bool             done = false;

    lki_session_clock(s, r->step, lki_seconds());
    s->alone        = true;
    s->turn.version = 0;
    if (s->turn.joint.most > 1 && !lki_turns_join(s->parallel, 1))
        return lk_fail(LK_ENOMEM, "too few buffers for the gradients of single virtual workers");
    lki_joint_begin(&s->turn.joint, 1);
    LK_TRY(lki_session_begin(s, r->step - 1));
    while ((!done || r->whole) && lk_parallel_next(s->parallel, &turn))
        if (r->whole || turn.virtual_worker == r->virtual_worker)
            LK_TRY(make_turn(s, r, &turn, &done));
    if (r->whole)
        return finish_whole(s, r);
    return done ? LK_OK : lk_parallel_finish(s->parallel, 0, &unused); /* fails, and says why */
}

/* Compares the configuration and the data of a run from its beginning with a checkpoint of the same
 * run, as a run that continues does. */
static lk_status check_later(const lki_session *s, const lk_train_checkpoint *later)
{
    lk_train_config c = *s->config;
    if (later->folder == NULL)
        return LK_OK;
    c.checkpoint = *later;
    lki_log_run run = { .config = &c, .data = lk_dataset_describe(s->dataset) };
    return lki_resume_check(&run);
}

static lk_status replay(lki_session *s, lk_replay *r, const lk_train_checkpoint *later)
{
    lki_step_record record;

    LK_TRY(lki_session_open(s));
    LK_TRY(check_later(s, later));
    if (lki_dataset_is_stream(s->dataset))
        return lk_fail(LK_EINVAL, "a stream is over when it has been read: no step of it can be "
                                  "made again");
    if (lk_model_lock_step(s->model))
        return lk_fail(LK_EINVAL, "with `batchnorm` sync no virtual worker can be made alone");
    r->from       = s->progress.start;
    r->samples    = 0;
    r->weights[0] = '\0';
    for (uint64_t step = s->progress.start; step + 1 < r->step; step++) {
        record = (lki_step_record){ .step = step + 1 };
        lki_session_clock(s, record.step, lki_seconds());
        LK_TRY(lki_session_step(s, step, &record));
        LK_TRY(log_step(s, r, &record));
    }
    return make_last(s, r);
}

lk_status lk_train_replay(const lk_train_config *config, lk_replay *r)
{
    lk_train_config     c;
    lk_train_checkpoint later;
    lk_comm            *comm = NULL;

    LK_TRY(lki_options_copy(&c, sizeof c, config, "lk_train_config"));
    LK_TRY(complete(&c, r, &later));
    c.log = r->log;
    LK_TRY(lk_comm_open_threads(&comm, 1, NULL));
    lki_session         s           = lki_session_of(&c, comm, comm);
    lki_run_environment environment = lki_run_environment_enter();
    s.replays                       = true;
    lk_status status                = replay(&s, r, &later);
    lk_error  why                   = *lk_error_last();
    lk_status closed                = lki_session_close(&s);
    lk_comm_free(comm);
    lki_run_environment_leave(&environment);
    return status == LK_OK ? closed : lki_fail_again(&why);
}

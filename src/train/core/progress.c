/* progress.c -- the progress of a run, and its end. */
#include "train/core/progress.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "parallel/balance.h"
#include "train/core/client_rounds.h"
#include "train/core/feed.h"
#include "train/core/identity.h"

/* ---- Records of a step --------------------------------------------------------------------- */

static uint64_t samples_that_count(const lki_session *s)
{
    uint64_t samples = 0;
    for (uint32_t r = 0; r < s->ranks; r++)
        samples += lki_balance_time(s->parallel, r).samples;
    return samples;
}

/* Returns the loss of a step; NaN if no client of a round counts. */
static double loss_of(const lki_session *s, const lk_step_result *result)
{
    return result->skipped && s->clients != NULL ? (double)NAN : result->loss;
}

/* Returns the targets of a step.  The count of a round is in samples. */
static uint64_t tokens_of(const lki_session *s, const lk_step_result *result)
{
    return s->clients != NULL ? result->count * lk_model_loss_rows(s->model) : result->count;
}

void lki_session_record(const lki_session *s, const lk_step_result *result, double loss_scale,
                        lki_step_record *record)
{
    lk_step_span span  = lki_step_span(s, record->step - 1);
    record->epoch      = span.epoch;
    record->samples    = span.samples;
    record->tokens     = lk_dataset_describe(s->dataset)->tokens ? tokens_of(s, result) : 0;
    record->loss       = loss_of(s, result);
    record->loss_scale = s->config->scaling.rule > LK_SCALE_NONE ? loss_scale : 0;
    record->grad_norm  = result->grad_norm;
    record->skips      = result->skipped && s->clients == NULL;
    record->stalled    = result->stalled;
    record->audited    = result->audited;
    record->moved      = result->moved;
    record->duplicated = result->duplicated;
    record->dropped    = result->dropped;
    if (s->clients != NULL) {
        record->samples = s->clients->counted = result->count;
        s->clients->drift                     = sqrt(result->square);
    }
    if (s->config->elastic.backup_workers > 0)
        record->samples = samples_that_count(s);
    record->noise   = lk_parallel_noise(s->parallel);
    record->losses  = s->clients == NULL ? *lki_losses_of(s->parallel) : (lki_losses){ 0 };
    record->skipped = lk_parallel_scaler(s->parallel).skipped;
}

void lki_session_clock(lki_session *s, uint64_t step, double now)
{
    if (s->begun_step != step)
        s->begun = now;
    s->begun_step = step;
    s->attempted  = now;
}

void lki_session_chain(lki_session *s, uint64_t done, const lk_step_result *result)
{
    char bits[17];
    lki_loss_bits(loss_of(s, result), bits);
    lki_loss_chain_add(s->progress.loss_chain, bits);
    s->progress.audited += result->audited;
    s->progress.chained = done;
}

/* ---- The end ----------------------------------------------------------------------------- */

static double clock_of(const lki_session *s)
{
    return s->config->limits.clock != NULL
               ? s->config->limits.clock(s->config->limits.clock_context)
               : lki_seconds();
}

void lki_find_end(lki_session *s)
{
    lki_run_progress *p = &s->progress;

    p->end   = lki_last_step(s->config, lk_dataset_describe(s->dataset), &p->ended);
    p->began = clock_of(s);
    if (p->start < p->end) /* otherwise the run is over: all steps done, or p->ended set */
        p->ended = lki_stopping_tires(&p->stopping, s->config) ? "patience" : NULL;
}

bool lki_time_is_over(const lki_session *s)
{
    uint32_t most = s->config->limits.time_ms;
    if (s->progress.ended != NULL && strcmp(s->progress.ended, "max-time") == 0)
        return true;
    return most > 0 && clock_of(s) - s->progress.began >= (double)most / 1e3;
}

bool lki_heed_evaluation(lki_session *s, uint64_t done, double loss, double accuracy)
{
    lki_run_progress *p = &s->progress;

    if (done < s->config->steps && !lki_is_due(s->config->eval_every, done))
        return false;
    if (p->judged != done)
        p->judged_best = lki_stopping_see(&p->stopping, s->config, done, loss, accuracy);
    p->judged = done;
    if (done < p->end && p->ended == NULL && lki_stopping_tires(&p->stopping, s->config))
        p->ended = "patience";
    return p->judged_best;
}

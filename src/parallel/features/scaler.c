/* scaler.c -- the loss scale.
 *
 * Gradients are computed too large by a factor, which the update removes.  With a dynamic scale a
 * step whose gradient is not finite is skipped (lockstep/optim.h).
 */
#include <math.h>

#include "base/hash.h"
#include "base/memory.h"
#include "parallel/features/table.h"
#include "parallel/state.h"

typedef struct {
    lk_loss_scaling scaling;
    lk_loss_scaler  scaler;
    double          scale;    /* the scale of the step in progress */
    size_t          tally_at; /* offset of a `decision` in a tally */
} scaler;

/* The scaler's part of a tally. */
typedef struct {
    lk_loss_scaler scaler; /* state after the step */
    double         scale;  /* the scale in the step */
} decision;

static scaler *scaler_of(const lk_parallel *parallel)
{
    return lki_feature_state(parallel, &lki_feature_scaler);
}

static lk_status scaler_open(lk_parallel *parallel, const lk_parallel_options *options, void **out)
{
    scaler *self = NULL;

    LK_TRY(lk_loss_scaling_check(&options->scaling));
    LK_TRY(LKI_NEW(&self, 1, "loss scale"));
    *out           = self;
    self->scaling  = lk_loss_scaling_resolve(&options->scaling);
    self->scaler   = lk_loss_scaler_begin(&options->scaling);
    self->tally_at = lki_tally_reserve(parallel, sizeof(decision));
    return LK_OK;
}

static uint64_t scaler_hash(const lk_parallel_options *options)
{
    const lk_loss_scaling scaling = lk_loss_scaling_resolve(&options->scaling);
    const double words[] = { scaling.rule, scaling.initial, scaling.window, scaling.hysteresis };
    return lki_xxh3(words, sizeof words);
}

static void scaler_take_over(lk_parallel *parallel, void *context, const void *before)
{
    scaler *self = context;
    (void)parallel;
    if (before != NULL)
        self->scaler = ((const scaler *)before)->scaler;
}

/* ---- A step ------------------------------------------------------------------------------ */

/* Returns true if the step must be skipped.  All ranks have the same sums, so all decide alike.
 * Every NaN is replaced by one pattern, because the patterns of NaNs depend on the processor. */
static bool overflows(const scaler *self, lk_step_result *result)
{
    if (!lk_loss_scaling_skips(&self->scaling) ||
        (isfinite(result->loss) && isfinite(result->grad_norm)))
        return false;
    result->loss      = isnan(result->loss) ? (double)NAN : result->loss;
    result->grad_norm = isnan(result->grad_norm) ? (double)NAN : result->grad_norm;
    return true;
}

/* Decides whether the step is skipped, and updates the loss scale. */
static lk_status scaler_reports(lk_parallel *parallel, void *context, lk_step_result *result)
{
    scaler *self     = context;
    self->scale      = self->scaler.scale;
    if (result->skipped) /* there were no samples */
        return LK_OK;
    result->skipped  = overflows(self, result);
    lk_status status = lk_loss_scaler_update(&self->scaling, &self->scaler, result->skipped);
    lk_error  error  = *lk_error_last();
    if (status == LK_OK)
        return LK_OK;
    return lk_fail(status, "step %llu: %s", (unsigned long long)parallel->step + 1, error.message);
}

static void scaler_before_update(lk_parallel *parallel, void *context, lki_tally *tally)
{
    const scaler  *self   = context;
    const decision decided = { self->scaler, self->scale };
    (void)parallel;
    lki_tally_put(tally, self->tally_at, &decided, sizeof decided);
    tally->update.step -= self->scaler.skipped; /* optimizers do not count skipped steps */
}

static void scaler_restore(lk_parallel *parallel, void *context, const lki_tally *tally,
                           lk_parallel_standing *standing)
{
    scaler  *self = context;
    decision decided;
    (void)parallel;
    lki_tally_get(tally, self->tally_at, &decided, sizeof decided);
    self->scaler         = decided.scaler;
    standing->loss_scale = decided.scale;
}

const lki_feature lki_feature_scaler = {
    .name          = "loss scale",
    .open          = scaler_open,
    .close         = lki_free,
    .hash_options  = scaler_hash,
    .take_over     = scaler_take_over,
    .reports       = scaler_reports,
    .before_update = scaler_before_update,
    .restore       = scaler_restore,
};

/* ---- Public functions -------------------------------------------------------------------- */

float lk_parallel_loss_scale(lk_parallel *parallel, uint64_t count)
{
    if (parallel->versions != NULL) /* no task has begun */
        return 1;
    parallel = lki_in_use(parallel);
    const scaler *self = scaler_of(parallel);
    if (!parallel->now.under_way) {
        lki_step_keep(parallel, lk_fail(LK_EINVAL, "lk_parallel_loss_scale() was called outside of "
                                                   "a step, which lk_parallel_begin() begins"));
        return 1;
    }
    if (self->scaling.rule == LK_SCALE_NONE)
        return 1;
    parallel->now.seed = self->scaler.scale;
    for (uint64_t n = count; n > 1; n = n / 2 + n % 2)
        parallel->now.seed *= 0.5;
    return (float)parallel->now.seed;
}

lk_loss_scaler lk_parallel_scaler(const lk_parallel *parallel)
{
    parallel = lki_in_use(parallel);
    return scaler_of(parallel)->scaler;
}

void lk_parallel_load_scaler(lk_parallel *parallel, const lk_loss_scaler *loaded)
{
    parallel = lki_in_use(parallel);
    scaler *self = scaler_of(parallel);
    if (self->scaling.rule != LK_SCALE_NONE && self->scaling.rule != LK_SCALE_FIXED)
        self->scaler = *loaded;
    self->scaler.skipped = loaded->skipped;
}

/* exchange.c -- completes and checks the options of groups and compression. */
#include <string.h>

#include "base/memory.h"
#include "data/stream.h"
#include "train/config.h"

static const double MOMENTUM = 0.9; /* of groups, where nothing else is given */

/* Returns what excludes groups; NULL if nothing does. */
static const char *why_no_groups(const lk_train_config *c)
{
    const uint32_t stage = lki_stage_of(c->strategy);
    return (stage > 1 && !lki_replicates(c)) || (c->strategy != NULL && c->strategy[0] == 's')
               ? "need `strategy` ddp or zero1: other strategies have no sums of groups"
           : c->model_options.batchnorm == LK_BATCHNORM_SYNC
               ? "need `batchnorm` ghost: sync computes statistics over all groups"
           : c->audit > 0       ? "are not audited: leave out `audit`"
           : c->noise_decay > 0 ? "hide what `noise_decay` compares: leave it out"
           : c->calls.hook != NULL    ? "have sums that no hook sees: leave out `calls.hook`"
           : c->comm_dtype > LK_F32 && !lki_replicates(c)
               ? "exchange compressed or whole FP32 gradients: leave out `comm_dtype`"
           : c->scaling.rule > LK_SCALE_NONE
               ? "do not support a loss scale: use `precision` fp32 or bf16"
           : c->elastic.rebalance == LK_REBALANCE_ON
               ? "stay where they are: leave out `rebalance`"
           : c->elastic.duplicate == LK_DUPLICATE_ON && !lki_is_async(c)
               ? "are computed once: leave out `duplicate`"
           : c->checkpoint.async
               ? "keep values that are written while the run waits: leave out `checkpoint.async`"
           : c->elastic.backup_workers > 0
               ? "need all virtual workers: leave out `backup_workers`"
               : NULL;
}

/* Checks that no worker holds the sums of too many groups.  If workers may be lost, the last one
 * holds all. */
static lk_status check_most(const lk_train_config *c)
{
    const uint32_t workers = c->elastic.survives || c->workers == 0 ? 1 : c->workers;
    const uint32_t leaves  = (c->virtual_workers + workers - 1) / workers;
    const uint32_t groups  = leaves / (c->virtual_workers / c->exchange.groups);
    const bool     sums    = (!lki_replicates(c) && !lki_is_async(c)) ||
                          c->exchange.compressor != NULL;
    if (!sums || groups <= LK_GROUPS_OF_RANK_MAX)
        return LK_OK;
    return lk_fail(LK_EINVAL,
                   "`exchange.groups` %u: one worker would hold the sums of %u groups%s, %d is the "
                   "limit; use fewer%s",
                   c->exchange.groups, groups,
                   c->elastic.survives ? " if it survived all others" : "",
                   LK_GROUPS_OF_RANK_MAX, c->elastic.survives ? "" : ", or more `workers`");
}

static lk_status check_groups(const lk_train_config *c)
{
    const uint32_t count = c->exchange.groups, width = c->virtual_workers / count;
    const char    *why   = why_no_groups(c);
    if (width == 0 || c->virtual_workers % count != 0 || (width & (width - 1)) != 0)
        return lk_fail(LK_EINVAL,
                       "`exchange.groups` %u cannot divide `virtual_workers` %u: all groups must "
                       "have the same number of virtual workers, a power of two",
                       count, c->virtual_workers);
    if (why != NULL)
        return lk_fail(LK_EINVAL, "groups (`exchange.groups` %u) %s", count, why);
    return check_most(c);
}

static lk_status check_momentum(lk_train_exchange *x)
{
    const bool has = x->feedback == LK_FEEDBACK_DGC || x->feedback == LK_FEEDBACK_SIGNUM ||
                     x->feedback == LK_FEEDBACK_EF21_SGDM;
    if (!has && x->momentum != 0)
        return lk_fail(LK_EINVAL,
                       "`exchange.momentum` goes with `exchange.feedback` dgc, signum or "
                       "ef21-sgdm, and `exchange.compressor` %s has %s: say which you want, or "
                       "leave it out",
                       x->compressor, lk_feedback_name(x->feedback));
    if (has && x->momentum == 0)
        x->momentum = MOMENTUM;
    return LK_OK;
}

static lk_status resolve(lk_train_config *c)
{
    lk_train_exchange   *x = &c->exchange;
    const lk_compressor *compressor;
    lk_compression       given = x->compression;
    LK_TRY(lk_compressor_find(&compressor, x->compressor));
    given.struct_size = sizeof given;
    LK_TRY(lk_compression_resolve(&x->compression, &given));
    const lk_exchange all = { .compressor = compressor, .feedback = x->feedback };
    x->feedback           = lk_exchange_feedback(&all);
    if (strcmp(x->compressor, "vote") == 0 && c->clip_norm > 0)
        return lk_fail(LK_EINVAL,
                       "`clip_norm` would scale votes down, whose norm is the root of the number "
                       "of parameters: leave it out, or clip the gradients of groups with "
                       "`exchange.clip`");
    if (x->error_scale != LK_ERROR_SCALE_NONE && x->feedback != LK_FEEDBACK_EF14)
        return lk_fail(LK_EINVAL,
                       "`exchange.error_scale` goes with `exchange.feedback` ef14, not with %s",
                       lk_feedback_name(x->feedback));
    if (x->error_scale != LK_ERROR_SCALE_NONE && lki_replicates(c))
        return lk_fail(LK_EINVAL, "outer steps have one rate: leave out "
                                  "`exchange.error_scale`");
    if (x->feedback == LK_FEEDBACK_DGC && !compressor->selects)
        return lk_fail(LK_EINVAL,
                       "`exchange.feedback` dgc goes with compressors that select elements: "
                       "`exchange.compressor` topk or randomk");
    const bool estimates = x->feedback == LK_FEEDBACK_EF21 ||
                           x->feedback == LK_FEEDBACK_EF21_SGDM;
    if (estimates && compressor->begin != NULL)
        return lk_fail(LK_EINVAL,
                       "`exchange.feedback` %s does not go with `exchange.compressor` %s, which "
                       "shares values from step to step; use ef14",
                       lk_feedback_name(x->feedback), compressor->name);
    if (compressor->conclude != NULL && x->feedback != LK_FEEDBACK_OFF &&
        x->feedback != LK_FEEDBACK_SIGNUM)
        return lk_fail(LK_EINVAL,
                       "`exchange.compressor` %s has no residuals to keep: use "
                       "`exchange.feedback` signum or off",
                       compressor->name);
    return check_momentum(x);
}

bool lki_sends_momenta(const lk_train_config *c)
{
    return c->optimizer.kind == LK_ONEBIT_ADAM || c->optimizer.kind == LK_ONEBIT_LAMB;
}

static lk_status check_momenta(const lk_train_config *c)
{
    const char *why = c->exchange.compressor != NULL
                          ? "sends momenta, which `exchange.compressor` does not compress: leave "
                            "out one of the two"
                      : lki_replicates(c)
                          ? "sends momenta in every step: leave out `exchange.local.steps`"
                      : c->clip_value > 0
                          ? "has no whole gradients to clip: use `clip_norm`, which clips those of "
                            "groups after `exchange.freeze_step`"
                      : c->exchange.freeze_step == 0
                          ? "needs `exchange.freeze_step`, the number of its steps that are those "
                            "of adamw or lamb, or auto"
                          : NULL;
    return why == NULL ? LK_OK
                       : lk_fail(LK_EINVAL, "`optimizer.kind` %s %s",
                                 lk_optimizer_name(c->optimizer.kind), why);
}

lk_status lki_exchange_check(lk_train_config *c)
{
    lk_train_exchange *x = &c->exchange;
    if (x->compressor != NULL && strcmp(x->compressor, "none") == 0)
        x->compressor = NULL;
    if (x->compressor != NULL)
        LK_TRY(resolve(c));
    if (lki_sends_momenta(c))
        LK_TRY(check_momenta(c));
    if ((x->compressor != NULL || lki_sends_momenta(c)) && x->groups == 0)
        x->groups = c->virtual_workers;
    return x->groups == 0 ? LK_OK : check_groups(c);
}

lk_status lki_exchange_check_span(lk_train_config *c, const lk_dataset *dataset,
                                  const lk_dataset_info *data)
{
    lk_train_exchange *x = &c->exchange;
    if (x->warmup_count == 0 || x->warmup_span > 0)
        return LK_OK;
    if (lki_dataset_is_stream(dataset) || lki_federates(c))
        return lk_fail(LK_EINVAL, "%s no epochs: give `exchange.warmup_span`, the %s of each ratio",
                       lki_federates(c) ? "rounds of clients are" : "a stream has",
                       lki_federates(c) ? "rounds" : "steps");
    x->warmup_span = lk_steps_per_epoch(lki_positions(c, data), c->global_batch, c->drop_last);
    return LK_OK;
}

bool lki_exchanges(const lk_train_config *c)
{
    return c->exchange.groups > 0;
}

bool lki_freezes_by_test(const lk_train_config *c)
{
    return lki_sends_momenta(c) && c->exchange.freeze_step == LK_START_AUTO;
}

/* Returns lk_exchange.start. */
static uint64_t start_of(const lk_train_config *c)
{
    if (!lki_sends_momenta(c))
        return c->exchange.start;
    return lki_freezes_by_test(c) ? LK_START_AUTO : c->exchange.freeze_step + 1;
}

lk_status lki_exchange_of(const lk_train_config *c, lk_exchange **out)
{
    *out = NULL;
    if (!lki_exchanges(c) || lki_is_async(c) ||
        (lki_replicates(c) && c->exchange.compressor == NULL))
        return LK_OK;
    LK_TRY(LKI_NEW(out, 1, "groups"));
    **out = (lk_exchange){ .struct_size = sizeof **out,
                           .groups      = c->exchange.groups,
                           .compression = c->exchange.compression,
                           .feedback    = c->exchange.feedback,
                           .momentum    = c->exchange.momentum,
                           .nesterov    = c->exchange.nesterov,
                           .error_scale = c->exchange.error_scale,
                           .clip        = c->exchange.clip,
                           .start        = start_of(c),
                           .warmup_count = c->exchange.warmup_count,
                           .warmup_span  = c->exchange.warmup_span,
                           .auto_after   = lki_freezes_by_test(c) ? c->schedule.warmup : 0 };
    memcpy((*out)->warmup, c->exchange.warmup, sizeof (*out)->warmup);
    (*out)->compression.struct_size = sizeof (*out)->compression;
    (*out)->compression.seed        = c->seed;
    return c->exchange.compressor == NULL
               ? LK_OK
               : lk_compressor_find(&(*out)->compressor, c->exchange.compressor);
}

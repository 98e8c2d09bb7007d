/* local.c -- completes and checks the options of replicas. */
#include <string.h>

#include "base/memory.h"
#include "train/config.h"

enum { STEPS = 500 }; /* between outer steps (DiLoCo) */

/* FedOpt (Reddi et al. 2021): its adaptivity tau is the eps of adam, adagrad and yogi. */
static const double FEDOPT_BETA2 = 0.99, FEDOPT_TAU = 1e-3, FEDOPT_LR = 0.01;

/* Returns what excludes replicas; NULL if nothing does.  lki_exchange_check() checks what excludes
 * groups of any kind. */
static const char *why_not(const lk_train_config *c)
{
    return c->elastic.survives ? "end with the first worker that is lost: leave out `on_failure` "
                                 "continue, and MIN of `workers` MIN:MAX"
           : c->exchange.local.start > 0 && lki_stage_of(c->strategy) > 1
               ? "would move virtual workers at their start: use `strategy` ddp or zero1, or leave "
                 "out `exchange.local.start`"
           : lki_sends_momenta(c)
               ? "have optimizers of their own: use `optimizer.kind` adamw"
           : c->optimizer.ema > 0 ? "have no moving averages: leave out `optimizer.ema`"
           : c->offload != NULL   ? "are in memory: leave out `offload`"
           : c->gather_dtype == LK_I8 ? "read FP32 parameters: leave out `gather_dtype`"
                                      : NULL;
}

/* Checks the fragments, as lk_parallel_open() would. */
static lk_status check_fragments(const lk_train_config *c)
{
    const lk_train_local *l    = &c->exchange.local;
    const uint64_t        each = l->steps / (l->fragments > 0 ? l->fragments : 1);
    if (l->fragments > 1 && l->steps % l->fragments != 0)
        return lk_fail(LK_EINVAL, "`exchange.local.fragments` %u do not divide "
                                  "`exchange.local.steps` %llu", l->fragments,
                       (unsigned long long)l->steps);
    if (l->delay == 0)
        return LK_OK;
    if (l->delay >= each)
        return lk_fail(LK_EINVAL, "`exchange.local.delay` %u is not less than %llu, the steps from "
                                  "one outer step to the next", l->delay,
                       (unsigned long long)each);
    if (c->exchange.compressor != NULL)
        return lk_fail(LK_EINVAL, "compressed outer gradients are sent within the outer step: "
                                  "leave out `exchange.local.delay` or `exchange.compressor`");
    return strcmp(c->model, "resnet") == 0
               ? lk_fail(LK_EINVAL, "statistics of BatchNorm are averaged within the outer step: "
                                    "leave out `exchange.local.delay`")
               : LK_OK;
}

static bool compresses(const lk_train_config *c)
{
    return c->exchange.compressor != NULL && strcmp(c->exchange.compressor, "none") != 0;
}

/* Returns what excludes averaging with neighbours only; NULL if nothing does. */
static const char *why_no_topology(const lk_train_config *c)
{
    const lk_train_local *l = &c->exchange.local;
    return l->optimizer != LK_OUTER_MEAN
               ? "has no outer steps: leave out `exchange.local.optimizer`"
           : l->fragments > 1 ? "has no outer steps: leave out `exchange.local.fragments`"
           : l->delay > 0     ? "has no outer steps: leave out `exchange.local.delay`"
           : l->alpha > 0     ? "has no outer steps: leave out `exchange.local.alpha`"
           : l->dtype > LK_F32 ? "sends FP32 weights: leave out `exchange.local.dtype`"
           : compresses(c)     ? "sends whole weights: leave out `exchange.compressor`"
           : lki_stage_of(c->strategy) > 1 ? "needs `strategy` ddp or zero1"
                                           : NULL;
}

static double or_else(double given, double otherwise)
{
    return given > 0 ? given : otherwise;
}

static bool is_adaptive(lk_outer optimizer)
{
    return optimizer == LK_OUTER_ADAM || optimizer == LK_OUTER_ADAGRAD ||
           optimizer == LK_OUTER_YOGI;
}

lk_status lki_outer_check(lk_train_config *c)
{
    lk_train_local *l          = &c->exchange.local;
    const char     *compressor = c->exchange.compressor;
    if (l->dtype > LK_F32 && compressor != NULL && strcmp(compressor, "none") != 0)
        return lk_fail(LK_EINVAL, "outer gradients are compressed by `exchange.compressor` %s or "
                                  "sent in another type: leave out `exchange.local.dtype`",
                       compressor);
    l->lr = or_else(l->lr, l->optimizer == LK_OUTER_NESTEROV ? 0.7
                           : is_adaptive(l->optimizer)       ? FEDOPT_LR
                                                             : 1);
    if (l->optimizer == LK_OUTER_NESTEROV)
        l->momentum = or_else(l->momentum, 0.9);
    return LK_OK;
}

lk_status lki_local_check(lk_train_config *c)
{
    lk_train_local *l = &c->exchange.local;
    if (lki_federates(c)) /* outer steps are the run's own steps */
        return LK_OK;
    if (l->topology != LK_TOPOLOGY_ALL && why_no_topology(c) != NULL)
        return lk_fail(LK_EINVAL, "`exchange.local.topology` %s", why_no_topology(c));
    if (l->steps == 0 && l->topology != LK_TOPOLOGY_ALL)
        l->steps = 1;
    if (l->steps == 0 && l->optimizer != LK_OUTER_MEAN)
        l->steps = STEPS;
    if (l->steps == 0)
        return l->dtype <= LK_F32 && l->start == 0
                   ? LK_OK
                   : lk_fail(LK_EINVAL, "`%s` is for replicas: give `exchange.local.steps`, too",
                             l->start > 0 ? "exchange.local.start" : "exchange.local.dtype");
    LK_TRY(check_fragments(c));
    const char *why = why_not(c);
    if (why != NULL)
        return lk_fail(LK_EINVAL, "replicas (`exchange.local.steps` %llu) %s",
                       (unsigned long long)l->steps, why);
    if (c->exchange.start > 1 || c->exchange.warmup_count > 0)
        return lk_fail(LK_EINVAL, "`%s` counts steps, but replicas (`exchange.local.steps` %llu) "
                                  "compress outer steps: leave it out",
                       c->exchange.start > 1 ? "exchange.start" : "exchange.warmup",
                       (unsigned long long)l->steps);
    LK_TRY(lki_outer_check(c));
    if (c->exchange.groups == 0)
        c->exchange.groups = c->virtual_workers;
    return LK_OK;
}

bool lki_replicates(const lk_train_config *c)
{
    return c->exchange.local.steps > 0;
}

lk_optimizer lki_outer_optimizer(const lk_train_config *c)
{
    const lk_train_local *l = &c->exchange.local;
    lk_optimizer          optimizer = { .kind     = LK_SGD,
                               .momentum = l->momentum,
                               .nesterov = l->optimizer == LK_OUTER_NESTEROV };
    if (l->optimizer == LK_OUTER_ADAGRAD)
        optimizer = (lk_optimizer){ .kind = LK_ADAGRAD, .eps = FEDOPT_TAU };
    else if (is_adaptive(l->optimizer))
        optimizer = (lk_optimizer){ .kind  = l->optimizer == LK_OUTER_ADAM ? LK_ADAMW : LK_YOGI,
                                    .beta2 = FEDOPT_BETA2,
                                    .eps   = FEDOPT_TAU,
                                    .uncorrected = true };
    return lk_optimizer_resolve(&optimizer);
}

lk_status lki_replicas_of(const lk_train_config *c, lk_replicas **out)
{
    *out = NULL;
    if (!lki_replicates(c))
        return LK_OK;
    LK_TRY(LKI_NEW(out, 1, "replicas"));
    **out = (lk_replicas){ .struct_size = sizeof **out,
                           .count       = c->exchange.groups,
                           .local_steps = c->exchange.local.steps,
                           .start       = c->exchange.local.start,
                           .optimizer   = lki_outer_optimizer(c),
                           .lr          = c->exchange.local.lr,
                           .dtype       = c->exchange.local.dtype,
                           .fragments   = c->exchange.local.fragments,
                           .delay       = c->exchange.local.delay,
                           .alpha       = c->exchange.local.alpha,
                           .topology    = c->exchange.local.topology };
    return LK_OK;
}

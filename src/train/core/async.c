/* async.c -- completes and checks the options of asynchronous training. */
#include <string.h>

#include "base/memory.h"
#include "parallel/recorded_schedule.h"
#include "train/core/delays.h"

/* Asynchrony acts like momentum (Mitliagkas et al. 2016), so these together may diverge. */
static const double   MOMENTUM_MOST = 0.9;
static const double   SQUARES_DECAY = 0.95; /* of adaptive compensation (Zheng et al. 2017) */
static const uint32_t GROUPS_MOST   = 4;

bool lki_is_async(const lk_train_config *c)
{
    return c->exchange.async.mode != LK_ASYNC_OFF;
}

/* Returns what excludes asynchronous training; NULL if nothing does.  lki_exchange_check() checks
 * what excludes groups of any kind. */
static const char *why_not(const lk_train_config *c)
{
    const char *strategy = c->strategy != NULL ? lk_strategy_name(c->strategy) : "ddp";
    return strcmp(strategy, "ddp") != 0 ? "needs `strategy` ddp"
           : c->exchange.compressor != NULL || lki_sends_momenta(c)
               ? "pushes whole gradients: leave out `exchange.compressor`, and use another "
                 "optimizer than onebit-adam and onebit-lamb"
           : lki_replicates(c) ? "has one model: leave out `exchange.local.steps` and what needs "
                               "them (`exchange.local.topology`, `exchange.local.optimizer`)"
           : lki_federates(c)  ? "has no rounds: leave out `exchange.clients.count`"
           : c->elastic.duplicate == LK_DUPLICATE_ON && c->exchange.async.record != NULL
               ? "waits for no late task if gradients are applied as they arrive: leave out "
                 "`duplicate`"
           : c->gather_dtype > LK_F32 ? "reads FP32 parameters: leave out `gather_dtype`"
           : c->offload != NULL       ? "is in memory: leave out `offload`"
                                      : NULL;
}

/* Returns what excludes several hosts, and versions of shards or spans; NULL if nothing does. */
static const char *why_neither(const lk_train_config *c)
{
    return c->elastic.duplicate == LK_DUPLICATE_ON ? "computes no task twice: leave out `duplicate`"
                                                   : NULL;
}

/* Returns what excludes asynchronous training over several hosts; NULL if nothing does. */
static const char *why_one_host(const lk_train_config *c)
{
    const lk_train_async *a      = &c->exchange.async;
    const bool            shards = a->consistency != LK_CONSISTENCY_MODEL;
    return c->elastic.survives
               ? "ends with the first worker that is lost: leave out `on_failure` continue, and "
                 "MIN of `workers` MIN:MAX; `restart` goes on from a checkpoint"
           : shards && a->compensation > 0 && a->replay == NULL
               ? "has what a task has read of shards or spans on one host only: leave out "
                 "`exchange.async.compensation` or `exchange.async.consistency`, or use one host"
           : a->drops_late && a->mode == LK_ASYNC_LIVE && a->replay == NULL
               ? "records late gradients on one host only: leave out `exchange.async.drops_late`, "
                 "use one host, or use `exchange.async.mode` virtual"
               : why_neither(c);
}

lk_status lki_async_check_hosts(const lk_train_config *c, uint32_t hosts)
{
    const char *why = lki_is_async(c) && hosts > 1 ? why_one_host(c) : NULL;
    return why == NULL ? LK_OK
                       : lk_fail(LK_EINVAL, "asynchronous training (`exchange.async.mode`) over "
                                            "several hosts %s", why);
}

/* Fails if groups that take turns have a larger staleness than the bound. */
static lk_status check_bound(const lk_train_config *c)
{
    const lk_train_async *a     = &c->exchange.async;
    const uint32_t        least = c->exchange.groups / a->aggregate - 1;
    if (a->drops_late && (a->staleness == 0 || !a->in_versions))
        return lk_fail(LK_EINVAL, "`exchange.async.drops_late` needs a bound in versions: give "
                                  "`exchange.async.staleness` versions:T");
    if (a->staleness == 0 || !a->in_versions || a->drops_late || a->staleness - 1 >= least)
        return LK_OK;
    return lk_fail(LK_EINVAL, "`exchange.async.staleness` versions:%u: %u groups, of which each "
                              "has a task, have a staleness of %u at least; give versions:%u, "
                              "raise `exchange.async.aggregate`, lower `exchange.groups`, or "
                              "give `exchange.async.drops_late`",
                   a->staleness - 1, c->exchange.groups, least, least);
}

/* Fails if a slow group is none, or is there twice. */
static lk_status check_slow(const lk_train_config *c)
{
    const lk_train_async *a = &c->exchange.async;
    for (uint32_t i = 0; i < a->slow_count; i++) {
        if (a->slow_group[i] >= c->exchange.groups)
            return lk_fail(LK_EINVAL, "`exchange.async.slow_factor`: there is no group %u; the %u "
                                      "groups are numbered from 0", a->slow_group[i],
                           c->exchange.groups);
        for (uint32_t k = 0; k < i; k++)
            if (a->slow_group[k] == a->slow_group[i])
                return lk_fail(LK_EINVAL, "`exchange.async.slow_factor`: group %u has two factors; "
                                          "give one", a->slow_group[i]);
    }
    return LK_OK;
}

static lk_status check_numbers(const lk_train_config *c)
{
    const lk_train_async *a      = &c->exchange.async;
    const uint32_t        groups = c->exchange.groups;
    if (groups % a->aggregate != 0)
        return lk_fail(LK_EINVAL, "`exchange.async.aggregate` %u does not divide `exchange.groups` "
                                  "%u, whose gradients make a step", a->aggregate, groups);
    if (a->compensation > 0 && a->aggregate > 1)
        return lk_fail(LK_EINVAL, "`exchange.async.compensation` corrects single gradients: leave "
                                  "out `exchange.async.aggregate`");
    LK_TRY(check_slow(c));
    LK_TRY(check_bound(c));
    return c->workers <= groups
               ? LK_OK
               : lk_fail(LK_EINVAL, "`workers` %u are more than `exchange.groups` %u, of which "
                                    "each has one task at a time; lower `workers`, or raise the "
                                    "groups", c->workers, groups);
}

/* Returns what excludes versions of shards or spans; NULL if nothing does. */
static const char *why_no_shards(const lk_train_config *c)
{
    const lk_train_async *a = &c->exchange.async;
    return a->mode != LK_ASYNC_LIVE ? "is of live runs: leave it out, or use "
                                      "`exchange.async.mode` live"
           : a->aggregate > 1 ? "applies single gradients: leave out `exchange.async.aggregate`"
           : a->staleness > 0 && a->in_versions
               ? "has versions of its own: give `exchange.async.staleness` S, a bound in tasks"
           : c->optimizer.kind == LK_LARS || c->optimizer.kind == LK_LAMB
               ? "does not compute norms of tensors: use another optimizer than lars and lamb"
               : why_neither(c);
}

static lk_status check_consistency(lk_train_config *c)
{
    lk_train_async *a = &c->exchange.async;
    if (a->shards > 0 && a->consistency != LK_CONSISTENCY_SHARD)
        return lk_fail(LK_EINVAL, "`exchange.async.shards` needs `exchange.async.consistency` "
                                  "shard");
    if (a->consistency == LK_CONSISTENCY_MODEL)
        return LK_OK;
    if (a->consistency == LK_CONSISTENCY_SHARD && a->shards == 0)
        a->shards = LK_SHARDS_DEFAULT;
    const char *why = why_no_shards(c);
    return why == NULL ? LK_OK
                       : lk_fail(LK_EINVAL, "`exchange.async.consistency` %s %s",
                                 a->consistency == LK_CONSISTENCY_SHARD ? "shard" : "span", why);
}

/* A plan needs no file, a run does. */
static lk_status check_live(const lk_train_async *a, bool runs)
{
    if (a->mode != LK_ASYNC_LIVE)
        return LK_OK;
    if (a->record != NULL && a->replay != NULL)
        return lk_fail(LK_EINVAL, "`exchange.async.record` and `exchange.async.replay` contradict "
                                  "each other: a replay is written down already; leave one out");
    if (runs && a->record == NULL && a->replay == NULL)
        return lk_fail(LK_EINVAL, "`exchange.async.mode` live needs `exchange.async.record` FILE, "
                                  "which gets the schedule, or `exchange.async.replay` FILE, which "
                                  "has one");
    if (a->delays != LK_DELAYS_CONSTANT || a->slow_count > 0)
        return lk_fail(LK_EINVAL, "`exchange.async.delays` and `exchange.async.slow_factor` are of "
                                  "simulated schedules: leave them out, or use "
                                  "`exchange.async.mode` virtual");
    return LK_OK;
}

static void fill(const lk_train_config *c, lk_async *out)
{
    const lk_train_async *a = &c->exchange.async;
    *out = (lk_async){ .struct_size       = sizeof *out,
                       .groups            = c->exchange.groups,
                       .aggregate         = a->aggregate,
                       .bounded           = a->staleness > 0,
                       .in_versions       = a->staleness > 0 && a->in_versions,
                       .drops_late        = a->drops_late,
                       .staleness         = a->staleness > 0 ? a->staleness - 1 : 0,
                       .delays            = a->delays,
                       .spread            = a->spread,
                       .slow_count        = a->slow_count,
                       .rate_by_staleness = a->rate_by_staleness,
                       .compensation      = a->compensation,
                       .steps             = c->steps,
                       .record            = a->record != NULL || a->mode != LK_ASYNC_LIVE ||
                                                    a->replay != NULL
                                                ? a->record
                                                : "", /* of a plan */
                       .replay            = a->replay,
                       .consistency       = a->consistency,
                       .shards            = a->shards };
    memcpy(out->slow_group, a->slow_group, sizeof out->slow_group);
    memcpy(out->slow_factor, a->slow_factor, sizeof out->slow_factor);
}

/* Reads the schedule of a replay, so that a file that is none fails before workers are started. */
static lk_status check_replay(const lk_train_config *c)
{
    lk_async async;
    if (c->exchange.async.replay == NULL)
        return LK_OK;
    fill(c, &async);
    if (lki_recorded_check(&async, c->virtual_workers, c->seed) == LK_OK)
        return LK_OK;
    const lk_error why = *lk_error_last();
    return lk_fail(why.status, "`exchange.async.replay`: %.1000s", why.message);
}

lk_status lki_async_check(lk_train_config *c, bool runs)
{
    if (!lki_is_async(c))
        return LK_OK;
    const char *why = why_not(c);
    if (why != NULL)
        return lk_fail(LK_EINVAL, "asynchronous training (`exchange.async.mode`) %s", why);
    LK_TRY(check_live(&c->exchange.async, runs));
    if (c->exchange.groups == 0)
        c->exchange.groups = c->virtual_workers;
    if (c->exchange.async.aggregate == 0)
        c->exchange.async.aggregate = 1;
    LK_TRY(check_consistency(c));
    LK_TRY(lki_async_check_hosts(c, c->workers_here > 0 && c->workers_here < c->workers ? 2 : 1));
    c->optimizer.mean_square = c->exchange.async.adaptive ? SQUARES_DECAY : 0;
    LK_TRY(check_numbers(c));
    LK_TRY(lki_trace_check(c));
    return runs ? check_replay(c) : LK_OK;
}

lk_status lki_async_of(const lk_train_config *c, lk_async **out)
{
    *out = NULL;
    if (!lki_is_async(c))
        return LK_OK;
    LK_TRY(LKI_NEW(out, 1, "a schedule"));
    fill(c, *out);
    return LK_OK;
}

/* Predicts with the times of tasks that the run would have. */
static lk_status forecast(const lk_train_config *c, const lk_async *made, lk_async_forecast *out)
{
    const lk_dataset_options options = lki_dataset_options(c);
    lk_async                 async   = *made;
    lk_dataset              *dataset = NULL;
    lki_delays              *delays  = NULL;
    lk_status                status  = LK_OK;
    if (made->delays == LK_DELAYS_GIVEN)
        status = lk_dataset_open(&dataset, c->data.source, &options);
    if (status == LK_OK && dataset != NULL)
        status = lki_delays_open(&delays, c, dataset);
    async.time         = lki_delays_time;
    async.time_context = delays;
    if (status == LK_OK)
        status = lk_async_predict(out, &async, c->virtual_workers, c->seed, c->workers);
    lki_delays_close(delays);
    lk_dataset_free(dataset);
    return status;
}

lk_status lki_async_forecast(const lk_train_config *c, lk_async_forecast *out)
{
    lk_async *async = NULL;
    *out = (lk_async_forecast){ 0 };
    if (c->exchange.async.mode != LK_ASYNC_VIRTUAL)
        return LK_OK;
    LK_TRY(lki_async_of(c, &async));
    const lk_status status = forecast(c, async, out);
    lki_free(async);
    return status;
}

bool lki_async_adds_momentum(const lk_train_config *c)
{
    const lk_train_async *a = &c->exchange.async;
    return lki_is_async(c) && a->aggregate < c->exchange.groups && a->compensation <= 0 &&
           !a->rate_by_staleness && c->exchange.groups > GROUPS_MOST &&
           c->optimizer.kind == LK_SGD && c->optimizer.momentum >= MOMENTUM_MOST;
}

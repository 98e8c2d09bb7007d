/* options.c -- the options of replicas and of the objects that they consist of.
 *
 * With at least as many ranks as replicas, the ranks are divided into R parts of neighbours, one
 * for each replica.  Otherwise the replicas are divided among the ranks.  So no rank has a part of
 * one replica and a part of another, and the ranks of a replica need no others during its steps.
 *
 * The outer weights are an object of all ranks, of which each replica is a virtual worker.  But an
 * object has at least as many virtual workers as ranks.  So a replica has `leaves` neighbouring
 * ones, a power of two: the first has the replica's gradient, and the others have none.  By the
 * canonical tree their sum is that of the first.
 */
#include <string.h>

#include "base/options.h"
#include "parallel/replicas/internal.h"

/* ---- Options ----------------------------------------------------------------------------- */

/* Returns what excludes replicas; NULL if nothing does. */
static const char *why_not(const lk_parallel_options *o)
{
    return o->hook != NULL       ? "have virtual workers that no hook sees: leave out `hook`"
           : o->lock_step          ? "do not compute virtual workers in lock step"
           : o->audit > 0        ? "are not audited: leave out `audit`"
           : o->noise_decay > 0  ? "have no noise scale: leave out `noise_decay`"
           : o->rebalance        ? "stay where they are: leave out `rebalance`"
           : o->duplicate        ? "are computed once: leave out `duplicate`"
           : o->backups > 0      ? "need all virtual workers: leave out `backups`"
           : o->scaling.rule > LK_SCALE_NONE ? "do not support a loss scale"
           : o->survives         ? "cannot go on after a loss: leave out `survives`"
           : o->gather_dtype == LK_I8 ? "read FP32 parameters: leave out `gather_dtype` LK_I8"
           : o->offload != NULL  ? "are in memory: leave out `offload`"
           : o->optimizer.kind == LK_OPTIMIZER_NONE
               ? "are updated by the library: choose another `optimizer.kind` than none"
           : o->optimizer.kind == LK_ONEBIT_ADAM || o->optimizer.kind == LK_ONEBIT_LAMB
               ? "have optimizers of their own: use adamw"
           : o->optimizer.ema > 0 ? "have no moving averages: leave out `ema`"
           : o->unused != LK_UNUSED_ZERO ? "need `unused` LK_UNUSED_ZERO"
                                         : NULL;
}

/* Returns true for strategies that deal virtual workers in rounds. */
static bool deals_in_rounds(const char *strategy)
{
    const char *name = strategy != NULL ? lk_strategy_name(strategy) : "ddp";
    return strcmp(name, "zero2") == 0 || strcmp(name, "zero3") == 0 || strcmp(name, "hybrid") == 0;
}

static lk_status check_fragments(const lk_parallel_options *o, const lk_replicas *r)
{
    if (r->local_steps % r->fragments != 0)
        return lk_fail(LK_EINVAL, "%u fragments do not divide %llu local steps", r->fragments,
                       (unsigned long long)r->local_steps);
    if (r->delay >= r->local_steps / r->fragments && r->delay > 0)
        return lk_fail(LK_EINVAL, "`delay` %u is not less than %llu, the steps from one outer step "
                                  "to the next: lower `delay` or `fragments`",
                       r->delay, (unsigned long long)(r->local_steps / r->fragments));
    if (!(r->alpha >= 0 && r->alpha < 1))
        return lk_fail(LK_EINVAL, "`alpha` is %g; give a number from 0 to below 1", r->alpha);
    if (r->delay > 0 && o->exchange != NULL)
        return lk_fail(LK_EINVAL, "compressed outer gradients are sent within the outer step: "
                                  "leave out `delay` or `exchange`");
    if (r->delay > 0 && o->state_count > 0)
        return lk_fail(LK_EINVAL, "running state, as that of BatchNorm, is averaged within the "
                                  "outer step: leave out `delay`");
    return LK_OK;
}

/* Returns what excludes averaging with neighbours only; NULL if nothing does. */
static const char *why_no_topology(const lki_replicas *replicas, const lk_parallel_options *o)
{
    const lk_replicas *r = &replicas->options;
    const char *strategy = o->strategy != NULL ? lk_strategy_name(o->strategy) : "ddp";
    return strcmp(strategy, "ddp") != 0 && strcmp(strategy, "zero1") != 0
               ? "needs `strategy` ddp or zero1"
           : o->exchange != NULL ? "sends whole weights: leave out `exchange`"
           : r->dtype > LK_F32   ? "sends FP32 weights: leave out `replicas.dtype`"
           : r->fragments > 1 || r->delay > 0 || r->alpha > 0
               ? "has no outer steps: leave out `replicas.fragments`, `delay` and `alpha`"
           : !replicas->mean ? "has no outer optimizer but the mean: leave out "
                               "`replicas.optimizer` and `replicas.lr`"
                             : NULL;
}

static lk_status check_topology(const lki_replicas *replicas, const lk_parallel_options *o)
{
    static const char *const  names[]  = { "all", "ring", "exponential", "pairs" };
    const lk_replica_topology topology = replicas->options.topology;
    if (topology == LK_TOPOLOGY_ALL)
        return LK_OK;
    if ((unsigned)topology > LK_TOPOLOGY_PAIRS)
        return lk_fail(LK_EINVAL, "there is no topology %u", (unsigned)topology);
    const char *why = why_no_topology(replicas, o);
    return why == NULL ? LK_OK
                       : lk_fail(LK_EINVAL, "`replicas.topology` %s %s", names[topology], why);
}

static lk_status check(const lk_parallel_options *o, const lk_replicas *r, uint32_t ranks)
{
    const char    *why   = why_not(o);
    const uint32_t width = o->virtual_workers / r->count;
    if (width == 0 || o->virtual_workers % r->count != 0 || (width & (width - 1)) != 0)
        return lk_fail(LK_EINVAL,
                       "%u replicas cannot divide %u virtual workers: all replicas must have the "
                       "same number of virtual workers, a power of two",
                       r->count, o->virtual_workers);
    if (o->virtual_workers < ranks)
        return lk_fail(LK_EINVAL,
                       "%u workers are more than the %u virtual workers; raise `virtual_workers` "
                       "or lower `workers`",
                       ranks, o->virtual_workers);
    if (o->exchange != NULL && o->exchange->groups != 0 && o->exchange->groups != r->count)
        return lk_fail(LK_EINVAL, "%u groups exchange the outer gradients of %u replicas: give as "
                                  "many", o->exchange->groups, r->count);
    if (!(r->lr > 0))
        return lk_fail(LK_EINVAL, "the outer learning rate is %g; give a positive one", r->lr);
    if (r->start > 0 && deals_in_rounds(o->strategy))
        return lk_fail(LK_EINVAL, "with replicas from step %llu on, strategy %s would move virtual "
                                  "workers: use `strategy` ddp or zero1, or `start` 0",
                       (unsigned long long)r->start, lk_strategy_name(o->strategy));
    LK_TRY(check_fragments(o, r));
    return why == NULL ? LK_OK : lk_fail(LK_EINVAL, "replicas %s", why);
}

lk_status lki_replicas_read(lki_replicas *replicas, const lk_parallel_options *options,
                            uint32_t ranks)
{
    lk_replicas *r = &replicas->options;
    LK_TRY(lki_options_copy(r, sizeof *r, options->replicas, "lk_replicas"));
    if (r->count == 0)
        r->count = options->virtual_workers;
    if (r->local_steps == 0)
        r->local_steps = 1;
    if (r->lr == 0)
        r->lr = 1;
    if (r->fragments == 0)
        r->fragments = 1;
    LK_TRY(check(options, r, ranks));
    replicas->mean = r->optimizer.kind == LK_SGD && r->optimizer.momentum == 0 &&
                     r->optimizer.weight_decay == 0 && r->lr == 1 && r->dtype <= LK_F32 &&
                     options->exchange == NULL;
    if (options->exchange != NULL) {
        LK_TRY(lki_options_copy(&replicas->exchange, sizeof replicas->exchange, options->exchange,
                                "lk_exchange"));
        replicas->exchange.groups = r->count;
    }
    LK_TRY(check_topology(replicas, options));
    replicas->seed   = options->seed;
    replicas->width  = options->virtual_workers / r->count;
    replicas->leaves = 1;
    while (replicas->leaves * r->count < ranks)
        replicas->leaves *= 2;
    return LK_OK;
}

/* ---- Ranks ------------------------------------------------------------------------------- */

lki_seats lki_replica_seats(const lki_replicas *replicas, uint32_t replica, uint32_t ranks)
{
    const uint32_t count = replicas->options.count;
    lki_seats      seats = { 0, 1 };
    if (ranks >= count)
        lki_virtual_range(ranks, count, replica, &seats.first, &seats.count);
    else
        seats.first = lki_share_rank(&(lki_dealing){ .leaves = count, .ranks = ranks }, replica);
    return seats;
}

void lki_replicas_deal(const lki_replicas *replicas, uint32_t width, uint32_t ranks,
                       uint32_t *bounds)
{
    const uint32_t count = replicas->options.count;
    for (uint32_t r = count; r-- > 0;) { /* the first replica of a rank comes last */
        const lki_seats seats = lki_replica_seats(replicas, r, ranks);
        for (uint32_t i = 0; i < seats.count; i++) {
            uint32_t first, some;
            lki_virtual_range(width, seats.count, i, &first, &some);
            bounds[seats.first + i] = r * width + first;
        }
    }
    bounds[ranks] = count * width;
}

/* ---- Options of the objects --------------------------------------------------------------- */

lk_parallel_options lki_replicas_outer(const lki_replicas *replicas, uint32_t fragment,
                                       const lk_parallel_options *o, lk_parallel_state *states)
{
    for (uint32_t i = 0; i < o->state_count; i++) {
        states[i]          = o->states[i];
        states[i].momentum = 1; /* replaced by the mean of the replicas */
    }
    return (lk_parallel_options){ .struct_size        = sizeof(lk_parallel_options),
                                  .virtual_workers    = replicas->options.count * replicas->leaves,
                                  .bucket_bytes       = o->bucket_bytes,
                                  .first_bucket_bytes = o->first_bucket_bytes,
                                  .optimizer          = replicas->options.optimizer,
                                  .unused             = LK_UNUSED_ZERO,
                                  .seed               = o->seed,
                                  .exec               = o->exec,
                                  .states             = states,
                                  .state_count = fragment + 1 < replicas->options.fragments
                                                     ? 0 : o->state_count,
                                  .comm_dtype         = replicas->options.dtype,
                                  .grad_algorithm     = o->grad_algorithm,
                                  .exchange = o->exchange != NULL ? &replicas->exchange : NULL };
}

lk_parallel_options lki_replicas_inner(const lki_replicas *replicas, const lk_parallel_options *o)
{
    lk_parallel_options inner = *o;
    inner.virtual_workers     = replicas->width;
    inner.replicas            = NULL;
    inner.exchange            = NULL;
    inner.gather_dtype        = LK_F32; /* else hosts may have no FP32 values to average */
    return inner;
}

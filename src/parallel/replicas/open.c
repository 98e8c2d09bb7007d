/* open.c -- opens replicas: which ranks have which, and the objects of each rank.
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
#include "base/memory.h"
#include "base/options.h"
#include "parallel/replicas/internal.h"

/* ---- Options ----------------------------------------------------------------------------- */

/* Returns what excludes replicas; NULL if nothing does. */
static const char *why_not(const lk_parallel_options *o)
{
    const char *strategy = o->strategy != NULL ? lk_strategy_name(o->strategy) : "ddp";
    if (strcmp(strategy, "ddp") != 0 && strcmp(strategy, "zero1") != 0)
        return "need `strategy` ddp or zero1";
    return o->lock_step          ? "do not compute virtual workers in lock step"
           : o->audit > 0        ? "are not audited: leave out `audit`"
           : o->noise_decay > 0  ? "have no noise scale: leave out `noise_decay`"
           : o->rebalance        ? "stay where they are: leave out `rebalance`"
           : o->duplicate        ? "are computed once: leave out `duplicate`"
           : o->backups > 0      ? "need all virtual workers: leave out `backups`"
           : o->scaling.rule > LK_SCALE_NONE ? "do not support a loss scale"
           : o->survives         ? "cannot go on after a loss: leave out `survives`"
           : o->gather_dtype == LK_I8 ? "read FP32 parameters: leave out `gather_dtype` LK_I8"
           : o->offload != NULL  ? "are in memory: leave out `offload`"
           : o->optimizer.ema > 0 ? "have no moving averages: leave out `ema`"
           : o->unused != LK_UNUSED_ZERO ? "need `unused` LK_UNUSED_ZERO"
                                         : NULL;
}

static lk_status check(const lk_parallel_options *o, const lk_replicas *r)
{
    const char    *why   = why_not(o);
    const uint32_t width = o->virtual_workers / r->count;
    if (width == 0 || o->virtual_workers % r->count != 0 || (width & (width - 1)) != 0)
        return lk_fail(LK_EINVAL,
                       "%u replicas cannot divide %u virtual workers: all replicas must have the "
                       "same number of virtual workers, a power of two",
                       r->count, o->virtual_workers);
    if (!(r->lr > 0))
        return lk_fail(LK_EINVAL, "the outer learning rate is %g; give a positive one", r->lr);
    return why == NULL ? LK_OK : lk_fail(LK_EINVAL, "replicas %s", why);
}

static lk_status read_options(lki_replicas *replicas, const lk_parallel_options *options)
{
    lk_replicas *r = &replicas->options;
    LK_TRY(lki_options_copy(r, sizeof *r, options->replicas, "lk_replicas"));
    if (r->count == 0)
        r->count = options->virtual_workers;
    if (r->local_steps == 0)
        r->local_steps = 1;
    if (r->lr == 0)
        r->lr = 1;
    replicas->width = options->virtual_workers / r->count;
    return check(options, r);
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

lk_parallel *lki_replica_here(const lki_replicas *replicas, uint32_t replica)
{
    const bool here = replica >= replicas->first && replica - replicas->first < replicas->served;
    return here ? replicas->of[replica - replicas->first].model : NULL;
}

/* Finds the replicas of this rank, and the number of virtual workers of `outer` for each. */
static void find_own(lki_replicas *replicas, uint32_t ranks, uint32_t rank)
{
    const uint32_t count = replicas->options.count;
    replicas->served     = 1;
    replicas->leaves     = 1;
    replicas->most       = (count + ranks - 1) / ranks;
    if (ranks < count) {
        lki_virtual_range(count, ranks, rank, &replicas->first, &replicas->served);
        return;
    }
    replicas->first = lki_share_rank(&(lki_dealing){ .leaves = ranks, .ranks = count }, rank);
    while (replicas->leaves * count < ranks)
        replicas->leaves *= 2;
}

/* Writes the first virtual worker of each rank, if a replica has `width` virtual workers. */
static void deal(const lki_replicas *replicas, uint32_t width, uint32_t ranks, uint32_t *bounds)
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

/* ---- Objects ----------------------------------------------------------------------------- */

static lk_status open_outer(lk_parallel *parallel, const lk_param *params, uint32_t param_count,
                            const lk_parallel_options *options)
{
    lki_replicas      *replicas = parallel->replicas;
    lk_parallel_state *states   = NULL;
    LK_TRY(LKI_NEW(&states, options->state_count + 1, "running state"));
    for (uint32_t i = 0; i < options->state_count; i++) {
        states[i]          = options->states[i];
        states[i].momentum = 1; /* replaced by the mean of the replicas */
    }
    const lk_parallel_options outer = { .struct_size     = sizeof outer,
                                        .virtual_workers = replicas->options.count *
                                                           replicas->leaves,
                                        .bucket_bytes    = options->bucket_bytes,
                                        .first_bucket_bytes = options->first_bucket_bytes,
                                        .optimizer       = replicas->options.optimizer,
                                        .unused          = LK_UNUSED_ZERO,
                                        .seed            = options->seed,
                                        .exec            = options->exec,
                                        .states          = states,
                                        .state_count     = options->state_count,
                                        .comm_dtype      = replicas->options.dtype,
                                        .exchange        = options->exchange };
    lk_status status = lki_parallel_open_dealt(&replicas->outer, parallel->comm, params,
                                               param_count, &outer, 1, replicas->outer_bounds);
    lki_free(states);
    return status;
}

/* Opens a replica, on the ranks that have it.  Collective over all ranks. */
static lk_status open_replica(lk_parallel *parallel, uint32_t number, const lk_param *params,
                              uint32_t param_count, const lk_parallel_options *options,
                              uint32_t joint)
{
    lki_replicas       *replicas = parallel->replicas;
    lk_parallel_options inner    = *options;
    const bool          mine     = number >= replicas->first &&
                      number - replicas->first < replicas->served;
    const lki_seats seats = lki_replica_seats(replicas, number, parallel->ranks);
    const bool      color = parallel->rank - seats.first < seats.count;
    lk_comm        *comm  = NULL;

    LK_ASSERT(mine == color);
    LK_TRY(lk_comm_split(&comm, parallel->comm, mine ? 0 : LK_NO_COLOR, parallel->rank));
    if (!mine)
        return LK_OK;
    lki_replica *replica  = &replicas->of[number - replicas->first];
    replica->comm         = comm;
    inner.virtual_workers = replicas->width;
    inner.replicas        = NULL;
    inner.exchange        = NULL;
    inner.gather_dtype    = LK_F32; /* else hosts may have no FP32 values to average */
    return lki_parallel_open_dealt(&replica->model, comm, params, param_count, &inner, joint, NULL);
}

static lk_status open_tables(lk_parallel *parallel, const lk_param *params, uint32_t param_count)
{
    lki_replicas  *replicas = parallel->replicas;
    const uint32_t ranks    = parallel->ranks;
    LK_TRY(LKI_NEW(&replicas->of, replicas->served, "replicas"));
    LK_TRY(LKI_NEW(&replicas->bounds, (size_t)ranks + 1, "shares of ranks"));
    LK_TRY(LKI_NEW(&replicas->outer_bounds, (size_t)ranks + 1, "shares of ranks"));
    for (uint32_t p = 0; p < param_count; p++)
        replicas->largest = lki_max(replicas->largest, lk_shape_count(params[p].shape));
    deal(replicas, replicas->width, ranks, replicas->bounds);
    deal(replicas, replicas->leaves, ranks, replicas->outer_bounds);
    LK_TRY(LKI_NEW(&replicas->times, ranks, "times of ranks"));
    return LKI_NEW(&replicas->scratch, replicas->largest, "a parameter of a replica");
}

/* Fills in the fields of `parallel` that describe it as a whole. */
static lk_status describe(lk_parallel *parallel, const lk_parallel_options *options)
{
    const lki_replicas *replicas = parallel->replicas;
    LK_TRY(lki_world_of(&parallel->world, parallel->comm));
    parallel->ranks       = parallel->world.ranks;
    parallel->leaves      = options->virtual_workers;
    parallel->micro_count = options->micro_count ? options->micro_count : 1;
    parallel->optimizer   = replicas->options.optimizer;
    if (parallel->leaves < parallel->ranks)
        return lk_fail(LK_EINVAL,
                       "%u workers are more than the %u virtual workers; raise `virtual_workers` "
                       "or lower `workers`",
                       parallel->ranks, parallel->leaves);
    return LK_OK;
}

static void deal_all(lk_parallel *parallel)
{
    parallel->dealing = (lki_dealing){ .leaves = parallel->leaves,
                                       .ranks  = parallel->ranks,
                                       .bounds = parallel->replicas->bounds };
    parallel->share   = lki_share_of(&parallel->dealing, parallel->rank);
}

lk_status lki_replicas_open(lk_parallel *parallel, const lk_param *params, uint32_t param_count,
                            const lk_parallel_options *options, uint32_t joint)
{
    LK_TRY(LKI_NEW(&parallel->replicas, 1, "replicas"));
    lki_replicas *replicas = parallel->replicas;
    LK_TRY(read_options(replicas, options));
    LK_TRY(describe(parallel, options));
    find_own(replicas, parallel->ranks, parallel->rank);
    replicas->turn = replicas->served;
    LK_TRY(open_tables(parallel, params, param_count));
    deal_all(parallel);
    LK_TRY(lki_replicas_open_reports(parallel));
    LK_TRY(open_outer(parallel, params, param_count, options));
    for (uint32_t r = 0; r < replicas->options.count; r++)
        LK_TRY(open_replica(parallel, r, params, param_count, options, joint));
    return LK_OK;
}

void lki_replicas_free(lki_replicas *replicas)
{
    if (replicas == NULL)
        return;
    for (uint32_t i = 0; replicas->of != NULL && i < replicas->served; i++) {
        lk_parallel_free(replicas->of[i].model);
        lk_comm_free(replicas->of[i].comm);
    }
    lk_parallel_free(replicas->outer);
    lki_free(replicas->of);
    lki_free(replicas->bounds);
    lki_free(replicas->outer_bounds);
    lki_free(replicas->times);
    lki_free(replicas->reports);
    lki_free(replicas->scratch);
    lki_free(replicas);
}

/* open.c -- opens replicas: the objects of each rank. */
#include <string.h>

#include "base/memory.h"
#include "parallel/replicas/gossip.h"

/* ---- Ranks ------------------------------------------------------------------------------- */

lk_parallel *lki_replica_here(const lki_replicas *replicas, uint32_t replica)
{
    const bool here = replica >= replicas->first && replica - replicas->first < replicas->served;
    return here ? replicas->of[replica - replicas->first].model : NULL;
}

/* Finds the replicas of this rank, and the largest number that a rank has. */
static void find_own(lki_replicas *replicas, uint32_t ranks, uint32_t rank)
{
    const uint32_t count = replicas->options.count;
    replicas->served     = 1;
    replicas->most       = (count + ranks - 1) / ranks;
    if (ranks < count) {
        lki_virtual_range(count, ranks, rank, &replicas->first, &replicas->served);
        return;
    }
    replicas->first = lki_share_rank(&(lki_dealing){ .leaves = ranks, .ranks = count }, rank);
}

/* ---- Objects ----------------------------------------------------------------------------- */

static lk_status open_fragment(lk_parallel *parallel, uint32_t fragment, const lk_param *params,
                               const lk_parallel_options *options)
{
    const lki_replicas *replicas = parallel->replicas;
    lki_fragment       *f        = &replicas->fragments[fragment];
    lk_parallel_state  *states   = NULL;
    const lki_part      part     = { .joint       = 1,
                                     .first_param = f->first,
                                     .bounds      = replicas->outer_bounds };
    LK_TRY(LKI_NEW(&states, options->state_count + 1, "running state"));
    const lk_parallel_options outer = lki_replicas_outer(replicas, fragment, options, states);
    lk_status status = lki_parallel_open_part(&f->outer, parallel->comm, params + f->first,
                                              f->count, &outer, &part);
    lki_free(states);
    if (status == LK_OK) {
        f->outer->effects.replaces = replicas->mean;
        f->outer->effects.replicas = replicas->options.count;
        f->outer->effects.each     = replicas->width;
    }
    return status;
}

/* Adds to a failure the replica that it is about. */
static lk_status name_replica(const lki_replicas *replicas, uint32_t number, lk_status status)
{
    const lk_error failure = *lk_error_last();
    const uint32_t hosts   = lk_comm_hosts(replicas->comm);
    if (status == LK_OK)
        return LK_OK;
    return lk_fail(status, "replica %u, which is on %u host%s: %s", number, hosts,
                   hosts == 1 ? "" : "s", failure.message);
}

/* Opens the replicas of this rank, on a communicator of the ranks that have them.  Collective over
 * all ranks. */
static lk_status open_own(lk_parallel *parallel, const lk_param *params, uint32_t param_count,
                          const lk_parallel_options *options, uint32_t joint)
{
    lki_replicas             *replicas = parallel->replicas;
    const lk_parallel_options inner    = lki_replicas_inner(replicas, options);
    const lki_part            part     = { .joint = joint };

    LK_TRY(lk_comm_split(&replicas->comm, parallel->comm, replicas->first, parallel->rank));
    for (uint32_t i = 0; i < replicas->served; i++) {
        lk_parallel **model = &replicas->of[i].model;
        LK_TRY(name_replica(replicas, replicas->first + i,
                            lki_parallel_open_part(model, replicas->comm, params, param_count,
                                                   &inner, &part)));
        (*model)->effects.idles = true;
        (*model)->effects.first = (replicas->first + i) * replicas->width;
    }
    return LK_OK;
}

/* Opens the object that trains before there are replicas. */
static lk_status open_whole(lk_parallel *parallel, const lk_param *params, uint32_t param_count,
                            const lk_parallel_options *options, uint32_t joint)
{
    lki_replicas       *replicas = parallel->replicas;
    lk_parallel_options whole    = lki_replicas_inner(replicas, options);
    const lki_part      part     = { .joint = joint, .bounds = replicas->bounds };
    whole.virtual_workers        = options->virtual_workers;
    if (replicas->options.start == 0)
        return LK_OK;
    return lki_parallel_open_part(&replicas->whole, parallel->comm, params, param_count, &whole,
                                  &part);
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
    lki_replicas_deal(replicas, replicas->width, ranks, replicas->bounds);
    lki_replicas_deal(replicas, replicas->leaves, ranks, replicas->outer_bounds);
    LK_TRY(LKI_NEW(&replicas->times, ranks, "times of ranks"));
    return LKI_NEW(&replicas->scratch, replicas->largest, "a parameter of a replica");
}

/* Fills in the fields of `parallel` that describe it as a whole. */
static void describe(lk_parallel *parallel, const lk_parallel_options *options)
{
    const lki_replicas *replicas = parallel->replicas;
    parallel->ranks       = parallel->world.ranks;
    parallel->leaves      = options->virtual_workers;
    parallel->micro_count = options->micro_count ? options->micro_count : 1;
    parallel->optimizer   = replicas->options.start > 0 ? options->optimizer
                                                        : replicas->options.optimizer;
}

/* Allocates room for the weights that the replicas of this rank give, if they are needed after the
 * turn in which they are given, or if ranks of a replica have parts of them. */
static lk_status make_room(lk_parallel *parallel)
{
    lki_replicas *replicas = parallel->replicas;
    size_t        widest   = 0;
    for (uint32_t f = 0; f < replicas->options.fragments; f++)
        widest = lki_max(widest, replicas->fragments[f].outer->layout->elements);
    for (uint32_t i = 0; i < replicas->served; i++) {
        lki_replica    *replica = &replicas->of[i];
        const lki_seats seats   = lki_replica_seats(replicas, replicas->first + i, parallel->ranks);
        if (seats.first == parallel->rank &&
            (replicas->options.delay > 0 || replica->model->parted))
            LK_TRY(LKI_NEW(&replica->sent, widest, "weights of a replica"));
    }
    return LK_OK;
}

/* Deals the virtual workers.  With at least as many ranks as replicas, the strategy deals those of
 * a replica, maybe in rounds. */
static void deal_all(lk_parallel *parallel)
{
    const lki_replicas *replicas = parallel->replicas;
    const bool          several  = parallel->ranks >= replicas->options.count;
    const bool          rounds   = several && replicas->of[0].model->dealing.rounds;
    parallel->dealing = (lki_dealing){ .leaves = parallel->leaves,
                                       .ranks  = parallel->ranks,
                                       .rounds = rounds,
                                       .parts  = rounds ? replicas->options.count : 1,
                                       .bounds = replicas->bounds };
    parallel->share   = lki_share_of(&parallel->dealing, parallel->rank);
}

/* Fails with LK_EMISMATCH if ranks were given different options of replicas. */
static lk_status verify_same_options(lk_parallel *parallel)
{
    const lk_replicas  *r  = &parallel->replicas->options;
    const lk_optimizer *by = &r->optimizer;
    const double values[] = { r->count,     (double)r->local_steps, (double)r->start,
                              r->lr,        r->dtype,               r->alpha,
                              r->delay,     r->fragments,           by->kind,
                              by->momentum, by->nesterov,           by->beta1,
                              by->beta2,    by->eps,                by->weight_decay,
                              by->uncorrected, r->topology,
                              (double)parallel->replicas->seed };
    float        words[2 * sizeof values / sizeof values[0]];
    memcpy(words, values, sizeof values);
    return lki_verify_same_values(parallel, "options of replicas", words,
                                  sizeof words / sizeof words[0]);
}

lk_status lki_replicas_open(lk_parallel *parallel, const lk_param *params, uint32_t param_count,
                            const lk_parallel_options *options, uint32_t joint)
{
    LK_TRY(LKI_NEW(&parallel->replicas, 1, "replicas"));
    lki_replicas *replicas = parallel->replicas;
    LK_TRY(lki_world_of(&parallel->world, parallel->comm));
    LK_TRY(lki_replicas_read(replicas, options, parallel->world.ranks));
    describe(parallel, options);
    find_own(replicas, parallel->ranks, parallel->rank);
    replicas->turn     = replicas->served;
    replicas->averaged = true; /* all replicas begin with the outer weights */
    LK_TRY(lki_fragments_divide(replicas, params, param_count));
    LK_TRY(open_tables(parallel, params, param_count));
    LK_TRY(lki_replicas_open_reports(parallel));
    LK_TRY(verify_same_options(parallel));
    LK_TRY(open_whole(parallel, params, param_count, options, joint));
    for (uint32_t f = 0; f < replicas->options.fragments; f++)
        LK_TRY(open_fragment(parallel, f, params, options));
    LK_TRY(open_own(parallel, params, param_count, options, joint));
    deal_all(parallel);
    LK_TRY(lki_gossip_open(parallel, params, param_count, options));
    return make_room(parallel);
}

/* Waits for outer gradients that are being sent, because other ranks may still need those of this
 * rank. */
static void end_pending(const lki_replicas *replicas)
{
    if (replicas->fragments == NULL || replicas->pending == replicas->options.fragments)
        return;
    lk_parallel  *outer = replicas->fragments[replicas->pending].outer;
    lki_gradients sums;
    if (outer != NULL && outer->now.under_way && !lki_step_failed(outer))
        (void)outer->ops->reduce(outer, &sums);
}

void lki_replicas_free(lki_replicas *replicas)
{
    if (replicas == NULL)
        return;
    end_pending(replicas);
    for (uint32_t i = 0; replicas->of != NULL && i < replicas->served; i++) {
        lk_parallel_free(replicas->of[i].model);
        lki_free(replicas->of[i].sent);
    }
    lk_comm_free(replicas->comm);
    lk_parallel_free(replicas->whole);
    for (uint32_t f = 0; replicas->fragments != NULL && f < replicas->options.fragments; f++)
        lk_parallel_free(replicas->fragments[f].outer);
    lki_free(replicas->fragments);
    lki_gossip_free(replicas->gossip);
    lki_free(replicas->of);
    lki_free(replicas->bounds);
    lki_free(replicas->outer_bounds);
    lki_free(replicas->times);
    lki_free(replicas->reports);
    lki_free(replicas->scratch);
    lki_free(replicas);
}

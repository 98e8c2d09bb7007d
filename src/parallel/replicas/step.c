/* step.c -- a step of replicas.
 *
 * Each rank computes the turns of its replicas one replica after another, and then finishes them in
 * the same order.  The ranks of a replica exchange gradients among themselves only.  At the end all
 * ranks exchange a short report for each replica, so that all know the same loss, and the same
 * failure if there is one.
 */
#include <math.h>

#include "base/memory.h"
#include "device/reduce.h"
#include "parallel/joint.h"
#include "parallel/replicas/gossip.h"

struct lki_replica_report {
    double    loss, grad_norm;
    uint64_t  count, hits;
    double    seconds, data; /* of the rank, as in lki_rank_time */
    uint64_t  samples;
    lki_asked asked; /* of the rank, whose replicas need not meet those of others */
    uint32_t  virtual_workers;
    int32_t   status;
};

lk_status lki_replicas_open_reports(lk_parallel *parallel)
{
    lki_replicas *replicas = parallel->replicas;
    return LKI_NEW(&replicas->reports, ((size_t)parallel->ranks + 1) * replicas->most,
                   "reports of replicas");
}

/* Returns the object of the whole model in use; NULL: the outer weights. */
static lk_parallel *whole_in_use(const lki_replicas *replicas)
{
    if (replicas->whole != NULL)
        return replicas->whole;
    return replicas->turn < replicas->served ? replicas->of[replicas->turn].model : NULL;
}

lk_parallel *lki_replicas_in_use(const lki_replicas *replicas)
{
    lk_parallel *whole = whole_in_use(replicas);
    return whole != NULL ? whole : lki_fragment_of_states(replicas);
}

lk_parallel *lki_replicas_in_use_for(const lki_replicas *replicas, uint32_t *param)
{
    lk_parallel *whole = whole_in_use(replicas);
    if (whole != NULL)
        return whole;
    if (*param >= replicas->param_count) { /* replicas share nothing of the whole model */
        *param = UINT32_MAX;
        return lki_fragment_of_states(replicas);
    }
    const lki_fragment *f = lki_fragment_of(replicas, *param);
    *param -= f->first;
    return f->outer;
}

bool lki_replicas_under_way(const lki_replicas *replicas)
{
    return replicas->whole != NULL ? replicas->whole->now.under_way
                                   : replicas->of[0].model->now.under_way;
}

/* ---- Turns ------------------------------------------------------------------------------- */

lk_status lki_replicas_begin(lk_parallel *parallel, uint64_t step, uint32_t micros)
{
    lki_replicas *replicas = parallel->replicas;
    if (lki_step_failed(parallel))
        return lki_fail_again(&parallel->now.failure);
    parallel->step = step;
    if (replicas->whole != NULL && step >= replicas->options.start)
        LK_TRY(lki_replicas_start(parallel));
    if (replicas->whole != NULL)
        return lk_parallel_begin_micros(replicas->whole, step, micros);
    const lk_parallel *between = lki_fragment_of_states(replicas); /* in use between steps */
    if (lki_step_failed(between))
        return lki_fail_again(&between->now.failure);
    if (replicas->pending < replicas->options.fragments &&
        !replicas->fragments[replicas->pending].outer->now.under_way)
        LK_TRY(lki_outer_resume(parallel));
    for (uint32_t i = 0; i < replicas->served; i++)
        LK_TRY(lk_parallel_begin_micros(replicas->of[i].model, step, micros));
    replicas->turn = 0;
    return LK_OK;
}

bool lki_replicas_next(lki_replicas *replicas, lk_parallel_turn *turn)
{
    if (replicas->whole != NULL)
        return lk_parallel_next(replicas->whole, turn);
    for (; replicas->turn < replicas->served; replicas->turn++)
        if (lk_parallel_next(replicas->of[replicas->turn].model, turn)) {
            turn->virtual_worker += (replicas->first + replicas->turn) * replicas->width;
            return true;
        }
    return false;
}

void lki_replicas_progress(const lki_replicas *replicas)
{
    if (replicas->pending < replicas->options.fragments)
        lk_parallel_progress(replicas->fragments[replicas->pending].outer);
}

bool lki_replicas_join(lki_replicas *replicas, uint32_t most)
{
    bool joined = replicas->whole == NULL || lki_turns_join(replicas->whole, most);
    for (uint32_t i = 0; i < replicas->served; i++)
        joined = lki_turns_join(replicas->of[i].model, most) && joined;
    return joined;
}

/* ---- The end of a step ------------------------------------------------------------------- */

/* Finishes the step of a replica and writes the report.  All ranks of the replica find the same
 * values that are not finite, so they report them.  Other failures may be those of one rank, for
 * which others wait, so they are returned at once. */
static lk_status finish_replica(lki_replica *replica, uint32_t number, double lr,
                                lki_replica_report *report)
{
    lk_step_result  result;
    const lk_status status = lk_parallel_finish(replica->model, lr, &result);
    *report                = (lki_replica_report){ .status = status };
    replica->failure       = *lk_error_last();
    if (status == LK_ENONFINITE)
        return LK_OK;
    if (status != LK_OK)
        return lk_fail(status, "replica %u: %s", number, replica->failure.message);
    const lk_parallel  *model = replica->model;
    const lki_report   *told  = lki_report_of(model, model->share.first);
    const lki_rank_time time  = lki_balance_time(model, model->rank);
    *report = (lki_replica_report){ .loss            = result.loss,
                                    .grad_norm       = result.grad_norm,
                                    .count           = result.count,
                                    .hits            = result.hits,
                                    .seconds         = time.seconds,
                                    .data            = time.data,
                                    .samples         = time.samples,
                                    .asked           = told->asked,
                                    .virtual_workers = time.virtual_workers };
    return LK_OK;
}

/* Returns the report of a replica by the first rank that has it. */
static const lki_replica_report *report_of(const lk_parallel *parallel, uint32_t replica)
{
    const lki_replicas *replicas = parallel->replicas;
    const lki_seats     seats    = lki_replica_seats(replicas, replica, parallel->ranks);
    uint32_t            first    = replica, count;
    if (parallel->ranks < replicas->options.count)
        lki_virtual_range(replicas->options.count, parallel->ranks, seats.first, &first, &count);
    return &replicas->reports[(size_t)seats.first * replicas->most + replica - first];
}

static void add_times(lk_parallel *parallel)
{
    lki_replicas *replicas = parallel->replicas;
    for (uint32_t r = 0; r < parallel->ranks; r++) {
        lki_rank_time *time = &replicas->times[r];
        *time               = (lki_rank_time){ 0 };
        for (uint32_t i = 0; i < replicas->most; i++) {
            const lki_replica_report *some = &replicas->reports[(size_t)r * replicas->most + i];
            time->virtual_workers += some->virtual_workers;
            time->seconds += some->seconds;
            time->data += some->data;
            time->samples += some->samples;
        }
    }
}

/* Combines the results of all replicas: the mean loss over all samples, and the root mean square of
 * the gradients' norms over the replicas that had samples. */
static lk_status combine(lk_parallel *parallel, lk_step_result *result)
{
    const uint32_t count = parallel->replicas->options.count;
    uint32_t       busy  = 0; /* replicas with samples */
    double        *terms = NULL;
    LK_TRY(LKI_NEW(&terms, 2 * (size_t)count, "losses of replicas"));
    for (uint32_t r = 0; r < count; r++) {
        const lki_replica_report *one = report_of(parallel, r);
        terms[r]                      = one->loss * (double)one->count;
        terms[count + r]              = one->grad_norm * one->grad_norm;
        busy += one->count > 0;
        result->count += one->count;
        result->hits += one->hits;
    }
    if (result->count > 0)
        result->loss = lki_tree_sum_f64(terms, count) / (double)result->count;
    result->grad_norm = sqrt(lki_tree_sum_f64(terms + count, count) / (busy > 0 ? busy : 1));
    lki_free(terms);
    return result->count > 0
               ? LK_OK
               : lk_fail(LK_EINVAL, "step %llu: no virtual worker of any replica reported a sample",
                         (unsigned long long)parallel->step + 1);
}

/* Fails on all ranks with the failure of a replica. */
static lk_status fail_with(const lk_parallel *parallel, uint32_t number)
{
    const lki_replicas *replicas = parallel->replicas;
    const lki_seats     seats    = lki_replica_seats(replicas, number, parallel->ranks);
    lk_error            failure  = { 0 };
    if (lki_replica_here(replicas, number) != NULL)
        failure = replicas->of[number - replicas->first].failure;
    LK_TRY(lk_broadcast(parallel->comm, failure.message, sizeof failure.message, seats.first));
    return lk_fail((lk_status)report_of(parallel, number)->status, "replica %u: %s", number,
                   failure.message);
}

static lk_status check_replicas(const lk_parallel *parallel)
{
    for (uint32_t r = 0; r < parallel->replicas->options.count; r++)
        if (report_of(parallel, r)->status != LK_OK)
            return fail_with(parallel, r);
    return LK_OK;
}

/* Compares what the calls of all ranks were given. */
static lk_status check_ranks(const lk_parallel *parallel)
{
    const lki_replicas       *replicas = parallel->replicas;
    const lki_replica_report *reports  = replicas->reports;
    for (uint32_t r = 1; r < parallel->ranks; r++)
        LK_TRY(lki_step_compare(parallel, reports[0].asked,
                                reports[(size_t)r * replicas->most].asked, r));
    return LK_OK;
}

static lk_status exchange_reports(lk_parallel *parallel)
{
    lki_replicas *replicas = parallel->replicas;
    const size_t  row      = replicas->most * sizeof *replicas->reports;
    LK_TRY(lk_all_gather(parallel->comm,
                         replicas->reports + (size_t)parallel->ranks * replicas->most,
                         replicas->reports, row));
    LK_TRY(check_replicas(parallel));
    LK_TRY(check_ranks(parallel));
    add_times(parallel);
    return LK_OK;
}

static lk_status finish(lk_parallel *parallel, double lr, lk_step_result *result)
{
    lki_replicas       *replicas = parallel->replicas;
    lki_replica_report *own = replicas->reports + (size_t)parallel->ranks * replicas->most;

    *result        = (lk_step_result){ 0 };
    replicas->last = (lk_outer_step){ 0 };
    if (replicas->whole != NULL)
        return lk_parallel_finish(replicas->whole, lr, result);
    for (uint32_t i = 0; i < replicas->served; i++)
        LK_TRY(finish_replica(&replicas->of[i], replicas->first + i, lr, &own[i]));
    replicas->turn     = replicas->served;
    replicas->averaged = false;
    LK_TRY(exchange_reports(parallel));
    LK_TRY(combine(parallel, result));
    const uint64_t done = parallel->step + 1 - replicas->options.start;
    return replicas->options.topology == LK_TOPOLOGY_ALL ? lki_outer_steps(parallel, done)
                                                         : lki_gossip_steps(parallel, done);
}

lk_status lki_replicas_finish(lk_parallel *parallel, double lr, lk_step_result *result)
{
    lk_status status = finish(parallel, lr, result);
    lki_step_keep(parallel, status);
    return status;
}

lki_rank_time lki_replicas_time(const lki_replicas *replicas, uint32_t rank)
{
    return replicas->whole != NULL ? lki_balance_time(replicas->whole, rank)
                                   : replicas->times[rank];
}

lk_outer_step lk_parallel_outer_step(const lk_parallel *parallel)
{
    return parallel->replicas != NULL ? parallel->replicas->last : (lk_outer_step){ 0 };
}

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
#include "parallel/replicas/internal.h"

struct lki_replica_report {
    lk_error       error; /* status LK_OK: none */
    lk_step_result result;
    lki_rank_time  time; /* of the rank, for this replica */
};

lk_status lki_replicas_open_reports(lk_parallel *parallel)
{
    lki_replicas *replicas = parallel->replicas;
    return LKI_NEW(&replicas->reports, ((size_t)parallel->ranks + 1) * replicas->most,
                   "reports of replicas");
}

lk_parallel *lki_replicas_in_use(const lki_replicas *replicas)
{
    return replicas->turn < replicas->served ? replicas->of[replicas->turn].model
                                             : replicas->outer;
}

/* ---- Turns ------------------------------------------------------------------------------- */

lk_status lki_replicas_begin(lk_parallel *parallel, uint64_t step, uint32_t micros)
{
    lki_replicas *replicas = parallel->replicas;
    for (uint32_t i = 0; i < replicas->served; i++)
        LK_TRY(lk_parallel_begin_micros(replicas->of[i].model, step, micros));
    parallel->step = step;
    replicas->turn = 0;
    return LK_OK;
}

bool lki_replicas_next(lki_replicas *replicas, lk_parallel_turn *turn)
{
    for (; replicas->turn < replicas->served; replicas->turn++)
        if (lk_parallel_next(replicas->of[replicas->turn].model, turn)) {
            turn->virtual_worker += (replicas->first + replicas->turn) * replicas->width;
            return true;
        }
    return false;
}

bool lki_replicas_join(lki_replicas *replicas, uint32_t most)
{
    bool joined = true;
    for (uint32_t i = 0; i < replicas->served; i++)
        joined = lki_turns_join(replicas->of[i].model, most) && joined;
    return joined;
}

/* ---- The end of a step ------------------------------------------------------------------- */

static void finish_replica(const lki_replica *replica, double lr, lki_replica_report *report)
{
    *report = (lki_replica_report){ 0 };
    if (lk_parallel_finish(replica->model, lr, &report->result) == LK_OK)
        report->time = lki_balance_time(replica->model, lk_comm_rank(replica->comm));
    else
        report->error = *lk_error_last();
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
            const lki_rank_time *some = &replicas->reports[(size_t)r * replicas->most + i].time;
            time->virtual_workers += some->virtual_workers;
            time->seconds += some->seconds;
            time->data += some->data;
            time->samples += some->samples;
        }
    }
}

/* Combines the results of all replicas: the mean loss over all samples, and the root mean square of
 * the gradients' norms. */
static lk_status combine(lk_parallel *parallel, lk_step_result *result)
{
    const uint32_t count = parallel->replicas->options.count;
    double        *terms = NULL;
    LK_TRY(LKI_NEW(&terms, 2 * (size_t)count, "losses of replicas"));
    for (uint32_t r = 0; r < count; r++) {
        const lk_step_result *one = &report_of(parallel, r)->result;
        terms[r]                  = one->loss * (double)one->count;
        terms[count + r]          = one->grad_norm * one->grad_norm;
        result->count += one->count;
        result->hits += one->hits;
    }
    result->loss      = lki_tree_sum_f64(terms, count) / (double)result->count;
    result->grad_norm = sqrt(lki_tree_sum_f64(terms + count, count) / count);
    lki_free(terms);
    return LK_OK;
}

/* Fails on all ranks with the failure of the first replica that has one. */
static lk_status check_replicas(const lk_parallel *parallel)
{
    for (uint32_t r = 0; r < parallel->replicas->options.count; r++) {
        const lki_replica_report *report = report_of(parallel, r);
        if (report->error.status != LK_OK)
            return lk_fail(report->error.status, "replica %u: %s", r, report->error.message);
    }
    return LK_OK;
}

static lk_status exchange_reports(lk_parallel *parallel)
{
    lki_replicas *replicas = parallel->replicas;
    const size_t  row      = replicas->most * sizeof *replicas->reports;
    LK_TRY(lk_all_gather(parallel->comm,
                         replicas->reports + (size_t)parallel->ranks * replicas->most,
                         replicas->reports, row));
    add_times(parallel);
    return check_replicas(parallel);
}

lk_status lki_replicas_finish(lk_parallel *parallel, double lr, lk_step_result *result)
{
    lki_replicas       *replicas = parallel->replicas;
    lki_replica_report *own = replicas->reports + (size_t)parallel->ranks * replicas->most;
    const uint64_t      done = parallel->step + 1, steps = replicas->options.local_steps;

    *result        = (lk_step_result){ 0 };
    replicas->last = (lk_outer_step){ 0 };
    for (uint32_t i = 0; i < replicas->served; i++)
        finish_replica(&replicas->of[i], lr, &own[i]);
    replicas->turn = replicas->served;
    LK_TRY(exchange_reports(parallel));
    LK_TRY(combine(parallel, result));
    return done % steps == 0 ? lki_replicas_average(parallel, done / steps) : LK_OK;
}

lki_rank_time lki_replicas_time(const lki_replicas *replicas, uint32_t rank)
{
    return replicas->times[rank];
}

lk_outer_step lk_parallel_outer_step(const lk_parallel *parallel)
{
    return parallel->replicas != NULL ? parallel->replicas->last : (lk_outer_step){ 0 };
}

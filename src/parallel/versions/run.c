/* run.c -- a step of asynchronous training on one rank: it claims tasks, computes them and pushes
 * their gradients, until all gradients of the step have been applied.
 *
 * A rank claims the first task, in the order of application, that nobody has claimed and whose
 * version is there.  It may belong to a later step.  A rank leaves a step when the last gradient of
 * the step has been applied, whoever has applied it.  So ranks are in different steps at the same
 * time, and none waits for another, unless there is no task that it could compute.  A gradient is
 * applied only by ranks that are in its step, so that when all ranks meet between two steps, they
 * all see the parameters after the same step.
 */
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "comm/worker.h"
#include "parallel/joint.h"
#include "parallel/versions/internal.h"

/* ---- Claims ------------------------------------------------------------------------------ */

/* Returns the number of gradients, from the next one on, that are looked at.  The rest of the
 * window is for those of the step in progress that have been applied, whose reports are still
 * needed. */
static uint64_t horizon(const lki_versions *v)
{
    return v->window - v->options.groups;
}

/* Returns the number of gradients whose place in the order is decided. */
static uint64_t decided(const lki_versions *v)
{
    return v->arrivals != NULL        ? atomic_load(&v->arrivals->arrived)
           : lki_is_live(&v->options) ? v->recorded.count
                                      : UINT64_MAX;
}

uint64_t lki_look_ahead(lki_versions *v, uint64_t applied)
{
    const uint64_t end = lki_min(applied + horizon(v), decided(v));
    for (uint64_t at = v->ahead.applied; at < end; at++)
        if (v->arrivals == NULL || at < v->arrivals->replayed) {
            v->tasks[at % v->window] = lki_task_schedule_next(&v->ahead);
        } else if (lki_has_hosts(v)) {
            v->tasks[at % v->window] = v->order[at % v->window].task;
            lki_hosts_advance(v, &v->ahead, at + 1);
        } else {
            v->tasks[at % v->window] = v->order[at % v->window].task;
            v->ahead.applied++;
        }
    return end;
}

static bool claim(const lk_parallel *parallel, uint64_t at)
{
    const lki_versions *v     = parallel->versions;
    _Atomic uint64_t   *word  = &v->claims[at % v->window];
    uint64_t            found = atomic_load(word);
    if (found >> LKI_CLAIM_BITS == at && (found & ((1 << LKI_CLAIM_BITS) - 1)) != LKI_CLAIM_FREE)
        return false;
    return found >> LKI_CLAIM_BITS <= at &&
           atomic_compare_exchange_strong(word, &found,
                                          at << LKI_CLAIM_BITS | (LKI_CLAIMED + parallel->rank));
}

/* Claims a task.  Returns false if there is none that this rank could compute now. */
static bool claim_some(lk_parallel *parallel)
{
    lki_versions  *v       = parallel->versions;
    bool           found   = false;
    if (v->sharded.count > 0) {
        lki_step_keep(parallel, lki_sharded_claim(parallel, &found));
        return found;
    }
    const uint64_t applied = lki_applied(v);
    const uint64_t last    = v->options.steps > 0 ? v->options.steps * v->options.groups
                                                  : UINT64_MAX;
    const uint64_t end = lki_min(lki_look_ahead(v, applied), last);
    for (uint64_t at = applied; at < end; at++)
        if (lki_task_at(v, at)->reads <= applied / v->options.aggregate &&
            lki_hosts_computes(parallel, at) && claim(parallel, at)) {
            v->at   = at;
            v->task = *lki_task_at(v, at);
            return true;
        }
    if (v->arrivals != NULL)
        lki_step_keep(parallel, lki_has_hosts(v) ? lki_hosts_begin(parallel, &found)
                                                 : lki_arrivals_begin(parallel, &found));
    return found;
}

/* ---- Tasks ------------------------------------------------------------------------------- */

/* Returns true if this rank has failed, or any rank in an update.  The latter is the reason to
 * give: a rank that has seen it may have left the group since, which fails the operations of
 * others. */
static bool failed(lk_parallel *parallel)
{
    const lki_common *common = parallel->versions->common;
    const bool        gone   = lki_comm_has_failed(parallel->comm); /* before the reason is read */
    if (atomic_load(&common->failed) == LKI_FAILURE_KNOWN) {
        (void)lki_fail_again(&common->failure);
        parallel->now.failure = *lk_error_last();
    } else if (gone) { /* a rank that always finds tasks does not wait, where others learn it */
        lki_step_keep(parallel, lki_group_failure(parallel->comm));
    }
    return lki_step_failed(parallel);
}

static lk_status begin_task(lk_parallel *parallel)
{
    lki_versions *v = parallel->versions;
    v->begun        = lki_seconds();
    if (v->sharded.count > 0)
        lki_versions_show(v, v->task.group, 0);
    else
        lki_versions_show(v, lki_versions_find(v, v->task.reads), v->task.reads);
    v->model->effects.first = (uint32_t)(v->task.task % v->options.groups) * v->width;
    LK_TRY(lk_parallel_begin_micros(v->model, v->task.task / v->options.groups,
                                    parallel->micro_count));
    v->computes = true;
    return LK_OK;
}

/* Ends the task of this rank, and pushes its gradient. */
static lk_status end_task(lk_parallel *parallel)
{
    lki_versions *v     = parallel->versions;
    lk_parallel  *model = v->model;
    lki_gradients sums;

    v->computes = false;
    lki_turns_end(model);
    if (!lki_step_failed(model))
        lki_step_keep(model, model->ops->reduce(model, &sums));
    model->now.under_way = false;
    if (lki_step_failed(model))
        return lki_fail_again(&model->now.failure);
    if (lki_late_is_over(v))
        return LK_OK;
    v->seconds = lki_seconds() - v->begun;
    return v->sharded.count > 0    ? lki_sharded_push(parallel, &sums)
           : lki_has_hosts(v)
               ? lki_hosts_push(parallel, &sums,
                                lki_is_live(&v->options) ? lki_gradient_hash(v, &sums) : 0, 0)
           : v->at == LKI_NO_PLACE ? lki_arrivals_push(parallel, &sums)
                                   : lki_versions_push(parallel, &sums);
}

/* ---- A step ------------------------------------------------------------------------------ */

lk_status lki_versions_begin(lk_parallel *parallel, uint64_t step, uint32_t micros)
{
    lki_versions *v = parallel->versions;
    if (failed(parallel))
        return lki_fail_again(&parallel->now.failure);
    if (parallel->now.under_way)
        return lk_fail(LK_EINVAL, "step %llu is under way: lk_parallel_finish() ends it",
                       (unsigned long long)parallel->step);
    if (micros != parallel->micro_count)
        return lk_fail(LK_EINVAL, "a step of %u micro-batches, but the options have %u, and a rank "
                                  "may compute tasks of several steps", micros,
                       parallel->micro_count);
    if (step != atomic_load(&v->passed[parallel->rank]))
        return lk_fail(LK_EINVAL, "step %llu begins, but the next one is %llu: steps are in order, "
                                  "after lk_parallel_resume()", (unsigned long long)step,
                       (unsigned long long)atomic_load(&v->passed[parallel->rank]));
    if (v->options.replay != NULL && (step + 1) * v->options.groups > v->recorded.count)
        return lk_fail(LK_EINVAL, "step %llu begins, but %.900s has the gradients of %llu steps",
                       (unsigned long long)step + 1, v->recorded.path,
                       (unsigned long long)(v->recorded.count / v->options.groups));
    if (v->options.steps > 0 && step >= v->options.steps)
        return lk_fail(LK_EINVAL, "step %llu begins, but `async.steps` is %llu, counted from 0",
                       (unsigned long long)step, (unsigned long long)v->options.steps);
    parallel->step          = step;
    parallel->now.under_way = true;
    v->rated                = false;
    return LK_OK;
}

lk_status lk_parallel_set_rate(lk_parallel *parallel, double lr)
{
    if (parallel->versions == NULL)
        return LK_OK;
    if (!parallel->now.under_way)
        return lk_fail(LK_EINVAL, "no step is under way: lk_parallel_begin() begins one");
    parallel->versions->lr    = lr;
    parallel->versions->rated = true;
    return LK_OK;
}

static bool is_over(const lk_parallel *parallel)
{
    const lki_versions *v = parallel->versions;
    return lki_applied(v) >= (parallel->step + 1) * v->options.groups;
}

/* Fails because the rank that applies gradients or, if there is none, the one that has finished the
 * fewest steps takes too long. */
static lk_status fail_stuck(const lk_parallel *parallel)
{
    const lki_versions *v       = parallel->versions;
    const uint32_t      applier = atomic_load(&v->common->applier);
    uint32_t            rank    = 0;
    for (uint32_t r = 1; r < parallel->ranks; r++)
        if (atomic_load(&v->passed[r]) < atomic_load(&v->passed[rank]))
            rank = r;
    rank = lk_comm_world_rank(parallel->comm, applier > 0 ? applier - 1 : rank);
    return lki_fail_group(parallel->comm, rank, LK_ETIMEOUT,
                          "rank %u has not ended an update or a step for longer than the timeout "
                          "of %u ms, and all others wait for it",
                          rank, lki_comm_timeout_ms(parallel->comm));
}

/* Finds the rank that computes a task which others wait for, and the task; `ranks` if there is
 * none. */
static lk_status find_slowest(lk_parallel *parallel, uint64_t *task, uint32_t *rank)
{
    const lki_versions *v  = parallel->versions;
    const uint64_t      at = lki_applied(v);
    if (v->sharded.count > 0 || (v->arrivals != NULL && at >= decided(v)))
        return lki_arrivals_slowest(parallel, task, rank);
    const uint64_t by = atomic_load(&v->claims[at % v->window]) & ((1 << LKI_CLAIM_BITS) - 1);
    *task             = lki_task_at(v, at)->task;
    *rank             = by < LKI_CLAIMED ? parallel->ranks : (uint32_t)(by - LKI_CLAIMED);
    return LK_OK;
}

/* Fails because a task that others wait for takes too long. */
static lk_status fail_late(lk_parallel *parallel)
{
    const lki_versions *v = parallel->versions;
    uint64_t            task;
    uint32_t            late;
    LK_TRY(find_slowest(parallel, &task, &late));
    if (late == parallel->ranks)
        return fail_stuck(parallel);
    const uint32_t rank = lk_comm_world_rank(parallel->comm, late);
    return lki_fail_group(parallel->comm, rank, LK_ETIMEOUT,
                          "rank %u has computed virtual worker %u of step %llu for longer than the "
                          "timeout of %u ms, and all others wait for it",
                          rank, (uint32_t)(task % v->options.groups) * v->width,
                          (unsigned long long)(task / v->options.groups) + 1,
                          lki_comm_timeout_ms(parallel->comm));
}

/* Returns the longest time to wait before a late task may be found. */
static uint32_t nap_ms(const lki_versions *v)
{
    const double half = 500 * v->seconds;
    return !v->speculates || half > LKI_NAP_MS ? LKI_NAP_MS : half < 1 ? 1 : (uint32_t)half;
}

/* Waits until something changes. */
static lk_status wait_for_change(lk_parallel *parallel, uint32_t seen, double *waited)
{
    const lki_versions *v     = parallel->versions;
    const double        begun = lki_seconds();
    if (v->hosts.peer_count > 0)
        LK_TRY(lki_hosts_wait(parallel));
    else
        LK_TRY(lki_comm_await_word(parallel->comm, &v->common->changes, seen, nap_ms(v)));
    const double now = lki_seconds();
    (void)atomic_fetch_add(&v->common->waited, (uint64_t)(1e6 * (now - begun)));
    *waited = atomic_load(&v->common->changes) == seen ? *waited + now - begun : 0;
    return *waited * 1e3 > lki_comm_timeout_ms(parallel->comm) ? fail_late(parallel) : LK_OK;
}

/* Begins a task.  Returns false at the end of the step. */
static bool find_task(lk_parallel *parallel)
{
    lki_versions *v      = parallel->versions;
    const double  since  = lki_seconds();
    double        waited = 0;
    while (!failed(parallel) && !is_over(parallel)) {
        const uint32_t seen = atomic_load(&v->common->changes);
        lki_step_keep(parallel, lki_hosts_poll(parallel));
        lki_step_keep(parallel, v->sharded.count > 0 ? lki_sharded_apply(parallel, false)
                                                     : lki_versions_apply(parallel));
        if (failed(parallel) || is_over(parallel))
            return false;
        if (claim_some(parallel) || lki_late_find(parallel, since)) {
            if (!lki_late_reads(parallel))
                continue;
            lki_step_keep(parallel, begin_task(parallel));
            return !failed(parallel);
        }
        lki_step_keep(parallel, wait_for_change(parallel, seen, &waited));
    }
    return false;
}

bool lki_versions_next(lk_parallel *parallel, lk_parallel_turn *turn)
{
    lki_versions *v = parallel->versions;
    if (!parallel->now.under_way)
        return false;
    if (!v->rated)
        lki_step_keep(parallel, lk_fail(LK_EINVAL, "lk_parallel_set_rate() is missing after "
                                                   "lk_parallel_begin()"));
    for (;;) {
        if (v->computes && !lki_late_is_over(v) && lk_parallel_next(v->model, turn)) {
            turn->virtual_worker += v->model->effects.first;
            return true;
        }
        if (v->computes)
            lki_step_keep(parallel, end_task(parallel));
        if (!find_task(parallel))
            return false;
    }
}

lk_status lki_versions_finish(lk_parallel *parallel, double lr, lk_step_result *result)
{
    lki_versions    *v = parallel->versions;
    lk_parallel_turn turn;

    *result = (lk_step_result){ 0 };
    if (!parallel->now.under_way && !lki_step_failed(parallel))
        return lk_fail(LK_EINVAL, "no step is under way: lk_parallel_begin() begins one");
    if (v->rated && lr != v->lr)
        lki_step_keep(parallel, lk_fail(LK_EINVAL, "the learning rate of lk_parallel_finish() is "
                                                   "not that of lk_parallel_set_rate()"));
    while (lki_versions_next(parallel, &turn)) /* turns that the caller has skipped */
        continue;
    parallel->now.under_way = false;
    if (!failed(parallel))
        lki_step_keep(parallel, lki_hosts_end_step(parallel));
    if (failed(parallel))
        return lki_fail_again(&parallel->now.failure);
    const lki_outcome *out = &v->outcomes[parallel->step % LKI_OUTCOMES];
    const uint64_t     at  = (parallel->step + 1) * (v->options.groups / v->options.aggregate);
    *result  = out->result;
    v->last  = out->async;
    v->heard = out->heard;
    const uint32_t buffer = v->sharded.count > 0 ? lki_sharded_current(v)
                                                 : lki_versions_look_up(v, at);
    if (buffer != LKI_NO_BUFFER) /* else other ranks are already in the next step */
        lki_versions_show(v, buffer, at);
    atomic_store(&v->passed[parallel->rank], parallel->step + 1);
    lki_versions_changed(v);
    return LK_OK;
}

/* ---- Between ranks ----------------------------------------------------------------------- */

void lki_versions_say(const lk_parallel *parallel, uint32_t number)
{
    atomic_store(&parallel->versions->said[parallel->rank], number);
}

uint32_t lki_versions_heard(const lk_parallel *parallel)
{
    return parallel->versions->heard;
}

lk_async_step lk_parallel_async_step(const lk_parallel *parallel)
{
    return parallel->versions != NULL ? parallel->versions->last : (lk_async_step){ 0 };
}

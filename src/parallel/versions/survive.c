/* survive.c -- goes on after the death of a rank, on one host.  With versions of shards see
 * shard_survive.c; `passed` is as here.
 *
 * The arena outlives a rank.  What a rank may have left half done in it is found from what cannot
 * be half done:
 *
 *   applied   the current version and its states.  An update writes others, and this word last.
 *             Buffers, messages and groups of a version are freed after it.
 *   claims    a gradient that is there (LKI_CLAIM_DONE) has its message and its reports.  All other
 *             claims are given back: of a dead rank, and of the survivors, who drop their tasks.
 *   spent     the update of a version changes its messages.  Before the first change it names the
 *             version here.  If that is not published, its gradients are computed again.
 *   the file  of a live run: the order.  A line that a rank has written is in the order, with a
 *             gradient or without.  Tasks without a line have had no effect, and begin again before
 *             new ones, as in a run that goes on from a checkpoint.
 *   passed    the steps that each rank has finished.  All go on after the smallest number, which
 *             may be that of the dead rank.  So what the dead rank 0 has not logged is logged by
 *             the next one.  A step that is over is finished at once, with the result that it has.
 *
 * One rank repairs, while the others wait for it.  All that it writes follows from these, which it
 * does not change, so if it dies, too, the next one repairs the arena again.
 */
#include "base/memory.h"
#include "comm/worker.h"
#include "parallel/versions/internal.h"
#include "parallel/versions/shard_survive.h"

/* The number of steps that a seat without a rank has finished. */
static const uint64_t ALL_STEPS = UINT64_MAX / 2;

void lki_versions_seat(const lk_parallel *parallel)
{
    const lki_versions *v = parallel->versions;
    for (uint32_t r = parallel->ranks; r < v->seats; r++)
        atomic_store(&v->passed[r], ALL_STEPS);
}

/* ---- Repairs ------------------------------------------------------------------------------- */

/* Lets all ranks go on after the last step that each of them has finished. */
static void meet(const lk_parallel *parallel)
{
    const lki_versions *v    = parallel->versions;
    uint64_t            done = ALL_STEPS;
    for (uint32_t r = 0; r < v->seats; r++)
        done = lki_min(done, atomic_load(&v->passed[r]));
    for (uint32_t r = 0; r < parallel->ranks; r++)
        atomic_store(&v->passed[r], done);
    lki_versions_seat(parallel);
    for (uint32_t r = 0; r < v->seats; r++)
        atomic_store(&v->said[r], 0); /* ranks say again what they have seen */
}

/* Gives back the claims of gradients that are not there. */
static void release_claims(const lki_versions *v, uint64_t applied)
{
    const uint64_t spent = atomic_load(&v->common->spent) == applied + 1
                               ? applied + v->options.aggregate
                               : applied;
    for (uint32_t i = 0; i < v->window; i++) {
        const uint64_t at = atomic_load(&v->claims[i]) >> LKI_CLAIM_BITS;
        if (at < applied || (at >= spent && lki_claim_is(v, at, LKI_CLAIM_DONE)))
            continue;
        atomic_store(&v->claims[i], at << LKI_CLAIM_BITS | LKI_CLAIM_FREE);
        if (v->speculates)
            lki_late_forget(v, at);
    }
    atomic_store(&v->common->spent, 0);
}

/* Frees the messages that are of no gradient. */
static void release_messages(const lki_versions *v, uint64_t applied)
{
    for (uint32_t m = 0; m < v->message_count; m++) {
        uint32_t users = 0;
        for (uint64_t at = applied; at < applied + v->window; at++)
            users += lki_claim_is(v, at, LKI_CLAIM_DONE) && v->place_of[at % v->window] == m;
        atomic_store(&v->taken[m], users);
    }
}

/* Frees the places of single ranks. */
static void release_places(const lki_versions *v)
{
    lki_common *common = v->common;
    atomic_store(&common->applier, 0);
    atomic_store(&common->failed, LKI_FAILURE_NONE); /* an error that is not the loss comes again */
    for (uint32_t r = 0; v->speculates && r < v->seats; r++)
        atomic_store(&v->reading[r], 0);
    if (v->arrivals != NULL)
        atomic_store(&v->arrivals->holder, 0);
}

/* Makes the order of a live run that of the file. */
static lk_status reorder(lki_versions *v)
{
    if (v->arrivals == NULL)
        return LK_OK;
    v->arrivals->missing = 0;
    for (uint32_t g = 0; g < v->options.groups; g++)
        v->doing[g] = (lki_live_group){ .state = LKI_GROUP_FREE };
    return lki_arrivals_open(v);
}

/* Frees the versions that no task reads, and those that are not published. */
static void release_versions(const lk_parallel *parallel, uint64_t applied)
{
    const lki_versions *v = parallel->versions;
    for (uint32_t i = 0; i < v->live_count; i++)
        if (atomic_load(&v->live[i].tag) > applied / v->options.aggregate + 1)
            atomic_store(&v->live[i].tag, 0);
    lki_free_versions(parallel, applied);
}

/* Fails if the file has fewer lines than ranks have written: a line counts once it is written. */
static lk_status check_lines(const lki_versions *v)
{
    const uint64_t applied = lki_applied(v);
    const uint64_t known   = v->arrivals == NULL
                                 ? applied
                                 : lki_max(applied, atomic_load(&v->arrivals->arrived));
    if (!lki_is_live(&v->options) || v->recorded.count >= known)
        return LK_OK;
    return lk_fail(LK_EMISMATCH, "the schedule %.200s has %llu gradients, but %llu were written: "
                                 "the file was changed during the run",
                   v->recorded.path, (unsigned long long)v->recorded.count,
                   (unsigned long long)known);
}

static lk_status repair(lk_parallel *parallel)
{
    lki_versions  *v       = parallel->versions;
    const uint64_t applied = lki_applied(v);
    LK_TRY(check_lines(v));
    if (v->sharded.count > 0)
        LK_TRY(lki_shards_repair(parallel));
    meet(parallel);
    release_places(v);
    if (v->sharded.count > 0)
        return LK_OK;
    release_claims(v, applied);
    release_messages(v, applied);
    LK_TRY(reorder(v));
    release_versions(parallel, applied);
    return LK_OK;
}

lk_status lki_versions_repair(lk_parallel *parallel)
{
    lki_versions  *v       = parallel->versions;
    const uint64_t applied = lki_applied(v);
    if (parallel->local == 0)
        LK_TRY(repair(parallel));
    LK_TRY(lk_barrier(parallel->comm));
    if (v->sharded.count > 0) {
        lki_versions_show(v, lki_sharded_current(v), 0);
        return LK_OK;
    }
    /* a step that is in progress ends with the tasks of all its gradients */
    lki_task_schedule_advance(&v->ahead, applied - applied % v->options.groups);
    lki_versions_show(v, lki_versions_find(v, applied / v->options.aggregate),
                      applied / v->options.aggregate);
    return LK_OK;
}

/* ---- The position -------------------------------------------------------------------------- */

/* Returns the number of virtual workers of the current step whose gradients are not there. */
static uint32_t count_unfinished(const lki_versions *v)
{
    const uint64_t applied = lki_applied(v);
    const uint64_t end     = applied - applied % v->options.groups + v->options.groups;
    uint32_t       count   = 0;
    if (v->sharded.count > 0)
        return lki_shards_unfinished(v) * v->width;
    for (uint64_t at = applied; at < end; at++)
        count += lki_claim_is(v, at, LKI_CLAIM_DONE) ? 0 : v->width;
    return count;
}

/* Describes the position of the run, with the result of the last step. */
static void stand(const lk_parallel *parallel, lk_parallel_standing *standing)
{
    lki_versions  *v    = parallel->versions;
    const uint64_t done = atomic_load(&v->passed[parallel->rank]);
    *standing = (lk_parallel_standing){ .loss_scale = lk_parallel_scaler(parallel).scale,
                                        .unfinished = count_unfinished(v) };
    if (done == v->common->first) {
        v->last.schedule_hash = lki_schedule_hash(v, done * v->options.groups);
        return;
    }
    const lki_outcome *last = &v->outcomes[(done - 1) % LKI_OUTCOMES];
    standing->steps         = done;
    standing->last          = last->result;
    v->last                 = last->async;
    v->heard                = last->heard;
}

lk_status lki_versions_go_on(lk_parallel **out, const lk_parallel *failed, lk_comm *comm,
                             const lk_param *params, uint32_t param_count,
                             const lk_parallel_options *options, lk_parallel_standing *standing)
{
    const lki_before before   = { true, failed != NULL ? failed->versions : NULL };
    lk_parallel     *parallel = NULL;
    if (!options->survives || (failed != NULL && before.versions == NULL))
        return lk_fail(LK_EINVAL, "lk_parallel_go_on() needs options.survives, and what was opened "
                                  "with it");
    LK_TRY(LKI_NEW(&parallel, 1, "strategy"));
    parallel->comm   = comm;
    parallel->rank   = lk_comm_rank(comm);
    lk_status status = lki_versions_open_over(parallel, params, param_count, options, 1, &before);
    if (status == LK_OK) {
        stand(parallel, standing);
        status = lk_barrier(comm); /* before a step begins, which changes what others look at */
    }
    if (status == LK_OK)
        *out = parallel;
    else
        lk_parallel_free(parallel);
    return status;
}

/* arrivals.c -- the order of a live run: gradients have the places in which they arrive.
 *
 * A rank that needs a task takes a group that is free, the one that has finished the fewest tasks,
 * and begins the next task with it.  When the gradient is there, it gets the next place in the
 * order and a line in the recorded schedule, before it can be applied.  The group is free again
 * when the gradient has been applied.  So at most G tasks are in flight, and a schedule read from
 * the file needs no more memory than a simulated one.
 *
 * A task that is lost with its rank has left no trace: a run that goes on from a checkpoint first
 * repeats what the file has, and then begins the missing tasks before new ones.  So each sample is
 * used once.
 *
 * A gradient that is late for lk_async.drops_late has no place and no line, and its group is free
 * again.  So a replay does not compute its task.  A run that goes on cannot tell it from a task
 * that was lost, and begins neither of them again.
 */
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "comm/worker.h"
#include "parallel/versions/internal.h"

/* ---- The place of the holder --------------------------------------------------------------- */

lk_status lki_await_release(lk_parallel *parallel, _Atomic uint32_t *releases, uint32_t seen,
                            uint32_t by, int64_t since)
{
    LK_TRY(lki_comm_await_word(parallel->comm, releases, seen, LKI_NAP_MS));
    if (lki_now_ms() - since <= (int64_t)lki_comm_timeout_ms(parallel->comm))
        return LK_OK;
    const uint32_t rank = lk_comm_world_rank(parallel->comm, by);
    return lki_fail_group(parallel->comm, rank, LK_ETIMEOUT,
                          "rank %u has not recorded or applied a gradient for longer than the "
                          "timeout of %u ms, and others wait for it",
                          rank, lki_comm_timeout_ms(parallel->comm));
}

lk_status lki_arrivals_hold(lk_parallel *parallel)
{
    lki_versions *v     = parallel->versions;
    const int64_t since = lki_now_ms();
    for (;;) {
        const uint32_t seen = atomic_load(&v->arrivals->releases);
        uint32_t       none = 0;
        if (atomic_compare_exchange_strong(&v->arrivals->holder, &none, parallel->rank + 1))
            return LK_OK;
        LK_TRY(lki_await_release(parallel, &v->arrivals->releases, seen, none > 0 ? none - 1 : 0,
                                 since));
    }
}

void lki_arrivals_release(const lki_versions *v)
{
    atomic_store(&v->arrivals->holder, 0);
    lki_comm_wake_word(&v->arrivals->releases);
}

/* ---- A run that goes on -------------------------------------------------------------------- */

lk_status lki_arrivals_list_missing(lki_versions *v)
{
    lki_arrivals *a     = v->arrivals;
    uint64_t      begun = 0;
    uint8_t      *seen;
    for (uint64_t at = 0; at < v->recorded.count; at++)
        begun = lki_max(begun, v->recorded.tasks[at].task + 1);
    atomic_store(&a->begun, begun);
    if (v->options.drops_late)
        return LK_OK; /* tasks without a line were late */
    LK_TRY(LKI_NEW(&seen, begun + 1, "tasks of a schedule"));
    for (uint64_t at = 0; at < v->recorded.count; at++)
        seen[v->recorded.tasks[at].task] = 1;
    for (uint64_t task = begun; task-- > 0;)
        if (seen[task] == 0)
            v->again[a->missing++] = task;
    lki_free(seen);
    return LK_OK;
}

lk_status lki_arrivals_open(lki_versions *v)
{
    lki_arrivals  *a     = v->arrivals;
    const uint64_t count = v->recorded.count;
    a->replayed          = count;
    atomic_store(&a->arrived, count);
    for (uint64_t at = 0; at < count && !lki_has_hosts(v); at++) {
        const lki_recorded_task *task  = &v->recorded.tasks[at];
        lki_live_group          *group = &v->doing[task->group];
        group->done++;
        if (at < count - count % v->options.aggregate)
            continue; /* its version will have been made when the first task begins */
        group->task  = task->task;
        group->reads = task->reads;
        group->state = LKI_GROUP_WAITS;
    }
    return lki_arrivals_list_missing(v);
}

/* ---- Tasks --------------------------------------------------------------------------------- */

/* Returns true if all versions of the recorded schedule have been made. */
static bool is_live(const lki_versions *v, uint64_t applied)
{
    return applied + v->options.aggregate > v->arrivals->replayed;
}

/* Returns the number of tasks that are computed and, in the order of their deadlines, come before
 * that of group `g`. */
static uint32_t count_before(const lki_versions *v, uint32_t g)
{
    uint32_t count = 0;
    for (uint32_t h = 0; h < v->options.groups; h++)
        count += v->doing[h].state == LKI_GROUP_COMPUTES &&
                 (v->doing[h].reads < v->doing[g].reads ||
                  (v->doing[h].reads == v->doing[g].reads && h < g));
    return count;
}

/* Returns true if a task may begin that reads `version`: a bound in versions has a place for it. */
static bool has_place(const lki_versions *v, uint64_t version)
{
    uint64_t places = atomic_load(&v->arrivals->arrived) + 1;
    for (uint32_t g = 0; g < v->options.groups; g++)
        places += v->doing[g].state == LKI_GROUP_COMPUTES;
    return !lki_waits_in_versions(&v->options) || places <= lki_deadline_of(&v->options, version);
}

/* Returns true if the gradient of v->task may have the next place: all other tasks can still have
 * one before their deadlines. */
static bool may_arrive(const lki_versions *v)
{
    const uint64_t  next = atomic_load(&v->arrivals->arrived) + 1;
    lki_live_group *own  = &v->doing[v->task.group];
    bool            may  = true;
    if (!lki_waits_in_versions(&v->options))
        return true;
    own->state = LKI_GROUP_WAITS; /* does not count */
    for (uint32_t g = 0; g < v->options.groups && may; g++)
        may = v->doing[g].state != LKI_GROUP_COMPUTES ||
              next + count_before(v, g) < lki_deadline_of(&v->options, v->doing[g].reads);
    own->state = LKI_GROUP_COMPUTES;
    return may;
}

lki_live_group *lki_arrivals_find_group(const lki_versions *v)
{
    const lk_async *o       = &v->options;
    const bool      tasks   = o->bounded && !o->in_versions;
    lki_live_group *found   = NULL;
    uint64_t        slowest = UINT64_MAX;
    for (uint32_t g = 0; g < o->groups; g++) {
        lki_live_group *group = &v->doing[g];
        slowest               = lki_min(slowest, group->done);
        if (group->state == LKI_GROUP_FREE && group->next == 0 &&
            (found == NULL || group->done < found->done))
            found = group;
    }
    return found != NULL && tasks && found->done > slowest + o->staleness ? NULL : found;
}

/* Returns true if all gradients that the run applies have a task. */
static bool are_all_begun(const lki_versions *v, uint64_t applied)
{
    uint64_t count = applied;
    for (uint32_t g = 0; g < v->options.groups; g++)
        count += v->doing[g].state != LKI_GROUP_FREE;
    return v->options.steps > 0 && count >= v->options.steps * v->options.groups;
}

uint64_t lki_arrivals_next_task(const lki_versions *v)
{
    lki_arrivals *a = v->arrivals;
    return a->missing > 0 ? v->again[--a->missing] : atomic_fetch_add(&a->begun, 1);
}

lk_status lki_arrivals_begin(lk_parallel *parallel, bool *found)
{
    lki_versions *v = parallel->versions;
    *found          = false;
    if (!is_live(v, lki_applied(v)))
        return LK_OK;
    LK_TRY(lki_arrivals_hold(parallel));
    const uint64_t  applied = lki_applied(v);
    const uint64_t  version = applied / v->options.aggregate;
    lki_live_group *group   = are_all_begun(v, applied) || !has_place(v, version)
                                  ? NULL
                                  : lki_arrivals_find_group(v);
    if (group != NULL) {
        group->task  = lki_arrivals_next_task(v);
        group->reads = version;
        group->rank  = parallel->rank;
        group->state = LKI_GROUP_COMPUTES;
        v->at        = LKI_NO_PLACE;
        v->task = (lki_group_task){ group->task, group->reads, (uint32_t)(group - v->doing), 0 };
        *found  = true;
    }
    lki_arrivals_release(v);
    return LK_OK;
}

/* Returns the rank that computes the first task without a place, and the task; the number of ranks
 * if there is none.  Called by the holder. */
static uint32_t find_slowest(const lk_parallel *parallel, uint64_t *task)
{
    const lki_versions *v    = parallel->versions;
    uint32_t            rank = parallel->ranks;
    *task                    = UINT64_MAX;
    for (uint32_t g = 0; g < v->options.groups; g++) {
        const lki_live_group *group = &v->doing[g];
        if (group->state == LKI_GROUP_COMPUTES && group->task < *task) {
            *task = group->task;
            rank  = group->rank;
        }
    }
    return rank;
}

lk_status lki_arrivals_slowest(lk_parallel *parallel, uint64_t *task, uint32_t *rank)
{
    LK_TRY(lki_arrivals_hold(parallel));
    *rank = find_slowest(parallel, task);
    lki_arrivals_release(parallel->versions);
    return LK_OK;
}

/* ---- Gradients ----------------------------------------------------------------------------- */

/* Gives the gradient of v->task the next place, which becomes v->at.  `place` is that of its
 * message.  Called by the holder. */
static lk_status arrive(lk_parallel *parallel, uint64_t gradient, uint32_t place)
{
    lki_versions           *v     = parallel->versions;
    const uint64_t          at    = atomic_load(&v->arrivals->arrived);
    const uint64_t          state = place == LKI_NO_BUFFER ? LKI_CLAIMED + parallel->rank
                                                           : LKI_CLAIM_DONE;
    const lki_recorded_task line  = { .task  = v->task.task,
                                      .reads = v->task.reads,
                                      .group = v->task.group,
                                      .hash  = lki_line_hash(v, at, gradient) };
    LK_TRY(lki_recorded_write(&v->recorded, at, &line));
    v->at                       = at;
    v->task.dropped             = atomic_exchange(&v->common->dropped, 0);
    v->order[at % v->window]    = (lki_arrival){ v->task, line.hash };
    v->place_of[at % v->window] = place;
    memcpy(lki_versions_report(v, at, 0), v->model->reports, v->width * v->model->report_bytes);
    v->doing[v->task.group].state = LKI_GROUP_WAITS;
    v->doing[v->task.group].done++;
    atomic_store(&v->claims[at % v->window], at << LKI_CLAIM_BITS | state);
    atomic_store(&v->arrivals->arrived, at + 1);
    return LK_OK;
}

/* Returns true if the next gradient that arrives can be applied at once, by this rank. */
static bool becomes_next(lk_parallel *parallel)
{
    const lki_versions *v  = parallel->versions;
    const uint64_t      at = atomic_load(&v->arrivals->arrived);
    return v->options.aggregate == 1 && lki_applied(v) == at && lki_may_apply(parallel, at) &&
           lki_become_applier(parallel);
}

/* Becomes the holder when the gradient of v->task may have the next place. */
static lk_status hold_for_place(lk_parallel *parallel)
{
    lki_versions *v     = parallel->versions;
    const int64_t since = lki_now_ms();
    for (;;) {
        LK_TRY(lki_arrivals_hold(parallel));
        if (may_arrive(v))
            return LK_OK;
        const uint32_t slowest = find_slowest(parallel, &(uint64_t){ 0 });
        lki_arrivals_release(v);
        const uint32_t seen = atomic_load(&v->arrivals->releases);
        LK_TRY(lki_await_release(parallel, &v->arrivals->releases, seen, slowest, since));
    }
}

/* Discards the gradient of v->task if it is late, and its message.  Called by the holder, who then
 * is none any more. */
static bool drop_late(const lki_versions *v, uint32_t place)
{
    if (!lki_is_late(&v->options, atomic_load(&v->arrivals->arrived), v->task.reads))
        return false;
    if (place != LKI_NO_BUFFER)
        (void)atomic_fetch_sub(&v->taken[place], 1);
    v->doing[v->task.group].done++;
    v->doing[v->task.group].state = LKI_GROUP_FREE;
    (void)atomic_fetch_add(&v->common->dropped, 1);
    lki_arrivals_release(v);
    lki_versions_changed(v);
    return true;
}

lk_status lki_arrivals_push(lk_parallel *parallel, const lki_gradients *sums)
{
    lki_versions  *v    = parallel->versions;
    const uint64_t hash = lki_gradient_hash(v, sums);
    LK_TRY(hold_for_place(parallel));
    if (drop_late(v, LKI_NO_BUFFER))
        return LK_OK;
    const bool at_once = becomes_next(parallel);
    uint32_t   place   = LKI_NO_BUFFER;
    if (!at_once) { /* the copy takes long, so others may go first */
        lki_arrivals_release(v);
        place = lki_versions_store(v, sums);
        LK_TRY(hold_for_place(parallel));
        if (drop_late(v, place))
            return LK_OK;
    }
    const lk_status status = arrive(parallel, hash, place);
    lki_arrivals_release(v);
    if (status == LK_OK && at_once) {
        (void)lki_look_ahead(v, v->at); /* at the gradient that has arrived */
        return lki_apply_one(parallel, v->at, sums);
    }
    lki_versions_changed(v);
    return status;
}

lk_status lki_arrivals_publish(lk_parallel *parallel, uint64_t end)
{
    lki_versions *v = parallel->versions;
    LK_TRY(lki_arrivals_hold(parallel));
    for (uint64_t at = end - v->options.aggregate; at < end; at++) {
        lki_live_group *group = &v->doing[lki_task_at(v, at)->group];
        if (group->state == LKI_GROUP_WAITS && group->task == lki_task_at(v, at)->task)
            group->state = LKI_GROUP_FREE;
    }
    atomic_store(&v->common->applied, end);
    lki_free_versions(parallel, end);
    lki_arrivals_release(v);
    return LK_OK;
}

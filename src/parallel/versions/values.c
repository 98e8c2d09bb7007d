/* values.c -- the values of asynchronous training between steps: loads, and the tasks in flight for
 * checkpoints.
 *
 * After a step each group has a task in flight, which has read some version.  With these versions,
 * the schedule, and the values of the current version a run goes on with the same bits.  Gradients
 * that have been computed already are not needed: they are computed again.
 */
#include <string.h>

#include "base/memory.h"
#include "parallel/versions/internal.h"

static uint64_t current(const lki_versions *v)
{
    return lki_applied(v) / v->options.aggregate;
}

static void show_current(lki_versions *v)
{
    if (v->sharded.count > 0)
        lki_versions_show(v, lki_sharded_current(v), 0);
    else
        lki_versions_show(v, lki_versions_find(v, current(v)), current(v));
}

/* Returns the version that a group's task has read. */
static uint64_t version_of(lki_versions *v, uint32_t group)
{
    const uint64_t applied = lki_applied(v);
    if (v->arrivals != NULL && !lki_has_hosts(v) && applied > v->arrivals->replayed)
        return v->doing[group].state == LKI_GROUP_FREE ? current(v) : v->doing[group].reads;
    lki_hosts_advance(v, &v->now, applied);
    const lki_task_schedule_group *g = &v->now.groups[group];
    return g->waits || g->reads > current(v) ? current(v) : g->reads;
}

/* Makes room for the version that a group's task has read, if there is none. */
static void make_room(lki_versions *v, uint64_t version)
{
    if (lki_versions_look_up(v, version) == LKI_NO_BUFFER)
        atomic_store(&v->live[lki_versions_free_buffer(v)].tag, version + 1);
}

/* Returns the number of gradients that the recorded schedule has, with their places in the orders
 * of all shards. */
static uint64_t recorded_until(const lki_versions *v)
{
    uint64_t count = v->recorded.count;
    for (uint32_t k = 0; k < v->sharded.count; k++)
        count = lki_min(count, v->recorded.ends[k]);
    return count;
}

lk_status lki_versions_resume(lk_parallel *parallel, uint64_t steps)
{
    lki_versions  *v       = parallel->versions;
    const uint64_t applied = steps * v->options.groups;
    if (lki_applied(v) > applied)
        return lk_fail(LK_EINVAL, "lk_parallel_resume() comes before the first step");
    if (lki_is_live(&v->options) && applied > recorded_until(v)) {
        lki_recorded_discard(&v->recorded);
        return lk_fail(LK_EMISMATCH, "%.900s has %llu gradients, but the run continues after step "
                                     "%llu, which is after %llu: it is not the schedule of this "
                                     "run",
                       v->recorded.path, (unsigned long long)recorded_until(v),
                       (unsigned long long)steps, (unsigned long long)applied);
    }
    LK_TRY(lk_barrier(parallel->comm));
    atomic_store(&v->passed[parallel->rank], steps);
    lki_hosts_advance(v, &v->ahead, applied);
    lki_hosts_resume(parallel, applied);
    if (parallel->local == 0)
        v->common->first = steps;
    if (parallel->local == 0 && v->sharded.count > 0) {
        lki_sharded_begin(v, applied);
    } else if (parallel->local == 0) {
        const uint32_t first = lki_versions_find(v, 0);
        atomic_store(&v->common->applied, applied);
        atomic_store(&v->live[first].tag, current(v) + 1);
        for (uint32_t g = 0; g < v->options.groups; g++)
            make_room(v, version_of(v, g));
    }
    LK_TRY(lk_barrier(parallel->comm));
    show_current(v);
    v->last.schedule_hash = lki_schedule_hash(v, applied);
    return LK_OK;
}

/* Loads a parameter into all versions in memory.  What the tasks of groups have read comes after
 * it. */
static lk_status load_all(lki_versions *v, uint32_t param, const float *values)
{
    for (uint32_t i = 0; i < v->live_count; i++) {
        const uint64_t tag = atomic_load(&v->live[i].tag);
        if (tag == 0 && v->sharded.count == 0)
            continue;
        lki_versions_show(v, i, tag > 0 ? tag - 1 : 0);
        LK_TRY(lk_parallel_load(v->model, param, 0, values));
    }
    return LK_OK;
}

lk_status lki_versions_load(lk_parallel *parallel, uint32_t param, uint32_t which,
                            const float *values)
{
    lki_versions     *v      = parallel->versions;
    const lki_layout *layout = v->model->layout;
    if (param >= layout->param_count || which > lk_optimizer_state_count(&parallel->optimizer))
        return lk_fail(LK_EINVAL, "there is no value %u of parameter %u", which, param);
    LK_TRY(
        lki_verify_same_values(parallel, layout->params[param].name, values, layout->sizes[param]));
    if (parallel->local == 0 && which == 0)
        LK_TRY(load_all(v, param, values));
    show_current(v);
    if (parallel->local == 0 && which > 0)
        LK_TRY(lk_parallel_load(v->model, param, which, values));
    return lk_barrier(parallel->comm);
}

lk_status lki_versions_load_state(lk_parallel *parallel, uint32_t state, const float *values)
{
    lki_versions *v = parallel->versions;
    if (state >= lk_parallel_state_count(parallel))
        return lk_fail(LK_EINVAL, "there is no running state %u", state);
    show_current(v);
    const lki_running *running = &v->model->running;
    LK_TRY(lki_verify_same_values(parallel, "running state", values,
                                  running->of[state % running->count].count));
    if (parallel->local == 0)
        LK_TRY(lk_parallel_load_state(v->model, state, values));
    return lk_barrier(parallel->comm);
}

uint64_t lki_versions_recorded(const lk_parallel *parallel)
{
    return parallel->versions->recorded.count;
}

/* ---- What the tasks of groups have read ---------------------------------------------------- */

uint32_t lki_versions_groups(const lki_versions *v)
{
    return v->options.groups;
}

const char *lki_versions_kept_name(const lki_versions *v, uint32_t param, uint32_t which)
{
    return which == 0 && param < v->model->layout->param_count ? "read" : NULL;
}

static lk_status check_kept(const lki_versions *v, uint32_t param, uint32_t group)
{
    if (param < v->model->layout->param_count && group < v->options.groups)
        return LK_OK;
    return lk_fail(LK_EINVAL, "there is no parameter %u of group %u", param, group);
}

lk_status lki_versions_fetch_kept(lk_parallel *parallel, uint32_t param, uint32_t group,
                                  size_t first, size_t count, float *out)
{
    lki_versions *v = parallel->versions;
    LK_TRY(check_kept(v, param, group));
    if (param == 0 && group == 0 && first == 0) /* a checkpoint is of no use without it */
        LK_TRY(lki_recorded_sync(&v->recorded));
    if (v->sharded.count > 0) {
        lki_sharded_fetch(v, param, group, first, count, out);
        return lki_has_hosts(v) ? lk_broadcast(parallel->comm, out, count * sizeof *out,
                                               group % parallel->ranks)
                                : LK_OK;
    }
    const float *params = lki_versions_params(v, lki_versions_find(v, version_of(v, group)));
    memcpy(out, params + v->model->layout->param_at[param] + first, count * sizeof *out);
    return LK_OK;
}

lk_status lki_versions_load_kept(lk_parallel *parallel, uint32_t param, uint32_t group,
                                 const float *values)
{
    lki_versions *v = parallel->versions;
    LK_TRY(check_kept(v, param, group));
    LK_TRY(lki_verify_same_values(parallel, v->model->layout->params[param].name, values,
                                  v->model->layout->sizes[param]));
    const uint64_t version = v->sharded.count > 0 ? 0 : version_of(v, group);
    /* The current version is there already.  In a live run that goes on, a group whose task is not
     * recorded reads that, and not what its lost task has read. */
    if (parallel->local == 0 && (v->sharded.count > 0 || version != current(v))) {
        lki_versions_show(v, v->sharded.count > 0 ? group : lki_versions_find(v, version),
                          version);
        LK_TRY(lk_parallel_load(v->model, param, 0, values));
    }
    show_current(v);
    return lk_barrier(parallel->comm);
}

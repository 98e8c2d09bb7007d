/* sharded.c -- live runs and replays whose shards apply gradients in orders of their own.
 *
 * The parameters are divided into shards, as those of a parameter server, or into spans.  A rank
 * that begins a task of a live run copies one shard after the other to the buffer of the group,
 * while other ranks change shards, so the versions that it reads may differ.  Its gradient gets the
 * next line of the recorded schedule, and then the rank applies it to one shard after the other.
 * Ranks begin with different shards, so the orders of shards differ.  Each shard has a lock, and
 * nothing else is waited for.  All shards apply the same G gradients in a step: those of its lines.
 *
 * A line is written when the gradient is there, and its place in the order of a shard when the
 * shard is about to apply it.  So whatever ends a run, the schedule has all that had an effect.
 *
 * In a replay, shards apply gradients in the recorded orders.  A version is copied to the buffer of
 * a group as soon as it is there, if the next task of the group reads it, so no version is kept for
 * long.  Ranks take tasks in the order of lines.  A task reads only what the tasks of earlier lines
 * have made, so the first line without a gradient can always be computed, by any number of ranks.
 *
 * A run that goes on first repeats the lines that it has.  The last ones may have places in some
 * shards only: then the other shards apply them when they come.
 *
 * This is on one host.  Over several the places of a line are written with it (sharded_hosts.c).
 */
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "comm/worker.h"
#include "parallel/versions/internal.h"

uint32_t lki_sharded_count(const lki_versions *v)
{
    const size_t spans = v->model->layout->span_count;
    return v->options.consistency == LK_CONSISTENCY_MODEL ? 0
           : v->options.consistency == LK_CONSISTENCY_SPAN
               ? (uint32_t)spans
               : (uint32_t)lki_min(v->options.shards, spans);
}

void lki_sharded_copy(const lki_versions *v, uint32_t shard, uint32_t from, uint32_t to)
{
    const lki_layout *layout = v->model->layout;
    const size_t      first  = lki_shard_first(v, shard);
    const size_t      end    = lki_shard_first(v, shard + 1);
    const float      *in     = lki_versions_params(v, from);
    float            *out    = lki_versions_params(v, to);
    for (size_t i = first; i < end; i++)
        memcpy(out + layout->spans[i].at, in + layout->spans[i].at,
               layout->spans[i].count * sizeof *out);
    memcpy((uint64_t *)(void *)(out + layout->elements) + first,
           (const uint64_t *)(const void *)(in + layout->elements) + first,
           (end - first) * sizeof(uint64_t));
}

uint64_t lki_sharded_hash(const lki_versions *v, uint64_t end)
{
    uint64_t hash = 0;
    for (uint32_t k = 0; k < v->sharded.count; k++) {
        const lki_shard *shard   = &v->sharded.of[k];
        const bool       now     = atomic_load(&shard->applied) == end;
        const uint64_t   words[] = {
            hash, now ? shard->hash
                      : lki_recorded_order_until(&v->recorded, v->options.groups, k, end)
        };
        hash = lki_xxh3(words, sizeof words);
    }
    return end == 0 ? 0 : hash;
}

/* ---- The beginning ------------------------------------------------------------------------- */

/* Makes the recorded lines of a group from `applied` on those that come next. */
static void begin_group(lki_versions *v, uint32_t g, uint64_t applied)
{
    lki_sharded    *s     = &v->sharded;
    lki_live_group *group = &v->doing[g];
    uint64_t        at    = applied;
    while (at < v->recorded.count && v->recorded.tasks[at].group != g)
        at++;
    group->next = at < v->recorded.count ? at + 1 : 0;
    group->done = 0;
    for (uint64_t line = 0; line < lki_min(applied, v->recorded.count); line++)
        group->done += v->recorded.tasks[line].group == g;
    atomic_store(&group->copied, 0);
    for (uint32_t k = 0; k < s->count; k++) {
        s->coming[g * s->count + k] = group->next;
        if (group->next == 0 || lki_recorded_reads(v, at, k) > applied)
            continue;
        lki_sharded_copy(v, k, lki_sharded_current(v), g);
        (void)atomic_fetch_add(&group->copied, 1);
    }
}

void lki_sharded_begin(lki_versions *v, uint64_t applied)
{
    atomic_store(&v->common->applied, applied);
    for (uint32_t k = 0; k < v->sharded.count; k++) {
        lki_shard *shard = &v->sharded.of[k];
        atomic_store(&shard->applied, applied);
        shard->hash = lki_recorded_order_until(&v->recorded, v->options.groups, k, applied);
    }
    for (uint32_t g = 0; g < v->options.groups; g++)
        begin_group(v, g, applied);
}

lk_status lki_sharded_open(lki_versions *v)
{
    atomic_store(&v->arrivals->arrived, v->recorded.count);
    v->arrivals->replayed = v->recorded.count;
    for (uint32_t k = 0; k < v->sharded.count && lki_has_hosts(v); k++)
        v->sharded.orders[k] = lki_recorded_order_until(&v->recorded, v->options.groups, k,
                                                        v->recorded.count);
    lki_sharded_begin(v, 0);
    return v->options.record != NULL ? lki_arrivals_list_missing(v) : LK_OK;
}

/* ---- Locks of shards ----------------------------------------------------------------------- */

static bool try_hold(const lk_parallel *parallel, lki_shard *shard, uint32_t *by)
{
    *by = 0;
    return atomic_compare_exchange_strong(&shard->holder, by, parallel->rank + 1);
}

static lk_status hold_shard(lk_parallel *parallel, lki_shard *shard)
{
    const int64_t since  = lki_now_ms();
    lk_status     status = LK_OK;
    uint32_t      by;
    if (try_hold(parallel, shard, &by))
        return LK_OK;
    (void)atomic_fetch_add(&shard->waiting, 1);
    for (;;) {
        const uint32_t seen = atomic_load(&shard->releases);
        if (try_hold(parallel, shard, &by))
            break;
        status = lki_await_release(parallel, &shard->releases, seen, by - 1, since);
        if (status != LK_OK)
            break;
    }
    (void)atomic_fetch_sub(&shard->waiting, 1);
    return status;
}

static void release_shard(lki_shard *shard)
{
    atomic_store(&shard->holder, 0);
    if (atomic_load(&shard->waiting) > 0)
        lki_comm_wake_word(&shard->releases);
}

/* ---- Tasks --------------------------------------------------------------------------------- */

/* Returns the group of the first recorded line that this host can compute; NULL if there is
 * none. */
static lki_live_group *find_recorded(const lk_parallel *parallel)
{
    const lki_versions *v     = parallel->versions;
    const uint64_t      steps = v->options.steps;
    const uint64_t      end   = lki_min(lki_applied(v) + v->window,
                                        steps > 0 ? steps * v->options.groups : UINT64_MAX);
    lki_live_group     *found = NULL;
    for (uint32_t g = 0; g < v->options.groups; g++) {
        lki_live_group *group = &v->doing[g];
        if (group->state == LKI_GROUP_FREE && group->next > 0 && group->next <= end &&
            atomic_load(&group->copied) == v->sharded.count &&
            lki_hosts_home(parallel, group->next - 1) == v->hosts.here &&
            (found == NULL || group->next < found->next))
            found = group;
    }
    return found;
}

/* Returns true if all gradients that the run applies have a task, on one host. */
static bool are_all_begun(const lki_versions *v)
{
    uint64_t count = atomic_load(&v->arrivals->arrived);
    for (uint32_t g = 0; g < v->options.groups; g++)
        count += v->doing[g].state == LKI_GROUP_COMPUTES && v->doing[g].line == LKI_NO_PLACE;
    return v->options.steps > 0 && count >= v->options.steps * v->options.groups;
}

/* Returns a group that can begin a task without a line; NULL if there is none. */
static lki_live_group *find_live(lk_parallel *parallel)
{
    const lki_versions *v = parallel->versions;
    return v->options.record == NULL ? NULL
           : lki_has_hosts(v)        ? lki_hosts_find_group(parallel)
           : are_all_begun(v)        ? NULL
                                     : lki_arrivals_find_group(v);
}

void lki_sharded_take(lki_versions *v, lki_live_group *group)
{
    lki_sharded    *s  = &v->sharded;
    const uint32_t  g  = (uint32_t)(group - v->doing);
    const uint64_t  at = group->next - 1;
    const uint64_t  next = v->recorded.tasks[at].next;
    group->task = v->recorded.tasks[at].task;
    group->next = next == UINT64_MAX ? 0 : next + 1;
    atomic_store(&group->line, at);
    (void)atomic_fetch_sub(&group->copied, s->count);
    for (uint32_t k = 0; k < s->count; k++)
        s->reads[g * s->count + k] = lki_recorded_reads(v, at, k);
}

/* Reads all shards for the new task of a group. */
static lk_status read_shards(lk_parallel *parallel, uint32_t g)
{
    const lki_versions *v = parallel->versions;
    const lki_sharded  *s = &v->sharded;
    for (uint32_t k = 0; k < s->count; k++) {
        LK_TRY(hold_shard(parallel, &s->of[k]));
        s->reads[g * s->count + k] = atomic_load(&s->of[k].applied);
        lki_sharded_copy(v, k, lki_sharded_current(v), g);
        release_shard(&s->of[k]);
    }
    return LK_OK;
}

lk_status lki_sharded_claim(lk_parallel *parallel, bool *found)
{
    lki_versions *v = parallel->versions;
    *found          = false;
    if (lki_has_hosts(v) && !lki_hosts_reserve(v))
        return LK_OK;
    LK_TRY(lki_arrivals_hold(parallel));
    lki_live_group *group    = find_recorded(parallel);
    const bool      recorded = group != NULL;
    if (!recorded)
        group = find_live(parallel);
    if (recorded) {
        lki_sharded_take(v, group);
    } else if (group != NULL) {
        group->task = lki_has_hosts(v) ? v->ahead.groups[group - v->doing].task
                                       : lki_arrivals_next_task(v);
        atomic_store(&group->line, LKI_NO_PLACE);
    }
    if (group != NULL) {
        group->rank  = parallel->rank;
        group->state = LKI_GROUP_COMPUTES;
        v->at        = group->line;
        v->task      = (lki_group_task){ .task  = group->task,
                                         .group = (uint32_t)(group - v->doing) };
        *found       = true;
    }
    lki_arrivals_release(v);
    return *found && !recorded ? read_shards(parallel, v->task.group) : LK_OK;
}

/* ---- Gradients ----------------------------------------------------------------------------- */

/* Clips the gradient, and checks that it is finite.  Fills in the group's update. */
static lk_status measure(lk_parallel *parallel, const lki_gradients *sums, lk_step_result *result)
{
    lki_versions   *v     = parallel->versions;
    lk_parallel    *model = v->model;
    lki_live_group *group = &v->doing[v->task.group];
    for (uint32_t leaf = 0; leaf < v->width; leaf++)
        lki_report_of(model, leaf)->micros = model->micro_count;
    model->now.named  = v->task.task / v->options.groups + 1;
    model->now.micros = model->micro_count;
    model->now.seed   = 1;
    LK_TRY(lki_step_measure(model, sums, result, &group->update));
    group->skipped = result->skipped;
    return LK_OK;
}

/* Returns the versions that v->task has read. */
static const uint64_t *reads_of(const lki_versions *v)
{
    return v->sharded.reads + (size_t)v->task.group * v->sharded.count;
}

/* Returns the hash of line `at`, which is that of v->task. */
static uint64_t line_hash(const lki_versions *v, uint64_t at, uint64_t gradient)
{
    const lki_recorded_task line = { .task = v->task.task, .group = v->task.group };
    return lki_recorded_line_hash(lki_hash_before(v, at), &line, v->sharded.count, reads_of(v),
                                  gradient);
}

/* Gives the gradient of v->task its line, which becomes v->at.  Called by the holder. */
static lk_status arrive(lk_parallel *parallel, uint64_t gradient)
{
    lki_versions     *v     = parallel->versions;
    const bool        known = v->at != LKI_NO_PLACE;
    const uint64_t    at    = known ? v->at : atomic_load(&v->arrivals->arrived);
    lki_recorded_task line  = { .task = v->task.task, .group = v->task.group };
    line.hash               = line_hash(v, at, gradient);
    if (!known) {
        LK_TRY(lki_recorded_write_line(&v->recorded, at, &line, 0, reads_of(v), NULL));
        atomic_store(&v->arrivals->arrived, at + 1);
    }
    v->at                    = at;
    v->order[at % v->window] = (lki_arrival){ v->task, line.hash };
    return LK_OK;
}

/* Lets all ranks see the gradient of v->task, which has its line. */
static void publish(lk_parallel *parallel, const lk_step_result *result)
{
    lki_versions   *v     = parallel->versions;
    lki_live_group *group = &v->doing[v->task.group];
    memcpy(lki_versions_report(v, v->at, 0), v->model->reports,
           v->width * v->model->report_bytes);
    v->sharded.norms[v->at % v->window] = result->grad_norm;
    group->hash = v->order[v->at % v->window].hash;
    group->done++;
    atomic_store(&group->line, v->at);
    group->state = LKI_GROUP_WAITS;
}

/* So the first line that differs is named, whichever rank is faster.  (A changed hash makes the
 * next line differ, too.)  All other ones can be computed before. */
lk_status lki_sharded_check(const lki_versions *v, uint64_t *task)
{
    const lki_live_group *found = NULL;
    uint64_t              first = v->recorded.count;
    for (uint32_t g = 0; g < v->options.groups; g++) {
        const lki_live_group *group = &v->doing[g];
        const bool has = group->state == LKI_GROUP_COMPUTES || group->state == LKI_GROUP_DIFFERS;
        const uint64_t line = has               ? group->line
                              : group->next > 0 ? group->next - 1
                                                : LKI_NO_PLACE;
        if (line < first) {
            first = line;
            found = group;
        }
    }
    if (found == NULL || found->state != LKI_GROUP_DIFFERS)
        return LK_OK;
    *task = found->task;
    return lki_fail_gradient(v, first);
}

/* Hands over the gradient of v->task, which is finite, or says that it is not the recorded one.
 * Called by the holder. */
static lk_status hand_over(lk_parallel *parallel, const lk_step_result *result, uint64_t gradient,
                           bool same, uint64_t *task)
{
    lki_versions *v = parallel->versions;
    if (same) {
        LK_TRY(arrive(parallel, gradient));
        publish(parallel, result);
    } else {
        v->doing[v->task.group].state = LKI_GROUP_DIFFERS;
    }
    return lki_sharded_check(v, task);
}

/* Stores the gradient of v->task where all ranks of this host see it, and hands it over. */
static lk_status store(lk_parallel *parallel, const lki_gradients *sums,
                       const lk_step_result *result, uint64_t gradient, bool same, uint64_t *task)
{
    lki_versions *v       = parallel->versions;
    const size_t  n       = v->model->layout->grad_elements;
    float        *message = lki_versions_message(v, v->task.group);
    if (same && lki_has_hosts(v))
        return lki_hosts_push(parallel, sums, gradient, result->grad_norm);
    if (!lki_has_hosts(v)) {
        memcpy(message, sums->gradients, n * sizeof *message);
        memcpy(message + n, sums->states, (v->model->width - n) * sizeof *message);
    }
    LK_TRY(lki_arrivals_hold(parallel));
    const lk_status status = hand_over(parallel, result, gradient, same, task);
    lki_arrivals_release(v);
    return status;
}

lk_status lki_sharded_push(lk_parallel *parallel, const lki_gradients *sums)
{
    lki_versions      *v        = parallel->versions;
    const uint64_t     gradient = lki_gradient_hash(v, sums);
    const bool         same     = v->at == LKI_NO_PLACE ||
                      line_hash(v, v->at, gradient) == v->recorded.tasks[v->at].hash;
    uint64_t           task     = v->task.task; /* of a failure */
    lk_step_result     result   = { 0 };
    lk_status          status   = same ? measure(parallel, sums, &result) : LK_OK;
    if (status == LK_OK)
        status = store(parallel, sums, &result, gradient, same, &task);
    if (status != LK_OK) {
        lki_fail_all(parallel, task);
        return status;
    }
    return lki_sharded_apply(parallel, true);
}

/* ---- Orders -------------------------------------------------------------------------------- */

/* Returns true if a shard applies the gradient of a group next.  Over several hosts those without
 * a recorded place are in the order of lines. */
static bool is_next(const lki_versions *v, uint32_t k, uint32_t g, uint64_t at)
{
    const lki_sharded *s    = &v->sharded;
    const uint64_t     line = atomic_load(&v->doing[g].line);
    if (v->doing[g].state != LKI_GROUP_WAITS ||
        line / v->options.groups != at / v->options.groups ||
        atomic_load(&s->placed[g * s->count + k]) == line + 1)
        return false;
    const uint32_t place = line < v->recorded.count
                               ? v->recorded.cells[line * s->count + k].place
                               : LKI_NOT_PLACED;
    return place != LKI_NOT_PLACED ? place == at % v->options.groups
           : lki_has_hosts(v)      ? line == at
                                   : at >= v->recorded.ends[k];
}

/* Returns the group whose gradient a shard applies next, this rank's own one if it may; the number
 * of groups if there is none. */
static uint32_t find_next(const lk_parallel *parallel, uint32_t k)
{
    const lki_versions *v      = parallel->versions;
    const uint32_t      groups = v->options.groups;
    const uint64_t      at     = atomic_load(&v->sharded.of[k].applied);
    if (!lki_may_apply(parallel, at))
        return groups;
    for (uint32_t i = 0; i < groups; i++)
        if (is_next(v, k, (v->task.group + i) % groups, at))
            return (v->task.group + i) % groups;
    return groups;
}

lk_status lki_sharded_apply(lk_parallel *parallel, bool waits)
{
    const lki_versions *v      = parallel->versions;
    const uint32_t      count  = v->sharded.count;
    const uint32_t      first  = (uint32_t)((uint64_t)count * parallel->rank / parallel->ranks);
    bool                news   = waits; /* a new gradient, or a new version */
    lk_status           status = LK_OK;
    for (uint32_t i = 0; i < count && status == LK_OK; i++) {
        const uint32_t k     = (first + i) % count;
        lki_shard     *shard = &v->sharded.of[k];
        uint32_t       g = find_next(parallel, k), by;
        if (g == v->options.groups)
            continue;
        if (waits)
            LK_TRY(hold_shard(parallel, shard));
        else if (!try_hold(parallel, shard, &by))
            continue;
        while (status == LK_OK && (g = find_next(parallel, k)) < v->options.groups) {
            news   = true;
            status = lki_sharded_update(parallel, k, g);
            if (status != LK_OK)
                lki_fail_all(parallel, v->doing[g].task);
        }
        release_shard(shard);
    }
    if (news)
        lki_versions_changed(v);
    return status;
}

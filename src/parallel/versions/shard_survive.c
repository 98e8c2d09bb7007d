/* shard_survive.c -- goes on after the death of a rank, on one host, with versions of shards.
 *
 * A shard is updated in place.  So before the first change, a rank saves all that the update
 * changes, and the number of gradients that the shard has applied.  If the shard still has this
 * number after the death of the rank, the values are put back, and the update is made again.
 *
 * All else follows from the file, from the numbers of gradients that shards have applied, and from
 * groups whose gradient waits, which is published by one store:
 *
 *   a line    with a gradient that waits: shards apply it where they have not.  Without it no shard
 *             has: what the task has read is in the buffer of its group, so it is computed again.
 *   no line   The task has had no effect.  It begins again before new ones, and reads anew.
 *   a place   is in the order of its shard, whether the shard has come to it or not.
 *
 * One rank repairs.  It does not change what this follows from, so if it dies, the next one does
 * the same.
 */
#include "parallel/versions/shard_survive.h"

#include <string.h>

#include "base/memory.h"

/* ---- Updates that were broken off ---------------------------------------------------------- */

size_t lki_shard_saved_floats(const lki_versions *v)
{
    const lk_parallel *model  = v->model;
    const lki_layout  *layout = model->layout;
    const size_t       spans  = (layout->span_count + v->sharded.count - 1) / v->sharded.count;
    const size_t       most   = lki_min(layout->elements, spans * LKI_NORM_BLOCK);
    return most * (2 + lk_optimizer_state_count(&model->optimizer)) +
           spans * sizeof(uint64_t) / sizeof(float) + 2 * model->state_width;
}

/* Values that are saved, or put back, one part after the other. */
typedef struct {
    char *at;
    bool  back;
} saved_values;

static void move(saved_values *saved, void *values, size_t bytes)
{
    if (bytes > 0)
        memcpy(saved->back ? values : saved->at, saved->back ? saved->at : values, bytes);
    saved->at += bytes;
}

/* Saves or puts back what the update of a shard by the gradient of a group changes, for rank
 * `rank`. */
static void move_shard(lki_versions *v, uint32_t rank, uint32_t k, uint32_t g, bool back)
{
    const lk_parallel  *model  = v->model;
    const uint32_t      states = lk_optimizer_state_count(&model->optimizer);
    const lki_gradients sums   = { .gradients = lki_sharded_message(v, g) };
    saved_values saved = { (char *)(v->sharded.values + rank * v->sharded.saved_floats), back };
    lki_versions_show(v, lki_sharded_current(v), 0);
    for (size_t i = lki_shard_first(v, k); i < lki_shard_first(v, k + 1); i++) {
        const lki_param_span *span  = &model->layout->spans[i];
        const size_t          bytes = span->count * sizeof(float);
        move(&saved, model->params + span->at, bytes);
        move(&saved, lki_gradient_of(model, &sums, span, 0), bytes);
        for (uint32_t s = 0; s < states; s++)
            move(&saved, model->optimizer_state[s] + span->shard_at, bytes);
        move(&saved, &model->owned.hashes[i], sizeof *model->owned.hashes);
    }
    if (k > 0)
        return;
    move(&saved, model->running.values, model->state_width * sizeof(float));
    if (model->optimizer.ema > 0)
        move(&saved, model->running.mean, model->state_width * sizeof(float));
}

void lki_shard_save(const lk_parallel *parallel, uint32_t shard, uint32_t group)
{
    lki_versions    *v     = parallel->versions;
    lki_saved_shard *saved = &v->sharded.saved[parallel->rank];
    atomic_store(&saved->shard, 0);
    atomic_signal_fence(memory_order_seq_cst);
    move_shard(v, parallel->rank, shard, group, false);
    saved->group   = group;
    saved->applied = atomic_load(&v->sharded.of[shard].applied);
    atomic_store(&saved->shard, shard + 1);
    atomic_signal_fence(memory_order_seq_cst); /* before any value changes */
}

static void put_back(lki_versions *v)
{
    for (uint32_t r = 0; r < v->seats; r++) {
        const lki_saved_shard *saved = &v->sharded.saved[r];
        const uint32_t         shard = atomic_load(&saved->shard);
        if (shard > 0 && atomic_load(&v->sharded.of[shard - 1].applied) == saved->applied)
            move_shard(v, r, shard - 1, saved->group, true);
    }
    for (uint32_t r = 0; r < v->seats; r++)
        atomic_store(&v->sharded.saved[r].shard, 0);
}

/* ---- What the file says -------------------------------------------------------------------- */

/* Returns the end of the lines that may be in the step in progress. */
static uint64_t end_of_step(const lki_versions *v)
{
    return lki_min(v->recorded.count, lki_applied(v) + v->options.groups);
}

/* Returns true if a shard has applied the gradient of line `at`. */
static bool has_applied(const lki_versions *v, uint64_t at, uint32_t k)
{
    const uint32_t place = v->recorded.cells[at * v->sharded.count + k].place;
    return place != LKI_NOT_PLACED && at - at % v->options.groups + place <
                                          atomic_load(&v->sharded.of[k].applied);
}

/* Returns true if all shards have applied the gradient of line `at`. */
static bool is_over(const lki_versions *v, uint64_t at)
{
    uint32_t k = 0;
    while (k < v->sharded.count && has_applied(v, at, k))
        k++;
    return k == v->sharded.count;
}

/* Returns true if the gradient of line `at` waits. */
static bool waits(const lki_versions *v, uint64_t at)
{
    const lki_live_group *group = &v->doing[v->recorded.tasks[at].group];
    return group->state == LKI_GROUP_WAITS && atomic_load(&group->line) == at;
}

uint32_t lki_shards_unfinished(const lki_versions *v)
{
    uint32_t count = v->options.groups;
    for (uint64_t at = lki_applied(v); at < end_of_step(v); at++)
        count -= is_over(v, at) || waits(v, at) ? 1 : 0;
    return count;
}

/* ---- Repairs ------------------------------------------------------------------------------- */

/* Frees a shard, and counts what it has applied in the step in progress. */
static void repair_shard(lki_versions *v, uint32_t k)
{
    lki_shard *shard = &v->sharded.of[k];
    atomic_store(&shard->holder, 0);
    atomic_store(&shard->waiting, 0);
    shard->hash          = lki_recorded_order_until(&v->recorded, v->options.groups, k,
                                                    atomic_load(&shard->applied));
    shard->staleness     = 0;
    shard->staleness_max = 0;
    memset(shard->staleness_bins, 0, sizeof shard->staleness_bins);
    for (uint64_t at = lki_applied(v); at < end_of_step(v); at++)
        if (has_applied(v, at, k))
            lki_shard_note(shard, lki_applied(v) +
                                      v->recorded.cells[at * v->sharded.count + k].place -
                                      lki_recorded_reads(v, at, k));
}

/* Makes line `next` - 1 the one that a group reads next of a shard, whose version may be there
 * already. */
static void expect(lki_versions *v, uint32_t g, uint32_t k, uint64_t next)
{
    const uint64_t applied = atomic_load(&v->sharded.of[k].applied);
    v->sharded.coming[g * v->sharded.count + k] = next;
    if (next == 0 || lki_recorded_reads(v, next - 1, k) > applied)
        return;
    if (lki_recorded_reads(v, next - 1, k) == applied)
        lki_sharded_copy(v, k, lki_sharded_current(v), g);
    (void)atomic_fetch_add(&v->doing[g].copied, 1);
}

/* Lets a group begin its first line that has no gradient, or a new task, or wait with its
 * gradient. */
static void repair_group(lki_versions *v, uint32_t g)
{
    lki_sharded    *s     = &v->sharded;
    lki_live_group *group = &v->doing[g];
    uint64_t        at    = 0;
    group->done = 0;
    for (; at < v->recorded.count && (v->recorded.tasks[at].group != g ||
                                      at < lki_applied(v) || is_over(v, at)); at++)
        group->done += v->recorded.tasks[at].group == g;
    const bool there = at < v->recorded.count, kept = there && waits(v, at);
    group->done += kept;
    group->next = kept ? v->recorded.tasks[at].next + 1 : there ? at + 1 : 0;
    atomic_store(&group->line, kept ? at : LKI_NO_PLACE);
    atomic_store(&group->copied, 0);
    atomic_store(&group->placed, 0);
    for (uint32_t k = 0; k < s->count; k++) {
        const bool placed = kept && has_applied(v, at, k);
        atomic_store(&s->placed[g * s->count + k], placed ? at + 1 : 0);
        if (kept && !placed)
            s->coming[g * s->count + k] = at + 1;
        else
            expect(v, g, k, group->next);
        (void)atomic_fetch_add(&group->placed, placed);
    }
    group->state = kept ? LKI_GROUP_WAITS : LKI_GROUP_FREE;
}

/* Completes the step in progress if all shards have ended it. */
static void repair_step(const lk_parallel *parallel)
{
    const lki_versions *v     = parallel->versions;
    const uint64_t      end   = lki_applied(v) + v->options.groups;
    uint32_t            ended = 0;
    for (uint32_t k = 0; k < v->sharded.count; k++)
        ended += atomic_load(&v->sharded.of[k].applied) >= end;
    atomic_store(v->sharded.complete, ended);
    if (ended == v->sharded.count)
        lki_shards_complete(parallel, end);
}

lk_status lki_shards_repair(lk_parallel *parallel)
{
    lki_versions *v = parallel->versions;
    put_back(v);
    for (uint32_t k = 0; k < v->sharded.count; k++)
        repair_shard(v, k);
    for (uint32_t g = 0; g < v->options.groups; g++)
        repair_group(v, g);
    repair_step(parallel);
    v->arrivals->missing  = 0;
    v->arrivals->replayed = v->recorded.count;
    atomic_store(&v->arrivals->arrived, v->recorded.count);
    return v->options.record != NULL ? lki_arrivals_list_missing(v) : LK_OK;
}

/* shard_updates.c -- applies a gradient to one shard, and completes steps whose shards are done. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "parallel/versions/internal.h"
#include "parallel/versions/shard_survive.h"

/* Writes the place of a gradient in the order of a shard or, if it is recorded, compares the order
 * with the recorded one.  Over several hosts the place has been written with the line. */
static lk_status place(lki_versions *v, uint32_t k, const lki_live_group *group, uint64_t at)
{
    lki_shard     *shard = &v->sharded.of[k];
    const uint32_t order = (uint32_t)(at % v->options.groups);
    const uint64_t hash  = lki_recorded_order_hash(shard->hash, group->hash, at);
    const uint64_t line  = group->line;
    if (at >= v->recorded.ends[k]) {
        if (!lki_has_hosts(v))
            LK_TRY(lki_recorded_write_place(&v->recorded, line, k, order, (uint16_t)hash));
    } else if (v->recorded.cells[line * v->sharded.count + k].check != (uint16_t)hash) {
        return lk_fail(LK_EMISMATCH, "task %llu, in line %llu of %.500s, has another place in the "
                                     "order of shard %u than in the live run: the schedule was "
                                     "changed", (unsigned long long)group->task,
                       (unsigned long long)line + 3, v->recorded.path, k);
    }
    shard->hash = hash;
    return LK_OK;
}

/* Changes the parameters of a shard by the gradient of a group. */
static lk_status change(const lk_parallel *parallel, uint32_t k, uint32_t g, uint64_t at)
{
    lki_versions           *v         = parallel->versions;
    lk_parallel            *model     = v->model;
    const lki_live_group   *group     = &v->doing[g];
    const uint64_t          staleness = at - v->sharded.reads[g * v->sharded.count + k];
    float                  *message   = lki_sharded_message(v, g);
    const lki_gradients     sums      = { .gradients = message,
                                          .states = message + model->layout->grad_elements };
    const lki_part_of_step  part      = { .first   = lki_shard_first(v, k),
                                          .end     = lki_shard_first(v, k + 1),
                                          .running = k == 0 };
    lk_update               update    = group->update;
    update.step = at;
    update.lr   = v->options.rate_by_staleness && staleness > 1 ? v->lr / (double)staleness : v->lr;
    lki_versions_show(v, lki_sharded_current(v), 0);
    if (group->skipped) {
        if (at == 0)
            lki_begin_means(model, part.first, part.end, part.running);
        return LK_OK;
    }
    if (part.running)
        memcpy(model->reports, lki_versions_report(v, group->line, 0),
               v->width * model->report_bytes);
    model->now.named         = group->task / v->options.groups + 1;
    model->clip.compensation = v->options.compensation;
    model->clip.read         = lki_versions_params(v, g);
    const lki_gradients own  = lki_sharded_own(parallel, group->message, sums, &part);
    return lki_step_update_part(model, &own, &update, &part);
}

void lki_shard_note(lki_shard *shard, uint64_t staleness)
{
    shard->staleness += staleness;
    shard->staleness_max = (uint32_t)lki_max(shard->staleness_max, staleness);
    shard->staleness_bins[lki_staleness_bin(staleness)]++;
}

/* Copies the version that a shard has got to the groups whose next recorded tasks read it.  The
 * gradient of group `g` is the one that was applied. */
static void give(lki_versions *v, uint32_t k, uint32_t g, uint64_t version)
{
    const lki_sharded *s    = &v->sharded;
    const uint64_t     line = v->doing[g].line;
    if (line < v->recorded.count) {
        const uint64_t next           = v->recorded.tasks[line].next;
        s->coming[g * s->count + k] = next == UINT64_MAX ? 0 : next + 1;
    }
    for (uint32_t h = 0; h < v->options.groups; h++) {
        const uint64_t coming = s->coming[h * s->count + k];
        if (coming == 0 || lki_recorded_reads(v, coming - 1, k) != version)
            continue;
        lki_sharded_copy(v, k, lki_sharded_current(v), h);
        (void)atomic_fetch_add(&v->doing[h].copied, 1);
    }
}

void lki_shards_complete(const lk_parallel *parallel, uint64_t end)
{
    lki_versions *v    = parallel->versions;
    lki_step_sums sums = { .squares = 0 };
    for (uint64_t at = end - v->options.groups; at < end; at++) {
        const double norm       = v->sharded.norms[at % v->window];
        v->tasks[at % v->window] = v->order[at % v->window].task;
        sums.squares += norm * norm;
    }
    for (uint32_t k = 0; k < v->sharded.count; k++) {
        lki_shard *shard = &v->sharded.of[k];
        sums.staleness += shard->staleness;
        sums.staleness_max = (uint32_t)lki_max(sums.staleness_max, shard->staleness_max);
        for (uint32_t b = 0; b < LK_STALENESS_BINS; b++)
            sums.staleness_bins[b] += shard->staleness_bins[b];
        shard->staleness     = 0;
        shard->staleness_max = 0;
        memset(shard->staleness_bins, 0, sizeof shard->staleness_bins);
    }
    lki_end_step(parallel, end, &sums);
    atomic_store(v->sharded.complete, 0);
    atomic_store(&v->common->applied, end);
}

lk_status lki_sharded_update(lk_parallel *parallel, uint32_t k, uint32_t g)
{
    lki_versions   *v     = parallel->versions;
    lki_sharded    *s     = &v->sharded;
    lki_shard      *shard = &s->of[k];
    lki_live_group *group = &v->doing[g];
    const uint64_t  at    = atomic_load(&shard->applied);

    LK_TRY(place(v, k, group, at));
    if (s->saves)
        lki_shard_save(parallel, k, g);
    LK_TRY(change(parallel, k, g, at));
    lki_shard_note(shard, at - s->reads[g * s->count + k]);
    atomic_store(&s->placed[g * s->count + k], group->line + 1);
    atomic_store(&shard->applied, at + 1);
    give(v, k, g, at + 1);
    if (atomic_fetch_add(&group->placed, 1) + 1 == s->count) {
        atomic_store(&group->placed, 0);
        if (lki_has_hosts(v))
            (void)atomic_fetch_sub(&v->taken[group->message], 1);
        group->state = LKI_GROUP_FREE;
    }
    if ((at + 1) % v->options.groups == 0 && atomic_fetch_add(s->complete, 1) + 1 == s->count)
        lki_shards_complete(parallel, at + 1);
    return LK_OK;
}

void lki_sharded_fetch(const lki_versions *v, uint32_t param, uint32_t g, size_t first,
                       size_t count, float *out)
{
    const lki_layout  *layout  = v->model->layout;
    const lki_sharded *s       = &v->sharded;
    const float       *read    = lki_versions_params(v, g);
    const float       *current = lki_versions_params(v, lki_sharded_current(v));
    uint32_t           k       = 0;
    for (size_t i = layout->first_span[param]; i < layout->first_span[param + 1]; i++) {
        const lki_param_span *span = &layout->spans[i];
        const size_t          from = lki_max(first, span->inside);
        const size_t          end  = lki_min(first + count, span->inside + span->count);
        while (lki_shard_first(v, k + 1) <= i)
            k++;
        const uint64_t coming = s->coming[g * s->count + k];
        const bool     has    = coming > 0 ? lki_recorded_reads(v, coming - 1, k) <= lki_applied(v)
                                           : v->doing[g].state != LKI_GROUP_FREE;
        if (end > from)
            memcpy(out + (from - first), (has ? read : current) + span->at + (from - span->inside),
                   (end - from) * sizeof *out);
    }
}

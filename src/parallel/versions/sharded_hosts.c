/* sharded_hosts.c -- shards of a run over several hosts.
 *
 * Each host has all shards, and a task reads those of its own host, one after the other, while
 * other ranks change them.  So the versions that it reads may differ, as on one host.  They go to
 * host 0 with the gradient.  Host 0 writes the line, and sends the gradient to all other hosts.
 * Every host applies every gradient to every shard.
 *
 * All shards apply gradients in the order of lines, each when its host comes to it.  So a line has
 * the places of its gradient, and they are not sent.  If each shard had an order of its own, one
 * host would have to decide on it, and each place would have to be written on host 0 before any
 * host applies the gradient.  What a task can read would be the same.  A schedule that was recorded
 * on one host has such orders, and hosts follow them in a replay.
 *
 * A group has one gradient at a time on a host: the next one is taken in when the last one has been
 * applied to all shards.
 */
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "parallel/versions/internal.h"

/* The part of an envelope for shards, after the reports.  The versions that the task has read come
 * after it. */
typedef struct {
    lk_update update;
    double    norm;
    bool      skipped;
} measured;

size_t lki_sharded_envelope_bytes(const lki_versions *v)
{
    return v->sharded.count > 0 ? sizeof(measured) + v->sharded.count * sizeof(uint64_t) : 0;
}

static measured *measured_of(const lki_versions *v, uint32_t message)
{
    char *reports = (char *)(lki_envelope_of(v, message) + 1);
    return (measured *)(void *)(reports + v->width * v->model->report_bytes);
}

static uint64_t *reads_of(const lki_versions *v, uint32_t message)
{
    return (uint64_t *)(void *)(measured_of(v, message) + 1);
}

void lki_sharded_describe(const lki_versions *v, uint32_t message, double norm)
{
    const uint32_t        g     = lki_envelope_of(v, message)->group;
    const lki_live_group *group = &v->doing[g];
    *measured_of(v, message)    = (measured){ group->update, norm, group->skipped };
    memcpy(reads_of(v, message), v->sharded.reads + (size_t)g * v->sharded.count,
           v->sharded.count * sizeof(uint64_t));
}

uint64_t lki_sharded_line_hash(const lki_versions *v, uint32_t message, uint64_t at)
{
    const lki_envelope     *e    = lki_envelope_of(v, message);
    const lki_recorded_task line = { .task = e->task, .group = e->group };
    return lki_recorded_line_hash(lki_hash_before(v, at), &line, v->sharded.count,
                                  reads_of(v, message), e->gradient);
}

lk_status lki_sharded_write(const lki_versions *v, uint32_t message, uint64_t at, uint64_t hash)
{
    const lki_envelope     *e    = lki_envelope_of(v, message);
    const lki_recorded_task line = { .task = e->task, .group = e->group, .hash = hash };
    for (uint32_t k = 0; k < v->sharded.count; k++)
        v->sharded.orders[k] = lki_recorded_order_hash(v->sharded.orders[k], hash, at);
    return lki_recorded_write_line(&v->recorded, at, &line, v->options.groups,
                                   reads_of(v, message), v->sharded.orders);
}

void lki_sharded_deliver(lki_versions *v, uint32_t message, uint64_t at)
{
    const lki_envelope *e     = lki_envelope_of(v, message);
    const measured     *m     = measured_of(v, message);
    lki_live_group     *group = &v->doing[e->group];
    if (group->next == at + 1) /* another host has computed it */
        lki_sharded_take(v, group);
    memcpy(v->sharded.reads + (size_t)e->group * v->sharded.count, reads_of(v, message),
           v->sharded.count * sizeof(uint64_t));
    v->sharded.norms[at % v->window] = m->norm;
    group->task                      = e->task;
    group->hash                      = v->order[at % v->window].hash;
    group->update                    = m->update;
    group->skipped                   = m->skipped;
    group->message                   = message;
    atomic_store(&group->line, at);
    group->state = LKI_GROUP_WAITS;
}

lki_gradients lki_sharded_own(const lk_parallel *parallel, uint32_t message, lki_gradients sums,
                              const lki_part_of_step *part)
{
    const lki_versions *v       = parallel->versions;
    const lk_parallel  *model   = v->model;
    const bool          changes = model->clip.value > 0 || model->clip.compensation > 0;
    if (!lki_has_hosts(v) || !changes || atomic_load(&v->taken[message]) == 1)
        return sums;
    const lki_gradients own = {
        .gradients = lki_versions_message(v, v->message_count + parallel->local),
        .states    = sums.states
    };
    for (size_t i = part->first; i < part->end; i++) {
        const lki_param_span *span = &model->layout->spans[i];
        memcpy(lki_gradient_of(model, &own, span, 0), lki_gradient_of(model, &sums, span, 0),
               span->count * sizeof(float));
    }
    return own;
}

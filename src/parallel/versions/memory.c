/* memory.c -- the arena of asynchronous training.
 *
 * Versions in memory: those that the G tasks in flight read, the current one, and the one that is
 * being written; if late tasks are computed twice, one more for each rank.  Messages: at most one
 * for each task in flight, K - 1 that wait for others of their version, and K of the version that
 * has just been published and are about to be freed.
 *
 * Over several hosts messages also wait until they are sent, and are reserved by ranks that begin
 * tasks: twice as many, one for each rank of a host, and one for what the update of a version
 * changes.  With shards each rank has one for its updates.
 *
 * With shards: the current values, and for each group what its task reads, and its message.  If a
 * rank may be lost, each has room for what the update of a shard changes.
 */
#include <string.h>

#include "base/memory.h"
#include "comm/worker.h"
#include "parallel/versions/internal.h"
#include "parallel/versions/shard_survive.h"

static const char NAME[] = "versions"; /* of the arena */

static size_t state_floats(const lk_parallel *model)
{
    const size_t states  = lk_optimizer_state_count(&model->optimizer);
    const size_t running = model->optimizer.ema > 0 ? 2 : 1;
    return states * lki_stored_elements(model) + running * model->state_width;
}

/* Returns the number of ranks of the largest host.  All hosts have arenas of the same size. */
static uint32_t most_ranks(const lk_parallel *parallel)
{
    const uint32_t widest = parallel->world.widest; /* 0: in an estimate */
    return widest > 0 ? widest : parallel->ranks;
}

/* Returns the number of messages for what updates change. */
static uint32_t changed_messages(const lk_parallel *parallel)
{
    const lki_versions *v = parallel->versions;
    return !lki_has_hosts(v) ? 0 : v->sharded.count > 0 ? most_ranks(parallel) : 1;
}

static size_t lay_out(lk_parallel *parallel, char *base)
{
    lki_versions      *v     = parallel->versions;
    const lk_parallel *model = v->model;
    size_t             at    = 0;
    v->common   = lki_carve(base, &at, sizeof *v->common);
    v->claims   = lki_carve(base, &at, v->window * sizeof *v->claims);
    v->place_of = lki_carve(base, &at, v->window * sizeof *v->place_of);
    v->reports  = lki_carve(base, &at, (size_t)v->window * v->width * model->report_bytes);
    v->passed   = lki_carve(base, &at, v->seats * sizeof *v->passed);
    v->said     = lki_carve(base, &at, v->seats * sizeof *v->said);
    v->norms    = lki_carve(base, &at, v->window * sizeof *v->norms);
    v->outcomes = lki_carve(base, &at, LKI_OUTCOMES * sizeof *v->outcomes);
    if (v->speculates) {
        v->late    = lki_carve(base, &at, v->window * sizeof *v->late);
        v->reading = lki_carve(base, &at, v->seats * sizeof *v->reading);
    }
    if (v->options.record != NULL || v->sharded.count > 0) {
        v->arrivals = lki_carve(base, &at, sizeof *v->arrivals);
        v->doing    = lki_carve(base, &at, v->options.groups * sizeof *v->doing);
        v->again    = lki_carve(base, &at, v->options.groups * sizeof *v->again);
    }
    if (lki_is_live(&v->options))
        v->order = lki_carve(base, &at, v->window * sizeof *v->order);
    if (v->sharded.count > 0) {
        const size_t cells  = (size_t)v->options.groups * v->sharded.count;
        v->sharded.of       = lki_carve(base, &at, v->sharded.count * sizeof *v->sharded.of);
        v->sharded.reads    = lki_carve(base, &at, cells * sizeof *v->sharded.reads);
        v->sharded.coming   = lki_carve(base, &at, cells * sizeof *v->sharded.coming);
        v->sharded.placed   = lki_carve(base, &at, cells * sizeof *v->sharded.placed);
        v->sharded.norms    = lki_carve(base, &at, v->window * sizeof *v->sharded.norms);
        v->sharded.complete = lki_carve(base, &at, sizeof *v->sharded.complete);
        v->sharded.orders   = lki_carve(base, &at, v->sharded.count * sizeof *v->sharded.orders);
    }
    if (v->sharded.saves) {
        v->sharded.saved  = lki_carve(base, &at, v->seats * sizeof *v->sharded.saved);
        v->sharded.values = lki_carve(base, &at,
                                      v->seats * v->sharded.saved_floats * sizeof(float));
    }
    if (lki_has_hosts(v)) {
        lki_hosts *h     = &v->hosts;
        h->envelopes       = lki_carve(base, &at, v->message_count * h->envelope_bytes);
        h->said          = lki_carve(base, &at, v->window * sizeof *h->said);
        h->arrived       = lki_carve(base, &at, h->arrived_count * sizeof *h->arrived);
        h->pending       = lki_carve(base, &at, v->options.groups * sizeof *h->pending);
        h->pending_count = lki_carve(base, &at, sizeof *h->pending_count);
        h->outbox        = lki_carve(base, &at, v->message_count * sizeof *h->outbox);
        h->posted        = lki_carve(base, &at, sizeof *h->posted);
    }
    v->live     = lki_carve(base, &at, v->live_count * sizeof *v->live);
    v->taken    = lki_carve(base, &at, v->message_count * sizeof *v->taken);
    for (uint32_t i = 0; i < 2; i++) /* shards are updated in place */
        v->states[i] = i > 0 && v->sharded.count > 0
                           ? v->states[0]
                           : lki_carve(base, &at, state_floats(model) * sizeof(float));
    v->buffers  = lki_carve(base, &at, v->live_count * v->buffer_bytes);
    v->messages = lki_carve(base, &at, (v->message_count + changed_messages(parallel)) *
                                           model->width * sizeof(float));
    return at;
}

size_t lki_versions_bytes(lk_parallel *parallel)
{
    lki_versions      *v     = parallel->versions;
    const lk_parallel *model = v->model;
    v->window        = (uint32_t)lki_max(LKI_WINDOW, 4 * (size_t)v->options.groups);
    v->sharded.count = lki_sharded_count(v);
    v->sharded.saves = v->survives && v->sharded.count > 0;
    if (v->sharded.saves)
        v->sharded.saved_floats = lki_shard_saved_floats(v);
    v->live_count    = v->sharded.count > 0
                           ? v->options.groups + 1
                           : v->options.groups + 2 + (v->speculates ? v->seats : 0);
    v->message_count = v->options.groups;
    if (v->sharded.count == 0)
        v->message_count += 2 * v->options.aggregate - 1;
    if (lki_has_hosts(v)) {
        v->window        = (uint32_t)lki_max(LKI_WINDOW, 8 * (size_t)v->options.groups);
        v->message_count = 2 * v->options.groups + v->options.aggregate + most_ranks(parallel);
        v->hosts.arrived_count  = (LKI_OUTCOMES + 8) * v->options.groups;
        v->hosts.envelope_bytes = sizeof(lki_envelope) + v->width * model->report_bytes +
                                  lki_sharded_envelope_bytes(v);
    }
    v->buffer_bytes  = lki_round_up(model->layout->elements * sizeof(float) +
                                        model->layout->span_count * sizeof(uint64_t), 64);
    return lay_out(parallel, NULL);
}

static lk_status take_over(lk_parallel *parallel, size_t bytes)
{
    lki_versions *v = parallel->versions;
    v->arena        = lki_comm_arena_named(parallel->comm, NAME);
    return v->arena != NULL && lk_arena_bytes(v->arena) >= bytes
               ? LK_OK
               : lk_fail(LK_EINVAL, "there is no arena '%s' of %zu bytes to continue with: the "
                                    "group has yet to take over that of the one before, or has "
                                    "other options", NAME, bytes);
}

lk_status lki_versions_arena(lk_parallel *parallel, bool goes_on)
{
    lki_versions *v     = parallel->versions;
    const size_t  bytes = lki_versions_bytes(parallel);
    LK_TRY(LKI_NEW(&v->tasks, v->window, "tasks"));
    LK_TRY(LKI_NEW(&v->sorted, v->options.groups, "gradients to add"));
    LK_TRY(LKI_NEW(&v->inputs, v->options.aggregate, "gradients to add"));
    LK_TRY(LKI_NEW(&v->losses, parallel->leaves, "losses"));
    LK_TRY(goes_on ? take_over(parallel, bytes)
                   : lk_comm_arena(&v->arena, parallel->comm, NAME, bytes));
    (void)lay_out(parallel, lk_arena_data(v->arena));
    return LK_OK;
}

uint32_t lki_versions_look_up(const lki_versions *v, uint64_t version)
{
    for (uint32_t i = 0; i < v->live_count; i++)
        if (atomic_load(&v->live[i].tag) == version + 1)
            return i;
    return LKI_NO_BUFFER;
}

uint32_t lki_versions_find(const lki_versions *v, uint64_t version)
{
    const uint32_t i = lki_versions_look_up(v, version);
    LK_ASSERT(i != LKI_NO_BUFFER);
    return i;
}

uint32_t lki_versions_free_buffer(const lki_versions *v)
{
    uint32_t i = 0;
    while (atomic_load(&v->live[i].tag) != 0) {
        i++;
        LK_ASSERT(i < v->live_count);
    }
    return i;
}

float *lki_versions_params(const lki_versions *v, uint32_t buffer)
{
    return (float *)(void *)(v->buffers + buffer * v->buffer_bytes);
}

void lki_versions_show(lki_versions *v, uint32_t buffer, uint64_t version)
{
    lk_parallel     *model = v->model;
    const size_t     n     = model->layout->elements;
    float           *at    = (float *)(void *)v->states[version % 2];
    const uint32_t   count = lk_optimizer_state_count(&model->optimizer);
    model->params       = lki_versions_params(v, buffer);
    model->owned.hashes = (uint64_t *)(void *)(v->buffers + buffer * v->buffer_bytes +
                                               n * sizeof(float));
    for (uint32_t i = 0; i < count; i++, at += lki_stored_elements(model))
        model->optimizer_state[i] = at;
    model->running.values = at;
    if (model->optimizer.ema > 0)
        model->running.mean = at + model->state_width;
}

void lki_versions_copy(lki_versions *v, uint32_t from, uint64_t version, uint32_t to)
{
    memcpy(v->buffers + to * v->buffer_bytes, v->buffers + from * v->buffer_bytes,
           v->buffer_bytes);
    memcpy(v->states[(version + 1) % 2], v->states[version % 2],
           state_floats(v->model) * sizeof(float));
}

lki_report *lki_versions_report(const lki_versions *v, uint64_t at, uint32_t leaf)
{
    const size_t row = (size_t)(at % v->window) * v->width + leaf;
    return (lki_report *)(void *)(v->reports + row * v->model->report_bytes);
}

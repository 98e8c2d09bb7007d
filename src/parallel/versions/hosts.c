/* hosts.c -- asynchronous training over several hosts.
 *
 * A host sends each of its gradients to host 0.  Host 0 sends all gradients, in the order of
 * application, to the other hosts; a host that has computed a gradient gets its place only.  Each
 * host applies them by itself, so all make the same versions, and none has to send a version.
 *
 *   schedule known   A gradient is computed by a host that its place gives.
 *   live             A gradient is computed by the host of its group, and gets the next place when
 *                    it has come to host 0, which writes its line before it sends the place.  The
 *                    next task of the group, and the version that it reads, follow from the order
 *                    (schedule.c).  So no host has to ask for a task.
 *
 * Shards are as in a live run of the model (sharded_hosts.c).
 *
 * The first rank of a host, its carrier, sends and receives, also between the blocks of its own
 * tasks (carriers.c).  Messages are in memory that the ranks of the host share.  Each has the
 * number of its users: the update, and the sends.
 *
 * Nothing waits for ever: envelopes from host 0 come in the order of application, so a host that
 * has no room for the next one has gradients that it can apply.  Host 0 has room for one gradient
 * of each group, beside those that it can apply or send.
 */
#include <string.h>

#include "base/memory.h"
#include "parallel/versions/internal.h"

uint32_t lki_hosts_home(const lk_parallel *parallel, uint64_t number)
{
    return parallel->world.host_of[number % parallel->ranks];
}

bool lki_arrives(const lki_versions *v, uint64_t place)
{
    return lki_has_hosts(v) && v->arrivals != NULL &&
           (place == LKI_NO_PLACE || place >= v->arrivals->replayed);
}

/* ---- Messages ------------------------------------------------------------------------------ */

bool lki_hosts_take(const lki_versions *v, uint32_t *message)
{
    for (uint32_t i = 0; i < v->message_count; i++) {
        uint32_t none = 0;
        if (atomic_compare_exchange_strong(&v->taken[i], &none, 1)) {
            *message = i;
            return true;
        }
    }
    return false;
}

bool lki_hosts_reserve(lki_versions *v)
{
    return v->hosts.message != LKI_NO_BUFFER || lki_hosts_take(v, &v->hosts.message);
}

/* ---- The order ----------------------------------------------------------------------------- */

bool lki_hosts_computes(const lk_parallel *parallel, uint64_t at)
{
    lki_versions *v = parallel->versions;
    return v->hosts.count == 1 ||
           (!lki_arrives(v, at) && lki_hosts_home(parallel, at) == v->hosts.here &&
            lki_hosts_reserve(v));
}

void lki_hosts_advance(const lki_versions *v, lki_task_schedule *schedule, uint64_t end)
{
    while (schedule->applied < end)
        if (lki_arrives(v, schedule->applied))
            (void)lki_task_schedule_arrive(
                schedule, v->hosts.arrived[schedule->applied % v->hosts.arrived_count]);
        else
            (void)lki_task_schedule_next(schedule);
}

/* Returns the hash of the line of the gradient in a message, number `at`. */
static uint64_t line_hash(const lki_versions *v, uint32_t message, uint64_t at)
{
    const lki_envelope *e = lki_envelope_of(v, message);
    return v->sharded.count > 0 ? lki_sharded_line_hash(v, message, at)
                                : lki_recorded_hash(lki_hash_before(v, at), e->task, e->reads,
                                                    e->group, e->gradient);
}

/* Does what lki_hosts_deliver() does.  Called by the holder of the order, if that is needed. */
static void deliver(const lk_parallel *parallel, uint32_t message, uint64_t at)
{
    lki_versions       *v = parallel->versions;
    const lki_envelope *e = lki_envelope_of(v, message);
    memcpy(lki_versions_report(v, at, 0), e + 1, v->width * v->model->report_bytes);
    v->hosts.said[at % v->window] = e->said;
    v->place_of[at % v->window]   = message;
    if (lki_is_live(&v->options))
        v->order[at % v->window] = (lki_arrival){
            { e->task, e->reads, e->group,
              at < v->recorded.count ? v->recorded.tasks[at].dropped : 0 },
            line_hash(v, message, at)
        };
    atomic_store(&v->claims[at % v->window], at << LKI_CLAIM_BITS | LKI_CLAIM_DONE);
    if (lki_arrives(v, at)) {
        v->hosts.arrived[at % v->hosts.arrived_count] = e->group;
        if (v->sharded.count == 0 && lki_hosts_home(parallel, e->group) == v->hosts.here)
            v->doing[e->group].state = LKI_GROUP_FREE;
        atomic_store(&v->arrivals->arrived, at + 1);
    }
    if (v->sharded.count > 0) /* comes last: any rank may apply it from now on */
        lki_sharded_deliver(v, message, at);
}

lk_status lki_hosts_deliver(lk_parallel *parallel, uint32_t message, uint64_t at)
{
    lki_versions *v      = parallel->versions;
    lk_status     status = LK_OK;
    uint64_t      task   = 0; /* of a failure */
    if (v->sharded.count == 0 && !lki_arrives(v, at)) {
        deliver(parallel, message, at);
        return LK_OK;
    }
    LK_TRY(lki_arrivals_hold(parallel));
    deliver(parallel, message, at);
    if (v->sharded.count > 0)
        status = lki_sharded_check(v, &task);
    lki_arrivals_release(v);
    if (status != LK_OK)
        lki_fail_all(parallel, task);
    return status;
}

/* Gives the gradient in a message the next place.  Called by the holder of the order. */
static lk_status give_place(const lk_parallel *parallel, uint32_t message)
{
    lki_versions           *v    = parallel->versions;
    lki_envelope           *e    = lki_envelope_of(v, message);
    const uint64_t          at   = atomic_load(&v->arrivals->arrived);
    const lki_recorded_task line = {
        .task = e->task, .reads = e->reads, .group = e->group, .hash = line_hash(v, message, at)
    };
    LK_TRY(v->sharded.count > 0 ? lki_sharded_write(v, message, at, line.hash)
                                : lki_recorded_write(&v->recorded, at, &line));
    e->place = at;
    deliver(parallel, message, at);
    return LK_OK;
}

/* Gives all pending gradients places that may have one, in the order of their arrival.  Called by
 * the holder of the order. */
static lk_status give_places(const lk_parallel *parallel)
{
    lki_versions *v     = parallel->versions;
    uint32_t     *count = v->hosts.pending_count;
    uint32_t      i     = 0;
    while (i < *count) {
        const uint32_t message = v->hosts.pending[i];
        (void)lki_look_ahead(v, lki_applied(v)); /* at those that have arrived */
        if (!lki_task_schedule_may_arrive(&v->ahead, lki_envelope_of(v, message)->group)) {
            i++;
            continue;
        }
        LK_TRY(give_place(parallel, message));
        --*count;
        memmove(v->hosts.pending + i, v->hosts.pending + i + 1,
                (*count - i) * sizeof *v->hosts.pending);
        i = 0;
    }
    return LK_OK;
}

lk_status lki_hosts_enter(lk_parallel *parallel, uint32_t message)
{
    lki_versions       *v        = parallel->versions;
    const lki_envelope *envelope = lki_envelope_of(v, message);
    (void)atomic_fetch_add(&v->taken[message], v->hosts.count - 1);
    if (envelope->place != LKI_NO_PLACE)
        return lki_hosts_deliver(parallel, message, envelope->place);
    LK_TRY(lki_arrivals_hold(parallel));
    v->hosts.pending[(*v->hosts.pending_count)++] = message;
    const lk_status status = give_places(parallel);
    lki_arrivals_release(v);
    return status;
}

/* Lets the carrier send the gradient in a message to host 0. */
static lk_status post(lk_parallel *parallel, uint32_t message)
{
    lki_versions       *v        = parallel->versions;
    const lki_envelope *envelope = lki_envelope_of(v, message);
    (void)atomic_fetch_add(&v->taken[message], 1);
    const uint64_t number = atomic_fetch_add(v->hosts.posted, 1);
    atomic_store(&v->hosts.outbox[number % v->message_count], message + 1);
    return envelope->place != LKI_NO_PLACE ? lki_hosts_deliver(parallel, message, envelope->place)
                                           : LK_OK;
}

static uint32_t said_here(const lk_parallel *parallel)
{
    const lki_versions *v    = parallel->versions;
    uint32_t            most = 0;
    for (uint32_t r = 0; r < parallel->ranks; r++)
        most = (uint32_t)lki_max(most, atomic_load(&v->said[r]));
    return most;
}

lk_status lki_hosts_push(lk_parallel *parallel, const lki_gradients *sums, uint64_t gradient,
                         double norm)
{
    lki_versions  *v       = parallel->versions;
    const size_t   n       = v->model->layout->grad_elements;
    const uint32_t message = v->hosts.message;
    float         *values  = lki_versions_message(v, message);
    lki_envelope  *e       = lki_envelope_of(v, message);
    v->hosts.message       = LKI_NO_BUFFER;
    *e = (lki_envelope){ .place    = v->at,
                         .task     = v->task.task,
                         .reads    = v->task.reads,
                         .gradient = gradient,
                         .waited   = lki_keeps_order(v) ? 0
                                                        : atomic_exchange(&v->common->waited, 0),
                         .group    = v->task.group,
                         .host     = v->hosts.here,
                         .message  = message,
                         .said     = said_here(parallel) };
    memcpy(e + 1, v->model->reports, v->width * v->model->report_bytes);
    memcpy(values, sums->gradients, n * sizeof *values);
    memcpy(values + n, sums->states, (v->model->width - n) * sizeof *values);
    if (v->sharded.count > 0)
        lki_sharded_describe(v, message, norm);
    LK_TRY(lki_keeps_order(v) ? lki_hosts_enter(parallel, message) : post(parallel, message));
    lki_versions_changed(v);
    return LK_OK;
}

/* Returns true if a group of this host can begin its task.  With shards it reads what is there. */
static bool can_begin(const lk_parallel *parallel, uint32_t g, uint64_t version)
{
    const lki_versions            *v     = parallel->versions;
    const lki_task_schedule_group *group = &v->ahead.groups[g];
    return !group->waits && (v->sharded.count > 0 || group->reads <= version) &&
           v->doing[g].state == LKI_GROUP_FREE && v->doing[g].next == 0 &&
           lki_hosts_home(parallel, g) == v->hosts.here;
}

lki_live_group *lki_hosts_find_group(lk_parallel *parallel)
{
    lki_versions   *v       = parallel->versions;
    const uint64_t  arrived = lki_look_ahead(v, lki_applied(v));
    const uint64_t  version = lki_applied(v) / v->options.aggregate;
    lki_live_group *found   = NULL;
    uint64_t        first   = UINT64_MAX;
    if (arrived != atomic_load(&v->arrivals->arrived) || arrived < v->arrivals->replayed)
        return NULL;
    for (uint32_t g = 0; g < v->options.groups; g++) {
        const uint64_t task = v->ahead.groups[g].task;
        if (can_begin(parallel, g, version) && task < first) {
            first = task;
            found = &v->doing[g];
        }
    }
    return found;
}

lk_status lki_hosts_begin(lk_parallel *parallel, bool *found)
{
    lki_versions *v = parallel->versions;
    *found          = false;
    if (!lki_hosts_reserve(v))
        return LK_OK;
    LK_TRY(lki_arrivals_hold(parallel));
    lki_live_group *group = lki_hosts_find_group(parallel);
    if (group != NULL) {
        const uint32_t                 g    = (uint32_t)(group - v->doing);
        const lki_task_schedule_group *next = &v->ahead.groups[g];
        v->task      = (lki_group_task){ next->task, next->reads, g, 0 };
        v->at        = LKI_NO_PLACE;
        group->task  = v->task.task;
        group->rank  = parallel->rank;
        group->state = LKI_GROUP_COMPUTES;
        *found       = true;
    }
    lki_arrivals_release(v);
    return LK_OK;
}

/* ---- Steps --------------------------------------------------------------------------------- */

uint32_t lki_hosts_heard(const lki_versions *v, uint64_t end)
{
    uint32_t heard = 0;
    for (uint64_t at = end - v->options.groups; at < end; at++)
        heard = (uint32_t)lki_max(heard, v->hosts.said[at % v->window]);
    return heard;
}

lk_status lki_hosts_end_step(lk_parallel *parallel)
{
    lki_versions  *v   = parallel->versions;
    const uint64_t end = (parallel->step + 1) * v->options.groups;
    if (v->hosts.count == 1)
        return LK_OK;
    lki_hosts_advance(v, &v->now, end);
    lki_hosts_advance(v, &v->ahead, lki_max(end, v->ahead.applied));
    return lki_hosts_poll(parallel); /* starts to send what the others need for the step */
}

void lki_hosts_describe(lk_parallel *parallel)
{
    lki_hosts *h = &parallel->versions->hosts;
    h->count     = parallel->world.hosts;
    h->here      = parallel->world.host_of[parallel->rank];
    h->message   = LKI_NO_BUFFER;
}

/* vector.c -- a shared vector and its tasks. */
#include "base/options.h"
#include "parallel/shared/log.h"
#include "parallel/state.h"

enum { SPAN = 4096, SPAN_MIN = 16, TAKEN_MAX = 16, PARTS = 8 };

static size_t carve(lk_shared_vector *v, char *base)
{
    size_t at = 0;
    v->common = lki_carve(base, &at, sizeof *v->common);
    v->words  = lki_carve(base, &at, v->spans * sizeof *v->words);
    v->data   = lki_carve(base, &at, (v->spans << v->shift) * sizeof *v->data);
    if (v->replay != NULL)
        lki_shared_replay_carve(v, base, &at);
    return at;
}

static lk_status check(lk_shared_vector *v, size_t count, const lk_shared_vector_options *options)
{
    const uint32_t span = options->span == 0 ? SPAN : options->span;
    if (lk_comm_hosts(v->comm) > 1)
        return lk_fail(LK_EUNSUPPORTED, "a shared vector needs all ranks on one host, and these "
                                        "are on %u", lk_comm_hosts(v->comm));
    if (span < SPAN_MIN || (span & (span - 1)) != 0)
        return lk_fail(LK_EINVAL, "a shared vector has spans of %u elements; give a power of two "
                                  "from %d on", span, SPAN_MIN);
    if (count == 0 || (uint64_t)count > (uint64_t)1 << 32)
        return lk_fail(LK_EINVAL, "a shared vector has 1 to 2^32 elements, not %zu", count);
    if (options->record != NULL && options->replay != NULL)
        return lk_fail(LK_EINVAL, "a shared vector is recorded to '%.150s' or replayed from "
                                  "'%.150s', not both", options->record, options->replay);
    while ((uint32_t)1 << v->shift < span)
        v->shift++;
    v->count = count;
    v->spans = (count + span - 1) >> v->shift;
    return LK_OK;
}

static lk_status open_vector(lk_shared_vector *v, size_t count,
                             const lk_shared_vector_options *options)
{
    LK_TRY(check(v, count, options));
    if (options->replay != NULL)
        LK_TRY(lki_shared_replay_open(v, options->replay));
    LK_TRY(lk_comm_arena(&v->arena, v->comm, "shared vector", carve(v, NULL)));
    (void)carve(v, lk_arena_data(v->arena));
    if (options->record != NULL)
        LK_TRY(lki_log_open(v, options->record));
    if (v->replay != NULL && v->rank == 0)
        lki_shared_replay_fill(v);
    return lk_barrier(v->comm);
}

lk_status lk_shared_vector_open(lk_shared_vector **out, lk_comm *comm, size_t count,
                                const lk_shared_vector_options *given)
{
    lk_shared_vector_options options;
    lk_shared_vector        *v;
    *out = NULL;
    LK_TRY(lki_options_copy(&options, sizeof options, given, "lk_shared_vector_options"));
    LK_TRY(LKI_NEW(&v, 1, "a shared vector"));
    v->comm   = comm;
    v->rank   = lk_comm_rank(comm);
    v->ranks  = lk_comm_size(comm);
    v->log.fd = -1;
    const lk_status status = open_vector(v, count, &options);
    if (status == LK_OK)
        *out = v;
    else
        lk_shared_vector_free(v);
    return status;
}

void lk_shared_vector_free(lk_shared_vector *v)
{
    if (v == NULL)
        return;
    lki_shared_replay_free(v->replay);
    lki_log_close(&v->log);
    lki_free(v->reads.at);
    lki_free(v->writes.at);
    lki_free(v);
}

float *lk_shared_vector_data(lk_shared_vector *v)
{
    return v->data;
}

uint64_t lk_shared_vector_tasks(const lk_shared_vector *v)
{
    return atomic_load(&v->common->begun);
}

lk_status lk_shared_vector_begin(lk_shared_vector *v, uint64_t tasks)
{
    if (v->in_round)
        return lk_fail(LK_EINVAL, "a round of a shared vector begins twice: call "
                                  "lk_shared_vector_finish() first");
    v->limit    += tasks;
    v->in_round  = true;
    return lk_barrier(v->comm);
}

/* Ends the task in progress, if there is one.  A task without pushes pushes nothing, so that the
 * recording has a hash of what it has read. */
static lk_status end_task(lk_shared_vector *v)
{
    const float nothing = 0;
    if (!v->in_task)
        return LK_OK;
    if (!v->pushes && (v->replay != NULL || v->log.fd >= 0))
        LK_TRY(lk_shared_vector_push(v, 0, 0, &nothing, 0));
    v->in_task = false;
    if (v->replay != NULL)
        return lki_shared_replay_end_task(v);
    if (v->log.fd < 0)
        return LK_OK;
    LK_TRY(lki_log_reserve(v, 1));
    lki_log_append(&v->log, LKI_LOG_END, 0, 0);
    return LK_OK;
}

/* Takes a number.  A rank takes several at once while many are left, because a task may be shorter
 * than the time in which a changed word comes from another core. */
static bool take_number(lk_shared_vector *v)
{
    if (v->task + 1 < v->taken_end) {
        v->task++;
        return true;
    }
    v->task = atomic_load_explicit(&v->common->begun, memory_order_relaxed);
    while (v->task < v->limit) {
        const uint64_t part = (v->limit - v->task) / ((uint64_t)PARTS * v->ranks);
        v->taken_end        = v->task + (part < 1 ? 1 : part > TAKEN_MAX ? TAKEN_MAX : part);
        if (atomic_compare_exchange_weak(&v->common->begun, &v->task, v->taken_end))
            return true;
    }
    v->taken_end = 0;
    return false;
}

lk_status lk_shared_vector_next(lk_shared_vector *v, bool *more, uint64_t *task)
{
    *more = false;
    if (!v->in_round)
        return lk_fail(LK_EINVAL, "a task without a round: call lk_shared_vector_begin() first");
    if (lki_comm_has_failed(v->comm))
        return lki_group_failure(v->comm);
    LK_TRY(end_task(v));
    v->pushes = false;
    if (v->replay != NULL)
        LK_TRY(lki_shared_replay_next(v, more));
    else
        *more = take_number(v);
    if (v->replay == NULL)
        v->reads.count = 0;
    v->in_task = *more;
    *task      = v->task;
    return LK_OK;
}

lk_status lk_shared_vector_finish(lk_shared_vector *v)
{
    if (!v->in_round)
        return lk_fail(LK_EINVAL, "a round of a shared vector ends before it begins");
    LK_TRY(end_task(v));
    v->in_round = false;
    if (v->replay != NULL)
        LK_TRY(lki_shared_replay_finish(v));
    return lk_barrier(v->comm);
}

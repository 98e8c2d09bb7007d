/* replay.c -- computes the tasks of a recording again. */
#include "parallel/shared/replay.h"

#include <string.h>

enum { NAP_MS = 20 };

/* ---- Waiting ----------------------------------------------------------------------------- */

/* Tells the other ranks that a span or a task has changed. */
static void notify(lk_shared_vector *v)
{
    v->replay->changed = false;
    if (atomic_load(&v->common->waiting) > 0)
        lki_comm_wake_word(&v->common->changes);
    else
        atomic_fetch_add(&v->common->changes, 1);
}

/* Fails because the first task that has not ended takes too long. */
static lk_status fail_late(lk_shared_vector *v)
{
    const lki_shared_replay *r     = v->replay;
    uint32_t                 first = 0;
    for (uint32_t rank = 1; rank < v->ranks; rank++)
        if (atomic_load(&r->doing[rank]) < atomic_load(&r->doing[first]))
            first = rank;
    const uint64_t place = atomic_load(&r->doing[first]);
    const uint32_t rank  = lk_comm_world_rank(v->comm, first);
    return lki_fail_group(v->comm, rank, LK_ETIMEOUT,
                          "rank %u has computed task %llu of the replay for longer than the "
                          "timeout of %u ms, and other ranks wait for it", rank,
                          place < r->task_count ? (unsigned long long)r->tasks[place].task : 0ull,
                          lki_comm_timeout_ms(v->comm));
}

/* Waits until something has changed since the word was `seen`.  *since is the time of the last
 * change, 0 at first. */
static lk_status wait_for_change(lk_shared_vector *v, uint32_t seen, int64_t *since)
{
    if (*since == 0)
        *since = lki_now_ms();
    atomic_fetch_add(&v->common->waiting, 1);
    const lk_status status = lki_comm_await_word(v->comm, &v->common->changes, seen, NAP_MS);
    atomic_fetch_sub(&v->common->waiting, 1);
    LK_TRY(status);
    if (atomic_load(&v->common->changes) != seen)
        *since = lki_now_ms();
    return lki_now_ms() - *since > lki_comm_timeout_ms(v->comm) ? fail_late(v) : LK_OK;
}

/* ---- Versions ---------------------------------------------------------------------------- */

/* Copies a version that other tasks will read to a free slot. */
static void save(lk_shared_vector *v, const lki_span_version *of)
{
    lki_shared_replay *r    = v->replay;
    const lki_span_part    all  = { of->span, of->span << v->shift, (size_t)1 << v->shift, NULL };
    uint32_t           slot = 0, none = 0;
    while (slot < r->slot_count && !atomic_compare_exchange_strong(&r->taken[slot], &none, 1)) {
        none = 0;
        slot++;
    }
    LK_ASSERT(slot < r->slot_count); /* see replay_load.c */
    lki_span_part_copy(v, &all, v->data + all.first, r->slots + ((size_t)slot << v->shift));
    r->slot_of[lki_replay_row(r, of)] = slot + 1;
}

/* Adds a push to version `version` of its span, which is the current one. */
static lk_status apply(lk_shared_vector *v, const lki_span_part *piece, uint64_t version,
                       const float *values, float scale)
{
    const lki_span_version of = { piece->span, version };
    uint64_t               found;
    LK_TRY(lki_span_take(v, piece->span, &found));
    LK_ASSERT(found == version); /* each version is changed by one push */
    if (v->replay->unread[lki_replay_row(v->replay, &of)] > 0)
        save(v, &of);
    lki_span_part_add(v, piece, values, scale);
    lki_span_put(v, piece->span, version + 1);
    v->replay->changed = true;
    return LK_OK;
}

static uint64_t version_now(const lk_shared_vector *v, size_t span)
{
    return lki_version(atomic_load(&v->words[span]));
}

/* Adds the pushes whose turn has come, and tells the other ranks of all changes. */
static lk_status flush(lk_shared_vector *v)
{
    lki_pending **link = &v->replay->pending;
    while (*link != NULL) {
        lki_pending *p = *link;
        if (version_now(v, p->piece.span) != p->version) {
            link = &p->next;
            continue;
        }
        LK_TRY(apply(v, &p->piece, p->version, p->values, p->scale));
        *link = p->next;
        lki_free(p->indices);
        lki_free(p->values);
        lki_free(p);
        link = &v->replay->pending; /* an earlier one may wait for this one */
    }
    if (v->replay->changed)
        notify(v);
    return LK_OK;
}

static lk_status keep(lk_shared_vector *v, const lki_span_part *piece, uint64_t version,
                      const float *values, float scale)
{
    lki_pending *p;
    LK_TRY(LKI_NEW(&p, 1, "a push"));
    *p = (lki_pending){ .next    = v->replay->pending,
                        .version = version,
                        .piece   = *piece,
                        .scale   = scale };
    v->replay->pending = p;
    LK_TRY(LKI_NEW(&p->values, piece->count, "a push"));
    memcpy(p->values, values, piece->count * sizeof *values);
    if (piece->indices == NULL)
        return LK_OK;
    LK_TRY(LKI_NEW(&p->indices, piece->count, "a push"));
    memcpy(p->indices, piece->indices, piece->count * sizeof *p->indices);
    p->piece.indices = p->indices;
    return LK_OK;
}

/* Copies a piece of version `of`, if it is there, and counts the reader. */
static lk_status read_version(lk_shared_vector *v, const lki_span_part *piece,
                              const lki_span_version *of, float *out, bool *there)
{
    lki_shared_replay *r   = v->replay;
    const size_t       row = lki_replay_row(r, of);
    uint64_t           version;
    *there = version_now(v, piece->span) >= of->version;
    if (!*there)
        return LK_OK;
    LK_TRY(lki_span_take(v, piece->span, &version));
    const uint32_t slot = r->slot_of[row];
    LK_ASSERT(version == of->version || slot > 0);
    lki_span_part_copy(v, piece, version == of->version ? v->data + (piece->span << v->shift)
                                                    : r->slots + ((size_t)(slot - 1) << v->shift),
                   out);
    if (--r->unread[row] == 0 && slot > 0) {
        r->slot_of[row] = 0;
        atomic_store(&r->taken[slot - 1], 0);
    }
    lki_span_put(v, piece->span, version);
    return LK_OK;
}

/* ---- Tasks ------------------------------------------------------------------------------- */

static lk_status add_push(lki_shared_replay *r, size_t end, uint64_t hash)
{
    LK_TRY(lki_reserve((void **)&r->pushes, &r->push_capacity, r->push_count, sizeof *r->pushes,
                       "pushes"));
    r->pushes[r->push_count++] = (lki_replay_push){ end, hash, false };
    return LK_OK;
}

/* Reads what is recorded of the task at a place of the order. */
static lk_status read_task(lk_shared_vector *v, uint64_t place)
{
    lki_shared_replay *r      = v->replay;
    lki_log_cursor     cursor = r->tasks[place].cursor;
    lki_log_entry      entry;
    v->task        = r->tasks[place].task;
    v->ticket      = r->tasks[place].ticket;
    v->reads.count = v->writes.count = 0;
    r->push_count  = r->push_at = r->read_at = r->write_at = 0;
    r->complete    = false;
    while (!r->complete && lki_replay_entry(r, &cursor, &entry)) {
        if (r->push_count > 0)
            r->pushes[r->push_count - 1].known = true;
        if (entry.kind == LKI_LOG_READ)
            LK_TRY(lki_span_versions_add(&v->reads, entry.value, entry.second));
        else if (entry.kind == LKI_LOG_WRITE)
            LK_TRY(lki_span_versions_add(&v->writes, entry.value, entry.second));
        else if (entry.kind == LKI_LOG_HASH)
            LK_TRY(add_push(r, v->writes.count, entry.second));
        else
            r->complete = true;
    }
    if (!r->complete) /* a push that was cut off */
        LK_TRY(add_push(r, v->writes.count, 0));
    return LK_OK;
}

/* Returns the first task that has not ended, by its place in the order; `limit` if it is later. */
static uint64_t first_open(const lk_shared_vector *v, uint64_t limit)
{
    for (uint32_t rank = 0; rank < v->ranks; rank++) {
        const uint64_t place = atomic_load(&v->replay->doing[rank]);
        limit                = place < limit ? place : limit;
    }
    return limit;
}

static lk_status not_in_round(const lk_shared_vector *v, uint64_t place)
{
    return lk_fail(LK_EMISMATCH, "task %llu of the recording is not in this round of the replay, "
                                 "but tasks that follow it are: the rounds had other numbers of "
                                 "tasks",
                   (unsigned long long)v->replay->tasks[place].task);
}

/* Returns true if the round has no tasks from this place of the order on. */
static bool is_over(const lk_shared_vector *v, uint64_t place)
{
    return place >= v->replay->task_count || v->replay->tasks[place].lowest >= v->limit;
}

/* Takes the next task.  A rank announces a task before it takes it, so that no other rank can miss
 * the task when it looks for the first one. */
lk_status lki_shared_replay_next(lk_shared_vector *v, bool *more)
{
    lki_shared_replay *r     = v->replay;
    int64_t            since = 0;
    for (;;) {
        const uint32_t seen = atomic_load(&v->common->changes);
        LK_TRY(flush(v));
        uint64_t place = atomic_load(&v->common->begun);
        if (is_over(v, place))
            break;
        if (r->tasks[place].task >= v->limit)
            return not_in_round(v, place);
        atomic_store(&r->doing[v->rank], place);
        const bool open = place - first_open(v, place) < r->window;
        if (open && atomic_compare_exchange_strong(&v->common->begun, &place, place + 1)) {
            *more = true;
            return read_task(v, place);
        }
        atomic_store(&r->doing[v->rank], LKI_NO_TASK);
        if (!open)
            LK_TRY(wait_for_change(v, seen, &since));
    }
    atomic_store(&r->doing[v->rank], LKI_NO_TASK);
    return LK_OK;
}

static lk_status differs(const lk_shared_vector *v, uint64_t span, const char *what)
{
    return lk_fail(LK_EMISMATCH, "task %llu of the replay %s span %llu: the data, the program or "
                                 "the recording has changed",
                   (unsigned long long)v->task, what, (unsigned long long)span);
}

static lk_status check_reads(const lk_shared_vector *v)
{
    const lki_shared_replay *r = v->replay;
    return r->read_at == v->reads.count
               ? LK_OK
               : differs(v, v->reads.at[r->read_at].span,
                         "does not pull, as the recorded task did,");
}

lk_status lki_shared_replay_pull(lk_shared_vector *v, lki_span_part left, float *out)
{
    lki_shared_replay *r     = v->replay;
    int64_t            since = 0;
    lki_span_part          piece;
    while (lki_span_part_next(v, &left, &piece)) {
        if (r->read_at == v->reads.count || v->reads.at[r->read_at].span != piece.span)
            return differs(v, piece.span, "pulls, unlike the recorded task,");
        const lki_span_version *of = &v->reads.at[r->read_at++];
        for (bool there = false; !there;) {
            const uint32_t seen = atomic_load(&v->common->changes);
            LK_TRY(flush(v));
            LK_TRY(read_version(v, &piece, of, out, &there));
            if (!there)
                LK_TRY(wait_for_change(v, seen, &since));
        }
        out += piece.count;
    }
    return LK_OK;
}

/* Compares a push with the recorded one. */
static lk_status check_push(const lk_shared_vector *v, const lki_replay_push *recorded,
                            lki_span_part left, const float *values, float scale)
{
    const lki_shared_replay *r     = v->replay;
    const lki_span_part          all   = left;
    const lki_span_version  *first = v->writes.at + r->write_at;
    const size_t             count = recorded->end - r->write_at;
    size_t                   i     = 0;
    lki_span_part                piece;
    for (; lki_span_part_next(v, &left, &piece); i++)
        if (i < count ? first[i].span != piece.span : recorded->known)
            return differs(v, piece.span, "pushes, unlike the recorded task, to");
    if (i < count)
        return differs(v, first[i].span, "does not push, as the recorded task did, to");
    if (recorded->known && lki_push_hash(v, &all, values, scale, first, count) != recorded->hash)
        return differs(v, count > 0 ? first[0].span : 0, "pushes values that differ from the "
                                                         "recorded ones, beginning with");
    return LK_OK;
}

lk_status lki_shared_replay_push(lk_shared_vector *v, lki_span_part left, const float *values,
                                 float scale)
{
    lki_shared_replay *r = v->replay;
    lki_span_part          piece;
    if (!v->pushes)
        LK_TRY(check_reads(v));
    v->pushes = true;
    if (r->push_at == r->push_count)
        return r->complete ? lk_fail(LK_EMISMATCH, "task %llu of the replay pushes more often than "
                                                   "the recorded task", (unsigned long long)v->task)
                           : LK_OK;
    const lki_replay_push *recorded = &r->pushes[r->push_at++];
    LK_TRY(check_push(v, recorded, left, values, scale));
    for (; r->write_at < recorded->end && lki_span_part_next(v, &left, &piece); r->write_at++) {
        const uint64_t version = v->writes.at[r->write_at].version;
        if (version_now(v, piece.span) == version)
            LK_TRY(apply(v, &piece, version, values, scale));
        else
            LK_TRY(keep(v, &piece, version, values, scale));
        values += piece.count;
    }
    return flush(v);
}

lk_status lki_shared_replay_end_task(lk_shared_vector *v)
{
    lki_shared_replay *r = v->replay;
    LK_TRY(flush(v));
    if (r->write_at < v->writes.count)
        return differs(v, v->writes.at[r->write_at].span,
                       "does not push, as the recorded task did, to");
    atomic_store(&r->doing[v->rank], LKI_NO_TASK);
    notify(v);
    return LK_OK;
}

/* Checks that the pushes that this rank keeps wait for tasks of this round. */
static lk_status check_pending(const lk_shared_vector *v)
{
    const lki_shared_replay *r   = v->replay;
    const uint64_t           end = atomic_load(&v->common->begun);
    for (const lki_pending *p = r->pending; p != NULL && is_over(v, end); p = p->next) {
        const lki_span_version of = { p->piece.span, p->version };
        if (r->made[lki_replay_row(r, &of)] > end)
            return not_in_round(v, r->made[lki_replay_row(r, &of)] - 1);
    }
    return LK_OK;
}

lk_status lki_shared_replay_finish(lk_shared_vector *v)
{
    int64_t since = 0;
    for (;;) {
        const uint32_t seen = atomic_load(&v->common->changes);
        LK_TRY(flush(v));
        if (v->replay->pending == NULL)
            return LK_OK;
        LK_TRY(check_pending(v));
        LK_TRY(wait_for_change(v, seen, &since));
    }
}

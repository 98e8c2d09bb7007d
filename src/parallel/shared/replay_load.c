/* replay_load.c -- reads a recording, and checks that it can be replayed.
 *
 * The tasks and versions of a file may be anything, because somebody may have changed the file.  It
 * can be replayed without waiting forever if each version of a span is changed by one task, and
 * each task reads only versions that tasks before it in the order have made.
 *
 * Slots: let W be the window.  A version of a span that task a changes, and that task b (not a) is
 * the last to read, can be in a slot only while a has been given out and b has not ended.  If m is
 * the first task that has not ended, then m > a - W and m <= b.  The number of slots is the largest
 * number of versions for which this holds at the same m.
 */
#include <stdlib.h>
#include <string.h>

#include "parallel/shared/replay.h"
#include "parallel/state.h"

enum { WINDOW_PER_RANK = 4 };
#define NOBODY UINT32_MAX

/* The tasks that use a version, in rows as in lki_shared_replay. */
typedef struct {
    uint32_t *by;     /* the task that changes a version, by its place in the order */
    uint32_t *reader; /* 1 + the last task that reads a version, other than `by`; 0: none */
    int64_t  *change; /* [tasks + 1]: of the number of slots from one task to the next */
} rows;

bool lki_replay_entry(const lki_shared_replay *r, lki_log_cursor *cursor, lki_log_entry *out)
{
    return lki_log_read(&r->file, cursor, out) && out->kind != LKI_LOG_TASK &&
           out->kind < LKI_LOG_KINDS;
}

static lk_status check_header(const lk_shared_vector *v, const char *path)
{
    const lki_log_header *header = &v->replay->file.header;
    if (header->count == v->count && header->shift == v->shift)
        return LK_OK;
    return lk_fail(LK_EINVAL, "'%.150s' records a shared vector of %llu elements in spans of %llu, "
                              "and this one has %zu in spans of %llu", path,
                   (unsigned long long)header->count, 1ull << header->shift, v->count,
                   1ull << v->shift);
}

static lk_status add_task(lki_shared_replay *r, const lki_log_entry *entry, lki_log_cursor cursor)
{
    LK_TRY(lki_reserve((void **)&r->tasks, &r->task_capacity, r->task_count, sizeof *r->tasks,
                       "tasks of a recording"));
    r->tasks[r->task_count++] = (lki_replay_task){ .ticket = entry->second,
                                                   .task   = entry->value,
                                                   .cursor = cursor };
    return LK_OK;
}

/* Lists the tasks of a rank, and counts the changes of each span in first[span + 1].  A task whose
 * rank died before it changed anything is left out. */
static lk_status list_tasks(lk_shared_vector *v, uint32_t rank, const char *path)
{
    lki_shared_replay *r      = v->replay;
    lki_log_cursor     cursor = lki_log_begin(&r->file, rank);
    lki_log_entry      entry;
    uint64_t           task   = 0;
    bool               idle   = false;
    while (lki_log_read(&r->file, &cursor, &entry)) {
        const bool span = entry.kind == LKI_LOG_READ || entry.kind == LKI_LOG_WRITE;
        if (span && entry.value >= v->spans)
            return lk_fail(LK_EFORMAT, "task %llu of the recording '%.150s' has span %llu of %zu; "
                                       "the file has been changed", (unsigned long long)task, path,
                           (unsigned long long)entry.value, v->spans);
        task = entry.kind == LKI_LOG_TASK ? entry.value : task;
        if (entry.kind == LKI_LOG_TASK)
            LK_TRY(add_task(r, &entry, cursor));
        if (entry.kind == LKI_LOG_WRITE)
            r->first[entry.value + 1]++;
        idle = entry.kind == LKI_LOG_TASK || (idle && entry.kind == LKI_LOG_READ);
    }
    if (cursor.damaged)
        return lk_fail(LK_EFORMAT, "the recording '%.150s' is damaged after the beginning of task "
                                   "%llu", path, (unsigned long long)task);
    if (idle)
        r->task_count--;
    return r->task_count < NOBODY ? LK_OK : lk_fail(LK_EUNSUPPORTED, "the recording '%.150s' has "
                                                    "more tasks than can be replayed", path);
}

static int by_ticket(const void *a, const void *b)
{
    const lki_replay_task *x = a, *y = b;
    return x->ticket < y->ticket ? -1 : x->ticket > y->ticket;
}

static void sort_tasks(lki_shared_replay *r)
{
    uint64_t lowest = LKI_NO_TASK;
    if (r->task_count > 0)
        qsort(r->tasks, r->task_count, sizeof *r->tasks, by_ticket);
    for (size_t i = r->task_count; i-- > 0;) {
        lowest             = r->tasks[i].task < lowest ? r->tasks[i].task : lowest;
        r->tasks[i].lowest = lowest;
    }
}

static size_t changes_of(const lki_shared_replay *r, uint64_t span)
{
    return r->first[span + 1] - r->first[span] - 1;
}

static lk_status note_write(lki_shared_replay *r, rows *all, uint32_t i, lki_span_version of)
{
    const bool there = of.version < changes_of(r, of.span);
    uint32_t  *by    = there ? &all->by[lki_replay_row(r, &of)] : NULL;
    if (there && *by == NOBODY) {
        *by = i;
        return LK_OK;
    }
    return lk_fail(LK_EFORMAT, "task %llu of the recording changes version %llu of span %llu, "
                               "which %s; the file has been changed",
                   (unsigned long long)r->tasks[i].task, (unsigned long long)of.version,
                   (unsigned long long)of.span,
                   there ? "another task changes, too" : "no task makes");
}

static lk_status note_read(lki_shared_replay *r, rows *all, uint32_t i, lki_span_version of)
{
    const bool   there = of.version <= changes_of(r, of.span);
    const size_t row   = lki_replay_row(r, &of);
    if (!there || r->made[row] > i)
        return lk_fail(LK_EFORMAT, "task %llu of the recording reads version %llu of span %llu, "
                                   "which %s; the file has been changed",
                       (unsigned long long)r->tasks[i].task, (unsigned long long)of.version,
                       (unsigned long long)of.span,
                       there ? "a later task makes" : "no task makes");
    r->counts[row]++;
    if (all->by[row] != i)
        all->reader[row] = i + 1;
    return LK_OK;
}

/* Notes what all tasks have read, or what they have changed. */
static lk_status note_all(lki_shared_replay *r, rows *all, lki_log_kind kind)
{
    lki_log_entry entry;
    for (uint32_t i = 0; i < r->task_count; i++) {
        lki_log_cursor cursor = r->tasks[i].cursor;
        while (lki_replay_entry(r, &cursor, &entry)) {
            const lki_span_version of = { entry.value, entry.second };
            if (entry.kind == kind)
                LK_TRY(kind == LKI_LOG_READ ? note_read(r, all, i, of)
                                            : note_write(r, all, i, of));
        }
    }
    return LK_OK;
}

static void find_makers(const lk_shared_vector *v, const rows *all)
{
    lki_shared_replay *r = v->replay;
    for (size_t span = 0; span < v->spans; span++)
        for (size_t row = r->first[span]; row + 1 < r->first[span + 1]; row++)
            r->made[row + 1] = all->by[row] + 1 > r->made[row] ? all->by[row] + 1
                                                                   : r->made[row];
}

/* Counts the slots. */
static void count_slots(const lk_shared_vector *v, rows *all)
{
    lki_shared_replay *r = v->replay;
    for (size_t row = 0; row < r->first[v->spans]; row++) {
        const uint32_t a = all->by[row], end = all->reader[row];
        if (a == NOBODY || end == 0) /* the last version of a span is not changed */
            continue;
        const uint32_t begin = a + 1 > r->window ? a + 1 - r->window : 0;
        if (begin < end) {
            all->change[begin]++;
            all->change[end]--;
        }
    }
    int64_t slots = 0, most = 0;
    for (size_t i = 0; i <= r->task_count; i++) {
        slots += all->change[i];
        most   = slots > most ? slots : most;
    }
    r->slot_count = (uint32_t)most;
}

static lk_status note_versions(lk_shared_vector *v, rows *all)
{
    lki_shared_replay *r     = v->replay;
    const size_t       count = r->first[v->spans];
    LK_TRY(LKI_NEW(&r->counts, count, "versions of a recording"));
    LK_TRY(LKI_NEW(&all->by, count, "versions of a recording"));
    LK_TRY(LKI_NEW(&r->made, count, "versions of a recording"));
    LK_TRY(LKI_NEW(&all->reader, count, "versions of a recording"));
    LK_TRY(LKI_NEW(&all->change, r->task_count + 1, "tasks of a recording"));
    memset(all->by, 0xff, count * sizeof *all->by);
    LK_TRY(note_all(r, all, LKI_LOG_WRITE));
    find_makers(v, all);
    LK_TRY(note_all(r, all, LKI_LOG_READ));
    count_slots(v, all);
    return LK_OK;
}

static lk_status load(lk_shared_vector *v, const char *path)
{
    lki_shared_replay *r   = v->replay;
    rows               all = { .by = NULL };
    LK_TRY(lki_log_map(&r->file, path));
    LK_TRY(check_header(v, path));
    LK_TRY(LKI_NEW(&r->first, v->spans + 1, "spans of a recording"));
    for (uint32_t rank = 0; rank < r->file.header.ranks; rank++)
        LK_TRY(list_tasks(v, rank, path));
    for (size_t span = 0; span < v->spans; span++)
        r->first[span + 1] += r->first[span] + 1;
    sort_tasks(r);
    const lk_status status = note_versions(v, &all);
    lki_free(all.by);
    lki_free(all.reader);
    lki_free(all.change);
    return status;
}

lk_status lki_shared_replay_open(lk_shared_vector *v, const char *path)
{
    LK_TRY(LKI_NEW(&v->replay, 1, "a replay"));
    v->replay->window = v->ranks == 1 ? 1 : WINDOW_PER_RANK * v->ranks;
    return load(v, path);
}

void lki_shared_replay_free(lki_shared_replay *r)
{
    if (r == NULL)
        return;
    while (r->pending != NULL) {
        lki_pending *next = r->pending->next;
        lki_free(r->pending->indices);
        lki_free(r->pending->values);
        lki_free(r->pending);
        r->pending = next;
    }
    lki_log_unmap(&r->file);
    lki_free(r->tasks);
    lki_free(r->first);
    lki_free(r->counts);
    lki_free(r->made);
    lki_free(r->pushes);
    lki_free(r);
}

void lki_shared_replay_carve(lk_shared_vector *v, char *base, size_t *at)
{
    lki_shared_replay *r     = v->replay;
    const size_t       count = r->first[v->spans];
    r->doing   = lki_carve(base, at, v->ranks * sizeof *r->doing);
    r->unread  = lki_carve(base, at, count * sizeof *r->unread);
    r->slot_of = lki_carve(base, at, count * sizeof *r->slot_of);
    r->taken   = lki_carve(base, at, r->slot_count * sizeof *r->taken);
    r->slots   = lki_carve(base, at, ((size_t)r->slot_count << v->shift) * sizeof *r->slots);
}

void lki_shared_replay_fill(lk_shared_vector *v)
{
    lki_shared_replay *r = v->replay;
    memcpy(r->unread, r->counts, r->first[v->spans] * sizeof *r->unread);
    for (uint32_t rank = 0; rank < v->ranks; rank++)
        atomic_store(&r->doing[rank], LKI_NO_TASK);
}

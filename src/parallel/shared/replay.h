/* parallel/shared/replay.h -- the state of a replay.
 *
 * Tasks are given out in the order of their tickets.  A task takes its ticket before its first
 * push, so all pushes that it has seen have smaller tickets, and a pull only waits for tasks that
 * were given out before it.
 *
 * Pushes to a span are added in the recorded order.  A push whose turn has not come is kept by its
 * rank, which adds it later, whenever it calls the library or waits.  So no push ever waits.
 *
 * If a version that other tasks will read is about to change, it is copied to a slot.  A task is
 * given out only if its place in the order is less than `window` behind the first task that has not
 * ended.  This limits the number of slots that are in use at a time (replay_load.c).
 *
 * For each span there is a row of all its versions in the arrays `unread` and `slot_of`.
 */
#ifndef LKI_PARALLEL_SHARED_REPLAY_H
#define LKI_PARALLEL_SHARED_REPLAY_H

#include "parallel/shared/log.h"

#define LKI_NO_TASK UINT64_MAX

typedef struct {
    uint64_t       ticket, task;
    uint64_t       lowest; /* number of this task and of those after it in the order */
    lki_log_cursor cursor; /* of the entry after TASK */
} lki_replay_task;

/* A recorded push of the current task. */
typedef struct {
    size_t   end;   /* its last entry in `writes`, exclusive */
    uint64_t hash;
    bool     known; /* the rank did not die before the push was complete */
} lki_replay_push;

/* A push to a span whose turn has not come. */
typedef struct lki_pending {
    struct lki_pending *next;
    uint64_t            version; /* that it changes */
    lki_span_part           piece;
    float               scale;
    uint32_t           *indices; /* owned */
    float              *values;  /* owned */
} lki_pending;

struct lki_shared_replay {
    lki_log_file     file;
    lki_replay_task *tasks; /* in the order of their tickets */
    size_t           task_count, task_capacity;
    size_t          *first;  /* [spans + 1]: where the row of a span begins */
    uint32_t        *counts; /* [first[spans]]: number of tasks that read a version */
    uint32_t        *made;   /* [first[spans]]: 1 + the place in the order of the last of the tasks
                              * that have made a version; 0: none */
    uint32_t         window, slot_count;

    /* The task in progress; what it read and changed is in vector->reads and vector->writes. */
    bool             complete; /* the recording of the task is */
    size_t           read_at, write_at, push_at;
    lki_replay_push *pushes;
    size_t           push_count, push_capacity;
    lki_pending     *pending;
    bool             changed;  /* spans, and the other ranks have not been told */

    /* The fields below point into the arena. */
    _Atomic uint64_t *doing;   /* [ranks]: place of a rank's task in the order, or LKI_NO_TASK */
    uint32_t         *unread;  /* number of tasks that will read a version; of who holds the span */
    uint32_t         *slot_of; /* 1 + the slot of a version; 0: none; of who holds the span */
    _Atomic uint32_t *taken;   /* [slot_count]: 1: the slot is in use */
    float            *slots;   /* [slot_count << shift] */
};

/* Reads the next entry of a task.  Returns false at the end of what is recorded of the task. */
bool lki_replay_entry(const lki_shared_replay *r, lki_log_cursor *cursor, lki_log_entry *out);

/* Returns the index of a version of a span in its row. */
static inline size_t lki_replay_row(const lki_shared_replay *r, const lki_span_version *of)
{
    return r->first[of->span] + of->version;
}

#endif

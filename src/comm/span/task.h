/* span/task.h -- a collective over messages in progress: schedules carried out without blocking.
 *
 * A vector is cut into segments.  Each segment is an instance of the algorithm's schedule, with its
 * own message names.  A few segments are in progress at a time, so that one is sent while another
 * is summed, and memory stays bounded.
 */
#ifndef LKI_COMM_TASK_H
#define LKI_COMM_TASK_H

#include "comm/algorithm/schedule.h"
#include "comm/scratch.h"
#include "link/wire/wire.h"

typedef struct lki_task lki_task;

enum {
    LKI_TASK_WINDOW_BYTES  = 4096, /* minimum size of a part */
    LKI_TASK_IN_FLIGHT     = 3,    /* segments in progress at a time */
};

/* Scratch memory for a rank's segments, reused from segment to segment, because page faults of new
 * memory cost more than the work in it.  While all rooms are taken a segment waits, unless its
 * operation is the first of its communicator.  That operation can proceed on every rank, so no rank
 * waits forever. */
typedef struct lki_rooms {
    struct {
        unsigned char *memory; /* NULL: not allocated yet */
        size_t         bytes;  /* LKI_TASK_SEGMENT_BYTES, or more while taken */
        bool           taken;
    } rooms[LKI_TASK_ROOMS];
    lki_task *tasks; /* the open tasks */
} lki_rooms;

/* NULL is allowed.  Memory of rooms that are still taken stays allocated (lki_wire_stuck()). */
void lki_rooms_free(lki_rooms *rooms);

typedef struct {
    const lki_method *method;
    lki_problem       problem; /* complete, except for `at` and `window` */
    lki_wire_op       op;
    const uint32_t   *world; /* [rank of the group]: world rank */
    lki_rooms        *rooms;
    const void       *send;
    void             *recv;
    size_t            segment_bytes; /* equal on all ranks; 0 = the default */
    bool              numbered;      /* the problem's `at` is a segment number */
    uint64_t          segments;
    uint64_t          named;    /* number of the operation's segments that already have message
                                 * names */
} lki_task_plan;

/* Creates a task.  Borrows the wire, the buffers and everything to which the plan points.  Nothing
 * is sent yet. */
LK_NODISCARD lk_status lki_task_new(lki_task **out, lki_wire *wire, const lki_task_plan *plan);

/* Advances the task as far as possible without waiting.  Sets *moved if the task advanced, and
 * *done if the task is complete. */
LK_NODISCARD lk_status lki_task_move(lki_task *task, bool *moved, bool *done);

/* Returns true if the wire may still access the buffers of an incomplete task.  Such a task can be
 * freed only after the wire has failed. */
bool lki_task_granted(const lki_task *task);

/* Frees the task.  NULL is allowed. */
void lki_task_free(lki_task *task);

/* Returns the number of segments. */
uint64_t lki_task_segments(const lki_task *task);

/* Writes the world ranks with which messages are outstanding to `ranks`, at most `capacity` of
 * them.  Returns their number. */
uint32_t lki_task_missing(const lki_task *task, uint32_t *ranks, uint32_t capacity);

#endif

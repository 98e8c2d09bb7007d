/* span/task.h -- a collective over messages on its way: schedules carried out without blocking.
 *
 * A vector is cut into segments.  Each is an instance of the algorithm's schedule with names of its
 * own for its messages; a few are on their way at the same time, so that one travels while another
 * is summed, and memory stays bounded.
 */
#ifndef LKI_COMM_TASK_H
#define LKI_COMM_TASK_H

#include "comm/algorithm/schedule.h"
#include "comm/scratch.h"
#include "comm/wire/wire.h"

typedef struct lki_task lki_task;

enum {
    LKI_TASK_WINDOW_BYTES  = 4096, /* of a part: not less */
    LKI_TASK_IN_FLIGHT     = 3,    /* segments */
};

/* Scratch of a rank's segments, kept from one to the next: new memory costs more than what it is
 * for.  Where all rooms are taken a segment waits, unless its operation is the first of its
 * communicator: that one can go on everywhere, so all do. */
typedef struct lki_rooms {
    struct {
        unsigned char *memory; /* NULL: was never needed */
        size_t         bytes;  /* LKI_TASK_SEGMENT_BYTES, or more while it is taken */
        bool           taken;
    } rooms[LKI_TASK_ROOMS];
    lki_task *tasks; /* that are open */
} lki_rooms;

void lki_rooms_free(lki_rooms *rooms); /* NULL is allowed */

typedef struct {
    const lki_method *method;
    lki_problem       problem; /* but `at` and `window` */
    lki_wire_op       op;
    const uint32_t   *world; /* of every rank in the group: its rank in the job */
    lki_rooms        *rooms;
    const void       *send;
    void             *recv;
    size_t            segment_bytes; /* the same on all ranks; 0 = the default */
    bool              numbered;      /* the problem's `at` is a number, of `segments` */
    uint64_t          segments;
    uint64_t          named;    /* segments of the operation whose messages have names already */
} lki_task_plan;

/* Borrows the wire, the buffers and what the plan points to.  Nothing is sent yet. */
LK_NODISCARD lk_status lki_task_new(lki_task **out, lki_wire *wire, const lki_task_plan *plan);

/* Does what can be done now.  *moved: that was something; *done: it was the last. */
LK_NODISCARD lk_status lki_task_move(lki_task *task, bool *moved, bool *done);

/* Whether the wire may touch the buffers of a task that is not done, so that it cannot be freed
 * unless the wire fails. */
bool lki_task_granted(const lki_task *task);

/* NULL is allowed. */
void lki_task_free(lki_task *task);

/* How many it has. */
uint64_t lki_task_segments(const lki_task *task);

/* The ranks in the job, up to `capacity`, with which a message is open; how many. */
uint32_t lki_task_missing(const lki_task *task, uint32_t *ranks, uint32_t capacity);

#endif

/* task.c -- carrying out a schedule on a wire, round by round, segment by segment.
 *
 *      segment   0  |--round 0--|--round 1--|
 *                1     |--round 0--|--round 1--|         each advances when its own messages
 *                2        |--round 0--|--round 1--|      are complete
 *                3                          |--round 0-- ...
 *
 * Cost:   writing the schedule of a segment takes some hundred nanoseconds per action.
 * Memory: for all tasks of a rank LKI_TASK_ROOMS times the scratch of one segment's schedule, plus
 *         one segment for each communicator whose first operation finds no free room.
 */
#include "comm/span/task.h"

#include "base/memory.h"

enum { STEP_BITS = 13 }; /* number of bits for round and lane; the other bits hold the segment's
                          * number */

_Static_assert(1 << STEP_BITS >= LKI_STEPS_MAX, "rounds and lanes fit a step");

/* One segment. */
typedef struct {
    lki_problem       problem;
    lki_schedule      schedule;
    lki_message      *messages;
    lki_partial_node *nodes;
    unsigned char    *base[LKI_BUFFERS];
    size_t            room; /* index of its scratch room, or NO_ROOM */
    uint32_t          number;
    size_t            next;         /* the next action */
    size_t            first, count; /* number of messages known to be done; number of messages
                                     * begun */
    bool              active;
} instance;

struct lki_task {
    lki_task     *next; /* in the list of tasks that share the rooms */
    lki_wire     *wire;
    lki_task_plan plan;
    size_t        window;
    uint64_t      segments, begun, ended;
    bool          scratches; /* a segment has needed scratch */
    instance      instances[LKI_TASK_IN_FLIGHT];
};

/* ---- Scratch ----------------------------------------------------------------------------- */

enum { NO_ROOM = LKI_TASK_ROOMS };

void lki_rooms_free(lki_rooms *rooms)
{
    for (size_t k = 0; rooms != NULL && k < LKI_TASK_ROOMS; k++)
        if (!rooms->rooms[k].taken)
            lki_free(rooms->rooms[k].memory);
    lki_free(rooms);
}

/* Returns true if the task's operation is the first open operation of its communicator. */
static bool is_first(const lki_task *task)
{
    const lki_wire_op *op = &task->plan.op;

    for (const lki_task *other = task->plan.rooms->tasks; other != NULL; other = other->next)
        if (other->plan.op.group == op->group && other->plan.op.seq < op->seq)
            return false;
    return true;
}

static size_t free_room(const lki_rooms *rooms)
{
    size_t room = 0;
    while (room < LKI_TASK_ROOMS && rooms->rooms[room].taken)
        room++;
    return room;
}

/* Acquires scratch memory for a segment.  The memory is not zeroed. */
static lk_status take_room(lki_rooms *rooms, size_t bytes, instance *i)
{
    const char *what = "what other ranks send of a segment";
    size_t      room = free_room(rooms);

    if (room == NO_ROOM)
        return lki_alloc_untouched((void **)&i->base[LKI_SCRATCH], bytes, what);
    if (rooms->rooms[room].bytes < bytes) {
        lki_free(rooms->rooms[room].memory);
        rooms->rooms[room].bytes = 0;
        size_t all               = lki_max(bytes, (size_t)LKI_TASK_SEGMENT_BYTES);
        LK_TRY(lki_alloc_untouched((void **)&rooms->rooms[room].memory, all, what));
        rooms->rooms[room].bytes = all;
    }
    i->room                  = room;
    i->base[LKI_SCRATCH]     = rooms->rooms[room].memory;
    rooms->rooms[room].taken = true;
    return LK_OK;
}

static void give_room(const lki_task *task, instance *i)
{
    lki_rooms *rooms = task->plan.rooms;

    if (lki_wire_stuck(task->wire)) /* the link may still write to it */
        return;
    if (i->room == NO_ROOM) {
        lki_free(i->base[LKI_SCRATCH]);
        return;
    }
    rooms->rooms[i->room].taken = false;
    if (rooms->rooms[i->room].bytes > LKI_TASK_SEGMENT_BYTES) {
        lki_free(rooms->rooms[i->room].memory);
        rooms->rooms[i->room].memory = NULL;
        rooms->rooms[i->room].bytes  = 0;
    }
}

/* ---- Segments ---------------------------------------------------------------------------- */

/* Returns true for operations in which a rank receives parts from all ranks at once, to sum or
 * store them. */
static bool comes_from_all(lki_op_kind kind)
{
    return kind == LKI_OP_REDUCE_SCATTER || kind == LKI_OP_REDUCE_SCATTER_V ||
           kind == LKI_OP_ALL_TO_ALL || kind == LKI_OP_ALL_TO_ALL_V;
}

/* Returns the window of a segment.  It depends only on values that are equal on all ranks. */
static size_t window_of(const lki_task_plan *plan)
{
    size_t segment = plan->segment_bytes == 0 ? LKI_TASK_SEGMENT_BYTES : plan->segment_bytes;
    size_t window  = segment;

    if (plan->method->uncut)
        return SIZE_MAX;
    if (comes_from_all(plan->problem.kind))
        window = lki_max(segment / plan->problem.size,
                         lki_min(segment, (size_t)LKI_TASK_WINDOW_BYTES));
    return lki_round_up(window, LKI_LINE); /* a whole number of elements of any type */
}

static void forget(instance *i, const lki_task *task)
{
    for (size_t k = i->first; k < i->count; k++)
        if (!i->messages[k].done)
            lki_wire_forget(task->wire, &i->messages[k]);
    lki_schedule_free(&i->schedule);
    lki_free(i->messages);
    lki_free(i->nodes);
    if (i->base[LKI_SCRATCH] != NULL)
        give_room(task, i);
    *i = (instance){ 0 };
}

/* Returns true if the next segment needs scratch and must wait until another segment frees its
 * scratch. */
static bool must_wait(const lki_task *task)
{
    bool alone = task->begun == task->ended && is_first(task);
    return free_room(task->plan.rooms) == NO_ROOM && !alone;
}

static lk_status prepare(lki_task *task, instance *i)
{
    const lki_task_plan *plan = &task->plan;

    *i                = (instance){ .problem = plan->problem,
                                    .number  = (uint32_t)(plan->named + task->begun),
                                    .room    = NO_ROOM };
    i->problem.at     = (size_t)task->begun * (plan->numbered ? 1 : task->window);
    i->problem.window = task->window;
    plan->method->build(&i->problem, &i->schedule);
    LK_TRY(i->schedule.status);
    task->scratches = task->scratches || i->schedule.scratch > 0;
    if (i->schedule.scratch > 0 && must_wait(task))
        return LK_OK;
    LK_TRY(LKI_NEW(&i->messages, i->schedule.messages + 1, "messages of a segment"));
    LK_TRY(LKI_NEW(&i->nodes, (size_t)i->schedule.terms_most + 1, "operands of a segment"));
    if (i->schedule.scratch > 0)
        LK_TRY(take_room(plan->rooms, i->schedule.scratch, i));
    i->base[LKI_SEND_BUFFER] = (unsigned char *)(uintptr_t)plan->send;
    i->base[LKI_RECV_BUFFER] = plan->recv;
    i->active                = true;
    return LK_OK;
}

/* Begins the next segment, if there is one and if it need not wait.  *begun becomes true if it
 * began. */
static lk_status begin(lki_task *task, instance *i, bool *begun)
{
    *begun = false;
    if (task->begun == task->segments || (task->scratches && must_wait(task)))
        return LK_OK;
    lk_status st = prepare(task, i);
    if (i->active)
        task->begun++;
    else
        forget(i, task);
    *begun = i->active;
    return st;
}

/* ---- Rounds ------------------------------------------------------------------------------ */

/* Returns the size of a complete message of an all_to_all_v, which only its two ranks know.
 * Returns 0 for other operations. */
static size_t whole_of(const lki_problem *p, const lki_action *a)
{
    const size_t *parts = a->kind == LKI_ACT_SEND ? p->parts : p->recv_parts;
    return p->recv_parts == NULL ? 0 : parts[a->peer + 1] - parts[a->peer];
}

static void exchange(const lki_task *task, instance *i, const lki_action *a)
{
    lki_message *message = &i->messages[i->count++];

    *message = (lki_message){
        .peer  = task->plan.world[a->peer],
        .step  = i->number << STEP_BITS | a->step,
        .op    = task->plan.op,
        .data  = (unsigned char *)((uintptr_t)i->base[a->spot.buffer] + a->spot.at),
        .bytes = a->bytes,
        .whole = whole_of(&i->problem, a),
    };
    if (a->kind == LKI_ACT_SEND)
        lki_wire_send(task->wire, message);
    else
        lki_wire_receive(task->wire, message);
}

static bool round_is_over(instance *i)
{
    while (i->first < i->count && i->messages[i->first].done)
        i->first++;
    return i->first == i->count;
}

static void do_round(const lki_task *task, instance *i)
{
    const lki_schedule *s     = &i->schedule;
    uint32_t            round = s->actions[i->next].round;

    for (; i->next < s->count && s->actions[i->next].round == round; i->next++) {
        const lki_action *a = &s->actions[i->next];
        if (a->kind == LKI_ACT_SEND || a->kind == LKI_ACT_RECEIVE)
            exchange(task, i, a);
        else
            lki_schedule_compute(s, a, &i->problem, i->base, i->nodes);
    }
}

static void advance(lki_task *task, instance *i, bool *moved)
{
    while (i->active && round_is_over(i)) {
        *moved = true;
        if (i->next < i->schedule.count) {
            do_round(task, i);
        } else {
            forget(i, task);
            task->ended++;
        }
    }
}

/* ---- The task ---------------------------------------------------------------------------- */

lk_status lki_task_new(lki_task **out, lki_wire *wire, const lki_task_plan *plan)
{
    lki_task *task;

    LK_TRY(LKI_NEW(&task, 1, "collective"));
    *task = (lki_task){ .next   = plan->rooms->tasks,
                        .wire   = wire,
                        .plan   = *plan,
                        .window = window_of(plan) };
    plan->rooms->tasks = task;
    size_t longest = lki_problem_longest(&plan->problem);
    task->segments = longest <= task->window ? 1 : (longest - 1) / task->window + 1;
    if (plan->numbered)
        task->segments = plan->segments;
    LK_ASSERT(plan->named + task->segments <= UINT32_MAX >> STEP_BITS);
    *out = task;
    return LK_OK;
}

lk_status lki_task_move(lki_task *task, bool *moved, bool *done)
{
    for (uint32_t k = 0; k < LKI_TASK_IN_FLIGHT; k++) {
        instance *i = &task->instances[k];
        advance(task, i, moved);
        bool begun = true;
        while (!i->active && begun) {
            LK_TRY(begin(task, i, &begun));
            advance(task, i, moved);
        }
    }
    *done = task->ended == task->segments;
    return LK_OK;
}

bool lki_task_granted(const lki_task *task)
{
    for (uint32_t k = 0; task != NULL && k < LKI_TASK_IN_FLIGHT; k++)
        for (size_t m = task->instances[k].first; m < task->instances[k].count; m++)
            if (!task->instances[k].messages[m].done && task->instances[k].messages[m].granted)
                return true;
    return false;
}

void lki_task_free(lki_task *task)
{
    if (task == NULL)
        return;
    for (uint32_t k = 0; k < LKI_TASK_IN_FLIGHT; k++)
        forget(&task->instances[k], task);
    lki_task **at = &task->plan.rooms->tasks;
    while (*at != task)
        at = &(*at)->next;
    *at = task->next;
    lki_free(task);
}

uint64_t lki_task_segments(const lki_task *task)
{
    return task->segments;
}

uint32_t lki_task_missing(const lki_task *task, uint32_t *ranks, uint32_t capacity)
{
    uint32_t count = 0;

    for (uint32_t k = 0; k < LKI_TASK_IN_FLIGHT; k++)
        for (size_t m = task->instances[k].first; m < task->instances[k].count; m++) {
            const lki_message *message = &task->instances[k].messages[m];
            uint32_t           known   = 0;
            while (known < count && ranks[known] != message->peer)
                known++;
            if (!message->done && known == count && count < capacity)
                ranks[count++] = message->peer;
        }
    return count;
}

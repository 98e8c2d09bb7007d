/* span.c -- requests of a communicator over several hosts, and waiting for both worlds.
 *
 * A started operation is begun on the wire at once, so that ranks which are in different ones find
 * out; its messages travel when it is among the first LKI_SPAN_RUNNING of its communicator that
 * are not complete, so that memory stays bounded however many are open.
 *
 * Waiting: polls as long as ranks have a core each, then sleeps in the link.  Who sleeps there
 * does not hear the bell of its board, so it looks at it between slices: short ones while requests
 * of this host are open, too, longer ones where only failures can be missed.
 */
#include "comm/span/span.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "comm/coll/reduction.h"
#include "comm/engine.h"
#include "comm/span/forest.h"
#include "comm/span/task.h"

enum { RUNNING = 8, SLICE_MS = 10, SHORT_SLICE_MS = 1, YIELDS = 40, PEERS_MS = 50, LATE_MS = 500 };

/* ---- Failing in both directions ---------------------------------------------------------- */

static void condemn(lki_self *self)
{
    lk_error why     = *lk_error_last();
    uint32_t culprit = lki_wire_culprit(self->wire);

    lki_board_name_hosts(why.message, self->group->board);
    lki_board_condemn(self->group->board, self->rank, culprit, why.status, why.status, why.message);
}

void lki_span_tell(const lk_comm *comm)
{
    lk_error why;

    lki_board_failure(comm->board, &why);
    lki_wire_abort(comm->self->wire, lki_board_culprit(comm->board), &why);
}

/* What this thread failed with here is not for the caller alone: the others wait. */
static lk_status fail_here(lk_comm *comm)
{
    char text[400];

    snprintf(text, sizeof text, "%.399s", lk_error_last()->message);
    return lki_fail_group(comm, comm->self->rank, LK_EPEER, "rank %u: %s", comm->self->rank, text);
}

/* ---- What a request is about ------------------------------------------------------------- */

static lki_op_kind kind_of(const lk_request *r)
{
    lki_op_kind kind = (lki_op_kind)(r->op.print.what & 0xff);

    switch ((int)kind) {
    case LKI_OP_ARENA: return LKI_OP_BARRIER;
    case LKI_OP_AGREE: return LKI_OP_ALL_REDUCE;
    case LKI_OP_SPLIT:
    case LKI_OP_ADASUM: return LKI_OP_ALL_GATHER;
    default: return kind;
    }
}

/* Bytes of the vector or, where it is divided evenly, of a part. */
static size_t bytes_of(const lk_request *r, lki_op_kind kind)
{
    if (kind == LKI_OP_REDUCE_SCATTER)
        return r->longest;
    if (kind == LKI_OP_ALL_REDUCE || kind == LKI_OP_REDUCE)
        return r->reduce.count * r->reduce.width;
    return kind == LKI_OP_ALL_GATHER ? r->send_bytes : r->bytes;
}

uint32_t lki_span_each(const lk_comm *comm)
{
    return comm->span == NULL || comm->span->levels == NULL ? 0 : comm->span->levels->each;
}

static lki_problem problem_of(const lk_request *r)
{
    const lk_comm *comm = r->comm;
    lki_op_kind    kind = kind_of(r);
    bool           sums = r->reduce.width != 0;
    bool           named = kind == (lki_op_kind)(r->op.print.what & 0xff); /* is what it says */

    return (lki_problem){
        .kind       = kind,
        .rank       = comm->rank,
        .size       = comm->size,
        .each       = named ? lki_span_each(comm) : 0,
        .root       = r->root,
        .dtype      = sums ? r->reduce.dtype : LK_U8,
        .op         = r->reduce.op,
        .width      = sums ? r->reduce.width : 1,
        .bytes      = bytes_of(r, kind),
        .parts      = r->offsets,
        .recv_parts = kind == LKI_OP_ALL_TO_ALL_V ? r->offsets + comm->size + 1 : NULL,
        .in_place   = r->in_place,
        .native     = lki_native_can(r),
        .span       = comm->span,
    };
}

static bool is_mail(const lk_request *r)
{
    return r->how->move != NULL;
}

/* 1 + the algorithm that was asked for by name: ranks must agree on it. */
static uint32_t forced_name(const lk_request *r)
{
    return lki_method_number(r->comm->self->tuning.forced[kind_of(r)]);
}

/* The messages of a part are the caller's.  Messages between two ranks are numbered for themselves,
 * and both sides call them alike. */
static lki_wire_op name_of(const lk_request *request)
{
    const lk_request *r    = request->caller != NULL ? request->caller : request;
    const lk_comm    *comm = r->comm;
    lki_wire_op       op   = {
              .group = comm->key, .seq = r->op.seq, .label = comm->group, .print = r->op.print
    };

    op.print.what |= (uint64_t)forced_name(r) << 24;
    if (is_mail(r)) {
        bool           sends    = kind_of(r) == LKI_OP_SEND;
        uint32_t       from     = sends ? comm->rank : r->root, to = sends ? r->root : comm->rank;
        const uint64_t words[4] = { LKI_OP_MESSAGE, comm->key, comm->world[from],
                                            comm->world[to] };
        op.group                = lki_xxh3(words, sizeof words);
        op.print                = lki_print_make(LKI_OP_MESSAGE, LK_U8, to, r->bytes);
    }
    return op;
}

static uint64_t *number_of(const lk_request *r)
{
    lki_flow *flow = &r->comm->flows[is_mail(r) ? r->root : 0];

    if (!is_mail(r))
        return &r->comm->seq;
    return kind_of(r) == LKI_OP_SEND ? &flow->sends : &flow->receives;
}

/* ---- Vectors in parts -------------------------------------------------------------------- */

static void copy_parts(const lk_request *r, bool in)
{
    unsigned char *at = r->staging;

    for (size_t k = 0; k < r->reduce.part_count; k++) {
        const lk_reduce_part *part  = &r->reduce.parts[k];
        size_t                bytes = part->count * r->reduce.width;
        if (bytes > 0)
            memcpy(in ? (void *)at : part->recv, in ? part->send : (const void *)at, bytes);
        at += bytes;
    }
}

static lk_status gather_parts(lk_request *r)
{
    if (r->reduce.parts == NULL)
        return LK_OK;
    LK_TRY(lki_alloc((void **)&r->staging, r->reduce.count * r->reduce.width + 1,
                     "tensors that travel together"));
    copy_parts(r, true);
    r->send = r->recv = r->staging;
    return LK_OK;
}

/* ---- From start to end ------------------------------------------------------------------- */

static lk_status make_task(lk_request *r)
{
    lki_task_plan plan = { .problem = problem_of(r), .world = r->comm->world,
                           .rooms = r->comm->self->rooms };

    if (plan.problem.kind == LKI_OP_TREE_REDUCE)
        return lki_forest_new(&r->forest, r);
    LK_TRY(gather_parts(r));
    plan.method = lki_tuning_choose(&r->comm->self->tuning, &plan.problem);
    plan.segment_bytes = r->comm->self->tuning.segment_bytes;
    if (plan.method == &lki_method_levels)
        return lki_relay_new(&r->relay, r);
    if (plan.method == &lki_method_native)
        return lki_native_new(&r->native, r);
    lk_request *names = r->caller != NULL ? r->caller : r;
    plan.op           = name_of(r);
    plan.named        = names->named;
    plan.send         = r->send;
    plan.recv         = r->recv;
    LK_TRY(lki_task_new(&r->task, r->comm->self->wire, &plan));
    names->named += lki_task_segments(r->task);
    return LK_OK;
}

static void clear(lk_request *r)
{
    r->comm->span->running -= r->met;
    lki_task_free(r->task);
    lki_forest_free(r->forest);
    lki_relay_free(r->relay);
    lki_native_free(r->native);
    lki_free(r->staging);
    r->task    = NULL;
    r->native  = NULL;
    r->forest  = NULL;
    r->relay   = NULL;
    r->staging = NULL;
    lki_request_complete(r);
}

lk_status lki_span_publish(lk_request *r)
{
    lk_comm  *comm = r->comm;
    uint64_t *next = number_of(r);

    if (lki_failed(comm))
        return lki_group_failure(comm);
    r->lane      = LKI_LANE_NONE;
    r->op.seq    = *next;
    lk_status st = make_task(r);
    if (st != LK_OK) {
        lki_free(r->staging);
        return st;
    }
    (*next)++;
    if (r->caller != NULL)
        return LK_OK;
    lki_op_note(comm, &r->op);
    lki_wire_op op = name_of(r);
    st             = lki_wire_begin(comm->self->wire, &op);
    if (st != LK_OK) {
        condemn(comm->self);
        clear(r);
        return lki_group_failure(comm);
    }
    return LK_OK;
}

lk_status lki_span_advance(lk_request *r, bool *moved)
{
    lki_span *span = r->comm->span;
    bool      done = false;

    if (lki_failed(r->comm))
        return lki_group_failure(r->comm);
    lki_wire_op op = name_of(r);
    if (!r->met && span->running == RUNNING)
        return LK_OK;
    span->running += !r->met;
    r->met = true;
    lk_status st = r->forest != NULL   ? lki_forest_move(r->forest, &op, moved, &done)
                   : r->relay != NULL  ? lki_relay_move(r->relay, moved, &done)
                   : r->native != NULL ? lki_native_move(r->native, moved, &done)
                                       : lki_task_move(r->task, moved, &done);
    if (st != LK_OK)
        return fail_here(r->comm);
    if (!done)
        return LK_OK;
    *moved = true;
    if (r->reduce.parts != NULL)
        copy_parts(r, false);
    st = r->caller != NULL ? LK_OK : lki_wire_end(r->comm->self->wire, &op);
    clear(r);
    if (st != LK_OK) {
        condemn(r->comm->self);
        return lki_group_failure(r->comm);
    }
    return LK_OK;
}

static const lki_task *task_of(const lk_request *r)
{
    return r->forest != NULL ? lki_forest_task(r->forest) : r->task;
}

void lki_span_drop(lk_request *r, bool others)
{
    char text[LKI_OPERATION_BYTES];

    lki_request_text(text, r);
    if (others || lki_task_granted(task_of(r)) || lki_native_open(r->native))
        (void)(lki_fail_group(r->comm, r->comm->self->rank, LK_EPEER,
                              "rank %u freed its request of %s before it was complete",
                              r->comm->self->rank, text) == LK_OK);
    clear(r);
}

/* ---- Asking what others are in ----------------------------------------------------------- */

static bool is_collective(const lk_request *r)
{
    return !r->complete && r->comm->span != NULL && r->caller == NULL && !is_mail(r);
}

/* Whoever may be in another operation than others are has a neighbour among these that is in
 * another one, so that all ranks together need no more questions than that, whatever the operation
 * waits for: messages, or memory of this host. */
static void ask_around(const lk_request *r)
{
    const lk_comm *comm = r->comm;
    lki_wire_op    op   = name_of(r);

    for (uint32_t away = 1; away < comm->size; away *= 2) {
        uint32_t before = (comm->rank + comm->size - away) % comm->size;
        lki_wire_ask(comm->self->wire, comm->world[(comm->rank + away) % comm->size], &op);
        lki_wire_ask(comm->self->wire, comm->world[before], &op);
    }
}

/* In each communicator about the oldest operation: there the ranks are in another one first. */
static void ask_others(const lki_self *self)
{
    if (!lki_wire_probe(self->wire))
        return;
    for (const lk_request *r = self->requests; r != NULL; r = r->next) {
        const lk_request *first = self->requests;
        while (first != r && !(is_collective(first) && first->comm == r->comm))
            first = first->next;
        if (first == r && is_collective(r))
            ask_around(r);
    }
}

void lki_span_poll(lki_self *self)
{
    bool moved;

    if (lki_wire_progress(self->wire, 0, &moved) != LK_OK)
        condemn(self);
    else if (!moved)
        ask_others(self);
}

/* ---- Waiting ----------------------------------------------------------------------------- */

/* Whether operations of this host alone are open. */
static bool local_work(const lki_self *self)
{
    for (const lk_request *r = self->requests; r != NULL; r = r->next)
        if (!r->complete && r->comm->span == NULL)
            return true;
    return false;
}

/* One look at everything, and a slice of sleep if there is nothing to do. */
static lk_status look(lk_request *r, int64_t ms, bool *idle)
{
    lk_comm  *comm = r->comm;
    lki_self *self = comm->self;
    bool      moved = lki_progress(comm);

    *idle = false;
    if (lki_failed(comm))
        return lki_group_failure(comm);
    if (r->complete || moved)
        return LK_OK;
    lki_ring(comm->span->local);
    if (lki_wire_progress(self->wire, ms, &moved) != LK_OK) {
        condemn(self);
        return lki_group_failure(comm);
    }
    *idle = !moved;
    if (!moved)
        ask_others(self);
    return LK_OK;
}

lk_status lki_span_await(lk_request *r, int64_t ms, int64_t *late)
{
    lk_comm  *comm  = r->comm;
    lki_wire *wire  = comm->self->wire;
    int64_t   began = lki_wire_now_ms(wire), looked = began;
    uint32_t  polls = 0, yielded = 0;
    bool      idle;

    *late = 0;
    while (!r->complete) {
        int64_t before = lki_wire_now_ms(wire), left = ms - (before - began);
        int64_t slice  = local_work(comm->self) ? SHORT_SLICE_MS : SLICE_MS;
        slice          = left < 0 || r->native != NULL ? 0 : left < slice ? left : slice;
        bool    spins = polls++ < comm->spins;
        bool    yields = !spins && slice == SHORT_SLICE_MS && yielded++ < YIELDS;
        if (yields)
            (void)sched_yield(); /* what it waits for may be a rank of this host */
        LK_TRY(look(r, spins || yields ? 0 : slice, &idle));
        if (idle && r->native != NULL)
            lki_native_rest(before - began);
        yielded = idle ? yielded : 0;
        int64_t now = lki_wire_now_ms(wire);
        began += now - before > LATE_MS ? now - before : 0; /* stopped, and continued */
        if (r->complete || !idle)
            continue;
        if (now - looked >= PEERS_MS) {
            looked = now;
            LK_TRY(lki_peers_check(comm->span->local, (lki_goal){ 0 }));
        }
        if (now - began >= ms) {
            *late = now - began > 0 ? now - began : 1;
            return LK_OK;
        }
    }
    return LK_OK;
}

/* ", host 1 of 2, last heard of in barrier #4", of a rank in the job. */
static void last_heard(char *out, size_t bytes, const lk_comm *comm, uint32_t rank)
{
    lki_wire_op heard = lki_wire_heard(comm->self->wire, rank);
    char        text[LKI_OPERATION_BYTES];
    uint32_t    at = 0;

    while (comm->world[at] != rank)
        at++;
    lki_print_text(text, sizeof text, heard.print, heard.seq, heard.label);
    (void)snprintf(out, bytes, ", host %u of %u, %s%.90s", comm->span->host_of[at],
                   comm->span->hosts, heard.print.what == 0 ? "not heard of yet"
                                                            : "last heard of in ",
                   heard.print.what == 0 ? "" : text);
}

/* As many as there is room for, and how many more. */
static void missing_text(char *out, size_t bytes, const lk_comm *comm, const uint32_t *ranks,
                         uint32_t count)
{
    char   who[LKI_WHO_BYTES], more[160];
    size_t used = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (used + 180 > bytes) {
            (void)snprintf(out + used, bytes - used, " and %u more", count - i);
            return;
        }
        last_heard(more, sizeof more, comm, ranks[i]);
        lki_board_who(who, comm->board, ranks[i], more);
        used += (size_t)snprintf(out + used, bytes - used, "%s%.160s", used == 0 ? "" : ", ", who);
    }
}

lk_status lki_span_timeout(lk_request *r, int64_t waited_ms)
{
    lk_comm *comm = r->comm;
    char     missing[370] = "", mine[LKI_OPERATION_BYTES];
    uint32_t ranks[8], count;

    if (r->forest != NULL && lki_forest_gathering(r->forest) != NULL)
        return lki_fail_timeout(comm->span->local, lki_forest_gathering(r->forest)->goal,
                                waited_ms);
    if (r->relay != NULL && lki_relay_waits_for(r->relay) != NULL) {
        lk_request *leg = lki_relay_waits_for(r->relay);
        return leg->comm->span != NULL ? lki_span_timeout(leg, waited_ms)
                                       : lki_fail_timeout(leg->comm, leg->goal, waited_ms);
    }
    count = task_of(r) == NULL ? 0 : lki_task_missing(task_of(r), ranks, 8);
    missing_text(missing, sizeof missing, comm, ranks, count);
    lki_print_text(mine, sizeof mine, r->op.print, r->op.seq, comm->group);
    return lki_fail_group(comm, count > 0 ? ranks[0] : comm->self->rank, LK_ETIMEOUT,
                          "rank %u in %.60s: waited %lld ms for %s", comm->self->rank, mine,
                          (long long)waited_ms, count > 0           ? missing
                                                : r->native != NULL ? "MPI's own collective"
                                                                    : "operations before it");
}

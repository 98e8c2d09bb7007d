/* span.c -- requests of a communicator over several hosts; await.c waits for them.
 *
 * A started operation is begun on the wire at once, so that ranks in different operations detect
 * the mismatch.  An operation exchanges messages only while it is one of the RUNNING first
 * incomplete operations.  Memory thus stays bounded for any number of open operations.
 */
#include "comm/span/span.h"

#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "comm/coll/reduction.h"
#include "comm/mpi/engine.h"
#include "comm/span/fill.h"
#include "comm/span/forest.h"
#include "comm/span/task.h"

enum { RUNNING = 8 };

/* ---- Failing in both directions ---------------------------------------------------------- */

void lki_span_condemn(lki_self *self)
{
    const lk_error *why = lki_wire_failure(self->wire);

    lki_board_condemn(self->group->board, self->rank, lki_wire_culprit(self->wire), why->status,
                      why->status, why->message);
}

void lki_span_tell(const lk_comm *comm)
{
    const lki_failure *f = lki_board_failure(comm->board);

    lki_wire_abort(comm->self->wire, f->culprit, f->verdict, f->text);
}

/* Fails the group with this thread's error, because other ranks wait for the operation. */
static lk_status fail_here(lk_comm *comm)
{
    return lki_fail_group(comm, comm->self->rank, LK_EPEER, "rank %u: %s", comm->self->rank,
                          lk_error_last()->message);
}

/* ---- The problem and the name of a request ----------------------------------------------- */

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

/* Returns the bytes of the vector, or of one part if the vector is divided evenly. */
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
    /* False if the fingerprint is that of a different kind of operation. */
    bool           named = kind == (lki_op_kind)(r->op.print.what & 0xff);

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
        .map        = &comm->span->map,
    };
}

static bool is_mail(const lk_request *r)
{
    return r->how->move != NULL;
}

/* Returns 1 + the number of an algorithm forced by name.  Ranks must agree on it. */
static uint32_t forced_name(const lk_request *r)
{
    if (kind_of(r) == LKI_OP_TREE_REDUCE && r->tree.algorithm != LK_TREE_AUTO)
        return lki_method_number(r->tree.algorithm == LK_TREE_LINEAR ? &lki_method_linear
                                                                     : &lki_method_direct);
    return lki_method_number(r->comm->self->tuning.forced[kind_of(r)]);
}

/* Computes the name of a request's messages.  The two ranks of a send and its receive compute the
 * same name.  For each pair of ranks such messages are numbered separately. */
lki_wire_op lki_span_name(const lk_request *request)
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

lk_status lki_span_travel(lk_request *r)
{
    lki_task_plan plan = { .problem = problem_of(r), .world = r->comm->world,
                           .rooms = r->comm->self->rooms };

    plan.method = lki_tuning_choose(&r->comm->self->tuning, &plan.problem);
    plan.segment_bytes = r->comm->self->tuning.segment_bytes;
    if (plan.method == &lki_method_levels)
        return lki_relay_new(&r->relay, r);
    if (plan.method == &lki_method_native)
        return lki_native_new(&r->native, r);
    lk_request *names = r->caller != NULL ? r->caller : r;
    plan.op           = lki_span_name(r);
    plan.named        = names->named;
    plan.send         = r->send;
    plan.recv         = r->recv;
    LK_TRY(lki_task_new(&r->task, r->comm->self->wire, &plan));
    names->named += lki_task_segments(r->task);
    return LK_OK;
}

static lk_status prepare(lk_request *r)
{
    if (kind_of(r) == LKI_OP_TREE_REDUCE)
        return lki_forest_new(&r->forest, r);
    if (r->filler != NULL)
        return lki_filling_new(&r->fill, r);
    LK_TRY(gather_parts(r));
    return lki_span_travel(r);
}

static void clear(lk_request *r)
{
    r->comm->span->running -= r->met;
    lki_task_free(r->task);
    lki_forest_free(r->forest);
    lki_relay_free(r->relay);
    lki_native_free(r->native);
    lki_filling_free(r->fill);
    lki_free(r->staging);
    r->task    = NULL;
    r->native  = NULL;
    r->forest  = NULL;
    r->relay   = NULL;
    r->fill    = NULL;
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
    lk_status st = prepare(r);
    if (st != LK_OK) {
        lki_free(r->staging);
        return st;
    }
    (*next)++;
    if (r->caller != NULL)
        return LK_OK;
    lki_op_note(comm, &r->op);
    lki_wire_op op = lki_span_name(r);
    st             = lki_wire_begin(comm->self->wire, &op);
    if (st != LK_OK) {
        lki_span_condemn(comm->self);
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
    lki_wire_op op = lki_span_name(r);
    if (!r->met && span->running == RUNNING)
        return LK_OK;
    span->running += !r->met;
    r->met = true;
    lk_status st = r->forest != NULL   ? lki_forest_move(r->forest, &op, moved, &done)
                   : r->relay != NULL  ? lki_relay_move(r->relay, moved, &done)
                   : r->native != NULL ? lki_native_move(r->native, moved, &done)
                   : r->fill != NULL   ? lki_filling_move(r->fill, moved, &done)
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
        lki_span_condemn(r->comm->self);
        return lki_group_failure(r->comm);
    }
    return LK_OK;
}

const lki_task *lki_span_task(const lk_request *r)
{
    return r->forest != NULL ? lki_forest_task(r->forest) : r->task;
}

void lki_span_drop(lk_request *r, bool others)
{
    char text[LKI_OPERATION_BYTES];

    lki_request_text(text, r);
    if (others || lki_task_granted(lki_span_task(r)) || lki_native_open(r->native))
        (void)(lki_fail_group(r->comm, r->comm->self->rank, LK_EPEER,
                              "rank %u freed its request of %s before it was complete",
                              r->comm->self->rank, text) == LK_OK);
    clear(r);
}

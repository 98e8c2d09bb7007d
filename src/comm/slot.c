/* slot.c -- the life of an operation: take a number, publish, meet, close. */
#include "comm/flight.h"
#include "comm/span.h"

#include <stdio.h>
#include <string.h>

static size_t index_of(const lki_op *op)
{
    return (size_t)(op->seq % LKI_IN_FLIGHT);
}

lki_print lki_print_make(lki_op_kind kind, lk_dtype dtype, uint32_t root, uint64_t count)
{
    return (lki_print){
        .what  = (uint64_t)kind | (uint64_t)dtype << 8 | (uint64_t)root << 32,
        .count = count,
        .hash  = 0,
    };
}

lki_print lki_print_reduce(lki_op_kind kind, lk_dtype dtype, lk_reduce_op op, uint32_t root,
                           uint64_t count)
{
    lki_print print = lki_print_make(kind, dtype, root, count);

    print.what |= (uint64_t)op.kind << 16;
    if (op.kind == LK_REDUCE_PREMUL_SUM)
        memcpy(&print.hash, &op.factor, sizeof print.hash);
    return print;
}

/* The slot that `seq` will use must have been retired by all.  The lowest of their counters is
 * remembered, so that this costs something once in a turn of the ring only. */
static lk_status wait_for_room(lk_comm *comm)
{
    if (comm->seq < comm->room + LKI_IN_FLIGHT)
        return LK_OK;
    LK_TRY(lki_await(comm, lki_goal_all(comm, offsetof(lki_seat, retired),
                                        comm->seq - LKI_IN_FLIGHT + 1)));
    uint64_t lowest = UINT64_MAX;
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        uint64_t retired = lki_counter(comm, rank, offsetof(lki_seat, retired));
        lowest           = retired < lowest ? retired : lowest;
    }
    comm->room = lowest;
    return LK_OK;
}

lk_status lki_op_open(lki_op *op, lk_comm *comm, lki_print print)
{
    if (lki_failed(comm))
        return lki_group_failure(comm);
    LK_TRY(wait_for_room(comm));
    *op            = (lki_op){ .seq = comm->seq++, .print = print };
    lki_slot *slot = &comm->seat->slots[index_of(op)];
    atomic_store_explicit(&slot->what, print.what, memory_order_relaxed);
    atomic_store_explicit(&slot->count, print.count, memory_order_relaxed);
    atomic_store_explicit(&slot->hash, print.hash, memory_order_relaxed);
    return LK_OK;
}

void *lki_op_payload(const lk_comm *comm, const lki_op *op, uint32_t rank, size_t bytes)
{
    lki_seat *seat  = lki_seat_of(comm, rank);
    size_t    index = index_of(op);
    LK_ASSERT(bytes <= LKI_BODY_BYTES);
    return bytes <= LKI_WORD_BYTES ? seat->slots[index].word : seat->bodies[index].bytes;
}

void lki_op_note(lk_comm *comm, lki_op *op)
{
    lki_rank *me = comm->me;
    atomic_store_explicit(&me->what, op->print.what, memory_order_relaxed);
    atomic_store_explicit(&me->count, op->print.count, memory_order_relaxed);
    atomic_store_explicit(&me->group, comm->group, memory_order_relaxed);
    atomic_store_explicit(&me->started, op->seq + 1, memory_order_relaxed);
    if (comm->self->flight != NULL)
        op->flight = lki_flight_begin(comm, op->print, op->seq);
}

void lki_op_publish(lk_comm *comm, lki_op *op)
{
    lki_slot *slot = &comm->seat->slots[index_of(op)];
    lki_op_note(comm, op);
    atomic_store_explicit(&slot->seq, op->seq + 1, memory_order_release);
    comm->unrung = true;
}

lk_status lki_op_compare(lk_comm *comm, const lki_op *op)
{
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        const lki_slot *slot = &lki_seat_of(comm, rank)->slots[index_of(op)];
        if (atomic_load_explicit(&slot->what, memory_order_relaxed) != op->print.what
            || atomic_load_explicit(&slot->count, memory_order_relaxed) != op->print.count
            || atomic_load_explicit(&slot->hash, memory_order_relaxed) != op->print.hash)
            return lki_fail_mismatch(comm, op, rank);
    }
    if (op->flight != 0)
        lki_flight_met(comm->self->flight, op->flight);
    return LK_OK;
}

lki_goal lki_op_goal(const lk_comm *comm, const lki_op *op)
{
    size_t offset = offsetof(lki_seat, slots) + index_of(op) * sizeof(lki_slot);
    return lki_goal_all(comm, offset + offsetof(lki_slot, seq), op->seq + 1);
}

lk_status lki_op_meet(lk_comm *comm, const lki_op *op)
{
    LK_TRY(lki_await(comm, lki_op_goal(comm, op)));
    return lki_op_compare(comm, op);
}

lki_goal lki_op_round(lk_comm *comm, const lki_op *op, uint64_t rounds)
{
    size_t   index  = index_of(op);
    size_t   offset = offsetof(lki_seat, bodies) + index * sizeof(lki_body);
    uint64_t all    = comm->rounds[index] + rounds;

    atomic_store_explicit(&comm->seat->bodies[index].rounds, all, memory_order_release);
    comm->unrung = true;
    return lki_goal_all(comm, offset + offsetof(lki_body, rounds), all);
}

void lki_op_close(lk_comm *comm, const lki_op *op)
{
    uint64_t retired = atomic_load_explicit(&comm->seat->retired, memory_order_relaxed);

    LK_ASSERT(op->seq >= retired && op->seq - retired < LKI_IN_FLIGHT);
    comm->done |= UINT64_C(1) << (op->seq - retired);
    while ((comm->done & 1) != 0) {
        comm->done >>= 1;
        retired++;
    }
    atomic_store_explicit(&comm->seat->retired, retired, memory_order_release);
    comm->unrung = true;
    if (op->flight != 0)
        lki_flight_end(comm->self->flight, op->flight, LKI_FATE_COMPLETE);
}

/* ---- Comparing outcomes ------------------------------------------------------------------ */

typedef struct {
    int32_t status;
    char    message[LKI_BODY_BYTES - sizeof(int32_t)];
} outcome;

static lk_status first_failure(const lk_comm *comm, const lki_op *op)
{
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        const outcome *told = lki_op_payload(comm, op, rank, sizeof *told);
        if (told->status != LK_OK)
            return lk_fail((lk_status)told->status, "rank %u: %s", rank, told->message);
    }
    return LK_OK;
}

lk_status lki_agree(lk_comm *comm, lk_status mine)
{
    lk_error error = *lk_error_last(); /* of `mine`, before anything below fails */
    lki_op   op    = { 0 };

    if (comm->span != NULL)
        return lki_span_agree(comm, mine);
    LK_TRY(lki_op_open(&op, comm, lki_print_make(LKI_OP_AGREE, LK_F32, 0, 0)));
    outcome *told = lki_op_payload(comm, &op, comm->rank, sizeof *told);
    told->status  = mine;
    snprintf(told->message, sizeof told->message, "%.400s", mine == LK_OK ? "" : error.message);
    lki_op_publish(comm, &op);
    LK_TRY(lki_op_meet(comm, &op));
    lk_status st = first_failure(comm, &op);
    lki_op_close(comm, &op);
    lki_ring(comm);
    return st;
}

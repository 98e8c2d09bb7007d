/* slot.c -- the life of an operation: take a number, publish, meet, close. */
#include "comm/group.h"

#include <stdio.h>
#include <string.h>

static size_t slot_offset(uint64_t seq)
{
    return offsetof(lki_rank, slots) + (size_t)(seq % LKI_IN_FLIGHT) * sizeof(lki_slot)
           + offsetof(lki_slot, seq);
}

lki_print lki_print_make(lki_op_kind kind, lk_dtype dtype, uint32_t root, uint64_t count)
{
    return (lki_print){
        .what  = (uint64_t)kind | (uint64_t)dtype << 8 | (uint64_t)root << 32,
        .count = count,
        .hash  = 0,
    };
}

/* The slot that `seq` will use must have been retired by all.  The lowest of their counters is
 * remembered, so that this costs something once in a turn of the ring only. */
static lk_status wait_for_room(lk_comm *comm)
{
    if (comm->seq < comm->room + LKI_IN_FLIGHT)
        return LK_OK;
    LK_TRY(lki_await(comm, offsetof(lki_rank, retired), comm->seq - LKI_IN_FLIGHT + 1));
    uint64_t lowest = UINT64_MAX;
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        uint64_t retired = lki_counter(comm, rank, offsetof(lki_rank, retired));
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
    lki_slot *slot = &comm->me->slots[op->seq % LKI_IN_FLIGHT];
    atomic_store_explicit(&slot->what, print.what, memory_order_relaxed);
    atomic_store_explicit(&slot->count, print.count, memory_order_relaxed);
    atomic_store_explicit(&slot->hash, print.hash, memory_order_relaxed);
    return LK_OK;
}

void *lki_op_payload(const lk_comm *comm, const lki_op *op, uint32_t rank, size_t bytes)
{
    lki_rank *record = lki_rank_of(comm, rank);
    size_t    index  = (size_t)(op->seq % LKI_IN_FLIGHT);
    LK_ASSERT(bytes <= LKI_BODY_BYTES);
    return bytes <= LKI_WORD_BYTES ? record->slots[index].word : record->bodies[index].bytes;
}

void lki_op_publish(lk_comm *comm, const lki_op *op)
{
    lki_slot *slot = &comm->me->slots[op->seq % LKI_IN_FLIGHT];
    atomic_store_explicit(&comm->me->started, op->seq + 1, memory_order_relaxed);
    atomic_store_explicit(&slot->seq, op->seq + 1, memory_order_release);
    comm->unrung = true;
}

static lk_status compare(lk_comm *comm, const lki_op *op)
{
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        const lki_slot *slot = &lki_rank_of(comm, rank)->slots[op->seq % LKI_IN_FLIGHT];
        if (atomic_load_explicit(&slot->what, memory_order_relaxed) != op->print.what
            || atomic_load_explicit(&slot->count, memory_order_relaxed) != op->print.count
            || atomic_load_explicit(&slot->hash, memory_order_relaxed) != op->print.hash)
            return lki_fail_mismatch(comm, op, rank);
    }
    return LK_OK;
}

lk_status lki_op_await(lk_comm *comm, const lki_op *op)
{
    return lki_await(comm, slot_offset(op->seq), op->seq + 1);
}

lk_status lki_op_meet(lk_comm *comm, const lki_op *op)
{
    LK_TRY(lki_op_await(comm, op));
    return compare(comm, op);
}

lk_status lki_op_peek(lk_comm *comm, const lki_op *op, bool *met)
{
    *met = lki_arrived(comm, slot_offset(op->seq), op->seq + 1);
    return *met ? compare(comm, op) : LK_OK;
}

void lki_op_close(lk_comm *comm, const lki_op *op)
{
    uint64_t retired = atomic_load_explicit(&comm->me->retired, memory_order_relaxed);

    LK_ASSERT(op->seq >= retired && op->seq - retired < LKI_IN_FLIGHT);
    comm->done |= UINT64_C(1) << (op->seq - retired);
    while ((comm->done & 1) != 0) {
        comm->done >>= 1;
        retired++;
    }
    atomic_store_explicit(&comm->me->retired, retired, memory_order_release);
    comm->unrung = true;
}

lk_status lki_sync(lk_comm *comm)
{
    atomic_store_explicit(&comm->me->steps, ++comm->steps, memory_order_release);
    comm->unrung = true;
    return lki_await(comm, offsetof(lki_rank, steps), comm->steps);
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
    lki_op   op;

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

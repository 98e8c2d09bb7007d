/* slot.c -- the rare and the slow steps of an operation; slot.h has all other steps. */
#include "comm/group/slot.h"

#include <stdio.h>

#include "comm/group/span.h"

/* Waits until all ranks have retired the operation that used the slot before operation number
 * comm->seq.  Stores the lowest `retired` of all ranks, so that this check is needed only once per
 * cycle through the ring. */
lk_status lki_op_make_room(lk_comm *comm)
{
    LK_TRY(lki_await(comm, lki_goal_all(comm, offsetof(lki_seat, retired),
                                        comm->seq - comm->ring + 1)));
    uint64_t lowest = UINT64_MAX;
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        uint64_t retired = lki_counter(comm, rank, offsetof(lki_seat, retired));
        lowest           = retired < lowest ? retired : lowest;
    }
    comm->room = lowest;
    return LK_OK;
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
    lk_error error = *lk_error_last(); /* saved before a later call can fail */
    lki_op   op    = { 0 };

    if (comm->span != NULL)
        return comm->self->span_ops->agree(comm, mine);
    LK_TRY(lki_op_open(&op, comm, lki_print_make(LKI_OP_AGREE, LK_F32, 0, 0)));
    outcome *told = lki_op_payload(comm, &op, comm->rank, sizeof *told);
    told->status  = mine;
    snprintf(told->message, sizeof told->message, "%s", mine == LK_OK ? "" : error.message);
    lki_op_publish(comm, &op);
    LK_TRY(lki_op_meet(comm, &op));
    lk_status st = first_failure(comm, &op);
    lki_op_close(comm, &op);
    lki_ring(comm);
    return st;
}

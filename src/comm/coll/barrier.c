/* barrier.c -- a barrier: no rank leaves before all have arrived.
 *
 * Cost:    publishes one slot and reads `size` - 1 slots, of one cache line each.
 * Memory:  none.
 */
#include "comm/group/request.h"

static void plan(lk_request *request)
{
    request->rounds = 1;
}

static lk_status act(lk_request *request)
{
    (void)request;
    return LK_OK;
}

static const lki_algorithm meeting = { .plan = plan, .act = act };

static lk_request request(lk_comm *comm)
{
    return (lk_request){ .comm     = comm,
                         .how      = &meeting,
                         .op.print = lki_print_make(LKI_OP_BARRIER, LK_U8, 0, 0) };
}

lk_status lk_barrier(lk_comm *comm)
{
    lki_op op = { 0 };

    if (comm->span != NULL) {
        lk_request r = request(comm);
        return lki_request_run(&r);
    }
    LK_TRY(lki_op_open(&op, comm, lki_print_make(LKI_OP_BARRIER, LK_U8, 0, 0)));
    lki_op_publish(comm, &op);
    LK_TRY(lki_op_meet(comm, &op));
    lki_op_close(comm, &op);
    lki_ring(comm);
    return LK_OK;
}

lk_status lk_barrier_start(lk_request **out, lk_comm *comm)
{
    lk_request r = request(comm);
    return lki_request_start(out, &r);
}

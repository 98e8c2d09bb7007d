/* barrier.c -- nobody leaves before everybody has come.
 *
 * Cost:    one slot published and `size` - 1 read: one cache line each.
 * Memory:  none.
 */
#include "comm/group.h"

lk_status lk_barrier(lk_comm *comm)
{
    lki_op op;

    LK_TRY(lki_op_open(&op, comm, lki_print_make(LKI_OP_BARRIER, LK_U8, 0, 0)));
    lki_op_publish(comm, &op);
    LK_TRY(lki_op_meet(comm, &op));
    lki_op_close(comm, &op);
    lki_ring(comm);
    return LK_OK;
}

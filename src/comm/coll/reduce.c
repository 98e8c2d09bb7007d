/* reduce.c -- the reduction of all ranks' vectors on one rank.
 *
 * This is an all_reduce with one receiver: see all_reduce.c for cost, order (exact) and memory.
 */
#include "comm/coll/adasum.h"

static lk_status prepare(lk_request *r, lk_comm *comm, const void *send, void *recv, size_t count,
                         lk_dtype dtype, lk_reduce_op op, uint32_t root)
{
    size_t bytes;

    LK_TRY(lki_check_root(comm, "reduce", root));
    recv = comm->rank == root ? recv : NULL;
    LK_TRY(lki_check_reduction(&bytes, "reduce", send, recv, count, dtype, op));
    LK_TRY(lki_check_buffers("reduce", send, bytes, recv, comm->rank == root ? bytes : 0,
                             send == recv));
    *r = (lk_request){
        .comm     = comm,
        .op.print = lki_print_reduce(LKI_OP_REDUCE, dtype, op, root, count),
        .send     = send,
        .recv     = recv,
        .root     = root,
        .reduce   = { .dtype = dtype, .op = op, .count = count, .width = lk_dtype_bytes(dtype) },
    };
    lki_all_reduce_init(r);
    return LK_OK;
}

lk_status lk_reduce(lk_comm *comm, const void *send, void *recv, size_t count, lk_dtype dtype,
                    lk_reduce_op op, uint32_t root)
{
    lk_request r;
    LK_TRY(prepare(&r, comm, send, recv, count, dtype, op, root));
    if (op.kind == LK_REDUCE_ADASUM)
        return lki_adasum_reduce(comm, send, recv, count, dtype, root);
    return lki_request_run(&r);
}

lk_status lk_reduce_start(lk_request **out, lk_comm *comm, const void *send, void *recv,
                          size_t count, lk_dtype dtype, lk_reduce_op op, uint32_t root)
{
    lk_request r;
    *out = NULL;
    LK_TRY(lki_refuse_adasum("reduce_start", op));
    LK_TRY(prepare(&r, comm, send, recv, count, dtype, op, root));
    return lki_request_start(out, &r);
}

/* gather.c -- every rank's bytes, in order of rank, on root.
 *
 * Cost:    see move.c; root copies the bytes of all other ranks.
 * Order:   nothing is computed.
 * Memory:  none but the existing staging buffers.
 */
#include "comm/coll/move.h"

static lki_parcel parcel(const lk_request *r, uint32_t from, uint32_t to)
{
    return (lki_parcel){ 0, from * r->bytes, to == r->root ? r->bytes : 0 };
}

static const lki_route route = { .parcel = parcel };

static lk_status prepare(lk_request *r, lk_comm *comm, const void *send, void *recv, size_t bytes,
                         uint32_t root)
{
    size_t total;

    LK_TRY(lki_check_root(comm, "gather", root));
    LK_TRY(lki_total(&total, "gather", comm->size, bytes));
    LK_TRY(lki_check_buffers("gather", send, bytes, recv, comm->rank == root ? total : 0,
                             send == lki_at(recv, root * bytes)));
    *r = (lk_request){
        .comm       = comm,
        .op.print   = lki_print_make(LKI_OP_GATHER, LK_U8, root, bytes),
        .send       = send,
        .recv       = recv,
        .bytes      = bytes,
        .send_bytes = bytes,
        .longest    = bytes,
        .root       = root,
        .route      = &route,
    };
    lki_move_init(r);
    return LK_OK;
}

lk_status lk_gather(lk_comm *comm, const void *send, void *recv, size_t bytes, uint32_t root)
{
    lk_request r;
    LK_TRY(prepare(&r, comm, send, recv, bytes, root));
    return lki_request_run(&r);
}

lk_status lk_gather_start(lk_request **out, lk_comm *comm, const void *send, void *recv,
                          size_t bytes, uint32_t root)
{
    lk_request r;
    *out = NULL;
    LK_TRY(prepare(&r, comm, send, recv, bytes, root));
    return lki_request_start(out, &r);
}

/* broadcast.c -- root's bytes on every rank.
 *
 * Cost:    see move.c; all ranks copy from root's buffer, or from root's staging buffers.
 * Order:   nothing is computed.
 * Memory:  none but root's existing staging buffers.
 */
#include "comm/coll/move.h"

static lki_parcel parcel(const lk_request *r, uint32_t from, uint32_t to)
{
    return (lki_parcel){ 0, 0, from == r->root && to != from ? r->bytes : 0 };
}

static const lki_route route = { .parcel = parcel };

static lk_status prepare(lk_request *r, lk_comm *comm, void *data, size_t bytes, uint32_t root)
{
    LK_TRY(lki_check_root(comm, "broadcast", root));
    LK_TRY(lki_check_buffers("broadcast", NULL, 0, data, bytes, false));
    *r = (lk_request){
        .comm       = comm,
        .op.print   = lki_print_make(LKI_OP_BROADCAST, LK_U8, root, bytes),
        .send       = data,
        .recv       = data,
        .bytes      = bytes,
        .send_bytes = comm->rank == root ? bytes : 0,
        .longest    = bytes,
        .root       = root,
        .route      = &route,
    };
    lki_move_init(r);
    return LK_OK;
}

lk_status lk_broadcast(lk_comm *comm, void *data, size_t bytes, uint32_t root)
{
    lk_request r;
    LK_TRY(prepare(&r, comm, data, bytes, root));
    return lki_request_run(&r);
}

lk_status lk_broadcast_start(lk_request **out, lk_comm *comm, void *data, size_t bytes,
                             uint32_t root)
{
    lk_request r;
    *out = NULL;
    LK_TRY(prepare(&r, comm, data, bytes, root));
    return lki_request_start(out, &r);
}

/* scatter.c -- part r of root's buffer on rank r.
 *
 * Cost:    see move.c; each rank copies its part from root's buffer, or from its share of root's
 *          staging buffers.
 * Order:   nothing is computed.
 * Memory:  none but root's existing staging buffers.
 */
#include "comm/coll/move.h"

static lki_parcel parcel(const lk_request *r, uint32_t from, uint32_t to)
{
    return (lki_parcel){ to * r->bytes, 0, from == r->root ? r->bytes : 0 };
}

static const lki_route route = { .parcel = parcel, .personal = true };

static lk_status prepare(lk_request *r, lk_comm *comm, const void *send, void *recv, size_t bytes,
                         uint32_t root)
{
    size_t total;

    LK_TRY(lki_check_root(comm, "scatter", root));
    LK_TRY(lki_total(&total, "scatter", comm->size, bytes));
    total = comm->rank == root ? total : 0;
    LK_TRY(
        lki_check_buffers("scatter", send, total, recv, bytes, recv == lki_at(send, root * bytes)));
    *r = (lk_request){
        .comm       = comm,
        .op.print   = lki_print_make(LKI_OP_SCATTER, LK_U8, root, bytes),
        .send       = send,
        .recv       = recv,
        .bytes      = bytes,
        .send_bytes = total,
        .longest    = bytes,
        .root       = root,
        .route      = &route,
    };
    lki_move_init(r);
    return LK_OK;
}

lk_status lk_scatter(lk_comm *comm, const void *send, void *recv, size_t bytes, uint32_t root)
{
    lk_request r;
    LK_TRY(prepare(&r, comm, send, recv, bytes, root));
    return lki_request_run(&r);
}

lk_status lk_scatter_start(lk_request **out, lk_comm *comm, const void *send, void *recv,
                           size_t bytes, uint32_t root)
{
    lk_request r;
    *out = NULL;
    LK_TRY(prepare(&r, comm, send, recv, bytes, root));
    return lki_request_start(out, &r);
}

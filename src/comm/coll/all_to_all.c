/* all_to_all.c -- part r of every rank's buffer on rank r; also with parts of different sizes.
 *
 * With different sizes a rank knows only the sizes that it sends and expects.  Ranks therefore
 * exchange sizes first, and an error names both ranks of a pair that disagrees.
 *
 * Cost:    see move.c; each rank copies one part from every other rank.  Different sizes: one more
 *          synchronisation.
 * Order:   nothing is computed.
 * Memory:  none but the existing staging buffers; with different sizes, three offsets for every
 *          rank.
 */
#include "base/memory.h"
#include "comm/coll/move.h"

static lki_parcel even(const lk_request *r, uint32_t from, uint32_t to)
{
    return (lki_parcel){ to * r->bytes, from * r->bytes, r->bytes };
}

/* Uses three tables of size + 1 offsets each: of the parts in send, in recv, and in the senders'
 * buffers. */
static lki_parcel uneven(const lk_request *r, uint32_t from, uint32_t to)
{
    uint32_t      me = r->comm->rank, size = r->comm->size;
    const size_t *send = r->offsets, *recv = send + size + 1, *theirs = recv + size + 1;

    if (from == me)
        return (lki_parcel){ send[to], recv[me], send[to + 1] - send[to] };
    return (lki_parcel){ theirs[from], recv[from], recv[from + 1] - recv[from] };
}

static const lki_route even_route   = { .parcel = even, .personal = true };
static const lki_route uneven_route = { .parcel = uneven, .personal = true, .header = true };

static lk_status prepare(lk_request *r, lk_comm *comm, const void *send, void *recv, size_t bytes)
{
    size_t total;

    LK_TRY(lki_total(&total, "all_to_all", comm->size, bytes));
    LK_TRY(lki_check_buffers("all_to_all", send, total, recv, total, send == recv));
    *r = (lk_request){
        .comm       = comm,
        .op.print   = lki_print_make(LKI_OP_ALL_TO_ALL, LK_U8, 0, bytes),
        .send       = send,
        .recv       = recv,
        .bytes      = bytes,
        .send_bytes = total,
        .longest    = bytes,
        .in_place   = send == recv,
        .route      = &even_route,
    };
    lki_move_init(r);
    return LK_OK;
}

static lk_status fill_uneven(lk_request *r, const size_t *send_bytes, const size_t *recv_bytes)
{
    uint32_t size = r->comm->size, me = r->comm->rank;
    size_t  *send = r->offsets, *recv = send + size + 1;
    bool     same = true;

    LK_TRY(lki_offsets(send, r->comm, send_bytes, 1, "all_to_all_v", "send_bytes"));
    LK_TRY(lki_offsets(recv, r->comm, recv_bytes, 1, "all_to_all_v", "recv_bytes"));
    for (uint32_t rank = 0; rank < size; rank++) {
        same       = same && send_bytes[rank] == recv_bytes[rank];
        r->longest = lki_max(r->longest, send_bytes[rank]);
    }
    if (send_bytes[me] != recv_bytes[me])
        return lk_fail(LK_EINVAL,
                       "all_to_all_v: rank %u sends %zu bytes to itself, but expects "
                       "%zu",
                       me, send_bytes[me], recv_bytes[me]);
    r->in_place = r->send == r->recv && r->send != NULL;
    LK_TRY(lki_check_buffers("all_to_all_v", r->send, send[size], r->recv, recv[size],
                             r->in_place && same));
    r->send_bytes = send[size];
    lki_move_init(r);
    return LK_OK;
}

static lk_status prepare_uneven(lk_request *r, lk_comm *comm, const void *send,
                                const size_t *send_bytes, void *recv, const size_t *recv_bytes)
{
    *r = (lk_request){ .comm     = comm,
                       .send     = send,
                       .recv     = recv,
                       .route    = &uneven_route,
                       .op.print = lki_print_make(LKI_OP_ALL_TO_ALL_V, LK_U8, 0, 0) };
    LK_TRY(LKI_NEW(&r->offsets, 3 * ((size_t)comm->size + 1), "offsets of parts"));
    lk_status st = fill_uneven(r, send_bytes, recv_bytes);
    if (st != LK_OK)
        lki_free(r->offsets);
    return st;
}

lk_status lk_all_to_all(lk_comm *comm, const void *send, void *recv, size_t bytes)
{
    lk_request r;
    LK_TRY(prepare(&r, comm, send, recv, bytes));
    return lki_request_run(&r);
}

lk_status lk_all_to_all_start(lk_request **out, lk_comm *comm, const void *send, void *recv,
                              size_t bytes)
{
    lk_request r;
    *out = NULL;
    LK_TRY(prepare(&r, comm, send, recv, bytes));
    return lki_request_start(out, &r);
}

lk_status lk_all_to_all_v(lk_comm *comm, const void *send, const size_t *send_bytes, void *recv,
                          const size_t *recv_bytes)
{
    lk_request r;
    LK_TRY(prepare_uneven(&r, comm, send, send_bytes, recv, recv_bytes));
    return lki_request_run(&r);
}

lk_status lk_all_to_all_v_start(lk_request **out, lk_comm *comm, const void *send,
                                const size_t *send_bytes, void *recv, const size_t *recv_bytes)
{
    lk_request r;
    *out = NULL;
    LK_TRY(prepare_uneven(&r, comm, send, send_bytes, recv, recv_bytes));
    return lki_request_start(out, &r);
}

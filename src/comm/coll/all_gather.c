/* all_gather.c -- every rank's bytes, in order of rank, on every rank; also with parts of different
 * sizes.
 *
 * Cost:    see move.c; each rank copies the bytes of all other ranks.
 * Order:   nothing is computed.
 * Memory:  none but the existing staging buffers; with different sizes, an offset for every rank.
 */
#include "base/hash.h"
#include "base/memory.h"
#include "comm/coll/move.h"

static lki_parcel even(const lk_request *r, uint32_t from, uint32_t to)
{
    (void)to;
    return (lki_parcel){ 0, from * r->bytes, r->bytes };
}

static lki_parcel uneven(const lk_request *r, uint32_t from, uint32_t to)
{
    (void)to;
    return (lki_parcel){ 0, r->offsets[from], r->offsets[from + 1] - r->offsets[from] };
}

static const lki_route even_route = { .parcel = even }, uneven_route = { .parcel = uneven };

static lk_status check(const lk_comm *comm, const void *send, const void *recv, size_t bytes)
{
    size_t total;

    LK_TRY(lki_total(&total, "all_gather", comm->size, bytes));
    return lki_check_buffers("all_gather", send, bytes, recv, total,
                             send == lki_at(recv, comm->rank * bytes));
}

static void prepare(lk_request *r, lk_comm *comm, const void *send, void *recv, size_t bytes)
{
    *r = (lk_request){
        .comm       = comm,
        .op.print   = lki_print_make(LKI_OP_ALL_GATHER, LK_U8, 0, bytes),
        .send       = send,
        .recv       = recv,
        .bytes      = bytes,
        .send_bytes = bytes,
        .longest    = bytes,
        .route      = &even_route,
    };
    lki_move_init(r);
}

/* Gathers payloads that fit the slots.  Creates no request, because that would double the time. */
static lk_status at_once(lk_comm *comm, const void *send, void *recv, size_t bytes)
{
    lki_op slot;

    LK_TRY(lki_op_exchange(&slot, comm, lki_print_make(LKI_OP_ALL_GATHER, LK_U8, 0, bytes), send,
                           bytes));
    for (uint32_t from = 0; from < comm->size && bytes > 0; from++) {
        unsigned char *to = (unsigned char *)recv + from * bytes;
        if (from != comm->rank)
            LK_TRY(lki_op_read(comm, &slot, from, 0, bytes, to));
        else if (to != send)
            memcpy(to, send, bytes);
    }
    lki_op_finish(comm, &slot, bytes);
    return LK_OK;
}

static lk_status fill_uneven(lk_request *r, const size_t *bytes)
{
    lk_comm *comm = r->comm;

    LK_TRY(lki_offsets(r->offsets, comm, bytes, 1, "all_gather_v", "bytes"));
    size_t at = r->offsets[comm->rank], total = r->offsets[comm->size];
    LK_TRY(lki_check_buffers("all_gather_v", r->send, bytes[comm->rank], r->recv, total,
                             r->send == lki_at(r->recv, at)));
    r->op.print      = lki_print_make(LKI_OP_ALL_GATHER_V, LK_U8, 0, total);
    r->op.print.hash = lki_xxh3(bytes, comm->size * sizeof *bytes);
    r->send_bytes    = bytes[comm->rank];
    for (uint32_t rank = 0; rank < comm->size; rank++)
        r->longest = lki_max(r->longest, bytes[rank]);
    lki_move_init(r);
    return LK_OK;
}

static lk_status prepare_uneven(lk_request *r, lk_comm *comm, const void *send, void *recv,
                                const size_t *bytes)
{
    *r = (lk_request){ .comm = comm, .send = send, .recv = recv, .route = &uneven_route };
    LK_TRY(LKI_NEW(&r->offsets, (size_t)comm->size + 1, "offsets of parts"));
    lk_status st = fill_uneven(r, bytes);
    if (st != LK_OK)
        lki_free(r->offsets);
    return st;
}

lk_status lk_all_gather(lk_comm *comm, const void *send, void *recv, size_t bytes)
{
    lk_request r;

    LK_TRY(check(comm, send, recv, bytes));
    if (bytes <= LKI_PAYLOAD_BYTES && comm->span == NULL &&
        comm->self->tuning.forced[LKI_OP_ALL_GATHER] == NULL)
        return at_once(comm, send, recv, bytes);
    prepare(&r, comm, send, recv, bytes);
    return lki_request_run(&r);
}

lk_status lk_all_gather_start(lk_request **out, lk_comm *comm, const void *send, void *recv,
                              size_t bytes)
{
    lk_request r;

    *out = NULL;
    LK_TRY(check(comm, send, recv, bytes));
    prepare(&r, comm, send, recv, bytes);
    return lki_request_start(out, &r);
}

lk_status lk_all_gather_v(lk_comm *comm, const void *send, void *recv, const size_t *bytes)
{
    lk_request r;
    LK_TRY(prepare_uneven(&r, comm, send, recv, bytes));
    return lki_request_run(&r);
}

lk_status lk_all_gather_v_start(lk_request **out, lk_comm *comm, const void *send, void *recv,
                                const size_t *bytes)
{
    lk_request r;
    *out = NULL;
    LK_TRY(prepare_uneven(&r, comm, send, recv, bytes));
    return lki_request_start(out, &r);
}

/* all_gather.c -- every rank's bytes, in order of rank, on every rank.
 *
 * Up to LKI_BODY_BYTES a rank travel in the slots.  Where all `send` buffers lie in arenas,
 * everybody copies from there.  Else each rank copies chunk after chunk into its staging
 * buffers, one ahead of the readers.
 *
 * Cost:    slot: one synchronisation.  Arena: two, and size * bytes copied by each rank.
 *          Staged: one for each chunk and one more, and `bytes` copied in addition.
 * Order:   nothing is computed.
 * Memory:  the staging buffers, which exist anyway.
 */
#include <string.h>

#include "base/memory.h"
#include "comm/group.h"

/* The sender may have given its place in `recv` (in place). */
static void copy(void *to, const void *from, size_t bytes)
{
    if (to != from && bytes > 0)
        memcpy(to, from, bytes);
}

static lk_status small(lk_comm *comm, const lki_op *op, const void *send, unsigned char *recv,
                       size_t bytes)
{
    if (bytes > 0)
        memcpy(lki_op_payload(comm, op, comm->rank, bytes), send, bytes);
    lki_op_publish(comm, op);
    LK_TRY(lki_op_meet(comm, op));
    for (uint32_t rank = 0; rank < comm->size && bytes > 0; rank++)
        memcpy(recv + rank * bytes, lki_op_payload(comm, op, rank, bytes), bytes);
    return LK_OK;
}

static lk_status direct(lk_comm *comm, const lki_place *places, unsigned char *recv, size_t bytes)
{
    for (uint32_t i = 0; i < comm->size; i++) {
        uint32_t rank = (comm->rank + i) % comm->size; /* not all from the same at once */
        copy(recv + rank * bytes, lki_place_data(comm, places[rank]), bytes);
    }
    return lki_sync(comm);
}

static void stage_in(lk_comm *comm, uint64_t chunk, const unsigned char *send, size_t bytes,
                     size_t at)
{
    if (at < bytes)
        memcpy(lki_stage(comm, comm->rank, chunk), send + at, lki_min(bytes - at, LKI_STAGE_BYTES));
}

/* Stages as in broadcast.c.  A rank's own part goes straight to its place. */
static lk_status staged(lk_comm *comm, const unsigned char *send, unsigned char *recv, size_t bytes)
{
    stage_in(comm, comm->chunks, send, bytes, 0);
    LK_TRY(lki_sync(comm));
    for (size_t at = 0; at < bytes; at += LKI_STAGE_BYTES, comm->chunks++) {
        stage_in(comm, comm->chunks + 1, send, bytes, at + LKI_STAGE_BYTES);
        for (uint32_t i = 1; i < comm->size; i++) {
            uint32_t rank = (comm->rank + i) % comm->size;
            memcpy(recv + rank * bytes + at, lki_stage(comm, rank, comm->chunks),
                   lki_min(bytes - at, LKI_STAGE_BYTES));
        }
        LK_TRY(lki_sync(comm));
    }
    copy(recv + comm->rank * bytes, send, bytes);
    return LK_OK;
}

static lk_status large(lk_comm *comm, const lki_op *op, const void *send, void *recv, size_t bytes)
{
    lki_place  mine   = lki_place_of(comm, send, bytes);
    lki_place *places;
    bool       all = true;

    LK_TRY(LKI_NEW(&places, comm->size, "places of buffers"));
    memcpy(lki_op_payload(comm, op, comm->rank, sizeof mine), &mine, sizeof mine);
    lki_op_publish(comm, op);
    lk_status st = lki_op_meet(comm, op);
    for (uint32_t rank = 0; rank < comm->size && st == LK_OK; rank++) {
        memcpy(&places[rank], lki_op_payload(comm, op, rank, sizeof mine), sizeof mine);
        all = all && places[rank].arena != 0;
    }
    if (st == LK_OK)
        st = all ? direct(comm, places, recv, bytes) : staged(comm, send, recv, bytes);
    lki_free(places);
    return st;
}

lk_status lk_all_gather(lk_comm *comm, const void *send, void *recv, size_t bytes)
{
    lki_op op;

    LK_TRY(lki_op_open(&op, comm, lki_print_make(LKI_OP_ALL_GATHER, LK_U8, 0, bytes)));
    LK_TRY(bytes <= LKI_BODY_BYTES ? small(comm, &op, send, recv, bytes)
                                   : large(comm, &op, send, recv, bytes));
    lki_op_close(comm, &op);
    lki_ring(comm);
    return LK_OK;
}

/* broadcast.c -- root's bytes on every rank.
 *
 * Up to LKI_BODY_BYTES travel in root's slot.  Where root's buffer lies in an arena the others
 * copy from there.  Else root copies chunk after chunk into its staging buffers, one ahead of
 * the readers.
 *
 * Cost:    slot: one synchronisation.  Arena: two, and one copy on each rank.  Staged: one for
 *          each chunk and one more, and an additional copy at root.
 * Order:   nothing is computed.
 * Memory:  root's staging buffers, which exist anyway.
 */
#include <string.h>

#include "base/memory.h"
#include "comm/group.h"

static lk_status small(lk_comm *comm, const lki_op *op, void *data, size_t bytes, uint32_t root)
{
    if (comm->rank == root && bytes > 0)
        memcpy(lki_op_payload(comm, op, root, bytes), data, bytes);
    lki_op_publish(comm, op);
    LK_TRY(lki_op_meet(comm, op));
    if (comm->rank != root && bytes > 0)
        memcpy(data, lki_op_payload(comm, op, root, bytes), bytes);
    return LK_OK;
}

static size_t chunk_bytes(size_t bytes, size_t at)
{
    return lki_min(bytes - at, LKI_STAGE_BYTES);
}

/* Chunk c lies in stage c while root already fills stage c + 1; stage c is used again for chunk
 * c + 3, two synchronisations after its last reader began. */
static lk_status staged(lk_comm *comm, unsigned char *data, size_t bytes, uint32_t root)
{
    bool is_root = comm->rank == root;

    if (is_root)
        memcpy(lki_stage(comm, root, comm->chunks), data, chunk_bytes(bytes, 0));
    LK_TRY(lki_sync(comm));
    for (size_t at = 0; at < bytes; at += LKI_STAGE_BYTES, comm->chunks++) {
        size_t next = at + LKI_STAGE_BYTES;
        if (!is_root)
            memcpy(data + at, lki_stage(comm, root, comm->chunks), chunk_bytes(bytes, at));
        else if (next < bytes)
            memcpy(lki_stage(comm, root, comm->chunks + 1), data + next, chunk_bytes(bytes, next));
        LK_TRY(lki_sync(comm));
    }
    return LK_OK;
}

static lk_status large(lk_comm *comm, const lki_op *op, void *data, size_t bytes, uint32_t root)
{
    lki_place place = lki_place_of(comm, data, bytes);

    memcpy(lki_op_payload(comm, op, comm->rank, sizeof place), &place, sizeof place);
    lki_op_publish(comm, op);
    LK_TRY(lki_op_meet(comm, op));
    memcpy(&place, lki_op_payload(comm, op, root, sizeof place), sizeof place);
    if (place.arena == 0)
        return staged(comm, data, bytes, root);
    const void *from = lki_place_data(comm, place);
    if (from != data) /* threads may give the very same buffer */
        memcpy(data, from, bytes);
    return lki_sync(comm);
}

lk_status lk_broadcast(lk_comm *comm, void *data, size_t bytes, uint32_t root)
{
    lki_op op;

    if (root >= comm->size)
        return lk_fail(LK_EINVAL, "broadcast from rank %u in a group of %u", root, comm->size);
    LK_TRY(lki_op_open(&op, comm, lki_print_make(LKI_OP_BROADCAST, LK_U8, root, bytes)));
    LK_TRY(bytes <= LKI_BODY_BYTES ? small(comm, &op, data, bytes, root)
                                   : large(comm, &op, data, bytes, root));
    lki_op_close(comm, &op);
    lki_ring(comm);
    return LK_OK;
}

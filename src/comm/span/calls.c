/* calls.c -- versions for several hosts of the calls that use slots and seats on one host. */
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "comm/coll/reduction.h"
#include "comm/span/span.h"

/* ---- Comparing outcomes ------------------------------------------------------------------ */

/* Computes on every rank the lowest rank that called with `failed` true; UINT32_MAX if no rank
 * did. */
static lk_status lowest_failure(lk_comm *comm, bool failed, uint32_t *lowest)
{
    lk_request r = {
        .comm     = comm,
        .op.print = lki_print_make(LKI_OP_AGREE, LK_F32, 0, 0),
        .send     = (const unsigned char *)lowest,
        .recv     = (unsigned char *)lowest,
        .root     = LKI_ALL_RANKS,
        .reduce   = { .dtype = LK_U32, .op = LK_MIN, .count = 1, .width = sizeof *lowest },
    };

    *lowest = failed ? comm->rank : UINT32_MAX;
    lki_all_reduce_init(&r);
    return lki_request_run(&r);
}

lk_status lki_span_agree(lk_comm *comm, lk_status mine)
{
    lk_error told = *lk_error_last(); /* the error that belongs to `mine`, saved before a call below
                                       * can fail */
    uint32_t lowest;

    LK_TRY(lowest_failure(comm, mine != LK_OK, &lowest));
    if (lowest == UINT32_MAX)
        return LK_OK;
    told.where = NULL;
    LK_TRY(lk_broadcast(comm, &told, sizeof told, lowest));
    return lk_fail(told.status, "rank %u: %s", lowest, told.message);
}

/* ---- Arenas ------------------------------------------------------------------------------ */

static lk_status meet(lk_comm *comm, const char *name, size_t bytes)
{
    lk_request r = { .comm = comm, .op.print = lki_print_make(LKI_OP_ARENA, LK_U8, 0, bytes) };

    r.op.print.hash = lki_xxh3(name, strlen(name));
    r.how           = &lki_move;
    return lki_request_run(&r);
}

lk_status lki_span_arena(lk_arena **out, lk_comm *comm, const char *name, size_t bytes)
{
    *out = NULL;
    LK_TRY(meet(comm, name, bytes));
    lk_status st = lki_span_agree(comm, lk_comm_arena(out, comm->span->local, name, bytes));
    if (st != LK_OK)
        *out = NULL;
    return st;
}

lk_status lki_span_mirror_prepare(lk_request *r, lk_arena *arena, size_t offset,
                                  const size_t *bytes)
{
    const uint64_t name     = lki_xxh3(arena->name, strlen(arena->name));
    const uint64_t where[2] = { name, offset }; /* an arena's index is valid only on its host */
    const uint32_t size     = r->comm->size;
    unsigned char *shared   = (unsigned char *)lk_arena_data(arena) + offset;

    r->how  = &lki_move;
    r->send = r->recv = shared;
    LK_TRY(LKI_NEW(&r->offsets, (size_t)size + 1, "pieces of an arena"));
    for (uint32_t rank = 0; rank < size; rank++)
        r->offsets[rank + 1] = r->offsets[rank] + bytes[rank];
    LK_ASSERT(offset + r->offsets[size] <= arena->bytes);
    r->op.print      = lki_print_make(LKI_OP_MIRROR, LK_U8, 0, r->offsets[size]);
    r->op.print.hash = lki_xxh3(bytes, size * sizeof *bytes) ^ lki_xxh3(where, sizeof where);
    return LK_OK;
}

/* Copies directly from arena to arena.  No rank may read the bytes before all ranks of its host
 * have received them, hence the barrier. */
lk_status lki_span_mirror(lk_comm *comm, lk_arena *arena, size_t offset, const size_t *bytes)
{
    lk_request r = { .comm = comm };

    LK_TRY(lki_span_mirror_prepare(&r, arena, offset, bytes));
    LK_TRY(lki_request_run(&r));
    return lk_barrier(comm->span->local);
}

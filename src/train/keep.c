/* keep.c -- packed weights, kept for a step and shared by the workers of a host.
 *
 * All turns of a step read the same parameters, so what products pack of them is packed once a step
 * and host, by who needs it first (tensor/packs.h).  The step's number is the version: parameters
 * follow from it, also where some of a step is made again after a failure.  The memory is an arena,
 * which a new group takes over with all others.  Not for turns of audits, which are to find what is
 * wrong with memory, too; nor for evaluations, which may read other weights.
 *
 * It is worth it where a worker reads a weight more than once in a step, and its products have few
 * rows (LKI_PACKED_ROWS).  It is left out where memory is short: under a limit, where parameters
 * are gathered block by block, and where there is not enough of it.
 */
#include "base/memory.h"
#include "comm/control.h"
#include "nn/engine_packs.h"
#include "parallel/strategy.h"
#include "train/session.h"

lk_status lki_pack_bytes(size_t *out, const lk_train_config *c, const lk_model *model,
                         const lk_exec *exec, bool gathers)
{
    uint64_t calls = c->global_batch / c->micro_batch;

    *out = 0;
    if (gathers || c->host_memory > 0 || c->onednn != NULL || calls < 2 * (uint64_t)c->workers)
        return LK_OK;
    return lki_engine_pack_bytes(out, model, exec, c->precision, c->micro_batch);
}

/* The arena of the others, if they have one. */
static lk_arena *find_arena(const lki_session *s, size_t bytes)
{
    lk_arena *arena = lki_comm_arena_named(s->comm, "packs");
    return arena != NULL && lk_arena_bytes(arena) >= bytes ? arena : NULL;
}

/* Hosts may have other instruction sets, which pack otherwise, and arenas are of one size. */
static lk_status open_arena(const lki_session *s, size_t bytes, lk_arena **out)
{
    uint64_t mine = bytes, most = 0, *all;

    LK_TRY(LKI_NEW(&all, s->ranks, "sizes of packs"));
    lk_status status = lk_all_gather(s->comm, &mine, all, sizeof mine);
    for (uint32_t r = 0; status == LK_OK && r < s->ranks; r++)
        most = lki_max(most, all[r]);
    lki_free(all);
    if (status == LK_OK && most > 0)
        status = lk_comm_arena(out, s->comm, "packs", most);
    return status == LK_ENOMEM ? LK_OK : status;
}

lk_status lki_keep_packs(lki_session *s)
{
    lk_arena *arena = NULL;
    size_t    bytes;

    LK_TRY(lki_pack_bytes(&bytes, s->config, s->model, s->exec, s->parallel->gathers));
    if (s->outside)
        arena = find_arena(s, bytes);
    else
        LK_TRY(open_arena(s, bytes, &arena));
    if (arena != NULL)
        lki_engine_keep_packs(s->engine, lk_arena_data(arena));
    return LK_OK;
}

/* shared_packs.c -- packed weights, which the workers of a host share during a step.
 *
 * All turns of a step read the same parameters.  So the first worker of a host that needs a weight
 * packs it, once per step (tensor/packs.h).  The step number serves as the version of the packed
 * weight.  Parameters depend only on that number, even if a part of a step is repeated after a
 * failure.  The memory is an arena, which a new communicator takes over.  Audits do not use it,
 * since they also look for faulty memory.  Evaluations do not use it, since they may read other
 * weights.
 *
 * Replicas, clients and asynchronous training have no packed weights, because each replica, client
 * and version would need its own.
 *
 * Packing saves time if a worker reads a weight more than once per step and its products have few
 * rows (LKI_PACKED_ROWS).  There are no packed weights if memory is short: under a limit, if
 * parameters are gathered block by block, or if the arena cannot be allocated.
 */
#include "base/memory.h"
#include "comm/worker.h"
#include "nn/engine_packs.h"
#include "parallel/state.h"
#include "train/core/session.h"

lk_status lki_pack_bytes(size_t *out, const lk_train_config *c, const lk_model *model,
                         const lk_exec *exec, bool gathers, uint32_t joint)
{
    uint32_t rows  = joint * c->micro_batch; /* maximum rows of an engine call */
    uint64_t calls = c->global_batch / rows;

    *out = 0;
    if (lki_replicates(c) || lki_federates(c) || lki_is_async(c))
        return LK_OK;
    if (gathers || c->host_memory > 0 || c->onednn != NULL || calls < 2 * (uint64_t)c->workers)
        return LK_OK;
    return lki_engine_pack_bytes(out, model, exec, c->precision, rows);
}

/* Returns the communicator's arena for packed weights; NULL if no arena of at least `bytes` bytes
 * exists. */
static lk_arena *find_arena(const lki_session *s, size_t bytes)
{
    lk_arena *arena = lki_comm_arena_named(s->comm, "packs");
    return arena != NULL && lk_arena_bytes(arena) >= bytes ? arena : NULL;
}

/* Opens an arena of the largest size that any rank needs.  Sizes may differ with the ranks' threads
 * and instruction sets, but an arena has the same size on all hosts. */
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

lk_status lki_share_packs(lki_session *s)
{
    lk_arena *arena = NULL;
    size_t    bytes;

    LK_TRY(lki_pack_bytes(&bytes, s->config, s->model, s->exec, s->parallel->gathers,
                          s->joint));
    if (s->outside)
        arena = find_arena(s, bytes);
    else
        LK_TRY(open_arena(s, bytes, &arena));
    if (arena != NULL && bytes > 0)
        lki_engine_keep_packs(s->engine, lk_arena_data(arena), lk_arena_bytes(arena));
    return LK_OK;
}

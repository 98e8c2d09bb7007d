/* ddp_room.c -- the memory of ddp and zero1: one arena per host with the buffers of all its
 * ranks. */
#include "base/memory.h"
#include "parallel/strategies/ddp.h"

void lki_ddp_plan(const lk_parallel *parallel, const lki_dealing *dealing, uint32_t rank,
                  lki_virtual_plan *plan)
{
    lki_share share = lki_share_of(dealing, rank);
    lki_virtual_plan_range(plan, parallel->leaves, share.first, share.count,
                           (lki_range_order){ parallel->effects.largest, parallel->joint,
                                              lki_cut(parallel) });
}

/* Counts the buffers of the ranks before `end` on a host, for turns of up to `joint` virtual
 * workers. */
static size_t count_buffers(const lk_parallel *parallel, const lki_dealing *dealing, uint32_t host,
                            uint32_t end, uint32_t joint)
{
    size_t total = 0;
    for (uint32_t r = 0; r < end; r++) {
        lki_share share = lki_share_of(dealing, r);
        if (parallel->world.host_of[r] != host)
            continue;
        total += parallel->effects.spares +
                 (parallel->lock_step ? share.count : lki_share_buffers(parallel, share, joint));
    }
    return total;
}

size_t lki_ddp_buffers(const lk_parallel *parallel, const lki_dealing *dealing, uint32_t host,
                       uint32_t end)
{
    return count_buffers(parallel, dealing, host, end, parallel->joint);
}

/* Counts the buffers of all ranks of a host.  With a ledger the number suffices for any set of
 * surviving ranks, and is equal on all hosts.  Joint turns of equal shares need so few buffers that
 * hardly any other shares would fit.  So if shares move, there are enough for any shares, but not
 * more than for equal shares without joint turns. */
size_t lki_ddp_all_buffers(const lk_parallel *parallel, uint32_t host)
{
    const uint32_t ranks = parallel->ranks;

    if (parallel->ledger.kept)
        return parallel->ledger.neighbours;
    size_t equal = lki_ddp_buffers(parallel, &parallel->dealing, host, ranks);
    if (parallel->joint <= 1 || !parallel->effects.largest || ranks == 1)
        return equal;
    size_t single = count_buffers(parallel, &parallel->dealing, host, ranks, 1);
    size_t any    = lki_virtual_buffers_most(parallel->leaves, ranks, parallel->joint);
    /* every rank on another host has at least one */
    return lki_max(equal, lki_min(single, any - (ranks - parallel->world.sizes[host])));
}

size_t lki_ddp_bytes(const lk_parallel *parallel, uint32_t host)
{
    size_t count = lki_ddp_all_buffers(parallel, host), bytes;
    size_t tags  = parallel->ledger.kept ? count * sizeof(lki_tag) : 0;
    count += parallel->ledger.kept;
    return __builtin_mul_overflow(count, parallel->width * sizeof(float), &bytes) ||
                   __builtin_add_overflow(bytes, tags, &bytes)
               ? 0
               : bytes;
}

/* Opens one arena for all ranks' buffers.  This rank's buffers follow those of the ranks before
 * this one.  With a ledger the sums come first and the tags last. */
lk_status lki_ddp_arena(lk_parallel *parallel, lki_ddp *self)
{
    const uint32_t mine = parallel->world.host_of[parallel->rank];
    const size_t   here = lki_ddp_all_buffers(parallel, mine);
    size_t         most = 0;
    lk_arena      *arena;
    for (uint32_t host = 0; host < parallel->world.hosts; host++) {
        size_t bytes = lki_ddp_bytes(parallel, host);
        if (bytes == 0)
            return lk_fail(LK_ENOMEM, "gradients: %zu buffers of %zu elements are too large",
                           lki_ddp_all_buffers(parallel, host), parallel->width);
        most = lki_max(most, bytes);
    }
    LK_TRY(lki_ledger_arena(parallel, LKI_ARENA_GRADIENTS, most, &arena));
    parallel->ledger.gradients = lk_arena_data(arena);
    self->first   = (uint32_t)lki_ddp_buffers(parallel, &parallel->dealing, mine, parallel->rank);
    self->buffers = parallel->ledger.gradients;
    self->room    = parallel->ledger.kept ? here : most / (parallel->width * sizeof(float));
    LK_ASSERT(lki_ddp_buffers(parallel, &parallel->dealing, mine, parallel->ranks) <= self->room);
    if (!parallel->ledger.kept)
        return LK_OK;
    self->sums = self->buffers;
    self->buffers += parallel->width;
    self->tags = (lki_tag *)(void *)(self->buffers + parallel->width * here);
    return LK_OK;
}

/* Returns true if the arena has enough buffers for `dealing`, and no rank holds too many nodes. */
bool lki_ddp_fits(const lk_parallel *parallel, const lki_dealing *dealing)
{
    lki_virtual_plan plan;
    bool             good = true;
    for (uint32_t h = 0; good && h < parallel->world.hosts; h++)
        good = lki_ddp_buffers(parallel, dealing, h, parallel->ranks) <= lki_ddp_of(parallel)->room;
    for (uint32_t r = 0; good && r < parallel->ranks; r++) {
        lki_ddp_plan(parallel, dealing, r, &plan);
        good = plan.node_count <= LK_TREE_NODES_MAX || lki_cut(parallel) > 0;
    }
    return good;
}

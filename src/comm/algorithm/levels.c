/* levels.c -- for hosts with several ranks: first shared memory, then the network, then shared
 * memory.
 *
 *      all_reduce       reduce_scatter on each host | all_reduce of each slice among the ranks that
 *                       have it, one on each host | all_gather on each host
 *      reduce_scatter   the first two steps of all_reduce
 *      all_gather       the last two steps of all_reduce
 *      broadcast        from root to a rank of each host | to all ranks on each host
 *
 * There is no schedule of messages. span/relay.c performs these steps as operations of smaller
 * groups, each with the algorithm that is cheapest for its group.
 *
 * Cost:    for H hosts of L ranks a host sends 2 (H-1)/H n bytes in an all_reduce, as if it had one
 *          rank.  If every rank sent directly to all others, data would cross the network up to L
 *          times.
 * Order:   the canonical tree if the number of ranks per host is a power of two, because a host's
 *          sum is then a node of the tree.  For other numbers reductions use other algorithms.
 * Memory:  16-bit types: the vector in FP32. reduce_scatter and all_gather: H parts.
 * Source:  the two-level scheme of Karonis et al., "Exploiting hierarchy in parallel computer
 *          networks to optimize collective operation performance" (IPDPS 2000).
 */
#include "comm/algorithm/cost.h"
#include "comm/algorithm/schedule.h"

static bool can(const lki_problem *p)
{
    bool sums  = p->kind == LKI_OP_ALL_REDUCE || p->kind == LKI_OP_REDUCE_SCATTER;
    bool moves = p->kind == LKI_OP_ALL_GATHER || p->kind == LKI_OP_BROADCAST;

    return p->each > 1 && p->size > p->each && p->size % p->each == 0 &&
           (moves || (sums && (p->each & (p->each - 1)) == 0));
}

/* Returns the problem between hosts, from the view of one rank of each host. */
static lki_problem between_hosts(const lki_problem *p)
{
    lki_problem leg  = *p;
    size_t      wide = p->width == 1 ? 1 : lki_problem_partial(p, p->width) / p->width;

    leg.size = p->size / p->each;
    leg.rank = 0;
    leg.each = 0;
    leg.root = p->kind == LKI_OP_BROADCAST ? 0 : p->root;
    if (p->kind == LKI_OP_ALL_REDUCE)
        leg.bytes /= p->each;
    leg.bytes *= wide;
    leg.width *= wide;
    leg.dtype = wide > 1 ? LK_F32 : p->dtype;
    return leg;
}

/* Returns the estimated seconds.  All ranks of a host send at once, except in a broadcast.  The
 * work in the memory of a host is counted as reading and writing the vector twice. */
static double seconds(const lki_tuning *tuning, const lki_problem *p)
{
    lki_problem leg   = between_hosts(p);
    double      times = p->kind == LKI_OP_BROADCAST ? 1 : p->each;
    double      whole = (double)p->bytes * (lki_tuning_divides(p->kind) ? p->size : 1);

    return lki_tuning_least(tuning, &leg, times) + tuning->model.alpha +
           4 * whole * tuning->model.gamma;
}

const lki_method lki_method_levels = {
    .name = "levels", .exact = true, .uncut = true, .can = can, .seconds = seconds
};

/* levels.c -- over hosts of several ranks: shared memory first, the network once, shared memory
 * last.
 *
 *      all_reduce       reduce_scatter on each host | all_reduce of each slice among the ranks that
 *                       have it, one on each host | all_gather on each host
 *      reduce_scatter   as its first two thirds;  all_gather: as its last two, backwards
 *      broadcast        from root to a rank of each host | to all on each host
 *
 * No schedule of messages: span/relay.c does it by operations of smaller groups, each taking
 * the algorithm that is cheapest there.
 *
 * Cost:    for H hosts of L ranks a host sends 2 (H-1)/H n bytes of an all_reduce in all, as if it
 * had one rank; what goes straight from every rank to every other crosses up to L times. Order: the
 * canonical tree where hosts are equal powers of two, for the sum of a host is then a node of it;
 * others take other algorithms for what is summed. Memory:  16-bit types: the vector in FP32.
 * reduce_scatter and all_gather: H parts. Source:  the two-level scheme of Karonis et al.,
 * "Exploiting hierarchy in parallel computer networks to optimize collective operation performance"
 * (IPDPS 2000).
 */
#include "comm/algorithm/schedule.h"

static bool can(const lki_problem *p)
{
    bool sums  = p->kind == LKI_OP_ALL_REDUCE || p->kind == LKI_OP_REDUCE_SCATTER;
    bool moves = p->kind == LKI_OP_ALL_GATHER || p->kind == LKI_OP_BROADCAST;

    return p->each > 1 && p->size > p->each && p->size % p->each == 0 &&
           (moves || (sums && (p->each & (p->each - 1)) == 0));
}

/* Ranks of a host share its network: see lki_tuning_seconds().  The legs on a host count as half a
 * round. */
static lki_work work(const lki_problem *p)
{
    uint32_t     count = p->size / p->each;
    double       each = p->each, hosts = count, n = (double)lki_problem_longest(p);
    const double local = 0.5;
    double       share = each * (p->size - each) / (p->size - 1), far = (hosts - 1) * each / share;

    if (p->kind == LKI_OP_BROADCAST)
        return (lki_work){ 1 + local, hosts - 1, far * n / each, n };
    if (p->kind == LKI_OP_ALL_GATHER)
        return (lki_work){ 1 + local, hosts - 1, far * n, p->size * n };
    double wide = (double)lki_problem_partial(p, p->width) / (double)p->width;
    if (p->kind == LKI_OP_REDUCE_SCATTER)
        return (lki_work){ 1 + local, hosts - 1, far * wide * n, 2 * p->size * n };
    return (lki_work){ 2 + local, 2 * (hosts - 1), 2 * far / p->size * wide * n, 4 * n };
}

const lki_method lki_method_levels = {
    .name = "levels", .exact = true, .uncut = true, .can = can, .work = work
};

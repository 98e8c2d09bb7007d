/* tree.c -- the binomial tree: sums are sent towards rank 0, copies away from the root.
 *
 *      reduce, round j   rank r, a multiple of 2^j but not of 2^(j+1), sends node [r, r + 2^j),
 *                        cut off at N, to rank r - 2^j, which adds it to its own
 *      broadcast         the same edges in the opposite direction, from the longest to the shortest
 *
 *      r0 <- r1          [0,2) = r0 + r1            aligned powers of two, cut off at N, are
 *      r2 <- r3          [2,4) = r2 + r3            exactly the nodes of the canonical tree
 *      r0 <- r2          [0,4)     r0 <- r4         [0,5)
 *
 * A sum for a root other than rank 0 needs one more hop.  A broadcast rotates the ranks so that
 * root takes the place of rank 0. all_reduce is a reduce to rank 0 and a broadcast.
 *
 * Cost:    log2 N rounds for a reduce, and as many for a broadcast.  In each round rank 0 receives,
 *          or sends, n bytes.  Partial sums of 16-bit types are sent as FP32.
 * Order:   the canonical tree: exact.
 * Memory:  two segments of accumulators.
 * Source:  Thakur, Rabenseifner, Gropp (IJHPCA 19, 2005), sections 4.2, 4.5; the edges are those of
 *          van de Geijn's minimum spanning tree.
 */
#include "comm/algorithm/schedule.h"

static uint32_t height(uint32_t size)
{
    uint32_t rounds = 0;
    while (rounds < 31 && UINT32_C(1) << rounds < size)
        rounds++;
    return rounds;
}

static uint32_t cut_off(const lki_problem *p, uint32_t first, uint32_t count)
{
    return first + count > p->size ? p->size - first : count;
}

static size_t bytes_of(const lki_problem *p, size_t bytes, uint32_t leaves)
{
    return leaves == 1 ? bytes : lki_problem_partial(p, bytes);
}

/* Sums the vectors of all ranks at rank 0's `out`.  Uses rounds 0 to height. */
static void build_up(const lki_problem *p, lki_schedule *s, lki_spot out)
{
    lki_range whole = lki_problem_whole(p);
    size_t    count = whole.bytes / p->width, wide = lki_problem_partial(p, whole.bytes);
    lki_spot  mine = lki_spot_at(LKI_SEND_BUFFER, whole.at), sum = lki_schedule_room(s, wide),
             in = lki_schedule_room(s, wide);
    uint32_t me = p->rank, have = 1;

    if (count == 0)
        return;
    if (p->size == 1)
        lki_schedule_combine(s, out, true, 0, 1, count, &(lki_term){ 0, 1, true, mine }, 1);
    for (uint32_t j = 0; j < height(p->size); j++) {
        uint32_t step = UINT32_C(1) << j;
        lki_schedule_round(s, j);
        if (me % (2 * step) == step) {
            lki_schedule_send(s, me - step, mine, bytes_of(p, whole.bytes, have));
            return;
        }
        if (me + step >= p->size)
            continue;
        uint32_t theirs = cut_off(p, me + step, step);
        lki_schedule_receive(s, me + step, in, bytes_of(p, whole.bytes, theirs));
        const lki_term terms[2] = { { me, have, have == 1, mine },
                                    { me + step, theirs, theirs == 1, in } };
        have += theirs;
        bool root = have == p->size;
        mine      = root ? out : sum;
        lki_schedule_round(s, j + 1);
        lki_schedule_combine(s, mine, root, me, have, count, terms, 2);
    }
}

/* Broadcasts the `recv` of rank `root`.  Uses rounds `first` to first + height. */
static void build_down(const lki_problem *p, lki_schedule *s, uint32_t root, uint32_t first)
{
    lki_range whole = lki_problem_whole(p);
    lki_spot  data  = lki_spot_at(LKI_RECV_BUFFER, whole.at);
    uint32_t  me = (p->rank + p->size - root) % p->size, rounds = height(p->size);

    for (uint32_t k = 0; k < rounds; k++) {
        uint32_t step = UINT32_C(1) << (rounds - 1 - k);
        lki_schedule_round(s, first + k);
        if (me % (2 * step) == step)
            lki_schedule_receive(s, (p->rank + p->size - step) % p->size, data, whole.bytes);
        else if (me % (2 * step) == 0 && me + step < p->size)
            lki_schedule_send(s, (p->rank + step) % p->size, data, whole.bytes);
    }
}

static void build(const lki_problem *p, lki_schedule *s)
{
    lki_range whole = lki_problem_whole(p);
    uint32_t  last  = height(p->size);
    lki_spot  recv  = lki_spot_at(LKI_RECV_BUFFER, whole.at);

    if (p->kind == LKI_OP_BROADCAST) {
        build_down(p, s, p->root, 0);
        return;
    }
    if (p->kind == LKI_OP_ALL_REDUCE) {
        build_up(p, s, recv);
        build_down(p, s, 0, last);
        return;
    }
    lki_spot out = p->root == 0 || p->rank != 0 ? recv : lki_schedule_room(s, whole.bytes);
    build_up(p, s, out);
    lki_schedule_round(s, last);
    if (p->root != 0 && p->rank == 0)
        lki_schedule_send(s, p->root, out, whole.bytes);
    if (p->root != 0 && p->rank == p->root)
        lki_schedule_receive(s, 0, recv, whole.bytes);
}

static bool can(const lki_problem *p)
{
    return p->kind == LKI_OP_ALL_REDUCE || p->kind == LKI_OP_REDUCE || p->kind == LKI_OP_BROADCAST;
}

static lki_work work(const lki_problem *p)
{
    double rounds = height(p->size), n = (double)p->bytes, others = p->size - 1;

    if (p->kind == LKI_OP_BROADCAST)
        return (lki_work){ rounds, rounds, rounds * n, 0, others, others * n };
    const uint32_t half = (p->size + 1) / 2;
    double   wide = (double)lki_problem_partial(p, p->width) / (double)p->width;
    double   leaves = half, /* number of leaves that are sent unchanged */
             more = p->kind == LKI_OP_REDUCE && p->root != 0;
    lki_work up     = { rounds + more, rounds + more, n + (rounds - 1) * n * wide + more * n,
                        2 * rounds * n, others + more,
                        (leaves + (others - leaves) * wide + more) * n };
    if (p->kind == LKI_OP_ALL_REDUCE)
        return (lki_work){ 2 * rounds, 2 * rounds, up.bytes + rounds * n, up.combined, 2 * others,
                           up.all_bytes + others * n };
    return up;
}

const lki_method lki_method_tree = {
    .name = "tree", .exact = true, .can = can, .work = work, .build = build
};

/* direct.c -- every rank sends slices to their owners, and owners send sums to all ranks.
 *
 *      round 0   each rank sends slice s of its vector to rank s        (all to all)
 *      round 1   rank s evaluates the tree over all ranks' slice s, and sends the sum to all
 *
 * reduce_scatter is round 0, with the parts as slices. all_gather is round 1. reduce sends the sums
 * only to root.  Each rank first sends to the next higher rank, so that no rank receives from all
 * at once.
 *
 * Cost:    2 rounds.  A rank sends 2 (N-1)/N n bytes, as a ring does, for any N, in 2 (N-1)
 *          messages.  Each round has half of these messages.
 * Order:   the canonical tree at the owner of a slice: exact.  Leaves are sent unchanged, so 16-bit
 *          types are sent as 16 bits and rounded once.
 * Memory:  (N-1)/N of a segment.  With many ranks, the number of small messages is the first limit.
 * Source:  the pairwise exchange of Thakur, Rabenseifner, Gropp, "Optimization of collective
 *          communication operations in MPICH" (IJHPCA 19, 2005), section 4.4, with all pairs at
 *          once and a fixed order of the sum.
 */
#include "comm/algorithm/schedule.h"

static uint32_t next(const lki_problem *p, uint32_t i)
{
    return (p->rank + i) % p->size;
}

/* Returns the slice that `rank` evaluates, as a range of the send buffers. */
static lki_range slice_of(const lki_problem *p, uint32_t rank)
{
    bool divided = p->kind == LKI_OP_REDUCE_SCATTER || p->kind == LKI_OP_REDUCE_SCATTER_V;
    return divided ? lki_problem_part(p, rank) : lki_problem_slice(p, rank);
}

static void scatter_slices(const lki_problem *p, lki_schedule *s, lki_spot room)
{
    size_t mine = slice_of(p, p->rank).bytes;

    for (uint32_t i = 1; i < p->size; i++) {
        uint32_t  to = next(p, i), from = next(p, p->size - i);
        lki_range slice = slice_of(p, to);
        lki_schedule_send(s, to, lki_spot_at(LKI_SEND_BUFFER, slice.at), slice.bytes);
        lki_schedule_receive(s, from, lki_spot_plus(room, from * mine), mine);
    }
}

static void sum_slice(const lki_problem *p, lki_schedule *s, lki_spot room, lki_spot out)
{
    lki_range mine = slice_of(p, p->rank);

    if (mine.bytes == 0)
        return;
    lki_schedule_combine_begin(s, out, true, 0, p->size, mine.bytes / p->width);
    for (uint32_t rank = 0; rank < p->size; rank++) {
        lki_spot at = rank == p->rank ? lki_spot_at(LKI_SEND_BUFFER, mine.at)
                                      : lki_spot_plus(room, rank * mine.bytes);
        lki_schedule_combine_term(s, (lki_term){ rank, 1, true, at });
    }
}

/* Sends every rank's range of recv to all other ranks. */
static void gather_ranges(const lki_problem *p, lki_schedule *s,
                          lki_range (*range)(const lki_problem *p, uint32_t rank))
{
    lki_range mine = range(p, p->rank);

    for (uint32_t i = 1; i < p->size; i++) {
        uint32_t  to = next(p, i), from = next(p, p->size - i);
        lki_range theirs = range(p, from);
        lki_schedule_send(s, to, lki_spot_at(LKI_RECV_BUFFER, mine.at), mine.bytes);
        lki_schedule_receive(s, from, lki_spot_at(LKI_RECV_BUFFER, theirs.at), theirs.bytes);
    }
}

static void build_reduce(const lki_problem *p, lki_schedule *s, lki_spot room)
{
    lki_range mine = slice_of(p, p->rank);
    bool      root = p->rank == p->root;
    lki_spot  out = root ? lki_spot_at(LKI_RECV_BUFFER, mine.at) : lki_schedule_room(s, mine.bytes);

    sum_slice(p, s, room, out);
    if (!root)
        lki_schedule_send(s, p->root, out, mine.bytes);
    for (uint32_t i = 1; i < p->size && root; i++) {
        uint32_t  from   = next(p, i);
        lki_range theirs = slice_of(p, from);
        lki_schedule_receive(s, from, lki_spot_at(LKI_RECV_BUFFER, theirs.at), theirs.bytes);
    }
}

static void build_gather(const lki_problem *p, lki_schedule *s)
{
    lki_range mine = lki_problem_part(p, p->rank);

    lki_schedule_copy(s, lki_spot_at(LKI_RECV_BUFFER, mine.at), lki_spot_at(LKI_SEND_BUFFER, p->at),
                      mine.bytes);
    gather_ranges(p, s, lki_problem_part);
}

static void build(const lki_problem *p, lki_schedule *s)
{
    lki_range mine = slice_of(p, p->rank);

    if (p->kind == LKI_OP_ALL_GATHER || p->kind == LKI_OP_ALL_GATHER_V) {
        build_gather(p, s);
        return;
    }
    lki_spot room = lki_schedule_room(s, p->size * mine.bytes);
    scatter_slices(p, s, room);
    lki_schedule_round(s, 1);
    if (p->kind == LKI_OP_REDUCE) {
        build_reduce(p, s, room);
    } else if (p->kind == LKI_OP_ALL_REDUCE) {
        sum_slice(p, s, room, lki_spot_at(LKI_RECV_BUFFER, mine.at));
        gather_ranges(p, s, lki_problem_slice);
    } else {
        sum_slice(p, s, room, lki_spot_at(LKI_RECV_BUFFER, p->at));
    }
}

static bool can(const lki_problem *p)
{
    return p->kind == LKI_OP_ALL_REDUCE || p->kind == LKI_OP_REDUCE ||
           p->kind == LKI_OP_REDUCE_SCATTER || p->kind == LKI_OP_REDUCE_SCATTER_V ||
           p->kind == LKI_OP_ALL_GATHER || p->kind == LKI_OP_ALL_GATHER_V ||
           p->kind == LKI_OP_TREE_REDUCE;
}

lki_work lki_work_of_tree(const lki_problem *p, bool linear)
{
    double H = p->hosts, B = p->branches, others = H - 1, L = p->size / H, n = (double)p->bytes;
    double sums = linear ? 0 : 1, parts = linear ? 1 : H; /* of a slice: one per host that sums */
    double messages = others * (1 + B / H + sums), bytes = others / parts * n * (B / H + sums);

    return (lki_work){ 2 + sums, messages, bytes, B * n / parts / L, p->size * messages,
                       H * bytes };
}

static lki_work work(const lki_problem *p)
{
    double N = p->size, others = N - 1, n = (double)lki_problem_longest(p);

    if (p->kind == LKI_OP_TREE_REDUCE)
        return lki_work_of_tree(p, false);
    if (p->kind == LKI_OP_ALL_REDUCE)
        return lki_work_alike(N, 2, 2 * others, 2 * others / N * n, n);
    if (p->kind == LKI_OP_REDUCE)
        return (lki_work){ 2, 2 * others, 2 * others / N * n, n, (N + 1) * others,
                           (1 + 1 / N) * others * n };
    if (p->kind == LKI_OP_REDUCE_SCATTER || p->kind == LKI_OP_REDUCE_SCATTER_V)
        return lki_work_alike(N, 1, others, others * n, N * n);
    return lki_work_alike(N, 1, others, others * n, 0);
}

const lki_method lki_method_direct = {
    .name = "direct", .exact = true, .can = can, .work = work, .build = build
};

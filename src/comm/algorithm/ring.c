/* ring.c -- data passes once around the ring: each rank sends to its successor.
 *
 *      reduce_scatter   round k   rank r sends its sum of part r-1-k, receives the sum of part
 *                       r-2-k,
 *                                 and adds its own elements to it; after N-1 rounds rank r has the
 *                                 complete sum of part r
 *      all_gather       round k   rank r sends part r-k
 *
 * all_reduce is a reduce_scatter of slices, followed by an all_gather.
 *
 * Cost:    N-1 rounds for a reduce_scatter, and as many for an all_gather.  In each of the two a
 *          rank sends (N-1)/N n bytes, in N-1 messages, always to the same peer.  Partial sums of
 *          16-bit types are sent as FP32, so all hops but the first send twice the bytes.
 * Order:   a chain that begins after the owner of a part: r+1, r+2 ... r.  NOT EXACT: bits depend
 *          on N and on the position of a part.  Reductions use the ring only if selected by name.
 *          An all_gather computes nothing.
 * Memory:  one part of a segment for each direction.
 * Source:  Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
 *          workstations" (JPDC 69, 2009).
 */
#include "comm/algorithm/schedule.h"

static uint32_t before(const lki_problem *p, uint32_t k)
{
    return (p->rank + 2 * p->size - k) % p->size;
}

static void gather(const lki_problem *p, lki_schedule *s,
                   lki_range (*range)(const lki_problem *p, uint32_t rank))
{
    uint32_t round = s->round;

    for (uint32_t k = 0; k + 1 < p->size; k++) {
        lki_range out = range(p, before(p, k)), in = range(p, before(p, k + 1));
        lki_schedule_round(s, round + k);
        lki_schedule_send(s, before(p, p->size - 1), lki_spot_at(LKI_RECV_BUFFER, out.at),
                          out.bytes);
        lki_schedule_receive(s, before(p, 1), lki_spot_at(LKI_RECV_BUFFER, in.at), in.bytes);
    }
}

static size_t longest(const lki_problem *p, lki_range (*range)(const lki_problem *p, uint32_t rank))
{
    size_t longest = 0;
    for (uint32_t rank = 0; rank < p->size; rank++)
        longest = longest < range(p, rank).bytes ? range(p, rank).bytes : longest;
    return longest;
}

/* Adds this rank's elements to the received sum, as a tree of two leaves. */
static void join(const lki_problem *p, lki_schedule *s, lki_spot chain, bool first, lki_range mine,
                 lki_spot out, bool last)
{
    const lki_term terms[2] = { { 0, 1, first, chain },
                                { 1, 1, true, lki_spot_at(LKI_SEND_BUFFER, mine.at) } };
    if (mine.bytes > 0)
        lki_schedule_combine(s, out, last, 0, 2, mine.bytes / p->width, terms, 2);
}

/* Computes the sum of each rank's range on that rank, at `out`. */
static void scatter(const lki_problem *p, lki_schedule *s, lki_spot out,
                    lki_range (*range)(const lki_problem *p, uint32_t rank))
{
    size_t   bytes = lki_problem_partial(p, longest(p, range));
    lki_spot in[2] = { lki_schedule_room(s, bytes), lki_schedule_room(s, bytes) };
    lki_spot sum   = lki_schedule_room(s, bytes);

    if (p->size == 1 && range(p, 0).bytes > 0)
        lki_schedule_combine(
            s, out, true, 0, 1, range(p, 0).bytes / p->width,
            &(lki_term){ 0, 1, true, lki_spot_at(LKI_SEND_BUFFER, range(p, 0).at) }, 1);
    for (uint32_t k = 0; k + 1 < p->size; k++) {
        lki_range goes = range(p, before(p, k + 1)), comes = range(p, before(p, k + 2));
        lki_schedule_round(s, k);
        if (k == 0) {
            lki_schedule_send(s, before(p, p->size - 1), lki_spot_at(LKI_SEND_BUFFER, goes.at),
                              goes.bytes);
            lki_schedule_receive(s, before(p, 1), in[0], comes.bytes);
            continue;
        }
        join(p, s, in[(k - 1) % 2], k == 1, goes, sum, false);
        lki_schedule_send(s, before(p, p->size - 1), sum, lki_problem_partial(p, goes.bytes));
        lki_schedule_receive(s, before(p, 1), in[k % 2], lki_problem_partial(p, comes.bytes));
    }
    if (p->size > 1) {
        lki_schedule_round(s, p->size - 1);
        join(p, s, in[p->size % 2], p->size == 2, range(p, p->rank), out, true);
    }
}

static void build(const lki_problem *p, lki_schedule *s)
{
    lki_range part = lki_problem_part(p, p->rank), slice = lki_problem_slice(p, p->rank);

    switch ((int)p->kind) {
    case LKI_OP_ALL_REDUCE:
        scatter(p, s, lki_spot_at(LKI_RECV_BUFFER, slice.at), lki_problem_slice);
        gather(p, s, lki_problem_slice);
        return;
    case LKI_OP_REDUCE_SCATTER:
    case LKI_OP_REDUCE_SCATTER_V:
        scatter(p, s, lki_spot_at(LKI_RECV_BUFFER, p->at), lki_problem_part);
        return;
    default:
        lki_schedule_copy(s, lki_spot_at(LKI_RECV_BUFFER, part.at),
                          lki_spot_at(LKI_SEND_BUFFER, p->at), part.bytes);
        gather(p, s, lki_problem_part);
    }
}

static bool can(const lki_problem *p)
{
    bool few = p->size < LKI_ROUNDS_MAX / 2;
    return few && (p->kind == LKI_OP_ALL_REDUCE || p->kind == LKI_OP_REDUCE_SCATTER ||
                   p->kind == LKI_OP_REDUCE_SCATTER_V || p->kind == LKI_OP_ALL_GATHER ||
                   p->kind == LKI_OP_ALL_GATHER_V);
}

static lki_work work(const lki_problem *p)
{
    double others = p->size - 1, n = (double)lki_problem_longest(p);
    double wide = p->width == 0 ? 1 : (double)lki_problem_partial(p, p->width) / (double)p->width;
    double half = others / p->size * n,
           sums = (1 + (others - 1) * wide) / (others > 0 ? others : 1);

    if (p->kind == LKI_OP_ALL_REDUCE)
        return lki_work_alike(p->size, 2 * others, 2 * others, half * (1 + sums), 2 * half);
    if (p->kind == LKI_OP_REDUCE_SCATTER || p->kind == LKI_OP_REDUCE_SCATTER_V)
        return lki_work_alike(p->size, others, others, others * n * sums, 2 * others * n);
    return lki_work_alike(p->size, others, others, others * n, 0);
}

const lki_method lki_method_ring = {
    .name = "ring", .exact = false, .can = can, .work = work, .build = build
};

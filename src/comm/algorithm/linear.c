/* linear.c -- every message is sent directly from its source to its destination, in one round.
 *
 *      broadcast, scatter     root sends to each rank
 *      gather                 each rank sends to root
 *      all_to_all(_v)         each rank sends to each other rank
 *      reduce                 as gather; root evaluates the tree
 *      all_reduce             each rank sends its vector to each other rank, and evaluates the tree
 *
 * Cost:    1 round and up to N - 1 messages per rank.  This is the minimum for data that differs
 *          from rank to rank and is not reduced. reduce and all_reduce are for vectors so small
 *          that only the number of messages matters.
 * Order:   the canonical tree: exact.
 * Memory:  reductions: N - 1 segments on the ranks that evaluate the tree; all_to_all in place: one
 *          segment of each part.
 * Source:  Thakur, Rabenseifner, Gropp (IJHPCA 19, 2005), section 4.3.
 */
#include "base/memory.h"
#include "comm/algorithm/schedule.h"

static uint32_t next(const lki_problem *p, uint32_t i)
{
    return (p->rank + i) % p->size;
}

static lki_spot of_send(size_t at)
{
    return lki_spot_at(LKI_SEND_BUFFER, at);
}

static lki_spot of_recv(size_t at)
{
    return lki_spot_at(LKI_RECV_BUFFER, at);
}

static void build_broadcast(const lki_problem *p, lki_schedule *s)
{
    lki_range whole = lki_problem_whole(p);

    if (p->rank != p->root)
        lki_schedule_receive(s, p->root, of_recv(whole.at), whole.bytes);
    for (uint32_t i = 1; i < p->size && p->rank == p->root; i++)
        lki_schedule_send(s, next(p, i), of_recv(whole.at), whole.bytes);
}

static void build_gather(const lki_problem *p, lki_schedule *s)
{
    lki_range mine = lki_problem_part(p, p->rank);

    if (p->rank != p->root) {
        lki_schedule_send(s, p->root, of_send(p->at), mine.bytes);
        return;
    }
    lki_schedule_copy(s, of_recv(mine.at), of_send(p->at), mine.bytes);
    for (uint32_t i = 1; i < p->size; i++)
        lki_schedule_receive(s, next(p, i), of_recv(lki_problem_part(p, next(p, i)).at),
                             mine.bytes);
}

static void build_scatter(const lki_problem *p, lki_schedule *s)
{
    lki_range mine = lki_problem_part(p, p->rank);

    if (p->rank != p->root) {
        lki_schedule_receive(s, p->root, of_recv(p->at), mine.bytes);
        return;
    }
    lki_schedule_copy(s, of_recv(p->at), of_send(mine.at), mine.bytes);
    for (uint32_t i = 1; i < p->size; i++)
        lki_schedule_send(s, next(p, i), of_send(lki_problem_part(p, next(p, i)).at), mine.bytes);
}

/* Builds an all_to_all.  In place, all data to be sent is copied to scratch memory before the first
 * message arrives. */
static void build_all_to_all(const lki_problem *p, lki_schedule *s)
{
    lki_range mine = lki_problem_part(p, p->rank);
    size_t    room = s->scratch;

    if (!p->in_place)
        lki_schedule_copy(s, of_recv(lki_problem_recv_part(p, p->rank).at), of_send(mine.at),
                          mine.bytes);
    for (uint32_t i = 1; i < p->size && p->in_place; i++) {
        lki_range goes = lki_problem_part(p, next(p, i));
        lki_schedule_copy(s, lki_schedule_room(s, goes.bytes), of_send(goes.at), goes.bytes);
    }
    for (uint32_t i = 1; i < p->size; i++) {
        uint32_t  to = next(p, i), from = next(p, p->size - i);
        lki_range goes = lki_problem_part(p, to), comes = lki_problem_recv_part(p, from);
        lki_schedule_send(s, to, p->in_place ? lki_spot_at(LKI_SCRATCH, room) : of_send(goes.at),
                          goes.bytes);
        lki_schedule_receive(s, from, of_recv(comes.at), comes.bytes);
        room += lki_round_up(goes.bytes, LKI_LINE);
    }
}

static void build_reduction(const lki_problem *p, lki_schedule *s)
{
    bool      all = p->kind == LKI_OP_ALL_REDUCE, evaluates = all || p->rank == p->root;
    lki_range whole = lki_problem_whole(p);
    lki_spot  room  = lki_schedule_room(s, evaluates ? p->size * whole.bytes : 0);

    if (whole.bytes == 0)
        return;
    for (uint32_t i = 1; i < p->size; i++) {
        uint32_t to = next(p, i), from = next(p, p->size - i);
        if (all || to == p->root)
            lki_schedule_send(s, to, of_send(whole.at), whole.bytes);
        if (evaluates)
            lki_schedule_receive(s, from, lki_spot_plus(room, from * whole.bytes), whole.bytes);
    }
    lki_schedule_round(s, 1);
    if (!evaluates)
        return;
    lki_schedule_combine_begin(s, of_recv(whole.at), true, 0, p->size, whole.bytes / p->width);
    for (uint32_t rank = 0; rank < p->size; rank++)
        lki_schedule_combine_term(s, (lki_term){ rank, 1, true,
                                                 rank == p->rank
                                                     ? of_send(whole.at)
                                                     : lki_spot_plus(room, rank * whole.bytes) });
}

static void build(const lki_problem *p, lki_schedule *s)
{
    switch ((int)p->kind) {
    case LKI_OP_BROADCAST: build_broadcast(p, s); return;
    case LKI_OP_GATHER: build_gather(p, s); return;
    case LKI_OP_SCATTER: build_scatter(p, s); return;
    case LKI_OP_ALL_TO_ALL:
    case LKI_OP_ALL_TO_ALL_V: build_all_to_all(p, s); return;
    default: build_reduction(p, s); return;
    }
}

static bool can(const lki_problem *p)
{
    return p->kind == LKI_OP_BROADCAST || p->kind == LKI_OP_GATHER || p->kind == LKI_OP_SCATTER ||
           p->kind == LKI_OP_ALL_TO_ALL || p->kind == LKI_OP_ALL_TO_ALL_V ||
           p->kind == LKI_OP_REDUCE || p->kind == LKI_OP_ALL_REDUCE ||
           p->kind == LKI_OP_TREE_REDUCE;
}

static lki_work work(const lki_problem *p)
{
    double N = p->size, others = N - 1, n = (double)lki_problem_longest(p);

    if (p->kind == LKI_OP_TREE_REDUCE)
        return lki_work_of_tree(p, true);
    if (p->kind == LKI_OP_ALL_REDUCE)
        return lki_work_alike(N, 1, others, others * n, N * n);
    if (p->kind == LKI_OP_ALL_TO_ALL || p->kind == LKI_OP_ALL_TO_ALL_V)
        return lki_work_alike(N, 1, others, others * n, 0);
    return (lki_work){ 1, others, others * n, p->kind == LKI_OP_REDUCE ? N * n : 0, others,
                       others * n };
}

const lki_method lki_method_linear = {
    .name = "linear", .exact = true, .can = can, .work = work, .build = build
};

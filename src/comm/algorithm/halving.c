/* halving.c -- recursive halving and doubling, in blocks of 2^k ranks.
 *
 * In a block of 2^k ranks, round j pairs ranks at distance 2^j.  Each rank of a pair sends one half
 * of its current range, and sums the other half.  After k rounds a rank has 1/2^k of the vector,
 * summed over the block.  Doubling then gathers the ranges in the opposite order.  Distances are 1,
 * 2, 4 ..., not ... 4, 2, 1, so that the partial sums are over aligned powers of two.
 *
 * N ranks are divided into blocks by the powers of two in N, the largest first: 13 = 8 + 4 + 1.
 * The smallest block sends its ranges to the next larger block, which adds them, and so on to the
 * first: B0 + (B1 + B2), as in the canonical tree.  A range of a larger block is always a part of a
 * range of a smaller block.  The results are sent back in the opposite order.
 *
 *      13 ranks:   0 1 2 3 4 5 6 7 | 8 9 10 11 | 12
 *                  halving in each | B2 -> B1 -> B0 | B0 -> B1 -> B2 | doubling in each
 *
 * Cost:    2 log2 N rounds if N is a power of two, and 2 for each further block.  A rank sends 2
 *          (N-1)/N n bytes if N is a power of two.  Partial sums of 16-bit types are sent as FP32,
 *          so halving sends twice the bytes after the first round.  A block that is much smaller
 *          than the first one sends its whole vector.
 * Order:   the canonical tree: exact.
 * Memory:  one and a half segments of accumulators.
 * Source:  Rabenseifner and Traff, "More efficient reduction algorithms for non-power-of-two number
 *          of processors in message-passing parallel systems" (EuroPVM/MPI 2004): binary blocks.
 */
#include "comm/algorithm/schedule.h"

enum { BLOCKS_MAX = 32 };

typedef struct {
    uint32_t first, bits; /* the block has 2^bits ranks */
} block;

typedef struct {
    const lki_problem *p;
    lki_schedule      *s;
    block              blocks[BLOCKS_MAX];
    uint32_t           count, mine; /* number of blocks; this rank's block */
    uint32_t           q;           /* this rank's index in its block */
    lki_spot           sum, in;     /* scratch as long as the vector; ranges are at their offsets in
                                     * the vector */
} state;

static void cut_blocks(state *t)
{
    uint32_t first = 0;

    for (uint32_t bit = 32; bit-- > 0;) {
        if ((t->p->size >> bit & 1) == 0)
            continue;
        if (t->p->rank >= first) {
            t->mine = t->count;
            t->q    = t->p->rank - first;
        }
        t->blocks[t->count++] = (block){ first, bit };
        first += UINT32_C(1) << bit;
    }
}

/* Returns the range of the rank at index q of its block after `rounds` halvings, in elements of the
 * segment. */
static lki_range range_of(const state *t, uint32_t q, uint32_t rounds)
{
    size_t low = 0, high = lki_problem_whole(t->p).bytes / t->p->width;

    for (uint32_t j = 0; j < rounds; j++) {
        size_t middle = low + (high - low) / 2;
        if ((q >> j & 1) == 0)
            high = middle;
        else
            low = middle;
    }
    return (lki_range){ low, high - low };
}

static size_t wide(const state *t, size_t elements)
{
    return elements * lki_partial_width(t->p->dtype);
}

static lki_spot in_sum(const state *t, lki_range r)
{
    return lki_spot_plus(t->sum, wide(t, r.at));
}

static lki_spot in_user(const state *t, lki_buffer buffer, lki_range r)
{
    return lki_spot_at(buffer, lki_problem_whole(t->p).at + r.at * t->p->width);
}

/* Returns this rank's term for the tree node of `leaves` ranks from `first` on. */
static lki_term term_of(const state *t, uint32_t first, uint32_t leaves, lki_range r)
{
    bool leaf = leaves == 1;
    return (lki_term){ first, leaves, leaf, leaf ? in_user(t, LKI_SEND_BUFFER, r) : in_sum(t, r) };
}

/* Combines two neighbouring tree nodes.  The result may be the root. */
static void add(const state *t, lki_term a, lki_term b, lki_range r)
{
    const lki_term terms[2] = { a.first < b.first ? a : b, a.first < b.first ? b : a };
    uint32_t       leaves   = a.count + b.count;
    bool           root     = leaves == t->p->size;

    if (r.bytes > 0)
        lki_schedule_combine(t->s, root ? in_user(t, LKI_RECV_BUFFER, r) : in_sum(t, r), root,
                             terms[0].first, leaves, r.bytes, terms, 2);
}

static void halve(const state *t)
{
    const block *b = &t->blocks[t->mine];

    for (uint32_t j = 0; j < b->bits; j++) {
        uint32_t there = t->q ^ UINT32_C(1) << j, leaves = UINT32_C(1) << j;
        uint32_t here = b->first + (t->q & ~(leaves - 1)), far = b->first + (there & ~(leaves - 1));
        lki_range gives = range_of(t, there, j + 1), keeps = range_of(t, t->q, j + 1);
        lki_term  out = term_of(t, here, leaves, gives), mine = term_of(t, here, leaves, keeps);
        bool      leaf = leaves == 1;
        lki_schedule_round(t->s, j);
        lki_schedule_send(t->s, b->first + there, out.spot,
                          leaf ? gives.bytes * t->p->width : wide(t, gives.bytes));
        lki_schedule_receive(t->s, b->first + there, t->in,
                             leaf ? keeps.bytes * t->p->width : wide(t, keeps.bytes));
        lki_schedule_round(t->s, j + 1);
        add(t, mine, (lki_term){ far, leaves, leaf, t->in }, keeps);
    }
}

/* Sends the sums of all blocks after block `i`, which block i + 1 has, to block `i`.  Block `i`
 * adds them to its own sums. */
static void hand_over(const state *t, uint32_t i)
{
    const block *left = &t->blocks[i], *right = left + 1;
    uint32_t     few = UINT32_C(1) << right->bits, many = UINT32_C(1) << left->bits;
    uint32_t     behind = t->p->size - right->first;
    size_t       unit   = behind == 1 ? t->p->width : lki_partial_width(t->p->dtype);

    for (uint32_t q = t->q; t->mine == i + 1 && q < many; q += few) {
        lki_range r = range_of(t, q, left->bits);
        lki_schedule_send(t->s, left->first + q, term_of(t, right->first, behind, r).spot,
                          r.bytes * unit);
    }
    if (t->mine == i) {
        lki_range r = range_of(t, t->q, left->bits);
        lki_schedule_receive(t->s, right->first + t->q % few, t->in, r.bytes * unit);
        lki_schedule_round(t->s, t->s->round + 1);
        add(t, term_of(t, left->first, many, r),
            (lki_term){ right->first, behind, behind == 1, t->in }, r);
    }
}

/* Sends the results of block i to block i + 1. */
static void hand_back(const state *t, uint32_t i)
{
    const block *left = &t->blocks[i], *right = left + 1;
    uint32_t     few = UINT32_C(1) << right->bits, many = UINT32_C(1) << left->bits;

    if (t->mine == i) {
        lki_range r = range_of(t, t->q, left->bits);
        lki_schedule_send(t->s, right->first + t->q % few, in_user(t, LKI_RECV_BUFFER, r),
                          r.bytes * t->p->width);
    }
    for (uint32_t q = t->q; t->mine == i + 1 && q < many; q += few) {
        lki_range r = range_of(t, q, left->bits);
        lki_schedule_receive(t->s, left->first + q, in_user(t, LKI_RECV_BUFFER, r),
                             r.bytes * t->p->width);
    }
}

static void twice(const state *t, uint32_t round)
{
    const block *b = &t->blocks[t->mine];

    for (uint32_t j = b->bits; j-- > 0;) {
        uint32_t  there = t->q ^ UINT32_C(1) << j;
        lki_range have = range_of(t, t->q, j + 1), comes = range_of(t, there, j + 1);
        lki_schedule_round(t->s, round + t->blocks[0].bits - 1 - j);
        lki_schedule_send(t->s, b->first + there, in_user(t, LKI_RECV_BUFFER, have),
                          have.bytes * t->p->width);
        lki_schedule_receive(t->s, b->first + there, in_user(t, LKI_RECV_BUFFER, comes),
                             comes.bytes * t->p->width);
    }
}

static void build(const lki_problem *p, lki_schedule *s)
{
    state     t   = { .p = p, .s = s };
    lki_range all = { 0, lki_problem_whole(p).bytes / p->width };

    cut_blocks(&t);
    t.sum = lki_schedule_room(s, wide(&t, all.bytes));
    t.in  = lki_schedule_room(s, wide(&t, (all.bytes + 1) / 2));
    if (p->size == 1 && all.bytes > 0) {
        const lki_term mine = term_of(&t, 0, 1, all);
        lki_schedule_combine(s, in_user(&t, LKI_RECV_BUFFER, all), true, 0, 1, all.bytes, &mine, 1);
    }
    uint32_t last = t.count - 1, base = t.blocks[0].bits;
    halve(&t);
    for (uint32_t k = 0; k < last; k++) {
        lki_schedule_round(s, base + k);
        hand_over(&t, last - 1 - k);
    }
    for (uint32_t i = 0; i < last; i++) {
        lki_schedule_round(s, base + last + i);
        hand_back(&t, i);
    }
    twice(&t, base + 2 * last);
}

static bool can(const lki_problem *p)
{
    return p->kind == LKI_OP_ALL_REDUCE;
}

/* Returns the number of bytes that a rank of a block sends to other ranks of its block. */
static double block_bytes(const block *b, double n, double unit)
{
    double part = 1 - 1 / (double)(UINT64_C(1) << b->bits);
    return b->bits == 0 ? 0 : n / 2 + (part - 0.5) * n * unit + part * n;
}

static lki_work work(const lki_problem *p)
{
    state  t = { .p = p };
    double n = (double)p->bytes, unit;

    cut_blocks(&t);
    unit          = (double)lki_problem_partial(p, p->width) / (double)p->width;
    double   bits = t.blocks[0].bits, part = 1 - 1 / (double)(UINT64_C(1) << t.blocks[0].bits);
    lki_work w = { .rounds = 2 * bits, .messages = 2 * bits, .combined = 2 * part * n };
    w.bytes    = block_bytes(&t.blocks[0], n, unit);
    for (uint32_t i = 0; i < t.count; i++) {
        double ranks = (double)(UINT64_C(1) << t.blocks[i].bits);
        w.all_messages += 2 * t.blocks[i].bits * ranks;
        w.all_bytes    += block_bytes(&t.blocks[i], n, unit) * ranks;
    }
    for (uint32_t i = 0; i + 1 < t.count; i++) { /* for each block: the exchange with the next
                                                  * smaller block */
        double few  = (double)(UINT64_C(1) << t.blocks[i + 1].bits);
        double many = (double)(UINT64_C(1) << t.blocks[i].bits);
        w.rounds += 2;
        w.messages += 2 * many / few;
        w.bytes += n / few * (1 + unit);
        w.combined += 2 * n / many;
        w.all_messages += 2 * many;
        w.all_bytes    += (1 + unit) * n;
    }
    return w;
}

const lki_method lki_method_halving = {
    .name = "halving", .exact = true, .can = can, .work = work, .build = build
};

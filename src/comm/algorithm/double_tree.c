/* double_tree.c -- the canonical tree twice, over two halves of the vector, evaluated by different
 * ranks.
 *
 * The operands of an inner node are fixed, but any rank can evaluate it.  A node whose right child
 * begins with rank m is evaluated by rank m in the first half and by rank m - 1 in the second.
 * Each rank then has at most one inner node of each tree.  A rank that is near the root in one tree
 * is near the leaves in the other:
 *
 *             first half  4                  second half 3
 *                       /   \                          /   \
 *                      2     6                        1     5
 *                     / \   / \                      / \   / \
 *      node of two:  1   3 5   7                    0   2 4   6
 *      leaves:      0 1 2 3 4 5 6 7                0 1 2 3 4 5 6 7
 *
 * A leaf is sent to the rank that evaluates its parent node; half of the leaves already are on that
 * rank.  Sums are sent up to the root, and the result is sent down the same edges.  A rank with an
 * inner node receives the result there.  Rank 0 has no inner node in the first tree and receives
 * that half as a leaf.  The last rank has no inner node in the second tree.
 *
 * Cost:    2 log2 N rounds.  A rank sends at most 2 messages of n/2 in each tree and direction, and
 *          at most 2 1/2 n bytes in total if N is a power of two.  Partial sums of 16-bit types are
 *          sent as FP32.
 * Order:   the canonical tree: exact.
 * Memory:  three halves of a segment of accumulators, for each tree.
 * Source:  the idea of two trees is from Sanders, Speck, Traff, "Two-tree algorithms for full
 *          bandwidth broadcast, reduction and scan" (Parallel Computing 35, 2009).  Their trees are
 *          in-order and would add a rank's own elements between two sums, so these trees differ.
 */
#include "comm/algorithm/schedule.h"
#include "device/reduce.h"

/* One of the two trees. */
typedef struct {
    const lki_problem *p;
    lki_schedule      *s;
    bool               second;
    lki_range          half;
    lki_spot           left, right, sum; /* operands and result of this rank's node */
} tree;

typedef struct {
    uint32_t first, count;
} node;

static uint32_t height(uint32_t count)
{
    return count == 1 ? 0 : 32 - (uint32_t)__builtin_clz(count - 1);
}

/* Returns the rank that has the value of a tree node. */
static uint32_t home(const tree *t, node n)
{
    if (n.count == 1)
        return n.first;
    return n.first + lki_tree_left(n.count) - t->second;
}

static size_t bytes_of(const tree *t, node n)
{
    return n.count == 1 ? t->half.bytes : lki_problem_partial(t->p, t->half.bytes);
}

/* Returns the spot with the value of one of this rank's nodes. */
static lki_spot value_at(const tree *t, node n)
{
    return n.count == 1 ? lki_spot_at(LKI_SEND_BUFFER, t->half.at) : t->sum;
}

/* Sends a child's value to the rank that evaluates its parent. */
static void bring(const tree *t, node child, uint32_t to, lki_spot room)
{
    uint32_t from = home(t, child), me = t->p->rank;

    if (from == to)
        return;
    if (me == from)
        lki_schedule_send(t->s, to, value_at(t, child), bytes_of(t, child));
    if (me == to)
        lki_schedule_receive(t->s, from, room, bytes_of(t, child));
}

static node left_of(node n)
{
    return (node){ n.first, lki_tree_left(n.count) };
}

static node right_of(node n)
{
    uint32_t left = lki_tree_left(n.count);
    return (node){ n.first + left, n.count - left };
}

/* Sends the children of all nodes of height `at` to the ranks that evaluate the nodes. */
static void bring_up(const tree *t, node n, uint32_t at)
{
    if (height(n.count) < at)
        return;
    if (height(n.count) == at) {
        bring(t, left_of(n), home(t, n), t->left);
        bring(t, right_of(n), home(t, n), t->right);
        return;
    }
    bring_up(t, left_of(n), at);
    bring_up(t, right_of(n), at);
}

/* Evaluates this rank's node of height `at`, if it has one. */
static void evaluate(const tree *t, node n, uint32_t at)
{
    if (height(n.count) > at) {
        evaluate(t, left_of(n), at);
        evaluate(t, right_of(n), at);
    }
    if (height(n.count) != at || home(t, n) != t->p->rank)
        return;
    node           l = left_of(n), r = right_of(n);
    bool           root     = n.count == t->p->size;
    lki_spot       left     = home(t, l) == t->p->rank ? value_at(t, l) : t->left;
    lki_spot       right    = home(t, r) == t->p->rank ? value_at(t, r) : t->right;
    const lki_term terms[2] = { { l.first, l.count, l.count == 1, left },
                                { r.first, r.count, r.count == 1, right } };
    lki_schedule_combine(t->s, root ? lki_spot_at(LKI_RECV_BUFFER, t->half.at) : t->sum, root,
                         n.first, n.count, t->half.bytes / t->p->width, terms, 2);
}

/* Sends the result from the nodes of height `at` to their children. */
static void bring_down(const tree *t, node n, uint32_t at)
{
    uint32_t outsider = t->second ? t->p->size - 1 : 0, from = home(t, n);
    lki_spot recv = lki_spot_at(LKI_RECV_BUFFER, t->half.at);

    if (n.count == 1 || height(n.count) < at)
        return;
    node children[2] = { left_of(n), right_of(n) };
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t to = home(t, children[k]);
        if (height(n.count) > at) {
            bring_down(t, children[k], at);
        } else if (children[k].count > 1 || to == outsider) {
            if (t->p->rank == from)
                lki_schedule_send(t->s, to, recv, t->half.bytes);
            if (t->p->rank == to)
                lki_schedule_receive(t->s, from, recv, t->half.bytes);
        }
    }
}

static tree half_of(const lki_problem *p, lki_schedule *s, bool second)
{
    lki_range whole = lki_problem_whole(p);
    size_t    first = whole.bytes / p->width / 2 * p->width;
    tree      t     = { .p = p, .s = s, .second = second, .half = { whole.at, first } };

    if (second)
        t.half = (lki_range){ whole.at + first, whole.bytes - first };
    t.left  = lki_schedule_room(s, lki_problem_partial(p, t.half.bytes));
    t.right = lki_schedule_room(s, lki_problem_partial(p, t.half.bytes));
    t.sum   = lki_schedule_room(s, lki_problem_partial(p, t.half.bytes));
    return t;
}

static void alone(const lki_problem *p, lki_schedule *s)
{
    lki_range      whole = lki_problem_whole(p);
    const lki_term mine  = { 0, 1, true, lki_spot_at(LKI_SEND_BUFFER, whole.at) };

    if (whole.bytes > 0)
        lki_schedule_combine(s, lki_spot_at(LKI_RECV_BUFFER, whole.at), true, 0, 1,
                             whole.bytes / p->width, &mine, 1);
}

/* Calls `pass` for both trees.  The messages of each tree use their own message lane. */
static void both(const tree trees[2], lki_schedule *s, uint32_t at,
                 void (*pass)(const tree *t, node n, uint32_t at))
{
    for (s->lane = 0; s->lane < 2; s->lane++)
        if (trees[s->lane].half.bytes > 0)
            pass(&trees[s->lane], (node){ 0, trees[s->lane].p->size }, at);
    s->lane = 0;
}

static void build(const lki_problem *p, lki_schedule *s)
{
    if (p->size == 1) {
        alone(p, s);
        return;
    }
    const tree trees[2] = { half_of(p, s, false), half_of(p, s, true) };
    uint32_t   top      = height(p->size);

    for (uint32_t at = 1; at <= top; at++) {
        both(trees, s, at, bring_up);
        lki_schedule_round(s, at);
        both(trees, s, at, evaluate);
    }
    for (uint32_t at = top; at >= 1; at--) {
        lki_schedule_round(s, 2 * top - at);
        both(trees, s, at, bring_down);
    }
}

static bool can(const lki_problem *p)
{
    return p->kind == LKI_OP_ALL_REDUCE;
}

static lki_work work(const lki_problem *p)
{
    double rounds = height(p->size), n = (double)p->bytes, more = rounds - 1;
    double wide = (double)lki_problem_partial(p, p->width) / (double)p->width;

    const uint32_t half = (p->size + 1) / 2;
    double         N = p->size, leaves = half; /* number of leaves of a tree that must be sent */

    return (lki_work){ 2 * rounds, 4 * rounds - 2, n / 2 + more * wide * n + more * n + n / 2,
                       rounds * n, 2 * (leaves + N - 2 + N - 1),
                       (leaves + (N - 2) * wide + N - 1) * n };
}

const lki_method lki_method_double_tree = {
    .name = "double_tree", .exact = true, .can = can, .work = work, .build = build
};

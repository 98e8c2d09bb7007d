/* virtual.c -- ranges of virtual workers, and the merge counter over a range; see virtual.h. */
#include "parallel/virtual.h"

#include <string.h>

#include "base/memory.h"
#include "device/reduce.h"

void lki_virtual_range(uint32_t leaves, uint32_t ranks, uint32_t rank, uint32_t *first,
                       uint32_t *count)
{
    uint64_t begin = (uint64_t)rank * leaves / ranks;
    uint64_t end   = ((uint64_t)rank + 1) * leaves / ranks;
    *first         = (uint32_t)begin;
    *count         = (uint32_t)(end - begin);
}

static uint32_t branches_in(uint32_t first, uint32_t leaves, uint32_t begin, uint32_t end)
{
    if (begin <= first && first + leaves <= end)
        return 1;
    if (end <= first || first + leaves <= begin)
        return 0;
    uint32_t left = lki_tree_left(leaves);
    return branches_in(first, left, begin, end) +
           branches_in(first + left, leaves - left, begin, end);
}

uint32_t lki_virtual_branches(uint32_t leaves, uint32_t begin, uint32_t end)
{
    return branches_in(0, leaves, begin, end);
}

static lki_share share_in_rounds(const lki_dealing *d, uint32_t rank)
{
    const lki_dealing of_ranks = { .leaves = d->ranks, .ranks = d->parts > 0 ? d->parts : 1 };
    const uint32_t    part     = lki_share_rank(&of_ranks, rank);
    const uint32_t    width    = d->leaves / of_ranks.ranks;
    uint32_t          first, count;
    lki_virtual_range(d->ranks, of_ranks.ranks, part, &first, &count);
    rank -= first;
    return (lki_share){ .first  = part * width + rank,
                        .count  = (width - rank + count - 1) / count,
                        .stride = count };
}

lki_share lki_share_of(const lki_dealing *d, uint32_t rank)
{
    lki_share share = { .stride = 1 };
    if (d->rounds)
        share = share_in_rounds(d, rank);
    else if (d->bounds != NULL)
        share = (lki_share){ d->bounds[rank], d->bounds[rank + 1] - d->bounds[rank], 1 };
    else
        lki_virtual_range(d->leaves, d->ranks, rank, &share.first, &share.count);
    return share;
}

uint32_t lki_share_rank(const lki_dealing *d, uint32_t leaf)
{
    uint32_t rank = 0;
    LK_ASSERT(d->parts <= 1);
    if (d->rounds)
        return leaf % d->ranks;
    if (d->bounds != NULL) {
        while (d->bounds[rank + 1] <= leaf)
            rank++;
        return rank;
    }
    return (uint32_t)((((uint64_t)leaf + 1) * d->ranks - 1) / d->leaves);
}

uint32_t lki_share_place(const lki_dealing *d, uint32_t leaf)
{
    LK_ASSERT(d->parts <= 1);
    if (!d->rounds)
        return leaf;
    uint32_t rank = leaf % d->ranks, longer = d->leaves % d->ranks;
    return rank * (d->leaves / d->ranks) + (rank < longer ? rank : longer) + leaf / d->ranks;
}

void lki_counter_begin(lki_merge_counter *counter, uint32_t leaves)
{
    *counter = (lki_merge_counter){ .leaves = leaves };
}

/* Returns the first buffer without a live sum. */
static uint32_t free_buffer(const lki_merge_counter *counter)
{
    bool     taken[LKI_NODES_MAX] = { false };
    uint32_t buffer               = 0;
    for (uint32_t i = 0; i < 64; i++)
        taken[i] = (counter->reserved >> i & 1) != 0;
    for (uint32_t i = 0; i < counter->depth; i++)
        if (counter->stack[i].buffer < LKI_NODES_MAX) /* else it is another rank's */
            taken[counter->stack[i].buffer] = true;
    while (taken[buffer]) {
        buffer++;
        LK_ASSERT(buffer < LKI_NODES_MAX);
    }
    return buffer;
}

uint32_t lki_counter_push_node(lki_merge_counter *counter, uint32_t first, uint32_t count)
{
    LK_ASSERT(counter->depth < LKI_NODES_MAX);
    uint32_t buffer                  = free_buffer(counter);
    counter->stack[counter->depth++] = (lki_node){ first, count, buffer };
    if (buffer >= counter->used)
        counter->used = buffer + 1;
    return buffer;
}

uint32_t lki_counter_push(lki_merge_counter *counter, uint32_t leaf)
{
    return lki_counter_push_node(counter, leaf, 1);
}

void lki_counter_push_into(lki_merge_counter *counter, uint32_t leaf, uint32_t buffer)
{
    LK_ASSERT(counter->depth < LKI_NODES_MAX);
    counter->stack[counter->depth++] = (lki_node){ leaf, 1, buffer };
}

bool lki_counter_merge(lki_merge_counter *counter, uint32_t *left, uint32_t *right)
{
    if (counter->depth < 2)
        return false;
    lki_node *low = &counter->stack[counter->depth - 2], *high = low + 1;
    uint32_t  both = low->count + high->count;
    if (counter->cut != 0 && both > counter->cut)
        return false;
    if (low->first + low->count != high->first)
        return false;
    if (!lki_tree_is_node(counter->leaves, low->first, both) || lki_tree_left(both) != low->count)
        return false;
    *left      = low->buffer;
    *right     = high->buffer;
    *low       = (lki_node){ low->first, both, high->buffer };
    counter->depth--;
    return true;
}

bool lki_counter_walk(lki_merge_counter *counter, uint32_t tree, const uint32_t *leaves,
                      uint32_t count)
{
    uint32_t left, right;
    lki_counter_begin(counter, tree);
    for (uint32_t i = 0; i < count; i++) {
        while (lki_counter_merge(counter, &left, &right))
            continue;
        if (counter->depth == LKI_NODES_MAX)
            return false;
        (void)lki_counter_push(counter, leaves[i]);
    }
    return true;
}

/* ---- A range ----------------------------------------------------------------------------- */

/* Appends the largest subtrees of `tree` that are within [begin, end). */
static void add_subtrees(lki_node nodes[LKI_NODES_MAX], uint32_t *used, lki_node tree,
                         uint32_t begin, uint32_t end)
{
    uint32_t left = tree.count > 1 ? lki_tree_left(tree.count) : 0;

    if (end <= tree.first || tree.first + tree.count <= begin)
        return;
    if (begin <= tree.first && tree.first + tree.count <= end) {
        LK_ASSERT(*used < LKI_NODES_MAX);
        nodes[(*used)++] = tree;
        return;
    }
    add_subtrees(nodes, used, (lki_node){ tree.first, left, 0 }, begin, end);
    add_subtrees(nodes, used, (lki_node){ tree.first + left, tree.count - left, 0 }, begin, end);
}

uint32_t lki_virtual_nodes(lki_node nodes[LKI_NODES_MAX], uint32_t leaves, uint32_t first,
                           uint32_t count)
{
    uint32_t used = 0;
    add_subtrees(nodes, &used, (lki_node){ 0, leaves, 0 }, first, first + count);
    return used;
}

/* Sorts nodes by size, largest first.  Nodes of the same size remain in order. */
static void sort_by_size(lki_node *nodes, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t k = i; k > 0 && nodes[k].count > nodes[k - 1].count; k--) {
            lki_node before = nodes[k - 1];
            nodes[k - 1]    = nodes[k];
            nodes[k]        = before;
        }
}

void lki_nodes_sort(lki_node *nodes, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t k = i; k > 0 && nodes[k].first < nodes[k - 1].first; k--) {
            lki_node before = nodes[k - 1];
            nodes[k - 1]    = nodes[k];
            nodes[k]        = before;
        }
}

void lki_virtual_order(uint32_t *order, uint32_t leaves, uint32_t first, uint32_t count)
{
    lki_node nodes[LKI_NODES_MAX];
    uint32_t used, at = 0;

    used = lki_virtual_nodes(nodes, leaves, first, count);
    sort_by_size(nodes, used);
    for (uint32_t i = 0; i < used; i++)
        for (uint32_t k = 0; k < nodes[i].count; k++)
            order[at++] = nodes[i].first + k;
}

uint32_t lki_joint_count(uint32_t first, uint32_t count, uint32_t most)
{
    uint32_t n = 1;
    while (2 * n <= most && 2 * n <= count && first % (2 * n) == 0)
        n *= 2;
    return n;
}

void lki_virtual_plan_range(lki_virtual_plan *plan, uint32_t leaves, uint32_t first, uint32_t count,
                            lki_range_order order)
{
    lki_merge_counter counter;
    lki_node          nodes[LKI_NODES_MAX];
    uint32_t          left, right, used;

    *plan = (lki_virtual_plan){ .leaves = leaves, .first = first, .count = count };
    used  = lki_virtual_nodes(nodes, leaves, first, count);
    if (order.largest)
        sort_by_size(nodes, used);
    lki_counter_begin(&counter, leaves);
    counter.cut = order.cut;
    for (uint32_t i = 0; i < used; i++)
        for (uint32_t k = 0, n; k < nodes[i].count; k += n) {
            n = lki_joint_count(nodes[i].first + k, nodes[i].count - k, order.joint);
            (void)lki_counter_push_node(&counter, nodes[i].first + k, n);
            while (lki_counter_merge(&counter, &left, &right))
                continue;
        }
    plan->buffers    = counter.used;
    plan->node_count = counter.depth;
    memcpy(plan->nodes, counter.stack, counter.depth * sizeof counter.stack[0]);
    lki_nodes_sort(plan->nodes, plan->node_count);
}

/* Returns the number of buffers of a complete subtree.  While its right half is computed, its left
 * half is already one sum, in one buffer. */
static uint32_t buffers_of_subtree(uint32_t count, uint32_t joint)
{
    uint32_t most = 1;
    for (uint32_t waiting = 0; lki_joint_count(0, count, joint) < count; waiting++) {
        uint32_t left = lki_tree_left(count), turns = left / lki_joint_count(0, left, joint);
        uint32_t bits = 1;
        while (turns >> bits != 0)
            bits++;
        most = (uint32_t)lki_max(most, waiting + bits);
        /* one buffer is for the first turn of the right part */
        most = (uint32_t)lki_max(most, waiting + 2);
        count -= left;
    }
    return most;
}

uint32_t lki_virtual_buffers(uint32_t leaves, uint32_t first, uint32_t count, lki_range_order order)
{
    lki_node nodes[LKI_NODES_MAX];
    uint32_t most = count > 0;

    if (count < 2)
        return most;
    if (order.cut > 0) {
        lki_virtual_plan plan;
        lki_virtual_plan_range(&plan, leaves, first, count, order);
        return plan.buffers;
    }
    uint32_t used = lki_virtual_nodes(nodes, leaves, first, count);
    if (order.largest)
        sort_by_size(nodes, used);
    for (uint32_t i = 0; i < used; i++)
        most = (uint32_t)lki_max(most, i + buffers_of_subtree(nodes[i].count, order.joint));
    return most;
}

/* Counts the nodes that remain if the tree is cut at the ends of all ranges: a cut divides one node
 * of each size.  A subtree of more than `joint` virtual workers needs as many buffers as it has
 * nodes if it is cut once more, before its last turn.  If V is not a power of two, V cuts the tree
 * of the next power of two, and the nodes behind V do not count. */
uint32_t lki_virtual_buffers_most(uint32_t leaves, uint32_t ranks, uint32_t joint)
{
    uint64_t whole = 1, nodes = 1;

    while (whole < leaves)
        whole *= 2;
    for (uint64_t size = whole; size > 1; size /= 2) {
        uint64_t cuts = ranks - 1 + (leaves % size != 0) + (size > joint ? ranks : 0);
        nodes += lki_min((leaves + size - 1) / size, cuts);
    }
    return (uint32_t)nodes - (uint32_t)__builtin_popcountll(whole - leaves);
}

void lki_virtual_plan_make(lki_virtual_plan *plan, uint32_t leaves, uint32_t ranks, uint32_t rank)
{
    uint32_t first, count;
    lki_virtual_range(leaves, ranks, rank, &first, &count);
    lki_virtual_plan_range(plan, leaves, first, count, (lki_range_order){ 0 });
}

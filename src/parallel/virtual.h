/* parallel/virtual.h -- the virtual workers of each rank, and the order in which their gradients
 * merge.
 *
 * Virtual workers are assigned in ranges or in rounds.  In rounds (rounds.h) rank r runs r, r + N,
 * r + 2N, and so on, so that neighbours are computed at the same time.
 *
 * In ranges a rank runs a contiguous part of the V virtual workers.  It computes them in order and
 * merges neighbours like a binary counter: as soon as two adjacent sums are the two children of a
 * tree node, the left sum is added to the right one, which is the newer.  At the end the few
 * maximal subtrees of the range remain, and each is sent once.  The plan gives the buffer of
 * every gradient and the peak number of live buffers (V = 8 on 3 ranks needs 3; V = 32 on 3 ranks
 * needs 6).
 *
 * Ranges need not be equal.  If they may move between steps, a rank computes the
 * largest subtrees of its range first.  Then any range needs about as many buffers as one that
 * begins at a multiple of its length.
 */
#ifndef LKI_PARALLEL_VIRTUAL_H
#define LKI_PARALLEL_VIRTUAL_H

#include "base/status.h"

/* The maximum number of tree nodes in a range.  Without groups there are two chains of 32 levels at
 * most; with groups there is a node for each group. */
enum { LKI_NODES_MAX = 264 };

/* The sum over virtual workers [first, first + count), in buffer `buffer`. */
typedef struct {
    uint32_t first, count, buffer;
} lki_node;

typedef struct {
    uint32_t leaves;       /* V */
    uint32_t first, count; /* this rank's range */
    uint32_t buffers;      /* peak number of live buffers */
    uint32_t node_count;   /* number of subtrees that remain at the end */
    lki_node nodes[LKI_NODES_MAX];
} lki_virtual_plan;

/* The assignment of V virtual workers to ranks. */
typedef struct {
    uint32_t        leaves, ranks;
    bool            rounds; /* false: in ranges */
    uint32_t        parts;  /* with `rounds`: replicas, each of which has equally many virtual
                             * workers and a range of the ranks; 0 = 1 */
    const uint32_t *bounds; /* [ranks + 1]: begin of each range, then V; NULL: equal ranges */
} lki_dealing;

/* The virtual workers of one rank: first, first + stride, ..., `count` of them. */
typedef struct {
    uint32_t first, count, stride;
} lki_share;

lki_share lki_share_of(const lki_dealing *dealing, uint32_t rank);

/* Returns the rank that runs `leaf`. */
uint32_t lki_share_rank(const lki_dealing *dealing, uint32_t leaf);

/* Returns the position of `leaf` in the list of all ranks' shares, one after another. */
uint32_t lki_share_place(const lki_dealing *dealing, uint32_t leaf);

/* Computes the range of `rank`: [rank V / N, (rank + 1) V / N). */
void lki_virtual_range(uint32_t leaves, uint32_t ranks, uint32_t rank, uint32_t *first,
                       uint32_t *count);

/* Plans the range of `rank`, computed in ascending order. */
void lki_virtual_plan_make(lki_virtual_plan *plan, uint32_t leaves, uint32_t ranks, uint32_t rank);

/* The order in which a rank computes its range. */
typedef struct {
    bool     largest; /* largest subtrees first; false: ascending */
    uint32_t joint;   /* maximum number of virtual workers that a turn computes; 0 or 1: one */
    uint32_t cut;     /* maximum number of virtual workers of a sum; 0: all */
} lki_range_order;

/* Returns the number of virtual workers from `first` on that a joint turn computes: those of a
 * subtree of a power of two, at most `most`, within the next `count`. */
uint32_t lki_joint_count(uint32_t first, uint32_t count, uint32_t most);

/* Plans the range [first, first + count) of `leaves` virtual workers. */
void lki_virtual_plan_range(lki_virtual_plan *plan, uint32_t leaves, uint32_t first, uint32_t count,
                            lki_range_order order);

/* Lists the virtual workers of [first, first + count) in the order of lki_range_order.largest:
 * largest subtrees first. */
void lki_virtual_order(uint32_t *order, uint32_t leaves, uint32_t first, uint32_t count);

/* Returns the number of buffers that lki_virtual_plan_range() would plan. */
uint32_t lki_virtual_buffers(uint32_t leaves, uint32_t first, uint32_t count,
                             lki_range_order order);

/* Returns an upper bound of the number of buffers that all ranks together need, whatever their
 * ranges are.  Each rank computes its largest subtrees first, in turns of up to `joint` virtual
 * workers. */
uint32_t lki_virtual_buffers_most(uint32_t leaves, uint32_t ranks, uint32_t joint);

/* Lists the largest subtrees of V virtual workers in [first, first + count), in order, and returns
 * their number. */
uint32_t lki_virtual_nodes(lki_node nodes[LKI_NODES_MAX], uint32_t leaves, uint32_t first,
                           uint32_t count);

/* Sorts nodes in place by their first virtual worker. */
void lki_nodes_sort(lki_node *nodes, uint32_t count);

/* Counts the largest subtrees of V virtual workers in [begin, end).  Each is sent as one
 * message. */
uint32_t lki_virtual_branches(uint32_t leaves, uint32_t begin, uint32_t end);

/* The live sums during the computation of a range. */
typedef struct {
    uint32_t leaves, depth, used;
    uint32_t cut; /* maximum number of virtual workers of a sum; 0: all */
    /* one bit for each of the first 64 buffers that must not be assigned, although it is free */
    uint64_t reserved;
    lki_node stack[LKI_NODES_MAX];
} lki_merge_counter;

void lki_counter_begin(lki_merge_counter *counter, uint32_t leaves);

/* Begins virtual worker `leaf`, the next of the range, and returns the buffer in which it
 * accumulates. */
uint32_t lki_counter_push(lki_merge_counter *counter, uint32_t leaf);

/* Begins a sum over virtual workers [first, first + count), and returns its buffer. */
uint32_t lki_counter_push_node(lki_merge_counter *counter, uint32_t first, uint32_t count);

/* Begins virtual worker `leaf` in a buffer that the caller chooses. */
void lki_counter_push_into(lki_merge_counter *counter, uint32_t leaf, uint32_t buffer);

/* Stores in `counter` the sums that are live when the last of `leaves` is computed but not yet
 * merged.  `tree` is V.  Returns false if there are more sums than a counter holds. */
bool lki_counter_walk(lki_merge_counter *counter, uint32_t tree, const uint32_t *leaves,
                      uint32_t count);

/* Replaces the top two sums by their parent and returns true, if they are the children of a tree
 * node.  The caller must then add the buffers: right = left + right. */
bool lki_counter_merge(lki_merge_counter *counter, uint32_t *left, uint32_t *right);

#endif

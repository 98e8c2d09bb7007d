/* parallel/virtual.h -- which virtual workers a rank runs, and how their gradients merge.
 *
 * Virtual workers are dealt in ranges or in rounds.  In rounds (rounds.h) rank r runs r, r + N,
 * r + 2N ..., so that neighbours are computed at the same time.
 *
 * In ranges a rank runs a contiguous part of the V virtual workers.  It computes them in order and
 * merges neighbours like a binary counter: as soon as two adjacent sums are the two children of a
 * node of the canonical tree, the right one, which is the younger, takes the left one in.  What is
 * left at the end are the few maximal subtrees of the range; each travels once.  The peak number of
 * live buffers is known in advance (V = 8 on 3 ranks needs 3; V = 32 on 3 needs 6), and so is the
 * buffer of every gradient.
 *
 * Ranges need not be equal: where they may move between steps (balance.h) a rank makes the largest
 * subtrees of its range first, so that wherever the range begins it needs about as many buffers as
 * one that begins at a multiple of its length.
 */
#ifndef LKI_PARALLEL_VIRTUAL_H
#define LKI_PARALLEL_VIRTUAL_H

#include "base/status.h"

enum { LKI_NODES_MAX = 64 }; /* two maximal chains of a 32-bit range */

/* The sum over virtual workers [first, first + count), in buffer `buffer`. */
typedef struct {
    uint32_t first, count, buffer;
} lki_node;

typedef struct {
    uint32_t leaves;       /* V */
    uint32_t first, count; /* this rank's range */
    uint32_t buffers;      /* the peak */
    uint32_t node_count;   /* what is left at the end */
    lki_node nodes[LKI_NODES_MAX];
} lki_virtual_plan;

/* The ways to deal V virtual workers to ranks. */
typedef struct {
    uint32_t        leaves, ranks;
    bool            rounds; /* else ranges */
    const uint32_t *bounds; /* [ranks + 1]: where ranges begin, and V; NULL: they are equal */
} lki_dealing;

/* Of a rank: virtual workers first, first + stride, ..., `count` of them. */
typedef struct {
    uint32_t first, count, stride;
} lki_share;

lki_share lki_share_of(const lki_dealing *dealing, uint32_t rank);
/* Who runs `leaf`, and how many virtual workers come before it if ranks' shares follow each other.
 */
uint32_t lki_share_rank(const lki_dealing *dealing, uint32_t leaf);
uint32_t lki_share_place(const lki_dealing *dealing, uint32_t leaf);

/* The range of `rank`: [rank V / N, (rank + 1) V / N). */
void lki_virtual_range(uint32_t leaves, uint32_t ranks, uint32_t rank, uint32_t *first,
                       uint32_t *count);

void lki_virtual_plan_make(lki_virtual_plan *plan, uint32_t leaves, uint32_t ranks, uint32_t rank);

/* The same for any range of `leaves`, made from the first on or, `largest`, with its largest
 * subtrees first; and the virtual workers of [first, first + count) in that order. */
void lki_virtual_plan_range(lki_virtual_plan *plan, uint32_t leaves, uint32_t first, uint32_t count,
                            bool largest);
void lki_virtual_order(uint32_t *order, uint32_t leaves, uint32_t first, uint32_t count);

/* The buffers of that plan alone, without making it. */
uint32_t lki_virtual_buffers(uint32_t leaves, uint32_t first, uint32_t count, bool largest);

/* The largest subtrees of V leaves that lie in [first, first + count), in order; their number. */
uint32_t lki_virtual_nodes(lki_node nodes[LKI_NODES_MAX], uint32_t leaves, uint32_t first,
                           uint32_t count);

/* In place, by where they begin. */
void lki_nodes_sort(lki_node *nodes, uint32_t count);

/* How many largest subtrees of V leaves lie in [begin, end): each travels on its own. */
uint32_t lki_virtual_branches(uint32_t leaves, uint32_t begin, uint32_t end);

/* The live sums while a range is being computed. */
typedef struct {
    uint32_t leaves, depth, used;
    uint64_t reserved; /* a bit for each buffer that is not to be handed out, though it is free */
    lki_node stack[LKI_NODES_MAX];
} lki_merge_counter;

void lki_counter_begin(lki_merge_counter *counter, uint32_t leaves);

/* The buffer in which virtual worker `leaf`, the next of the range, accumulates. */
uint32_t lki_counter_push(lki_merge_counter *counter, uint32_t leaf);

/* The same for a sum over `count` of them, from `first`. */
uint32_t lki_counter_push_node(lki_merge_counter *counter, uint32_t first, uint32_t count);

/* The same, in a buffer of the caller's choice. */
void lki_counter_push_into(lki_merge_counter *counter, uint32_t leaf, uint32_t buffer);

/* What is live when the last of these virtual workers, of `tree` in all, is made, and not yet
 * merged.  False: more sums than a counter has. */
bool lki_counter_walk(lki_merge_counter *counter, uint32_t tree, const uint32_t *leaves,
                      uint32_t count);

/* Whether the top two sums make a node now; if so the buffers to add: right = left + right. */
bool lki_counter_merge(lki_merge_counter *counter, uint32_t *left, uint32_t *right);

#endif

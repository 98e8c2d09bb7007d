/* parallel/rounds.h -- virtual workers assigned in rounds, and the subtrees that each round adds to
 * the sums.
 *
 * In round j rank r runs virtual worker jN + r.  The round's gradients form a few maximal subtrees
 * of the canonical tree.  Each subtree is reduced separately to its owners, who store it as a
 * partial sum.  Partial sums merge like a binary counter, so the peak number of partial sums is
 * known in advance.  The peak is 1 if V = N is a power of two.
 *
 *      V = 8, N = 3       round 0: [0,2) [2,1)    round 1: [3,1) [4,2)    round 2: [6,2)
 *
 * The subtrees of a round are sent at the same time.  So the buffer of a subtree must be free
 * without merging other subtrees of the same round.
 */
#ifndef LKI_PARALLEL_ROUNDS_H
#define LKI_PARALLEL_ROUNDS_H

#include "parallel/virtual.h"

/* The sum over virtual workers [first, first + count) is written to `buffer`.  Then merges [merge,
 * merge + merges) of the plan are done, each right = left + right. */
typedef struct {
    uint32_t first, count, buffer;
    uint32_t merge, merges;
} lki_subtree;

typedef struct {
    uint32_t left, right;
} lki_merging;

typedef struct {
    uint32_t     rounds, buffers;
    uint32_t     widest; /* maximum number of subtrees in a round */
    uint32_t    *first;  /* [rounds + 1]: number of each round's first subtree in the plan */
    lki_subtree *subtrees;
    lki_merging *merges;
    uint32_t     last; /* the buffer that holds the whole sum at the end */
} lki_round_plan;

/* Plans the rounds.  On failure call lki_round_plan_deinit() as well. */
LK_NODISCARD lk_status lki_round_plan_init(lki_round_plan *plan, uint32_t leaves, uint32_t ranks);
void                   lki_round_plan_deinit(lki_round_plan *plan);

#endif

/* parallel/strategies/rounds.h -- virtual workers dealt in rounds: what each round adds to the
 * sums.
 *
 * In round j rank r runs virtual worker jN + r.  The round's gradients make up a few maximal
 * subtrees of the canonical tree; each is reduced by itself, to who owns the sum, and kept there as
 * a partial sum.  Partial sums merge like a binary counter, so their peak number is known in
 * advance: one where V = N is a power of two.
 *
 *      V = 8, N = 3       round 0: [0,2) [2,1)    round 1: [3,1) [4,2)    round 2: [6,2)
 *
 * The subtrees of a round travel at the same time, and so none of them is kept where merging those
 * before it in the round frees a buffer.
 */
#ifndef LKI_PARALLEL_ROUNDS_H
#define LKI_PARALLEL_ROUNDS_H

#include "parallel/virtual.h"

/* The sum over virtual workers [first, first + count) comes into `buffer`; then
 * right = left + right of merges [merge, merge + merges). */
typedef struct {
    uint32_t first, count, buffer;
    uint32_t merge, merges;
} lki_subtree;

typedef struct {
    uint32_t left, right;
} lki_merging;

typedef struct {
    uint32_t     rounds, buffers;
    uint32_t     widest; /* the most subtrees that a round has */
    uint32_t    *first;  /* [rounds + 1]: of each round, among all subtrees */
    lki_subtree *subtrees;
    lki_merging *merges;
    uint32_t     last; /* the buffer of the whole sum */
} lki_round_plan;

/* lki_round_plan_deinit() accepts a half-made one. */
LK_NODISCARD lk_status lki_round_plan_init(lki_round_plan *plan, uint32_t leaves, uint32_t ranks);
void                   lki_round_plan_deinit(lki_round_plan *plan);

#endif

/* parallel/remains.h -- which gradients of an interrupted step are still usable, and which ranks
 * compute the missing gradients.
 *
 * With a ledger (ledger.h) every gradient buffer has a tag in the arena.  The tag is the step and
 * the tree node, [first, first + count), whose sum the buffer holds.  The tag is removed before the
 * first change of the buffer and set after the last.  So a tag is correct even if any rank has
 * died.
 *
 * The sum of two neighbours is written to the buffer of the right one, which is the newer.  The
 * left buffer keeps its tag until it is used again.  The rank's last virtual worker is merged
 * bucket by bucket while it is computed, and has no tag until all of it is merged:
 *
 *      buffer 0   [0, 2)  ------------------------------------------->  in [0, 4) from here on
 *      buffer 1   [2, 3)  ------------------------------------------->
 *      buffer 2           computed, each bucket g2 + g3, then g01 + g23  |  [0, 4)
 *
 * So a rank that dies in such a merge leaves complete buffers.  Only the unfinished virtual worker
 * is lost.
 *
 * After the reduction the nodes of a step are still intact, because the sums over all virtual
 * workers are written elsewhere.  On one host an owner writes its sums to the buffer that was the
 * first to be merged with its last virtual worker (buffer 1 above).  When [0, 4) has its tag, the
 * tag of that buffer is removed.  So a rank reduces only after it has computed all of its virtual
 * workers.  This costs no time, because all sums need the last rank's gradients.  The buffer is in
 * the owner's cache, because it has just been read.  Separate memory for the sums would not be in
 * cache; it cost 6 % of the time of steps of 2.3 ms.
 *
 * Separate memory is still used in three cases: by owners that have merged nothing; in a step that
 * continues from remains, because its nodes may be in any buffer; and if ranks lend each other
 * buffers.  With several hosts the separate memory holds all sums, because sums are sent while
 * gradients are computed.
 *
 * After a failure all ranks read the tags and compute the same plan: a cover of the finished
 * virtual workers by disjoint nodes.  Merging neighbours frees buffers.  The remaining virtual
 * workers are assigned to the ranks in equal parts, and use free buffers.  If there are too few
 * buffers, fewer ranks compute them.  If not even one rank has enough buffers, or there are too
 * many nodes for lk_tree_reduce(), the step is computed from its beginning.
 */
#ifndef LKI_PARALLEL_REMAINS_H
#define LKI_PARALLEL_REMAINS_H

#include <stdatomic.h>

#include "lockstep/comm.h"
#include "lockstep/parallel.h"
#include "parallel/virtual.h"

typedef struct {
    _Atomic uint64_t steps; /* 1 + number of the step; 0: the buffer holds nothing */
    uint32_t         first, count;
} lki_tag;

/* The warning is disabled because ThreadSanitizer does not model fences.  This fence orders stores
 * for processes that read the tag after a death, so it never takes part in a race. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wtsan"
#endif
static inline void lki_tag_take_off(lki_tag *tag)
{
    atomic_store(&tag->steps, 0);
    atomic_thread_fence(memory_order_seq_cst); /* before the first change of the buffer */
}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

static inline void lki_tag_put_on(lki_tag *tag, uint64_t step, uint32_t first, uint32_t count)
{
    tag->first = first;
    tag->count = count;
    atomic_store(&tag->steps, step + 1);
}

/* A node whose sum is in the buffer of its right half, and the buffer of its left half. */
typedef struct {
    lki_node node;
    uint32_t left;
} lki_merged;

/* The plan.  Buffers are numbered as in the arena. */
typedef struct {
    bool     there; /* false: the step must be computed from its beginning */
    uint64_t step;
    uint32_t unfinished; /* virtual workers that still have to be computed, by all ranks together */

    uint32_t *leaves; /* [count]: the virtual workers that this rank computes, ascending */
    uint32_t  count;
    /* [buffer of this rank's merge counter]: its gradient buffer */
    uint32_t  places[LKI_NODES_MAX];

    lki_node held[LK_TREE_NODES_MAX]; /* the finished nodes that this rank holds */
    uint32_t held_count;

    lki_node   *cover; /* the finished nodes of all ranks, before neighbours merge */
    lki_merged *merges; /* this rank's merges, in order */
    uint32_t    cover_count, merge_count;
} lki_remains;

/* Plans for `rank` from the tags of `count` buffers.  `steps` is 1 + the number of the step. */
LK_NODISCARD lk_status lki_remains_find(lki_remains *out, const lki_tag *tags, uint32_t count,
                                        uint64_t steps, uint32_t leaves, uint32_t ranks,
                                        uint32_t rank);

/* Determines which results remain of the step that follows the first `complete` steps (0: of any
 * step), stores the plan in parallel->remains, and merges neighbouring tree nodes that remain in
 * `buffers`.  Collective. */
LK_NODISCARD lk_status lki_remains_take(lk_parallel *parallel, float *buffers, lki_tag *tags,
                                        uint32_t count, uint64_t complete);

void lki_remains_deinit(lki_remains *remains);

#endif

/* parallel/recover/remains.h -- what is left of the gradients of a step that was broken off, and
 * who makes the rest.
 *
 * With a ledger (ledger.h) every buffer of gradients has a tag in the arena: the step and the node
 * of the tree, [first, first + count), whose sum it holds.  The tag is taken off before the first
 * change of the buffer, and put on after the last, so what a tag says is so, whoever is dead.
 *
 * Sums of neighbours go to the buffer of the right one, which is the younger, and the left one
 * keeps its tag until its buffer is used again.  The rank's last virtual worker is merged bucket by
 * bucket while it is made, and has no tag until all of it is:
 *
 *      buffer 0   [0, 2)  ------------------------------------------->  in [0, 4) from here on
 *      buffer 1   [2, 3)  ------------------------------------------->
 *      buffer 2           made, each bucket g2 + g3, then g01 + g23  |  [0, 4)
 *
 * So whoever is lost on the way leaves what was whole before, and takes along the one that it was
 * making: that is unfinished anyway.
 *
 * A step that is reduced has its nodes still, as the sums over all go elsewhere.  On one host that
 * is, for each owner, the buffer of what its last virtual worker was merged with first, 0 or 1
 * above: once [0, 4) has its tag nobody needs that, and its own tag is taken off.  So nothing is
 * reduced before all that a rank makes is whole: no sum can be made earlier on the rank that comes
 * last, for which the others wait.  What an owner has just read is in its cache, and memory of its
 * own for the sums, which nobody else touches in a step, is not: that alone took 6 % of steps of
 * 2.3 ms.  There is such memory still, for who has merged nothing, for a step that is made of
 * remains, whose nodes are anywhere, and where ranks lend each other buffers.  On several hosts,
 * where sums travel while gradients are made, it takes them all.
 *
 * After a failure all ranks read the tags and find the same: a cover of the virtual workers that
 * are done, by disjoint nodes; neighbours merge, to have room; and the others are dealt to the
 * ranks in equal parts, into buffers that are free.  Where there are too few, fewer ranks make
 * them; where even one has no room, or the nodes are too many for lk_tree_reduce(), the step is
 * made from its beginning.
 */
#ifndef LKI_PARALLEL_REMAINS_H
#define LKI_PARALLEL_REMAINS_H

#include <stdatomic.h>

#include "lockstep/comm.h"
#include "lockstep/parallel.h"
#include "parallel/virtual.h"

typedef struct {
    _Atomic uint64_t steps; /* 1 + the step; 0: the buffer holds nothing */
    uint32_t         first, count;
} lki_tag;

/* ThreadSanitizer does not model fences: this one is for who looks after a death, never a race. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wtsan"
#endif
static inline void lki_tag_take_off(lki_tag *tag)
{
    atomic_store(&tag->steps, 0);
    atomic_thread_fence(memory_order_seq_cst); /* before the first change */
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

/* The sum of a node, which is made of its right half in the same buffer and the left one. */
typedef struct {
    lki_node node;
    uint32_t left;
} lki_merged;

/* The plan; buffers are those of the arena. */
typedef struct {
    bool     there; /* else the step is made from its beginning */
    uint64_t step;
    uint32_t unfinished; /* virtual workers that are made, by all ranks */

    uint32_t *leaves; /* those that this rank makes, `count` of them, ascending ... */
    uint32_t  count;
    uint32_t  places[LKI_NODES_MAX]; /* ... the buffer for each of the merge counter's */

    lki_node held[LK_TREE_NODES_MAX]; /* what it has of the others */
    uint32_t held_count;

    lki_node   *cover; /* that of all ranks, before neighbours merge */
    lki_merged *merges; /* this rank's, in order */
    uint32_t    cover_count, merge_count;
} lki_remains;

/* What the tags of `count` buffers have of a step, `steps` being 1 + its number, for a rank. */
LK_NODISCARD lk_status lki_remains_find(lki_remains *out, const lki_tag *tags, uint32_t count,
                                        uint64_t steps, uint32_t leaves, uint32_t ranks,
                                        uint32_t rank);

/* Finds in parallel->remains what there is of the step after `complete` ones (0: of any), and
 * merges neighbours in these buffers.  Collective. */
LK_NODISCARD lk_status lki_remains_take(lk_parallel *parallel, float *buffers, lki_tag *tags,
                                        uint32_t count, uint64_t complete);

void lki_remains_deinit(lki_remains *remains);

#endif

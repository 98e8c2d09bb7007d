/* device/partial.h -- computes one node of the canonical tree from other nodes, for reductions of
 * any type.
 *
 * A partial is an intermediate value of a reduction, as ranks send it.  It has the accumulators of
 * a node, in FP32 if the elements have 16 bits, so that rounding happens once, at the root.  Leaves
 * are elements.  If every node is rounded (as in reduce.h), inner nodes may have elements, too.
 */
#ifndef LKI_DEVICE_PARTIAL_H
#define LKI_DEVICE_PARTIAL_H

#include "lockstep/base.h"

/* The value of node [first, first + count).  If `leaf`, the value has elements: those of a leaf, or
 * those to which the node was rounded.  Otherwise the value has accumulators. */
typedef struct {
    uint32_t    first, count;
    bool        leaf;
    const void *data;
} lki_partial_node;

typedef struct {
    lk_dtype        dtype;
    lk_reduce_op    op;
    uint32_t        leaves;       /* number of leaves of the whole tree, the divisor of an
                                   * average */
    uint32_t        first, count; /* the node to compute */
    bool            root;         /* output elements; otherwise accumulators */
    bool            rounded;      /* sums only: every node, not only the root, is rounded to dtype,
                                   * which has 16 bits or blocks (quantise.h) */
    const lki_partial_node *nodes;        /* in ascending order, covering the node exactly once */
    uint32_t        node_count;
} lki_partial;

/* Returns the bytes of one accumulator. */
size_t lki_partial_width(lk_dtype dtype);

/* Computes the node's value elementwise: out[i] for i < count.  `out` may be an input whose
 * elements have the same width.  Asserts that lki_combine_check() accepts the operation. */
void lki_partial_combine(const lki_partial *p, size_t count, void *out);

#endif

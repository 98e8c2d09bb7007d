/* device/partial.h -- reductions of any type, from some nodes of the canonical tree to another.
 *
 * What travels between two ranks on the way to a sum is a partial: the accumulators of a node, in
 * FP32 where the elements have 16 bits, so that rounding happens once, at the root.  Leaves are
 * elements.  Where every node is rounded (as reduce.h does), inner nodes may be elements, too. */
#ifndef LKI_DEVICE_PARTIAL_H
#define LKI_DEVICE_PARTIAL_H

#include "lockstep/base.h"

/* Node [first, first + count): its accumulators, or elements: those of a leaf, or what it has been
 * rounded to. */
typedef struct {
    uint32_t    first, count;
    bool        leaf;
    const void *data;
} lki_partial_node;

typedef struct {
    lk_dtype        dtype;
    lk_reduce_op    op;
    uint32_t        leaves;       /* of the whole tree: what an average divides by */
    uint32_t        first, count; /* the node that is evaluated */
    bool            root;         /* elements come out; else accumulators */
    bool            rounded;      /* sums: every node, not the root alone; dtype says to what:
                                   * 16 bits, or blocks (quantise.h) */
    const lki_partial_node *nodes;        /* ascending, covering it once */
    uint32_t        node_count;
} lki_partial;

/* Bytes of one accumulator. */
size_t lki_partial_width(lk_dtype dtype);

/* out[i] for i < count: the node's value, elementwise.  `out` may be one of the inputs if that
 * has elements of the same width.  What lki_combine_check() refuses is asserted against. */
void lki_partial_combine(const lki_partial *p, size_t count, void *out);

#endif

/* partial.c -- reductions with combine.c's loops, where the values of some inner nodes of the tree
 * are given.
 *
 * Cost:  elements are processed in blocks that remain in the first-level cache.  Every input is
 *        read once and the output written once.
 * Order: the canonical tree, elementwise.  Wherever the tree is divided, the bits are those of
 *        lki_combine() over all leaves, because a node's accumulators are its intermediate values.
 *        Quantised elements share a factor with all elements of their block, so work is divided
 *        only between such blocks.
 */
#include "device/partial.h"

#include <stdalign.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "device/quantise.h"
#include "device/reduce.h"

enum { BLOCK_BYTES = 4096 }; /* bytes of accumulators; each level of the tree holds one block */

typedef struct {
    const lki_partial    *p;
    const lki_type_loops *type;
    lki_combine_loop      combine;
    lki_convert_loop      load, store;
    double                store_factor;
    uint32_t              next;  /* index of the next node, from left to right */
    size_t                at, n; /* the current block */
} evaluation;

size_t lki_partial_width(lk_dtype dtype)
{
    return lki_combine_portable[dtype].accumulator;
}

/* Returns the byte offset of element `at`. */
static size_t offset_of(const lki_type_loops *type, bool elements, size_t at)
{
    if (elements && type->block > 0)
        return at / LKI_QUANTISED * type->block;
    return at * (elements ? type->width : type->accumulator);
}

static const void *take(evaluation *e, void *to)
{
    const lki_partial_node *node = &e->p->nodes[e->next++];
    const unsigned char    *all  = node->data;
    const void             *data = all + offset_of(e->type, node->leaf, e->at);

    if (!node->leaf || e->load == NULL)
        return data;
    e->load(e->n, data, e->p->op.factor, to);
    return to;
}

/* Returns the accumulators of node [first, first + count).  A given node is used in place; other
 * nodes are computed in `to`. */
static const void *evaluate(evaluation *e, uint32_t first, uint32_t count, void *to)
{
    alignas(64) unsigned char other[BLOCK_BYTES];

    LK_ASSERT(e->next < e->p->node_count);
    const lki_partial_node *node = &e->p->nodes[e->next];
    LK_ASSERT(node->first == first && node->count <= count);
    if (node->count == count)
        return take(e, to);
    uint32_t    half  = lki_tree_left(count);
    const void *left  = evaluate(e, first, half, to);
    const void *right = evaluate(e, first + half, count - half, other);
    e->combine(e->n, left, right, to);
    return to;
}

/* Evaluates a block in the case that the only given node is the requested node itself. */
static void take_block(evaluation *e, bool stores, void *out)
{
    alignas(64) unsigned char here[BLOCK_BYTES];
    const void               *data = take(e, here);

    if (!stores && e->p->rounded)
        e->type->rounded(e->n, data, 1, out);
    else if (stores)
        e->store(e->n, data, e->store_factor, out);
    else if (data != out)
        memcpy(out, data, e->n * (e->p->root ? e->type->width : e->type->accumulator));
}

/* Evaluates one block.  Writes the result last, because `out` may be an input. */
static void evaluate_block(evaluation *e, void *out)
{
    alignas(64) unsigned char a[BLOCK_BYTES], b[BLOCK_BYTES];
    uint32_t                  first = e->p->first, count = e->p->count;
    bool                      stores = e->p->root && e->store != NULL;

    e->next = 0;
    if (e->p->node_count == 1) {
        take_block(e, stores, out);
        return;
    }
    uint32_t    half  = lki_tree_left(count);
    const void *left  = evaluate(e, first, half, a);
    const void *right = evaluate(e, first + half, count - half, b);
    LK_ASSERT(e->next == e->p->node_count);
    e->combine(e->n, left, right, stores ? a : out);
    if (stores)
        e->store(e->n, a, e->store_factor, out);
}

void lki_partial_combine(const lki_partial *p, size_t count, void *out)
{
    const lki_type_loops *type   = p->rounded ? lki_rounding_loops(p->dtype)
                                              : &lki_combine_best()[p->dtype];
    bool                  premul = p->op.kind == LK_REDUCE_PREMUL_SUM;
    bool                  avg    = p->op.kind == LK_REDUCE_AVG;
    size_t                block  = BLOCK_BYTES / type->accumulator;
    LK_ASSERT(p->count > 0 && type->accumulator > 0);
    LK_ASSERT((unsigned)p->op.kind <= LK_REDUCE_PREMUL_SUM);
    LK_ASSERT(!p->rounded || (p->op.kind == LK_REDUCE_SUM && type->rounded != NULL));

    evaluation e = {
        .p            = p,
        .type         = type,
        .combine      = p->rounded ? type->rounded_sum
                                   : type->combine[premul || avg ? LK_REDUCE_SUM : p->op.kind],
        .load         = premul ? type->load_scaled : type->load,
        .store        = avg ? type->store_scaled : type->store,
        .store_factor = lki_combine_share(type, p->op, p->leaves),
    };
    for (; e.at < count; e.at += block) {
        e.n = lki_min(block, count - e.at);
        evaluate_block(&e, (unsigned char *)out + offset_of(type, p->root, e.at));
    }
}

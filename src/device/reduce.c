/* reduce.c -- sums in the order of the canonical tree.
 *
 * The tree over V leaves is fixed: a node of more than one leaf has the largest power of two
 * below its count on its left.  Whoever holds inner nodes has done part of the work; the rest is
 * done here block by block, small enough that the partial sums stay in the first cache, so every
 * input is read once and the result written once.
 *
 * Cost:   n reads of each input and n writes; log2(V) blocks of scratch on the stack.
 * Order:  the tree's, elementwise, the lower node on the left.  The block's size cannot matter.
 * Memory: none beside the stack.  `out` is written in the last addition of a block only, so it
 *         may be any of the inputs.
 */
#include "device/reduce.h"

#include <string.h>

#include "base/memory.h"
#include "base/status.h"

enum { BLOCK = 256, LEVELS = 13 }; /* 13 KiB of stack, enough for trees of 8192 leaves */

uint32_t lki_tree_left(uint32_t count)
{
    LK_ASSERT(count > 1);
    return UINT32_C(1) << (31 - __builtin_clz(count - 1));
}

bool lki_tree_is_node(uint32_t leaves, uint32_t first, uint32_t count)
{
    uint32_t at = 0, width = leaves;

    if (count == 0 || first >= leaves || count > leaves - first)
        return false;
    while (at != first || width != count) {
        if (width == 1)
            return false;
        uint32_t left = lki_tree_left(width);
        if (first < at + left) {
            width = left;
        } else {
            at += left;
            width -= left;
        }
    }
    return true;
}

/* out may be a or b. */
static void add(size_t n, float *out, const float *a, const float *b)
{
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

void lki_merge_f32(size_t n, float *left, const float *right)
{
    add(n, left, left, right);
}

/* A walk over the tree that takes the inputs in order. */
typedef struct {
    const lki_tree_input *inputs;
    uint32_t              next, count;
    size_t                at, n; /* the block */
    float (*scratch)[BLOCK];
} walk;

/* The values of a node: an input's own, or a sum in scratch[level]. */
static const float *evaluate(walk *w, uint32_t first, uint32_t count, uint32_t level)
{
    LK_ASSERT(w->next < w->count && w->inputs[w->next].first == first && level < LEVELS);
    if (w->inputs[w->next].count == count)
        return w->inputs[w->next++].data + w->at;
    uint32_t     split = lki_tree_left(count);
    const float *left  = evaluate(w, first, split, level);
    const float *right = evaluate(w, first + split, count - split, level + 1);
    add(w->n, w->scratch[level], left, right);
    return w->scratch[level];
}

void lki_tree_sum_f32(uint32_t leaves, const lki_tree_input *inputs, uint32_t input_count,
                      size_t n, float *out)
{
    float scratch[LEVELS][BLOCK];

    LK_ASSERT(leaves > 0 && input_count > 0);
    if (input_count == 1) {
        LK_ASSERT(inputs[0].first == 0 && inputs[0].count == leaves);
        if (out != inputs[0].data && n > 0)
            memcpy(out, inputs[0].data, n * sizeof *out);
        return;
    }
    uint32_t split = lki_tree_left(leaves);
    for (size_t at = 0; at < n; at += BLOCK) {
        walk         w = { .inputs = inputs, .count = input_count, .at = at,
                           .n = lki_min(BLOCK, n - at), .scratch = scratch };
        const float *left  = evaluate(&w, 0, split, 0);
        const float *right = evaluate(&w, split, leaves - split, 1);
        LK_ASSERT(w.next == input_count);
        add(w.n, out + at, left, right);
    }
}

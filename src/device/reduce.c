/* reduce.c -- sums of virtual workers' partial sums, in the order of the canonical tree.
 *
 * The tree over leaves [f, f + c) has the leaves [f, f + 2^j) on its left, where 2^j is the largest
 * power of two below c.  Callers hold some of its nodes; the nodes above them are evaluated here:
 *
 *                root                     inputs: [0,2) [2,3) [3,4) [4,5)
 *             /        \                  evaluated: [2,4), [0,4), [0,5)
 *          [0,4)      [4,5) = g4
 *         /     \
 *      [0,2)   [2,4)
 *              /   \
 *             g2    g3
 *
 * Cost:  elements are processed in blocks that remain in the first-level cache.  Every input is
 *        read once and the output written once; sums of inner nodes never leave the cache.
 * Sums:  computed by the loops of lki_combine(), so every NaN is the same NaN.
 * Order: elementwise, so the bits are the same for every division of the elements and of the work.
 *        Elements that share a factor (quantise.h) may be divided only between blocks, as done
 *        here.
 *
 * Either all nodes are rounded, on every rank, or no node is.  The bits of a node still depend only
 * on its leaves, and the node is sent in the bytes of the type to which it is rounded.
 */
#include "device/reduce.h"

#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "device/combine_loops.h"
#include "device/quantise.h"

/* The number of elements of a block.  Each inner node on the path holds one block, 4 KiB per level
 * of the tree. */
enum { BLOCK = 4 * LKI_QUANTISED };

/* The size from which a sum in separate memory has left the nearer caches before it is read.  From
 * this size on, sums are written past the cache, so that their lines need not be fetched before
 * they are overwritten. */
enum { FAR_BYTES = 4 << 20 };

typedef struct {
    const lki_tree_input *inputs;
    uint32_t              input_count, next;
    size_t                at, n;
    lk_dtype              rounded;
} evaluation;

static void add(lk_dtype rounded, size_t n, const float *left, const float *right, float *out)
{
    const lki_type_loops *loops = &lki_combine_best()[LK_F32];
    if (lki_rounds(rounded))
        lki_rounding_loops(rounded)->rounded_sum(n, left, right, out);
    else if (n * sizeof *out >= FAR_BYTES && out != left && out != right)
        loops->sum_far(n, left, right, out);
    else
        loops->combine[LK_REDUCE_SUM](n, left, right, out);
}

/* Stores the value of a tree that consists of one node. */
static void take(lk_dtype rounded, size_t n, const float *from, float *out)
{
    if (lki_rounds(rounded))
        lki_rounding_loops(rounded)->rounded(n, from, 1, out);
    else if (out != from)
        memcpy(out, from, n * sizeof *out);
}

uint32_t lki_tree_left(uint32_t count)
{
    LK_ASSERT(count > 1);
    return 1u << (31 - __builtin_clz(count - 1));
}

void lki_tree_merge_rows(lki_row_merge merge, uint32_t width, double *rows, uint32_t count)
{
    if (count < 2)
        return;
    uint32_t left  = lki_tree_left(count);
    double  *right = rows + (size_t)left * width;
    lki_tree_merge_rows(merge, width, rows, left);
    lki_tree_merge_rows(merge, width, right, count - left);
    merge(width, rows, right);
}

bool lki_tree_is_node(uint32_t leaves, uint32_t first, uint32_t count)
{
    uint32_t begin = 0, size = leaves;
    if (count == 0 || count > leaves || first > leaves - count)
        return false;
    while (begin != first || size != count) {
        if (size == 1)
            return false;
        uint32_t left = lki_tree_left(size);
        if (first < begin + left) {
            size = left;
        } else {
            begin += left;
            size -= left;
        }
    }
    return true;
}

/* Returns the block of node [first, first + count), from an input or computed in `to`.  Visits
 * nodes from left to right, in the order of the inputs. */
static const float *evaluate(evaluation *e, uint32_t first, uint32_t count, float *to)
{
    LK_ASSERT(e->next < e->input_count);
    const lki_tree_input *input = &e->inputs[e->next];
    LK_ASSERT(input->first == first && input->count <= count);
    if (input->count == count) {
        e->next++;
        return input->data + e->at;
    }
    float        other[BLOCK];
    uint32_t     half  = lki_tree_left(count);
    const float *left  = evaluate(e, first, half, to);
    const float *right = evaluate(e, first + half, count - half, other);
    add(e->rounded, e->n, left, right, to);
    return to;
}

void lki_tree_sum_f32(lk_dtype rounded, uint32_t leaves, const lki_tree_input *inputs,
                      uint32_t input_count, size_t n, float *out)
{
    LK_ASSERT(leaves > 0 && input_count > 0);
    if (input_count == 1) {
        LK_ASSERT(inputs[0].first == 0 && inputs[0].count == leaves);
        take(rounded, n, inputs[0].data, out);
        return;
    }
    uint32_t half = lki_tree_left(leaves);
    if (input_count == 2) {
        LK_ASSERT(inputs[0].first == 0 && inputs[0].count == half && inputs[1].first == half &&
                  inputs[1].count == leaves - half);
        add(rounded, n, inputs[0].data, inputs[1].data, out);
        return;
    }
    for (size_t at = 0; at < n; at += BLOCK) {
        float      a[BLOCK], b[BLOCK]; /* `out` may be an input, so it is written last */
        evaluation e     = { inputs, input_count, 0, at, lki_min(BLOCK, n - at), rounded };
        const float *left  = evaluate(&e, 0, half, a);
        const float *right = evaluate(&e, half, leaves - half, b);
        LK_ASSERT(e.next == input_count);
        add(rounded, e.n, left, right, out + at);
    }
}

void lki_merge_f32(lk_dtype rounded, size_t n, float *left, const float *right)
{
    add(rounded, n, left, right, left);
}

void lki_merge_right_f32(lk_dtype rounded, size_t n, const float *left, float *right)
{
    add(rounded, n, left, right, right);
}

/* single.c -- the reference that every strategy must equal, written as plainly as possible.
 *
 * One worker, V whole gradients side by side, one recursive sum.  There are no buckets, no overlap,
 * no merging during the backward pass and no shared slices.
 *
 * Cost: V x gradient bytes of memory, V - 1 additions per element.  For tests and `verify`.
 */
#include <string.h>

#include "base/memory.h"
#include "device/half.h"
#include "device/quantise.h"
#include "device/reduce.h"
#include "parallel/state.h"

static size_t single_bytes(const lk_parallel *parallel, uint32_t host)
{
    size_t bytes;
    (void)host;
    return __builtin_mul_overflow(parallel->leaves, parallel->width * sizeof(float), &bytes)
               ? 0
               : bytes;
}

static lk_status single_attach(lk_parallel *parallel)
{
    if (parallel->ranks != 1)
        return lk_fail(LK_EINVAL,
                       "strategy 'single' is the one-worker reference, but there are %u "
                       "workers; use `workers` 1 or `strategy` ddp",
                       parallel->ranks);
    float *all = NULL;
    LK_TRY(LKI_NEW(&all, parallel->width * parallel->leaves, "gradients of all virtual workers"));
    parallel->private = all;
    return LK_OK;
}

static void single_detach(lk_parallel *parallel)
{
    lki_free(parallel->private);
    parallel->private = NULL;
}

static float *whole_gradient(const lk_parallel *parallel, uint32_t leaf)
{
    return (float *)parallel->private + parallel->width * leaf;
}

static lki_gradients gradients_of(const lk_parallel *parallel, uint32_t leaf)
{
    float *whole = whole_gradient(parallel, leaf);
    return (lki_gradients){ .gradients = whole, .states = whole + parallel->layout->grad_elements };
}

static lk_status single_begin_leaf(lk_parallel *parallel, uint32_t n, lki_gradients *out)
{
    *out = gradients_of(parallel, lki_leaf_of_turn(parallel, n));
    memset(out->gradients, 0, parallel->width * sizeof(float));
    return LK_OK;
}

static lk_status single_term_ready(lk_parallel *parallel, uint32_t term)
{
    (void)parallel;
    (void)term;
    return LK_OK;
}

static lk_status single_end_leaf(lk_parallel *parallel)
{
    (void)parallel;
    return LK_OK;
}

/* Rounds the gradients of a tree node.  Running state, which follows them, is not rounded. */
static void round_node(const lk_parallel *parallel, float *node)
{
    for (size_t i = 0; parallel->rounded == LK_BF16 && i < parallel->layout->grad_elements; i++)
        node[i] = lki_bf16_widen(lki_bf16_narrow(node[i]));
    for (size_t i = 0; parallel->rounded == LK_F16 && i < parallel->layout->grad_elements; i++)
        node[i] = lki_f16_widen(lki_f16_narrow(node[i]));
    if (lki_quantises(parallel->rounded)) /* every tensor begins at a block */
        lki_rounding_loops(parallel->rounded)->rounded(parallel->layout->grad_elements, node, 1,
                                                       node);
}

/* Computes the sum over [first, first + count) into the gradient of virtual worker `first`. */
static void sum_tree(const lk_parallel *parallel, uint32_t first, uint32_t count)
{
    float *a = whole_gradient(parallel, first);
    if (count > 1) {
        uint32_t left = lki_tree_left(count);
        sum_tree(parallel, first, left);
        sum_tree(parallel, first + left, count - left);
        const float *b = whole_gradient(parallel, first + left);
        for (size_t i = 0; i < parallel->width; i++)
            a[i] = a[i] + b[i];
    }
    round_node(parallel, a);
}

static lk_status single_reduce(lk_parallel *parallel, lki_gradients *sums)
{
    sum_tree(parallel, 0, parallel->leaves);
    *sums = gradients_of(parallel, 0);
    return LK_OK;
}

/* Returns zeros, because nothing is sent within a single host. */
static lki_passes single_passes(const lk_parallel *parallel, uint32_t host)
{
    (void)parallel;
    (void)host;
    return (lki_passes){ 0 };
}

const lki_strategy_ops lki_strategy_single = {
    .name       = "single",
    .bytes      = single_bytes,
    .attach     = single_attach,
    .detach     = single_detach,
    .begin_leaf = single_begin_leaf,
    .term_ready = single_term_ready,
    .end_leaf   = single_end_leaf,
    .reduce     = single_reduce,
    .passes     = single_passes,
};

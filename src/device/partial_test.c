/* partial_test.c -- tests that a tree evaluated in parts gives exactly the result of the tree
 * evaluated at once.
 *
 * Goal:   lki_partial_combine() gives the bytes of lki_combine(), for every type and reduction, any
 *         number of leaves, and any choice of inner nodes that are evaluated first.
 * Method: a random division descends the tree.  At each node it either supplies accumulators that
 *         were computed by their own random division, or continues with the children.
 */
#include "device/partial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "device/combine.h"
#include "device/plain_testing.h"
#include "device/reduce.h"

enum { LEAVES_MAX = 33, COUNT = 1500 };

typedef struct {
    lk_dtype     dtype;
    lk_reduce_op op;
    uint32_t     leaves, random;
    double       data[LEAVES_MAX][COUNT], out[COUNT], want[COUNT];
    void        *made[4 * LEAVES_MAX]; /* accumulators, to be freed */
    uint32_t     made_count;
} bench;

static uint32_t draw(bench *b, uint32_t below)
{
    b->random = b->random * 1664525u + 1013904223u;
    return (b->random >> 16) % below;
}

static void evaluate(bench *b, uint32_t first, uint32_t count, bool root, void *out);

/* Chooses nodes that cover [first, first + count), from left to right. */
static uint32_t cut(bench *b, uint32_t first, uint32_t count, bool whole, lki_partial_node *nodes)
{
    if (count == 1 && draw(b, 4) != 0) {
        nodes[0] = (lki_partial_node){ first, 1, true, b->data[first] };
        return 1;
    }
    if (count == 1 || (!whole && draw(b, 3) == 0)) {
        void *made               = malloc(COUNT * 8);
        b->made[b->made_count++] = made;
        evaluate(b, first, count, false, made);
        nodes[0] = (lki_partial_node){ first, count, false, made };
        return 1;
    }
    uint32_t half = lki_tree_left(count);
    uint32_t left = cut(b, first, half, false, nodes);
    return left + cut(b, first + half, count - half, false, nodes + left);
}

static void evaluate(bench *b, uint32_t first, uint32_t count, bool root, void *out)
{
    lki_partial_node nodes[LEAVES_MAX];
    lki_partial      p    = { .dtype  = b->dtype,
                              .op     = b->op,
                              .leaves = b->leaves,
                              .first  = first,
                              .count  = count,
                              .root   = root,
                              .nodes  = nodes };
    size_t           done = draw(b, COUNT), width;

    if (count == 1 && !root) {
        nodes[0]     = (lki_partial_node){ first, 1, true, b->data[first] };
        p.node_count = 1;
    } else {
        p.node_count = cut(b, first, count, true, nodes);
    }
    lki_partial_combine(&p, done, out); /* in two pieces */
    for (uint32_t k = 0; k < p.node_count; k++) {
        width         = nodes[k].leaf ? lk_dtype_bytes(b->dtype) : lki_partial_width(b->dtype);
        nodes[k].data = (const char *)nodes[k].data + done * width;
    }
    width = root ? lk_dtype_bytes(b->dtype) : lki_partial_width(b->dtype);
    lki_partial_combine(&p, COUNT - done, (char *)out + done * width);
}

static void check(bench *b)
{
    const void *from[LEAVES_MAX];

    for (uint32_t k = 0; k < b->leaves; k++) {
        plain_fill(b->dtype, b->data[k], COUNT, k + 100 * b->leaves);
        from[k] = b->data[k];
    }
    lki_combine(b->dtype, b->op, b->leaves, from, COUNT, b->want);
    evaluate(b, 0, b->leaves, true, b->out);
    assert_memory_equal(b->out, b->want, COUNT * lk_dtype_bytes(b->dtype));
    while (b->made_count > 0)
        free(b->made[--b->made_count]);
}

static void partial_sums_combine_to_the_tree(void **state)
{
    static const lk_reduce_kind kinds[] = {
        LK_REDUCE_SUM, LK_REDUCE_PRODUCT, LK_REDUCE_MIN,
        LK_REDUCE_MAX, LK_REDUCE_AVG,     LK_REDUCE_PREMUL_SUM
    };
    bench *b = calloc(1, sizeof *b);

    (void)state;
    assert_non_null(b);
    for (size_t d = 0; d < PLAIN_DTYPES; d++)
        for (size_t k = 0; k < 6; k++)
            for (b->leaves = 1; b->leaves <= LEAVES_MAX; b->leaves += b->leaves < 9 ? 1 : 4) {
                b->dtype = plain_dtypes[d];
                b->op    = (lk_reduce_op){ kinds[k], -3 };
                if (lki_combine_check(b->dtype, b->op) == LK_OK)
                    check(b);
            }
    free(b);
}

static void partial_sums_have_the_accumulator_width(void **state)
{
    (void)state;
    assert_int_equal(lki_partial_width(LK_BF16), 4);
    assert_int_equal(lki_partial_width(LK_F16), 4);
    assert_int_equal(lki_partial_width(LK_F64), 8);
    assert_int_equal(lki_partial_width(LK_I8), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(partial_sums_combine_to_the_tree),
        cmocka_unit_test(partial_sums_have_the_accumulator_width),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

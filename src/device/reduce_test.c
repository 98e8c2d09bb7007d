/* reduce_test.c -- sums in the order of the canonical tree.
 *
 * Goal:   for any choice of given nodes, the bits are those of the tree over single leaves.
 * Method: V from 1 to 33, random partitions of the tree into nodes, against a plain recursion.  A
 *         chain and another association must give other bits, or the test would prove nothing.
 */
#include "device/reduce.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/rng.h"
#include "device/half.h"

enum { V_MAX = 33, N = 2500 }; /* more than two blocks, not a whole number of blocks */

static float leaf[V_MAX][N], node[V_MAX][N];

static void fill_leaves(uint64_t seed)
{
    for (uint32_t v = 0; v < V_MAX; v++)
        for (uint32_t i = 0; i < N; i++) {
            lki_random r = lki_philox(seed, LKI_RNG_DATA, i, v, 0, 0);
            leaf[v][i]   = (lki_random_unit(r.word[0]) - 0.5f) * (float)(1u << r.word[1] % 20);
        }
}

static float round_to(lk_dtype rounded, float x)
{
    return rounded == LK_BF16  ? lki_bf16_widen(lki_bf16_narrow(x))
           : rounded == LK_F16 ? lki_f16_widen(lki_f16_narrow(x))
                               : x;
}

static float plain(lk_dtype rounded, uint32_t first, uint32_t count, size_t i)
{
    if (count == 1)
        return round_to(rounded, leaf[first][i]);
    uint32_t left = 1;
    while (left * 2 < count)
        left *= 2;
    return round_to(rounded, plain(rounded, first, left, i) +
                                 plain(rounded, first + left, count - left, i));
}

/* Splits the tree at random into nodes and evaluates the nodes into node[]. Leaves are copied. */
static uint32_t partition(lk_dtype rounded, uint32_t first, uint32_t count, uint64_t seed,
                          lki_tree_input *out)
{
    lki_random r = lki_philox(seed, LKI_RNG_DATA, first, count, 1, 0);
    if (count == 1 || r.word[0] % 4 == 0) {
        for (size_t i = 0; i < N; i++)
            node[first][i] = count == 1 ? leaf[first][i] : plain(rounded, first, count, i);
        *out = (lki_tree_input){ first, count, node[first] };
        return 1;
    }
    uint32_t left = lki_tree_left(count);
    uint32_t used = partition(rounded, first, left, seed, out);
    return used + partition(rounded, first + left, count - left, seed, out + used);
}

static void check_partitions(lk_dtype rounded, uint32_t v, uint64_t trials)
{
    static float out[N], want[N];
    for (size_t i = 0; i < N; i++)
        want[i] = plain(rounded, 0, v, i);
    for (uint64_t trial = 0; trial < trials; trial++) {
        lki_tree_input inputs[V_MAX];
        uint32_t       count = partition(rounded, 0, v, trial, inputs);
        lki_tree_sum_f32(rounded, v, inputs, count, N, out);
        assert_memory_equal(out, want, sizeof want);
        size_t place = inputs[trial % count].first; /* the output is an input, as on owners */
        lki_tree_sum_f32(rounded, v, inputs, count, N, node[place]);
        assert_memory_equal(node[place], want, sizeof want);
    }
}

static void sums_any_partition(void **state)
{
    (void)state;
    fill_leaves(1);
    for (uint32_t v = 1; v <= V_MAX; v++) {
        check_partitions(LK_F32, v, 6);
        check_partitions(LK_BF16, v, 2);
        check_partitions(LK_F16, v, 2);
    }
}

/* Checks rounding at every node: in the 8 bits of bf16, 256 + 1 + 1 loses each 1, but not their
 * sum. */
static void rounds_every_node(void **state)
{
    static const float values[4] = { 256, 1, 1, 1.00390625f };
    lki_tree_input     inputs[4];
    float              out;
    (void)state;
    for (uint32_t v = 0; v < 4; v++)
        inputs[v] = (lki_tree_input){ v, 1, &values[v] };
    lki_tree_sum_f32(LK_BF16, 2, inputs, 2, 1, &out);
    assert_true(out == 256);
    lki_tree_sum_f32(LK_BF16, 4, inputs, 4, 1, &out);
    assert_true(out == 258);
    lki_tree_sum_f32(LK_F32, 4, inputs, 4, 1, &out);
    assert_true(out == 259.00390625f);
    inputs[0] = (lki_tree_input){ 0, 1, &values[3] };
    lki_tree_sum_f32(LK_BF16, 1, inputs, 1, 1, &out);
    assert_true(out == 1);
    float left = 1.00390625f;
    lki_merge_f32(LK_BF16, 1, &left, &values[3]);
    assert_true(left == 2);
}

/* Checks vectors long enough for sums that bypass the cache. */
static void sums_long_vectors(void **state)
{
    enum { LONG = (1 << 20) + 5 };
    static float   values[2][LONG], out[LONG], want[LONG];
    lki_tree_input inputs[2] = { { 0, 1, values[0] }, { 1, 1, values[1] } };
    (void)state;
    for (uint32_t i = 0; i < LONG; i++) {
        values[0][i] = (float)(i % 1000) * 0.1f;
        values[1][i] = (float)(i % 777) * -0.3f;
        want[i]      = values[0][i] + values[1][i];
    }
    lki_tree_sum_f32(LK_F32, 2, inputs, 2, LONG, out);
    assert_memory_equal(out, want, sizeof want);
    lki_tree_sum_f32(LK_F32, 2, inputs, 2, LONG, values[1]);
    assert_memory_equal(values[1], want, sizeof want);
}

static void sums_any_cut_of_elements(void **state)
{
    (void)state;
    static float whole[N], cut[N];
    fill_leaves(2);
    lki_tree_input inputs[7], part[7];
    for (uint32_t v = 0; v < 7; v++)
        inputs[v] = (lki_tree_input){ v, 1, leaf[v] };
    lki_tree_sum_f32(LK_F32, 7, inputs, 7, N, whole);
    static const size_t borders[] = { 0, 1, 17, 1030, 2048, N };
    for (size_t b = 0; b + 1 < sizeof borders / sizeof borders[0]; b++) {
        for (uint32_t v = 0; v < 7; v++)
            part[v] = (lki_tree_input){ v, 1, leaf[v] + borders[b] };
        lki_tree_sum_f32(LK_F32, 7, part, 7, borders[b + 1] - borders[b], cut + borders[b]);
    }
    assert_memory_equal(cut, whole, sizeof whole);
}

static void swapping_operands_keeps_bits_and_regrouping_does_not(void **state)
{
    (void)state;
    static float chain[N], tree[N], swapped[N];
    fill_leaves(3);
    for (size_t i = 0; i < N; i++) {
        chain[i]   = ((leaf[0][i] + leaf[1][i]) + leaf[2][i]) + leaf[3][i];
        swapped[i] = (leaf[3][i] + leaf[2][i]) + (leaf[1][i] + leaf[0][i]);
        tree[i]    = plain(LK_F32, 0, 4, i);
    }
    lki_tree_input inputs[4];
    for (uint32_t v = 0; v < 4; v++)
        inputs[v] = (lki_tree_input){ v, 1, leaf[v] };
    static float out[N];
    lki_tree_sum_f32(LK_F32, 4, inputs, 4, N, out);
    assert_memory_equal(out, tree, sizeof tree);
    assert_memory_equal(out, swapped, sizeof swapped);
    assert_memory_not_equal(out, chain, sizeof chain);
    inputs[1].data = leaf[2];
    inputs[2].data = leaf[1];
    lki_tree_sum_f32(LK_F32, 4, inputs, 4, N, out);
    assert_memory_not_equal(out, tree, sizeof tree);
}

static void tree_nodes_are_recognised(void **state)
{
    (void)state;
    assert_int_equal(lki_tree_left(2), 1);
    assert_int_equal(lki_tree_left(3), 2);
    assert_int_equal(lki_tree_left(4), 2);
    assert_int_equal(lki_tree_left(33), 32);
    for (uint32_t v = 1; v <= V_MAX; v++) {
        uint32_t nodes = 0;
        for (uint32_t first = 0; first <= v; first++)
            for (uint32_t count = 0; count <= v + 1; count++)
                nodes += lki_tree_is_node(v, first, count);
        assert_int_equal(nodes, 2 * v - 1);
    }
    assert_true(lki_tree_is_node(6, 4, 2));
    assert_false(lki_tree_is_node(6, 2, 4));
    assert_false(lki_tree_is_node(6, 1, 2));
}

static void merges_in_place(void **state)
{
    (void)state;
    fill_leaves(4);
    static float left[N];
    memcpy(left, leaf[0], sizeof left);
    lki_merge_f32(LK_F32, N, left, leaf[1]);
    for (size_t i = 0; i < N; i++)
        assert_true(left[i] == leaf[0][i] + leaf[1][i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_any_partition),
        cmocka_unit_test(rounds_every_node),
        cmocka_unit_test(sums_long_vectors),
        cmocka_unit_test(sums_any_cut_of_elements),
        cmocka_unit_test(swapping_operands_keeps_bits_and_regrouping_does_not),
        cmocka_unit_test(tree_nodes_are_recognised),
        cmocka_unit_test(merges_in_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

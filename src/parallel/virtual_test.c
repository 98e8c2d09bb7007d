/* virtual_test.c -- ranges cover V once, the merge counter leaves maximal nodes, and the peak
 * number of buffers is as planned. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/memory.h"
#include "device/reduce.h"
#include "parallel/virtual.h"

static void covers_every_virtual_worker_once(void **state)
{
    (void)state;
    for (uint32_t leaves = 1; leaves <= 40; leaves++)
        for (uint32_t ranks = 1; ranks <= leaves; ranks++) {
            uint32_t next = 0;
            for (uint32_t r = 0; r < ranks; r++) {
                lki_virtual_plan plan;
                lki_virtual_plan_make(&plan, leaves, ranks, r);
                assert_int_equal(plan.first, next);
                assert_in_range(plan.count, leaves / ranks, (leaves + ranks - 1) / ranks);
                for (uint32_t i = 0; i < plan.node_count; i++) {
                    assert_int_equal(plan.nodes[i].first, next);
                    assert_true(lki_tree_is_node(leaves, next, plan.nodes[i].count));
                    assert_true(plan.nodes[i].buffer < plan.buffers);
                    next += plan.nodes[i].count;
                }
                assert_int_equal(next, plan.first + plan.count);
            }
            assert_int_equal(next, leaves);
        }
}

static uint32_t peak(uint32_t leaves, uint32_t ranks)
{
    uint32_t most = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        lki_virtual_plan plan;
        lki_virtual_plan_make(&plan, leaves, ranks, r);
        most = plan.buffers > most ? plan.buffers : most;
    }
    return most;
}

static void buffer_counts_are_those_of_the_design(void **state)
{
    (void)state;
    assert_int_equal(peak(8, 3), 3);
    assert_int_equal(peak(32, 3), 6);
    assert_int_equal(peak(8, 8), 1);
    assert_int_equal(peak(8, 1), 4);  /* log2(8) + 1 */
    assert_int_equal(peak(64, 1), 7); /* log2(64) + 1 */
}

/* Expects that the buffer of a live sum is never assigned again. */
static void never_reuses_a_live_buffer(void **state)
{
    (void)state;
    for (uint32_t leaves = 1; leaves <= 33; leaves++) {
        lki_merge_counter counter;
        lki_counter_begin(&counter, leaves);
        for (uint32_t leaf = 0; leaf < leaves; leaf++) {
            uint32_t left, right, buffer = lki_counter_push(&counter, leaf);
            for (uint32_t i = 0; i + 1 < counter.depth; i++)
                assert_int_not_equal(counter.stack[i].buffer, buffer);
            while (lki_counter_merge(&counter, &left, &right))
                assert_int_not_equal(left, right);
        }
        assert_int_equal(counter.depth, 1);
        assert_int_equal(counter.stack[0].count, leaves);
    }
}

/* Compares the number of buffers with the plan, for both orders and any limit of a turn. */
static void assert_buffers_are_counted(uint32_t leaves, uint32_t first, uint32_t count)
{
    for (uint32_t joint = 0; joint <= 64; joint = joint < 5 ? joint + 1 : 2 * joint)
        for (int largest = 0; largest < 2; largest++) {
            lki_range_order  order = { .largest = largest != 0, .joint = joint };
            lki_virtual_plan plan;
            lki_virtual_plan_range(&plan, leaves, first, count, order);
            assert_int_equal(lki_virtual_buffers(leaves, first, count, order), plan.buffers);
        }
}

/* Plans ranges with the largest subtrees first.  Expects at most as many buffers as in ascending
 * order, and at most one more than the number of subtrees or of bits of the range's length. */
static void largest_subtrees_first_need_few_buffers(void **state)
{
    (void)state;
    for (uint32_t leaves = 1; leaves <= 40; leaves++)
        for (uint32_t first = 0; first < leaves; first++)
            for (uint32_t count = 1; first + count <= leaves; count++) {
                lki_virtual_plan plan, ascending;
                uint32_t         order[40], seen = 0, bits = 0;
                lki_virtual_plan_range(&ascending, leaves, first, count,
                                       (lki_range_order){ .largest = false });
                lki_virtual_plan_range(&plan, leaves, first, count,
                                       (lki_range_order){ .largest = true });
                for (uint32_t n = count; n > 0; n /= 2)
                    bits++;
                assert_true(plan.buffers <= ascending.buffers);
                assert_true(plan.buffers <= lki_max(bits, plan.node_count) + 1);
                assert_buffers_are_counted(leaves, first, count);
                assert_int_equal(plan.node_count, ascending.node_count);
                for (uint32_t i = 0; i < plan.node_count; i++) {
                    assert_int_equal(plan.nodes[i].first, ascending.nodes[i].first);
                    assert_int_equal(plan.nodes[i].count, ascending.nodes[i].count);
                    for (uint32_t k = 0; k < i; k++)
                        assert_int_not_equal(plan.nodes[i].buffer, plan.nodes[k].buffer);
                }
                lki_virtual_order(order, leaves, first, count);
                for (uint32_t i = 0; i < count; i++) {
                    assert_in_range(order[i], first, first + count - 1);
                    for (uint32_t k = 0; k < i; k++)
                        seen += order[k] == order[i];
                }
                assert_int_equal(seen, 0);
            }
}

/* Returns the maximum number of buffers that `ranks` ranks need for virtual workers from `first`
 * on. */
static uint32_t buffers_of_any_ranges(uint32_t leaves, uint32_t first, uint32_t ranks,
                                      lki_range_order order)
{
    uint32_t most = 0;
    if (ranks == 1)
        return lki_virtual_buffers(leaves, first, leaves - first, order);
    for (uint32_t count = 1; first + count + ranks - 1 <= leaves; count++)
        most = (uint32_t)lki_max(
            most, lki_virtual_buffers(leaves, first, count, order) +
                      buffers_of_any_ranges(leaves, first + count, ranks - 1, order));
    return most;
}

static void no_ranges_need_more_buffers_than_the_bound(void **state)
{
    (void)state;
    for (uint32_t leaves = 1; leaves <= 20; leaves++)
        for (uint32_t ranks = 1; ranks <= 4 && ranks <= leaves; ranks++)
            for (uint32_t joint = 1; joint <= 16; joint *= 2) {
                uint32_t bound = lki_virtual_buffers_most(leaves, ranks, joint);
                uint32_t most  = buffers_of_any_ranges(leaves, 0, ranks,
                                                       (lki_range_order){ .largest = true,
                                                                          .joint   = joint });
                assert_true(most <= bound);
            }
    assert_int_equal(lki_virtual_buffers_most(8, 2, 4), 4);
    assert_int_equal(lki_virtual_buffers_most(24, 2, 8), 6);
    assert_int_equal(lki_virtual_buffers_most(32, 2, 16), 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(covers_every_virtual_worker_once),
        cmocka_unit_test(buffer_counts_are_those_of_the_design),
        cmocka_unit_test(never_reuses_a_live_buffer),
        cmocka_unit_test(largest_subtrees_first_need_few_buffers),
        cmocka_unit_test(no_ranges_need_more_buffers_than_the_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* rounds_test.c -- tests of rounds.h.
 *
 * Rounds cover V once, and partial sums merge to the canonical tree.  No sum is written to a buffer
 * that another sum of the same round may still use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "device/reduce.h"
#include "parallel/rounds.h"

enum { LEAVES_MAX = 40 };

static void every_subtree_is_a_node_of_its_round(void **state)
{
    (void)state;
    for (uint32_t leaves = 1; leaves <= LEAVES_MAX; leaves++)
        for (uint32_t ranks = 1; ranks <= leaves; ranks++) {
            lki_round_plan plan;
            uint32_t       next = 0;
            assert_int_equal(lki_round_plan_init(&plan, leaves, ranks), LK_OK);
            for (uint32_t j = 0; j < plan.rounds; j++) {
                assert_int_equal(next, j * ranks);
                assert_true(plan.first[j + 1] - plan.first[j] <= plan.widest);
                for (uint32_t i = plan.first[j]; i < plan.first[j + 1]; i++) {
                    assert_int_equal(plan.subtrees[i].first, next);
                    assert_true(lki_tree_is_node(leaves, next, plan.subtrees[i].count));
                    assert_true(plan.subtrees[i].buffer < plan.buffers);
                    next += plan.subtrees[i].count;
                }
            }
            assert_int_equal(next, leaves);
            lki_round_plan_deinit(&plan);
        }
}

/* The virtual workers whose sum is in a buffer, as a range. */
typedef struct {
    uint32_t first, count;
} held;

/* Simulates a round in which all sums arrive before the first merge. */
static void play_round(const lki_round_plan *plan, uint32_t j, uint32_t leaves, held *buffers)
{
    uint64_t written = 0;
    for (uint32_t i = plan->first[j]; i < plan->first[j + 1]; i++) {
        const lki_subtree *s = &plan->subtrees[i];
        assert_int_equal(buffers[s->buffer].count, 0);
        assert_int_equal(written >> s->buffer & 1, 0);
        written |= UINT64_C(1) << s->buffer;
    }
    for (uint32_t i = plan->first[j]; i < plan->first[j + 1]; i++) {
        const lki_subtree *s = &plan->subtrees[i];
        buffers[s->buffer]   = (held){ s->first, s->count };
        for (uint32_t m = s->merge; m < s->merge + s->merges; m++) {
            held *left = &buffers[plan->merges[m].left], *right = &buffers[plan->merges[m].right];
            assert_int_equal(left->first + left->count, right->first);
            *right = (held){ left->first, left->count + right->count };
            assert_int_equal(lki_tree_left(right->count), left->count);
            assert_true(lki_tree_is_node(leaves, right->first, right->count));
            left->count = 0;
        }
    }
}

static void partial_sums_merge_to_the_tree(void **state)
{
    (void)state;
    for (uint32_t leaves = 1; leaves <= LEAVES_MAX; leaves++)
        for (uint32_t ranks = 1; ranks <= leaves; ranks++) {
            held           buffers[64] = { 0 };
            lki_round_plan plan;
            assert_int_equal(lki_round_plan_init(&plan, leaves, ranks), LK_OK);
            for (uint32_t j = 0; j < plan.rounds; j++)
                play_round(&plan, j, leaves, buffers);
            assert_int_equal(buffers[plan.last].first, 0);
            assert_int_equal(buffers[plan.last].count, leaves);
            lki_round_plan_deinit(&plan);
        }
}

static uint32_t partials(uint32_t leaves, uint32_t ranks)
{
    lki_round_plan plan;
    assert_int_equal(lki_round_plan_init(&plan, leaves, ranks), LK_OK);
    uint32_t buffers = plan.buffers;
    lki_round_plan_deinit(&plan);
    return buffers;
}

static void few_partial_sums_are_needed(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 32; n *= 2)
        assert_int_equal(partials(n, n), 1);
    assert_int_equal(partials(16, 8), 2);
    assert_int_equal(partials(32, 8), 3);
    assert_int_equal(partials(8, 1), 4); /* log2(8) + 1 */
    assert_int_equal(partials(8, 3), 4);
}

static void shares_cover_every_virtual_worker_once(void **state)
{
    (void)state;
    for (uint32_t leaves = 1; leaves <= LEAVES_MAX; leaves++)
        for (uint32_t ranks = 1; ranks <= leaves; ranks++)
            for (int rounds = 0; rounds < 2; rounds++) {
                lki_dealing dealing = { leaves, ranks, .rounds = rounds == 1 };
                uint32_t    place   = 0;
                for (uint32_t r = 0; r < ranks; r++) {
                    lki_share share = lki_share_of(&dealing, r);
                    for (uint32_t i = 0; i < share.count; i++) {
                        uint32_t leaf = share.first + i * share.stride;
                        assert_true(leaf < leaves);
                        assert_int_equal(lki_share_rank(&dealing, leaf), r);
                        assert_int_equal(lki_share_place(&dealing, leaf), place++);
                    }
                }
                assert_int_equal(place, leaves);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_subtree_is_a_node_of_its_round),
        cmocka_unit_test(partial_sums_merge_to_the_tree),
        cmocka_unit_test(few_partial_sums_are_needed),
        cmocka_unit_test(shares_cover_every_virtual_worker_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

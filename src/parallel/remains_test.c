/* remains_test.c -- plans after a loss contain every virtual worker exactly once.
 *
 * Goal:   for any tags, ranks find plans that fit.  Every virtual worker is held or computed by one
 *         rank, in separate buffers, in no more nodes than can be sent.  Tagged sums are used.  A
 *         plan is found whenever one fits.
 * Method: the tree is cut at random for random numbers of ranks, and some nodes are lost.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "device/reduce.h"
#include "parallel/remains.h"

enum { LEAVES_MAX = 64, RANKS_MAX = 8, BUFFERS_MAX = 96, STEP = 7, ROUNDS = 3000 };

typedef struct {
    uint64_t seed;
    uint32_t leaves, ranks, buffers, used;
    lki_tag  tags[BUFFERS_MAX];
    uint32_t covered;
} scene;

static uint32_t below(scene *s, uint32_t limit)
{
    s->seed = lki_xxh3(&s->seed, sizeof s->seed);
    return (uint32_t)(s->seed >> 20) % limit;
}

/* Tags some nodes in [first, first + count), and some nodes inside those. */
static void cut(scene *s, uint32_t first, uint32_t count, bool inside)
{
    bool kept = below(s, 4) == 0 && s->used < s->buffers;
    if (kept) {
        uint64_t step = below(s, 8) == 0 ? STEP - 1 : STEP; /* tags of old steps do not count */
        lki_tag_put_on(&s->tags[s->used++], step, first, count);
        s->covered += step == STEP && !inside ? count : 0;
        inside |= step == STEP;
    }
    if (count == 1)
        return;
    uint32_t left = lki_tree_left(count);
    cut(s, first, left, inside);
    cut(s, first + left, count - left, inside);
}

static void mark(uint8_t *marks, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++) {
        assert_int_equal(marks[i], 0);
        marks[i] = 1;
    }
}

static void check_rank(const scene *s, const lki_remains *plan, uint8_t *leaves, uint8_t *buffers)
{
    lki_merge_counter counter;
    assert_true(lki_counter_walk(&counter, s->leaves, plan->leaves, plan->count));
    assert_true(counter.depth + plan->held_count <= LK_TREE_NODES_MAX);
    for (uint32_t i = 0; i < plan->held_count; i++) {
        mark(leaves, plan->held[i].first, plan->held[i].count);
        mark(buffers, plan->held[i].buffer, 1);
    }
    for (uint32_t i = 0; i < plan->count; i++)
        mark(leaves, plan->leaves[i], 1);
    for (uint32_t i = 0; i < counter.used; i++)
        mark(buffers, plan->places[i], 1);
}

/* Checks a scene, and returns true if it has a plan. */
static bool check_scene(const scene *s)
{
    uint8_t  leaves[LEAVES_MAX] = { 0 }, buffers[BUFFERS_MAX] = { 0 };
    uint32_t plans = 0;
    for (uint32_t r = 0; r < s->ranks; r++) {
        lki_remains plan;
        assert_int_equal(lki_remains_find(&plan, s->tags, s->buffers, STEP + 1, s->leaves,
                                          s->ranks, r), LK_OK);
        assert_int_equal(plan.unfinished, s->leaves - s->covered);
        plans += plan.there;
        if (!plan.there)
            assert_int_equal(plan.held_count, 0);
        if (plan.there)
            check_rank(s, &plan, leaves, buffers);
        lki_remains_deinit(&plan);
    }
    assert_true(plans == 0 || plans == s->ranks);
    for (uint32_t i = 0; i < s->leaves && plans > 0; i++)
        assert_int_equal(leaves[i], 1);
    return plans > 0;
}

static void a_plan_has_every_virtual_worker_once(void **state)
{
    uint32_t plans = 0;
    (void)state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        static scene s;
        (void)memset(&s, 0, sizeof s);
        s.seed    = round;
        s.ranks   = 1 + below(&s, RANKS_MAX);
        s.leaves  = s.ranks + below(&s, LEAVES_MAX - RANKS_MAX);
        s.buffers = s.leaves + below(&s, BUFFERS_MAX - LEAVES_MAX);
        cut(&s, 0, s.leaves, false);
        plans += check_scene(&s);
    }
    assert_true(plans > ROUNDS / 2);
}

/* Plans with V = 8 on two ranks, after the second is lost in its third virtual worker. */
static void a_plan_fits_into_few_buffers(void **state)
{
    lki_tag     tags[6] = { 0 };
    lki_remains plan;
    (void)state;
    lki_tag_put_on(&tags[0], STEP, 0, 2);
    lki_tag_put_on(&tags[1], STEP, 2, 1);
    lki_tag_put_on(&tags[2], STEP, 3, 1);
    lki_tag_put_on(&tags[3], STEP, 4, 2);
    assert_int_equal(lki_remains_find(&plan, tags, 6, STEP + 1, 8, 1, 0), LK_OK);
    assert_true(plan.there);
    assert_int_equal(plan.count, 2);
    assert_int_equal(plan.unfinished, 2);
    assert_int_equal(plan.leaves[0], 6);
    assert_int_equal(plan.held_count, 2); /* [0, 4) and [4, 6) */
    assert_int_equal(plan.merge_count, 2);
    assert_int_equal(plan.merges[0].node.buffer, 2);
    assert_int_equal(plan.merges[0].left, 1);
    assert_int_equal(plan.merges[1].node.count, 4);
    lki_remains_deinit(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_has_every_virtual_worker_once),
        cmocka_unit_test(a_plan_fits_into_few_buffers),
    };
    return cmocka_run_group_tests_name("parallel.recover.remains", tests, NULL, NULL);
}

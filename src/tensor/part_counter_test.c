/* part_counter_test.c -- merges follow the canonical tree, in the slots that are counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "device/reduce.h"
#include "tensor/ops.h"
#include "tensor/part_counter.h"

/* The sum over parts [first, first + count). */
typedef struct {
    uint32_t first, count;
} sum;

static void merges_follow_the_tree(void **state)
{
    (void)state;
    for (uint32_t count = 1; count <= LKI_PARTS_MAX; count *= 2) {
        sum      slots[16];
        uint32_t used = 0, merges = 0;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t slot = lki_part_slot(i);
            assert_int_equal(slot, used);
            assert_true(slot < lki_part_slots(count));
            slots[used++] = (sum){ i, 1 };
            for (uint32_t k = 0; k < lki_part_merges(i); k++, slot--) {
                sum *left = &slots[slot - 1], *right = &slots[slot];
                assert_int_equal(slot, --used);
                assert_int_equal(left->first + left->count, right->first);
                assert_int_equal(lki_tree_left(left->count + right->count), left->count);
                assert_true(lki_tree_is_node(count, left->first, left->count + right->count));
                left->count += right->count;
                merges++;
            }
        }
        assert_int_equal(used, 1);
        assert_int_equal(slots[0].count, count);
        assert_int_equal(merges, count - 1);
    }
}

/* Counts the slots that are in use at the same time, which must be all. */
static void no_slot_is_unused(void **state)
{
    (void)state;
    for (uint32_t count = 1; count <= LKI_PARTS_MAX; count *= 2) {
        uint32_t most = 0;
        for (uint32_t i = 0; i < count; i++)
            most = lki_part_slot(i) >= most ? lki_part_slot(i) + 1 : most;
        assert_int_equal(most, lki_part_slots(count));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_follow_the_tree),
        cmocka_unit_test(no_slot_is_unused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

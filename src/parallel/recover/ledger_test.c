/* ledger_test.c -- ranks are lost at any moment, and no bit of the result changes.
 *
 * Goal:   a rank ends at any moment of a step, and a second rank during the recovery.  Every slice
 *         of the parameters, of the optimizer's state and of running state is updated exactly once.
 * Method: the loss is tried at moments all through two steps (losses_testing.h).  See hosts_test.c
 *         for several hosts.
 */
#include "parallel/recover/losses_testing.h"

static void a_rank_may_be_lost_at_any_moment_of_a_step(void **state)
{
    (void)state;
    lose_all_through(plot_of(adamw, "ddp", 3, 0, 0), 5);
    lose_all_through(plot_of(adamw, "ddp", 3, 0, 2), 19);
    lose_all_through(plot_of(sgd, "zero1", 2, 0.2, 1), 17);
    lose_all_through(plot_of(adamw, "zero2", 3, 0, 1), 9);
    lose_all_through(plot_of(lamb, "zero3", 2, 0, 0), 19);
    lose_all_through(plot_of(lamb, "ddp", 4, 0, 2), 13);
    lose_all_through(plot_of(lars, "ddp", 3, 0, 0), 19);
    lose_all_through(plot_of(still, "ddp", 3, 0, 1), 17);
    lose_all_through(plot_of(still, "zero2", 2, 0.2, 0), 23);
}

static void a_second_rank_may_be_lost_during_recovery(void **state)
{
    (void)state;
    lose_two(plot_of(lamb, "ddp", 4, 0, 0), 1);
}

/* Checks that only unfinished virtual workers are computed again.  In the first step no rank waits
 * before its gradients are computed, so the survivors have their gradients whenever a rank is lost.
 * A virtual worker is complete before its turn ends.  An interrupted sum loses only the last of its
 * inputs. */
static void only_unfinished_virtual_workers_are_computed_again(void **state)
{
    plot     p    = plot_of(adamw, "ddp", 2, 0, 1);
    uint64_t want = undisturbed(&p);
    uint32_t none = 0, some = 0;
    (void)state;
    for (long at = 1;; at += stride()) {
        p.victims[0].at = at;
        assert_true(play(&p) == want);
        uint32_t made = p.lost;
        if (p.complete > 0)
            break;
        if (p.unfinished + 1 < made || p.unfinished > made)
            fail_msg("moment %ld: %u virtual workers were unfinished, and %u are to be made", at,
                     made, p.unfinished);
        none += p.unfinished == 0;
        some += p.unfinished > 0;
    }
    assert_true(none > 0 && some > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_may_be_lost_at_any_moment_of_a_step),
        cmocka_unit_test(a_second_rank_may_be_lost_during_recovery),
        cmocka_unit_test(only_unfinished_virtual_workers_are_computed_again),
    };
    return cmocka_run_group_tests_name("parallel.recover.ledger", tests, NULL, NULL);
}

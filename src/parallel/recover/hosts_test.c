/* hosts_test.c -- ranks of several hosts are lost at any moment, and no bit of the result changes.
 *
 * Goal:   one or several ranks of a host end at any moment of a step.  A shard that only one host
 *         stores is updated, sent and gathered by the host's survivors.  Hosts at different
 *         positions of the step agree on one position.
 * Method: as ledger_test.c, over simulated hosts.
 */
#include "base/thorough_testing.h"
#include "parallel/recover/losses_testing.h"

/* Loses ranks of hosts with equal and with unequal numbers of ranks.  The loss of the only rank of
 * a host is the loss of the host, including rank 0's host.  Some moments are between the marks of
 * two hosts. */
static void ranks_of_several_hosts_may_be_lost(void **state)
{
    const long every = LKI_SANITIZED ? 8 : 1;
    (void)state;
    lose_all_through(over(2, plot_of(sgd, "ddp", 4, 0.2, 1)), every);
    lose_all_through(over(2, plot_of(adamw, "ddp", 3, 0, 2)), 11 * every);
    lose_all_through(over(2, plot_of(lamb, "ddp", 2, 0, 0)), 11 * every);
    lose_all_through(over(3, plot_of(lars, "ddp", 5, 0, 0)), 31 * every);
    lose_all_through(over(2, plot_of(lamb, "zero1", 4, 0, 1)), 3 * every);
    lose_all_through(over(2, plot_of(adamw, "zero1", 5, 0.2, 4)), 7 * every);
    lose_all_through(over(2, plot_of(sgd, "zero1", 4, 0, 2)), 7 * every);
    lose_all_through(read_as(LK_BF16, over(2, plot_of(adamw, "zero1", 4, 0, 2))), every);
    lose_all_through(over(2, plot_of(adamw, "zero2", 4, 0, 1)), 5 * every);
    lose_all_through(over(2, plot_of(lamb, "zero2", 5, 0, 4)), 9 * every);
    lose_all_through(over(2, plot_of(still, "zero1", 4, 0, 2)), 11 * every);
    lose_all_through(over(2, plot_of(still, "zero3", 4, 0, 1)), 13 * every);
}

/* Loses ranks while parameters are gathered.  The survivors of a host send its shard. */
static void ranks_may_be_lost_while_parameters_are_gathered(void **state)
{
    const long every = LKI_SANITIZED ? 8 : 1;
    (void)state;
    lose_all_through(over(2, plot_of(adamw, "zero3", 4, 0.2, 3)), 5 * every);
    lose_all_through(over(2, plot_of(lamb, "zero3", 5, 0, 0)), 9 * every);
    lose_all_through(read_as(LK_I8, over(2, plot_of(sgd, "zero3", 5, 0, 4))), 13 * every);
    lose_all_through(read_as(LK_BF16, over(2, plot_of(sgd, "zero3", 4, 0, 0))), 13 * every);
    lose_all_through(in_groups_of(2, over(4, plot_of(adamw, "hybrid", 8, 0, 2))), 13 * every);
    lose_all_through(in_groups_of(1, over(2, plot_of(adamw, "hybrid", 4, 0, 0))), 19 * every);
}

/* Loses all but one rank of each of the hosts 0 1 | 2 3 4.  Fewer ranks survive than one host
 * had. */
static void lose_all_but_one_of_each_host(plot p)
{
    const uint32_t ranks[VICTIMS] = { 1, 3, 4 };
    p.one_bucket                  = true;
    uint64_t       want           = undisturbed(&p);
    for (long at = 5; at < 60; at += lki_brief() ? 27 : 9) {
        for (int i = 0; i < VICTIMS; i++) {
            p.victims[i].rank = ranks[i];
            p.victims[i].at   = at + i * (at % 4 * 5);
        }
        if (play(&p) != want)
            fail_msg("ranks 1, 3 and 4 lost from moment %ld on", at);
    }
}

/* Loses a whole host, whose state its buddy or the other group has. */
static void a_host_with_replicas_may_be_lost(void **state)
{
    const long every = LKI_SANITIZED ? 8 : 1;
    (void)state;
    lose_all_through(with_buddies(over(2, plot_of(lamb, "zero1", 2, 0, 0))), 3 * every);
    lose_all_through(with_buddies(over(3, plot_of(adamw, "zero1", 3, 0.2, 2))), 5 * every);
    lose_all_through(with_buddies(over(3, plot_of(lamb, "zero2", 3, 0, 1))), 5 * every);
    lose_all_through(with_buddies(over(2, plot_of(sgd, "zero3", 2, 0, 1))), 5 * every);
    lose_all_through(with_buddies(over(4, plot_of(adamw, "zero3", 4, 0, 0))), 7 * every);
    lose_all_through(read_as(LK_I8, with_buddies(over(2, plot_of(sgd, "zero3", 3, 0, 0)))),
                     13 * every);
    lose_all_through(in_groups_of(2, over(4, plot_of(lamb, "hybrid", 4, 0, 2))), 7 * every);
}

/* Loses a host whose blocks read bf16.  The buddy has the lost host's shard in FP32, and all hosts
 * have the bf16 values. */
static void a_host_that_reads_bf16_may_be_lost(void **state)
{
    const long every = LKI_SANITIZED ? 8 : 1;
    (void)state;
    lose_all_through(read_as(LK_BF16, with_buddies(over(2, plot_of(adamw, "zero1", 2, 0, 0)))),
                     3 * every);
    lose_all_through(read_as(LK_BF16, with_buddies(over(3, plot_of(lamb, "zero2", 4, 0, 1)))),
                     7 * every);
    lose_all_through(read_as(LK_BF16, with_buddies(over(2, plot_of(sgd, "zero3", 3, 0, 0)))),
                     13 * every);
}

/* Loses hosts one after another, or two at a time, of different pairs and of different groups. */
static void lose_hosts(plot p, uint32_t first, uint32_t second, uint32_t third)
{
    const uint32_t ranks[VICTIMS] = { first, second, third };
    uint64_t       want           = undisturbed(&p);
    for (long at = 3; at < 60; at += lki_brief() ? 38 : LKI_SANITIZED ? 19 : 5) {
        for (int i = 0; i < VICTIMS; i++) {
            p.victims[i].rank = ranks[i];
            p.victims[i].at   = i > 0 && ranks[i] == ranks[i - 1] ? NEVER : at + i * (at % 4 * 5);
        }
        if (play(&p) != want)
            fail_msg("%s, %s: ranks %u, %u and %u lost from moment %ld on", p.strategy,
                     lk_optimizer_name(p.optimizer.kind), first, second, third, at);
    }
}

static void hosts_may_be_lost_one_after_another(void **state)
{
    (void)state;
    lose_hosts(with_buddies(over(4, plot_of(lamb, "zero1", 4, 0, 0))), 0, 3, 3);
    lose_hosts(with_buddies(over(4, plot_of(adamw, "zero2", 4, 0, 0))), 1, 2, 2);
    lose_hosts(with_buddies(over(2, plot_of(adamw, "zero3", 4, 0, 0))), 2, 3, 3);
    lose_hosts(with_buddies(over(5, plot_of(lamb, "zero3", 5, 0, 0))), 0, 4, 2);
    lose_hosts(read_as(LK_BF16, with_buddies(over(5, plot_of(lamb, "zero1", 5, 0, 0)))), 0, 4, 2);
    lose_hosts(in_groups_of(2, over(4, plot_of(adamw, "hybrid", 4, 0, 0))), 0, 3, 3);
    lose_hosts(in_groups_of(2, over(4, plot_of(adamw, "hybrid", 4, 0, 0))), 0, 1, 1);
}

static void several_ranks_may_be_lost_at_once(void **state)
{
    (void)state;
    lose_two(over(2, plot_of(lamb, "ddp", 4, 0, 0)), 2);
    lose_all_but_one_of_each_host(over(2, plot_of(adamw, "zero1", 5, 0, 0)));
    lose_all_but_one_of_each_host(over(2, plot_of(lamb, "zero3", 5, 0, 0)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_several_hosts_may_be_lost),
        cmocka_unit_test(ranks_may_be_lost_while_parameters_are_gathered),
        cmocka_unit_test(a_host_with_replicas_may_be_lost),
        cmocka_unit_test(a_host_that_reads_bf16_may_be_lost),
        cmocka_unit_test(hosts_may_be_lost_one_after_another),
        cmocka_unit_test(several_ranks_may_be_lost_at_once),
    };
    return cmocka_run_group_tests_name("parallel.recover.hosts", tests, NULL, NULL);
}

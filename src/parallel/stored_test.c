/* stored_test.c -- where the vectors of groups are after losses.
 *
 * Goal:   a rank that entered a host has the memory of the host, also for a rank that did not
 *         finish entering with it.  So a host is left if only such a rank is left.
 * Method: ranks 1 to 3 of two hosts open a model with groups; ranks 0, 2 and 3 are the next group,
 *         as if rank 0 had entered and rank 1 were lost then.
 * Control: without ranks of host 0 the groups that it keeps are lost.
 */
#include "parallel/crew_testing.h"
#include "parallel/stored.h"

static const lk_param model[LKT_PARAMS] = {
    { .name = "a", .shape = { 2, { 50, 90 } }, .init = LK_INIT_UNIFORM, .scale = 0.1f },
    { .name = "b", .shape = { 1, { 33 } }, .init = LK_INIT_ONE },
    { .name = "c", .shape = { 3, { 6, 5, 7 } }, .init = LK_INIT_UNIFORM, .scale = 0.2f },
};

/* Checks what ranks 1 to 3 say of the next group. */
static bool look(lk_comm *comm, lk_comm *before, lk_comm *next, lk_comm *second, void *options)
{
    lk_parallel *p;
    uint32_t     group = 9;
    bool         good = true;
    CHECK(lk_parallel_open(&p, before, model, LKT_PARAMS, options) == LK_OK);
    if (lk_comm_rank(comm) > 1) /* a member of all three */
        good = lki_stored_host(p, next, 0) == 0 && lki_stored_host(p, next, 2) == 1 &&
               lki_stored_groups(p, next, &group) && !lki_stored_groups(p, second, &group) &&
               group == 0;
    lk_parallel_free(p);
    return good;
}

/* Simulated hosts do not number their nodes.  One rank of each host does it for both, when no rank
 * reads their board. */
static bool number_nodes(lk_comm *comm)
{
    CHECK(lk_barrier(comm) == LK_OK);
    for (uint32_t r = 0; r < 4 && lk_comm_rank(comm) % 2 == 0; r++)
        comm->board->ranks[r].node = r / 2;
    return lk_barrier(comm) == LK_OK;
}

static bool split(lk_comm *comm, void *options)
{
    static const uint32_t ranks[] = { 1, 2, 3 }, left[] = { 0, 2, 3 };
    lk_comm              *before, *next, *second;
    CHECK(number_nodes(comm));
    CHECK(lk_comm_subset(&before, comm, ranks, 3) == LK_OK);
    CHECK(lk_comm_subset(&next, comm, left, 3) == LK_OK);
    CHECK(lk_comm_subset(&second, comm, left + 1, 2) == LK_OK);
    bool good = before == NULL || look(comm, before, next, second, options);
    CHECK(lk_barrier(comm) == LK_OK);
    lk_comm_free(before);
    lk_comm_free(next);
    lk_comm_free(second);
    return good;
}

static void a_rank_that_entered_has_its_host(void **state)
{
    lkt_crew    w        = lkt_make_crew(model, "ddp", 8, 4);
    lk_exchange exchange = LK_EXCHANGE_INIT;
    (void)state;
    exchange.groups    = 4;
    w.options.exchange = &exchange;
    w.options.survives = true;
    w.options.unused   = LK_UNUSED_ZERO;
    assert_int_equal(lk_compressor_find(&exchange.compressor, "sign"), LK_OK);
    assert_true(hosted_all((hosted){ .hosts = 2, .each = 2 }, split, &w.options));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_rank_that_entered_has_its_host) };
    return cmocka_run_group_tests_name("parallel.stored", tests, NULL, NULL);
}

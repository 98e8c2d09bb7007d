/* groups_test.c -- tests launchers whose job continues without lost ranks.
 *
 * Goal:   all nodes receive the same sequence of groups.  No node waits for a node that can no
 *         longer report.  No node decides about the ranks of another node.  The outcome of the job
 *         is that of the nodes in the last group.
 * Method: nodes_testing.h.  Node 0 has rank 0, node 1 has ranks 1 and 2, node 2 has ranks 3 to
 * 5.
 */
#include "launch/rendezvous/nodes_testing.h"

static job j;

static lki_members members_of(uint32_t bits)
{
    lki_members members = { { bits } };
    return members;
}

static void meet_and_survive(uint32_t nodes)
{
    begin(&j);
    for (uint32_t i = 0; i < nodes; i++) {
        lki_rendezvous_options options = plain(&j, nodes, (int32_t)i);
        options.goes_on                = true;
        (void)add(&j, options);
    }
    await_all(&j, LKI_EVENT_MET);
}

static void forget_events(void)
{
    for (uint32_t i = 0; i < j.count; i++)
        j.nodes[i].count = 0;
}

/* Reports the survivors of node `at`, the ranks in the mask `bits`.  The node refuses entrants. */
static void say(uint32_t at, uint64_t epoch, uint32_t bits)
{
    lki_members members = members_of(bits);
    lki_rendezvous_go_on(j.nodes[at].r, epoch, &members, NULL);
}

/* Reports the survivors (`bits`) and the entrants of node `at`, as masks of ranks.  The node
 * accepts entrants. */
static void admit(uint32_t at, uint64_t epoch, uint32_t bits, uint32_t entrants)
{
    lki_members members = members_of(bits), more = members_of(entrants);
    lki_rendezvous_go_on(j.nodes[at].r, epoch, &members, &more);
}

static void assert_group(uint32_t at, uint64_t epoch, uint32_t bits)
{
    const lki_event *event = await(&j, &j.nodes[at], LKI_EVENT_GROUP);
    lki_members      want  = members_of(bits);

    assert_int_equal(event->epoch, epoch);
    assert_memory_equal(&event->members, &want, sizeof want);
}

static void assert_no_group(void)
{
    move_for(&j, 50);
    for (uint32_t i = 0; i < j.count; i++)
        assert_null(find(&j.nodes[i], LKI_EVENT_GROUP));
}

static void finish(uint32_t at, uint32_t weight)
{
    lki_outcome outcome = { .weight = weight, .failed = weight > 0, .exit_code = (int32_t)weight };
    lki_rendezvous_finish(j.nodes[at].r, &outcome);
}

static void assert_outcome(uint32_t at, int32_t exit_code)
{
    assert_int_equal(await(&j, &j.nodes[at], LKI_EVENT_OVER)->outcome.exit_code, exit_code);
}

/* ---- Tests ------------------------------------------------------------------------------- */

static void one_group_follows_another(void **state)
{
    (void)state;
    meet_and_survive(3);
    lki_rendezvous_asked(j.nodes[1].r, 0, 700);
    for (uint32_t i = 0; i < 3; i += 2) {
        const lki_event *event = await(&j, &j.nodes[i], LKI_EVENT_ASKED);
        assert_int_equal(event->epoch, 0);
        assert_int_equal(event->timeout_ms, 700);
    }
    say(1, 0, 4);
    say(0, 0, 1);
    assert_no_group();
    say(2, 0, 32 | 8);
    for (uint32_t i = 0; i < 3; i++)
        assert_group(i, 1, 1 | 4 | 8 | 32);
    for (uint32_t i = 0; i < 3; i++) {
        introduce(&j.nodes[i]);
        if (i < 2) /* no event arrives before all have reported */
            move_for(&j, 20);
        assert_null(find(&j.nodes[0], LKI_EVENT_KNOWN));
    }
    await_all(&j, LKI_EVENT_KNOWN);
    forget_events();
    say(1, 1, 0);
    say(2, 1, 8);
    say(2, 0, 32); /* ignored, because that epoch is over */
    assert_no_group();
    say(0, 1, 1);
    for (uint32_t i = 0; i < 3; i++)
        assert_group(i, 2, 1 | 8);
    introduce(&j.nodes[2]); /* node 1 has no workers to introduce */
    introduce(&j.nodes[0]);
    await_all(&j, LKI_EVENT_KNOWN);
    forget_events();
    say(0, 2, 1);
    assert_no_group();
    say(2, 2, 16);
    assert_group(1, 3, 1 | 16);
    forget_events();
    lki_rendezvous_close(j.nodes[1].r, NULL); /* node 1 left the group long ago */
    j.nodes[1].r = NULL;
    while (j.nodes[0].r->server->seats[1].guest >= 0)
        move(&j);
    say(0, 3, 1);
    say(2, 3, 16);
    assert_group(2, 4, 1 | 16);
    assert_null(find(&j.nodes[0], LKI_EVENT_VERDICT));
    end(&j);
}

static void finished_and_lost_nodes_are_not_awaited(void **state)
{
    (void)state;
    for (int lost = 0; lost < 2; lost++) {
        meet_and_survive(3);
        say(0, 0, 1);
        say(1, 0, 2 | 4); /* node 1 finishes after its report */
        finish(1, 7);
        assert_no_group();
        if (lost) {
            lki_rendezvous_close(j.nodes[2].r, NULL);
            j.nodes[2].r = NULL;
            assert_verdict(&j, 0, 3, "host h2 (node 2, ranks 3 to 5) is lost");
        } else {
            finish(2, 9);
        }
        assert_group(0, 1, 1);
        assert_group(1, 1, 1);
        finish(0, 0);
        assert_outcome(0, 0);
        assert_outcome(1, 0);
        end(&j);
    }
}

/* Checks that entrants need the consent of all nodes, and a survivor on their host, which has their
 * data. */
static void entrants_need_the_consent_of_all(void **state)
{
    (void)state;
    meet_and_survive(3);
    admit(0, 0, 1, 0);
    admit(1, 0, 2, 4);
    say(2, 0, 8);
    for (uint32_t i = 0; i < 3; i++)
        assert_group(i, 1, 1 | 2 | 8);
    forget_events();
    admit(0, 1, 1, 0);
    admit(1, 1, 2, 4);
    admit(2, 1, 8, 16 | 32);
    for (uint32_t i = 0; i < 3; i++)
        assert_group(i, 2, 63);
    forget_events();
    admit(0, 2, 1, 0);
    admit(1, 2, 0, 2);
    admit(2, 2, 16, 8);
    assert_group(0, 3, 1 | 8 | 16);
    end(&j);
}

static void no_group_forms_without_survivors(void **state)
{
    (void)state;
    meet_and_survive(2);
    say(0, 0, 1);
    finish(0, 5);
    say(1, 0, 0);
    assert_no_group();
    finish(1, 3);
    assert_outcome(0, 5);
    assert_outcome(1, 5);
    assert_no_group();
    end(&j);
}

static void a_node_reports_only_its_own_ranks(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        meet_and_survive(3);
        if (how < 2)
            say(1, how == 0 ? 0 : 4, how == 0 ? 2 | 8 : 2);
        else
            admit(1, 0, 2, 8);
        assert_verdict(&j, 0, 1, "host h1 (node 1, ranks 1 to 2) is lost: its launcher said "
                       "who continues, which is not its to say");
        say(0, 0, 1);
        say(2, 0, 8);
        assert_group(2, 1, 1 | 8);
        end(&j);
    }
}

/* ---- Leaving ----------------------------------------------------------------------------- */

/* Closes node 1's connection.  Then waits until node 0 has noticed, and checks that node 1 counts
 * as finished, and not as lost. */
static void assert_node_1_has_finished(void)
{
    lki_rendezvous_close(j.nodes[1].r, NULL);
    j.nodes[1].r     = NULL;
    j.nodes[0].hangs = false;
    while (j.nodes[0].r->server->seats[1].guest >= 0)
        move(&j);
    move_for(&j, 20);
    assert_int_equal(j.nodes[0].r->server->seats[1].outcome.weight, 7);
    assert_null(find(&j.nodes[0], LKI_EVENT_VERDICT));
    assert_null(find(&j.nodes[2], LKI_EVENT_VERDICT));
    end(&j);
}

/* Lets node 0 send to node 1 before it reads node 1's outcome.  The first letter makes the kernel
 * reset the connection, and the second letter cannot be sent. */
static void the_outcome_of_a_closed_connection_is_read(void **state)
{
    (void)state;
    meet_and_survive(3);
    j.nodes[0].hangs = true;
    lki_rendezvous_stop(j.nodes[0].r, SIGTERM, false);
    lki_rendezvous_stop(j.nodes[0].r, SIGTERM, true);
    finish(1, 7);
    assert_node_1_has_finished();
}

/* Lets node 0 read node 1's report, its outcome and the end of the connection together.  The report
 * makes node 0 send the next group to all, including node 1. */
static void all_letters_before_the_end_are_read(void **state)
{
    (void)state;
    meet_and_survive(3);
    say(0, 0, 1);
    say(2, 0, 8);
    assert_no_group();
    j.nodes[0].hangs = true;
    say(1, 0, 2);
    finish(1, 7);
    assert_node_1_has_finished();
}

/* Checks that a node that leaves keeps its connection until node 0 has read all reports.  Checks
 * that the node does not report a loss when node 0 closes the connection. */
static void a_node_that_leaves_is_read_first(void **state)
{
    (void)state;
    meet_and_survive(3);
    j.nodes[0].hangs = true;
    finish(1, 7);
    lki_rendezvous_leave(j.nodes[1].r);
    move(&j);
    assert_true(lki_line_is_open(&j.nodes[1].r->line));
    j.nodes[0].hangs = false;
    while (lki_line_is_open(&j.nodes[1].r->line))
        move(&j);
    assert_true(lki_rendezvous_has_left(j.nodes[1].r));
    assert_false(lki_rendezvous_lost(j.nodes[1].r));
    assert_int_equal(j.nodes[1].count, 1); /* the only event is LKI_EVENT_MET */
    assert_node_1_has_finished();
}

static void nodes_must_agree_on_failure_handling(void **state)
{
    (void)state;
    begin(&j);
    lki_rendezvous_options options = plain(&j, 2, 0);
    options.goes_on                = true;
    (void)add(&j, options);
    await_error(&j, add(&j, plain(&j, 2, 1)), LK_EINVAL, "host h1 says that the job ends after a "
                "failure, node 0 that it continues: all nodes need the same `on_failure`");
    end(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_group_follows_another),          TEST(finished_and_lost_nodes_are_not_awaited),
        TEST(entrants_need_the_consent_of_all),
        TEST(no_group_forms_without_survivors), TEST(a_node_reports_only_its_own_ranks),
        TEST(the_outcome_of_a_closed_connection_is_read),
        TEST(all_letters_before_the_end_are_read), TEST(a_node_that_leaves_is_read_first),
        TEST(nodes_must_agree_on_failure_handling),
    };
    const struct CMUnitTest secured[] = {
        TEST(the_outcome_of_a_closed_connection_is_read),
        TEST(all_letters_before_the_end_are_read), TEST(a_node_that_leaves_is_read_first),
    };
    int failed = cmocka_run_group_tests_name("launch.rendezvous.groups", tests, without_key, NULL);
    failed += cmocka_run_group_tests_name("launch.rendezvous.groups, TLS", secured, with_key, NULL);
    return failed;
}

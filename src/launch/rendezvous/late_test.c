/* late_test.c -- tests a late host, which replaces a lost host or a host that was absent when the
 * job began.
 *
 * Goal:   the host's launcher waits until a node number is free.  The host is in no group before
 *         its ranks are ready and all nodes accept it.  Until then its loss is not a failure.  An
 *         unsuitable host is refused with the reason, and disturbs no other node.
 * Method: nodes_testing.h.  Node 0 has rank 0, node 1 has ranks 1 and 2, node 2 has ranks 3 to
 * 5.
 */
#include "base/memory.h"
#include "launch/rendezvous/inside.h"
#include "launch/rendezvous/nodes_testing.h"

static job j;

static const char *const settings[] = { "--lr 0.05", "--seed 3", NULL };
static const char *const others[]   = { "--seed 3", "--lr 0.06", NULL };
static const char *const more[]     = { "--lr 0.05", "--seed 3", "--ema 0.9", NULL };

static lki_rendezvous_options going_on(uint32_t nodes, int32_t number)
{
    lki_rendezvous_options options = plain(&j, nodes, number);
    options.goes_on                = true;
    options.returns                = true;
    options.settings               = settings;
    return options;
}

static void meet_to_go_on(uint32_t nodes, bool returns)
{
    begin(&j);
    for (uint32_t i = 0; i < nodes; i++) {
        lki_rendezvous_options options = going_on(nodes, (int32_t)i);
        options.returns                = returns;
        (void)add(&j, options);
    }
    await_all(&j, LKI_EVENT_MET);
}

static void forget_events(void)
{
    for (uint32_t i = 0; i < j.count; i++)
        j.nodes[i].count = 0;
}

static void propose_group(uint32_t at, uint64_t epoch, uint32_t bits, uint32_t entrants)
{
    const lki_members members = { { bits } }, more_members = { { entrants } };
    lki_rendezvous_go_on(j.nodes[at].r, epoch, &members, &more_members);
}

static void assert_group(uint32_t at, uint64_t epoch, uint32_t bits)
{
    const lki_event *event = await(&j, &j.nodes[at], LKI_EVENT_GROUP);
    assert_int_equal(event->epoch, epoch);
    assert_int_equal(event->members.words[0], bits);
}

static void close_node(uint32_t at)
{
    lki_rendezvous_close(j.nodes[at].r, NULL);
    j.nodes[at].r = NULL;
}

/* Adds a late node, whose host name and number of workers are those of node `at`. */
static node *add_late(uint32_t at, const char *const *its_settings)
{
    lki_rendezvous_options options = going_on(3, -1);
    options.workers                = at + 1;
    options.settings               = its_settings;
    return add(&j, options);
}

static void leave_out_node_1(void)
{
    close_node(1);
    assert_verdict(&j, 0, 1, "host h1 (node 1, ranks 1 to 2) is lost");
    propose_group(0, 0, 1, 0);
    propose_group(2, 0, 8 | 16 | 32, 0);
    assert_group(0, 1, 1 | 8 | 16 | 32);
    assert_group(2, 1, 1 | 8 | 16 | 32);
    forget_events();
}

static void a_late_host_takes_a_free_seat_and_enters(void **state)
{
    (void)state;
    meet_to_go_on(3, true);
    node *late = add_late(1, settings); /* connects before the loss of its predecessor */
    await_guests(&j, &j.nodes[0], 4);
    move_for(&j, 50);
    assert_int_equal(late->count, 0);
    leave_out_node_1();
    (void)await(&j, late, LKI_EVENT_MET);
    const lki_standing *standing = lki_rendezvous_standing(late->r);
    assert_int_equal(lki_rendezvous_self(late->r), 1);
    assert_int_equal(standing->epoch, 1);
    for (uint32_t rank = 0; rank < 6; rank++)
        assert_int_equal(standing->since[rank], rank == 1 || rank == 2 ? 0 : 1);
    propose_group(0, 1, 1, 0); /* the late node is not ready */
    propose_group(2, 1, 8, 0);
    assert_group(0, 2, 1 | 8);
    assert_group(2, 2, 1 | 8);
    assert_group(3, 2, 1 | 8); /* but the late node receives the group */
    forget_events();
    propose_group(3, 1, 0, 2 | 4);
    const lki_event *event = await(&j, &j.nodes[2], LKI_EVENT_AWAITED);
    assert_true(event->waits && event->node == 1);
    assert_string_equal(event->host, "h3");
    propose_group(0, 2, 1, 0);
    propose_group(2, 2, 8, 0);
    assert_group(0, 3, 1 | 2 | 4 | 8);
    assert_group(2, 3, 1 | 2 | 4 | 8);
    assert_group(3, 3, 1 | 2 | 4 | 8);
    introduce(&j.nodes[0]);
    introduce(&j.nodes[2]);
    introduce(late);
    (void)await(&j, &j.nodes[0], LKI_EVENT_KNOWN);
    forget_events(); /* from here on the late node's loss is a failure */
    close_node(3);
    assert_verdict(&j, 0, 1, "host h3 (node 1, ranks 1 to 2) is lost");
    end(&j);
}

/* Checks that nodes that wait for missing introductions receive the existing ones. */
static void waiting_hosts_receive_existing_introductions(void **state)
{
    (void)state;
    begin(&j);
    for (uint32_t i = 0; i < 3; i++) {
        lki_rendezvous_options options = going_on(3, (int32_t)i);
        options.silence_ms             = 4000;
        (void)add(&j, options);
    }
    await_all(&j, LKI_EVENT_MET);
    leave_out_node_1();
    (void)await(&j, add_late(1, settings), LKI_EVENT_MET);
    propose_group(3, 1, 0, 2 | 4);
    (void)await(&j, &j.nodes[0], LKI_EVENT_AWAITED);
    propose_group(0, 1, 1, 0);
    propose_group(2, 1, 8, 0);
    assert_group(2, 2, 1 | 2 | 4 | 8);
    introduce(&j.nodes[0]);
    introduce(&j.nodes[2]);
    (void)await(&j, &j.nodes[2], LKI_EVENT_KNOWN);
    assert_string_equal(lki_rendezvous_introduction(j.nodes[2].r, 0)->address, "10.0.0.0:0");
    assert_string_equal(lki_rendezvous_introduction(j.nodes[2].r, 1)->address, "");
    assert_string_equal(lki_rendezvous_introduction(j.nodes[2].r, 3)->address, "10.0.0.3:3");
    end(&j);
}

static void a_late_host_lost_before_entering_is_no_failure(void **state)
{
    (void)state;
    meet_to_go_on(3, true);
    leave_out_node_1();
    node *late = add_late(1, settings);
    (void)await(&j, late, LKI_EVENT_MET);
    propose_group(3, 1, 0, 2 | 4);
    (void)await(&j, &j.nodes[0], LKI_EVENT_AWAITED);
    forget_events();
    close_node(3);
    assert_false(await(&j, &j.nodes[0], LKI_EVENT_AWAITED)->waits);
    propose_group(0, 1, 1, 0);
    propose_group(2, 1, 8, 0);
    assert_group(0, 2, 1 | 8);
    assert_null(find(&j.nodes[0], LKI_EVENT_VERDICT));
    forget_events();
    late = add_late(1, settings); /* one more late node connects when the other nodes are about to
                                   * finish */
    (void)await(&j, late, LKI_EVENT_MET);
    const lki_outcome done = { .weight = 0 };
    lki_rendezvous_finish(j.nodes[0].r, &done);
    lki_rendezvous_finish(j.nodes[2].r, &done);
    (void)await(&j, &j.nodes[0], LKI_EVENT_OVER);
    (void)await(&j, late, LKI_EVENT_OVER);
    end(&j);
}

static void an_unsuitable_late_host_is_refused_with_the_reason(void **state)
{
    (void)state;
    meet_to_go_on(3, true);
    leave_out_node_1();
    await_error(&j, add_late(1, others), LK_EINVAL, "other settings than the job: node 0 has '--lr "
                "0.05'");
    await_error(&j, add_late(1, more), LK_EINVAL, "has 1 settings that node 0 does not have");
    await_error(&j, add_late(4, settings), LK_EINVAL, "brings 5 workers, and no node whose place");
    lki_rendezvous_stop(j.nodes[2].r, 15, false);
    (void)await(&j, &j.nodes[0], LKI_EVENT_STOP);
    await_error(&j, add_late(1, settings), LK_EPEER,
                "comes too late: the job has been asked to stop");
    assert_null(find(&j.nodes[0], LKI_EVENT_VERDICT));
    end(&j);
    meet_to_go_on(3, false);
    leave_out_node_1();
    await_error(&j, add_late(1, settings), LK_EPEER, "has begun, and takes hosts in only where ");
    end(&j);
}

static void a_late_host_without_a_seat_times_out(void **state)
{
    (void)state;
    meet_to_go_on(3, true);
    j.nodes[0].r->server->options.join_ms = 300; /* affects late nodes only */
    await_error(&j, add_late(1, settings), LK_EPEER, "has lost no host whose place");
    end(&j);
}

/* ---- A start with fewer nodes ------------------------------------------------------------ */

static node *add_of_at_least(uint32_t least, uint32_t nodes, int32_t number, uint32_t wait_ms)
{
    lki_rendezvous_options options = going_on(nodes, number);
    options.least                  = least;
    options.wait_ms                = wait_ms;
    return add(&j, options);
}

/* Lets a late node join.  Node 0 has rank 0, node 2 has ranks 2 and 3.  Node 1, which is late, has
 * rank 1. */
static void a_late_host_joins_a_job_that_began_without_it(void **state)
{
    (void)state;
    begin(&j);
    (void)add_of_at_least(2, 3, 0, 0);
    (void)add_of_at_least(0, 3, 2, 0);
    await_all(&j, LKI_EVENT_MET);
    for (uint32_t at = 0; at < 2; at++) {
        assert_null(lki_rendezvous_standing(j.nodes[at].r));
        assert_string_equal(lki_rendezvous_node(j.nodes[at].r, 1)->host, "");
        assert_int_equal(lki_rendezvous_node(j.nodes[at].r, 2)->roster.first, 2);
        introduce(&j.nodes[at]);
    }
    (void)await(&j, &j.nodes[1], LKI_EVENT_KNOWN); /* nobody waits for node 1 */
    await_error(&j, add_late(4, settings), LK_EINVAL, "brings 5 workers, and no node whose place");
    node *late = add_late(0, settings);
    (void)await(&j, late, LKI_EVENT_MET);
    assert_int_equal(lki_rendezvous_self(late->r), 1);
    for (uint32_t rank = 0; rank < 4; rank++)
        assert_int_equal(lki_rendezvous_standing(late->r)->since[rank], rank != 1);
    propose_group(3, 0, 0, 2);
    (void)await(&j, &j.nodes[0], LKI_EVENT_AWAITED);
    propose_group(0, 0, 1, 0);
    propose_group(1, 0, 4 | 8, 0);
    assert_group(1, 1, 1 | 2 | 4 | 8);
    assert_group(3, 1, 1 | 2 | 4 | 8);
    forget_events(); /* from here on the late node's loss is a failure */
    close_node(3);
    assert_verdict(&j, 0, 1, "host h3 (node 1, rank 1) is lost");
    end(&j);
}

static void node_0_begins_a_job_alone(void **state)
{
    (void)state;
    begin(&j);
    node *alone = add_of_at_least(1, 3, 0, 50);
    (void)await(&j, alone, LKI_EVENT_MET);
    assert_string_equal(lki_rendezvous_address(alone->r), "127.0.0.1");
    (void)await(&j, add_late(0, settings), LKI_EVENT_MET);
    end(&j);
}

static void a_complete_job_begins_at_once(void **state)
{
    (void)state;
    begin(&j);
    (void)add_of_at_least(1, 2, 0, UINT32_MAX);
    (void)add_of_at_least(0, 2, -1, 0);
    await_all(&j, LKI_EVENT_MET);
    assert_string_equal(lki_rendezvous_node(j.nodes[0].r, 1)->host, "h1");
    end(&j);
}

static void too_few_hosts_do_not_begin(void **state)
{
    lki_rendezvous_options options;
    (void)state;
    begin(&j);
    options         = going_on(3, 0);
    options.least   = 2;
    options.join_ms = 300;
    await_error(&j, add(&j, options), LK_ETIMEOUT, "2 of 3 nodes have not come within 0.3 s: nodes "
                "1, 2; with 1 there, the job begins only when there are 2");
    end(&j);
}

/* Node 0 is lost, or the job ends, after a late node has received the roster but before it receives
 * the standing.  Expects that the late node ends, too. */
static void a_joining_host_ends_with_node_0(void **state)
{
    (void)state;
    for (uint32_t over = 0; over < 2; over++) {
        meet_to_go_on(3, true);
        leave_out_node_1();
        node *late = add_late(1, settings);
        (void)await(&j, late, LKI_EVENT_MET);
        lki_free(late->r->standing.since);
        late->r->standing.since = NULL;
        forget_events();
        if (over) {
            const lki_outcome good = { .weight = 0 };
            lki_rendezvous_finish(j.nodes[0].r, &good);
            lki_rendezvous_finish(j.nodes[2].r, &good);
        } else {
            close_node(0);
        }
        await_error(&j, late, LK_EPEER, over ? "the job is over, before this host had been let"
                                             : "before this host had been let into the job");
        end(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_late_host_takes_a_free_seat_and_enters),
        TEST(a_late_host_lost_before_entering_is_no_failure),
        TEST(waiting_hosts_receive_existing_introductions),
        TEST(an_unsuitable_late_host_is_refused_with_the_reason),
        TEST(a_late_host_without_a_seat_times_out),
        TEST(a_late_host_joins_a_job_that_began_without_it),
        TEST(node_0_begins_a_job_alone),
        TEST(a_complete_job_begins_at_once),
        TEST(too_few_hosts_do_not_begin),
        TEST(a_joining_host_ends_with_node_0),
    };
    return cmocka_run_group_tests_name("launch.rendezvous.late", tests, with_key, NULL);
}

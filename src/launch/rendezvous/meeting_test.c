/* meeting_test.c -- tests launchers that connect, exchange messages and are lost.
 *
 * Goal:   all nodes receive the same roster; each report reaches the other nodes; missing, wrong,
 *         late and silent nodes are named.
 * Method: nodes_testing.h
 */
#include "launch/rendezvous/nodes_testing.h"

enum { SILENCE_MS = 800 }; /* many ticks, even on a busy machine */

/* ---- Meeting ----------------------------------------------------------------------------- */

static void all_nodes_receive_the_same_roster(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 5; nodes++) {
        static job j;
        uint32_t   first = 0;
        meet(&j, nodes, 0);
        for (uint32_t k = 0; k < nodes; k++) {
            char host[8];
            (void)snprintf(host, sizeof host, "h%u", k);
            for (uint32_t i = 0; i < nodes; i++) {
                const lki_node *seen = lki_rendezvous_node(j.nodes[i].r, k);
                assert_string_equal(seen->host, host);
                assert_int_equal(seen->roster.first, first);
                assert_int_equal(seen->roster.count, k + 1);
                assert_int_equal(seen->roster.world, nodes * (nodes + 1) / 2);
                assert_int_equal(lki_rendezvous_self(j.nodes[i].r), i);
                assert_int_equal(lki_rendezvous_port(j.nodes[i].r), 1234);
                assert_memory_equal(lki_rendezvous_job(j.nodes[i].r),
                                    lki_rendezvous_job(j.nodes[0].r), LKI_JOB_BYTES);
                if (nodes > 1)
                    assert_string_equal(lki_rendezvous_address(j.nodes[i].r), "127.0.0.1");
            }
            first += k + 1;
        }
        end(&j);
    }
}

static void nodes_without_a_number_get_a_free_one(void **state)
{
    static job j;
    bool       taken[4] = { false };
    (void)state;
    begin(&j);
    (void)add(&j, plain(&j, 4, -1));
    (void)add(&j, plain(&j, 4, 2));
    (void)add(&j, plain(&j, 4, -1));
    (void)add(&j, plain(&j, 4, 0));
    await_all(&j, LKI_EVENT_MET);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t self = lki_rendezvous_self(j.nodes[i].r);
        assert_false(taken[self]);
        taken[self] = true;
    }
    assert_int_equal(lki_rendezvous_self(j.nodes[1].r), 2);
    assert_int_equal(lki_rendezvous_self(j.nodes[3].r), 0);
    end(&j);
}

/* A foreign launcher has numbered the ranks.  The job begins when all ranks are present. */
static void numbers_of_a_foreign_launcher_are_kept(void **state)
{
    static const uint32_t firsts[] = { 3, 0, 1 }, counts[] = { 2, 1, 2 };
    static job            j;
    (void)state;
    begin(&j);
    for (uint32_t i = 0; i < 3; i++) {
        lki_rendezvous_options options = plain(&j, 0, firsts[i] == 0 ? 0 : -1);
        options.world                  = 5;
        options.first                  = firsts[i];
        options.workers                = counts[i];
        (void)add(&j, options);
        if (i == 1) { /* a node with ranks of another node */
            await_guests(&j, &j.nodes[1], 2);
            options          = plain(&j, 0, -1);
            options.world    = 5;
            options.first    = 2;
            options.workers  = 2;
            await_error(&j, add(&j, options), LK_EINVAL, "host h2 has ranks 2 to 3, but some are "
                                                         "those of host h0");
            lki_rendezvous_close(j.nodes[2].r, NULL);
            j.count = 2;
        }
    }
    await_all(&j, LKI_EVENT_MET);
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t self = lki_rendezvous_self(j.nodes[i].r);
        assert_int_equal(lki_rendezvous_nodes(j.nodes[i].r), 3);
        assert_int_equal(lki_rendezvous_node(j.nodes[i].r, self)->roster.first, firsts[i]);
        assert_int_equal(self, (i + 2) % 3);
    }
    end(&j);
    begin(&j);
    lki_rendezvous_options options = plain(&j, 0, 0);
    options.world                  = 4;
    options.workers                = 2;
    options.join_ms                = 200;
    await_error(&j, add(&j, options), LK_ETIMEOUT,
                "2 of 4 ranks have not come within 0.2 s: ranks 2, 3");
    end(&j);
}

/* Checks that nodes try to connect until node 0 listens, and that a closed node may connect
 * again. */
static void nodes_may_connect_in_any_order(void **state)
{
    static job j;
    (void)state;
    begin_without_listener(&j);
    node *gone = add(&j, plain(&j, 3, 1));
    (void)add(&j, plain(&j, 3, 2));
    move_for(&j, 100);
    lki_rendezvous_options first = plain(&j, 3, 0);
    first.listener               = -1; /* the node opens its own listener */
    (void)add(&j, first);
    for (int i = 0; i < 100; i++) {
        lki_event event; /* lki_rendezvous_next() runs the two nodes that are open */
        assert_int_equal(lki_rendezvous_next(j.nodes[2].r, &event), LK_OK);
        assert_int_equal(lki_rendezvous_next(gone->r, &event), LK_OK);
        assert_int_equal(event.kind, LKI_EVENT_NONE);
    }
    lki_rendezvous_close(gone->r, NULL);
    gone->r = NULL;
    (void)add(&j, plain(&j, 3, 1));
    await_all(&j, LKI_EVENT_MET);
    end(&j);
}

/* Lets all nodes but some connect, then sets the deadline to the present.  Expects an error that
 * names the missing nodes. */
static void missing_nodes_are_named(void **state)
{
    static job j;
    (void)state;
    begin(&j);
    for (int32_t i = 0; i < 4; i += 2)
        (void)add(&j, plain(&j, 4, i));
    await_guests(&j, &j.nodes[0], 2);
    j.nodes[0].r->server->options.join_ms = 1500;
    j.nodes[0].r->server->deadline        = lki_now_ms();
    for (uint32_t i = 0; i < 2; i++)
        await_error(&j, &j.nodes[i], LK_ETIMEOUT,
                    "2 of 4 nodes have not come within 1.5 s: nodes 1, 3");
    end(&j);
}

static void an_absent_node_0_is_reported(void **state)
{
    static job j;
    (void)state;
    begin_without_listener(&j);
    lki_rendezvous_options options = plain(&j, 2, 1);
    options.join_ms                = 300;
    await_error(&j, add(&j, options), LK_ETIMEOUT, "Connection refused");
    end(&j);
}

static void contradicting_nodes_are_refused(void **state)
{
    static job j;
    (void)state;
    begin(&j);
    (void)add(&j, plain(&j, 3, 0));
    (void)add(&j, plain(&j, 3, 1));
    await_guests(&j, &j.nodes[0], 2);
    await_error(&j, add(&j, plain(&j, 3, 1)), LK_EINVAL,
                "host h2 says that it is node 1, but so is host h1");
    await_error(&j, add(&j, plain(&j, 2, 1)), LK_EINVAL, "says that there are 2 nodes");
    lki_rendezvous_options options = plain(&j, 3, 2);
    options.epoch                  = 7;
    await_error(&j, add(&j, options), LK_EINVAL, "is in epoch 7");
    options         = plain(&j, 3, 2);
    options.workers = LKI_RANKS_MAX;
    await_error(&j, add(&j, options), LK_EINVAL, "brings 1024 workers to the 3 that have come");
    assert_int_equal(lki_rendezvous_refused(j.nodes[0].r), 4);

    node *third = add(&j, plain(&j, 3, 2));
    (void)await(&j, third, LKI_EVENT_MET);
    await_error(&j, add(&j, plain(&j, 3, 2)), LK_EPEER, "comes too late");
    assert_null(find(third, LKI_EVENT_VERDICT));
    end(&j);

    lki_rendezvous *none;
    static const char *const endpoints[] = { "", "127.0.0.1:80", "tcp://:80", "tcp://h:",
                                             "tcp://h:0", "tcp://h:65536", "tcp://h:1x",
                                             "tcp://[::1:80", "tcp://[::1]80", "tcp://h" };
    for (size_t i = 0; i < sizeof endpoints / sizeof endpoints[0]; i++) {
        options          = plain(&j, 2, 1);
        options.endpoint = endpoints[i];
        assert_int_equal(lki_rendezvous_open(&none, &options), LK_EINVAL);
        assert_null(none);
        assert_non_null(strstr(lk_error_last()->message, "tcp://HOST:PORT"));
    }
    options          = plain(&j, 2, 0);
    options.endpoint = "tcp://192.0.2.1:29400"; /* no host of the test has this address */
    options.listener = -1;
    assert_int_equal(lki_rendezvous_open(&none, &options), LK_EIO);
    assert_non_null(strstr(lk_error_last()->message, "another host's address"));
}

static void nodes_must_have_the_same_key(void **state)
{
    static const unsigned char other[LKI_KEY_BYTES] = "another key";
    static job                 j;
    const unsigned char       *ours = job_key;
    (void)state;
    begin(&j);
    (void)add(&j, plain(&j, 2, 0));
    job_key    = other;
    node *wrong = add(&j, plain(&j, 2, 1));
    await_error(&j, wrong, LK_EPEER, "does this node have the same job key?");
    job_key = NULL;
    node *plain_one = ours != NULL ? add(&j, plain(&j, 2, 1)) : NULL;
    if (plain_one != NULL)
        await_error(&j, plain_one, LK_EPEER, "node 0 has a job key: all need it");
    job_key = ours;
    assert_int_equal(lki_rendezvous_refused(j.nodes[0].r), ours != NULL ? 2 : 1);
    node *right = add(&j, plain(&j, 2, 1));
    (void)await(&j, right, LKI_EVENT_MET);
    (void)await(&j, &j.nodes[0], LKI_EVENT_MET);
    end(&j);
}

static void ipv6_works(void **state)
{
    static job j;
    char       endpoint[sizeof j.endpoint];
    int        fd = reserve_port(AF_INET6, endpoint, sizeof endpoint);

    (void)state;
    if (fd < 0) {
        print_message("no IPv6 here\n");
        skip();
    }
    begin(&j);
    memcpy(j.endpoint, endpoint, sizeof endpoint);
    lki_rendezvous_options options = plain(&j, 2, 0);
    options.listener               = -1;
    (void)add(&j, options);
    (void)add(&j, plain(&j, 2, 1));
    await_all(&j, LKI_EVENT_MET);
    assert_string_equal(lki_rendezvous_address(j.nodes[0].r), "::1");
    assert_string_equal(lki_rendezvous_address(j.nodes[1].r), "::1");
    end(&j);
    (void)close(fd);
}

/* ---- Messages ---------------------------------------------------------------------------- */

static void workers_are_introduced(void **state)
{
    static job j;
    (void)state;
    meet(&j, 4, 0);
    for (uint32_t i = 0; i < 3; i++)
        introduce(&j.nodes[i]);
    move_for(&j, 30);
    assert_null(find(&j.nodes[0], LKI_EVENT_KNOWN)); /* no event arrives before all are
                                                      * introduced */
    introduce(&j.nodes[3]);
    await_all(&j, LKI_EVENT_KNOWN);
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t rank = 0; rank < 10; rank++) {
            const lki_introduction *w = lki_rendezvous_introduction(j.nodes[i].r, rank);
            unsigned                first, itself;
            assert_int_equal(w->pid, 100 + rank);
            assert_int_equal(sscanf(w->address, "10.0.0.%u:%u", &first, &itself), 2);
            assert_int_equal(itself, rank);
        }
    end(&j);
}

static void reports_of_a_node_reach_the_other_nodes(void **state)
{
    static job j;
    (void)state;
    meet(&j, 3, 0);
    lki_verdict  verdict = { 2, false, LK_EPEER, "rank 2 (host h1\nb) died" };
    lki_rank_end ended   = { .rank = 2, .signal = SIGKILL, .loss = "rank 2 was\nkilled" };
    lki_rendezvous_ended(j.nodes[1].r, &ended);
    lki_rendezvous_verdict(j.nodes[1].r, &verdict);
    lki_rendezvous_stop(j.nodes[1].r, SIGINT, false);
    for (uint32_t i = 0; i < 3; i += 2) {
        const lki_event *event = await(&j, &j.nodes[i], LKI_EVENT_STOP);
        assert_int_equal(event->signal, SIGINT);
        assert_false(event->force);
        event = find(&j.nodes[i], LKI_EVENT_ENDED);
        assert_int_equal(event->ended.rank, 2);
        assert_int_equal(event->ended.signal, SIGKILL);
        assert_string_equal(event->ended.loss, "rank 2 was?killed");
        event = find(&j.nodes[i], LKI_EVENT_VERDICT);
        assert_int_equal(event->verdict.culprit, 2);
        assert_false(event->verdict.host);
        assert_int_equal(event->verdict.status, LK_EPEER);
        assert_string_equal(event->verdict.message, "rank 2 (host h1?b) died"); /* the message is
                                                                                 * one line */
    }
    assert_int_equal(j.nodes[1].count, 1); /* the report is not sent back to the node that made
                                            * it */
    end(&j);
}

static void all_nodes_end_with_the_weightiest_outcome(void **state)
{
    static job j;
    (void)state;
    meet(&j, 4, 0);
    for (uint32_t i = 0; i < 4; i++) {
        lki_outcome outcome = { .weight = i == 1 || i == 2 ? 5 : i == 3 ? 2 : 0, .failed = i > 0,
                                .exit_code = (int32_t)(i * 10), .rank = i, .cause = "as told" };
        assert_null(find(&j.nodes[i], LKI_EVENT_OVER));
        lki_rendezvous_finish(j.nodes[i].r, &outcome);
        move_for(&j, 20);
    }
    for (uint32_t i = 0; i < 4; i++) {
        const lki_event *event = await(&j, &j.nodes[i], LKI_EVENT_OVER);
        assert_int_equal(event->outcome.rank, 1);
        assert_int_equal(event->outcome.exit_code, 10);
        assert_true(event->outcome.failed);
        assert_string_equal(event->outcome.cause, "as told");
    }
    end(&j);
}

/* ---- Lost nodes -------------------------------------------------------------------------- */

static void a_lost_node_is_named(void **state)
{
    static job j;
    (void)state;
    for (int how = 0; how < 2; how++) {
        meet(&j, 3, how == 0 ? 0 : SILENCE_MS);
        if (how == 0) {
            lki_rendezvous_close(j.nodes[2].r, NULL);
            j.nodes[2].r = NULL;
        }
        j.nodes[2].hangs = true;
        for (uint32_t i = 0; i < 2; i++) {
            assert_verdict(&j, i, 3, "host h2 (node 2, ranks 3 to 5) is lost: its launcher");
            assert_verdict(&j, i, 3, how == 0 ? "closed the connection" : "has said nothing for");
            lki_outcome outcome = { .weight = 2, .failed = true, .exit_code = 1 };
            lki_rendezvous_finish(j.nodes[i].r, &outcome);
        }
        for (uint32_t i = 0; i < 2; i++) {
            const lki_event *event = await(&j, &j.nodes[i], LKI_EVENT_OVER);
            assert_words(event->outcome.cause, "host h2 (node 2");
            assert_int_equal(event->outcome.weight, LKI_WEIGHT_LOST);
        }
        end(&j);
    }
}

static void a_lost_node_0_is_named(void **state)
{
    static job j;
    (void)state;
    for (int how = 0; how < 2; how++) {
        meet(&j, 3, how == 0 ? 0 : SILENCE_MS);
        if (how == 0) {
            lki_rendezvous_close(j.nodes[0].r, NULL);
            j.nodes[0].r = NULL;
        }
        j.nodes[0].hangs = true;
        for (uint32_t i = 1; i < 3; i++) {
            assert_verdict(&j, i, 0, "host h0 (node 0, rank 0) is lost: its launcher");
            assert_null(find(&j.nodes[i], LKI_EVENT_OVER));
            lki_outcome outcome = { .weight = i == 1 ? 2 : 5, .failed = true, .cause = "worse" };
            lki_rendezvous_finish(j.nodes[i].r, &outcome);
            const lki_event *event = await(&j, &j.nodes[i], LKI_EVENT_OVER);
            assert_words(event->outcome.cause, i == 1 ? "host h0" : "worse");
            assert_int_equal(event->outcome.exit_code, i == 1 ? 1 : 0);
        }
        end(&j);
    }
}

/* Checks that nodes without news send keep-alive letters, and are not lost. */
static void idle_nodes_are_not_lost(void **state)
{
    static job j;
    (void)state;
    meet(&j, 3, SILENCE_MS);
    move_for(&j, 3 * SILENCE_MS);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(j.nodes[i].count, 1);
    end(&j);
}

/* Stops all nodes, as by Ctrl-Z, for about the longest silence allowed, and continues them. */
static void a_pause_of_all_nodes_loses_no_node(void **state)
{
    static const struct timespec pauses[] = { { .tv_nsec = 900000000 }, { .tv_nsec = 510000000 },
                                              { .tv_nsec = 510000000 }, { .tv_nsec = 510000000 } };
    static job                   j;
    (void)state;
    meet(&j, 3, 600);
    for (size_t i = 0; i < sizeof pauses / sizeof pauses[0]; i++) {
        (void)nanosleep(&pauses[i], NULL);
        move_for(&j, 180 + 30 * (int64_t)i);
    }
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(j.nodes[i].count, 1);
    end(&j);
}

static void a_node_that_gives_up_informs_waiting_nodes(void **state)
{
    static job j;
    (void)state;
    begin(&j);
    (void)add(&j, plain(&j, 3, 0));
    (void)add(&j, plain(&j, 3, 1));
    await_guests(&j, &j.nodes[0], 2);
    lki_rendezvous_close(j.nodes[0].r, "node 0 got SIGINT");
    j.nodes[0].r = NULL;
    await_error(&j, &j.nodes[1], LK_EPEER, "node 0 got SIGINT");
    end(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(all_nodes_receive_the_same_roster),
        TEST(nodes_without_a_number_get_a_free_one),
        TEST(numbers_of_a_foreign_launcher_are_kept),
        TEST(nodes_may_connect_in_any_order),
        TEST(missing_nodes_are_named),
        TEST(an_absent_node_0_is_reported),
        TEST(contradicting_nodes_are_refused),
        TEST(nodes_must_have_the_same_key),
        TEST(ipv6_works),
        TEST(workers_are_introduced),
        TEST(reports_of_a_node_reach_the_other_nodes),
        TEST(all_nodes_end_with_the_weightiest_outcome),
        TEST(a_lost_node_is_named),
        TEST(a_lost_node_0_is_named),
        TEST(idle_nodes_are_not_lost),
        TEST(a_pause_of_all_nodes_loses_no_node),
        TEST(a_node_that_gives_up_informs_waiting_nodes),
    };
    int failed = cmocka_run_group_tests_name("launch.rendezvous.meeting, plain", tests, without_key,
                                             NULL);
    return failed +
           cmocka_run_group_tests_name("launch.rendezvous.meeting, TLS", tests, with_key, NULL);
}

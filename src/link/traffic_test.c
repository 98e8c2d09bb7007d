/* traffic_test.c -- statistics of the bytes sent to each peer, separate for each peer.
 *
 * Method: bytes are counted when they are acknowledged, so the test waits until the counts are
 * reached.
 */
#include "link/tcp_testing.h"

#include "link/chaos.h"

static lki_traffic traffic(const world *w, uint32_t from, uint32_t to)
{
    lki_traffic out = { 0 };
    w->links[from]->ops->traffic(w->links[from], to, &out);
    return out;
}

static void counts_by_peer(bool secure)
{
    static unsigned char large[300000], got[sizeof large];
    world  w;
    size_t sent = 0, moved, taken = 0;

    world_open(&w, secure, 3, 2);
    assert_int_equal(traffic(&w, 0, 1).bytes, 0);
    while (taken < sizeof large) {
        assert_int_equal(put(&w, 0, 1, 1, large + sent, sizeof large - sent, &moved), LK_OK);
        sent += moved;
        assert_int_equal(get(&w, 1, 0, 1, got, sizeof got, &moved), LK_OK);
        taken += moved;
        world_step(&w);
    }
    exchange(&w, 0, 1, 0, "on another stream");
    STEP_UNTIL(&w, traffic(&w, 0, 1).bytes >= sizeof large + 17);
    assert_true(traffic(&w, 0, 1).busy >= 0 && traffic(&w, 0, 1).rate > 0);
    assert_int_equal(traffic(&w, 1, 0).bytes, 0); /* rank 1 has sent nothing yet */
    exchange(&w, 0, 2, 0, "a word");
    STEP_UNTIL(&w, traffic(&w, 0, 2).bytes >= 6);
    assert_true(traffic(&w, 0, 2).bytes < 10000);
    world_close(&w);
}

static void acknowledged_bytes_are_counted_by_peer(void **state)
{
    (void)state;
    counts_by_peer(false);
    counts_by_peer(true);
}

/* Wraps a tcp link in a chaos link.  Expects that the chaos link returns the statistics of the tcp
 * link. */
static void a_chaos_link_returns_the_counts_of_its_inner_link(void **state)
{
    lki_link   *inner;
    lki_chaos   calm = { .seed = 1 };
    lki_traffic out  = { 0 };
    world       w;
    (void)state;
    world_open(&w, false, 2, 1);
    inner = w.links[0];
    assert_int_equal(lki_chaos_open(&w.links[0], inner, &calm), LK_OK);
    exchange(&w, 0, 1, 0, "a word");
    STEP_UNTIL(&w, (inner->ops->traffic(inner, 1, &out), out.bytes >= 6));
    assert_true(traffic(&w, 0, 1).bytes >= 6);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        LINK_TEST(acknowledged_bytes_are_counted_by_peer),
        LINK_TEST(a_chaos_link_returns_the_counts_of_its_inner_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* network_test.c -- checks that exactly the hosts and links slowed down by the network are named.
 * Method: the traffic of a window is made up, and no clock is read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "train/observe/network.h"

enum { HOSTS_MAX = 4, MIB = 1 << 20 };

/* A network of some hosts without ranks. */
static struct {
    lki_network   network;
    lki_traffic   links[HOSTS_MAX * HOSTS_MAX];
    double        sorted[HOSTS_MAX * HOSTS_MAX];
    lki_slow_host of[HOSTS_MAX];
} net;

static lki_traffic *link_of(uint32_t from, uint32_t to)
{
    return &net.links[from * net.network.hosts + to];
}

/* Sets the traffic of every link to 100 MiB in one second. */
static void begin(uint32_t hosts)
{
    memset(&net, 0, sizeof net);
    net.network = (lki_network){ .hosts  = hosts,
                                 .links  = net.links,
                                 .sorted = net.sorted,
                                 .of     = net.of };
    for (uint32_t a = 0; a < hosts; a++)
        for (uint32_t b = 0; b < hosts; b++)
            if (a != b)
                *link_of(a, b) = (lki_traffic){ 100 * MIB, 1, 200 * MIB };
}

/* Judges a window of 10 s with 4 s of computation.  Returns a bit for each slow host. */
static unsigned judge(void)
{
    unsigned slow = 0;
    lki_network_judge(&net.network, 10, 4);
    for (uint32_t h = 0; h < net.network.hosts; h++)
        slow |= (unsigned)net.of[h].slow << h;
    return slow;
}

static void slow_link(uint32_t from, uint32_t to, double times)
{
    link_of(from, to)->busy *= times;
    link_of(from, to)->rate /= times;
}

static void slow_down(uint32_t host, bool out, bool in, double times)
{
    for (uint32_t h = 0; h < net.network.hosts; h++) {
        slow_link(host, h, out ? times : 1);
        slow_link(h, host, in ? times : 1);
    }
}

static void a_host_that_is_slow_in_any_direction_is_named(void **state)
{
    (void)state;
    for (uint32_t hosts = 3; hosts <= HOSTS_MAX; hosts++)
        for (uint32_t host = 0; host < hosts; host++)
            for (uint32_t way = 1; way < 4; way++) {
                begin(hosts);
                assert_int_equal(judge(), 0);
                slow_down(host, way & 1, way & 2, 5);
                assert_int_equal(judge(), 1U << host);
                assert_true(net.of[host].times > 4.99 && net.of[host].times < 5.01);
                assert_true(net.of[host].share > 0.39 && net.of[host].share < 0.41);
                assert_int_equal(net.of[host].windows, 1);
                assert_false(net.of[host].was_slow);
                assert_int_equal(judge(), 1U << host);
                assert_true(net.of[host].was_slow);
                assert_int_equal(net.network.windows, 3);
            }
}

static void a_host_that_costs_little_time_is_not_named(void **state)
{
    (void)state;
    begin(3);
    slow_down(1, true, true, 3); /* would save 2 s of 10 s, a factor of only 1.25 */
    assert_int_equal(judge(), 0);
    slow_down(1, true, true, 2);
    lki_network_judge(&net.network, 10, 8); /* only 2 s of the window could be saved */
    assert_false(net.of[1].slow);
    assert_int_equal(judge(), 2);
}

/* Judges links to a process that is stopped from time to time.  Expects no slow host, since the
 * links' pace by rate is normal. */
static void a_host_with_a_normal_rate_is_not_named(void **state)
{
    (void)state;
    begin(3);
    slow_down(1, false, true, 5);
    link_of(0, 1)->rate = link_of(2, 1)->rate = 150 * MIB;
    assert_int_equal(judge(), 0);
    begin(3); /* a low rate alone does not make a host slow */
    link_of(0, 1)->rate = link_of(2, 1)->rate = MIB;
    assert_int_equal(judge(), 0);
    begin(3); /* without known rates no host is slow */
    slow_down(1, false, true, 5);
    link_of(0, 1)->rate = link_of(2, 1)->rate = 0;
    assert_int_equal(judge(), 0);
}

static void a_single_slow_link_makes_no_host_slow(void **state)
{
    (void)state;
    begin(4);
    slow_link(1, 2, 6);
    slow_link(2, 1, 6);
    assert_int_equal(judge(), 0);
}

/* Judges links that carry few bytes, as in a ring, where bytes go only to a neighbour.  Expects
 * that these links are ignored. */
static void links_with_few_bytes_are_ignored(void **state)
{
    (void)state;
    begin(3);
    for (uint32_t h = 0; h < 3; h++)
        *link_of((h + 1) % 3, h) = (lki_traffic){ 1000, 0.5, MIB };
    assert_int_equal(judge(), 0);
    slow_link(0, 1, 5); /* the link from host 0 to host 1 is slow: either host may be the cause */
    assert_int_equal(judge(), 3);
    begin(3);
    *link_of(1, 0) = *link_of(1, 2) = (lki_traffic){ 1000, 5, 1000 };
    assert_int_equal(judge(), 0);
}

static void a_link_of_two_hosts_is_compared_with_its_best(void **state)
{
    (void)state;
    begin(2);
    assert_int_equal(judge(), 0);
    slow_link(1, 0, 5);
    assert_int_equal(judge(), 1);
    assert_true(net.of[0].times > 4.99 && net.of[0].times < 5.01);
    slow_link(1, 0, 0.1);
    assert_int_equal(judge(), 0);
    slow_link(1, 0, 10);
    assert_int_equal(judge(), 1);
    assert_true(net.of[0].times > 9.99 && net.of[0].times < 10.01);
    assert_true(net.of[0].worst > 9.99);
    begin(2); /* a link that was never better is not slow */
    slow_down(0, true, true, 5);
    assert_int_equal(judge(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_that_is_slow_in_any_direction_is_named),
        cmocka_unit_test(a_host_that_costs_little_time_is_not_named),
        cmocka_unit_test(a_host_with_a_normal_rate_is_not_named),
        cmocka_unit_test(a_single_slow_link_makes_no_host_slow),
        cmocka_unit_test(links_with_few_bytes_are_ignored),
        cmocka_unit_test(a_link_of_two_hosts_is_compared_with_its_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

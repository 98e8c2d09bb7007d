/* tcp_test.c -- collectives over several hosts, over real connections.
 *
 * Goal:   TCP, plain and with TLS, gives the results of the simulation, for every operation, any
 *         number of hosts and of ranks on them, and groups.  Links close without errors.
 * Method: conformance_testing.h and hosted_testing.h, with tcp links on the loopback interface.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "comm/conformance_testing.h"
#include "comm/hosted_testing.h"
#include "link/tcp.h"

/* The links and addresses of all ranks.  The addresses stay valid after the communicators have
 * freed the links. */
typedef struct {
    lki_link *links[HOSTED_MAX];
    char      addresses[HOSTED_MAX][LKI_ADDRESS_BYTES];
} network;

static const char *address_of(void *context, uint32_t rank)
{
    const network *net = context;
    return net->addresses[rank];
}

static void unexpected(void *context, lki_refusal why, const char *text)
{
    (void)context;
    (void)why;
    fprintf(stderr, "%s\n", text);
}

static void open_network(network *net, uint32_t ranks, const unsigned char *key)
{
    for (uint32_t rank = 0; rank < ranks; rank++) {
        lki_tcp_options options = { .rank       = rank,
                                    .ranks      = ranks,
                                    .streams    = 3,
                                    .job        = { 1, 2, 3 },
                                    .key        = key,
                                    .host       = "127.0.0.1",
                                    .address_of = address_of,
                                    .refused    = unexpected,
                                    .context    = net };
        assert_int_equal(lki_tcp_open(&net->links[rank], &options), LK_OK);
        (void)snprintf(net->addresses[rank], sizeof net->addresses[rank], "%s",
                       lki_tcp_address(net->links[rank]));
    }
}

static void collectives_work_over_tcp(void **state)
{
    static const unsigned char KEY[LKI_KEY_BYTES] = { 3, 1, 4 };
    uint32_t                   first = 9000;
    (void)state;
    for (int secure = 0; secure < 2; secure++) {
        const hosted SHAPES[] = { { .hosts = 2, .each = 1 },
                                  { .hosts = 4, .each = 1 },
                                  { .hosts = 3, .each = 2, .fewer = 1 } };
        for (size_t i = 0; i < sizeof SHAPES / sizeof SHAPES[0]; i++) {
            network net = { .links = { NULL } };
            hosted  h   = SHAPES[i];
            h.links      = net.links;
            h.timeout_ms = 60000;
            for (int groups = 0; groups <= (hosted_size(h) == 4); groups++, first += 150) {
                open_network(&net, hosted_size(h), secure ? KEY : NULL);
                assert_true(hosted_all(h, groups ? splits : conforms, &first));
            }
        }
    }
}

/* Lets one rank give up.  Expects that all ranks receive its error. */
static bool gives_up_in_the_middle(lk_comm *comm, void *context)
{
    uint32_t last = lk_comm_size(comm) - 1;
    float    x    = 1;

    (void)context;
    for (uint32_t k = 0; k < 20; k++) {
        if (k == 10 && lk_comm_rank(comm) == last)
            return true; /* the communicator of this rank is then freed */
        lk_status status = lk_all_reduce(comm, &x, &x, 1, LK_F32, LK_MAX);
        if (status != LK_OK) { /* a rank that is one operation behind may receive the error in this
                                * operation */
            CHECK(strstr(lk_error_last()->message, "rank 2") != NULL);
            return true;
        }
        CHECK(status == LK_OK);
    }
    return false;
}

static void a_rank_that_gives_up_is_reported(void **state)
{
    static const unsigned char KEY[LKI_KEY_BYTES] = { 3, 1, 4 };
    (void)state;
    for (int secure = 0; secure < 2; secure++) {
        network net = { .links = { NULL } };
        hosted  h   = { .hosts = 3, .each = 1, .timeout_ms = 60000, .links = net.links };
        open_network(&net, 3, secure ? KEY : NULL);
        assert_true(hosted_all(h, gives_up_in_the_middle, NULL));
    }
}

/* Makes ranks disagree while most pairs of ranks are not connected.  Expects a mismatch. */
static bool disagrees(lk_comm *comm, void *context)
{
    float     x  = 1;
    lk_status st = lk_comm_rank(comm) == 1 ? lk_barrier(comm)
                                           : lk_all_reduce(comm, &x, &x, 1, LK_F32, LK_MAX);

    (void)context;
    CHECK(st == LK_EMISMATCH && strstr(lk_error_last()->message, "rank 1 is in barrier #") != NULL);
    CHECK(strstr(lk_error_last()->message, "is in all_reduce #") != NULL);
    return true;
}

static void both_sides_of_a_mismatch_are_reported(void **state)
{
    static const unsigned char KEY[LKI_KEY_BYTES] = { 3, 1, 4 };
    (void)state;
    for (uint32_t each = 1; each <= 2; each++) {
        network net = { .links = { NULL } };
        hosted  h   = { .hosts = 6 / each, .each = each, .timeout_ms = 60000, .links = net.links,
                        .quarrels = true };
        h.algorithms = each == 2 ? "all_reduce:levels" : NULL;
        open_network(&net, 6, each == 2 ? KEY : NULL);
        assert_true(hosted_all(h, disagrees, NULL));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_work_over_tcp),
        cmocka_unit_test(a_rank_that_gives_up_is_reported),
        cmocka_unit_test(both_sides_of_a_mismatch_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

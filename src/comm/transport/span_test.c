/* span_test.c -- collectives over several hosts, over real connections.
 *
 * Goal:   what holds over the simulation holds over TCP, plain and with TLS: results, any number
 *         of hosts and of ranks on them, small operations in quick succession and large ones in
 *         pieces over several streams; and ends without a hitch.
 * Method: hosted.h, with tcp links on the loopback interface.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "comm/hosted.h"
#include "comm/tcp.h"

typedef struct {
    lki_link *links[HOSTED_MAX];
} network;

static const char *address_of(void *context, uint32_t rank)
{
    const network *net = context;
    return lki_tcp_address(net->links[rank]);
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
    }
}

enum { MOST = 1000001 };

static bool sums(lk_comm *comm, float *send, float *recv, size_t n, uint32_t call)
{
    uint32_t size = lk_comm_size(comm);
    for (size_t i = 0; i < n; i++)
        send[i] = (float)((i * 31 + lk_comm_rank(comm) * 7 + call) % 1000);
    CHECK(lk_all_reduce(comm, send, recv, n, LK_F32, LK_SUM) == LK_OK);
    for (size_t i = 0; i < n; i++) {
        float want = 0; /* whole numbers: every order is exact */
        for (uint32_t rank = 0; rank < size; rank++)
            want += (float)((i * 31 + rank * 7 + call) % 1000);
        CHECK(recv[i] == want);
    }
    return true;
}

static bool gathers(lk_comm *comm, uint32_t *data, size_t n)
{
    uint32_t me = lk_comm_rank(comm);
    for (size_t i = 0; i < n; i++)
        data[me * n + i] = (uint32_t)i * 5 + me;
    CHECK(lk_all_gather(comm, data + me * n, data, n * sizeof *data) == LK_OK);
    for (uint32_t rank = 0; rank < lk_comm_size(comm); rank++)
        for (size_t i = 0; i < n; i++)
            CHECK(data[rank * n + i] == (uint32_t)i * 5 + rank);
    return true;
}

static bool works(lk_comm *comm, void *context)
{
    static const size_t COUNTS[] = { 0, 1, 1000, 50000, MOST };
    void               *a = malloc(sizeof(float) * MOST), *b = malloc(sizeof(float) * MOST);
    bool                good = a != NULL && b != NULL;

    (void)context;
    for (uint32_t k = 0; k < 5 && good; k++)
        good = lk_barrier(comm) == LK_OK && sums(comm, a, b, COUNTS[k], k) &&
               gathers(comm, a, COUNTS[k] / lk_comm_size(comm));
    for (uint32_t k = 0; k < 200 && good; k++)
        good = sums(comm, a, b, k % 5, k);
    free(a);
    free(b);
    return good;
}

static void collectives_over_tcp(void **state)
{
    static const unsigned char KEY[LKI_KEY_BYTES] = { 3, 1, 4 };
    (void)state;
    for (int secure = 0; secure < 2; secure++) {
        const hosted SHAPES[] = { { .hosts = 2, .each = 1 },
                                  { .hosts = 4, .each = 1 },
                                  { .hosts = 3, .each = 2, .fewer = 1 } };
        for (size_t i = 0; i < sizeof SHAPES / sizeof SHAPES[0]; i++) {
            network net = { { NULL } };
            hosted  h   = SHAPES[i];
            open_network(&net, hosted_size(h), secure ? KEY : NULL);
            h.links      = net.links;
            h.timeout_ms = 60000;
            assert_true(hosted_all(h, works, NULL));
        }
    }
}

/* A rank that gives up is heard of everywhere. */
static bool gives_up_in_the_middle(lk_comm *comm, void *context)
{
    uint32_t last = lk_comm_size(comm) - 1;
    float    x    = 1;

    (void)context;
    for (uint32_t k = 0; k < 20; k++) {
        if (k == 10 && lk_comm_rank(comm) == last)
            return true; /* and its communicator is freed */
        lk_status status = lk_all_reduce(comm, &x, &x, 1, LK_F32, LK_MAX);
        if (status != LK_OK) { /* who is one behind may be told before it is done with that */
            CHECK(strstr(lk_error_last()->message, "rank 2") != NULL);
            return true;
        }
        CHECK(status == LK_OK);
    }
    return false;
}

static void the_end_of_a_rank_is_heard_of(void **state)
{
    static const unsigned char KEY[LKI_KEY_BYTES] = { 3, 1, 4 };
    (void)state;
    for (int secure = 0; secure < 2; secure++) {
        network net = { { NULL } };
        hosted  h   = { .hosts = 3, .each = 1, .timeout_ms = 60000, .links = net.links };
        open_network(&net, 3, secure ? KEY : NULL);
        assert_true(hosted_all(h, gives_up_in_the_middle, NULL));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_over_tcp),
        cmocka_unit_test(the_end_of_a_rank_is_heard_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* strangers_test.c -- peers that are not nodes of the job, and a node that violates the protocol.
 *
 * Goal:   invalid bytes, silence and floods are refused and counted, and do not disturb the job; a
 *         node that violates the protocol is lost like a node that dies.
 * Method: nodes_testing.h, and raw sockets.
 */
#include <errno.h>

#include "launch/rendezvous/nodes_testing.h"

static int stranger(const job *j)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    int                fd      = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port        = htons((uint16_t)atoi(strrchr(j->endpoint, ':') + 1));
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

/* Sends bytes as a stranger, and checks that node 0 closes the connection. */
static void assert_hangs_up(job *j, const void *bytes, size_t count)
{
    int  fd = stranger(j);
    char byte[512];

    assert_int_equal(send(fd, bytes, count, MSG_NOSIGNAL), count);
    for (int64_t limit = lki_now_ms() + LIMIT_MS;; move(j)) {
        ssize_t got = recv(fd, byte, sizeof byte, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN))
            break;
        assert_true(lki_now_ms() < limit);
    }
    (void)close(fd);
}

static void strangers_do_not_disturb_the_job(void **state)
{
    static job           j;
    static unsigned char bytes[LKI_LETTER_BYTES_MAX];
    int                  idle[3 * 64];
    enum { IDLE = sizeof idle / sizeof idle[0] };

    (void)state;
    begin(&j);
    (void)add(&j, plain(&j, 3, 0));
    (void)add(&j, plain(&j, 3, 1));
    await_guests(&j, &j.nodes[0], 2);
    assert_hangs_up(&j, "GET / HTTP/1.1\r\n\r\n", 18);
    assert_hangs_up(&j, "\0\0\0\0\0\0\0\0", 8);
    assert_hangs_up(&j, "\x08\0\0\0\x01\0\0\0garbage!", 16); /* a hello with wrong magic */
    assert_hangs_up(&j, "\xff\xff\xff\x7f\x01\0\0\0", 8);    /* an endless hello */
    assert_hangs_up(&j, "\xf9\0\0\0\x01\0\0\0", 8);          /* one byte too long */
    assert_hangs_up(&j, "\0\0\0\0\x09\0\0\0", 8);            /* well-formed, but no hello */
    lki_letter verdict = { .kind = LKI_LETTER_VERDICT, .verdict = { .status = LK_EIO } };
    assert_hangs_up(&j, bytes, lki_letter_write(bytes, &verdict));
    lki_letter hello = { .kind = LKI_LETTER_HELLO, .hello = { .protocol = 99, .version = "9.9" } };
    assert_hangs_up(&j, bytes, lki_letter_write(bytes, &hello));
    assert_true(lki_rendezvous_refused(j.nodes[0].r) >= 7);

    for (size_t i = 0; i < IDLE; i++) { /* silent, or never complete */
        idle[i] = stranger(&j);
        if (i % 2 == 0)
            assert_int_equal(send(idle[i], "\x08\0\0", 3, MSG_NOSIGNAL), 3);
        if (i % 16 == 0)
            move(&j);
    }
    (void)add(&j, plain(&j, 3, 2));
    await_all(&j, LKI_EVENT_MET);
    introduce(&j.nodes[0]);
    introduce(&j.nodes[1]);
    introduce(&j.nodes[2]);
    await_all(&j, LKI_EVENT_KNOWN);
    for (size_t i = 0; i < IDLE; i++)
        (void)close(idle[i]);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(j.nodes[i].count, 2);
    end(&j);
}

/* Checks that an admitted node that sends invalid bytes is lost, and reported like any other
 * loss. */
static void a_node_that_sends_invalid_bytes_is_lost(void **state)
{
    static job    j;
    unsigned char bytes[LKI_LETTER_PLAIN_BYTES];
    lki_letter    hello = { .kind  = LKI_LETTER_HELLO,
                            .hello = { .protocol = LKI_RENDEZVOUS_PROTOCOL, .version = LK_VERSION,
                                       .nodes = 2, .node = 1, .workers = 2, .host = "liar" } };
    lki_letter    lies[] = {
        { .kind = LKI_LETTER_ENDED, .ended = { .rank = 0, .signal = 9 } },        /* a rank of
                                                                                   * another node */
        { .kind = LKI_LETTER_VERDICT, .verdict = { 3, false, LK_EPEER, "no such rank" } },
        { .kind = LKI_LETTER_HELLO, .hello = hello.hello },
        { .kind = LKI_LETTER_INTRODUCTIONS, .workers = { 0, 1 } }, /* without its list */
        { .kind = LKI_LETTER_REFUSED, .refused = { .status = LK_EIO } },
    };
    (void)state;
    if (job_key != NULL) /* TLS adds nothing to this test */
        return;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        begin(&j);
        (void)add(&j, plain(&j, 2, 0));
        int fd = stranger(&j);
        (void)!send(fd, bytes, lki_letter_write(bytes, &hello), MSG_NOSIGNAL);
        (void)await(&j, &j.nodes[0], LKI_EVENT_MET);
        (void)!send(fd, bytes, lki_letter_write(bytes, &lies[i]), MSG_NOSIGNAL);
        (void)close(fd);
        assert_verdict(&j, 0, 1, "host liar (node 1, ranks 1 to 2) is lost");
        end(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(strangers_do_not_disturb_the_job),
        TEST(a_node_that_sends_invalid_bytes_is_lost),
    };
    int failed = cmocka_run_group_tests_name("launch.rendezvous.strangers, plain", tests,
                                             without_key, NULL);
    return failed +
           cmocka_run_group_tests_name("launch.rendezvous.strangers, TLS", tests, with_key, NULL);
}

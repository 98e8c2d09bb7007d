/* tcp_test.c -- the tcp link between ranks that follow the protocol, or die.
 *
 * Goal:   bytes arrive in order and once, for all sizes and slow readers.  No call blocks.  Bytes
 *         written before a close arrive.  A rank detects the end of a peer on the right stream,
 *         even if the rank only writes.  No resource leaks.
 * Method: real sockets on the loopback interface, plain and with TLS, all ranks in one thread.
 *         Large transfers have one thread per rank.
 */
#include "link/patient_clock_testing.h"
#include "link/tcp_testing.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>

static unsigned char byte_at(uint32_t from, uint32_t stream, size_t i)
{
    return (unsigned char)(((i + 77 * from + 1001 * stream) * 2654435761u) >> 11);
}

/* ---- Bytes ------------------------------------------------------------------------------- */

/* A transfer in one direction of one stream. */
typedef struct {
    uint32_t from, to, stream;
    size_t   out, in, bytes;
} transfer;

/* Advances a transfer: writes and reads up to `unit` bytes. */
static void carry(const world *w, transfer *t, unsigned char *scratch, size_t unit)
{
    size_t some = t->bytes - t->out < unit ? t->bytes - t->out : unit, moved = 0;
    for (size_t i = 0; i < some; i++)
        scratch[i] = byte_at(t->from, t->stream, t->out + i);
    assert_int_equal(put(w, t->from, t->to, t->stream, scratch, some, &moved), LK_OK);
    assert_true(moved <= some);
    t->out += moved;

    assert_int_equal(get(w, t->to, t->from, t->stream, scratch, unit, &moved), LK_OK);
    for (size_t i = 0; i < moved; i++)
        if (scratch[i] != byte_at(t->from, t->stream, t->in + i))
            fail_msg("rank %u to %u, stream %u: byte %zu is wrong", t->from, t->to, t->stream,
                     t->in + i);
    t->in += moved;
}

static void all_to_all(bool secure, const char *host, uint32_t ranks, uint32_t streams)
{
    static unsigned char scratch[70000];
    transfer             transfers[WORLD_MAX * WORLD_MAX * 3];
    size_t               count = 0, open = 1, turn = 0;
    world                w = { .ranks = ranks };

    for (uint32_t rank = 0; rank < ranks; rank++) {
        lki_tcp_options options = world_options(&w, secure, rank);
        options.streams         = streams;
        options.host            = host;
        world_add(&w, &options);
        for (uint32_t to = 0; to < ranks; to++)
            for (uint32_t s = 0; to != rank && s < streams; s++)
                transfers[count++] = (transfer){ rank, to, s, 0, 0, 100000 + 5000 * s };
    }
    assert_string_equal(w.links[0]->ops->name, secure ? "tls" : "tcp");
    assert_int_equal(w.links[0]->sealed, secure);
    for (int64_t until = patience(&w); open > 0; turn++) {
        world_step(&w);
        open = 0;
        for (size_t i = 0; i < count; i++) {
            size_t unit = (i + turn) % 3 == 0 ? 1 : (i + turn) % 3 == 1 ? 333 : sizeof scratch;
            carry(&w, &transfers[i], scratch, unit);
            open += transfers[i].in < transfers[i].bytes;
        }
        assert_true(patience(&w) - PATIENCE_MS < until);
    }
    for (int i = LKI_WELCOME + 1; i < LKI_REFUSALS; i++)
        assert_int_equal(lki_tcp_refusals(w.links[0], (lki_refusal)i), 0);
    world_close(&w);
}

static void bytes_arrive_in_order(void **state)
{
    (void)state;
    for (uint32_t ranks = 2; ranks <= 4; ranks++)
        for (uint32_t streams = 1; streams <= 3; streams += 2) {
            all_to_all(false, "127.0.0.1", ranks, streams);
            all_to_all(true, "127.0.0.1", ranks, streams);
        }
}

static void bytes_arrive_over_ipv6(void **state)
{
    lki_address address;
    int         fd;
    (void)state;
    if (lki_address_listen(&fd, &address, "::1") != LK_OK) {
        print_message("skipped: no IPv6 here\n");
        skip();
    }
    close(fd);
    all_to_all(false, "::1", 3, 1);
    all_to_all(true, "::1", 3, 2);
}

/* ---- Threads ----------------------------------------------------------------------------- */

enum { LARGE_BYTES = 48000000, PIECE = 1000003 };

typedef struct {
    world   *w;
    uint32_t rank;
    bool     good;
} member;

/* Exchanges large data with the other rank, sleeping only in wait(). */
static void *swap_large(void *argument)
{
    member        *m    = argument;
    lki_link      *link = m->w->links[m->rank];
    uint32_t       peer = 1 - m->rank;
    unsigned char *sent = malloc(PIECE + 256), *got = malloc(PIECE);
    size_t         out = 0, in = 0, moved = 0;
    bool           good = sent != NULL && got != NULL;

    for (size_t i = 0; good && i < PIECE + 256; i++)
        sent[i] = (unsigned char)(i % 251);
    link->ops->watch(link, peer, 0, true, true);
    while (good && (in < LARGE_BYTES || out < LARGE_BYTES)) {
        lki_ready ready[4];
        uint32_t  count = 0;
        good        = link->ops->wait(link, PATIENCE_MS, ready, 4, &count) == LK_OK && count > 0;
        size_t some = LARGE_BYTES - out < PIECE ? LARGE_BYTES - out : PIECE;
        if (some > 0) { /* a peer that has received everything may have left */
            good = good && put(m->w, m->rank, peer, 0, sent + out % 251, some, &moved) == LK_OK;
            out += moved;
        }
        link->ops->watch(link, peer, 0, true, out < LARGE_BYTES);
        some = LARGE_BYTES - in < PIECE ? LARGE_BYTES - in : PIECE;
        good = good && get(m->w, m->rank, peer, 0, got, some, &moved) == LK_OK;
        for (size_t i = 0; i < moved; i++)
            good = good && got[i] == (in + i) % 251;
        in += moved;
    }
    free(sent);
    free(got);
    link->ops->close(link);
    m->w->links[m->rank] = NULL;
    m->good              = good;
    return NULL;
}

static void large_transfers_both_ways_at_once(void **state)
{
    (void)state;
    for (int secure = 0; secure < 2; secure++) {
        world     w;
        pthread_t threads[2];
        member    members[2];
        world_open(&w, secure, 2, 1);
        for (uint32_t i = 0; i < 2; i++) {
            members[i] = (member){ &w, i, false };
            assert_int_equal(pthread_create(&threads[i], NULL, swap_large, &members[i]), 0);
        }
        for (uint32_t i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        assert_true(members[0].good && members[1].good);
    }
}

/* ---- Back-pressure and watching ---------------------------------------------------------- */

static void a_slow_reader_stops_the_writer(void **state)
{
    static unsigned char block[300000];
    (void)state;
    for (int secure = 0; secure < 2; secure++) {
        world  w;
        size_t taken = 0, got = 0, moved = 0;
        world_open(&w, secure, 2, 1);
        exchange(&w, 0, 1, 0, "hello");
        w.links[1]->ops->watch(w.links[1], 0, 0, false, false);
        w.links[0]->ops->watch(w.links[0], 1, 0, true, true);
        do { /* terminates: the kernel enlarges its buffers sometimes, but not forever */
            assert_int_equal(put(&w, 0, 1, 0, block, sizeof block, &moved), LK_OK);
            taken += moved;
            assert_true(taken < 100000000);
        } while (moved > 0 || wait_once(&w, 0, 1, 0, 300).writable);
        assert_false(wait_once(&w, 1, 0, 0, 50).readable); /* the reader does not watch the
                                                            * stream */

        w.links[1]->ops->watch(w.links[1], 0, 0, true, false);
        assert_true(wait_once(&w, 1, 0, 0, PATIENCE_MS).readable);
        while (got < taken) {
            assert_int_equal(get(&w, 1, 0, 0, block, sizeof block, &moved), LK_OK);
            got += moved;
            (void)wait_once(&w, 0, 1, 0, 0);
            if (moved == 0)
                (void)wait_once(&w, 1, 0, 0, 1);
        }
        assert_int_equal(got, taken);
        assert_true(wait_once(&w, 0, 1, 0, PATIENCE_MS).writable);
        w.links[0]->ops->watch(w.links[0], 1, 0, true, false);
        assert_false(wait_once(&w, 0, 1, 0, 20).writable);
        world_close(&w);
    }
}

/* Checks that an unused stream is reported as writable. */
static void a_fresh_stream_is_writable(void **state)
{
    world  w;
    size_t moved = 1;
    (void)state;
    world_open(&w, true, 3, 2);
    assert_false(wait_once(&w, 0, 2, 1, 20).writable);
    w.links[0]->ops->watch(w.links[0], 2, 1, true, true);
    assert_true(wait_once(&w, 0, 2, 1, PATIENCE_MS).writable);
    assert_int_equal(put(&w, 0, 2, 1, "x", 1, &moved), LK_OK);
    assert_int_equal(moved, 0); /* the first write starts to connect the stream */
    assert_false(wait_once(&w, 0, 2, 1, 20).writable);
    STEP_UNTIL(&w, wait_once(&w, 0, 2, 1, 10).writable);
    world_close(&w);
}

/* Reads part of a TLS record.  Expects that the remaining bytes are readable although no more bytes
 * arrive on the socket. */
static void the_rest_of_a_record_is_readable(void **state)
{
    world  w;
    size_t moved = 0;
    char   got[8];
    (void)state;
    world_open(&w, true, 2, 1);
    assert_true(put_all(&w, 0, 1, 0, "abcdefgh", 8));
    STEP_UNTIL(&w, get(&w, 1, 0, 0, got, 1, &moved) != LK_OK || moved == 1);
    for (int i = 1; i < 8; i++) {
        assert_true(wait_once(&w, 1, 0, 0, 20).readable);
        assert_int_equal(get(&w, 1, 0, 0, got + i, 1, &moved), LK_OK);
        assert_int_equal(moved, 1);
    }
    assert_memory_equal(got, "abcdefgh", 8);
    assert_int_equal(get(&w, 1, 0, 0, got, 1, &moved), LK_OK);
    assert_false(wait_once(&w, 1, 0, 0, 20).readable);
    world_close(&w);
}

/* Calls wait() with room for few events.  Expects that every ready stream is reported
 * eventually. */
static void wait_reports_every_ready_stream_eventually(void **state)
{
    (void)state;
    for (int secure = 0; secure < 2; secure++) {
        world    w;
        bool     seen[4] = { false };
        uint32_t count   = 0;
        size_t   moved   = 0;
        char     byte;
        world_open(&w, secure, 4, 1);
        for (uint32_t from = 1; from < 4; from++)
            assert_true(put_all(&w, from, 0, 0, "x", 1));
        for (int i = 0; i < 1000 && !(seen[1] && seen[2] && seen[3]); i++) {
            lki_ready one;
            assert_int_equal(w.links[0]->ops->wait(w.links[0], 10, &one, 1, &count), LK_OK);
            if (count == 0)
                continue;
            assert_int_equal(get(&w, 0, one.peer, 0, &byte, 1, &moved), LK_OK);
            seen[one.peer] = seen[one.peer] || moved == 1;
        }
        assert_true(seen[1] && seen[2] && seen[3]);
        world_close(&w);
    }
}

/* ---- Ends -------------------------------------------------------------------------------- */

typedef struct {
    lki_link *link;
} closing;

static void *close_in_thread(void *argument)
{
    const closing *c = argument;
    c->link->ops->close(c->link);
    return NULL;
}

/* Closes the writer at once and lets the reader be slow.  Expects that all accepted bytes
 * arrive. */
static void written_bytes_arrive_after_close(void **state)
{
    static unsigned char block[400000], got[400000];
    (void)state;
    for (size_t i = 0; i < sizeof block; i++)
        block[i] = byte_at(0, 0, i);
    for (int secure = 0; secure < 2; secure++)
        for (int rounds = 1; rounds <= 1000; rounds += 999) { /* the second time writes until the
                                                               * stream is full */
            world     w;
            size_t    taken = 0, in = 0, moved = 0;
            pthread_t thread;
            lk_status status = LK_OK;
            world_open(&w, secure, 2, 1);
            exchange(&w, 0, 1, 0, "hello");
            moved = 1;
            for (int i = 0; i < rounds && moved > 0; i++) {
                assert_int_equal(put(&w, 0, 1, 0, block + taken % 1000, 100000, &moved), LK_OK);
                taken += moved;
            }
            assert_int_equal(moved == 0, rounds > 1);
            closing c  = { w.links[0] };
            w.links[0] = NULL;
            assert_int_equal(pthread_create(&thread, NULL, close_in_thread, &c), 0);
            (void)usleep(100000); /* long enough for a close that drops bytes to complete */
            while (status == LK_OK) {
                (void)wait_once(&w, 1, 0, 0, PATIENCE_MS);
                status = get(&w, 1, 0, 0, got, 7777, &moved);
                in += moved;
            }
            fails_with(status, "closed the connection");
            assert_int_equal(moved, 0);
            assert_int_equal(in, taken);
            fails_with(get(&w, 1, 0, 0, got, 1, &moved), "closed the connection");
            pthread_join(thread, NULL);
            world_close(&w);
        }
}

/* Closes a reader that never sent anything.  Expects that a rank that only writes, or only waits,
 * detects this. */
static void a_closed_reader_is_detected(void **state)
{
    static const char zeros[100000];
    (void)state;
    for (int secure = 0; secure < 2; secure++)
        for (int unread = 0; unread < 2; unread++) {
            world  w;
            size_t moved = 0;
            char   byte, address[LKI_ADDRESS_BYTES];
            world_open(&w, secure, 3, 2);
            snprintf(address, sizeof address, "%s", lki_tcp_address(w.links[1]));
            exchange(&w, 0, 1, 1, "hello");
            exchange(&w, 0, 2, 1, "hello");
            if (unread)
                assert_true(put_all(&w, 0, 1, 1, zeros, sizeof zeros) || true);
            world_leave(&w, 1);
            STEP_UNTIL(&w, wait_once(&w, 0, 1, 1, 10).readable);
            fails_with(get(&w, 0, 1, 1, &byte, 1, &moved), address);
            fails_with(put(&w, 0, 1, 1, "x", 1, &moved), address);
            assert_int_equal(moved, 0);
            w.links[0]->ops->watch(w.links[0], 1, 1, false, false);
            assert_false(wait_once(&w, 0, 1, 1, 20).readable);
            w.links[0]->ops->watch(w.links[0], 1, 1, false, true);
            assert_true(wait_once(&w, 0, 1, 1, PATIENCE_MS).writable);
            /* Other streams are not affected. */
            exchange(&w, 0, 2, 1, "on");
            assert_int_equal(get(&w, 0, 1, 0, &byte, 1, &moved), LK_OK);
            world_close(&w);
        }
}

/* Ends a writer, in order or with a reset, while the reader does not watch the stream.  Expects
 * that the reader's wait() does not return at once all the time. */
static void a_closed_writer_waits_for_its_reader(void **state)
{
    static const char HELLO[] = "lockstep:abcd0100000000000000000000000000:5:0>1:0\n";
    (void)state;
    for (int reset = 0; reset < 2; reset++) {
        struct linger at_once = { .l_onoff = 1, .l_linger = 0 };
        lk_status     status  = LK_OK;
        world         w;
        size_t        moved = 0;
        char          got[100];
        world_open(&w, false, 2, 1);
        int fd = stranger(&w, 1);
        say(fd, HELLO, sizeof HELLO - 1);
        STEP_UNTIL(&w, recv(fd, got, 1, MSG_DONTWAIT) == 1);
        w.links[1]->ops->watch(w.links[1], 0, 0, false, false);
        say(fd, "last", 4);
        if (reset)
            assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
        close(fd);
        unsigned looks = patient_clock.looks; /* a wait that returns at once would read the clock
                                               * all the time */
        for (int i = 0; i < 5; i++)
            assert_false(wait_once(&w, 1, 0, 0, 40).readable);
        assert_in_range(patient_clock.looks - looks, 5, 200);
        w.links[1]->ops->watch(w.links[1], 0, 0, true, false);
        assert_true(wait_once(&w, 1, 0, 0, PATIENCE_MS).readable);
        if (!reset) {
            assert_int_equal(get(&w, 1, 0, 0, got, sizeof got, &moved), LK_OK);
            assert_int_equal(moved, 4);
        }
        STEP_UNTIL(&w, (status = get(&w, 1, 0, 0, got, sizeof got, &moved)) != LK_OK);
        fails_with(status, reset ? "reset" : "closed the connection");
        world_close(&w);
    }
}

/* ---- Connecting to peers ----------------------------------------------------------------- */

/* Finds a port on which no process listens. */
static void dead_port(char out[LKI_ADDRESS_BYTES])
{
    lki_address address;
    int         fd;
    assert_int_equal(lki_address_listen(&fd, &address, "127.0.0.1"), LK_OK);
    lki_address_text(out, &address);
    close(fd);
}

static void a_peer_may_start_later(void **state)
{
    char dead[LKI_ADDRESS_BYTES];
    (void)state;
    for (int secure = 0; secure < 2; secure++) {
        world           w     = { .ranks = 2 };
        lki_tcp_options first = world_options(&w, secure, 0), second = world_options(&w, secure, 1);
        size_t          moved = 0;
        world_add(&w, &first);
        for (int i = 0; i < 5; i++) { /* the address of rank 1 is unknown */
            assert_int_equal(put(&w, 0, 1, 0, "x", 1, &moved), LK_OK);
            assert_int_equal(moved, 0);
            assert_false(wait_once(&w, 0, 1, 0, 10).writable);
        }
        dead_port(dead);
        atomic_store(&w.published[1], dead);
        for (int i = 0; i < 10; i++) { /* no process listens at the address */
            assert_int_equal(put(&w, 0, 1, 0, "x", 1, &moved), LK_OK);
            assert_int_equal(moved, 0);
            (void)wait_once(&w, 0, 1, 0, 10);
        }
        world_add(&w, &second);
        exchange(&w, 0, 1, 0, "late");
        world_close(&w);
    }
}

static void an_absent_peer_is_reported(void **state)
{
    char   dead[LKI_ADDRESS_BYTES];
    size_t moved = 0;
    (void)state;
    for (int published = 0; published < 2; published++) {
        world           w       = { .ranks = 2 };
        lki_tcp_options options = world_options(&w, false, 0);
        options.connect_ms      = 100;
        world_add(&w, &options);
        dead_port(dead);
        if (published)
            atomic_store(&w.published[1], dead);
        w.links[0]->ops->watch(w.links[0], 1, 0, true, true);
        assert_int_equal(put(&w, 0, 1, 0, "x", 1, &moved), LK_OK);
        assert_true(wait_once(&w, 0, 1, 0, PATIENCE_MS).writable);
        fails_with(put(&w, 0, 1, 0, "x", 1, &moved), "no connection within 100 ms");
        fails_with(put(&w, 0, 1, 0, "x", 1, &moved), published ? "Connection refused" : "rank 1: ");
        fails_with(put(&w, 0, 1, 0, "x", 1, &moved), "firewall");
        world_close(&w);
    }
}

/* Lets a connected writer make no call for longer than the time limit to connect.  Expects that the
 * writer can then continue. */
static void a_busy_writer_does_not_time_out(void **state)
{
    (void)state;
    for (int secure = 0; secure < 2; secure++) {
        world           w     = { .ranks = 2 };
        lki_tcp_options first = world_options(&w, secure, 0), second = world_options(&w, secure, 1);
        size_t          moved = 0;
        first.connect_ms      = 500;
        world_add(&w, &first);
        world_add(&w, &second);
        assert_int_equal(put(&w, 0, 1, 0, "x", 1, &moved), LK_OK);
        pass_ms(800);
        exchange(&w, 0, 1, 0, "busy");
        world_close(&w);
    }
}

/* Refuses connections after the two ranks had contact.  Expects that the link fails at once,
 * although there is time to retry. */
static void a_refusal_after_contact_is_final(void **state)
{
    (void)state;
    for (int secure = 0; secure < 2; secure++) {
        world  w;
        char   address[LKI_ADDRESS_BYTES];
        size_t moved = 0;
        world_open(&w, secure, 2, 2);
        exchange(&w, 1, 0, 0, "hello"); /* a connection from the peer also counts as contact */
        snprintf(address, sizeof address, "%s", lki_tcp_address(w.links[1]));
        atomic_store(&w.published[1], address);
        world_leave(&w, 1);
        int64_t   began  = w.links[0]->ops->now_ms(w.links[0]);
        lk_status status = LK_OK;
        STEP_UNTIL(&w, (status = put(&w, 0, 1, 1, "x", 1, &moved)) != LK_OK);
        fails_with(status, "Connection refused");
        assert_true(w.links[0]->ops->now_ms(w.links[0]) - began < 20000);
        world_close(&w);
    }
}

/* Uses up all file descriptors.  Expects that no connection is accepted and nothing fails.  Then
 * frees descriptors and expects that the link works again. */
static void a_link_survives_a_lack_of_descriptors(void **state)
{
    struct rlimit limit, none;
    int           fds[3];
    world         w;
    (void)state;
    world_open(&w, false, 2, 1);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int i = 0; i < 3; i++)
        fds[i] = stranger(&w, 0);
    none          = limit;
    none.rlim_cur = (rlim_t)fds[2] + 1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    for (int i = 0; i < 5; i++)
        (void)wait_once(&w, 0, 1, 0, 5);
    assert_true(lki_tcp_refusals(w.links[0], LKI_REFUSED_CROWDED) >= 1);
    assert_true(lki_tcp_refusals(w.links[0], LKI_REFUSED_CROWDED) <= 3); /* the link pauses between
                                                                          * its attempts */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    exchange(&w, 1, 0, 0, "hello");
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    world_close(&w);
}

static void descriptors_are_not_inherited(void **state)
{
    bool  before[100];
    int   fresh = 0;
    world w;
    (void)state;
    for (int fd = 0; fd < 100; fd++)
        before[fd] = fcntl(fd, F_GETFD) >= 0;
    world_open(&w, true, 2, 1);
    exchange(&w, 0, 1, 0, "hello");
    exchange(&w, 1, 0, 0, "hello");
    for (int fd = 0; fd < 100; fd++) {
        int flags = fcntl(fd, F_GETFD);
        if (before[fd] || flags < 0)
            continue;
        fresh++;
        assert_true((flags & FD_CLOEXEC) != 0);
    }
    assert_true(fresh >= 8); /* 2 listeners, 2 of epoll, 4 ends of connections */
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        LINK_TEST(bytes_arrive_in_order),
        LINK_TEST(bytes_arrive_over_ipv6),
        LINK_TEST(large_transfers_both_ways_at_once),
        LINK_TEST(a_slow_reader_stops_the_writer),
        LINK_TEST(a_fresh_stream_is_writable),
        LINK_TEST(the_rest_of_a_record_is_readable),
        LINK_TEST(wait_reports_every_ready_stream_eventually),
        LINK_TEST(written_bytes_arrive_after_close),
        LINK_TEST(a_closed_reader_is_detected),
        LINK_TEST(a_closed_writer_waits_for_its_reader),
        LINK_TEST(a_peer_may_start_later),
        LINK_TEST(an_absent_peer_is_reported),
        LINK_TEST(a_busy_writer_does_not_time_out),
        LINK_TEST(a_refusal_after_contact_is_final),
        LINK_TEST(a_link_survives_a_lack_of_descriptors),
        LINK_TEST(descriptors_are_not_inherited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

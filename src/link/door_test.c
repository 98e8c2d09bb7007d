/* door_test.c -- connections to a tcp link that do not belong to its job (strangers).
 *
 * Goal:   a connection is refused if its job, epoch, stream or key is wrong.  Refusals are counted
 *         by reason, and the rate of reports is limited.  Strangers use a bounded amount of time,
 *         memory and connections.  They do not disturb the job's own streams.
 * Method: a job of two ranks.  Strangers are raw sockets, TLS sessions with invalid identities,
 *         links with invalid options, and a proxy that records its traffic or forwards it byte by
 *         byte.
 */
#include "link/patient_clock_testing.h"
#include "link/tcp_inside.h"
#include "link/tcp_testing.h"

#include <fcntl.h>
#include <inttypes.h>

/* Opens a job of two ranks in which rank 1 listens.  Stream 0 from rank 0 is connected, stream 1 is
 * not.  The time limit for later hellos is `hello_ms`; 0 = the default. */
static void open_job(world *w, bool secure, int64_t hello_ms)
{
    *w = (world){ .ranks = 2 };
    for (uint32_t rank = 0; rank < 2; rank++) {
        lki_tcp_options options = world_options(w, secure, rank);
        options.streams         = 2;
        world_add(w, &options);
    }
    exchange(w, 0, 1, 0, "before");
    if (hello_ms != 0)
        ((lki_tcp *)w->links[1])->options.hello_ms = hello_ms;
}

static uint64_t all_refusals(const world *w)
{
    uint64_t sum = 0;
    for (int i = LKI_WELCOME + 1; i < LKI_REFUSALS; i++)
        sum += lki_tcp_refusals(w->links[1], (lki_refusal)i);
    return sum;
}

/* Waits for a refusal.  Checks that the number of refusals for the reason `why` was `before` and
 * the number of all refusals was `all`, and that each of them is now one more.  Also checks that
 * the job's own streams still work. */
static void refuses(const world *w, lki_refusal why, uint64_t before, uint64_t all)
{
    STEP_UNTIL(w, all_refusals(w) > all);
    if (lki_tcp_refusals(w->links[1], why) != before + 1)
        fail_msg("refused, but not because \"%s\": %s", lki_refusal_text(why), w->refused);
    assert_int_equal(all_refusals(w), all + 1);
    exchange(w, 0, 1, 0, "still here");
}

/* ---- Plain connections ------------------------------------------------------------------- */

#define JOB_TEXT "abcd0100000000000000000000000000"

static const struct {
    const char *says;
    size_t      bytes; /* 0: the length of the string */
    lki_refusal why;
} HELLOS[] = {
    { "GET / HTTP/1.0\r\n\r\n", 0, LKI_REFUSED_GARBAGE },
    { "\0\0\0\0", 4, LKI_REFUSED_GARBAGE },
    { "\x16\x03\x01\x02", 4, LKI_REFUSED_GARBAGE },
    { "lockstep:" JOB_TEXT ":5:0>1:1\nmore", 0, LKI_REFUSED_GARBAGE },
    { "lockstep:" JOB_TEXT ":5:0>1:1 \n", 0, LKI_REFUSED_GARBAGE },
    { "lockstep:" JOB_TEXT ":5:0>1:1\0\n", 9 + 32 + 9 + 2, LKI_REFUSED_GARBAGE },
    { "lockstep:" JOB_TEXT ":05:0>1:1\n", 0, LKI_REFUSED_GARBAGE },
    { "lockstep:" JOB_TEXT ":5:0>1:4294967297\n", 0, LKI_REFUSED_GARBAGE },
    { "lockstep:" JOB_TEXT ":5:-1>1:1\n", 0, LKI_REFUSED_GARBAGE },
    { "lockstep:ABCD0100000000000000000000000000:5:0>1:1\n", 0, LKI_REFUSED_GARBAGE },
    { "lockstep:" JOB_TEXT JOB_TEXT JOB_TEXT JOB_TEXT, 0, LKI_REFUSED_OVERSIZED },
    { "lockstep:abce0100000000000000000000000000:5:0>1:1\n", 0, LKI_REFUSED_JOB },
    { "lockstep:" JOB_TEXT ":4:0>1:1\n", 0, LKI_REFUSED_EPOCH },
    { "lockstep:" JOB_TEXT ":6:0>1:1\n", 0, LKI_REFUSED_EPOCH },
    { "lockstep:" JOB_TEXT ":5:2>1:1\n", 0, LKI_REFUSED_RANK },
    { "lockstep:" JOB_TEXT ":5:4294967295>1:1\n", 0, LKI_REFUSED_RANK },
    { "lockstep:" JOB_TEXT ":5:1>1:1\n", 0, LKI_REFUSED_RANK },
    { "lockstep:" JOB_TEXT ":5:0>0:1\n", 0, LKI_REFUSED_RANK },
    { "lockstep:" JOB_TEXT ":5:1>0:1\n", 0, LKI_REFUSED_RANK },
    { "lockstep:" JOB_TEXT ":5:0>1:2\n", 0, LKI_REFUSED_STREAM },
    { "lockstep:" JOB_TEXT ":5:0>1:0\n", 0, LKI_REFUSED_DUPLICATE },
};

static void invalid_plain_hellos_are_refused(void **state)
{
    world    w;
    unsigned kinds = 0;
    (void)state;
    open_job(&w, false, 0);
    for (size_t i = 0; i < sizeof HELLOS / sizeof HELLOS[0]; i++) {
        uint64_t      before = lki_tcp_refusals(w.links[1], HELLOS[i].why), all = all_refusals(&w);
        unsigned char answer[2];
        kinds += before == 0;
        int fd = stranger(&w, 1);
        say(fd, HELLOS[i].says, HELLOS[i].bytes > 0 ? HELLOS[i].bytes : strlen(HELLOS[i].says));
        refuses(&w, HELLOS[i].why, before, all);
        if (HELLOS[i].why != LKI_REFUSED_OVERSIZED) { /* unread bytes reset the connection */
            assert_int_equal(recv(fd, answer, sizeof answer, MSG_WAITALL), 1);
            assert_int_equal(answer[0], HELLOS[i].why);
        }
        close(fd);
    }
    assert_int_equal(w.told, kinds);
    world_close(&w);
}

/* Sends a valid hello byte by byte.  Expects that the sender is admitted. */
static void a_plain_hello_may_arrive_byte_by_byte(void **state)
{
    static const char GOOD[] = "lockstep:" JOB_TEXT ":5:0>1:1\n";
    world             w;
    char              got[8];
    size_t            moved = 0;
    (void)state;
    open_job(&w, false, 0);
    int fd = stranger(&w, 1);
    for (size_t i = 0; i + 1 < sizeof GOOD; i++) {
        say(fd, &GOOD[i], 1);
        world_step(&w);
    }
    STEP_UNTIL(&w, recv(fd, got, 1, MSG_DONTWAIT) == 1);
    assert_int_equal(got[0], LKI_WELCOME);
    say(fd, "data", 4);
    STEP_UNTIL(&w, get(&w, 1, 0, 1, got, sizeof got, &moved) != LK_OK || moved == 4);
    assert_memory_equal(got, "data", 4);
    assert_int_equal(all_refusals(&w), 0);
    close(fd);
    world_close(&w);
}

/* ---- Time and places --------------------------------------------------------------------- */

static void silent_and_disconnecting_strangers_are_refused(void **state)
{
    (void)state;
    for (int secure = 0; secure < 2; secure++) {
        world w;
        open_job(&w, secure, 50);
        int64_t began = w.links[1]->ops->now_ms(w.links[1]);
        int     fd    = stranger(&w, 1);
        if (secure)
            say(fd, "\x16", 1);
        else
            say(fd, "lock", 4);
        refuses(&w, LKI_REFUSED_SLOW, 0, 0);
        assert_true(w.links[1]->ops->now_ms(w.links[1]) - began >= 50);
        close(fd);
        for (uint64_t i = 0; i < 2; i++) {
            fd = stranger(&w, 1);
            if (i == 1)
                say(fd, secure ? "\x16" : "lock", secure ? 1 : 4);
            close(fd);
            refuses(&w, LKI_REFUSED_CUT, i, 1 + i);
        }
        world_close(&w);
    }
}

/* Lets a rank make no call to wait() for longer than the time limit of a hello.  Expects that the
 * rank does not refuse a peer whose hello arrived in that time. */
static void a_hello_deadline_does_not_pass_between_waits(void **state)
{
    static const char GOOD[] = "lockstep:" JOB_TEXT ":5:0>1:1\n";
    world             w;
    char              answer = 1;
    (void)state;
    open_job(&w, false, 500);
    int fd = stranger(&w, 1);
    say(fd, GOOD, 20);
    world_step(&w);
    pass_ms(800);
    say(fd, GOOD + 20, 10);
    world_step(&w); /* the first part has arrived, and the rest is also in time */
    say(fd, GOOD + 30, sizeof GOOD - 1 - 30);
    STEP_UNTIL(&w, recv(fd, &answer, 1, MSG_DONTWAIT) == 1);
    assert_int_equal(answer, LKI_WELCOME);
    assert_int_equal(all_refusals(&w), 0);
    close(fd);
    world_close(&w);
}

/* Lets the deadline of a hello pass after the hello has arrived.  Expects that the hello is still
 * read and accepted. */
static void a_hello_is_read_once_more_after_its_deadline(void **state)
{
    static const char GOOD[] = "lockstep:" JOB_TEXT ":5:0>1:1\n";
    world             w;
    char              answer = 1;
    (void)state;
    open_job(&w, false, 3);
    int fd = stranger(&w, 1);
    (void)wait_once(&w, 1, 0, 0, 0);
    say(fd, GOOD, sizeof GOOD - 1);
    pass_ms(6); /* shorter than ABSENT_MS, so the rank does not extend the deadline */
    STEP_UNTIL(&w, recv(fd, &answer, 1, MSG_DONTWAIT) == 1);
    assert_int_equal(answer, LKI_WELCOME);
    close(fd);
    world_close(&w);
}

/* Opens more silent connections than the rank keeps.  Expects that the job's own connections are
 * still admitted. */
static void many_strangers_do_not_block_the_job(void **state)
{
    (void)state;
    for (int secure = 0; secure < 2; secure++) {
        int   fds[200];
        world w;
        open_job(&w, secure, 0);
        for (int i = 0; i < 200; i++) {
            fds[i] = stranger(&w, 1);
            if (i % 16 == 0)
                world_step(&w);
        }
        exchange(&w, 0, 1, 1, "excuse me");
        exchange(&w, 0, 1, 0, "and me");
        assert_in_range(lki_tcp_refusals(w.links[1], LKI_REFUSED_CROWDED), 100, 140);
        assert_int_equal(all_refusals(&w), lki_tcp_refusals(w.links[1], LKI_REFUSED_CROWDED));
        assert_int_equal(w.told, 1);
        /* The oldest connections were closed; the latest are still open. */
        char byte;
        assert_true(recv(fds[0], &byte, 1, MSG_DONTWAIT) == (secure ? 0 : 1));
        assert_int_equal(recv(fds[199], &byte, 1, MSG_DONTWAIT), -1);
        assert_int_equal(errno, EAGAIN);
        for (int i = 0; i < 200; i++)
            close(fds[i]);
        world_close(&w);
    }
}

/* ---- TLS --------------------------------------------------------------------------------- */

static void bytes_that_are_not_tls_are_refused(void **state)
{
    static const char *const SAYS[] = { "GET / HTTP/1.0\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n",
                                        "lockstep:" JOB_TEXT ":5:0>1:1\n",
                                        "\xff\xff\xff\xff\xff\xff\xff\xff" };
    world                    w;
    uint64_t                 before = 0;
    (void)state;
    open_job(&w, true, 0);
    for (size_t i = 0; i < sizeof SAYS / sizeof SAYS[0]; i++, before++) {
        int fd = stranger(&w, 1);
        say(fd, SAYS[i], strlen(SAYS[i]));
        refuses(&w, LKI_REFUSED_GARBAGE, before, before);
        close(fd);
    }
    assert_int_equal(w.told, 1);
    assert_non_null(strstr(w.refused, "refused a connection from 127.0.0.1:"));
    world_close(&w);
}

/* Opens a TLS session with this identity and key.  Returns true if rank 1 admitted it. */
static bool tls_stranger(const world *w, const char *identity, const unsigned char *key,
                         unsigned char *answer)
{
    lki_tls_library *library = NULL;
    lki_tls         *tls     = NULL;
    lk_status        status  = LK_OK;
    bool             done    = false;
    size_t           moved   = 0;
    int              fd      = stranger(w, 1);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(lki_tls_library_open(&library), LK_OK);
    assert_int_equal(lki_tls_client(&tls, library, fd, "rank 1", identity, key), LK_OK);
    STEP_UNTIL(w, (status = lki_tls_handshake(tls, &done)) != LK_OK || done);
    if (done) /* the server has not authenticated the client yet */
        STEP_UNTIL(w, (status = lki_tls_read(tls, answer, 1, &moved)) != LK_OK || moved == 1);
    lki_tls_free(tls);
    lki_tls_library_free(library);
    close(fd);
    return status == LK_OK;
}

static void invalid_tls_identities_are_refused(void **state)
{
    static const unsigned char OTHER[LKI_KEY_BYTES] = { 7, 7, 8 };
    static const struct {
        const char          *identity;
        const unsigned char *key;
        lki_refusal          why;
    } CASES[] = {
        { "lockstep", KEY, LKI_REFUSED_GARBAGE },
        { "lockstep:" JOB_TEXT ":5:0>1:1\n", KEY, LKI_REFUSED_GARBAGE },
        { "lockstep:abce0100000000000000000000000000:5:0>1:1", KEY, LKI_REFUSED_JOB },
        { "lockstep:" JOB_TEXT ":4:0>1:1", KEY, LKI_REFUSED_EPOCH },
        { "lockstep:" JOB_TEXT ":5:2>1:1", KEY, LKI_REFUSED_RANK },
        { "lockstep:" JOB_TEXT ":5:1>1:1", KEY, LKI_REFUSED_RANK },
        { "lockstep:" JOB_TEXT ":5:1>0:1", KEY, LKI_REFUSED_RANK },
        { "lockstep:" JOB_TEXT ":5:0>1:2", KEY, LKI_REFUSED_STREAM },
        { "lockstep:" JOB_TEXT ":5:0>1:1", OTHER, LKI_REFUSED_KEY },
        { "lockstep:" JOB_TEXT ":5:0>1:0", OTHER, LKI_REFUSED_KEY },
    };
    world         w;
    unsigned char answer = 0xff;
    (void)state;
    open_job(&w, true, 0);
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        uint64_t before = lki_tcp_refusals(w.links[1], CASES[i].why), all = all_refusals(&w);
        assert_false(tls_stranger(&w, CASES[i].identity, CASES[i].key, &answer));
        refuses(&w, CASES[i].why, before, all);
    }
    assert_int_equal(answer, 0xff);
    uint64_t all = all_refusals(&w);
    assert_true(tls_stranger(&w, "lockstep:" JOB_TEXT ":5:0>1:0", KEY, &answer));
    assert_int_equal(answer, LKI_REFUSED_DUPLICATE);
    refuses(&w, LKI_REFUSED_DUPLICATE, 0, all);
    assert_true(tls_stranger(&w, "lockstep:" JOB_TEXT ":5:0>1:1", KEY, &answer));
    assert_int_equal(answer, LKI_WELCOME);
    world_close(&w);
}

/* ---- Refused writers --------------------------------------------------------------------- */

/* Writes to rank 1 of the job over a link with `options`.  Expects that the link is refused with
 * the reason `why`. */
static void is_told(const world *w, const lki_tcp_options *options, const char *why)
{
    struct iovec part  = { (void *)(uintptr_t) "x", 1 };
    lki_link    *link  = NULL;
    size_t       moved = 0;
    lk_status    status;
    assert_int_equal(lki_tcp_open(&link, options), LK_OK);
    STEP_UNTIL(w, (status = link->ops->write(link, 1, options->streams - 1, &part, 1, &moved)) !=
                          LK_OK ||
                      (link->ops->wait(link, 1, NULL, 0, &(uint32_t){ 0 }) != LK_OK));
    fails_with(status, why);
    fails_with(status, lki_tcp_address(w->links[1]));
    link->ops->close(link);
    exchange(w, 0, 1, 0, "still here");
}

static void a_refused_writer_receives_the_reason(void **state)
{
    static const unsigned char OTHER[LKI_KEY_BYTES] = { 7, 7, 8 };
    (void)state;
    for (int secure = 0; secure < 2; secure++) {
        world w;
        open_job(&w, secure, 0);
        const lki_tcp_options good   = world_options(&w, secure, 0);
        const char           *unsure = "another job or epoch, or has it another key?";

        lki_tcp_options other = good;
        other.streams         = 1;
        is_told(&w, &other, "the stream is connected already");
        other.streams = 5;
        is_told(&w, &other, secure ? unsure : "no such stream");
        other.streams = 2;
        other.epoch   = 4;
        is_told(&w, &other, secure ? unsure : "another epoch");
        other         = good;
        other.job[0]  = 0;
        other.streams = 2;
        is_told(&w, &other, secure ? unsure : "another job");
        other         = good;
        other.ranks   = 3;
        other.rank    = 2;
        other.streams = 1;
        is_told(&w, &other, secure ? unsure : "its rank");
        other         = good;
        other.streams = 2;
        other.key     = OTHER;
        if (secure)
            is_told(&w, &other, unsure);
        other.key        = secure ? NULL : KEY;
        other.connect_ms = 300; /* time for which the link retries if rank 1 closes the connection
                                 * before the link has read the reason */
        is_told(&w, &other, "no connection within 300 ms");
        world_close(&w);
    }
}

/* ---- A proxy ----------------------------------------------------------------------------- */

/* A proxy that forwards one connection to a rank and records the bytes that it sends to the
 * rank. */
typedef struct {
    int           listener, near, far; /* near: to the client; far: to the rank */
    char          address[LKI_ADDRESS_BYTES];
    unsigned char kept[65536];
    size_t        count, unit;
} proxy;

static void proxy_open(proxy *p, size_t unit)
{
    lki_address address;
    *p = (proxy){ .near = -1, .far = -1, .unit = unit };
    assert_int_equal(lki_address_listen(&p->listener, &address, "127.0.0.1"), LK_OK);
    lki_address_text(p->address, &address);
}

static void proxy_close(proxy *p)
{
    close(p->listener);
    close(p->near);
    close(p->far);
}

static void proxy_step(proxy *p, const world *w, uint32_t rank)
{
    unsigned char bytes[4096];
    if (p->near < 0) {
        p->near = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC);
        if (p->near >= 0)
            p->far = stranger(w, rank);
        return;
    }
    ssize_t got = recv(p->near, bytes, p->unit, MSG_DONTWAIT);
    if (got > 0) {
        assert_true(p->count + (size_t)got <= sizeof p->kept);
        memcpy(p->kept + p->count, bytes, (size_t)got);
        p->count += (size_t)got;
        say(p->far, bytes, (size_t)got);
    }
    got = recv(p->far, bytes, p->unit, MSG_DONTWAIT);
    if (got > 0)
        say(p->near, bytes, (size_t)got);
}

/* Sends a word on stream 1, through the proxy. */
static void exchange_by(proxy *p, world *w, const char *word)
{
    char   got[32];
    size_t out = 0, in = 0, moved = 0;
    atomic_store(&w->published[1], p->address);
    int64_t until = patience(w);
    while (in < strlen(word)) {
        assert_int_equal(put(w, 0, 1, 1, word + out, strlen(word) - out, &moved), LK_OK);
        out += moved;
        proxy_step(p, w, 1);
        (void)wait_once(w, 0, 0, 0, 0);
        (void)wait_once(w, 1, 0, 0, 0);
        assert_int_equal(get(w, 1, 0, 1, got + in, sizeof got - in, &moved), LK_OK);
        in += moved;
        assert_true(patience(w) - PATIENCE_MS < until);
    }
    assert_memory_equal(got, word, in);
}

static void a_connection_may_arrive_byte_by_byte(void **state)
{
    static proxy p;
    (void)state;
    for (int secure = 0; secure < 2; secure++) {
        world w;
        open_job(&w, secure, 0);
        proxy_open(&p, 1);
        exchange_by(&p, &w, "in small coins");
        assert_int_equal(all_refusals(&w), 0);
        world_close(&w);
        proxy_close(&p);
    }
}

/* Records all bytes that a writer sends, and replays them to the rank that received them.  Then
 * replays them to a rank of the same job and epoch on which the stream is not connected.  Expects
 * that both ranks refuse the replay. */
static void a_replay_is_refused(void **state)
{
    static proxy p;
    (void)state;
    world w, again;
    open_job(&w, true, 0);
    open_job(&again, true, 0);
    proxy_open(&p, 4096);
    exchange_by(&p, &w, "attack at dawn");
    for (int i = 0; i < 2; i++) {
        const world *target = i == 0 ? &w : &again;
        char         got[32];
        size_t       moved = 0;
        int          fd    = stranger(target, 1);
        say(fd, p.kept, p.count);
        refuses(target, LKI_REFUSED_KEY, 0, 0);
        assert_int_equal(get(target, 1, 0, 1, got, sizeof got, &moved), LK_OK);
        assert_int_equal(moved, 0);
        close(fd);
    }
    world_close(&w);
    world_close(&again);
    proxy_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        LINK_TEST(invalid_plain_hellos_are_refused),
        LINK_TEST(a_plain_hello_may_arrive_byte_by_byte),
        LINK_TEST(silent_and_disconnecting_strangers_are_refused),
        LINK_TEST(a_hello_deadline_does_not_pass_between_waits),
        LINK_TEST(a_hello_is_read_once_more_after_its_deadline),
        LINK_TEST(many_strangers_do_not_block_the_job),
        LINK_TEST(bytes_that_are_not_tls_are_refused),
        LINK_TEST(invalid_tls_identities_are_refused),
        LINK_TEST(a_refused_writer_receives_the_reason),
        LINK_TEST(a_connection_may_arrive_byte_by_byte),
        LINK_TEST(a_replay_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* tls_test.c -- TLS sessions between two ends of a socket pair.
 *
 * Goal:   bytes arrive in order, once and complete.  Only a peer with the key of the exact identity
 *         is admitted.  Recorded, truncated or changed bytes are rejected.  Memory is bounded.
 * Method: client and server in one thread, both non-blocking, stepped in turns.  To attack the
 *         connection, the test acts as a man in the middle that forwards, records or changes the
 *         bytes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/status.h"
#include "link/tls.h"

static const unsigned char KEY[LKI_KEY_BYTES]   = { 1, 2, 3 };
static const unsigned char OTHER[LKI_KEY_BYTES] = { 1, 2, 4 };

static const char NAME[] = "lockstep:test:1>0";

typedef struct {
    lki_tls_library *library;
    int              fds[2], far[2]; /* `fds`: ends of client and server; `far`: ends of a man in
                                      * the middle */
    lki_tls         *client, *server;
} pair;

static bool only_name(void *context, const char *identity)
{
    (void)context;
    return strcmp(identity, NAME) == 0;
}

static void open_sockets(int fds[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
}

static void open_sessions(pair *p, const unsigned char *client_key, const char *identity)
{
    assert_int_equal(lki_tls_library_open(&p->library), LK_OK);
    assert_int_equal(
        lki_tls_client(&p->client, p->library, p->fds[0], "server", identity, client_key), LK_OK);
    assert_int_equal(
        lki_tls_server(&p->server, p->library, p->fds[1], "client", KEY, only_name, NULL), LK_OK);
}

static void open_direct(pair *p, const unsigned char *client_key, const char *identity)
{
    p->far[0] = p->far[1] = -1;
    open_sockets(p->fds);
    open_sessions(p, client_key, identity);
}

/* Connects the two sides through a man in the middle.  The test holds far[0], connected to the
 * client, and far[1], connected to the server. */
static void open_apart(pair *p)
{
    int one[2], two[2];
    open_sockets(one);
    open_sockets(two);
    p->fds[0] = one[0];
    p->far[0] = one[1];
    p->fds[1] = two[0];
    p->far[1] = two[1];
    open_sessions(p, KEY, NAME);
}

static void close_pair(pair *p)
{
    lki_tls_free(p->client);
    lki_tls_free(p->server);
    lki_tls_library_free(p->library);
    for (int i = 0; i < 2; i++) {
        close(p->fds[i]);
        if (p->far[i] >= 0)
            close(p->far[i]);
    }
}

/* Steps both sides until both sessions are established or one has failed. */
static void shake(pair *p, lk_status *client, lk_status *server)
{
    bool here = false, there = false;
    *client = *server = LK_OK;
    for (int i = 0; i < 100 && *client == LK_OK && *server == LK_OK && !(here && there); i++) {
        *client = lki_tls_handshake(p->client, &here);
        *server = lki_tls_handshake(p->server, &there);
    }
    if (*server != LK_OK && *client == LK_OK && !here) /* the server has refused, but its alert has
                                                        * not arrived yet */
        *client = lki_tls_handshake(p->client, &here);
}

static void shake_well(pair *p)
{
    lk_status client, server;
    shake(p, &client, &server);
    if (client != LK_OK || server != LK_OK)
        fail_msg("handshake: %s", lk_error_last()->message);
}

static void fails_with(lk_status status, const char *text)
{
    assert_int_equal(status, LK_EPEER);
    if (strstr(lk_error_last()->message, text) == NULL)
        fail_msg("\"%s\" should say \"%s\"", lk_error_last()->message, text);
}

static unsigned char byte_at(size_t i)
{
    return (unsigned char)(i * 2654435761u >> 13);
}

/* Sends `bytes` bytes from `from` to `to`, at most `unit` bytes per write or read. */
static void carries(lki_tls *from, lki_tls *to, size_t bytes, size_t unit)
{
    unsigned char *sent = malloc(bytes), *got = malloc(bytes);
    size_t         out = 0, in = 0, moved = 0;
    assert_true(sent != NULL && got != NULL);
    for (size_t i = 0; i < bytes; i++)
        sent[i] = byte_at(i);

    while (in < bytes) {
        size_t       some     = bytes - out < unit ? bytes - out : unit;
        struct iovec parts[3] = { { sent + out, some / 3 },
                                  { NULL, 0 },
                                  { sent + out + some / 3, some - some / 3 } };
        assert_int_equal(lki_tls_write(from, parts, 3, &moved), LK_OK);
        assert_true(moved <= some);
        /* Overwrites the accepted bytes, which must have been copied. */
        memset(sent + out, 0, moved);
        out += moved;
        assert_int_equal(lki_tls_flush(from), LK_OK);
        some = bytes - in < unit ? bytes - in : unit;
        assert_int_equal(lki_tls_read(to, got + in, some, &moved), LK_OK);
        in += moved;
    }
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != byte_at(i))
            fail_msg("byte %zu of %zu is wrong", i, bytes);
    assert_int_equal(out, bytes);
    assert_int_equal(lki_tls_unsent(from), 0);
    free(sent);
    free(got);
}

/* ---- Arriving bytes ---------------------------------------------------------------------- */

static void bytes_arrive_both_ways(void **state)
{
    static const size_t UNITS[] = { 1, 7, 100, 16383, 16384, 16385, 200000, 3000000 };
    pair                p;
    (void)state;
    open_direct(&p, KEY, NAME);
    shake_well(&p);
    assert_string_equal(lki_tls_identity(p.server), NAME);
    for (size_t i = 0; i < sizeof UNITS / sizeof UNITS[0]; i++) {
        size_t bytes = UNITS[i] < 100 ? 1000 : UNITS[i] < 10000 ? 100000 : 3000000;
        carries(p.client, p.server, bytes, UNITS[i]);
        carries(p.server, p.client, bytes, UNITS[i]);
    }
    close_pair(&p);
}

static void a_slow_reader_bounds_memory(void **state)
{
    static unsigned char block[100000];
    struct iovec         part  = { block, sizeof block };
    size_t               moved = 1, taken = 0, got = 0;
    pair                 p;
    (void)state;
    open_direct(&p, KEY, NAME);
    shake_well(&p);
    while (moved > 0 && taken < 50000000) {
        assert_int_equal(lki_tls_write(p.client, &part, 1, &moved), LK_OK);
        taken += moved;
    }
    assert_true(taken < 2000000);
    assert_true(lki_tls_unsent(p.client) > 0 && lki_tls_unsent(p.client) <= 100000);
    while (got < taken) {
        assert_int_equal(lki_tls_read(p.server, block, sizeof block, &moved), LK_OK);
        got += moved;
        assert_int_equal(lki_tls_flush(p.client), LK_OK);
    }
    assert_int_equal(lki_tls_read(p.server, block, sizeof block, &moved), LK_OK);
    assert_int_equal(moved, 0);
    assert_false(lki_tls_buffered(p.server));
    close_pair(&p);
}

static void buffered_bytes_are_reported(void **state)
{
    unsigned char data[100] = { 0 };
    struct iovec  part      = { data, sizeof data };
    size_t        moved;
    pair          p;
    (void)state;
    open_direct(&p, KEY, NAME);
    shake_well(&p);
    for (int i = 0; i < 3; i++)
        assert_int_equal(lki_tls_write(p.client, &part, 1, &moved), LK_OK);
    assert_int_equal(lki_tls_read(p.server, data, 10, &moved), LK_OK);
    assert_int_equal(moved, 10);
    assert_int_equal(recv(p.fds[1], data, 1, MSG_PEEK), -1); /* all bytes are still in memory */
    assert_true(lki_tls_buffered(p.server));
    for (size_t got = 10; got < 300; got += moved) {
        assert_true(lki_tls_buffered(p.server));
        assert_int_equal(lki_tls_read(p.server, data, 45, &moved), LK_OK);
        assert_true(moved > 0);
    }
    assert_int_equal(lki_tls_read(p.server, data, 1, &moved), LK_OK);
    assert_false(lki_tls_buffered(p.server));
    close_pair(&p);
}

static void keys_are_renewed(void **state)
{
    pair p;
    (void)state;
    open_direct(&p, KEY, NAME);
    lki_tls_library_renew_after(p.library, 50000);
    shake_well(&p);
    carries(p.client, p.server, 1000000, 300000);
    assert_in_range(lki_tls_renewals(p.client), 14, 20);
    assert_int_equal(lki_tls_renewals(p.server), 0);
    close_pair(&p);
}

/* ---- Ends -------------------------------------------------------------------------------- */

static void a_close_is_distinguished_from_a_cut(void **state)
{
    unsigned char data[100] = { 5 };
    struct iovec  part      = { data, sizeof data };
    size_t        moved;
    pair          p;
    (void)state;
    for (int farewell = 0; farewell < 2; farewell++) {
        open_direct(&p, KEY, NAME);
        shake_well(&p);
        assert_int_equal(lki_tls_write(p.client, &part, 1, &moved), LK_OK);
        if (farewell) {
            assert_int_equal(lki_tls_finish(p.client), LK_OK);
            assert_int_equal(lki_tls_finish(p.client), LK_OK);
            assert_int_equal(lki_tls_unsent(p.client), 0);
        }
        assert_int_equal(shutdown(p.fds[0], SHUT_WR), 0);
        assert_int_equal(lki_tls_read(p.server, data, sizeof data, &moved), LK_OK);
        assert_int_equal(moved, sizeof data);
        for (int i = 0; i < 2; i++)
            fails_with(lki_tls_read(p.server, data, 1, &moved),
                       farewell ? "client: the peer has closed" : "without a farewell");
        assert_int_equal(moved, 0);
        fails_with(lki_tls_write(p.server, &part, 1, &moved), "client: ");
        close_pair(&p);
    }
}

static void a_gone_reader_is_an_error_and_no_signal(void **state)
{
    unsigned char data[100] = { 5 };
    struct iovec  part      = { data, sizeof data };
    size_t        moved;
    pair          p;
    (void)state;
    open_direct(&p, KEY, NAME);
    shake_well(&p);
    close(p.fds[1]);
    p.fds[1] = dup(p.fds[0]);
    fails_with(lki_tls_write(p.client, &part, 1, &moved), "Broken pipe");
    fails_with(lki_tls_finish(p.client), "Broken pipe");
    close_pair(&p);
}

/* ---- OpenSSL ----------------------------------------------------------------------------- */

static const char *instead; /* name of the library to load instead of OpenSSL */

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);

void *__wrap_dlopen(const char *name, int flags)
{
    return __real_dlopen(instead != NULL ? instead : name, flags);
}

/* Loads a library that does not exist.  Expects that the error names the package to install and the
 * option to run without TLS. */
static void a_missing_library_is_named(void **state)
{
    static const char *const FOUND[] = { "no-such-library.so", "libm.so.6" };
    (void)state;
    for (int i = 0; i < 2; i++) {
        lki_tls_library *library = (lki_tls_library *)&library;
        instead                  = FOUND[i];
        assert_int_equal(lki_tls_library_open(&library), LK_EUNSUPPORTED);
        instead = NULL;
        assert_null(library);
        assert_non_null(strstr(lk_error_last()->message, "libssl3"));
        assert_non_null(strstr(lk_error_last()->message, "`insecure`"));
    }
}

/* ---- Admission --------------------------------------------------------------------------- */

static void peers_with_another_key_or_identity_are_refused(void **state)
{
    static const char LONG[] =
        "lockstep:test:1>0 and so on and so on and so on and so on and so on "
        "and so on and so on and so on and so on and so on and so";
    lk_status client, server;
    pair      p;
    (void)state;
    assert_true(sizeof LONG <= LKI_TLS_IDENTITY_BYTES);
    const struct {
        const unsigned char *key;
        const char          *identity, *says;
    } cases[] = {
        { OTHER, NAME, "binder" },
        { KEY, "lockstep:test:2>0", "refused" },
        { KEY, "l", "refused" },
        { KEY, LONG, "refused" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool done;
        open_direct(&p, cases[i].key, cases[i].identity);
        shake(&p, &client, &server);
        assert_int_equal(server, LK_EPEER);
        fails_with(client, "alert");
        fails_with(lki_tls_handshake(p.server, &done), cases[i].says);
        assert_false(done);
        close_pair(&p);
    }
}

/* Uses the key of one session for a session with a different identity of the same job.  Expects
 * that the handshake fails. */
static void keys_belong_to_an_identity(void **state)
{
    unsigned char       one[LKI_KEY_BYTES], two[LKI_KEY_BYTES];
    const unsigned char KNOWN[] = { /* computed with Python's hmac module */
                                    0xbb, 0x7a, 0x0d, 0xb5, 0x0f, 0x39, 0x5e, 0x12,
                                    0x91, 0x1c, 0x21, 0xb6, 0xed, 0x75, 0x27, 0xb9,
                                    0x9c, 0x09, 0xa0, 0x9a, 0x54, 0x87, 0x44, 0x5c,
                                    0xbf, 0xa7, 0x9f, 0xf8, 0xbc, 0xbe, 0x80, 0x59
    };
    (void)state;
    for (int i = 0; i < LKI_KEY_BYTES; i++)
        one[i] = (unsigned char)i;
    lki_key_derive(two, one, "lockstep:test:a>b");
    assert_memory_equal(two, KNOWN, sizeof KNOWN);
    lki_key_derive(one, one, "lockstep:test:b>a");
    assert_memory_not_equal(one, two, sizeof one);
}

/* Receives the bytes that one end has sent.  Returns their number, which may be 0. */
static size_t drain(int fd, unsigned char *data, size_t capacity)
{
    ssize_t got = recv(fd, data, capacity, 0);
    assert_true(got > 0 || (got < 0 && errno == EAGAIN));
    return got > 0 ? (size_t)got : 0;
}

static void a_handshake_works_byte_by_byte(void **state)
{
    unsigned char byte;
    bool          here = false, there = false;
    pair          p;
    (void)state;
    open_apart(&p);
    for (int i = 0; i < 10000 && !(here && there); i++) {
        assert_int_equal(lki_tls_handshake(p.client, &here), LK_OK);
        if (drain(p.far[0], &byte, 1) == 1)
            assert_int_equal(send(p.far[1], &byte, 1, 0), 1);
        assert_int_equal(lki_tls_handshake(p.server, &there), LK_OK);
        if (drain(p.far[1], &byte, 1) == 1)
            assert_int_equal(send(p.far[0], &byte, 1, 0), 1);
    }
    assert_true(here && there);
    close_pair(&p);
}

/* Records a handshake and its data, and replays them to a new session of the same server.  Expects
 * that the server refuses them. */
static void a_replayed_session_is_refused(void **state)
{
    static unsigned char record[65536], back[8192];
    unsigned char        data[100] = { 9 };
    struct iovec         part      = { data, sizeof data };
    size_t               bytes     = 0, moved;
    bool                 here = false, there = false, done = false;
    pair                 p;
    (void)state;
    open_apart(&p);
    for (int i = 0; i < 100 && !(here && there); i++) {
        assert_int_equal(lki_tls_handshake(p.client, &here), LK_OK);
        if (here)
            assert_int_equal(lki_tls_write(p.client, &part, 1, &moved), LK_OK);
        size_t more = drain(p.far[0], record + bytes, sizeof record - bytes);
        assert_int_equal(send(p.far[1], record + bytes, more, 0), more);
        bytes += more;
        assert_int_equal(lki_tls_handshake(p.server, &there), LK_OK);
        size_t reply = drain(p.far[1], back, sizeof back);
        assert_int_equal(send(p.far[0], back, reply, 0), reply);
    }
    assert_true(here && there);

    lki_tls *second = NULL;
    int      fds[2];
    open_sockets(fds);
    assert_int_equal(lki_tls_server(&second, p.library, fds[0], "replay", KEY, only_name, NULL),
                     LK_OK);
    assert_int_equal(send(fds[1], record, bytes, 0), bytes);
    lk_status status = LK_OK;
    for (int i = 0; i < 10 && status == LK_OK; i++)
        status = lki_tls_handshake(second, &done);
    fails_with(status, "replay: handshake: ");
    assert_false(done);
    lki_tls_free(second);
    close(fds[0]);
    close(fds[1]);
    close_pair(&p);
}

/* Changes every byte of a record, one after the other, including the bytes of the header.  Expects
 * that each change is detected. */
static void a_changed_byte_is_found(void **state)
{
    unsigned char wire[4096], data[64] = { 1 };
    struct iovec  part  = { data, sizeof data };
    size_t        moved = 0, length = 1;
    (void)state;
    for (size_t at = 0; at < length; at++) {
        lk_status client = LK_OK, server = LK_OK;
        pair      p;
        open_direct(&p, KEY, NAME);
        shake(&p, &client, &server);
        assert_int_equal(lki_tls_write(p.client, &part, 1, &moved), LK_OK);
        length = drain(p.fds[1], wire, sizeof wire);
        assert_true(length > sizeof data && at < length);
        wire[at] ^= 0x10;
        assert_int_equal(send(p.fds[0], wire, length, 0), length);
        shutdown(p.fds[0], SHUT_WR);
        fails_with(lki_tls_read(p.server, data, sizeof data, &moved), "reading: ");
        assert_int_equal(moved, 0);
        close_pair(&p);
    }
}

static void garbage_is_refused(void **state)
{
    static const char *const HELLOS[] = { "GET / HTTP/1.0\r\n\r\n", "\x80\x2e\x01\x03\x01",
                                          "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03zzzz",
                                          "SSH-2.0-OpenSSH_9.2\r\n", "\xff\xff\xff\xff\xff\xff" };
    (void)state;
    for (size_t i = 0; i < sizeof HELLOS / sizeof HELLOS[0]; i++) {
        lk_status status = LK_OK;
        bool      done   = false;
        pair      p;
        open_direct(&p, KEY, NAME);
        assert_true(send(p.fds[0], HELLOS[i], strlen(HELLOS[i]), 0) > 0);
        shutdown(p.fds[0], SHUT_WR);
        for (int k = 0; k < 10 && status == LK_OK; k++)
            status = lki_tls_handshake(p.server, &done);
        fails_with(status, "client: handshake: ");
        assert_false(done);
        close_pair(&p);
    }
}

/* Sends a handshake message of 128 KiB in records of maximal size, each of which is valid.  Expects
 * that the session ends before it has received the whole message. */
static void an_oversized_handshake_is_refused(void **state)
{
    static unsigned char record[5 + 4096];
    const size_t         BODY   = sizeof record - 5;
    lk_status            status = LK_OK;
    bool                 done   = false;
    size_t               sent   = 0;
    pair                 p;
    (void)state;
    open_direct(&p, KEY, NAME);
    memcpy(record, (unsigned char[]){ 22, 3, 1, 0x10, 0, 1, 0x01, 0xff, 0x00 }, 9);
    while (status == LK_OK && sent < 200000) {
        assert_int_equal(send(p.fds[0], record, 5 + BODY, 0), 5 + BODY);
        memset(record + 5, 0, 4); /* only the first record begins with the length of the message */
        sent += BODY;
        status = lki_tls_handshake(p.server, &done);
    }
    fails_with(status, "handshake: over 16384 bytes");
    assert_in_range(sent, 16384, 40000);
    close_pair(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_arrive_both_ways),
        cmocka_unit_test(a_slow_reader_bounds_memory),
        cmocka_unit_test(buffered_bytes_are_reported),
        cmocka_unit_test(keys_are_renewed),
        cmocka_unit_test(a_close_is_distinguished_from_a_cut),
        cmocka_unit_test(a_gone_reader_is_an_error_and_no_signal),
        cmocka_unit_test(a_missing_library_is_named),
        cmocka_unit_test(peers_with_another_key_or_identity_are_refused),
        cmocka_unit_test(keys_belong_to_an_identity),
        cmocka_unit_test(a_handshake_works_byte_by_byte),
        cmocka_unit_test(a_replayed_session_is_refused),
        cmocka_unit_test(a_changed_byte_is_found),
        cmocka_unit_test(garbage_is_refused),
        cmocka_unit_test(an_oversized_handshake_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

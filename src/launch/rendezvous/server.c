/* server.c -- node 0's part: connections and time. */
#include "launch/rendezvous/guests.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

enum { HELLO_MS = 5000, ACCEPTS_MAX = 64 };

/* ---- Guests ------------------------------------------------------------------------------ */

void lki_guest_fail(lki_server *server, lki_guest *g, const char *why)
{
    if (g->failing || !lki_line_is_open(&g->line))
        return;
    g->failing = true;
    server->failing++;
    (void)snprintf(g->why, sizeof g->why, "%.390s", why);
}

/* Sends queued bytes, and asks epoll to report room for the rest. */
static void send_to(lki_server *server, lki_guest *g, int64_t now)
{
    lki_line_send(&g->line, now);
    if (lki_line_has_more(&g->line) == g->sending)
        return;
    g->sending = !g->sending;
    struct epoll_event event = { .events = g->sending ? EPOLLIN | EPOLLOUT : EPOLLIN,
                                 .data   = { .u32 = (uint32_t)(g - server->guests) } };
    (void)epoll_ctl(server->epoll, EPOLL_CTL_MOD, g->line.fd, &event);
}

void lki_guest_say(lki_server *server, lki_guest *g, const void *letter, size_t bytes)
{
    if (g->failing || !lki_line_is_open(&g->line))
        return;
    if (lki_line_say(&g->line, letter, bytes) != LK_OK)
        lki_guest_fail(server, g, lk_error_last()->message);
    else
        send_to(server, g, lki_now_ms());
}

void lki_guest_write(lki_server *server, lki_guest *g, const lki_letter *letter)
{
    unsigned char bytes[LKI_LETTER_PLAIN_BYTES];
    lki_guest_say(server, g, bytes, lki_letter_write(bytes, letter));
}

/* Registers a new connection, which is a stranger until its hello. */
static lk_status let_in(lki_server *server, int fd, int64_t now)
{
    uint32_t number = 0;
    while (lki_line_is_open(&server->guests[number].line))
        number++;
    LK_ASSERT(number < server->capacity);
    lki_guest         *g     = &server->guests[number];
    struct epoll_event event = { .events = EPOLLIN, .data = { .u32 = number } };

    *g = (lki_guest){ .since = now, .from = lki_ip_peer(fd) };
    lki_line_open(&g->line, fd, LKI_HELLO_BYTES_MAX, now);
    lk_status st = LK_OK;
    if (server->library != NULL && number != LKI_GUEST_OWN)
        st = lki_line_secure(&g->line, server->library, server->options.key, false);
    if (st == LK_OK && epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        st = lk_fail(LK_ENOMEM, "cannot watch a connection: %s", strerror(errno));
    if (st != LK_OK)
        lki_line_close(&g->line);
    server->strangers += st == LK_OK;
    return st;
}

/* ---- Dismissal --------------------------------------------------------------------------- */

static void dismiss(lki_server *server, lki_guest *g)
{
    lki_guest was = *g;

    *g = (lki_guest){ .line = { .fd = -1 } };
    server->failing--;
    lki_line_close(&was.line);
    if (was.held) {
        server->refused++;
        (void)snprintf(server->last, sizeof server->last, "host %s %s", was.hello.host, was.why);
        return;
    }
    if (server->met && was.admitted) {
        lki_seat_lose(server, (uint32_t)was.hello.node, was.why);
        return;
    }
    server->refused   += !was.admitted;
    server->strangers -= !was.admitted;
    server->admitted  -= was.admitted;
    if (server->given_up)
        return; /* all guests are dismissed for one reason */
    if (was.admitted)
        (void)snprintf(server->last, sizeof server->last, "host %s %s", was.hello.host, was.why);
    else
        (void)snprintf(server->last, sizeof server->last, "%s: %s", was.from.text, was.why);
}

static void dismiss_failing(lki_server *server)
{
    while (server->failing > 0)
        for (uint32_t i = 0; i < server->capacity; i++)
            if (server->guests[i].failing)
                dismiss(server, &server->guests[i]);
}

/* ---- Ready descriptors ------------------------------------------------------------------- */

static void set_listening(lki_server *server, bool listening)
{
    struct epoll_event event = { .events = EPOLLIN, .data = { .u32 = LKI_SERVER_LISTENER } };

    if (listening == server->listening)
        return;
    if (epoll_ctl(server->epoll, listening ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, server->listener,
                  &event) == 0)
        server->listening = listening;
}

static void drop_oldest_stranger(lki_server *server)
{
    lki_guest *oldest = NULL;

    for (uint32_t i = 0; i < server->capacity; i++) {
        lki_guest *g = &server->guests[i];
        if (i != LKI_GUEST_OWN && lki_line_is_open(&g->line) && !g->admitted && !g->failing
            && (oldest == NULL || g->since < oldest->since))
            oldest = g;
    }
    if (oldest == NULL)
        return;
    lki_guest_fail(server, oldest, "had said nothing when others came");
    dismiss_failing(server);
}

/* Accepts pending connections.  If descriptors run out, drops the oldest stranger to free one.  If
 * there is no stranger, stops polling the listener, which remains readable, until the next tick. */
static void accept_all(lki_server *server, int64_t now)
{
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        if (server->strangers >= LKI_STRANGERS_MAX)
            drop_oldest_stranger(server);
        int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            (void)(let_in(server, fd, now) == LK_OK);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            uint32_t before = server->strangers;
            drop_oldest_stranger(server);
            if (server->strangers == before) {
                set_listening(server, false);
                return;
            }
        } else if (errno == EAGAIN) {
            return;
        }
    }
}

/* Sends a plain refusal after a failed handshake.  A guest without a key uses plain text and can
 * read the refusal.  Any other peer ignores the refusal, because the connection has ended for that
 * peer. */
static void hint_at_the_key(const lki_guest *g)
{
    unsigned char bytes[LKI_LETTER_PLAIN_BYTES];
    lki_letter    letter = { .kind    = LKI_LETTER_REFUSED,
                             .refused = { .status  = LK_EPEER,
                                          .message = "node 0 has a job key: all need it" } };
    (void)!send(g->line.fd, bytes, lki_letter_write(bytes, &letter), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Reads and handles a guest's letters, and sends the answers. */
static void hear_all(lki_server *server, lki_guest *g, int64_t now)
{
    lki_letter letter;
    bool       got = true;
    lk_status  st  = lki_line_receive(&g->line, now);
    while (st == LK_OK && got && !g->failing) {
        st = lki_line_next(&g->line, &letter, &got);
        if (got)
            lki_guest_hear(server, g, &letter);
    }
    if (g->line.distrusted)
        hint_at_the_key(g);
    if (st == LK_EFORMAT && !g->admitted)
        lki_guest_refuse(server, g, st, lk_error_last()->message);
    else if (st != LK_OK)
        lki_guest_fail(server, g, lk_error_last()->message);
    else if (!g->failing)
        send_to(server, g, now);
}

void lki_server_serve(lki_server *server, uint32_t number, int64_t now)
{
    if (number == LKI_SERVER_LISTENER) {
        accept_all(server, now);
        return;
    }
    LK_ASSERT(number < server->capacity);
    lki_guest *g = &server->guests[number];
    if (!lki_line_is_open(&g->line))
        return;
    bool fresh = !g->line.established;
    hear_all(server, g, now);
    if (fresh && g->line.established && !g->failing) /* TLS may already hold bytes after */
        hear_all(server, g, now);                    /* the handshake; epoll reports none */
    dismiss_failing(server);
}

/* ---- Time -------------------------------------------------------------------------------- */

uint32_t lki_server_here_ms(const lki_server *server)
{
    return (uint32_t)lki_max(1, lki_min(2000, server->options.silence_ms / 4));
}

static void watch_guest(lki_server *server, lki_guest *g, int64_t now)
{
    static const lki_letter here = { .kind = LKI_LETTER_HERE };
    char                    why[64];

    if (!g->admitted) {
        if (now - g->since > HELLO_MS)
            lki_guest_fail(server, g, "said no hello in time");
        return;
    }
    if (g == &server->guests[LKI_GUEST_OWN]) /* the connection of this process */
        return;
    if (now - g->line.heard > server->options.silence_ms) {
        (void)snprintf(why, sizeof why, "has said nothing for %.3g s",
                       (double)(now - g->line.heard) / 1e3);
        lki_guest_fail(server, g, why);
    } else if (now - g->line.said >= lki_server_here_ms(server)) {
        lki_guest_write(server, g, &here);
    }
}

void lki_server_tick(lki_server *server, int64_t now, int64_t late)
{
    set_listening(server, true);
    server->deadline += late;
    server->enough += late;
    server->grouped += late;
    for (uint32_t i = 0; i < server->capacity; i++) {
        lki_guest *g = &server->guests[i];
        if (!lki_line_is_open(&g->line))
            continue;
        g->since += late;
        g->line.heard += late;
        watch_guest(server, g, now);
    }
    lki_late_seat(server, now);
    lki_seats_tell_who_is_late(server, now);
    lki_seats_wait(server, now);
    dismiss_failing(server);
}

/* ---- Lifetime ---------------------------------------------------------------------------- */

static lk_status listen_for_guests(lki_server *server)
{
    lki_endpoint endpoint;

    if (server->options.listener >= 0) {
        server->listener = server->options.listener;
        server->borrowed = true;
        (void)fcntl(server->listener, F_SETFL, O_NONBLOCK);
    } else {
        LK_TRY(lki_endpoint_parse(&endpoint, server->options.endpoint));
        LK_TRY(lki_endpoint_listen(&server->listener, &endpoint));
    }
    set_listening(server, true);
    return server->listening ? LK_OK
                             : lk_fail(LK_ENOMEM, "cannot watch for nodes: %s", strerror(errno));
}

lk_status lki_server_open(lki_server **out, const lki_rendezvous_options *options,
                          lki_tls_library *library, int own, int epoll, int64_t now)
{
    lki_server *server;

    *out         = NULL;
    lk_status st = LKI_NEW(&server, 1, "meeting place of the nodes");
    if (st != LK_OK) {
        (void)close(own);
        return st;
    }
    *server = (lki_server){ .options = *options, .library = library,
                            .listener = -1, .epoll = epoll,
                            .capacity = lki_server_most(options) + LKI_STRANGERS_MAX +
                                        LKI_HELD_MAX + 1,
                            .deadline = now + options->join_ms };
    st      = LKI_NEW(&server->guests, server->capacity, "connections of the nodes");
    for (uint32_t i = 0; st == LK_OK && i < server->capacity; i++)
        server->guests[i].line.fd = -1;
    if (st == LK_OK)
        st = LKI_NEW(&server->seats, lki_server_most(options), "the nodes");
    if (st == LK_OK)
        st = LKI_NEW(&server->bytes, LKI_LETTER_BYTES_MAX, "letters to the nodes");
    bool let = st == LK_OK;
    if (let)
        st = let_in(server, own, now); /* closes `own` on failure */
    else
        (void)close(own);
    if (st == LK_OK)
        st = listen_for_guests(server);
    if (st != LK_OK) {
        lki_server_close(server, NULL);
        return st;
    }
    *out = server;
    return LK_OK;
}

void lki_server_close(lki_server *server, const char *why)
{
    if (server == NULL)
        return;
    if (why != NULL && !server->met && !server->given_up)
        lki_seats_give_up(server, LK_EPEER, why);
    for (uint32_t i = 0; server->guests != NULL && i < server->capacity; i++)
        lki_line_close(&server->guests[i].line);
    if (server->listener >= 0 && !server->borrowed)
        (void)close(server->listener);
    lki_free(server->workers);
    lki_free(server->since);
    lki_free(server->bytes);
    lki_free(server->seats);
    lki_free(server->guests);
    lki_free(server);
}

/* Closes descriptors directly, because TLS would send a close notification. */
void lki_server_forget(lki_server *server)
{
    for (uint32_t i = 0; i < server->capacity; i++)
        if (lki_line_is_open(&server->guests[i].line))
            (void)close(server->guests[i].line.fd);
    (void)close(server->listener);
}

bool lki_server_has_guests(const lki_server *server)
{
    for (uint32_t i = 0; i < server->capacity; i++)
        if (i != LKI_GUEST_OWN && server->guests[i].admitted)
            return true;
    return false;
}

uint32_t lki_server_refused(const lki_server *server)
{
    return server->refused;
}

const char *lki_server_last_refused(const lki_server *server)
{
    return server->last;
}

const char *lki_server_address(const lki_server *server)
{
    return server->address.text;
}

/* tcp_in.c -- incoming connections.
 *
 * A stranger is a connection without a valid hello.  The link reads from a stranger only when bytes
 * have arrived, so no stranger blocks another connection.  A stranger is refused when its deadline
 * has passed or when it has sent too many bytes.  The number of strangers is limited to the number
 * of streams that may still be connected, plus PLACES.  The oldest stranger is refused when the
 * limit is reached.  A stranger with a valid hello becomes the incoming lane of a slot.
 */
#include "base/file.h"
#include "link/tcp_inside.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    PLACES       = 64,  /* number of strangers allowed in addition to one for each stream that may
                         * still be connected */
    ACCEPTS_MAX  = 64,  /* maximum number of connections accepted per call, so that a flood does not
                         * delay other work */
    EXHAUSTED_MS = 100, /* pause of the listener when no file descriptor is free */
};

/* ---- Refusals ---------------------------------------------------------------------------- */

static void bury(lki_lane *lane)
{
    lki_tcp *tcp = lane->tcp;
    lki_lane_unlink(lane);
    lki_lane_hang_up(lane);
    lki_lane_push(&tcp->graveyard, lane);
    tcp->strangers_count--;
}

/* Counts a refusal, and reports it if a report is due. */
static void note(lki_tcp *tcp, lki_refusal why, const char *address, const char *more)
{
    char text[LKI_DOORBOOK_TEXT_BYTES];

    tcp->refusals[why]++;
    if (lki_doorbook_enter(&tcp->doorbook, why, address, more, lki_now_ms(), text)
        && tcp->options.refused != NULL)
        tcp->options.refused(tcp->options.context, why, text);
}

void lki_tcp_tell_refusals(lki_tcp *tcp, int64_t now_ms)
{
    char        text[LKI_DOORBOOK_TEXT_BYTES];
    lki_refusal why;

    while (tcp->options.refused != NULL && lki_doorbook_next(&tcp->doorbook, now_ms, &why, text))
        tcp->options.refused(tcp->options.context, why, text);
}

/* Refuses a stranger.  Sends the reason if the connection is plain or authenticated. */
static void refuse(lki_lane *lane, lki_refusal why)
{
    lki_tcp *tcp = lane->tcp;

    note(tcp, why, lane->address, lane->why);
    if (tcp->library == NULL || why == LKI_REFUSED_DUPLICATE) { /* with TLS, a reason can be sent
                                                                 * only after the handshake */
        unsigned char answer = (unsigned char)why;
        struct iovec  part   = { &answer, 1 };
        size_t        moved;
        if (lki_lane_write(lane, &part, 1, &moved) != LK_OK)
            lane->why[0] = '\0'; /* the stranger has already closed the connection */
    }
    bury(lane);
}

static void make_place(lki_tcp *tcp)
{
    lki_lane *oldest = tcp->strangers;
    if (oldest == NULL || tcp->strangers_count < PLACES + tcp->expected)
        return;
    while (oldest->next != NULL)
        oldest = oldest->next;
    refuse(oldest, LKI_REFUSED_CROWDED);
}

/* ---- Accepting --------------------------------------------------------------------------- */

/* Checks the hello in `identity`, which TLS or a plain connection has received.  Returns true if
 * the peer is admitted. */
static bool is_welcome(void *context, const char *identity)
{
    lki_lane *lane = context;
    lki_tcp  *tcp  = lane->tcp;
    lki_hello hello;

    lane->heard   = true;
    lane->verdict = LKI_REFUSED_GARBAGE;
    if (lki_hello_parse(&hello, identity))
        lane->verdict = lki_hello_judge(&hello, &tcp->mine, tcp->super.ranks, tcp->super.streams);
    lane->peer   = hello.from;
    lane->stream = hello.stream;
    return lane->verdict == LKI_WELCOME;
}

static lk_status admit(lki_tcp *tcp, int fd, const lki_address *address)
{
    lki_lane *lane = NULL;

    make_place(tcp);
    lk_status status = lki_tcp_lane_new(&lane, tcp, false, fd);
    if (status != LK_OK) {
        close(fd);
        return status;
    }
    lane->state       = LKI_LANE_GREETING;
    lane->deadline_ms = lki_now_ms() + tcp->options.hello_ms;
    lki_address_text(lane->address, address);
    lki_lane_push(&tcp->strangers, lane);
    tcp->strangers_count++;
    LK_TRY(lki_lane_prepare(fd, tcp->options.silence_ms));
    if (tcp->library != NULL)
        LK_TRY(lki_tls_server(&lane->tls, tcp->library, fd, lane->address, tcp->key, is_welcome,
                              lane));
    return lki_tcp_hear(lane);
}

lk_status lki_tcp_accept(lki_tcp *tcp)
{
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        lki_address address = { .bytes = sizeof address.storage };
        int         fd = accept4(tcp->listener, (struct sockaddr *)&address.storage, &address.bytes,
                                 SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            note(tcp, LKI_REFUSED_CROWDED, "somewhere", strerror(errno));
            tcp->listen_again_ms = lki_now_ms() + EXHAUSTED_MS;
            return LK_OK;
        }
        if (fd < 0 && errno == EAGAIN)
            return LK_OK;
        if (fd >= 0) /* other errors concern one connection, not the listener */
            LK_TRY(admit(tcp, fd, &address));
    }
    return LK_OK;
}

/* ---- Hellos ------------------------------------------------------------------------------ */

/* Reads more bytes of a plain hello.  *done becomes true when lane->verdict is final. */
static void hear_plain(lki_lane *lane, bool *done)
{
    size_t    moved = 0, room = sizeof lane->hello - 1 - lane->said;
    lk_status status = lki_lane_read(lane, lane->hello + lane->said, room, &moved);
    char     *end    = memchr(lane->hello + lane->said, '\n', moved);

    *done = true;
    lane->said += moved;
    if (!lki_hello_begins(lane->hello, lane->said)) {
        lane->verdict = LKI_REFUSED_GARBAGE;
    } else if (end != NULL) {
        *end          = '\0';
        lane->verdict = LKI_REFUSED_GARBAGE; /* data follows the hello, but a writer must wait for
                                              * the answer */
        if (strlen(lane->hello) + 1 == lane->said)
            (void)is_welcome(lane, lane->hello);
    } else if (lane->said == sizeof lane->hello - 1) {
        lane->verdict = LKI_REFUSED_OVERSIZED;
    } else if (status != LK_OK) {
        lane->verdict = LKI_REFUSED_CUT;
    } else {
        *done = false;
    }
}

/* Continues a TLS handshake, whose identity is the hello.  *done becomes true when lane->verdict is
 * final. */
static void hear_tls(lki_lane *lane, bool *done)
{
    if (lki_tls_handshake(lane->tls, done) == LK_OK)
        return;
    *done = true;
    (void)snprintf(lane->why, sizeof lane->why, "%.250s", lk_error_last()->message);
    if (lki_tls_cut(lane->tls))
        lane->verdict = LKI_REFUSED_CUT;
    else if (!lane->heard)
        lane->verdict = LKI_REFUSED_GARBAGE;
    else if (lane->verdict == LKI_WELCOME)
        lane->verdict = LKI_REFUSED_KEY;
}

/* Makes the stranger the incoming lane of its slot. */
static lk_status let_in(lki_lane *lane)
{
    lki_tcp      *tcp    = lane->tcp;
    lki_slot     *slot   = lki_tcp_slot(tcp, lane->peer, lane->stream);
    unsigned char answer = LKI_WELCOME;
    struct iovec  part   = { &answer, 1 };
    size_t        moved  = 0;

    if (lki_lane_write(lane, &part, 1, &moved) != LK_OK || moved != 1) {
        refuse(lane, LKI_REFUSED_CUT);
        return LK_OK;
    }
    lki_lane_unlink(lane);
    tcp->strangers_count--;
    tcp->expected--;
    tcp->reached[lane->peer] = true;
    slot->in                 = lane;
    lane->state              = LKI_LANE_OPEN;
    lane->was_open           = true;
    lki_tcp_heat(slot);
    return lki_tcp_rewatch(lane);
}

lk_status lki_tcp_hear(lki_lane *lane)
{
    bool done = false;

    if (lane->tls != NULL)
        hear_tls(lane, &done);
    else
        hear_plain(lane, &done);
    if (!done)
        return lki_tcp_rewatch(lane);
    if (lane->verdict == LKI_WELCOME && lki_tcp_slot(lane->tcp, lane->peer, lane->stream)->in)
        lane->verdict = LKI_REFUSED_DUPLICATE;
    if (lane->verdict == LKI_WELCOME)
        return let_in(lane);
    refuse(lane, lane->verdict);
    return LK_OK;
}

/* Refuses the strangers whose deadline has passed.  First reads from each of them once more,
 * because this rank itself may have been late. */
lk_status lki_tcp_hurry(lki_tcp *tcp, int64_t now_ms, int64_t *next_ms)
{
    lki_tcp_tell_refusals(tcp, now_ms);
    for (lki_lane *lane = tcp->strangers, *next; lane != NULL; lane = next) {
        next = lane->next;
        if (lane->deadline_ms <= now_ms)
            LK_TRY(lki_tcp_hear(lane));
        if (lane->deadline_ms <= now_ms && lane->state == LKI_LANE_GREETING && lane->fd >= 0)
            refuse(lane, LKI_REFUSED_SLOW);
        else if (lane->deadline_ms < *next_ms && lane->deadline_ms > now_ms)
            *next_ms = lane->deadline_ms;
    }
    return LK_OK;
}

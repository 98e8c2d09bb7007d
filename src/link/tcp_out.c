/* tcp_out.c -- outgoing connections.
 *
 * A peer may not have started yet, so a failed attempt is repeated at growing intervals until the
 * deadline.  Once any stream with the peer has been connected, in either direction, the peer must
 * have started.  A refused connection is then final.  A refused hello is always final, unless the
 * reader had too many strangers or was slow.
 *
 * Connecting has a deadline; the admission by the reader has none.  The peer's kernel accepts
 * connections while the peer computes.  Ranks that wait for a message decide how long the admission
 * may take.
 */
#include "base/file.h"
#include "link/tcp_inside.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RETRY_MS_MIN = 10, RETRY_MS_MAX = 500 };

/* Returns what to look at if a peer was never reached. */
static const char *advice(const lki_lane *lane)
{
    return lane->tcp->reached[lane->peer]
               ? ""
               : " (a firewall between the hosts must let all unprivileged ports through)";
}

/* Ends this attempt to connect.  Also ends the lane if the failure is `final` or the deadline has
 * passed. */
__attribute__((format(printf, 3, 4))) static lk_status failed(lki_lane *lane, bool final,
                                                              const char *format, ...)
{
    int64_t now = lki_now_ms(), limit = lane->tcp->options.connect_ms;
    int64_t pause = RETRY_MS_MIN << (lane->attempts < 6 ? lane->attempts : 6);
    char    reason[160], why[sizeof lane->why];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    lki_lane_unlink(lane);
    lki_lane_hang_up(lane);
    if (final) {
        (void)snprintf(why, sizeof why, "%s: %s", lane->address, reason);
        lki_tcp_break(lane, why);
    } else if (now >= lane->deadline_ms) {
        (void)snprintf(why, sizeof why, "%s: no connection within %lld ms: %.80s%s", lane->address,
                       (long long)limit, reason, advice(lane));
        lki_tcp_break(lane, why);
    } else {
        lane->attempts++;
        lane->state    = LKI_LANE_WAITING;
        lane->retry_ms = now + (pause < RETRY_MS_MAX ? pause : RETRY_MS_MAX);
        lki_lane_push(&lane->tcp->travellers, lane);
    }
    return LK_OK;
}

static lk_status failed_by(lki_lane *lane, int error)
{
    return failed(lane, error == ECONNREFUSED && lane->tcp->reached[lane->peer], "%s",
                  strerror(error));
}

/* Returns the last error's message without the address at its beginning. */
static const char *last_reason(const lki_lane *lane)
{
    const char *text  = lk_error_last()->message;
    size_t      bytes = strlen(lane->address);
    bool        named = strncmp(text, lane->address, bytes) == 0 && text[bytes] == ':';
    return named ? text + bytes + 2 : text;
}

/* ---- Connecting -------------------------------------------------------------------------- */

/* Returns true if the socket is connected to itself.  This can happen if no process listens on the
 * port and the kernel chooses the same port for this socket. */
static bool is_own_end(int fd)
{
    lki_address here = { .bytes = sizeof here.storage }, there = here;
    char        one[LKI_ADDRESS_BYTES], other[LKI_ADDRESS_BYTES];

    if (getsockname(fd, (struct sockaddr *)&here.storage, &here.bytes) != 0 ||
        getpeername(fd, (struct sockaddr *)&there.storage, &there.bytes) != 0)
        return false;
    lki_address_text(one, &here);
    lki_address_text(other, &there);
    return strcmp(one, other) == 0;
}

static lk_status begin_greeting(lki_lane *lane)
{
    lki_tcp  *tcp   = lane->tcp;
    lki_hello hello = tcp->mine;

    lki_lane_unlink(lane);
    hello.from   = tcp->super.rank;
    hello.to     = lane->peer;
    hello.stream = lane->stream;
    lki_hello_text(lane->hello, &hello);
    lane->said  = 0;
    lane->state = LKI_LANE_GREETING;
    if (tcp->library != NULL)
        return lki_tls_client(&lane->tls, tcp->library, lane->fd, lane->address, lane->hello,
                              tcp->key);
    size_t bytes           = strlen(lane->hello);
    lane->hello[bytes]     = '\n'; /* LKI_HELLO_BYTES leaves room for the newline */
    lane->hello[bytes + 1] = '\0';
    return LK_OK;
}

static lk_status finish_connecting(lki_lane *lane)
{
    int       error = 0;
    socklen_t bytes = sizeof error;

    if (getsockopt(lane->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
        error = errno;
    if (error == 0 && is_own_end(lane->fd))
        error = ECONNREFUSED;
    return error != 0 ? failed_by(lane, error) : begin_greeting(lane);
}

static lk_status begin_connecting(lki_lane *lane, const char *text)
{
    lki_tcp    *tcp = lane->tcp;
    lki_address address;

    (void)snprintf(lane->address, sizeof lane->address, "%s", text);
    if (lki_address_parse(&address, text) != LK_OK)
        return failed(lane, true, "%s", lk_error_last()->message);
    lane->fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (lane->fd < 0)
        return failed_by(lane, errno);
    LK_TRY(lki_lane_prepare(lane->fd, tcp->options.silence_ms));
    lane->state = LKI_LANE_CONNECTING;
    if (connect(lane->fd, (const struct sockaddr *)&address.storage, address.bytes) == 0)
        return finish_connecting(lane);
    if (errno != EINPROGRESS)
        return failed_by(lane, errno);
    return LK_OK;
}

/* ---- Greeting and admission -------------------------------------------------------------- */

static lk_status greet_plain(lki_lane *lane)
{
    struct iovec part  = { lane->hello + lane->said, strlen(lane->hello + lane->said) };
    size_t       moved = 0;

    if (lki_lane_write(lane, &part, 1, &moved) != LK_OK)
        return failed(lane, false, "%s", last_reason(lane));
    lane->said += moved;
    if (lane->hello[lane->said] == '\0')
        lane->state = LKI_LANE_ASKING;
    return LK_OK;
}

static lk_status greet_tls(lki_lane *lane)
{
    bool done = false;

    if (lki_tls_handshake(lane->tls, &done) != LK_OK) {
        if (lki_tls_cut(lane->tls))
            return failed(lane, false, "%s", last_reason(lane));
        return failed(lane, true, "%s; is it of another job or epoch, or has it another key?",
                      last_reason(lane));
    }
    if (done)
        lane->state = LKI_LANE_ASKING;
    return LK_OK;
}

static lk_status ask(lki_lane *lane)
{
    lki_tcp      *tcp    = lane->tcp;
    unsigned char answer = 0;
    size_t        moved  = 0;

    if (lki_lane_read(lane, &answer, 1, &moved) != LK_OK)
        return failed(lane, false, "%s", last_reason(lane));
    if (moved == 0)
        return LK_OK;
    if (answer != LKI_WELCOME)
        return failed(lane, answer != LKI_REFUSED_CROWDED && answer != LKI_REFUSED_SLOW,
                      "the peer refuses this connection: %s",
                      lki_refusal_text((lki_refusal)answer));
    lane->state              = LKI_LANE_OPEN;
    lane->was_open           = true;
    tcp->reached[lane->peer] = true;
    return LK_OK;
}

lk_status lki_tcp_go_on(lki_lane *lane)
{
    if (lane->state == LKI_LANE_CONNECTING)
        LK_TRY(finish_connecting(lane));
    if (lane->state == LKI_LANE_GREETING)
        LK_TRY(lane->tls != NULL ? greet_tls(lane) : greet_plain(lane));
    if (lane->state == LKI_LANE_ASKING)
        LK_TRY(ask(lane));
    return lki_tcp_rewatch(lane);
}

/* ---- Attempts ---------------------------------------------------------------------------- */

static lk_status attempt(lki_lane *lane)
{
    const lki_tcp_options *options = &lane->tcp->options;
    const char            *text    = options->address_of(options->context, lane->peer);

    if (text == NULL)
        return failed(lane, false, "it has not said where it listens");
    LK_TRY(begin_connecting(lane, text));
    if (lane->state == LKI_LANE_GREETING)
        return lki_tcp_go_on(lane);
    return lki_tcp_rewatch(lane);
}

lk_status lki_tcp_dial(lki_tcp *tcp, uint32_t peer, uint32_t stream)
{
    lki_lane *lane = NULL;

    LK_TRY(lki_tcp_lane_new(&lane, tcp, true, -1));
    lane->peer        = peer;
    lane->stream      = stream;
    lane->state       = LKI_LANE_WAITING;
    lane->deadline_ms = lki_now_ms() + tcp->options.connect_ms;
    (void)snprintf(lane->address, sizeof lane->address, "rank %u", peer);
    lki_tcp_slot(tcp, peer, stream)->out = lane;
    lki_tcp_heat(lki_tcp_slot(tcp, peer, stream));
    lki_lane_push(&tcp->travellers, lane);
    return attempt(lane);
}

lk_status lki_tcp_retry(lki_tcp *tcp, int64_t now_ms, int64_t *next_ms)
{
    for (lki_lane *lane = tcp->travellers, *next; lane != NULL; lane = next) {
        next = lane->next;
        if (lane->state == LKI_LANE_WAITING && lane->retry_ms <= now_ms)
            LK_TRY(attempt(lane));
        else if (lane->state == LKI_LANE_CONNECTING && lane->deadline_ms <= now_ms)
            LK_TRY(failed(lane, true, "no answer within %lld ms%s",
                          (long long)tcp->options.connect_ms, advice(lane)));
    }
    for (lki_lane *lane = tcp->travellers; lane != NULL; lane = lane->next) {
        int64_t at = lane->state == LKI_LANE_WAITING ? lane->retry_ms : lane->deadline_ms;
        if (at < *next_ms)
            *next_ms = at;
    }
    return LK_OK;
}

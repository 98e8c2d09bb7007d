/* line.c -- a connection between two launchers. */
#include "launch/rendezvous/line.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"

/* WAITING_MAX: limit of the bytes queued for a peer that does not read, a few of the largest
 * letters. */
enum { READ_BYTES = 2048, WAITING_MAX = 8 * LKI_LETTER_BYTES_MAX };

static const char identity[] = "lockstep rendezvous 1: a guest to node 0";
static const char peer[]     = "TLS"; /* name of the peer in TLS errors; our own messages name its
                                       * host and node instead */

void lki_line_open(lki_line *line, int fd, size_t limit, int64_t now)
{
    *line = (lki_line){ .fd = fd, .limit = limit, .heard = now, .said = now, .established = true };
}

static bool is_guest(void *unused, const char *who)
{
    (void)unused;
    return strcmp(who, identity) == 0;
}

lk_status lki_line_secure(lki_line *line, lki_tls_library *library,
                          const unsigned char key[LKI_KEY_BYTES], bool guest)
{
    line->established = false;
    if (guest)
        return lki_tls_client(&line->tls, library, line->fd, peer, identity, key);
    return lki_tls_server(&line->tls, library, line->fd, peer, key, is_guest, NULL);
}

void lki_line_close(lki_line *line)
{
    if (line->tls != NULL && line->established && !line->ended
        && lki_tls_finish(line->tls) == LK_OK)
        (void)!lki_tls_flush(line->tls);
    lki_tls_free(line->tls);
    if (line->fd >= 0)
        (void)close(line->fd);
    lki_free(line->in.bytes);
    lki_free(line->out.bytes);
    *line = (lki_line){ .fd = -1 };
}

/* Makes room for `bytes` more bytes at the end of the buffer. */
static lk_status reserve(lki_buffer *buffer, size_t bytes)
{
    size_t used = buffer->end - buffer->first;
    void  *grown;

    if (buffer->capacity - buffer->end >= bytes)
        return LK_OK;
    if (buffer->capacity - used >= bytes) {
        memmove(buffer->bytes, buffer->bytes + buffer->first, used);
    } else {
        size_t capacity = lki_max(2 * buffer->capacity, used + bytes);
        LK_TRY(lki_alloc(&grown, capacity, "letters between launchers"));
        if (used > 0)
            memcpy(grown, buffer->bytes + buffer->first, used);
        lki_free(buffer->bytes);
        buffer->bytes    = grown;
        buffer->capacity = capacity;
    }
    buffer->first = 0;
    buffer->end   = used;
    return LK_OK;
}

/* ---- Moving bytes ------------------------------------------------------------------------ */

/* Records the end of the line. `broken` is true if the peer did not announce the end. `how` has
 * details, or is NULL. */
static void note_end(lki_line *line, bool broken, const char *how)
{
    if (line->ended)
        return;
    line->ended = true;
    if (line->mute)
        return; /* the failure to send is the reason */
    if (how == NULL)
        (void)snprintf(line->why, sizeof line->why, "closed the connection");
    else
        (void)snprintf(line->why, sizeof line->why, "%s the connection (%.150s)",
                       broken ? "broke" : "ended", how);
}

static lk_status tell_end(const lki_line *line)
{
    return lk_fail(LK_EPEER, "%s", line->why);
}

/* Returns the reason of a failed TLS call, whose message begins with the peer's name. */
static const char *tls_reason(void)
{
    const char *text = lk_error_last()->message;
    size_t      name = strlen(peer) + 2;

    return strlen(text) > name ? text + name : text;
}

static void note_tls_end(lki_line *line)
{
    line->distrusted = !line->established && !lki_tls_cut(line->tls);
    note_end(line, lki_tls_cut(line->tls), tls_reason());
}

/* Records that nothing more can be sent, for the reason `how`.  Drops the queue and makes the
 * socket readable, so that the owner reads the remaining bytes and finds the end. */
static void fall_mute(lki_line *line, const char *how)
{
    if (line->mute)
        return;
    line->mute      = true;
    line->out.first = line->out.end = 0;
    (void)snprintf(line->why, sizeof line->why, "broke the connection (%.150s)", how);
    (void)shutdown(line->fd, SHUT_RDWR);
}

/* Continues the handshake.  Returns true once letters can be sent. */
static bool is_ready(lki_line *line)
{
    if (!line->established && lki_tls_handshake(line->tls, &line->established) != LK_OK)
        note_tls_end(line);
    return line->established && !line->ended;
}

/* Sends as many queued bytes as the socket accepts. *moved becomes their number, which may be 0. */
static void send_some(lki_line *line, size_t *moved)
{
    struct iovec part = { .iov_base = line->out.bytes + line->out.first,
                          .iov_len  = line->out.end - line->out.first };
    ssize_t      sent;

    *moved = 0;
    if (line->tls != NULL) {
        if (lki_tls_write(line->tls, &part, 1, moved) != LK_OK)
            fall_mute(line, tls_reason());
        return;
    }
    do
        sent = send(line->fd, part.iov_base, part.iov_len, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent >= 0)
        *moved = (size_t)sent;
    else if (errno != EAGAIN)
        fall_mute(line, strerror(errno));
}

/* Closes the direction to the peer of a line whose queue has been sent. */
static void close_output(lki_line *line)
{
    if (line->tls != NULL && lki_tls_finish(line->tls) != LK_OK)
        fall_mute(line, tls_reason());
    if (!line->mute && !lki_line_has_more(line))
        (void)shutdown(line->fd, SHUT_WR);
}

void lki_line_send(lki_line *line, int64_t now)
{
    lki_buffer *out   = &line->out;
    size_t      moved = 1;

    while (is_ready(line) && out->first < out->end && moved > 0) {
        send_some(line, &moved);
        out->first += moved;
        line->said = moved > 0 ? now : line->said;
    }
    if (line->tls != NULL && !line->ended && !line->mute && lki_tls_flush(line->tls) != LK_OK)
        fall_mute(line, tls_reason());
    if (out->first == out->end)
        out->first = out->end = 0;
    if (line->finishing && is_ready(line) && out->end == 0)
        close_output(line);
}

void lki_line_finish(lki_line *line, int64_t now)
{
    line->finishing = true;
    lki_line_send(line, now);
}

/* Reads up to `bytes` available bytes. *moved becomes their number, which may be 0. */
static void receive_some(lki_line *line, void *data, size_t bytes, size_t *moved)
{
    ssize_t got;

    *moved = 0;
    if (line->tls != NULL) {
        if (lki_tls_read(line->tls, data, bytes, moved) != LK_OK)
            note_tls_end(line);
        return;
    }
    do
        got = recv(line->fd, data, bytes, 0);
    while (got < 0 && errno == EINTR);
    if (got > 0)
        *moved = (size_t)got;
    else if (got == 0)
        note_end(line, false, NULL);
    else if (errno != EAGAIN)
        note_end(line, true, strerror(errno));
}

/* Buffers at most about one letter of the largest size; further bytes wait in the socket. */
lk_status lki_line_receive(lki_line *line, int64_t now)
{
    lki_buffer *in    = &line->in;
    size_t      moved = 1;

    while (moved > 0 && in->end - in->first < line->limit && is_ready(line)) {
        LK_TRY(reserve(in, READ_BYTES));
        receive_some(line, in->bytes + in->end, in->capacity - in->end, &moved);
        in->end += moved;
        line->heard = moved > 0 ? now : line->heard;
    }
    return LK_OK;
}

/* ---- Letters ----------------------------------------------------------------------------- */

/* Reads even without an event if TLS holds decrypted bytes, which epoll does not report. */
lk_status lki_line_next(lki_line *line, lki_letter *letter, bool *got)
{
    lki_buffer *in   = &line->in;
    size_t      used = 0;

    *got = false;
    for (int i = 0; i < 2 && used == 0; i++) {
        if (i == 1 && line->tls != NULL && line->established && lki_tls_buffered(line->tls))
            LK_TRY(lki_line_receive(line, line->heard));
        if (in->first < in->end)
            LK_TRY(lki_letter_read(letter, in->bytes + in->first, in->end - in->first, line->limit,
                                   &used));
    }
    in->first += used;
    *got = used > 0;
    return used > 0 || !line->ended ? LK_OK : tell_end(line);
}

lk_status lki_line_say(lki_line *line, const void *letter, size_t bytes)
{
    lki_buffer *out = &line->out;

    if (line->mute || line->ended || line->finishing)
        return LK_OK;
    if (out->end - out->first + bytes > WAITING_MAX)
        return lk_fail(LK_EPEER, "does not read what it is sent: %zu bytes wait",
                       out->end - out->first);
    LK_TRY(reserve(out, bytes));
    memcpy(out->bytes + out->end, letter, bytes);
    out->end += bytes;
    return LK_OK;
}

bool lki_line_has_more(const lki_line *line)
{
    bool waits = line->out.first < line->out.end;
    if (line->tls == NULL || line->mute)
        return waits;
    return lki_tls_unsent(line->tls) > 0 || (line->established && waits);
}

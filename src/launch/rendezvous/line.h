/* launch/rendezvous/line.h -- a connection between two launchers, which carries letters.
 *
 * A line is plain, or uses TLS with the job's key.  Both directions are buffered and no call
 * blocks.  A broken line records the reason and remains broken until its owner closes it.  A peer
 * that leaves too many bytes unread is treated as broken.
 *
 * Only reading finds the end of a line.  A launcher that leaves the job sends its outcome and
 * closes the connection, perhaps before it has read everything.  If a send fails after that, the
 * outcome must still be read.
 */
#ifndef LKI_LAUNCH_RENDEZVOUS_LINE_H
#define LKI_LAUNCH_RENDEZVOUS_LINE_H

#include "launch/rendezvous/letter.h"
#include "link/tls.h"

typedef struct {
    unsigned char *bytes;
    size_t         first, end, capacity; /* [first, end) is in use */
} lki_buffer;

typedef struct {
    int        fd;          /* -1 = closed */
    lki_tls   *tls;         /* NULL = plain */
    bool       established; /* no TLS handshake is pending, so letters can be sent */
    bool       distrusted;  /* the handshake failed: the peer has another key, or none */
    lki_buffer in, out;
    size_t     limit;       /* size of the largest letter accepted from the peer */
    int64_t    heard, said; /* times of the last bytes received and sent */
    bool       finishing; /* the direction to the peer is closed when the queue has been sent */
    bool       mute;  /* nothing more can be sent; what the peer has sent is still read */
    bool       ended; /* no more bytes will arrive; `in` may still hold letters */
    char       why[200]; /* reason of the end, e.g. "closed the connection" */
} lki_line;

/* Takes ownership of `fd`, which must be non-blocking.  `limit`: the largest letter accepted, in
 * bytes. */
void lki_line_open(lki_line *line, int fd, size_t limit, int64_t now);

/* Switches the line to TLS, before any bytes were sent.  Both sides have the key; the guest is the
 * client.  Letters are queued until the handshake is complete. */
LK_NODISCARD lk_status lki_line_secure(lki_line *line, lki_tls_library *library,
                                       const unsigned char key[LKI_KEY_BYTES], bool guest);
void lki_line_close(lki_line *line);

static inline bool lki_line_is_open(const lki_line *line)
{
    return line->fd >= 0;
}

/* Reads the bytes that have arrived. */
LK_NODISCARD lk_status lki_line_receive(lki_line *line, int64_t now);

/* Sends as much of the queue as the socket accepts.  If that fails, the queue is dropped, and the
 * socket is readable up to the end of the line. */
void lki_line_send(lki_line *line, int64_t now);

/* Returns the next complete letter; *got is false if there is none.  The letter points into the
 * line and is valid until the next call for that line.  Returns LK_EFORMAT for invalid bytes,
 * LK_EPEER at the end of the connection.  The messages say what the peer did, e.g. "closed the
 * connection". */
LK_NODISCARD lk_status lki_line_next(lki_line *line, lki_letter *letter, bool *got);

/* Queues a letter of `bytes` bytes, as written by lki_letter_write().  Drops the letter if nothing
 * more can be sent. */
LK_NODISCARD lk_status lki_line_say(lki_line *line, const void *letter, size_t bytes);

/* Closes the direction to the peer once everything queued has been sent.  The line ends when the
 * peer has read everything and closes the connection.  An earlier close() may destroy bytes that
 * are still being sent: the kernel resets a connection that is closed with unread bytes. */
void lki_line_finish(lki_line *line, int64_t now);

/* Returns true if sending must continue once the socket has room. */
bool lki_line_has_more(const lki_line *line);

#endif

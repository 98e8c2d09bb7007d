/* rendezvous/line.h -- a connection between two launchers: letters in, letters out.
 *
 * It is plain, or in TLS with the job's key.  Both directions are buffered, nothing blocks.  A line
 * that breaks says why and stays broken: its owner closes it.  A peer that does not read for long
 * is one that is broken.
 */
#ifndef LKI_RENDEZVOUS_LINE_H
#define LKI_RENDEZVOUS_LINE_H

#include "comm/rendezvous/letter.h"
#include "comm/tls.h"

typedef struct {
    unsigned char *bytes;
    size_t         first, end, capacity; /* what is in it: [first, end) */
} lki_buffer;

typedef struct {
    int        fd;          /* -1 = closed */
    lki_tls   *tls;         /* NULL = plain */
    bool       established; /* letters can travel */
    bool       distrusted;  /* the handshake failed: the other side has another key, or none */
    lki_buffer in, out;
    size_t     limit;       /* of a letter from the other side */
    int64_t    heard, said; /* when something last came and last left */
    bool       ended; /* nothing more comes; what was said before may still be in `in` */
    char       why[200]; /* it ended: "closed the connection" */
} lki_line;

/* Owns `fd`, which does not block.  Letters may have `limit` bytes. */
void lki_line_open(lki_line *line, int fd, size_t limit, int64_t now);

/* In TLS, from the start: both sides have the key, and `guest` is the client.  Letters wait until
 * the handshake is over. */
LK_NODISCARD lk_status lki_line_secure(lki_line *line, lki_tls_library *library,
                                       const unsigned char key[LKI_KEY_BYTES], bool guest);
void lki_line_close(lki_line *line);

static inline bool lki_line_is_open(const lki_line *line)
{
    return line->fd >= 0;
}

/* Takes what has arrived. */
LK_NODISCARD lk_status lki_line_receive(lki_line *line, int64_t now);

/* Sends what waits, as far as it goes.  LK_EPEER as lki_line_next(). */
LK_NODISCARD lk_status lki_line_send(lki_line *line, int64_t now);

/* The next letter that has come whole; *got is false if there is none yet.  It points into the
 * line, until the next call for it.  LK_EFORMAT for garbage, LK_EPEER at the end; the texts tell
 * what the other side did: "closed the connection". */
LK_NODISCARD lk_status lki_line_next(lki_line *line, lki_letter *letter, bool *got);

/* A letter of `bytes` bytes, as lki_letter_write() made it. */
LK_NODISCARD lk_status lki_line_say(lki_line *line, const void *letter, size_t bytes);
LK_NODISCARD lk_status lki_line_write(lki_line *line, const lki_letter *letter); /* without list */

/* Whether there must be room before more can be sent. */
bool lki_line_has_more(const lki_line *line);

#endif

/* link/hello.h -- the hello, the first bytes that a writer sends: job, sender, receiver, stream.
 *
 * A hello is one line of text, "lockstep:JOB:EPOCH:FROM>TO:STREAM".  JOB is hexadecimal and the
 * other values are decimal.  Every hello has exactly one valid spelling.  With TLS the hello is the
 * identity of the session, so the handshake proves it.  Without TLS the hello is sent in plain
 * text, with a newline at its end.  The reader answers with one byte: 0 (admitted), or an
 * lki_refusal.
 */
#ifndef LKI_LINK_HELLO_H
#define LKI_LINK_HELLO_H

#include "link/tcp.h"

enum { LKI_HELLO_BYTES = 128 }; /* including the newline and the terminating zero */

typedef struct {
    unsigned char job[LKI_JOB_BYTES];
    uint64_t      epoch;
    uint32_t      from, to, stream;
} lki_hello;

/* Formats a hello, without newline. */
void lki_hello_text(char out[LKI_HELLO_BYTES], const lki_hello *hello);

/* Parses a hello.  Returns false unless `text` is exactly as lki_hello_text() writes it. */
bool lki_hello_parse(lki_hello *out, const char *text);

/* Returns true if the bytes received so far may be the start of a hello. */
bool lki_hello_begins(const char *text, size_t bytes);

/* Returns LKI_WELCOME, or the reason to refuse `hello`.  `mine` has the job and epoch of the
 * reader, and the rank of the reader in `to`. */
lki_refusal lki_hello_judge(const lki_hello *hello, const lki_hello *mine, uint32_t ranks,
                            uint32_t streams);

#endif

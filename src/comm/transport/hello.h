/* comm/transport/hello.h -- what a writer says first: which job, from whom to whom.
 *
 * One line of text, "lockstep:JOB:EPOCH:FROM>TO:STREAM" (JOB in hex, the rest in decimal, nothing
 * optional, no two lines for the same facts).  With TLS it is the identity of the session, so that
 * it is part of the key and of what the handshake proves; without, it is sent as it is, with a
 * newline.  The reader answers with one byte: 0, or an lki_refusal.
 */
#ifndef LKI_TRANSPORT_HELLO_H
#define LKI_TRANSPORT_HELLO_H

#include "comm/tcp.h"

enum { LKI_HELLO_BYTES = 128 }; /* with the newline and the terminating zero */

typedef struct {
    unsigned char job[LKI_JOB_BYTES];
    uint64_t      epoch;
    uint32_t      from, to, stream;
} lki_hello;

void lki_hello_text(char out[LKI_HELLO_BYTES], const lki_hello *hello);

/* Whether `text` is exactly what lki_hello_text() writes for some facts. */
bool lki_hello_parse(lki_hello *out, const char *text);

/* Whether what is there so far may become a hello. */
bool lki_hello_begins(const char *text, size_t bytes);

/* What a reader with this rank thinks of it: LKI_WELCOME or why not.  `mine` has the reader's job
 * and epoch; `to` is its rank. */
lki_refusal lki_hello_judge(const lki_hello *hello, const lki_hello *mine, uint32_t ranks,
                            uint32_t streams);

#endif

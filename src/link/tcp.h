/* link/tcp.h -- the transport between hosts: streams over TCP, with TLS by default.
 *
 * Every rank listens on a port that the kernel chooses, and publishes its address by other means (a
 * job's rendezvous).  Each stream is a connection from its writer to its reader, opened by the
 * first write.  A peer may not listen yet, so failed attempts to connect are repeated until a time
 * limit.  Once a peer has been reached, a refused connection is final.
 *
 * An incoming connection is called a stranger until its hello was found valid.  If the job has a
 * key, TLS must also prove that the peer has the key.  A stranger must send its hello within 5 s
 * and in a bounded number of bytes.  When there are too many strangers, the oldest is closed.
 * Refusals are counted by reason and host, and reported at a limited rate (link/doorbook.h).
 *
 * A dead peer is detected when its connections end, in either direction.  A dead host is detected
 * by its silence.
 */
#ifndef LKI_LINK_TCP_H
#define LKI_LINK_TCP_H

#include "link/address.h"
#include "link/link.h"
#include "link/tls.h"

enum { LKI_JOB_BYTES = 16 };

/* Reasons for refusing a connection: X(NAME, text for the user). */
#define LKI_REFUSAL_TABLE(X)                                                                       \
    X(GARBAGE, "what it says is no hello")                                                         \
    X(OVERSIZED, "its hello has no end")                                                           \
    X(CUT, "it ended before it had said who it is")                                                \
    X(SLOW, "it did not say who it is in time")                                                    \
    X(CROWDED, "too many stand at the door")                                                       \
    X(JOB, "it belongs to another job")                                                            \
    X(EPOCH, "it belongs to another epoch of the job")                                             \
    X(RANK, "its rank, or the one it asks for, is wrong")                                          \
    X(STREAM, "there is no such stream")                                                           \
    X(DUPLICATE, "the stream is connected already")                                                \
    X(KEY, "it does not have the key of this job")

typedef enum {
    LKI_WELCOME,
#define LKI_REFUSAL_ENUM(name, text) LKI_REFUSED_##name,
    LKI_REFUSAL_TABLE(LKI_REFUSAL_ENUM)
#undef LKI_REFUSAL_ENUM
        LKI_REFUSALS
} lki_refusal;

const char *lki_refusal_text(lki_refusal refusal);

/* The options of a tcp link.  Zero selects the default of a field that has one. */
typedef struct {
    uint32_t             rank, ranks;
    uint32_t             streams; /* number of streams in each direction between two ranks; default
                                   * 1 */
    unsigned char        job[LKI_JOB_BYTES];
    uint64_t             epoch;
    const unsigned char *key;  /* the job's key of LKI_KEY_BYTES bytes, copied; NULL: plain TCP, for
                                * trusted networks */
    const char          *host; /* numeric address to listen on, without a port */

    /* Returns the address of a rank as text, or NULL while the address is unknown. */
    const char *(*address_of)(void *context, uint32_t rank);

    /* (optional) Reports refused connections: "refused 3 connections from 10.0.0.9: ...".  The
     * first refusal for each reason and host is reported at once.  Later refusals are reported
     * every ten seconds and when the link is closed. */
    void (*refused)(void *context, lki_refusal why, const char *text);
    void *context;

    int64_t connect_ms; /* time limit for reaching a peer; default 30 s */
    int64_t hello_ms;   /* time limit for the hello of an incoming connection; default 5 s */
    int64_t silence_ms; /* time after which a peer that sends or accepts nothing counts as lost;
                         * default 60 s */
} lki_tcp_options;

/* Opens the link and starts to listen.  LK_EUNSUPPORTED if options->key is set but OpenSSL is
 * missing. */
LK_NODISCARD lk_status lki_tcp_open(lki_link **out, const lki_tcp_options *options);

/* Returns the address of this rank: "10.0.0.1:4711". */
const char *lki_tcp_address(const lki_link *link);

/* Returns the number of connections refused for this reason. */
uint64_t lki_tcp_refusals(const lki_link *link, lki_refusal why);

#endif

/* comm/tcp.h -- the transport between hosts: streams over TCP, in TLS unless told otherwise.
 *
 * Every rank listens, on a port that the kernel chooses, and publishes where (by other means: a
 * job's rendezvous).  A stream is a connection of its own, from its writer to its reader, opened by
 * the first write.  A peer may not listen yet, so connecting is tried again for a while; once it
 * has been reached, a refusal is final.
 *
 * Nobody disturbs a job from outside.  A connection counts for nothing until its hello is good (and
 * with a key: until TLS has proved that it has the key of this very job, epoch and direction); it
 * has 5 s for that, a bounded number of bytes, and its turn like everybody, and when too many
 * stand at the door the one that has stood there longest has to go.  Those that are turned away
 * are counted by reason and host, and told of so that no log can be filled (transport/doorbook.h).
 *
 * A peer that is gone is found by the end of its connections, in either direction; a host that is
 * gone by silence.
 */
#ifndef LKI_COMM_TCP_H
#define LKI_COMM_TCP_H

#include "comm/address.h"
#include "comm/link.h"
#include "comm/tls.h"

enum { LKI_JOB_BYTES = 16 };

/* Why a connection is turned away: X(NAME, what is wrong with it). */
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

/* Zero is the default where one is named. */
typedef struct {
    uint32_t             rank, ranks;
    uint32_t             streams; /* to each peer, and from it; default 1 */
    unsigned char        job[LKI_JOB_BYTES];
    uint64_t             epoch;
    const unsigned char *key;  /* LKI_KEY_BYTES, copied; NULL: plain TCP, for trusted networks */
    const char          *host; /* to listen on: a numeric address, as of lki_address_interface() */

    /* Where a rank listens; NULL as long as that is not known. */
    const char *(*address_of)(void *context, uint32_t rank);

    /* Told that connections were refused, "refused 3 connections from 10.0.0.9: ...": the first for
     * each reason and host, what followed every ten seconds, and what is left at the end; may be
     * NULL. */
    void (*refused)(void *context, lki_refusal why, const char *text);
    void *context;

    int64_t connect_ms; /* how long to try to reach a peer; default 30 s */
    int64_t hello_ms;   /* how long a stranger may take; default 5 s */
    int64_t silence_ms; /* no sign of life, or no room at the peer, for so long: it is gone;
                         * default 60 s */
} lki_tcp_options;

/* LK_EUNSUPPORTED where there is a key but no OpenSSL. */
LK_NODISCARD lk_status lki_tcp_open(lki_link **out, const lki_tcp_options *options);

/* Where this rank listens: "10.0.0.1:4711". */
const char *lki_tcp_address(const lki_link *link);

/* How many connections were refused for this reason. */
uint64_t lki_tcp_refusals(const lki_link *link, lki_refusal why);

#endif

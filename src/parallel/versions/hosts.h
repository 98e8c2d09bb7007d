/* parallel/versions/hosts.h -- gradients of asynchronous training between hosts: what hosts.c and
 * carriers.c keep.
 *
 * Each host keeps all versions, and applies all gradients in the same order.  Host 0 keeps the
 * order.  The first rank of each host, its carrier, sends and receives for the host.
 */
#ifndef LKI_PARALLEL_VERSIONS_HOSTS_H
#define LKI_PARALLEL_VERSIONS_HOSTS_H

#include <stdatomic.h>

#include "lockstep/comm.h"

enum { LKI_ORDER_HOST = 0, LKI_READ_AHEAD = 4 /* envelopes */ };

/* The purpose of a communicator of two carriers. */
typedef enum {
    LKI_ENVELOPES_IN,
    LKI_VALUES_IN,
    LKI_ENVELOPES_OUT,
    LKI_VALUES_OUT,
    LKI_WAYS
} lki_way;

/* The description of a gradient.  The reports of its virtual workers come after it. */
typedef struct {
    uint64_t place;    /* in the order of application; LKI_NO_PLACE: it has none yet */
    uint64_t task, reads;
    uint64_t gradient; /* hash, of live runs and replays */
    uint64_t waited;   /* microseconds for which ranks of the host had no task */
    uint32_t group;
    uint32_t host;     /* that has computed the gradient */
    uint32_t message;  /* where that host keeps it */
    uint32_t said;     /* as in lki_versions_say() */
    uint32_t ends;     /* 1: there is no gradient; the last envelope to this peer */
} lki_envelope;

/* A gradient that is being sent. */
typedef struct {
    uint32_t    message;
    lk_request *envelope, *values; /* NULL: complete */
} lki_sending;

/* A gradient that is being received. */
typedef struct {
    lki_envelope *envelope; /* and the reports */
    uint32_t      message;  /* that gets the values */
    lk_request   *values;   /* NULL: complete, or there are none */
} lki_receiving;

/* The carrier of another host, as seen by this carrier. */
typedef struct {
    lk_comm      *comms[LKI_WAYS]; /* of the two carriers, by lki_way */
    uint32_t      host;
    bool          ended;    /* the last envelope from it has come */
    lk_request   *envelope; /* that is received next */
    /* Numbers of gradients from it: whose envelopes have come, whose values have a place to come
     * to, and that this host has taken in. */
    uint64_t      read, begun, taken_in;
    lki_receiving receivings[LKI_READ_AHEAD];
    uint64_t      next;     /* number of the gradient that is sent to it next */
    lki_sending  *sendings; /* [message_count]: in any order */
    uint32_t      sending_count;
    lki_envelope *end;      /* the last envelope to it */
    lk_request   *ending;
} lki_peer;

/* The hosts of a run, as seen by a rank. */
typedef struct {
    uint32_t  count;   /* hosts */
    uint32_t  here;    /* number of this host */
    uint32_t  message; /* that this rank has reserved; LKI_NO_BUFFER: none */
    bool      opened;
    lki_peer *peers;   /* [peer_count]: of a carrier.  Host 0 has all other hosts, and each of the
                        * others has host 0 alone */
    uint32_t  peer_count;
    size_t    envelope_bytes;
    float    *scratch; /* for the values of gradients that come after the end; or NULL */

    /* The fields below point into the arena. */
    char             *envelopes; /* [message_count][envelope_bytes] */
    uint32_t         *said;      /* [window] */
    /* [arrived_count]: groups of the gradients that have arrived, by their places modulo
     * arrived_count */
    uint32_t         *arrived;
    uint32_t          arrived_count;
    /* [groups]: messages, on host 0 in a live run, whose gradients have no place yet, in the order
     * of their arrival.  The holder of the order changes them. */
    uint32_t         *pending;
    uint32_t         *pending_count;
    /* [message_count]: 1 + the messages to send, on the other hosts, by a number modulo
     * message_count; 0: none */
    _Atomic uint32_t *outbox;
    _Atomic uint64_t *posted; /* number of messages so far */
} lki_hosts;

#endif

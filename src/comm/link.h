/* comm/link.h -- the transport waist: byte streams from one rank to another.
 *
 * A link is all that a rank has for reaching ranks which it shares no memory with.  Between two
 * ranks there are `streams` streams in each direction.  A stream belongs to its writer, who opens
 * it by the first write (so there is no mesh to build at the start), and is read by the other
 * side.  Within a stream bytes arrive in order and once, or the stream breaks; between streams
 * nothing is promised.  Messages, their matching and their deadlines lie above it (wire/wire.h).
 *
 * Entries: tcp (plain, and TLS with the job's key), mpi (by a module that is loaded), sim (all
 * ranks in one process, seeded order, a clock of its own), chaos (in front of another one: delays,
 * cuts, breaks).
 *
 * Ownership: what is written is copied before the call returns; whoever opened a link closes it.
 * Threads:   one at a time for a link.
 * Errors:    LK_EPEER where a stream is broken, with a text that says which address and how; it
 *            stays broken.  Anything else is a failure of the link itself.
 */
#ifndef LKI_COMM_LINK_H
#define LKI_COMM_LINK_H

#include <sys/uio.h>

#include "comm/traffic.h"
#include "lockstep/base.h"

typedef struct lki_link lki_link;

/* A stream that can move: from the peer, to it, or both. */
typedef struct {
    uint32_t peer, stream;
    bool     readable, writable;
} lki_ready;

typedef struct {
    const char *name;

    /* Takes what there is room for; *moved is 0 where there is none yet. */
    lk_status (*write)(lki_link *link, uint32_t peer, uint32_t stream, const struct iovec *parts,
                       int count, size_t *moved);

    /* Gives what has arrived; *moved is 0 where that is nothing.  LK_EPEER after the last byte of
     * a stream that its writer has closed, and for a peer that is gone if there ever was a stream
     * between the two, in whichever direction. */
    lk_status (*read)(lki_link *link, uint32_t peer, uint32_t stream, void *data, size_t bytes,
                      size_t *moved);

    /* Which directions of a stream wait() reports.  In the beginning: reading, not writing. */
    void (*watch)(lki_link *link, uint32_t peer, uint32_t stream, bool reading, bool writing);

    /* Lists up to `capacity` streams that can move (or are broken: the next read or write says
     * so), waiting up to `ms` for the first; *count is 0 after that.  Does what the link itself
     * has to do, such as letting peers in. */
    lk_status (*wait)(lki_link *link, int64_t ms, lki_ready *ready, uint32_t capacity,
                      uint32_t *count);

    int64_t (*now_ms)(const lki_link *link); /* what deadlines are measured by */

    /* (optional) What has been written to a peer, on all streams together. */
    void (*traffic)(const lki_link *link, uint32_t peer, lki_traffic *out);

    /* Closes and frees.  What was written before still arrives. */
    void (*close)(lki_link *link);
} lki_link_ops;

struct lki_link {
    const lki_link_ops *ops;
    uint32_t            rank, ranks; /* mine, and how many there are, in the job */
    uint32_t            streams;
    bool                sealed; /* damaged bytes break a stream: no sums are needed above it */
    bool                hurry;  /* set by its user before close(): something has failed, so peers
                                 * may never come */
};

#endif

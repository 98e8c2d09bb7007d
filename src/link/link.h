/* link/link.h -- the transport interface: byte streams from one rank to another.
 *
 * A link connects a rank with all ranks with which it shares no memory.  Between two ranks there
 * are `streams` streams in each direction.  A stream has one writer and one reader.  The writer's
 * first write opens it, so no connections are made at the start.  The bytes of a stream arrive in
 * order and once, or the stream breaks.  Bytes of different streams arrive in any order.  Messages,
 * their matching and their deadlines are built on top (wire/wire.h).
 *
 * Implementations: tcp (plain, or TLS with the job's key), mpi (in a module loaded at run time),
 * sim (all ranks in one process, seeded order, simulated time), chaos (wraps another link; delays,
 * cuts and breaks).
 *
 * Some links can also transfer memory of the caller without a copy (post_send, post_receive).
 *
 * Ownership: written data is copied before the call returns.  Posted memory belongs to the link
 *            until completed() or cancel().  The opener of a link closes it.
 * Threads:   only one thread at a time may use a link.
 * Errors:    LK_EPEER if a stream is broken, with a text that names the address and the error; the
 * stream stays broken.  Any other error is a failure of the link itself.
 */
#ifndef LKI_LINK_LINK_H
#define LKI_LINK_LINK_H

#include <sys/uio.h>

#include "link/traffic.h"
#include "lockstep/base.h"

typedef struct lki_link lki_link;

/* A stream that can be read, written, or both. */
typedef struct {
    uint32_t peer, stream;
    bool     readable, writable;
    bool     completed; /* completed() of this peer may return true */
} lki_ready;

/* Maximum number of posted transfers with a peer in one direction. */
enum { LKI_LINK_POSTS = 4 };

typedef struct {
    const char *name;

    /* Accepts as many bytes as fit.  *moved becomes their number, which is 0 if no space is
     * free. */
    lk_status (*write)(lki_link *link, uint32_t peer, uint32_t stream, const struct iovec *parts,
                       int count, size_t *moved);

    /* Reads the bytes that have arrived.  *moved becomes their number, which is 0 if no byte has
     * arrived.  Returns LK_EPEER after the last byte of a stream that its writer has closed.  Also
     * returns LK_EPEER if the peer has ended and any stream between the two ranks was ever used, in
     * either direction. */
    lk_status (*read)(lki_link *link, uint32_t peer, uint32_t stream, void *data, size_t bytes,
                      size_t *moved);

    /* Sets the directions of a stream that wait() reports.  The initial setting is reading only. */
    void (*watch)(lki_link *link, uint32_t peer, uint32_t stream, bool reading, bool writing);

    /* Lists up to `capacity` streams that are ready.  A broken stream counts as ready, and its next
     * read or write returns the error.  Waits up to `ms` for the first ready stream.  *count
     * becomes the number of listed streams.  Also does the link's own work, such as accepting
     * connections. */
    lk_status (*wait)(lki_link *link, int64_t ms, lki_ready *ready, uint32_t capacity,
                      uint32_t *count);

    /* (optional, with the next three calls) Sends `data` without a copy.  The n-th posted send to a
     * rank is received by its n-th posted receive, which must have the same size.  At most
     * LKI_LINK_POSTS posts with a peer in one direction may be uncollected. */
    lk_status (*post_send)(lki_link *link, uint32_t peer, const void *data, size_t bytes);
    lk_status (*post_receive)(lki_link *link, uint32_t peer, void *data, size_t bytes);

    /* Collects the oldest uncollected post with a peer in one direction.  Returns false if there is
     * none, or if it is not complete. */
    bool (*completed)(lki_link *link, uint32_t peer, bool receiving);

    /* Takes back the memory of all posts, after a failure.  Nothing may be posted afterwards.
     * Waits for transfers that have begun, for at most 2 s.  Returns false if some do not end.  The
     * link then moves no more bytes.  Hardware may still complete such a transfer, so the memory of
     * all uncollected posts must not be freed or used for anything else until the process ends. */
    bool (*cancel)(lki_link *link);

    int64_t (*now_ms)(const lki_link *link); /* the clock for deadlines */

    /* (optional) Returns the traffic to a peer, summed over all streams. */
    void (*traffic)(const lki_link *link, uint32_t peer, lki_traffic *out);

    /* Closes and frees the link.  Bytes written before the call still arrive. */
    void (*close)(lki_link *link);
} lki_link_ops;

struct lki_link {
    const lki_link_ops *ops;
    uint32_t            rank, ranks; /* world rank of this rank; number of ranks of the job */
    uint32_t            streams;
    bool                sealed; /* the link detects damaged bytes and breaks the stream, so the
                                 * layer above needs no checksums */
    char                carrier[80]; /* text for users: what carries the bytes */
    bool                hurry;  /* set by the user before close() after a failure: close() then does
                                 * not wait for peers */
    bool                stopping; /* set by the user before close(): this rank was asked to stop */
};

#endif

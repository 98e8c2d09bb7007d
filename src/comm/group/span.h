/* comm/group/span.h -- a communicator over several hosts, as used by the code for one host.
 *
 * If ranks are on several hosts, request.c, wait.c and the few calls without a request call through
 * this table.  The functions are in span/.
 */
#ifndef LKI_COMM_GROUP_SPAN_H
#define LKI_COMM_GROUP_SPAN_H

#include "comm/algorithm/schedule.h"
#include "comm/group/group.h"

typedef struct lki_span lki_span;

typedef struct lki_span_ops {
    /* Gives the request the next sequence number.  Sends nothing; advance() sends. */
    lk_status (*publish)(lk_request *request);

    /* Advances the request without blocking.  Only a few requests of a communicator exchange
     * messages at a time; the other requests wait. */
    lk_status (*advance)(lk_request *request, bool *moved);

    /* Releases an incomplete request.  Fails the group if `others` is true (other ranks need the
     * request), or if the wire may still write to its buffers. */
    void (*drop)(lk_request *request, bool others);

    /* Waits until the request is complete.  `ms` and *late are as in lki_await_for(). */
    lk_status (*await)(lk_request *request, int64_t ms, int64_t *late);

    /* Handles an expired deadline.  Asks all ranks concerned for their positions, then fails the
     * group.  Returns LK_OK if the request has completed in the meantime. */
    lk_status (*timeout)(lk_request *request, int64_t waited_ms);

    /* Sends and receives as much as possible without blocking.  If the wire fails, fails the group,
     * too. */
    void (*poll)(lki_self *self);

    /* Sends the group's failure to the other hosts. */
    void (*tell)(const lk_comm *comm);

    /* Closes the wire of a rank that leaves, and frees the rank's scratch memory. */
    void (*leave)(lki_self *self);

    /* Compares the outcomes of all ranks.  Returns the error of the lowest rank that failed, or
     * LK_OK if no rank failed. */
    lk_status (*agree)(lk_comm *comm, lk_status mine);

    /* Creates an arena on each host.  Collective. */
    lk_status (*arena)(lk_arena **out, lk_comm *comm, const char *name, size_t bytes);

    /* Copies every rank's part of the arena, bytes[rank] bytes, to all other hosts.  Blocks. */
    lk_status (*mirror)(lk_comm *comm, lk_arena *arena, size_t offset, const size_t *bytes);

    /* Creates a communicator of `size` ranks, in which this rank is `rank`.  Owns `local`, which
     * has the ranks on this host.  The caller fills in the remaining fields of the communicator,
     * from `world` to `parent`, and then connects it. */
    lk_status (*create)(lk_comm **out, lk_comm *local, uint32_t rank, uint32_t size,
                        const uint32_t *host_of);

    /* Creates the groups through which operations of a new communicator run within and across
     * hosts.  Collective. */
    lk_status (*connect)(lk_comm *comm);

    void (*free)(lki_span *span); /* accepts NULL */
} lki_span_ops;

/* Two communicators of the ranks of a host, for the barriers before and after the exchange with
 * other hosts (span/fill.c). */
typedef struct {
    lk_comm *enter, *leave;
    uint64_t next, turn; /* number of the next fill that starts; number of the next fill that may
                          * leave */
} lki_doors;

struct lki_span {
    lk_comm      *local;      /* the ranks of this communicator on this host */
    bool          owns_local; /* if false, `local` belongs to the parent communicator */
    lki_host_map  map;
    uint32_t      running;    /* operations that are exchanging messages */
    struct lki_levels *levels; /* NULL unless every host has the same number of ranks, at least
                                * two */
    lki_doors     doors;      /* opened by the first lki_arena_fill_start() */
};

/* Returns the communicator of this host's ranks: `comm` itself on one host. */
static inline lk_comm *lki_comm_local(lk_comm *comm)
{
    return comm->span != NULL ? comm->span->local : comm;
}

#endif

/* span/span.h -- a communicator over several hosts: the same calls, over messages.
 *
 * request.c, and the few calls that make no request, come here where comm->span is set.  What an
 * operation does is written by an algorithm (algorithm/) and carried out by a task (task.h), on
 * the wire that all communicators of a rank share.
 *
 * A rank of a span waits for two things at once: bytes from other hosts, and the memory of its
 * own.  Whatever it waits for it moves both, and it looks at both for failures: what fails on the
 * board is told over the wire, and what the wire says condemns the board.
 */
#ifndef LKI_COMM_SPAN_H
#define LKI_COMM_SPAN_H

#include "comm/span/fill.h"
#include "comm/span/relay.h"
#include "comm/request.h"
#include "comm/algorithm/schedule.h"
#include "comm/wire/wire.h"

typedef struct lki_span lki_span;

struct lki_span {
    lk_comm  *local;       /* those of its ranks that are on this host */
    bool      owns_local;  /* else it is the parent */
    uint32_t  hosts;
    uint32_t *host_of;     /* of every rank */
    uint32_t *local_ranks; /* of every rank, on its host */
    uint32_t *local_sizes; /* of every host */
    uint32_t *first_of;    /* of every host: where its ranks begin in ... */
    uint32_t *ranks;       /* ... all ranks, host after host */
    uint32_t  running;     /* operations whose messages travel */
    lki_levels *levels;    /* NULL: of the first communicator, where hosts are alike */
    lki_doors   doors;     /* opened by the first lki_arena_fill_start() */
};

/* The communicator over all ranks of the job that are in the group; `local` is that of this host's,
 * host_of[r] the host of rank r of the job.  Takes over `local` and `link`, also when it fails; the
 * socket to the launcher is the caller's then. */
LK_NODISCARD lk_status lki_span_open(lk_comm **out, lk_comm *local, lki_link *link,
                                     const uint32_t *host_of);

/* A communicator of `size` ranks, of which `rank` is this one; `local` are those on this host.
 * The rest of what a communicator is, from `world` to `parent`, is the caller's to fill in. */
LK_NODISCARD lk_status lki_span_new(lk_comm **out, lk_comm *local, uint32_t rank, uint32_t size,
                                    const uint32_t *host_of);

/* For lki_comm_delete(): NULL is allowed. */
void lki_span_free(lki_span *span);

/* ---- Requests (span.c) ------------------------------------------------------------------- */

/* Takes the next number; nothing is sent before the request is advanced. */
LK_NODISCARD lk_status lki_span_publish(lk_request *request);
LK_NODISCARD lk_status lki_span_advance(lk_request *request, bool *moved);

/* Lets go of a request that is not complete.  Fails the group if `others` need it or the wire may
 * be writing into its buffers. */
void lki_span_drop(lk_request *request, bool others);

/* The request's messages, by an algorithm that is chosen now; it is begun. */
LK_NODISCARD lk_status lki_span_travel(lk_request *request);

/* Ranks on every host, where a problem may know that; else 0. */
uint32_t lki_span_each(const lk_comm *comm);

/* What its messages are called: those of a part are the caller's. */
lki_wire_op lki_span_name(const lk_request *request);

/* What carries it out by schedules of messages, or NULL. */
const struct lki_task *lki_span_task(const lk_request *request);

/* For lki_wire_look_by(): what `self` sees of a rank of its host on their board (failure.c). */
bool lki_rank_seen(void *self, uint32_t rank, lki_wire_op *op, char state[LKI_WIRE_STATE_BYTES]);

/* The wire has failed, and so has the board. */
void lki_span_condemn(lki_self *self);

/* The board has failed: tells the other hosts. */
void lki_span_tell(const lk_comm *comm);

/* ---- Waiting (await.c, missing.c) --------------------------------------------------------- */

/* Moves what the wire can move now; its failure is the board's. */
void lki_span_poll(lki_self *self);

/* Until it is complete; as lki_await_for(). */
LK_NODISCARD lk_status lki_span_await(lk_request *request, int64_t ms, int64_t *late);

/* The time for it is over.  Asks all its ranks where they are, and fails the group; LK_OK if it has
 * come to its end meanwhile. */
lk_status lki_span_timeout(lk_request *request, int64_t waited_ms);

/* ---- Calls that make no request on one host (calls.c) ------------------------------- */

LK_NODISCARD lk_status lki_span_agree(lk_comm *comm, lk_status mine);
LK_NODISCARD lk_status lki_span_arena(lk_arena **out, lk_comm *comm, const char *name,
                                      size_t bytes);
/* Of a mirror: who takes what `rank` gives on another host (algorithm/mirror.c). */
uint32_t lki_mirror_taker(const lki_span *span, uint32_t rank, uint32_t host);

/* What a mirror's request is about; its communicator is set. */
LK_NODISCARD lk_status lki_span_mirror_prepare(lk_request *request, lk_arena *arena, size_t offset,
                                               const size_t *bytes);
LK_NODISCARD lk_status lki_span_mirror(lk_comm *comm, lk_arena *arena, size_t offset,
                                       const size_t *bytes);

#endif

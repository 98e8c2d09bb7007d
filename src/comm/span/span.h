/* span/span.h -- a communicator over several hosts: the same calls, carried out with messages.
 *
 * request.c, and the few calls that create no request, call these functions if comm->span is set.
 * An algorithm (algorithm/) writes the schedule of an operation.  A task (task.h) carries it out on
 * the wire, which all communicators of a rank share.
 *
 * A rank of a span communicator waits for two kinds of events: bytes from other hosts, and changes
 * in the memory of its own host.  Every wait advances both and checks both for failures.  A failure
 * on the board is sent over the wire, and a failure of the wire becomes one of the board.
 */
#ifndef LKI_COMM_SPAN_H
#define LKI_COMM_SPAN_H

#include "comm/group/request.h"
#include "comm/group/span.h"
#include "comm/span/relay.h"
#include "link/wire/wire.h"

/* Opens the communicator over all ranks of the job that are in the group.  `local` is the
 * communicator of this host's ranks; host_of[r] is the host of world rank r.  Takes over `local`
 * and `link`, also on failure; the caller then keeps the launcher socket. */
LK_NODISCARD lk_status lki_span_open(lk_comm **out, lk_comm *local, lki_link *link,
                                     const uint32_t *host_of);

/* Creates a communicator of `size` ranks, in which this rank is `rank`.  `local` has the ranks on
 * this host.  The caller fills in the remaining fields of the communicator, from `world` to
 * `parent`. */
LK_NODISCARD lk_status lki_span_new(lk_comm **out, lk_comm *local, uint32_t rank, uint32_t size,
                                    const uint32_t *host_of);

/* Frees the span for lki_comm_delete().  NULL is allowed. */
void lki_span_free(lki_span *span);

/* ---- Requests (span.c) ------------------------------------------------------------------- */

/* Gives the request the next sequence number.  Sends nothing; lki_span_advance() sends. */
LK_NODISCARD lk_status lki_span_publish(lk_request *request);
/* Advances the request without blocking.  Only a few requests of a communicator exchange messages
 * at a time; the other requests wait. */
LK_NODISCARD lk_status lki_span_advance(lk_request *request, bool *moved);

/* Releases an incomplete request.  Fails the group if `others` is true (other ranks need the
 * request), or if the wire may still write to its buffers. */
void lki_span_drop(lk_request *request, bool others);

/* Chooses an algorithm and creates the task, relay or native operation that carries it out. */
LK_NODISCARD lk_status lki_span_travel(lk_request *request);

/* Returns the number of ranks on each host if the communicator has levels, else 0. */
uint32_t lki_span_each(const lk_comm *comm);

/* Returns the operation that names the request's messages.  A part of another request uses the name
 * of that request. */
lki_wire_op lki_span_name(const lk_request *request);

/* Returns the task that exchanges the request's messages, or NULL. */
const struct lki_task *lki_span_task(const lk_request *request);

/* Writes the operation and state of a rank of this host, as its board shows them, for
 * lki_wire_look_by() (failure.c).  `self` is an lki_self. */
bool lki_rank_seen(void *self, uint32_t rank, lki_wire_op *op, char state[LKI_WIRE_STATE_BYTES]);

/* Copies the failure of the wire to the board. */
void lki_span_condemn(lki_self *self);

/* Sends the group's failure to the other hosts. */
void lki_span_tell(const lk_comm *comm);

/* ---- Waiting (await.c, missing.c) --------------------------------------------------------- */

/* Sends and receives as much as possible without blocking.  If the wire fails, fails the group,
 * too. */
void lki_span_poll(lki_self *self);

/* Waits until the request is complete.  `ms` and *late are as in lki_await_for(). */
LK_NODISCARD lk_status lki_span_await(lk_request *request, int64_t ms, int64_t *late);

/* Handles an expired deadline.  Asks all ranks concerned for their positions, then fails the group.
 * Returns LK_OK if the request has completed in the meantime. */
lk_status lki_span_timeout(lk_request *request, int64_t waited_ms);

/* ---- Calls without a request on one host (calls.c) ---------------------------------- */

/* Compares the outcomes of all ranks.  Returns the error of the lowest rank that failed, or LK_OK
 * if no rank failed. */
LK_NODISCARD lk_status lki_span_agree(lk_comm *comm, lk_status mine);
/* Creates an arena on each host.  Collective. */
LK_NODISCARD lk_status lki_span_arena(lk_arena **out, lk_comm *comm, const char *name,
                                      size_t bytes);
/* Fills in the request of a mirror.  Its communicator must be set. */
LK_NODISCARD lk_status lki_span_mirror_prepare(lk_request *request, lk_arena *arena, size_t offset,
                                               const size_t *bytes);
/* Copies every rank's part of the arena, bytes[rank] bytes, to all other hosts.  Blocks. */
LK_NODISCARD lk_status lki_span_mirror(lk_comm *comm, lk_arena *arena, size_t offset,
                                       const size_t *bytes);

#endif

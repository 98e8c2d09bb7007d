/* wire/wire.h -- messages between ranks on different hosts, over the byte streams of a link.
 *
 * Both sides name a message alike: the operation it belongs to (group, sequence number) and which
 * of the operation's messages between the two it is (`step`).  A small message travels at once and
 * is parked at the receiver if nobody asked for it yet; a large one is announced, and travels
 * straight into the receiver's buffer once it has one, in pieces over all streams.  So nothing is
 * ever dropped, nothing waits behind a message that nobody wants yet, and memory stays bounded.
 *
 * Every frame carries the fingerprint of its operation.  A receiver that finds another one, frames
 * of an operation that is complete here, or more bytes than it expects knows that the ranks
 * disagree, and both sides are named.  A rank that waits long asks those it waits for what they
 * are in (a probe), so that ranks which never exchange a message in their operations find out, too.
 *
 * A wire fails once, for one reason, and tells every rank that it can reach.
 *
 * Ownership: a wire owns its link; messages, and the buffers they point to, are the caller's and
 *            stay where they are until done or until the wire is closed.
 * Threads:   one at a time.
 */
#ifndef LKI_COMM_WIRE_H
#define LKI_COMM_WIRE_H

#include "comm/group.h"
#include "comm/link.h"

typedef struct lki_wire lki_wire;

typedef struct {
    uint64_t  group, seq; /* lk_comm.key, lki_op.seq */
    uint64_t  label;      /* lk_comm.group, for texts */
    lki_print print;
} lki_wire_op;

/* Where a rank is with an operation; SEEN: that is not known, only what can be seen of it. */
typedef enum { LKI_PLACE_BEFORE, LKI_PLACE_IN, LKI_PLACE_AFTER, LKI_PLACE_SEEN } lki_wire_place;

enum { LKI_WIRE_STATE_BYTES = 176 };

/* What was told of a rank: by itself, or, SEEN, by one on its host. */
typedef struct {
    lki_wire_place place;
    lki_wire_op         about, op; /* it was asked about; it is or was in */
    char                state[LKI_WIRE_STATE_BYTES]; /* "alive, at step 12 in backward" */
} lki_wire_word;

/* Tells of a rank of this host, or of this one, what it is in and its state; false of any other. */
typedef bool (*lki_wire_eyes)(void *context, uint32_t rank, lki_wire_op *op,
                              char state[LKI_WIRE_STATE_BYTES]);

typedef struct lki_message {
    struct lki_message *next;
    uint32_t            peer; /* rank in the job, not mine */
    uint32_t            step;
    lki_wire_op         op;
    unsigned char      *data;  /* read from when sending */
    size_t              bytes;
    size_t              whole; /* bytes of all of the operation's messages to or from this peer,
                                * where no fingerprint tells; else 0 */
    size_t              assigned, moved; /* bytes that are in frames, that have gone or come */
    bool                granted;         /* bytes flow: the wire may touch `data` at any time */
    bool                done;
} lki_message;

/* What has gone over the wire: payload without headers, and frames of all kinds. */
typedef struct {
    uint64_t bytes_sent, bytes_received, frames_sent, frames_received;
} lki_wire_counts;

/* Takes the link over, also when it fails. */
LK_NODISCARD lk_status lki_wire_open(lki_wire **out, lki_link *link);

/* Says goodbye to those who were written to, and what this rank was in last; or tells all why it
 * has failed.  Waits for nothing but room to do so: 2 s at most, and for those who never took
 * anything, because they compute, 500 ms: not at all if the failure is `known` by other means. */
void lki_wire_close(lki_wire *wire, bool known);

/* Closes it without a word, where nobody listens any more; no message is left.  NULL is allowed. */
void lki_wire_drop(lki_wire *wire);

/* This rank of the job takes no part: nothing will be said to it.  Before anything else. */
void lki_wire_without(lki_wire *wire, uint32_t peer);

/* This rank is in the operation now / has all it needs of it.  Messages come between the two, and
 * all are done before the end.  The operations of a group begin in ascending order of seq (some may
 * be left out), end in any, and are open at once in any number. */
LK_NODISCARD lk_status lki_wire_begin(lki_wire *wire, const lki_wire_op *op);
LK_NODISCARD lk_status lki_wire_end(lki_wire *wire, const lki_wire_op *op);

/* The caller sets peer, step, op, data and bytes, the rest is set here; `done` tells the end, and
 * may do so at once.  Between two ranks, in one direction, an operation has one message of a step;
 * in which order the two sides post theirs is all the same. */
void lki_wire_send(lki_wire *wire, lki_message *message);
void lki_wire_receive(lki_wire *wire, lki_message *message);

/* Forgets a message; it must not have been granted unless the wire has failed. */
void lki_wire_forget(lki_wire *wire, lki_message *message);

/* Moves whatever can move; waits up to `ms` if nothing can.  *moved: bytes went or came.
 * LK_EPEER, LK_EMISMATCH and so on are final: every later call returns the same. */
LK_NODISCARD lk_status lki_wire_progress(lki_wire *wire, int64_t ms, bool *moved);

/* Asks the peers that open messages wait for what they are in: 20 ms after the last beginning of an
 * operation, then ever more seldom.  Cheap.  True if it was time to: others may be asked then. */
bool lki_wire_probe(lki_wire *wire);

/* Asks a peer whether it has been in this operation, which this rank is in; if that was another one
 * there, both fail.  Of one that has left its goodbye is asked: who left before it is missed. */
void lki_wire_ask(lki_wire *wire, uint32_t rank, const lki_wire_op *op);

/* Asks a peer what it sees of `rank`, on its host. */
void lki_wire_ask_of(lki_wire *wire, uint32_t peer, uint32_t rank, const lki_wire_op *op);

/* What was told of a rank since it, or another about it, was asked about `op`; NULL: nothing. */
const lki_wire_word *lki_wire_word_of(const lki_wire *wire, uint32_t rank, const lki_wire_op *op);

/* For answers to others; without it they know operations only. */
void lki_wire_look_by(lki_wire *wire, lki_wire_eyes eyes, void *context);

/* The rank that the wire's failure is about. */
uint32_t lki_wire_culprit(const lki_wire *wire);

/* The operation that this rank was last heard of in; all zero (LKI_OP_NONE) before the first. */
lki_wire_op lki_wire_heard(const lki_wire *wire, uint32_t peer);

/* Tells every reachable rank that this one has failed, and why; then the wire has failed too. */
void lki_wire_abort(lki_wire *wire, uint32_t culprit, const lk_error *why);

const lki_link *lki_wire_link(const lki_wire *wire);
lki_wire_counts lki_wire_count(const lki_wire *wire);
int64_t         lki_wire_now_ms(const lki_wire *wire);

#endif

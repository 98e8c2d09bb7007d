/* link/wire/wire.h -- messages between ranks on different hosts, over the byte streams of a link.
 *
 * Sender and receiver identify a message by its operation (group, sequence number) and by its
 * number (`step`) among the messages of that operation between the two ranks.  A small message is
 * sent at once, and parked at the receiver until the receiver requests it.  A large message is
 * announced.  When the receiver's buffer is available, the message is sent in pieces over all
 * streams, directly into that buffer.  No message is dropped, and no message waits for another
 * message that is not requested yet.  Memory is bounded.
 *
 * Every frame carries the fingerprint of its operation.  Ranks disagree if a receiver finds a
 * different fingerprint, a frame of an operation that it has completed, or more bytes than it
 * expects.  The error names both ranks.  A rank that waits long sends probes, which ask other ranks
 * for their current operation.  A mismatch is thus detected even if the operations exchange no
 * message.
 *
 * A wire fails once, for one reason, and reports it to every rank it can reach.
 *
 * Ownership: a wire owns its link.  Messages and their buffers belong to the caller.  They must
 *            stay in place until they are done or withdrawn, or the wire is closed.
 * Threads:   only one thread at a time may use a wire.
 */
#ifndef LKI_LINK_WIRE_WIRE_H
#define LKI_LINK_WIRE_WIRE_H

#include "link/link.h"
#include "link/operation.h"

typedef struct lki_wire lki_wire;

typedef struct {
    uint64_t  group, seq; /* the values of lk_comm.key and lki_op.seq */
    uint64_t  label;      /* the value of lk_comm.group, for texts */
    lki_print print;
} lki_wire_op;

/* A rank's position relative to an operation: before, in or after it.  LKI_PLACE_SEEN means that
 * the rank has not answered, but another rank on its host has observed the rank. */
typedef enum { LKI_PLACE_BEFORE, LKI_PLACE_IN, LKI_PLACE_AFTER, LKI_PLACE_SEEN } lki_wire_place;

enum { LKI_WIRE_STATE_BYTES = 176 };

/* An answer about a rank.  With LKI_PLACE_SEEN another rank on its host has answered, otherwise the
 * rank itself. */
typedef struct {
    lki_wire_place place;
    lki_wire_op         about, op; /* `about`: operation in the question; `op`: current operation of
                                    * the rank */
    char                state[LKI_WIRE_STATE_BYTES]; /* such as "alive, at step 12 in backward" */
} lki_wire_word;

/* Describes the current operation and state of `rank`, which is this rank or another rank on its
 * host.  Returns false if `rank` is on another host. */
typedef bool (*lki_wire_eyes)(void *context, uint32_t rank, lki_wire_op *op,
                              char state[LKI_WIRE_STATE_BYTES]);

typedef struct lki_message {
    struct lki_message *next;
    uint32_t            peer; /* world rank of the other side */
    uint32_t            step;
    lki_wire_op         op;
    unsigned char      *data;  /* if the message is sent, the wire only reads it */
    size_t              bytes;
    size_t              whole; /* if the fingerprint does not determine it: total bytes of the
                                * operation's messages from the sender to the receiver; else 0 */
    size_t              assigned, moved; /* number of bytes put into frames; number of bytes sent or
                                          * received */
    uint32_t            sum, claim;      /* of a posted message: sum of the bytes that were posted
                                          * or received; the sender's sum of all bytes */
    bool                claimed;         /* `claim` was sent or received */
    bool                granted;         /* the wire may access `data` at any time */
    bool                done;
} lki_message;

/* Traffic of a wire: payload bytes without headers, and frames of all kinds. */
typedef struct {
    uint64_t bytes_sent, bytes_received, frames_sent, frames_received;
} lki_wire_counts;

/* Opens a wire.  Takes over the link, even on failure. */
LK_NODISCARD lk_status lki_wire_open(lki_wire **out, lki_link *link);

/* Notes that this rank was asked to stop, for lki_link.stopping. */
void lki_wire_stopping(lki_wire *wire);

/* Closes the wire.  After a failure the wire sends the reason to all peers.  Otherwise it sends a
 * goodbye with its last operations to the peers to which it has written.  Closing waits for at most
 * 2 s, and only for room to send.  It waits at most 500 ms for peers to which it has never written.
 * If `known` is true, the wire does not send the reason to such peers, because they receive it by
 * other means. */
void lki_wire_close(lki_wire *wire, bool known);

/* Closes the wire without sending anything.  No message may be in use.  NULL is allowed. */
void lki_wire_drop(lki_wire *wire);

/* Excludes a rank of the job: nothing will be sent to it.  Must precede all other calls. */
void lki_wire_without(lki_wire *wire, uint32_t peer);

/* Begins an operation.  The operations of a group begin in ascending order of `seq`, possibly with
 * gaps.  They end in any order, and any number of them may be open. */
LK_NODISCARD lk_status lki_wire_begin(lki_wire *wire, const lki_wire_op *op);

/* Ends an operation.  All its messages must be done. */
LK_NODISCARD lk_status lki_wire_end(lki_wire *wire, const lki_wire_op *op);

/* Sends a message between the begin and the end of its operation.  The caller sets peer, step, op,
 * data and bytes, and `whole` if needed.  The wire sets the other fields, and sets `done` on
 * completion, perhaps before this call returns.  The messages of an operation from one rank to
 * another have different steps.  Ranks may post their messages in any order. */
void lki_wire_send(lki_wire *wire, lki_message *message);

/* Receives a message; the rules are those of lki_wire_send(). */
void lki_wire_receive(lki_wire *wire, lki_message *message);

/* Withdraws a message.  This is allowed only while `granted` is false or after the wire has failed.
 * If the link has posted messages, the first call after a failure may wait as lki_link_ops.cancel
 * does. */
void lki_wire_forget(lki_wire *wire, lki_message *message);

/* Returns true if the link could not take back all posted memory after a failure.  Memory of
 * withdrawn messages must then not be freed. */
bool lki_wire_stuck(const lki_wire *wire);

/* Sends and receives as much as possible.  If no bytes can be moved, waits up to `ms`.  *moved
 * becomes true if bytes were sent or received.  A failure (LK_EPEER, LK_EMISMATCH, ...) is final,
 * and all later calls return its status; lki_wire_failure() has the reason. */
LK_NODISCARD lk_status lki_wire_progress(lki_wire *wire, int64_t ms, bool *moved);

/* Sends probes to the peers for which open messages wait, if probes are due.  They are due 20 ms
 * after the last operation began, then at growing intervals.  The call is cheap.  Returns true if
 * probes were due; the caller may then ask more ranks with lki_wire_ask(). */
bool lki_wire_probe(lki_wire *wire);

/* Asks a peer for its position relative to operation `op` of this rank.  If the peer had a
 * different operation with the same number, both ranks fail.  If the peer has left, its goodbye is
 * checked instead, and this rank fails if the peer left before the operation. */
void lki_wire_ask(lki_wire *wire, uint32_t rank, const lki_wire_op *op);

/* Asks a peer for its observation of `rank`, which is a rank on the peer's host. */
void lki_wire_ask_of(lki_wire *wire, uint32_t peer, uint32_t rank, const lki_wire_op *op);

/* Returns the last answer about `rank` if the question was about operation `op`, else NULL. */
const lki_wire_word *lki_wire_word_of(const lki_wire *wire, uint32_t rank, const lki_wire_op *op);

/* Sets the callback that describes the state of ranks in this rank's answers.  Without a callback
 * answers name operations only. */
void lki_wire_look_by(lki_wire *wire, lki_wire_eyes eyes, void *context);

/* Returns the first failure of the wire, which never changes; its status is LK_OK while there is
 * none.  Calls on a wire that has failed return this status.  The text is here only, not in
 * lk_error_last(). */
const lk_error *lki_wire_failure(const lki_wire *wire);

/* Returns the rank that caused the failure of the wire. */
uint32_t lki_wire_culprit(const lki_wire *wire);

/* Returns the operation of the last frame from a peer; all fields are zero (LKI_OP_NONE) before the
 * first frame. */
lki_wire_op lki_wire_heard(const lki_wire *wire, uint32_t peer);

/* Fails the wire, unless it has failed already, and reports the reason `why` to every reachable
 * rank. */
void lki_wire_abort(lki_wire *wire, uint32_t culprit, lk_status status, const char *why);

const lki_link *lki_wire_link(const lki_wire *wire);
lki_wire_counts lki_wire_count(const lki_wire *wire);
int64_t         lki_wire_now_ms(const lki_wire *wire);

#endif

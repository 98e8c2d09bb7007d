/* link/wire/inside.h -- declarations shared by the files of the wire: wire.c (lifetime, messages,
 * progress), out.c (outgoing frames), in.c (incoming frames), post.c (messages that the link
 * transfers without frames), ops.c (operations, and ranks that disagree about them).
 *
 * Between two ranks, stream 0 carries all frames except pieces, in the order in which they were
 * written.  If a frame reports that a peer has ended an operation, all eager messages and
 * announcements of that operation have therefore arrived before.  Pieces are sent over all streams.
 *
 * An outgoing message is in `outbox` while no part of it was sent.  It is in `announced` after its
 * announcement, and in `sending` after its grant or while its eager frame is being sent.  An
 * incoming message is in `waiting` while no part of it was received.  It is in `granting` between
 * its announcement and its grant, and then in `arriving`.
 */
#ifndef LKI_LINK_WIRE_INSIDE_H
#define LKI_LINK_WIRE_INSIDE_H

#include "link/wire/frame.h"

enum {
    LKI_WIRE_HISTORY    = 16,         /* ended operations remembered per group */
    LKI_WIRE_GROUPS     = 1024,       /* number of groups remembered; more if more groups have open
                                       * operations */
    LKI_WIRE_BUCKETS    = 256,
    LKI_WIRE_WINDOW     = 256 * 1024, /* maximum of eager bytes of a peer that are parked */
    LKI_WIRE_ANNOUNCED  = 16384,      /* maximum of announcements of a peer that are parked */
    LKI_WIRE_INPUT      = 512,        /* maximum number of bytes read ahead */
    LKI_WIRE_POST_BYTES = 1024 * 1024, /* largest part of a message that is posted at once; small,
                                        * so that its sum is computed while other parts move */
    LKI_WIRE_TURN_BYTES = 1024 * 1024, /* bytes that a stream may move before the next stream is
                                        * served */
    LKI_WIRE_READY      = 64,
    LKI_WIRE_NOTES      = 4,          /* probes and answers that may be queued for a peer */
    LKI_WIRE_PROBE_MS   = 20,         /* interval between the first two probes; later intervals are
                                       * doubled */
    LKI_WIRE_PROBE_MS_MAX = 1280,       /* the longest such interval */
    LKI_WIRE_GRACE_MS   = 500,        /* after a stream to a peer broke: time for the peer's ABORT
                                       * to arrive */
    LKI_WIRE_GOODBYE_MS = 2000,       /* time limit for room to send a goodbye */
};

typedef struct {
    lki_message *head, **tail;
} lki_queue;

/* A part of a message that the link transfers. */
typedef struct {
    lki_message *message;
    size_t       bytes;
} lki_post;

/* Parts in the order in which they were posted. */
typedef struct {
    lki_post posts[LKI_LINK_POSTS];
    uint32_t first, count;
} lki_posts;

/* ---- Operations -------------------------------------------------------------------------- */

typedef struct {
    lki_wire_op op;
    uint32_t    open; /* number of messages that are not done */
} lki_open_op;

typedef struct lki_wire_group {
    struct lki_wire_group *next; /* next group in the same bucket */
    uint64_t               key, next_seq, used; /* `used`: value of the wire's `turn` when the group
                                                 * last began an operation */
    lki_open_op           *open;
    size_t                 open_count, open_capacity;
    lki_wire_op            ended[LKI_WIRE_HISTORY];
    uint64_t               ends;
} lki_wire_group;

/* A message that arrived or was announced before the caller requested it. */
typedef struct lki_parked {
    struct lki_parked *next; /* next parked message in the same bucket */
    uint32_t           peer, step;
    lki_wire_op        op;
    uint64_t           total, whole;
    lki_message       *claimed;   /* the request, if the caller made it while the eager message was
                                   * arriving */
    bool               announced; /* true: announced; false: an eager message with its payload in
                                   * `data` */
    bool               arrived;
    unsigned char      data[];
} lki_parked;

/* ---- Streams and peers ------------------------------------------------------------------- */

/* The frame being written. */
typedef struct {
    unsigned char        header[LKI_FRAME_BYTES];
    const unsigned char *payload;
    size_t               bytes, moved; /* `bytes`: size of the header and the payload; `moved`:
                                        * number of these bytes that were written */
    lki_message         *message;      /* message to which the payload belongs */
    unsigned char       *rest;         /* owned copy of the unsent payload of a message that was
                                        * withdrawn */
    bool                 active, blocked, broken, busy;
} lki_output;

/* Bytes that were read ahead, and the frame that is being read. */
typedef struct {
    unsigned char  ahead[LKI_WIRE_INPUT];
    size_t         first, end;
    lki_frame      frame;
    unsigned char *payload; /* destination of the payload */
    size_t         moved;
    uint32_t       sum;
    lki_message   *message;
    lki_parked    *parked;
    bool           active, ended;
    bool           drained; /* the last read returned fewer bytes than requested */
} lki_input;

typedef struct lki_stream {
    lki_output         out;
    lki_input          in;
    struct lki_stream *next; /* next stream in the list of busy streams */
    uint32_t           peer, index;
} lki_stream;

typedef struct {
    lki_queue outbox, announced, sending;
    lki_queue waiting, granting, arriving;
    lki_posts posted_sends, posted_receives;

    uint64_t     credit;    /* number of eager bytes that this rank may still send to the peer */
    uint64_t     charged;   /* number of eager bytes received from the peer and not yet returned as
                             * credit */
    uint64_t     owed;      /* number of the `charged` bytes that were consumed */
    uint64_t     announces; /* number of parked announcements of the peer */
    lki_wire_op  heard;     /* operation of the last frame from the peer that has an operation */
    lki_wire_word word;     /* the last answer about this peer */
    lki_wire_op  asking;    /* operation in the last probe from the peer */
    lki_frame    notes[LKI_WIRE_NOTES]; /* probes and answers to write, in order */
    uint32_t     note_count;
    bool         saying;    /* an ABORT or GOODBYE for the peer must be written */
    bool         curious;   /* `asking` may need another answer */
    bool         spoken;    /* this rank has written to the peer */
    bool         known;     /* the peer has written to this rank */
    bool         left;      /* the peer has sent a GOODBYE */
    bool         gone;      /* the peer cannot be reached; this is no failure while no message needs
                             * the peer */
    bool         breaking;  /* a stream has broken; an ABORT with the reason may still arrive */
    int64_t      broken_ms; /* time at which the stream broke */
    char         broken_text[LKI_MESSAGE_BYTES];
    uint32_t      farewells; /* number of operations in the peer's GOODBYE */
    unsigned char text[LKI_FRAME_TEXT_BYTES + 1]; /* payload of the peer's ABORT, GOODBYE or
                                                   * ANSWER */
    char          state[LKI_WIRE_STATE_BYTES];    /* payload of this rank's answer while the answer
                                                   * is being written */
} lki_wire_peer;

struct lki_wire {
    lki_link        *link;
    lki_wire_peer   *peers;
    lki_stream      *streams; /* streams of peer p start at p * link->streams */
    lki_stream      *busy, **busy_tail;
    lki_wire_group  *groups[LKI_WIRE_BUCKETS];
    lki_parked      *parked[LKI_WIRE_BUCKETS];
    lki_wire_op      begun[LKI_FRAME_OPS_MAX]; /* the operations begun last; begin number `turn` is
                                                * at index turn % LKI_FRAME_OPS_MAX */
    uint64_t         turn, group_count;
    unsigned char    farewell[LKI_FRAME_TEXT_BYTES];
    uint32_t         farewell_bytes;
    uint32_t         breaking; /* number of breaking peers */
    uint32_t         curious;  /* number of curious peers */
    uint32_t         probe_interval_ms;
    int64_t          probed_ms;
    uint64_t         probed_turn; /* `turn` at the time probed_ms */
    lki_wire_counts  counts;
    bool             moved, failed, closing;
    bool             cancelled, stuck; /* cancel() of the link was called; it returned false */
    uint32_t         culprit;
    lk_error         failure;
    lki_wire_eyes    eyes; /* callback of lki_wire_look_by(); NULL: none */
    void            *eyes_context;
    lki_ready        ready[LKI_WIRE_READY];
};

static inline lki_stream *lki_wire_stream(const lki_wire *wire, uint32_t peer, uint32_t index)
{
    return &wire->streams[(size_t)peer * wire->link->streams + index];
}

/* Returns the credit that sending an eager message of `bytes` bytes uses up. */
static inline uint64_t lki_wire_cost(uint64_t bytes)
{
    return bytes + LKI_FRAME_EAGER_COST;
}

static inline bool lki_wire_same_op(const lki_wire_op *a, const lki_wire_op *b)
{
    return a->group == b->group && a->seq == b->seq;
}

static inline bool lki_wire_same_print(lki_print a, lki_print b)
{
    return a.what == b.what && a.count == b.count && a.hash == b.hash;
}

/* Callers may ignore the statuses of these functions: the wire records its failure in `failed`. */

/* ---- wire.c ------------------------------------------------------------------------------ */

void         lki_queue_push(lki_queue *queue, lki_message *message);
bool         lki_queue_remove(lki_queue *queue, lki_message *message);
lki_message *lki_queue_find(const lki_queue *queue, const lki_wire_op *op, uint32_t step);

/* Marks the wire as failed, unless it has failed already, and queues an ABORT with the message to
 * all ranks.  Returns the status of the first failure. */
lk_status lki_wire_fail(lki_wire *wire, uint32_t culprit, lk_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Fails the wire with the reason from a peer's ABORT. */
lk_status lki_wire_fail_told(lki_wire *wire, uint32_t peer, const lki_frame *frame,
                             const char *text);

/* Handles a broken stream from or to a peer; lk_error_last() is the cause.  Returns LK_OK if the
 * peer has left and is not needed, or if an ABORT with the reason may still arrive. */
LK_NODISCARD lk_status lki_wire_broken(lki_wire *wire, lki_stream *stream, bool reading);

/* Fails the wire if the peer has left or is gone, and was in a different operation or is still
 * needed. */
lk_status lki_wire_check_left(lki_wire *wire, uint32_t rank);

/* Fails the wire, because a peer has left before the operation `need`, in which this rank is. */
lk_status lki_wire_fail_left(lki_wire *wire, uint32_t rank, const lki_wire_op *need);

/* Sets the events of a stream that the link reports. */
void lki_wire_watch(lki_wire *wire, const lki_stream *stream);

/* Marks a message as done. */
void lki_wire_done(lki_wire *wire, lki_message *message);

/* ---- out.c -------------------------------------------------------------------------- */

/* Queues one stream to this peer for writing. */
void lki_wire_stir(lki_wire *wire, uint32_t peer, uint32_t index);

/* Queues all streams to this peer for writing. */
void lki_wire_stir_all(lki_wire *wire, uint32_t peer);

/* Writes as much as there is room for, on all queued streams. */
lk_status lki_wire_write(lki_wire *wire);

/* Ends the use of the callers' buffers after a failure.  The wire copies the unsent bytes of a
 * partly written frame. */
void lki_wire_detach_output(lki_wire *wire);

/* ---- in.c --------------------------------------------------------------------------- */

/* Reads and handles the frames that have arrived on a stream, at most LKI_WIRE_TURN_BYTES. */
LK_NODISCARD lk_status lki_wire_read(lki_wire *wire, lki_stream *stream);

/* Delivers data that was parked for a message.  *found becomes false if none was parked. */
LK_NODISCARD lk_status lki_wire_unpark(lki_wire *wire, lki_message *message, bool *found);

/* Returns the bucket of parked messages for an operation. */
lki_parked **lki_wire_bucket(lki_wire *wire, const lki_wire_op *op);

/* ---- post.c ------------------------------------------------------------------------- */

/* Returns true if the link transfers the payload of a message without frames.  Both ranks agree. */
bool lki_wire_is_posted(const lki_wire *wire, const lki_message *message);

/* Posts parts of granted messages, as many as are allowed. */
lk_status lki_wire_post_sends(lki_wire *wire, uint32_t peer);
lk_status lki_wire_post_receives(lki_wire *wire, uint32_t peer);

/* Handles completed posts. */
LK_NODISCARD lk_status lki_wire_collect(lki_wire *wire, uint32_t peer);

/* Starts a POSTED frame, if a message needs one. */
bool lki_wire_next_posted(const lki_wire *wire, uint32_t peer, lki_frame *frame,
                          lki_message **message);

/* Completes an outgoing message if all its bytes and frames were sent. */
void lki_wire_finish_sending(lki_wire *wire, lki_message *message);

/* Handles a POSTED frame. */
LK_NODISCARD lk_status lki_wire_claimed(lki_wire *wire, uint32_t peer, const lki_frame *frame);

/* Takes back the memory of all posts.  Called after a failure. */
void lki_wire_cancel(lki_wire *wire);

/* ---- ops.c -------------------------------------------------------------------------- */

/* Returns the open operation with the group and sequence number of `op`, or NULL. */
lki_open_op *lki_wire_find_open(const lki_wire *wire, const lki_wire_op *op);
void         lki_wire_free_groups(lki_wire *wire);

/* Finds whether this rank is before, in or after the operation `op` of a peer.  Returns
 * LK_EMISMATCH if this rank had a different operation with the same number. */
LK_NODISCARD lk_status lki_wire_find(lki_wire *wire, uint32_t peer, const lki_wire_op *op,
                                     lki_wire_place *out);

/* Fails the wire, because ranks disagree: this rank is or was in `mine`, the peer is or was in
 * `theirs`. */
lk_status lki_wire_mismatch(lki_wire *wire, const lki_wire_op *mine, uint32_t peer,
                            const lki_wire_op *theirs);

/* Fails the wire, because two ranks are in the same operation but disagree on a number of bytes. */
lk_status lki_wire_miscount(lki_wire *wire, const lki_wire_op *op, uint32_t peer, bool sends,
                            uint64_t sent, uint64_t expected);

/* Fails the wire, because a message arrived for an operation that has ended on this rank. */
lk_status lki_wire_unwanted(lki_wire *wire, uint32_t peer, const lki_wire_op *op, uint64_t whole);

/* Fails the wire, because the sender and the receiver of a message disagree about its size. */
lk_status lki_wire_uneven(lki_wire *wire, const lki_message *mine, const lki_wire_op *theirs,
                          uint64_t whole);

/* Writes the payload of this rank's GOODBYE, which lists the last operations of the rank. */
void lki_wire_write_farewell(lki_wire *wire);

/* Compares the operations in a peer's GOODBYE with this rank's operations of the same numbers.
 * Fails the wire if two of them differ. */
LK_NODISCARD lk_status lki_wire_check_farewell(lki_wire *wire, uint32_t peer);

/* Handles a probe. */
LK_NODISCARD lk_status lki_wire_probed(lki_wire *wire, uint32_t peer, const lki_frame *probe);

/* Handles an answer to a probe. */
LK_NODISCARD lk_status lki_wire_answered(lki_wire *wire, uint32_t peer, const lki_frame *answer,
                                         const char *state);

/* Completes an answer just before it is written.  The callback lki_wire_eyes supplies `state`. */
void lki_wire_fill_answer(lki_wire *wire, lki_frame *answer, char state[LKI_WIRE_STATE_BYTES]);

#endif

/* wire/inside.h -- what the files of the wire share: wire.c (life, messages, progress),
 * out.c (frames that go), in.c (frames that come), ops.c (operations, and ranks that
 * disagree about them).
 *
 * Between two ranks, stream 0 carries everything but pieces in one order, so that who reads "I have
 * ended that operation" has read all small messages and announcements of it before.  Pieces go over
 * all streams.
 *
 * A message that is sent is in `outbox` (nothing said yet), `announced`, or `sending` (granted, or
 * its eager frame is on its way); one that is received in `waiting` (nothing heard yet),
 * `granting` (announced, the grant is not out yet) or `arriving`.
 */
#ifndef LKI_COMM_WIRE_INSIDE_H
#define LKI_COMM_WIRE_INSIDE_H

#include "comm/wire/frame.h"

enum {
    LKI_WIRE_HISTORY    = 16,         /* operations of a group that are remembered */
    LKI_WIRE_GROUPS     = 1024,       /* that are remembered though nothing is open in them */
    LKI_WIRE_BUCKETS    = 256,
    LKI_WIRE_WINDOW     = 256 * 1024, /* eager bytes from one peer that may be parked */
    LKI_WIRE_ANNOUNCED  = 16384,      /* announcements from one peer that may be parked */
    LKI_WIRE_INPUT      = 512,        /* bytes that are read ahead */
    LKI_WIRE_TURN_BYTES = 1024 * 1024, /* that one stream moves before the next one's turn */
    LKI_WIRE_READY      = 64,
    LKI_WIRE_NOTES      = 4,          /* questions and answers to a peer that are to be written */
    LKI_WIRE_PROBE_MS   = 20,         /* the first interval of probes; then twice as long each */
    LKI_WIRE_PROBE_MS_MAX = 1280,
    LKI_WIRE_GRACE_MS   = 500,        /* for a peer's reason to arrive after its stream broke */
    LKI_WIRE_GOODBYE_MS = 2000,       /* for room to say goodbye in */
};

typedef struct {
    lki_message *head, **tail;
} lki_queue;

/* ---- Operations -------------------------------------------------------------------------- */

typedef struct {
    lki_wire_op op;
    uint32_t    open; /* messages that are not done */
} lki_open_op;

typedef struct lki_wire_group {
    struct lki_wire_group *next; /* in its bucket */
    uint64_t               key, next_seq, used; /* used: turn of the last beginning */
    lki_open_op           *open;
    size_t                 open_count, open_capacity;
    lki_wire_op            ended[LKI_WIRE_HISTORY];
    uint64_t               ends;
} lki_wire_group;

/* A message that nobody has asked for yet. */
typedef struct lki_parked {
    struct lki_parked *next; /* in its bucket */
    uint32_t           peer, step;
    lki_wire_op        op;
    uint64_t           total, whole;
    lki_message       *claimed;   /* eager, asked for while it was arriving */
    bool               announced; /* else eager: `data` */
    bool               arrived;
    unsigned char      data[];
} lki_parked;

/* ---- Streams and peers ------------------------------------------------------------------- */

/* The frame that is being written. */
typedef struct {
    unsigned char        header[LKI_FRAME_BYTES];
    const unsigned char *payload;
    size_t               bytes, moved; /* header and payload together */
    lki_message         *message;      /* whose payload it is */
    unsigned char       *rest;         /* owned: a payload that outlives its message */
    bool                 active, blocked, broken, busy;
} lki_output;

/* What has been read but not used, and the frame that is being read. */
typedef struct {
    unsigned char  ahead[LKI_WIRE_INPUT];
    size_t         first, end;
    lki_frame      frame;
    unsigned char *payload; /* where it goes */
    size_t         moved;
    uint32_t       sum;
    lki_message   *message;
    lki_parked    *parked;
    bool           active, ended;
    bool           drained; /* the last read brought less than there was room for */
} lki_input;

typedef struct lki_stream {
    lki_output         out;
    lki_input          in;
    struct lki_stream *next; /* of those that have something to write and room */
    uint32_t           peer, index;
} lki_stream;

typedef struct {
    lki_queue outbox, announced, sending;
    lki_queue waiting, granting, arriving;

    uint64_t     credit;    /* eager bytes that I may send */
    uint64_t     charged;   /* eager bytes that it has sent and I have not given back */
    uint64_t     owed;      /* of them, those taken */
    uint64_t     announces; /* parked */
    lki_wire_op  heard;     /* what it told last that it is or was in */
    lki_wire_word word;     /* what it, or another about it, has answered */
    lki_wire_op  asking;    /* what its last probe was about */
    lki_frame    notes[LKI_WIRE_NOTES]; /* probes and answers, to be written in this order */
    uint32_t     note_count;
    bool         saying;    /* to be written: abort or goodbye */
    bool         curious;   /* `asking` may have to be answered once more */
    bool         spoken;    /* I have written to it */
    bool         known;     /* it has written to me */
    bool         left;      /* it said goodbye */
    bool         gone;      /* it cannot be reached any more, and nobody minded yet */
    bool         breaking;  /* a stream has broken: the reason may be on its way */
    int64_t      broken_ms; /* since when */
    char         broken_text[400];
    uint32_t      farewells; /* operations in its GOODBYE */
    unsigned char text[LKI_FRAME_TEXT_BYTES + 1]; /* of its ABORT, GOODBYE or ANSWER */
    char          state[LKI_WIRE_STATE_BYTES];    /* of my answer, while it is written */
} lki_wire_peer;

struct lki_wire {
    lki_link        *link;
    lki_wire_peer   *peers;
    lki_stream      *streams; /* of peer p: from p * link->streams on */
    lki_stream      *busy, **busy_tail;
    lki_wire_group  *groups[LKI_WIRE_BUCKETS];
    lki_parked      *parked[LKI_WIRE_BUCKETS];
    lki_wire_op      begun[LKI_FRAME_OPS_MAX]; /* number `turn` at turn % LKI_FRAME_OPS_MAX */
    uint64_t         turn, group_count;
    unsigned char    farewell[LKI_FRAME_TEXT_BYTES];
    uint32_t         farewell_bytes;
    uint32_t         breaking; /* peers that are */
    uint32_t         curious;  /* peers that are */
    uint32_t         probe_interval_ms;
    int64_t          probed_ms;
    uint64_t         probed_turn; /* `turn` at that time */
    lki_wire_counts  counts;
    bool             moved, failed, closing;
    uint32_t         culprit;
    lk_error         failure;
    lki_wire_eyes    eyes; /* NULL: none */
    void            *eyes_context;
    lki_ready        ready[LKI_WIRE_READY];
};

static inline lki_stream *lki_wire_stream(const lki_wire *wire, uint32_t peer, uint32_t index)
{
    return &wire->streams[(size_t)peer * wire->link->streams + index];
}

/* Bytes of credit that an eager message of `bytes` takes. */
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

/* Statuses are also remembered by the wire (`failed`), so not everybody has to look at them. */

/* ---- wire.c ------------------------------------------------------------------------------ */

void         lki_queue_push(lki_queue *queue, lki_message *message);
bool         lki_queue_remove(lki_queue *queue, lki_message *message);
lki_message *lki_queue_find(const lki_queue *queue, const lki_wire_op *op, uint32_t step);

/* The wire's failure, and the text that all ranks are told; the first one stays. */
lk_status lki_wire_fail(lki_wire *wire, uint32_t culprit, lk_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The failure that a peer has told. */
lk_status lki_wire_fail_told(lki_wire *wire, uint32_t peer, const lki_frame *frame,
                             const char *text);

/* A stream from or to this peer has broken, as lk_error_last() says.  LK_OK: it said goodbye and
 * nobody needs it, or a better reason may come. */
LK_NODISCARD lk_status lki_wire_broken(lki_wire *wire, lki_stream *stream, bool reading);

/* Fails if this peer, who said goodbye or is gone, was in another operation or is needed. */
lk_status lki_wire_check_left(lki_wire *wire, uint32_t rank);

/* This peer has left before an operation that this rank is in. */
lk_status lki_wire_fail_left(lki_wire *wire, uint32_t rank, const lki_wire_op *need);

/* Lets the link report what this stream can go on with. */
void lki_wire_watch(lki_wire *wire, const lki_stream *stream);

void lki_wire_done(lki_wire *wire, lki_message *message);

/* ---- out.c -------------------------------------------------------------------------- */

/* There may be something to write on this stream, on all streams to this peer. */
void lki_wire_stir(lki_wire *wire, uint32_t peer, uint32_t index);
void lki_wire_stir_all(lki_wire *wire, uint32_t peer);

/* Writes what there is room for, on all streams that were stirred. */
lk_status lki_wire_write(lki_wire *wire);

/* After a failure: lets go of the callers' buffers; what frames need of them is copied. */
void lki_wire_detach_output(lki_wire *wire);

/* ---- in.c --------------------------------------------------------------------------- */

LK_NODISCARD lk_status lki_wire_read(lki_wire *wire, lki_stream *stream);

/* What is parked for a message is its; whether there was something. */
LK_NODISCARD lk_status lki_wire_unpark(lki_wire *wire, lki_message *message, bool *found);

lki_parked **lki_wire_bucket(lki_wire *wire, const lki_wire_op *op);

/* ---- ops.c -------------------------------------------------------------------------- */

lki_open_op *lki_wire_find_open(const lki_wire *wire, const lki_wire_op *op);
void         lki_wire_free_groups(lki_wire *wire);

/* Where this rank is with an operation of a peer.  LK_EMISMATCH if it has been in another one
 * under that number. */
LK_NODISCARD lk_status lki_wire_find(lki_wire *wire, uint32_t peer, const lki_wire_op *op,
                                     lki_wire_place *out);

/* The ranks disagree: this one is or was in `mine`, the peer in `theirs`. */
lk_status lki_wire_mismatch(lki_wire *wire, const lki_wire_op *mine, uint32_t peer,
                            const lki_wire_op *theirs);

/* The same, where only the number of bytes that one sends and the other expects is not. */
lk_status lki_wire_miscount(lki_wire *wire, const lki_wire_op *op, uint32_t peer, bool sends,
                            uint64_t sent, uint64_t expected);

/* A message for an operation that is over here. */
lk_status lki_wire_unwanted(lki_wire *wire, uint32_t peer, const lki_wire_op *op, uint64_t whole);

/* A message that is not as long as the one that waits for it, or belongs to more. */
lk_status lki_wire_uneven(lki_wire *wire, const lki_message *mine, const lki_wire_op *theirs,
                          uint64_t whole);

/* What this rank has to say at the end. */
void lki_wire_write_farewell(lki_wire *wire);

/* Fails if the last that this peer was in was another operation than here. */
LK_NODISCARD lk_status lki_wire_check_farewell(lki_wire *wire, uint32_t peer);

LK_NODISCARD lk_status lki_wire_probed(lki_wire *wire, uint32_t peer, const lki_frame *probe);
LK_NODISCARD lk_status lki_wire_answered(lki_wire *wire, uint32_t peer, const lki_frame *answer,
                                         const char *state);

/* An answer is about to be written: what else there is to say. */
void lki_wire_fill_answer(lki_wire *wire, lki_frame *answer, char state[LKI_WIRE_STATE_BYTES]);

#endif

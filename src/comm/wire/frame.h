/* wire/frame.h -- what messages look like on a stream: a header of 96 bytes, then a payload.
 *
 * All numbers are little endian.  The header ends with a sum of its own, so that a stream which
 * lost its place is noticed at once, and nothing in it is believed before that was checked.
 *
 *     0 magic   4 version  6 kind  7 zero    8 from     12 step
 *    16 group  24 seq     32 label          40 what     48 count   56 hash
 *    64 total  72 offset  80 bytes          84 sum      88 value   92 sum of the 92 bytes before
 *
 * EAGER     a whole message: `total` == `bytes` follow.  `offset` is lki_message.whole.
 * ANNOUNCE  there is a message of `total` bytes for whoever asks.  `offset`: as before.
 * GRANT     send it: its buffer is there.
 * PIECE     `bytes` of it, from `offset` on.  Pieces begin at multiples of LKI_FRAME_PIECE_BYTES.
 * CREDIT    `total` more bytes of eager messages (each counts LKI_FRAME_EAGER_COST more than its
 *           payload) have been taken.
 * PROBE     I wait in this operation: where is rank `step`, which is you, or on your host?
 * ANSWER    about operation `total` of group `offset`, and rank `step`: `value` is a
 *           lki_wire_place, the payload a text.  The operation told is that very one if I have been
 *           in it, else the last I was in; of another rank the last that can be seen.
 * ABORT     the sender has failed: -`value` is the status, `step` the rank it is about, the
 *           payload a text.
 * GOODBYE   nothing follows on any stream.  The payload is the last operations that the sender has
 *           begun, the latest first, each as bytes 16 to 63 here.
 */
#ifndef LKI_COMM_FRAME_H
#define LKI_COMM_FRAME_H

#include "comm/wire/wire.h"

enum {
    LKI_FRAME_BYTES       = 96,
    LKI_FRAME_EAGER_BYTES = 64 * 1024,  /* the longest message that goes unasked */
    LKI_FRAME_PIECE_BYTES = 256 * 1024, /* so that an ABORT never waits long for its turn */
    LKI_FRAME_TEXT_BYTES  = 480,
    LKI_FRAME_OP_BYTES    = 48,
    LKI_FRAME_OPS_MAX     = LKI_FRAME_TEXT_BYTES / LKI_FRAME_OP_BYTES, /* of a GOODBYE */
    LKI_FRAME_EAGER_COST  = 128,
};

typedef enum {
    LKI_FRAME_EAGER = 1,
    LKI_FRAME_ANNOUNCE,
    LKI_FRAME_GRANT,
    LKI_FRAME_PIECE,
    LKI_FRAME_CREDIT,
    LKI_FRAME_PROBE,
    LKI_FRAME_ANSWER,
    LKI_FRAME_ABORT,
    LKI_FRAME_GOODBYE,
} lki_frame_kind;

typedef struct {
    lki_frame_kind kind;
    uint32_t       from, step, value;
    lki_wire_op    op;
    uint64_t       total, offset;
    uint32_t       bytes, sum; /* of the payload; its lki_crc32c(), or 0 where the link vouches */
} lki_frame;

void lki_frame_encode(unsigned char out[LKI_FRAME_BYTES], const lki_frame *frame);

/* LK_EFORMAT, with a text that says what is wrong, unless this is a header that keeps all the
 * limits above. */
LK_NODISCARD lk_status lki_frame_decode(lki_frame *out, const unsigned char in[LKI_FRAME_BYTES]);

/* An operation, as in a header. */
void        lki_frame_put_op(unsigned char out[LKI_FRAME_OP_BYTES], const lki_wire_op *op);
lki_wire_op lki_frame_get_op(const unsigned char in[LKI_FRAME_OP_BYTES]);

#endif

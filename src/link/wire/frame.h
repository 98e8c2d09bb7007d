/* link/wire/frame.h -- the format of messages on a stream: a header of 96 bytes, then a payload.
 *
 * All numbers are little-endian.  The header ends with its own checksum, which is verified before
 * any field is used.  A reader thus detects at once if it does not read at the start of a frame.
 *
 *     0 magic   4 version  6 kind  7 zero    8 from     12 step
 *    16 group  24 seq     32 label          40 what     48 count   56 hash
 *    64 total  72 offset  80 bytes          84 sum      88 value   92 sum of the 92 bytes before
 *
 * EAGER     a complete message: `total` == `bytes`.  `offset` is lki_message.whole.
 * ANNOUNCE  announces a message of `total` bytes, which is sent after a GRANT.  `offset` is
 *           lki_message.whole.
 * GRANT     requests an announced message, because the receiver's buffer is available.
 * PIECE     `bytes` of an announced message, from `offset` on.  Pieces begin at multiples of
 *           LKI_FRAME_PIECE_BYTES.
 * POSTED    all bytes of an announced message are posted sends of the link (post.c).  `value` is
 *           their lki_crc32c(), or 0 if the link is sealed.
 * CREDIT    `total` more bytes of eager messages have been consumed.  The credit of a message is
 *           LKI_FRAME_EAGER_COST more than its payload.
 * PROBE     the sender waits in this operation and asks for the position of rank `step`, which is
 *           the receiver or another rank on the receiver's host.
 * ANSWER    answers a probe about rank `step` and operation number `total` of group `offset`.
 *           `value` is an lki_wire_place, and the payload is a text.  If the probe is about the
 *           sender, the header has the probed operation, or the sender's latest operation if the
 *           sender has not been in the probed one.  Otherwise it has the latest operation that the
 *           sender has observed on that rank.
 * ABORT     the sender has failed.  -`value` is the status, `step` is the culprit, and the payload
 *           is a text.
 * GOODBYE   the last frame on all streams.  The payload has the operations that the sender began
 *           last, the latest first, each as bytes 16 to 63 of a header.
 */
#ifndef LKI_LINK_WIRE_FRAME_H
#define LKI_LINK_WIRE_FRAME_H

#include "base/status.h"
#include "link/wire/wire.h"

enum {
    LKI_FRAME_BYTES       = 96,
    LKI_FRAME_EAGER_BYTES = 64 * 1024,  /* longest message that is sent without a grant */
    LKI_FRAME_PIECE_BYTES = 256 * 1024, /* largest payload of a piece; small, so that an ABORT never
                                         * waits long behind a piece */
    LKI_FRAME_TEXT_BYTES  = LKI_MESSAGE_BYTES,
    LKI_FRAME_OP_BYTES    = 48,
    LKI_FRAME_OPS_MAX     = LKI_FRAME_TEXT_BYTES / LKI_FRAME_OP_BYTES, /* maximum number in a
                                                                        * GOODBYE */
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
    LKI_FRAME_POSTED,
} lki_frame_kind;

typedef struct {
    lki_frame_kind kind;
    uint32_t       from, step, value;
    lki_wire_op    op;
    uint64_t       total, offset;
    uint32_t       bytes, sum; /* size of the payload; its lki_crc32c(), or 0 if the link is
                                * sealed */
} lki_frame;

/* Writes a header. */
void lki_frame_encode(unsigned char out[LKI_FRAME_BYTES], const lki_frame *frame);

/* Decodes a header.  Returns LK_EFORMAT if the header violates a rule above; the error explains
 * which. */
LK_NODISCARD lk_status lki_frame_decode(lki_frame *out, const unsigned char in[LKI_FRAME_BYTES]);

/* Writes an operation as in bytes 16 to 63 of a header. */
void        lki_frame_put_op(unsigned char out[LKI_FRAME_OP_BYTES], const lki_wire_op *op);

/* Reads an operation as in bytes 16 to 63 of a header. */
lki_wire_op lki_frame_get_op(const unsigned char in[LKI_FRAME_OP_BYTES]);

#endif

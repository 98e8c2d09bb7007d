/* frame.c -- encoding and decoding headers; rejects every header that violates a rule. */
#include "link/wire/frame.h"

#include "base/memory.h"
#include "link/wire/crc32c.h"

static const uint32_t magic   = 0x77696b6c; /* "lkiw" */
static const uint32_t version = 1;

enum { SUM_AT = LKI_FRAME_BYTES - 4 };

static void put(unsigned char *out, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        out[i] = (unsigned char)(value >> 8 * i);
}

static uint64_t get(const unsigned char *in, size_t bytes)
{
    uint64_t value = 0;

    for (size_t i = bytes; i-- > 0;)
        value = value << 8 | in[i];
    return value;
}

static uint32_t get32(const unsigned char *in)
{
    return (uint32_t)get(in, 4);
}

void lki_frame_put_op(unsigned char out[LKI_FRAME_OP_BYTES], const lki_wire_op *op)
{
    put(out, op->group, 8);
    put(out + 8, op->seq, 8);
    put(out + 16, op->label, 8);
    put(out + 24, op->print.what, 8);
    put(out + 32, op->print.count, 8);
    put(out + 40, op->print.hash, 8);
}

lki_wire_op lki_frame_get_op(const unsigned char in[LKI_FRAME_OP_BYTES])
{
    return (lki_wire_op){ .group = get(in, 8),
                          .seq   = get(in + 8, 8),
                          .label = get(in + 16, 8),
                          .print = { get(in + 24, 8), get(in + 32, 8), get(in + 40, 8) } };
}

void lki_frame_encode(unsigned char out[LKI_FRAME_BYTES], const lki_frame *frame)
{
    put(out, magic, 4);
    put(out + 4, version, 2);
    out[6] = (unsigned char)frame->kind;
    out[7] = 0;
    put(out + 8, frame->from, 4);
    put(out + 12, frame->step, 4);
    lki_frame_put_op(out + 16, &frame->op);
    put(out + 64, frame->total, 8);
    put(out + 72, frame->offset, 8);
    put(out + 80, frame->bytes, 4);
    put(out + 84, frame->sum, 4);
    put(out + 88, frame->value, 4);
    put(out + SUM_AT, lki_crc32c(0, out, SUM_AT), 4);
}

static lk_status check_envelope(const unsigned char *in)
{
    if (get32(in) != magic)
        return lk_fail(LK_EFORMAT, "these are no frames: they begin with %08x, not %08x",
                       get32(in), magic);
    if (get(in + 4, 2) != version)
        return lk_fail(LK_EFORMAT, "frames of version %u, but this is version %u: run the same "
                                   "version everywhere", (unsigned)get(in + 4, 2), version);
    if (get32(in + SUM_AT) != lki_crc32c(0, in, SUM_AT))
        return lk_fail(LK_EFORMAT, "a frame's header was damaged on its way");
    if (in[6] < LKI_FRAME_EAGER || in[6] > LKI_FRAME_POSTED || in[7] != 0)
        return lk_fail(LK_EFORMAT, "a frame of unknown kind %u.%u", in[6], in[7]);
    return LK_OK;
}

/* Checks that `bytes`, `offset` and `value` have values that the frame's kind allows. */
static lk_status check_lengths(const lki_frame *frame)
{
    uint64_t total = frame->total, offset = frame->offset, bytes = frame->bytes;
    bool     good  = bytes == 0;

    if (frame->kind == LKI_FRAME_EAGER)
        good = bytes <= LKI_FRAME_EAGER_BYTES && bytes == total;
    else if (frame->kind == LKI_FRAME_PIECE)
        good = bytes >= 1 && bytes <= LKI_FRAME_PIECE_BYTES && offset % LKI_FRAME_PIECE_BYTES == 0
               && offset < total && bytes == lki_min(total - offset, LKI_FRAME_PIECE_BYTES);
    else if (frame->kind == LKI_FRAME_ABORT)
        good = bytes <= LKI_FRAME_TEXT_BYTES;
    else if (frame->kind == LKI_FRAME_GOODBYE)
        good = bytes % LKI_FRAME_OP_BYTES == 0 && bytes <= LKI_FRAME_TEXT_BYTES;
    else if (frame->kind == LKI_FRAME_ANSWER)
        good = bytes < LKI_WIRE_STATE_BYTES && frame->value <= LKI_PLACE_SEEN;
    if (!good)
        return lk_fail(LK_EFORMAT, "a frame of kind %u with %llu bytes at %llu of %llu, value %u",
                       frame->kind, (unsigned long long)bytes, (unsigned long long)offset,
                       (unsigned long long)total, frame->value);
    return LK_OK;
}

lk_status lki_frame_decode(lki_frame *out, const unsigned char in[LKI_FRAME_BYTES])
{
    LK_TRY(check_envelope(in));
    *out = (lki_frame){
        .kind   = (lki_frame_kind)in[6],
        .from   = get32(in + 8),
        .step   = get32(in + 12),
        .op     = lki_frame_get_op(in + 16),
        .total  = get(in + 64, 8),
        .offset = get(in + 72, 8),
        .bytes  = get32(in + 80),
        .sum    = get32(in + 84),
        .value  = get32(in + 88),
    };
    return check_lengths(out);
}

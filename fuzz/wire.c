/* wire.c -- a peer that sends any frames: the wire accepts the frames or fails, and writes only to
 * the buffers that it was given.
 *
 * Each 12 bytes of the input determine a frame: it has mostly valid values, in any combination, and
 * a correct checksum.  Payloads are zeros.
 */
#include "fuzz.h"

#include <string.h>

#include "base/memory.h"
#include "link/wire/crc32c.h"
#include "link/sim.h"
#include "link/wire/inside.h"

enum { LARGE = 300000, FRAMES = 64, EAGER_KEPT = 24 };

typedef struct {
    lki_sim    *sim;
    lki_link   *hand;
    lki_wire   *wire;
    lki_wire_op op;
    lki_message messages[4];
    bool        over;
} bench;

static void write_bytes(bench *b, const unsigned char *data, size_t bytes)
{
    bool progressed;

    for (size_t moved = 0, tries = 0; bytes > 0 && !b->over && tries < 1000; tries++) {
        struct iovec part = { (void *)(uintptr_t)data, bytes };
        LK_ASSERT(b->hand->ops->write(b->hand, 0, 0, &part, 1, &moved) == LK_OK);
        data  += moved;
        bytes -= moved;
        b->over = lki_wire_progress(b->wire, 1, &progressed) != LK_OK;
    }
}

/* Writes a header determined by a few bytes of the input. */
static void write_frame(bench *b, const uint8_t in[12], const unsigned char *zeros)
{
    unsigned char header[LKI_FRAME_BYTES];
    lki_frame     frame = {
        .kind   = (lki_frame_kind)(in[0] % 11),
        .from   = in[1] < 250,
        .step   = in[2] % 8,
        .value  = in[3] % 5,
        .op     = b->op,
        .total  = in[4] < 128 ? in[4] : in[4] < 192 ? LARGE : 65536,
        .offset = (uint64_t)(in[5] % 3) * LKI_FRAME_PIECE_BYTES,
        .bytes  = 0,
    };
    frame.op.seq        += in[6] % 3;
    frame.op.print.count += in[7] > 250;
    if (frame.kind == LKI_FRAME_EAGER || in[8] > 250)
        frame.bytes = (uint32_t)lki_min(frame.total, LARGE);
    if (frame.kind == LKI_FRAME_PIECE && frame.offset < frame.total)
        frame.bytes = (uint32_t)lki_min(frame.total - frame.offset, LKI_FRAME_PIECE_BYTES);
    frame.sum = lki_crc32c(0, zeros, frame.bytes) ^ (in[9] > 250);
    lki_frame_encode(header, &frame);
    if (in[10] > 250)
        header[in[11] % sizeof header] ^= 1;
    write_bytes(b, header, sizeof header);
    write_bytes(b, zeros, frame.bytes);
}

static void set_up(bench *b, unsigned char *data)
{
    lki_sim_options options = { .mode = LKI_SIM_ALONE, .ranks = 2, .streams = 1, .seed = 1 };

    LK_ASSERT(lki_sim_new(&b->sim, &options) == LK_OK);
    b->hand = lki_sim_link(b->sim, 1);
    LK_ASSERT(lki_wire_open(&b->wire, lki_sim_link(b->sim, 0)) == LK_OK);
    b->op = (lki_wire_op){ .group = 1, .seq = 1,
                           .print = lki_print_make(LKI_OP_ALL_GATHER, LK_F32, 0, 1) };
    LK_ASSERT(lki_wire_begin(b->wire, &b->op) == LK_OK);
    for (uint32_t i = 0; i < 4; i++) {
        b->messages[i] = (lki_message){ .peer = 1, .step = i, .op = b->op, .data = data,
                                        .bytes = i % 2 == 0 ? EAGER_KEPT : LARGE };
        if (i < 2)
            lki_wire_receive(b->wire, &b->messages[i]);
        else
            lki_wire_send(b->wire, &b->messages[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const unsigned char zeros[LARGE];
    bench                      b = { 0 };
    void                      *buffer;

    LK_ASSERT(lki_alloc(&buffer, LARGE, "a buffer") == LK_OK);
    set_up(&b, buffer);
    for (size_t at = 0; at + 12 <= bytes && at < FRAMES * 12 && !b.over; at += 12)
        write_frame(&b, data + at, zeros);
    const lki_wire_peer *peer = &b.wire->peers[1];
    LK_ASSERT(b.over || (peer->charged <= LKI_WIRE_WINDOW && peer->credit <= LKI_WIRE_WINDOW));
    b.hand->ops->close(b.hand);
    lki_wire_close(b.wire, false);
    lki_sim_free(b.sim);
    lki_free(buffer);
    return 0;
}

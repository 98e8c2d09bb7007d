/* garbage_test.c -- a wire whose peer violates the protocol.
 *
 * Goal:   a frame that violates a rule ends the wire, before memory is allocated or accessed for
 *         the frame.  The error names the peer and the rule.
 * Method: one thread holds both ends.  One end is a wire.  The other end is a link, to which the
 * test writes the bytes of frames.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

#include "base/memory.h"
#include "link/wire/crc32c.h"
#include "link/sim.h"
#include "link/wire/inside.h"

enum { LARGE = 600000, PEER = 1 };

typedef struct {
    lki_sim      *sim;
    lki_link     *hand; /* the link of rank 1 */
    lki_wire     *wire; /* the wire of rank 0 */
    lki_wire_op   op;
    lki_message   small, large, sent; /* open messages: `small` (step 1) and `large` (step 2) are
                                       * received, `sent` (step 3) is sent */
    unsigned char data[3][LARGE];
} bench;

static const lki_frame good_eager = { .kind = LKI_FRAME_EAGER, .from = PEER, .step = 1,
                                      .total = 100, .bytes = 100 };

static void progress(bench *b, lk_status expected)
{
    bool moved;

    for (int i = 0; i < 60; i++)
        if (lki_wire_progress(b->wire, 1, &moved) != LK_OK)
            break;
    assert_int_equal(lki_wire_progress(b->wire, 0, &moved), expected);
}

/* Writes raw bytes to the wire. */
static void write_bytes(bench *b, uint32_t stream, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    bool                 progressed;

    for (size_t moved, done = 0; done < bytes; done += moved) {
        struct iovec part = { (void *)(uintptr_t)(at + done), bytes - done };
        assert_int_equal(b->hand->ops->write(b->hand, 0, stream, &part, 1, &moved), LK_OK);
        if (moved == 0 && lki_wire_progress(b->wire, 1, &progressed) != LK_OK)
            return;
    }
}

static void write_frame(bench *b, uint32_t stream, lki_frame frame, const void *payload)
{
    unsigned char header[LKI_FRAME_BYTES];

    if (frame.bytes > 0 && frame.sum == 0)
        frame.sum = lki_crc32c(0, payload, frame.bytes);
    lki_frame_encode(header, &frame);
    write_bytes(b, stream, header, sizeof header);
    write_bytes(b, stream, payload, frame.bytes);
}

static bench *set_up(uint64_t seed)
{
    lki_sim_options options = { .mode = LKI_SIM_ALONE, .ranks = 2, .streams = 2, .seed = seed };
    bench          *b;

    assert_int_equal(LKI_NEW(&b, 1, "a bench"), LK_OK);
    assert_int_equal(lki_sim_new(&b->sim, &options), LK_OK);
    b->hand = lki_sim_link(b->sim, PEER);
    assert_int_equal(lki_wire_open(&b->wire, lki_sim_link(b->sim, 0)), LK_OK);
    b->op    = (lki_wire_op){ .group = 1, .seq = 5,
                              .print = lki_print_make(LKI_OP_ALL_GATHER, LK_F32, 0, 100) };
    b->small = (lki_message){ .peer = PEER, .step = 1, .op = b->op, .data = b->data[0],
                              .bytes = 100 };
    b->large = (lki_message){ .peer = PEER, .step = 2, .op = b->op, .data = b->data[1],
                              .bytes = LARGE };
    b->sent  = (lki_message){ .peer = PEER, .step = 3, .op = b->op, .data = b->data[2],
                              .bytes = LARGE };
    assert_int_equal(lki_wire_begin(b->wire, &b->op), LK_OK);
    lki_wire_receive(b->wire, &b->small);
    lki_wire_receive(b->wire, &b->large);
    lki_wire_send(b->wire, &b->sent);
    progress(b, LK_OK);
    return b;
}

static void tear_down(bench *b)
{
    b->hand->ops->close(b->hand);
    lki_wire_close(b->wire, false);
    lki_sim_free(b->sim);
    lki_free(b);
}

static void expect(bench *b, lk_status status, const char *text)
{
    progress(b, status);
    if (strstr(lki_wire_failure(b->wire)->message, text) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", text, lki_wire_failure(b->wire)->message);
    assert_int_equal(lki_wire_culprit(b->wire), PEER);
    tear_down(b);
}

/* ---- Single frames that break a rule ----------------------------------------------------- */

/* A valid frame with one mistake. */
typedef struct {
    const char *text;
    lki_frame   frame;
    uint32_t    stream;
    lk_status   status; /* expected status; 0: LK_EPEER */
    uint64_t    seq;    /* sequence number in the frame; 0: that of the open operation */
    lki_op_kind kind;   /* kind in the frame; 0: that of the open operation */
} breach;

static const breach breaches[] = {
    { .text = "has no place", .frame = { .kind = LKI_FRAME_EAGER, .from = 0 } },
    { .text = "has no place", .frame = { .kind = LKI_FRAME_EAGER, .from = 7 } },
    { .text = "has no place", .frame = { .kind = LKI_FRAME_PROBE, .from = PEER }, .stream = 1 },
    { .text = "which was not granted",
      .frame = { .kind = LKI_FRAME_POSTED, .from = PEER, .total = LARGE } },
    { .text = "has no place", .frame = { .kind = LKI_FRAME_ABORT, .from = PEER }, .stream = 1 },
    { .text = "frame of kind 1 with 65537 bytes",
      .frame = { .kind = LKI_FRAME_EAGER, .from = PEER, .bytes = 65537, .total = 65537 } },
    { .text = "frame of kind 1 with 100 bytes at 0 of 99",
      .frame = { .kind = LKI_FRAME_EAGER, .from = PEER, .bytes = 100, .total = 99 } },
    { .text = "frame of kind 2 with 8 bytes",
      .frame = { .kind = LKI_FRAME_ANNOUNCE, .from = PEER, .bytes = 8, .total = LARGE } },
    { .text = "frame of kind 4 with 262145 bytes",
      .frame = { .kind = LKI_FRAME_PIECE, .from = PEER, .bytes = 262145, .total = LARGE } },
    { .text = "frame of kind 4 with 4 bytes at 600000 of 600000",
      .frame = { .kind = LKI_FRAME_PIECE, .from = PEER, .bytes = 4, .offset = LARGE,
                 .total = LARGE } },
    { .text = "frame of kind 8 with 481 bytes",
      .frame = { .kind = LKI_FRAME_ABORT, .from = PEER, .bytes = 481 } },
    { .text = "frame of kind 9 with 47 bytes",
      .frame = { .kind = LKI_FRAME_GOODBYE, .from = PEER, .bytes = 47 } },
    { .text = "frame of kind 9 with 528 bytes",
      .frame = { .kind = LKI_FRAME_GOODBYE, .from = PEER, .bytes = 528 } },
    { .text = "value 4", .frame = { .kind = LKI_FRAME_ANSWER, .from = PEER, .value = 4 } },
    { .text = "frame of kind 7 with 176 bytes",
      .frame = { .kind = LKI_FRAME_ANSWER, .from = PEER, .bytes = LKI_WIRE_STATE_BYTES } },
    { .text = "unknown kind 99", .frame = { .kind = (lki_frame_kind)99, .from = PEER } },
    { .text = "unknown kind 0", .frame = { .kind = (lki_frame_kind)0, .from = PEER } },
    { .text = "a piece that was not granted: message 2",
      .frame = { .kind = LKI_FRAME_PIECE, .from = PEER, .step = 2, .bytes = 262144,
                 .total = LARGE } },
    { .text = "a piece that was not granted: message 9", .stream = 1,
      .frame = { .kind = LKI_FRAME_PIECE, .from = PEER, .step = 9, .bytes = 1, .total = 1 } },
    { .text = "a grant for what was not announced: message 4",
      .frame = { .kind = LKI_FRAME_GRANT, .from = PEER, .step = 4, .total = LARGE } },
    { .text = "a grant for what was not announced: message 3",
      .frame = { .kind = LKI_FRAME_GRANT, .from = PEER, .step = 3, .total = LARGE - 1 } },
    { .text = "credit for what it never got",
      .frame = { .kind = LKI_FRAME_CREDIT, .from = PEER, .total = 1 } },
    { .text = "credit for what it never got",
      .frame = { .kind = LKI_FRAME_CREDIT, .from = PEER, .total = UINT64_MAX } },
    { .text = "were damaged on their way",
      .frame = { .kind = LKI_FRAME_EAGER, .from = PEER, .step = 1, .bytes = 100, .total = 100,
                 .sum = 1 } },
    { .text = "rank 0 is in all_gather #5 (100 bytes); rank 1 is in all_gather #5 (100 bytes), but",
      .frame = { .kind = LKI_FRAME_EAGER, .from = PEER, .step = 1, .bytes = 101, .total = 101 },
      .status = LK_EMISMATCH },
    { .text = "rank 0 is in all_gather #5 (100 bytes); rank 1 is in all_gather #5 (100 bytes), but",
      .frame = { .kind = LKI_FRAME_ANNOUNCE, .from = PEER, .step = 2, .total = UINT64_MAX },
      .status = LK_EMISMATCH },
    { .text = "rank 0 is in all_gather #5 (100 bytes); rank 1 is in all_gather #4 (100 bytes)",
      .frame = { .kind = LKI_FRAME_EAGER, .from = PEER, .step = 1, .bytes = 100, .total = 100 },
      .status = LK_EMISMATCH, .seq = 4 },
    { .text = "rank 0 is in all_gather #5 (100 bytes); rank 1 is in barrier #5",
      .frame = { .kind = LKI_FRAME_PROBE, .from = PEER }, .status = LK_EMISMATCH,
      .kind = LKI_OP_BARRIER },
    { .text = "rank 1 gave up: ", .frame = { .kind = LKI_FRAME_ABORT, .from = PEER, .step = PEER,
                                             .value = 4000000000 } },
    { .text = "rank 1 has left, but rank 0 still needs it in all_gather #5 (100 bytes)",
      .frame = { .kind = LKI_FRAME_GOODBYE, .from = PEER } },
};

static void breaches_are_named(void **state)
{
    static const unsigned char payload[300000];

    (void)state;
    for (size_t i = 0; i < sizeof breaches / sizeof breaches[0]; i++) {
        bench    *b     = set_up(i);
        lki_frame frame = breaches[i].frame;
        frame.op        = b->op;
        if (breaches[i].seq != 0)
            frame.op.seq = breaches[i].seq;
        if (breaches[i].kind != 0)
            frame.op.print = lki_print_make(breaches[i].kind, LK_F32, 0, 0);
        write_frame(b, breaches[i].stream, frame, payload);
        expect(b, breaches[i].status == LK_OK ? LK_EPEER : breaches[i].status, breaches[i].text);
    }
}

/* ---- Damaged headers --------------------------------------------------------------------- */

static void headers_are_checked(void **state)
{
    (void)state;
    for (size_t at = 0; at < LKI_FRAME_BYTES; at++) {
        bench        *b     = set_up(at);
        lki_frame     frame = good_eager;
        unsigned char header[LKI_FRAME_BYTES];
        frame.op = b->op;
        lki_frame_encode(header, &frame);
        header[at] ^= (unsigned char)(1 << at % 8);
        write_bytes(b, 0, header, sizeof header);
        expect(b, LK_EPEER, at < 4 ? "these are no frames: they begin with"
                            : at < 6 ? "frames of version" : "header was damaged");
    }
}

/* ---- Sequences that break a rule --------------------------------------------------------- */

static void repeated_frames_are_refused(void **state)
{
    static const unsigned char payload[100];
    lki_frame                  frame = good_eager;

    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        bench *b = set_up((uint64_t)kind);
        frame.op   = b->op;
        frame.step = 60; /* no message with this number is requested yet */
        frame.kind = kind % 2 == 0 ? LKI_FRAME_EAGER : LKI_FRAME_ANNOUNCE;
        frame.bytes = kind % 2 == 0 ? 100 : 0;
        write_frame(b, 0, frame, payload);
        frame.kind = kind / 2 == 0 ? LKI_FRAME_EAGER : LKI_FRAME_ANNOUNCE;
        frame.bytes = kind / 2 == 0 ? 100 : 0;
        write_frame(b, 0, frame, payload);
        expect(b, LK_EPEER, "rank 1 sent message 60 of operation 5 twice");
    }
}

static void pieces_beyond_the_end_are_refused(void **state)
{
    static const unsigned char payload[262144];
    bench                     *b     = set_up(1);
    lki_frame                  frame = { .kind = LKI_FRAME_ANNOUNCE, .from = PEER, .step = 2,
                                         .op = b->op, .total = LARGE };

    (void)state;
    write_frame(b, 0, frame, NULL);
    progress(b, LK_OK);
    frame.kind  = LKI_FRAME_PIECE;
    frame.bytes = 262144;
    for (int i = 0; i < 3; i++)
        write_frame(b, i % 2 == 0, frame, payload);
    expect(b, LK_EPEER, "a piece that was not granted: message 2");
}

/* Sends more eager bytes than LKI_WIRE_WINDOW.  Expects that the wire fails. */
static void floods_are_stopped(void **state)
{
    static const unsigned char payload[65536];
    bench                     *b     = set_up(1);
    lki_frame                  frame = { .kind = LKI_FRAME_EAGER, .from = PEER, .op = b->op,
                                         .total = 65536, .bytes = 65536 };

    (void)state;
    for (frame.step = 10; frame.step < 14; frame.step++)
        write_frame(b, 0, frame, payload);
    expect(b, LK_EPEER, "more than it has credit for: message 13");

    b = set_up(2);
    frame = (lki_frame){ .kind = LKI_FRAME_ANNOUNCE, .from = PEER, .op = b->op, .total = 1 };
    frame.op.seq++;
    for (; frame.step <= LKI_WIRE_ANNOUNCED; frame.step++)
        write_frame(b, 0, frame, NULL);
    expect(b, LK_EPEER, "rank 1 announced more than 16384 messages that nobody asked for");
}

/* Sends a frame after a goodbye.  Expects that the wire fails. */
static void frames_after_a_goodbye_are_refused(void **state)
{
    lki_sim_options options = { .mode = LKI_SIM_ALONE, .ranks = 2, .streams = 1, .seed = 1 };
    lki_frame       frame   = { .kind = LKI_FRAME_GOODBYE, .from = PEER };
    bench          *b;

    (void)state;
    assert_int_equal(LKI_NEW(&b, 1, "a bench"), LK_OK);
    assert_int_equal(lki_sim_new(&b->sim, &options), LK_OK);
    b->hand = lki_sim_link(b->sim, PEER);
    assert_int_equal(lki_wire_open(&b->wire, lki_sim_link(b->sim, 0)), LK_OK);
    write_frame(b, 0, frame, NULL);
    progress(b, LK_OK);
    write_frame(b, 0, frame, NULL);
    expect(b, LK_EPEER, "has no place");
}

/* Sends valid variants of the frames that the other tests send.  Expects that the wire accepts
 * these variants, so the frames of the other tests fail because of their mistakes. */
static void good_frames_are_taken(void **state)
{
    static unsigned char payload[262144];
    bench               *b     = set_up(1);
    lki_frame            frame = good_eager;
    const size_t         ends[] = { 262144, 524288, LARGE };

    (void)state;
    memset(payload, 0x5a, sizeof payload);
    frame.op = b->op;
    write_frame(b, 0, frame, payload);
    frame.kind  = LKI_FRAME_ANNOUNCE;
    frame.step  = 2;
    frame.total = LARGE;
    frame.bytes = 0;
    write_frame(b, 0, frame, NULL);
    progress(b, LK_OK);
    frame.kind = LKI_FRAME_PIECE;
    for (int i = 2; i >= 0; i--) {
        frame.offset = i == 0 ? 0 : ends[i - 1];
        frame.bytes  = (uint32_t)(ends[i] - frame.offset);
        write_frame(b, i == 1, frame, payload);
    }
    progress(b, LK_OK);
    assert_true(b->small.done && b->large.done && b->data[0][99] == 0x5a);
    assert_true(b->data[1][0] == 0x5a && b->data[1][LARGE - 1] == 0x5a);
    frame = (lki_frame){ .kind = LKI_FRAME_GRANT, .from = PEER, .step = 3, .op = b->op,
                         .total = LARGE };
    write_frame(b, 0, frame, NULL);
    progress(b, LK_OK);
    assert_true(b->sent.granted);
    tear_down(b);
}

/* Sends two frames at once.  Expects that the wire processes the bytes that it has read ahead,
 * without another event of the link. */
static void bytes_read_ahead_are_processed(void **state)
{
    unsigned char both[2 * (LKI_FRAME_BYTES + 100)] = { 0 }, *at = both;
    lki_frame     frame = good_eager;

    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++, at = both) {
        bench *b  = set_up(seed);
        frame.op  = b->op;
        frame.sum = lki_crc32c(0, both + LKI_FRAME_BYTES, 100);
        b->large.bytes = 100;
        for (frame.step = 1; frame.step <= 2; frame.step++, at += LKI_FRAME_BYTES + 100)
            lki_frame_encode(at, &frame);
        write_bytes(b, 0, both, sizeof both);
        progress(b, LK_OK);
        assert_true(b->small.done && b->large.done);
        tear_down(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_frames_are_taken),   cmocka_unit_test(breaches_are_named),
        cmocka_unit_test(headers_are_checked),     cmocka_unit_test(repeated_frames_are_refused),
        cmocka_unit_test(pieces_beyond_the_end_are_refused),   cmocka_unit_test(floods_are_stopped),
        cmocka_unit_test(frames_after_a_goodbye_are_refused),
        cmocka_unit_test(bytes_read_ahead_are_processed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

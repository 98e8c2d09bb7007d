/* out.c -- outgoing frames: choosing the next frame of a stream, and writing it.
 *
 * There is no queue of frames.  A small frame is stored as a flag or a note of its peer, and is
 * built when the stream is free.  Messages wait in lists, and their payloads are written from the
 * caller's memory.
 */
#include "link/wire/inside.h"

#include <string.h>

#include "base/memory.h"
#include "link/wire/crc32c.h"

void lki_wire_stir(lki_wire *wire, uint32_t peer, uint32_t index)
{
    lki_stream *stream = lki_wire_stream(wire, peer, index);

    if (stream->out.busy || stream->out.blocked || stream->out.broken)
        return;
    stream->out.busy = true;
    stream->next     = NULL;
    *wire->busy_tail = stream;
    wire->busy_tail  = &stream->next;
}

void lki_wire_stir_all(lki_wire *wire, uint32_t peer)
{
    for (uint32_t i = 0; i < wire->link->streams; i++)
        lki_wire_stir(wire, peer, i);
}

/* ---- The next frame ---------------------------------------------------------------------- */

/* Encodes a frame and makes it the active frame of the stream. */
static void start_frame(lki_wire *wire, lki_stream *stream, lki_frame *frame,
                        const unsigned char *payload, lki_message *message)
{
    lki_output *out = &stream->out;

    frame->from = wire->link->rank;
    if (!wire->link->sealed && frame->bytes > 0)
        frame->sum = lki_crc32c(0, payload, frame->bytes);
    lki_frame_encode(out->header, frame);
    out->payload = payload;
    out->bytes   = LKI_FRAME_BYTES + (size_t)frame->bytes;
    out->moved   = 0;
    out->message = message;
    out->active  = true;
}

/* Starts the ABORT or GOODBYE. */
static void start_saying(lki_wire *wire, lki_stream *stream)
{
    lki_frame   frame = { .kind = LKI_FRAME_GOODBYE, .bytes = wire->farewell_bytes };
    const void *words = wire->farewell;

    wire->peers[stream->peer].saying = false;
    if (wire->failed) {
        words = wire->failure.message;
        frame = (lki_frame){
            .kind  = LKI_FRAME_ABORT,
            .step  = wire->culprit,
            .value = (uint32_t)-wire->failure.status,
            .bytes = (uint32_t)strnlen(wire->failure.message, LKI_FRAME_TEXT_BYTES),
        };
    }
    start_frame(wire, stream, &frame, words, NULL);
}

static void start_control(lki_wire *wire, lki_stream *stream, lki_frame_kind kind,
                          const lki_wire_op *op, uint64_t total)
{
    lki_frame frame = { .kind = kind, .op = *op, .total = total };
    start_frame(wire, stream, &frame, NULL, NULL);
}

static bool start_flagged(lki_wire *wire, lki_stream *stream)
{
    static const lki_wire_op none = { 0 };
    lki_wire_peer           *peer = &wire->peers[stream->peer];

    if (peer->note_count > 0) {
        lki_frame note = peer->notes[0];
        peer->note_count--;
        memmove(peer->notes, peer->notes + 1, peer->note_count * sizeof note);
        if (note.kind == LKI_FRAME_ANSWER)
            lki_wire_fill_answer(wire, &note, peer->state);
        start_frame(wire, stream, &note, (const unsigned char *)peer->state, NULL);
    } else if (peer->owed >= LKI_WIRE_WINDOW / 4) {
        start_control(wire, stream, LKI_FRAME_CREDIT, &none, peer->owed);
        peer->charged -= peer->owed;
        peer->owed     = 0;
    } else {
        return false;
    }
    return true;
}

/* Starts the grant of the first announced message whose buffer is available. */
static void start_grant(lki_wire *wire, lki_stream *stream)
{
    lki_wire_peer *peer    = &wire->peers[stream->peer];
    lki_message   *message = peer->granting.head;
    lki_frame      frame   = { .kind = LKI_FRAME_GRANT, .op = message->op, .step = message->step,
                               .total = message->bytes };

    (void)lki_queue_remove(&peer->granting, message);
    if (message->bytes == 0)
        lki_wire_done(wire, message);
    else
        lki_queue_push(&peer->arriving, message);
    start_frame(wire, stream, &frame, NULL, NULL);
    (void)lki_wire_post_receives(wire, stream->peer);
}

/* Starts the eager frame of the first message if the message is small and there is credit for it.
 * Otherwise starts its announcement. */
static void start_message(lki_wire *wire, lki_stream *stream)
{
    lki_wire_peer *peer    = &wire->peers[stream->peer];
    lki_message   *message = peer->outbox.head;
    uint64_t       cost    = lki_wire_cost(message->bytes);
    bool           eager   = message->bytes <= LKI_FRAME_EAGER_BYTES && cost <= peer->credit;
    lki_frame      frame   = {
        .kind   = eager ? LKI_FRAME_EAGER : LKI_FRAME_ANNOUNCE,
        .op     = message->op,
        .step   = message->step,
        .total  = message->bytes,
        .offset = message->whole,
        .bytes  = eager ? (uint32_t)message->bytes : 0,
    };

    (void)lki_queue_remove(&peer->outbox, message);
    if (eager) {
        peer->credit     -= cost;
        message->granted  = true;
        message->assigned = message->bytes;
    }
    lki_queue_push(eager ? &peer->sending : &peer->announced, message);
    start_frame(wire, stream, &frame, message->data, eager ? message : NULL);
}

/* Starts the next piece of the first message that has unsent pieces. */
static bool start_piece(lki_wire *wire, lki_stream *stream)
{
    lki_message *message = wire->peers[stream->peer].sending.head;

    while (message != NULL
           && (message->assigned == message->bytes || lki_wire_is_posted(wire, message)))
        message = message->next;
    if (message == NULL)
        return false;
    lki_frame frame = {
        .kind   = LKI_FRAME_PIECE,
        .op     = message->op,
        .step   = message->step,
        .total  = message->bytes,
        .offset = message->assigned,
        .bytes  = (uint32_t)lki_min(message->bytes - message->assigned, LKI_FRAME_PIECE_BYTES),
    };
    const unsigned char *payload = message->data + message->assigned;
    message->assigned += frame.bytes;
    start_frame(wire, stream, &frame, payload, message);
    return true;
}

static bool start_posted(lki_wire *wire, lki_stream *stream)
{
    lki_message *message;
    lki_frame    frame;

    if (!lki_wire_next_posted(wire, stream->peer, &frame, &message))
        return false;
    start_frame(wire, stream, &frame, NULL, message);
    return true;
}

/* Starts the next frame if no frame is active.  Returns false if there is nothing to send. */
static bool start_next(lki_wire *wire, lki_stream *stream)
{
    lki_wire_peer *peer = &wire->peers[stream->peer];

    if (stream->out.active)
        return true;
    if (stream->index == 0 && wire->failed && peer->saying)
        start_saying(wire, stream);
    else if (wire->failed || peer->left)
        return false;
    else if (stream->index > 0)
        return start_piece(wire, stream);
    else if (start_flagged(wire, stream))
        return true;
    else if (peer->granting.head != NULL)
        start_grant(wire, stream);
    else if (peer->outbox.head != NULL)
        start_message(wire, stream);
    else if (peer->saying)
        start_saying(wire, stream);
    else
        return start_posted(wire, stream) || start_piece(wire, stream);
    return true;
}

/* ---- Writing ----------------------------------------------------------------------------- */

static void finish_frame(lki_wire *wire, lki_stream *stream)
{
    lki_output  *out     = &stream->out;
    lki_message *message = out->message;
    size_t       bytes   = out->bytes - LKI_FRAME_BYTES;

    out->active  = false;
    out->message = NULL;
    lki_free(out->rest);
    out->rest = NULL;
    wire->counts.frames_sent++;
    if (message == NULL)
        return;
    wire->counts.bytes_sent += bytes;
    message->moved  += bytes;
    message->claimed = bytes == 0;
    lki_wire_finish_sending(wire, message);
}

/* Writes as much of the frame as the link accepts. */
static lk_status write_frame(lki_wire *wire, lki_stream *stream, size_t *moved)
{
    lki_output  *out   = &stream->out;
    lki_link    *link  = wire->link;
    size_t       done  = out->moved;
    int          count = 0;
    struct iovec parts[2];

    if (done < LKI_FRAME_BYTES)
        parts[count++] = (struct iovec){ out->header + done, LKI_FRAME_BYTES - done };
    size_t from = done < LKI_FRAME_BYTES ? 0 : done - LKI_FRAME_BYTES;
    if (out->bytes - LKI_FRAME_BYTES > from) /* iovec is not const, but write() only reads the
                                              * payload */
        parts[count++] = (struct iovec){ (void *)(uintptr_t)(out->payload + from),
                                         out->bytes - LKI_FRAME_BYTES - from };
    LK_TRY(link->ops->write(link, stream->peer, stream->index, parts, count, moved));
    LK_ASSERT(*moved <= out->bytes - done);
    out->moved += *moved;
    wire->moved = wire->moved || *moved > 0;
    wire->peers[stream->peer].spoken = wire->peers[stream->peer].spoken || *moved > 0;
    return LK_OK;
}

static lk_status write_stream(lki_wire *wire, lki_stream *stream)
{
    size_t moved, turn = 0;

    if (stream->out.blocked || stream->out.broken)
        return LK_OK;
    while (turn < LKI_WIRE_TURN_BYTES && start_next(wire, stream)) {
        lk_status st = write_frame(wire, stream, &moved);
        if (st == LK_EPEER)
            return lki_wire_broken(wire, stream, false);
        if (st != LK_OK)
            return lki_wire_fail(wire, wire->link->rank, st, "%s", lk_error_last()->message);
        turn += moved;
        if (stream->out.moved < stream->out.bytes) {
            stream->out.blocked = true;
            lki_wire_watch(wire, stream);
            return LK_OK;
        }
        finish_frame(wire, stream);
    }
    if (turn >= LKI_WIRE_TURN_BYTES)
        lki_wire_stir(wire, stream->peer, stream->index);
    return LK_OK;
}

lk_status lki_wire_write(lki_wire *wire)
{
    lki_stream *stream = wire->busy;
    lk_status   st     = LK_OK;

    wire->busy      = NULL; /* streams queued from now on are written in the next call */
    wire->busy_tail = &wire->busy;
    while (stream != NULL) {
        lki_stream *next = stream->next;
        stream->out.busy = false;
        lk_status this   = write_stream(wire, stream);
        st               = st == LK_OK ? this : st;
        stream           = next;
    }
    return st;
}

/* Detaches a frame from its message.  If the frame was partly written, the remaining bytes are
 * copied and written later, so that the reader still finds the next frame. */
static void detach(lki_stream *stream)
{
    lki_output *out   = &stream->out;
    size_t      bytes = out->bytes - LKI_FRAME_BYTES;
    void       *copy  = NULL;

    if (!out->active || out->message == NULL)
        return;
    out->message = NULL;
    if (out->moved == 0) {
        out->active = false;
    } else if (stream->index > 0 || lki_alloc(&copy, bytes, "the rest of a frame") != LK_OK) {
        out->active = false;
        out->broken = true;
    } else {
        if (bytes > 0)
            memcpy(copy, out->payload, bytes);
        out->rest    = copy;
        out->payload = copy;
    }
}

void lki_wire_detach_output(lki_wire *wire)
{
    size_t count = (size_t)wire->link->ranks * wire->link->streams;

    for (size_t i = 0; i < count; i++)
        detach(&wire->streams[i]);
}

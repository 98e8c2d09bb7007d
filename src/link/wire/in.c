/* in.c -- incoming frames: reading them and matching them to messages.
 *
 * A header and the bytes after it are read into a small buffer, so a small message needs one read.
 * The remaining bytes of a larger payload are read directly to their destination.  For any input
 * from a peer, memory stays within the limits in inside.h.  A peer that violates a rule is named in
 * the error.
 */
#include "link/wire/inside.h"

#include <string.h>

#include "base/memory.h"
#include "link/wire/crc32c.h"

/* ---- Parked messages --------------------------------------------------------------------- */

lki_parked **lki_wire_bucket(lki_wire *wire, const lki_wire_op *op)
{
    uint64_t key = op->group ^ op->group >> 32 ^ op->seq;
    return &wire->parked[key % LKI_WIRE_BUCKETS];
}

static lki_parked **find_parked(lki_wire *wire, uint32_t peer, const lki_wire_op *op,
                                uint32_t step)
{
    lki_parked **at = lki_wire_bucket(wire, op);

    while (*at != NULL
           && ((*at)->peer != peer || (*at)->step != step || !lki_wire_same_op(&(*at)->op, op)))
        at = &(*at)->next;
    return at;
}

static void drop_parked(lki_parked **at)
{
    lki_parked *parked = *at;

    LK_ASSERT(parked != NULL);
    *at = parked->next;
    lki_free(parked);
}

/* Adds the credit for `bytes` consumed eager bytes, and returns it to the peer when enough has
 * accumulated. */
static void give_back(lki_wire *wire, uint32_t rank, uint64_t bytes)
{
    wire->peers[rank].owed += lki_wire_cost(bytes);
    if (wire->peers[rank].owed >= LKI_WIRE_WINDOW / 4)
        lki_wire_stir(wire, rank, 0);
}

/* Queues the grant of an announced message, because the buffer of the message is available. */
static void grant(lki_wire *wire, lki_message *message)
{
    message->granted = true;
    lki_queue_push(&wire->peers[message->peer].granting, message);
    lki_wire_stir(wire, message->peer, 0);
}

lk_status lki_wire_unpark(lki_wire *wire, lki_message *message, bool *found)
{
    lki_parked **at     = find_parked(wire, message->peer, &message->op, message->step);
    lki_parked  *parked = *at;

    *found = parked != NULL;
    if (parked == NULL)
        return LK_OK;
    if (parked->total != message->bytes || parked->whole != message->whole)
        return lki_wire_uneven(wire, message, &parked->op, parked->whole);
    if (parked->announced) {
        wire->peers[message->peer].announces--;
        drop_parked(at);
        grant(wire, message);
        return LK_OK;
    }
    message->granted = true;
    if (!parked->arrived) {
        parked->claimed = message;
        return LK_OK;
    }
    if (message->bytes > 0)
        memcpy(message->data, parked->data, message->bytes);
    message->moved = message->bytes;
    drop_parked(at);
    give_back(wire, message->peer, message->bytes);
    lki_wire_done(wire, message);
    return LK_OK;
}

static lk_status park(lki_wire *wire, uint32_t rank, const lki_frame *frame, lki_parked **out)
{
    lki_wire_peer *peer      = &wire->peers[rank];
    lki_parked   **at        = find_parked(wire, rank, &frame->op, frame->step);
    bool           announced = frame->kind == LKI_FRAME_ANNOUNCE;

    if (*at != NULL || lki_queue_find(&peer->arriving, &frame->op, frame->step) != NULL
        || lki_queue_find(&peer->granting, &frame->op, frame->step) != NULL)
        return lki_wire_fail(wire, rank, LK_EPEER, "rank %u sent message %u of operation %llu "
                             "twice", rank, frame->step, (unsigned long long)frame->op.seq);
    if (announced && peer->announces == LKI_WIRE_ANNOUNCED)
        return lki_wire_fail(wire, rank, LK_EPEER, "rank %u announced more than %d messages that "
                             "nobody asked for", rank, LKI_WIRE_ANNOUNCED);
    if (lki_alloc((void **)out, sizeof **out + frame->bytes, "a message from a peer") != LK_OK)
        return lki_wire_fail(wire, wire->link->rank, LK_ENOMEM, "%s", lk_error_last()->message);
    (*out)->peer      = rank;
    (*out)->step      = frame->step;
    (*out)->op        = frame->op;
    (*out)->total     = frame->total;
    (*out)->whole     = frame->offset;
    (*out)->announced = announced;
    peer->announces  += announced;
    *at = *out;
    return LK_OK;
}

/* ---- Frames ------------------------------------------------------------------------------ */

static lk_status unexpected(lki_wire *wire, uint32_t rank, const lki_frame *frame,
                            const char *what)
{
    return lki_wire_fail(wire, rank, LK_EPEER, "rank %u sent %s: message %u of operation %llu, "
                         "%llu bytes", rank, what, frame->step,
                         (unsigned long long)frame->op.seq, (unsigned long long)frame->total);
}

/* Finds the message that waits for an eager frame or an announcement.  *out becomes NULL if no
 * message waits for it. */
static lk_status match(lki_wire *wire, uint32_t rank, const lki_frame *frame, lki_message **out)
{
    lki_wire_peer  *peer = &wire->peers[rank];
    lki_wire_place place;

    *out = NULL;
    LK_TRY(lki_wire_find(wire, rank, &frame->op, &place));
    if (place == LKI_PLACE_AFTER)
        return lki_wire_unwanted(wire, rank, &frame->op, frame->offset);
    *out = lki_queue_find(&peer->waiting, &frame->op, frame->step);
    if (*out == NULL)
        return LK_OK;
    if ((*out)->bytes != frame->total || (*out)->whole != frame->offset)
        return lki_wire_uneven(wire, *out, &frame->op, frame->offset);
    (void)lki_queue_remove(&peer->waiting, *out);
    return LK_OK;
}

static lk_status begin_eager(lki_wire *wire, lki_stream *stream)
{
    lki_input     *in   = &stream->in;
    lki_wire_peer *peer = &wire->peers[stream->peer];

    peer->charged += lki_wire_cost(in->frame.bytes);
    if (peer->charged > LKI_WIRE_WINDOW)
        return unexpected(wire, stream->peer, &in->frame, "more than it has credit for");
    LK_TRY(match(wire, stream->peer, &in->frame, &in->message));
    if (in->message == NULL) {
        LK_TRY(park(wire, stream->peer, &in->frame, &in->parked));
        in->payload = in->parked->data;
        return LK_OK;
    }
    in->message->granted = true;
    in->payload          = in->message->data;
    lki_queue_push(&peer->arriving, in->message);
    return LK_OK;
}

static lk_status begin_announce(lki_wire *wire, lki_stream *stream)
{
    lki_message *message;
    lki_parked  *parked;

    LK_TRY(match(wire, stream->peer, &stream->in.frame, &message));
    if (message == NULL)
        return park(wire, stream->peer, &stream->in.frame, &parked);
    grant(wire, message);
    return LK_OK;
}

static lk_status begin_grant(lki_wire *wire, lki_stream *stream)
{
    const lki_frame *frame   = &stream->in.frame;
    lki_wire_peer   *peer    = &wire->peers[stream->peer];
    lki_message     *message = lki_queue_find(&peer->announced, &frame->op, frame->step);

    if (message == NULL || message->bytes != frame->total)
        return unexpected(wire, stream->peer, frame, "a grant for what was not announced");
    (void)lki_queue_remove(&peer->announced, message);
    message->granted = true;
    if (message->bytes == 0) {
        lki_wire_done(wire, message);
        return LK_OK;
    }
    lki_queue_push(&peer->sending, message);
    lki_wire_stir_all(wire, stream->peer);
    return lki_wire_post_sends(wire, stream->peer);
}

static lk_status begin_piece(lki_wire *wire, lki_stream *stream)
{
    lki_input     *in   = &stream->in;
    lki_wire_peer *peer = &wire->peers[stream->peer];

    in->message = lki_queue_find(&peer->arriving, &in->frame.op, in->frame.step);
    if (in->message == NULL || in->message->bytes != in->frame.total
        || lki_wire_is_posted(wire, in->message)
        || in->frame.bytes > in->message->bytes - in->message->assigned)
        return unexpected(wire, stream->peer, &in->frame, "a piece that was not granted");
    in->message->assigned += in->frame.bytes;
    in->payload            = in->message->data + in->frame.offset;
    return LK_OK;
}

static lk_status begin_credit(lki_wire *wire, lki_stream *stream)
{
    lki_wire_peer *peer = &wire->peers[stream->peer];

    if (stream->in.frame.total > LKI_WIRE_WINDOW - peer->credit)
        return unexpected(wire, stream->peer, &stream->in.frame, "credit for what it never got");
    peer->credit += stream->in.frame.total;
    return LK_OK;
}

/* Handles a header: finds its message and the destination of its payload. */
static lk_status begin_frame(lki_wire *wire, lki_stream *stream)
{
    lki_input *in = &stream->in;

    in->active  = true;
    in->moved   = 0;
    in->sum     = 0;
    in->payload = NULL;
    in->message = NULL;
    in->parked  = NULL;
    wire->counts.frames_received++;
    wire->peers[stream->peer].known = true;
    if (in->frame.from != stream->peer || (stream->index > 0 && in->frame.kind != LKI_FRAME_PIECE)
        || (wire->peers[stream->peer].left && in->frame.kind != LKI_FRAME_PIECE))
        return lki_wire_fail(wire, stream->peer, LK_EPEER, "rank %u sent a frame of kind %u, "
                             "from rank %u, that has no place on stream %u", stream->peer,
                             in->frame.kind, in->frame.from, stream->index);
    if (in->frame.op.print.what != 0)
        wire->peers[stream->peer].heard = in->frame.op;
    switch (in->frame.kind) {
    case LKI_FRAME_EAGER: return begin_eager(wire, stream);
    case LKI_FRAME_ANNOUNCE: return begin_announce(wire, stream);
    case LKI_FRAME_GRANT: return begin_grant(wire, stream);
    case LKI_FRAME_PIECE: return begin_piece(wire, stream);
    case LKI_FRAME_CREDIT: return begin_credit(wire, stream);
    case LKI_FRAME_POSTED: return lki_wire_claimed(wire, stream->peer, &in->frame);
    case LKI_FRAME_PROBE: return lki_wire_probed(wire, stream->peer, &in->frame);
    case LKI_FRAME_ANSWER:
    case LKI_FRAME_ABORT:
    case LKI_FRAME_GOODBYE: in->payload = wire->peers[stream->peer].text; return LK_OK;
    }
    return LK_OK;
}

/* ---- Payloads ---------------------------------------------------------------------------- */

/* Completes a parked message.  The caller may have requested this message while its bytes were
 * arriving. */
static void finish_parked(lki_wire *wire, lki_parked *parked)
{
    lki_message *message = parked->claimed;

    parked->arrived = true;
    if (message == NULL)
        return;
    if (message->bytes > 0)
        memcpy(message->data, parked->data, message->bytes);
    message->moved = message->bytes;
    drop_parked(find_parked(wire, parked->peer, &parked->op, parked->step));
    give_back(wire, message->peer, message->bytes);
    lki_wire_done(wire, message);
}

static void finish_message(lki_wire *wire, lki_stream *stream)
{
    lki_input   *in      = &stream->in;
    lki_message *message = in->message;

    message->moved += in->frame.bytes;
    if (in->frame.kind == LKI_FRAME_EAGER)
        give_back(wire, stream->peer, in->frame.bytes);
    if (message->moved < message->bytes)
        return;
    (void)lki_queue_remove(&wire->peers[stream->peer].arriving, message);
    lki_wire_done(wire, message);
}

/* Handles an ABORT, GOODBYE or ANSWER, after its payload was read to `text` of the peer. */
static lk_status finish_words(lki_wire *wire, uint32_t rank, const lki_frame *frame)
{
    lki_wire_peer *peer = &wire->peers[rank];
    const char    *text = (const char *)peer->text;

    if (frame->kind == LKI_FRAME_GOODBYE) {
        peer->left      = true;
        peer->farewells = frame->bytes / LKI_FRAME_OP_BYTES;
        return lki_wire_check_left(wire, rank);
    }
    peer->text[frame->bytes] = '\0';
    if (frame->kind == LKI_FRAME_ABORT)
        return lki_wire_fail_told(wire, rank, frame, text);
    return frame->kind == LKI_FRAME_ANSWER ? lki_wire_answered(wire, rank, frame, text) : LK_OK;
}

static lk_status finish_frame(lki_wire *wire, lki_stream *stream)
{
    lki_input *in = &stream->in;

    in->active = false;
    if (in->frame.bytes > 0 && !wire->link->sealed && in->sum != in->frame.sum)
        return lki_wire_fail(wire, stream->peer, LK_EPEER, "%u bytes from rank %u on stream %u "
                             "were damaged on their way (sum %08x, sent as %08x): its link or "
                             "memory is at fault", in->frame.bytes, stream->peer, stream->index,
                             in->sum, in->frame.sum);
    if (in->message != NULL || in->parked != NULL)
        wire->counts.bytes_received += in->frame.bytes;
    if (in->message != NULL)
        finish_message(wire, stream);
    else if (in->parked != NULL)
        finish_parked(wire, in->parked);
    else
        return finish_words(wire, stream->peer, &in->frame);
    return LK_OK;
}

/* ---- Reading ----------------------------------------------------------------------------- */

static lk_status read_some(lki_wire *wire, lki_stream *stream, void *data, size_t bytes,
                           size_t *moved)
{
    lki_link *link = wire->link;
    lk_status st   = link->ops->read(link, stream->peer, stream->index, data, bytes, moved);

    if (st == LK_EPEER) {
        *moved = 0;
        return lki_wire_broken(wire, stream, true);
    }
    if (st != LK_OK)
        return lki_wire_fail(wire, link->rank, st, "%s", lk_error_last()->message);
    LK_ASSERT(*moved <= bytes);
    stream->in.drained = *moved < bytes;
    wire->moved        = wire->moved || *moved > 0;
    return LK_OK;
}

/* Reads a header, if all its bytes are available. */
static lk_status read_header(lki_wire *wire, lki_stream *stream, size_t *moved)
{
    lki_input *in = &stream->in;

    *moved = 0;
    if (in->end - in->first < LKI_FRAME_BYTES) {
        if (in->drained)
            return LK_OK;
        memmove(in->ahead, in->ahead + in->first, in->end - in->first);
        in->end  -= in->first;
        in->first = 0;
        LK_TRY(read_some(wire, stream, in->ahead + in->end, sizeof in->ahead - in->end, moved));
        in->end += *moved;
        if (in->end < LKI_FRAME_BYTES)
            return LK_OK;
    }
    if (lki_frame_decode(&in->frame, in->ahead + in->first) != LK_OK)
        return lki_wire_fail(wire, stream->peer, LK_EPEER, "rank %u, stream %u: %s", stream->peer,
                             stream->index, lk_error_last()->message);
    in->first += LKI_FRAME_BYTES;
    return begin_frame(wire, stream);
}

/* Reads available payload bytes, first from the read-ahead buffer. */
static lk_status read_payload(lki_wire *wire, lki_stream *stream, size_t *moved)
{
    lki_input     *in   = &stream->in;
    unsigned char *to   = in->payload + in->moved;
    size_t         left = in->frame.bytes - in->moved;

    *moved = lki_min(left, in->end - in->first);
    if (*moved > 0) {
        LK_ASSERT(to != NULL);
        memcpy(to, in->ahead + in->first, *moved);
        in->first += *moved;
    } else if (!in->drained) {
        LK_TRY(read_some(wire, stream, to, left, moved));
    }
    if (!wire->link->sealed)
        in->sum = lki_crc32c(in->sum, to, *moved);
    in->moved += *moved;
    return LK_OK;
}

/* Returns true if the read-ahead buffer holds unprocessed bytes.  The link reports no event for
 * such bytes. */
static bool is_ahead(const lki_input *in)
{
    size_t bytes = in->end - in->first;
    return in->active ? bytes > 0 : bytes >= LKI_FRAME_BYTES;
}

lk_status lki_wire_read(lki_wire *wire, lki_stream *stream)
{
    lki_input *in = &stream->in;
    size_t     moved, turn = 0;

    in->drained = false;
    while ((turn < LKI_WIRE_TURN_BYTES || is_ahead(in)) && !in->ended) {
        if (!in->active)
            LK_TRY(read_header(wire, stream, &moved));
        else
            LK_TRY(read_payload(wire, stream, &moved));
        turn += moved;
        if (in->active && in->moved == in->frame.bytes)
            LK_TRY(finish_frame(wire, stream));
        else if (moved == 0 && !is_ahead(in))
            return LK_OK;
    }
    return LK_OK;
}

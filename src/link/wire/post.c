/* post.c -- large messages that the link transfers without copies.
 *
 * Some links can post sends and receives (lki_link_ops.post_send).  Announced messages above the
 * eager limit are then posted in parts.  Sends and receives are posted in the order of the grants,
 * which is the same on both ranks, so parts need no headers.  After the last part the sender writes
 * one frame with the sum of the message.  The receiver adds up the sum while parts complete.
 */
#include "link/wire/inside.h"

#include "base/memory.h"
#include "link/wire/crc32c.h"

bool lki_wire_is_posted(const lki_wire *wire, const lki_message *message)
{
    return wire->link->ops->post_send != NULL && message->bytes > LKI_FRAME_EAGER_BYTES;
}

/* ---- Posting ----------------------------------------------------------------------------- */

static void push(lki_posts *posts, lki_message *message, size_t bytes)
{
    posts->posts[(posts->first + posts->count++) % LKI_LINK_POSTS] = (lki_post){ message, bytes };
}

static lki_post pop(lki_posts *posts)
{
    lki_post post = posts->posts[posts->first];

    posts->first = (posts->first + 1) % LKI_LINK_POSTS;
    posts->count--;
    return post;
}

/* Returns the first message with parts that were not posted, or NULL.  *bytes becomes the size of
 * its next part. */
static lki_message *next_part(const lki_wire *wire, const lki_queue *queue, size_t *bytes)
{
    lki_message *m = queue->head;

    while (m != NULL && (!lki_wire_is_posted(wire, m) || m->assigned == m->bytes))
        m = m->next;
    if (m != NULL)
        *bytes = lki_min(m->bytes - m->assigned, LKI_WIRE_POST_BYTES);
    return m;
}

static lk_status post_failed(lki_wire *wire, uint32_t peer, lk_status st, bool receiving)
{
    if (st == LK_EPEER)
        return lki_wire_broken(wire, lki_wire_stream(wire, peer, 0), receiving);
    return lki_wire_fail(wire, wire->link->rank, st, "%s", lk_error_last()->message);
}

lk_status lki_wire_post_sends(lki_wire *wire, uint32_t peer)
{
    lki_posts   *posts = &wire->peers[peer].posted_sends;
    lki_message *m;
    size_t       bytes;

    while (!wire->failed && posts->count < LKI_LINK_POSTS
           && (m = next_part(wire, &wire->peers[peer].sending, &bytes)) != NULL) {
        const unsigned char *data = m->data + m->assigned;
        lk_status            st   = wire->link->ops->post_send(wire->link, peer, data, bytes);
        if (st != LK_OK)
            return post_failed(wire, peer, st, false);
        if (!wire->link->sealed)
            m->sum = lki_crc32c(m->sum, data, bytes);
        m->assigned += bytes;
        push(posts, m, bytes);
        wire->moved = true;
        if (m->assigned == m->bytes)
            lki_wire_stir(wire, peer, 0);
    }
    return LK_OK;
}

lk_status lki_wire_post_receives(lki_wire *wire, uint32_t peer)
{
    lki_posts   *posts = &wire->peers[peer].posted_receives;
    lki_message *m;
    size_t       bytes;

    while (!wire->failed && posts->count < LKI_LINK_POSTS
           && (m = next_part(wire, &wire->peers[peer].arriving, &bytes)) != NULL) {
        lk_status st = wire->link->ops->post_receive(wire->link, peer, m->data + m->assigned,
                                                     bytes);
        if (st != LK_OK)
            return post_failed(wire, peer, st, true);
        m->assigned += bytes;
        push(posts, m, bytes);
    }
    return LK_OK;
}

/* ---- Completing -------------------------------------------------------------------------- */

bool lki_wire_next_posted(const lki_wire *wire, uint32_t peer, lki_frame *frame,
                          lki_message **message)
{
    lki_message *m = wire->peers[peer].sending.head;

    while (m != NULL && (!lki_wire_is_posted(wire, m) || m->assigned < m->bytes || m->claimed))
        m = m->next;
    if (m == NULL)
        return false;
    *message = m;
    *frame   = (lki_frame){ .kind  = LKI_FRAME_POSTED,
                            .op    = m->op,
                            .step  = m->step,
                            .total = m->bytes,
                            .value = m->sum };
    return true;
}

void lki_wire_finish_sending(lki_wire *wire, lki_message *message)
{
    if (message->moved < message->bytes
        || (lki_wire_is_posted(wire, message) && !message->claimed))
        return;
    (void)lki_queue_remove(&wire->peers[message->peer].sending, message);
    lki_wire_done(wire, message);
}

static lk_status finish_receiving(lki_wire *wire, lki_message *message)
{
    if (message->moved < message->bytes || !message->claimed)
        return LK_OK;
    if (message->sum != message->claim)
        return lki_wire_fail(wire, message->peer, LK_EPEER, "%llu bytes from rank %u were damaged "
                             "on their way (sum %08x, sent as %08x): its link or memory is at "
                             "fault", (unsigned long long)message->bytes, message->peer,
                             message->sum, message->claim);
    (void)lki_queue_remove(&wire->peers[message->peer].arriving, message);
    lki_wire_done(wire, message);
    return LK_OK;
}

lk_status lki_wire_claimed(lki_wire *wire, uint32_t peer, const lki_frame *frame)
{
    lki_message *m = lki_queue_find(&wire->peers[peer].arriving, &frame->op, frame->step);

    if (m == NULL || !lki_wire_is_posted(wire, m) || m->bytes != frame->total || m->claimed)
        return lki_wire_fail(wire, peer, LK_EPEER, "rank %u posted message %u of operation %llu, "
                             "%llu bytes, which was not granted", peer, frame->step,
                             (unsigned long long)frame->op.seq,
                             (unsigned long long)frame->total);
    m->claim   = frame->value;
    m->claimed = true;
    return finish_receiving(wire, m);
}

static lk_status collect_receive(lki_wire *wire, lki_post part)
{
    lki_message *m = part.message;

    if (!wire->link->sealed)
        m->sum = lki_crc32c(m->sum, m->data + m->moved, part.bytes);
    m->moved                    += part.bytes;
    wire->counts.bytes_received += part.bytes;
    return finish_receiving(wire, m);
}

lk_status lki_wire_collect(lki_wire *wire, uint32_t rank)
{
    lki_wire_peer *peer = &wire->peers[rank];
    lki_link      *link = wire->link;

    while (peer->posted_receives.count > 0 && link->ops->completed(link, rank, true)) {
        wire->moved = true;
        lki_post part = pop(&peer->posted_receives);
        LK_TRY(lki_wire_post_receives(wire, rank));
        LK_TRY(collect_receive(wire, part));
    }
    while (peer->posted_sends.count > 0 && link->ops->completed(link, rank, false)) {
        wire->moved   = true;
        lki_post part = pop(&peer->posted_sends);
        part.message->moved     += part.bytes;
        wire->counts.bytes_sent += part.bytes;
        lki_wire_finish_sending(wire, part.message);
    }
    return lki_wire_post_sends(wire, rank);
}

/* ---- Failing ----------------------------------------------------------------------------- */

void lki_wire_cancel(lki_wire *wire)
{
    if (wire->cancelled || wire->link->ops->cancel == NULL)
        return;
    wire->cancelled = true;
    wire->stuck     = !wire->link->ops->cancel(wire->link);
}

bool lki_wire_stuck(const lki_wire *wire)
{
    return wire->stuck;
}

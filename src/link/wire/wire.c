/* wire.c -- a wire's lifetime, messages, progress and failure.
 *
 * A broken stream is often the second sign of a failure: the peer has failed, sent an ABORT and
 * exited, and the ABORT is on another stream or has not arrived yet.  The peer is therefore judged
 * only when its stream 0 has ended (if the peer ever used it), or after a grace period.
 */
#include "link/wire/inside.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

/* ---- Queues ------------------------------------------------------------------------------ */

void lki_queue_push(lki_queue *queue, lki_message *message)
{
    message->next = NULL;
    *queue->tail  = message;
    queue->tail   = &message->next;
}

bool lki_queue_remove(lki_queue *queue, lki_message *message)
{
    lki_message **at = &queue->head;

    while (*at != NULL && *at != message)
        at = &(*at)->next;
    if (*at == NULL)
        return false;
    *at = message->next;
    if (*at == NULL)
        queue->tail = at;
    message->next = NULL;
    return true;
}

lki_message *lki_queue_find(const lki_queue *queue, const lki_wire_op *op, uint32_t step)
{
    lki_message *message = queue->head;

    while (message != NULL && (message->step != step || !lki_wire_same_op(&message->op, op)))
        message = message->next;
    return message;
}

/* ---- Failing ----------------------------------------------------------------------------- */

void lki_wire_watch(lki_wire *wire, const lki_stream *stream)
{
    bool reading = !stream->in.ended && !wire->failed && !wire->closing;
    bool writing = stream->out.blocked && !stream->out.broken;

    wire->link->ops->watch(wire->link, stream->peer, stream->index, reading, writing);
}

/* Ends the use of the callers' buffers and stops reading.  Messages that were not written are
 * dropped. */
static void stop(lki_wire *wire)
{
    lki_link *link = wire->link;

    lki_wire_detach_output(wire);
    for (uint32_t peer = 0; peer < link->ranks; peer++)
        for (uint32_t i = 0; peer != link->rank && i < link->streams; i++)
            lki_wire_watch(wire, lki_wire_stream(wire, peer, i));
}

/* Marks the wire as failed for the reason in `failure.message`, and reports it to all ranks.  If
 * the reason came from a peer (`told`), reports it only to ranks to which this rank has written,
 * because only their streams would otherwise end without a reason. */
static lk_status fail_with(lki_wire *wire, uint32_t culprit, lk_status status, bool told)
{
    wire->failed         = true;
    wire->culprit        = culprit;
    wire->failure.status = status;
    stop(wire);
    for (uint32_t peer = 0; peer < wire->link->ranks; peer++)
        if (peer != wire->link->rank && !wire->peers[peer].left
            && (!told || wire->peers[peer].spoken)) {
            wire->peers[peer].saying = true;
            lki_wire_stir(wire, peer, 0);
        }
    return status;
}

lk_status lki_wire_fail(lki_wire *wire, uint32_t culprit, lk_status status, const char *format, ...)
{
    va_list args;

    if (wire->failed)
        return wire->failure.status;
    va_start(args, format);
    (void)vsnprintf(wire->failure.message, sizeof wire->failure.message, format, args);
    va_end(args);
    return fail_with(wire, culprit, status, false);
}

lk_status lki_wire_fail_told(lki_wire *wire, uint32_t peer, const lki_frame *frame,
                             const char *text)
{
    uint32_t culprit = frame->step < wire->link->ranks ? frame->step : peer;
    int64_t  told    = -(int64_t)frame->value;
    bool     known   = told == LK_EMISMATCH || told == LK_ETIMEOUT || told == LK_EPEER;
    char     who[32] = "";

    if (!known)
        (void)snprintf(who, sizeof who, "rank %u gave up: ", peer);
    (void)snprintf(wire->failure.message, sizeof wire->failure.message, "%s%s", who, text);
    return fail_with(wire, culprit, known ? (lk_status)told : LK_EPEER, true);
}

void lki_wire_abort(lki_wire *wire, uint32_t culprit, lk_status status, const char *why)
{
    (void)lki_wire_fail(wire, culprit, status, "%s", why);
    (void)lki_wire_write(wire);
}

const lk_error *lki_wire_failure(const lki_wire *wire)
{
    return &wire->failure;
}

uint32_t lki_wire_culprit(const lki_wire *wire)
{
    return wire->culprit;
}

/* ---- Lost peers -------------------------------------------------------------------------- */

/* Returns the operation of a message that needs this peer, or NULL.  With `arriving` also considers
 * messages whose bytes are arriving. */
static const lki_wire_op *need_of(const lki_wire_peer *peer, bool arriving)
{
    const lki_message *heads[] = { peer->waiting.head, peer->granting.head, peer->outbox.head,
                                   peer->announced.head, peer->sending.head,
                                   arriving ? peer->arriving.head : NULL };

    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
        if (heads[i] != NULL)
            return &heads[i]->op;
    return NULL;
}

static lk_status fail_gone(lki_wire *wire, uint32_t rank)
{
    const lki_wire_peer *peer                      = &wire->peers[rank];
    char                 last[LKI_OPERATION_BYTES] = "no operation";

    if (peer->heard.print.what != 0)
        lki_print_text(last, sizeof last, peer->heard.print, peer->heard.seq, peer->heard.label);
    return lki_wire_fail(wire, rank, LK_EPEER, "rank %u is gone, last heard of in %s: %s", rank,
                         last, peer->broken_text);
}

lk_status lki_wire_fail_left(lki_wire *wire, uint32_t rank, const lki_wire_op *need)
{
    char text[LKI_OPERATION_BYTES];

    lki_print_text(text, sizeof text, need->print, need->seq, need->label);
    return lki_wire_fail(wire, rank, LK_EPEER, "rank %u has left, but rank %u still needs it in "
                         "%s; every rank must issue the same operations", rank,
                         wire->link->rank, text);
}

lk_status lki_wire_check_left(lki_wire *wire, uint32_t rank)
{
    const lki_wire_peer *peer = &wire->peers[rank];
    const lki_wire_op   *need = need_of(peer, false);

    if (peer->left)
        LK_TRY(lki_wire_check_farewell(wire, rank));
    if (need == NULL || (!peer->left && !peer->gone))
        return LK_OK;
    if (!peer->left)
        return fail_gone(wire, rank);
    return lki_wire_fail_left(wire, rank, need);
}

/* Decides about a peer when no ABORT with the reason can arrive any more.  A peer that has never
 * written to this rank sends it no goodbye.  If the streams of such a peer end, this is no failure
 * while no message needs the peer. */
static lk_status judge(lki_wire *wire, uint32_t rank)
{
    lki_wire_peer *peer = &wire->peers[rank];

    wire->breaking -= peer->breaking;
    peer->breaking  = false;
    peer->gone      = true;
    if ((peer->left || !peer->known) && need_of(peer, true) == NULL)
        return LK_OK;
    return fail_gone(wire, rank);
}

lk_status lki_wire_broken(lki_wire *wire, lki_stream *stream, bool reading)
{
    lki_wire_peer *peer = &wire->peers[stream->peer];

    if (reading)
        stream->in.ended = true;
    else
        stream->out.broken = true;
    lki_wire_watch(wire, stream);
    if (wire->failed || peer->gone || (peer->left && need_of(peer, true) == NULL))
        return LK_OK;
    if (!peer->breaking) {
        peer->breaking  = true;
        peer->broken_ms = lki_wire_now_ms(wire);
        wire->breaking++;
        memcpy(peer->broken_text, lk_error_last()->message, sizeof peer->broken_text);
    }
    bool last = reading && stream->index == 0 && peer->known && !peer->left;
    return last ? judge(wire, stream->peer) : LK_OK;
}

static lk_status judge_late(lki_wire *wire)
{
    int64_t now = wire->breaking == 0 ? 0 : lki_wire_now_ms(wire);

    for (uint32_t rank = 0; rank < wire->link->ranks && wire->breaking > 0; rank++)
        if (wire->peers[rank].breaking
            && now - wire->peers[rank].broken_ms >= LKI_WIRE_GRACE_MS)
            LK_TRY(judge(wire, rank));
    return LK_OK;
}

/* ---- Life -------------------------------------------------------------------------------- */

static void queue_init(lki_queue *queue)
{
    queue->tail = &queue->head;
}

static void peer_init(lki_wire_peer *peer)
{
    queue_init(&peer->outbox);
    queue_init(&peer->announced);
    queue_init(&peer->sending);
    queue_init(&peer->waiting);
    queue_init(&peer->granting);
    queue_init(&peer->arriving);
    peer->credit = LKI_WIRE_WINDOW;
}

static void wire_free(lki_wire *wire)
{
    lki_link *link  = wire->link;
    size_t    count = (size_t)link->ranks * link->streams;

    for (size_t i = 0; wire->streams != NULL && i < count; i++)
        lki_free(wire->streams[i].out.rest);
    for (size_t i = 0; i < LKI_WIRE_BUCKETS; i++)
        while (wire->parked[i] != NULL) {
            lki_parked *parked = wire->parked[i];
            wire->parked[i]    = parked->next;
            lki_free(parked);
        }
    lki_wire_free_groups(wire);
    lki_free(wire->streams);
    lki_free(wire->peers);
    lki_wire_cancel(wire);
    link->hurry = wire->failed;
    link->ops->close(link);
    lki_free(wire);
}

lk_status lki_wire_open(lki_wire **out, lki_link *link)
{
    lki_wire *wire = NULL;

    *out         = NULL;
    lk_status st = LKI_NEW(&wire, 1, "a wire");
    if (st != LK_OK) {
        link->ops->close(link);
        return st;
    }
    wire->link      = link;
    wire->busy_tail = &wire->busy;
    st = LKI_NEW(&wire->peers, link->ranks, "a wire's peers");
    if (st == LK_OK)
        st = LKI_NEW(&wire->streams, (size_t)link->ranks * link->streams, "a wire's streams");
    if (st != LK_OK) {
        wire_free(wire);
        return st;
    }
    for (uint32_t peer = 0; peer < link->ranks; peer++) {
        peer_init(&wire->peers[peer]);
        for (uint32_t i = 0; i < link->streams; i++) {
            lki_wire_stream(wire, peer, i)->peer  = peer;
            lki_wire_stream(wire, peer, i)->index = i;
        }
    }
    *out = wire;
    return LK_OK;
}

/* Resumes a stream that has waited for room to write. */
static void make_room(lki_wire *wire, const lki_ready *ready)
{
    lki_stream *stream = lki_wire_stream(wire, ready->peer, ready->stream);

    if (!ready->writable || !stream->out.blocked)
        return;
    stream->out.blocked = false;
    lki_wire_watch(wire, stream);
    lki_wire_stir(wire, ready->peer, ready->stream);
}

/* Returns true if an ABORT or GOODBYE is not completely written yet.  If `to_strangers` is false,
 * ignores peers to which this rank has never written. */
static bool unsaid(const lki_wire *wire, bool to_strangers)
{
    for (uint32_t peer = 0; peer < wire->link->ranks; peer++) {
        const lki_output *out = &lki_wire_stream(wire, peer, 0)->out;
        bool              says = out->active || wire->peers[peer].saying;
        if (says && !out->broken && (wire->peers[peer].spoken || to_strangers))
            return true;
    }
    return false;
}

static bool unsaid_by(const lki_wire *wire, bool known, int64_t waited_ms)
{
    bool to_strangers = wire->failed && !known && waited_ms < LKI_WIRE_GRACE_MS;
    return waited_ms < LKI_WIRE_GOODBYE_MS && unsaid(wire, to_strangers);
}

void lki_wire_stopping(lki_wire *wire)
{
    wire->link->stopping = true;
}

void lki_wire_close(lki_wire *wire, bool known)
{
    if (wire == NULL)
        return;
    int64_t  now = lki_wire_now_ms(wire), began = now;
    uint32_t count;

    lki_wire_write_farewell(wire);
    for (uint32_t peer = 0; peer < wire->link->ranks && !wire->failed; peer++)
        if (wire->peers[peer].spoken && !wire->peers[peer].left) {
            wire->peers[peer].saying = true;
            lki_wire_stir(wire, peer, 0);
        }
    wire->closing = true;
    stop(wire);
    (void)lki_wire_write(wire);
    for (; unsaid_by(wire, known, now - began); now = lki_wire_now_ms(wire)) {
        int64_t limit = now - began < LKI_WIRE_GRACE_MS ? LKI_WIRE_GRACE_MS : LKI_WIRE_GOODBYE_MS;
        if (wire->link->ops->wait(wire->link, began + limit - now, wire->ready, LKI_WIRE_READY,
                                  &count) != LK_OK)
            break;
        for (uint32_t i = 0; i < count; i++)
            make_room(wire, &wire->ready[i]);
        (void)lki_wire_write(wire);
    }
    wire_free(wire);
}

void lki_wire_drop(lki_wire *wire)
{
    if (wire == NULL)
        return;
    wire->failed = true;
    wire_free(wire);
}

void lki_wire_without(lki_wire *wire, uint32_t peer)
{
    wire->peers[peer].left = true;
}

/* ---- Messages ---------------------------------------------------------------------------- */

void lki_wire_done(lki_wire *wire, lki_message *message)
{
    lki_open_op *open = lki_wire_find_open(wire, &message->op);

    LK_ASSERT(open != NULL && open->open > 0);
    open->open--;
    message->done = true;
}

static void start(lki_wire *wire, lki_message *message)
{
    lki_open_op *open = lki_wire_find_open(wire, &message->op);

    LK_ASSERT(open != NULL && message->peer < wire->link->ranks
              && message->peer != wire->link->rank);
    open->open++;
    message->assigned = 0;
    message->moved    = 0;
    message->sum      = 0;
    message->claimed  = false;
    message->granted  = false;
    message->done     = false;
}

void lki_wire_send(lki_wire *wire, lki_message *message)
{
    if (wire->failed)
        return;
    start(wire, message);
    lki_queue_push(&wire->peers[message->peer].outbox, message);
    lki_wire_stir(wire, message->peer, 0);
    (void)lki_wire_check_left(wire, message->peer);
}

void lki_wire_receive(lki_wire *wire, lki_message *message)
{
    bool found;

    if (wire->failed)
        return;
    start(wire, message);
    if (lki_wire_unpark(wire, message, &found) != LK_OK || found)
        return;
    lki_queue_push(&wire->peers[message->peer].waiting, message);
    (void)lki_wire_check_left(wire, message->peer);
}

void lki_wire_forget(lki_wire *wire, lki_message *message)
{
    lki_wire_peer *peer     = &wire->peers[message->peer];
    lki_queue     *queues[] = { &peer->outbox,  &peer->announced, &peer->sending,
                                &peer->waiting, &peer->granting,  &peer->arriving };
    lki_open_op   *open     = lki_wire_find_open(wire, &message->op);

    LK_ASSERT(wire->failed || !message->granted);
    if (message->granted)
        lki_wire_cancel(wire);
    for (size_t i = 0; i < sizeof queues / sizeof queues[0]; i++)
        if (lki_queue_remove(queues[i], message) && open != NULL)
            open->open--;
}

/* ---- Progress ---------------------------------------------------------------------------- */

static lk_status step(lki_wire *wire, int64_t ms)
{
    lki_link *link = wire->link;
    uint32_t  count;

    LK_TRY(lki_wire_write(wire));
    if (wire->moved || wire->busy != NULL)
        ms = 0;
    else if (wire->breaking > 0 && ms > LKI_WIRE_GRACE_MS)
        ms = LKI_WIRE_GRACE_MS;
    lk_status st = link->ops->wait(link, ms, wire->ready, LKI_WIRE_READY, &count);
    if (st != LK_OK)
        return lki_wire_fail(wire, link->rank, st, "%s", lk_error_last()->message);
    for (uint32_t i = 0; i < count; i++) {
        const lki_ready *ready = &wire->ready[i];
        make_room(wire, ready);
        if (ready->completed)
            LK_TRY(lki_wire_collect(wire, ready->peer));
        if (ready->readable)
            LK_TRY(lki_wire_read(wire, lki_wire_stream(wire, ready->peer, ready->stream)));
    }
    LK_TRY(lki_wire_write(wire));
    return judge_late(wire);
}

lk_status lki_wire_progress(lki_wire *wire, int64_t ms, bool *moved)
{
    wire->moved = false;
    if (!wire->failed)
        (void)step(wire, ms);
    *moved = wire->moved;
    if (!wire->failed)
        return LK_OK;
    (void)lki_wire_write(wire);
    return wire->failure.status;
}

lki_wire_op lki_wire_heard(const lki_wire *wire, uint32_t peer)
{
    return wire->peers[peer].heard;
}

const lki_link *lki_wire_link(const lki_wire *wire)
{
    return wire->link;
}

lki_wire_counts lki_wire_count(const lki_wire *wire)
{
    return wire->counts;
}

int64_t lki_wire_now_ms(const lki_wire *wire)
{
    return wire->link->ops->now_ms(wire->link);
}

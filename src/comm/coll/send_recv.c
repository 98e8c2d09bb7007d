/* send_recv.c -- messages between two ranks.
 *
 * A rank's seat has, for every peer, the description of a message to that peer, two pieces of the
 * message, and two counters: pieces sent to the peer, and pieces received from it.  A message in an
 * arena is one piece, which the receiver copies from the arena.  Any other message is sent in
 * pieces; while the receiver copies one piece the sender fills the other:
 *
 *      sender     fill 0, sent 1 | fill 1, sent 2 | (taken >= 1) fill 0, sent 3 | ... taken == all
 *      receiver   (sent >= 1) copy 0, taken 1 | (sent >= 2) copy 1, taken 2 | ...
 *
 * A send is complete only when the whole message has been received.  A program that deadlocks with
 * large messages thus also deadlocks with small ones, when it is first tested.
 *
 * Cost:    in an arena one copy and one synchronisation each way, else two copies.
 * Order:   messages from one rank to another arrive in the order of their sends.
 * Memory:  two pieces for every pair of ranks, in the seats.
 */
#include <string.h>

#include "base/memory.h"
#include "comm/coll/move.h"
#include "comm/group/span.h"

static size_t mail_bytes(const lk_comm *comm)
{
    return sizeof(lki_mail) + 2 * lki_piece_bytes(comm->size);
}

/* Returns the offset, in a rank's seat, of its lki_mail for `peer`. */
static size_t mail_offset(const lk_comm *comm, uint32_t peer)
{
    return sizeof(lki_seat) + peer * mail_bytes(comm);
}

/* Returns the lki_mail of `rank` for messages with `peer`. */
static lki_mail *mail_of(const lk_comm *comm, uint32_t rank, uint32_t peer)
{
    unsigned char *seat = (unsigned char *)lki_seat_of(comm, rank);
    return (lki_mail *)(void *)(seat + mail_offset(comm, peer));
}

/* Returns the buffer of piece number `piece`, counted over all messages from `from` to `to`. */
static unsigned char *piece_at(const lk_comm *comm, uint32_t from, uint32_t to, uint64_t piece)
{
    unsigned char *pieces = (unsigned char *)(mail_of(comm, from, to) + 1);
    return pieces + (size_t)(piece % 2) * lki_piece_bytes(comm->size);
}

static size_t bytes_in(const lk_request *r, uint64_t piece)
{
    size_t each = lki_piece_bytes(r->comm->size), at = (size_t)piece * each;
    return at < r->bytes ? lki_min(r->bytes - at, each) : 0;
}

static uint64_t pieces_in(const lk_request *r, lki_place place)
{
    size_t each = lki_piece_bytes(r->comm->size);
    return place.arena != 0 || r->bytes == 0 ? 1 : (r->bytes + each - 1) / each;
}

/* Returns the goal "the peer's counter at offset `field` has reached `target`". */
static lki_goal peer_goal(const lk_request *r, size_t field, uint64_t target)
{
    size_t offset = mail_offset(r->comm, r->comm->rank) + field;
    return (lki_goal){ .target = target,
                       .offset = (uint32_t)offset,
                       .first  = (uint16_t)r->root,
                       .end    = (uint16_t)(r->root + 1) };
}

/* Gives the message its number.  The message must be the oldest in its lane. */
static void begin(lk_request *r, uint64_t number)
{
    r->op.seq = number;
    r->met    = true;
    lki_op_note(r->comm, &r->op);
}

/* ---- Sending ----------------------------------------------------------------------------- */

static void describe(lk_request *r)
{
    lk_comm  *comm = r->comm;
    lki_mail *mail = mail_of(comm, comm->rank, r->root);

    mail->place = lki_place_of(comm, r->send, r->bytes);
    r->rounds   = pieces_in(r, mail->place);
    r->staged   = mail->place.arena == 0;
    atomic_store_explicit(&mail->count, r->bytes, memory_order_relaxed);
}

static lk_status move_send(lk_request *r, bool *moved)
{
    lk_comm  *comm = r->comm;
    lki_flow *flow = &comm->flows[r->root];
    lki_mail *mail = mail_of(comm, comm->rank, r->root);

    if (!lki_request_first(r))
        return LK_OK;
    *moved = true;
    if (!r->met) {
        begin(r, flow->sends++);
        describe(r);
    }
    if (r->round == r->rounds) {
        lki_request_complete(r);
        return LK_OK;
    }
    size_t n = bytes_in(r, r->round);
    if (r->staged && n > 0)
        memcpy(piece_at(comm, comm->rank, r->root, flow->sent),
               r->send + r->round * lki_piece_bytes(comm->size), n);
    r->round++;
    atomic_store_explicit(&mail->sent, ++flow->sent, memory_order_release);
    comm->unrung = true;
    /* Waits until the peer has received the previous piece, because the next piece overwrites it.
     * At the end waits until the peer has received all pieces. */
    r->goal = peer_goal(r, offsetof(lki_mail, taken), flow->sent - (r->round < r->rounds));
    return LK_OK;
}

/* ---- Receiving --------------------------------------------------------------------------- */

static lk_status check_message(lk_request *r, const lki_mail *mail)
{
    lk_comm *comm = r->comm;
    uint64_t sent = atomic_load_explicit(&mail->count, memory_order_relaxed);

    if (sent == r->bytes)
        return LK_OK;
    return lki_fail_group(comm, comm->world[r->root], LK_EMISMATCH,
                          "rank %u is in send #%llu (%llu bytes to rank %u); rank %u is in recv "
                          "#%llu (%zu bytes from rank %u)",
                          comm->world[r->root], (unsigned long long)r->op.seq,
                          (unsigned long long)sent, comm->world[comm->rank],
                          comm->world[comm->rank], (unsigned long long)r->op.seq, r->bytes,
                          comm->world[r->root]);
}

static lk_status move_receive(lk_request *r, bool *moved)
{
    lk_comm  *comm = r->comm;
    lki_flow *flow = &comm->flows[r->root];
    lki_mail *mine = mail_of(comm, comm->rank, r->root), *mail = mail_of(comm, r->root, comm->rank);

    if (!lki_request_first(r))
        return LK_OK;
    *moved = true;
    if (!r->met) {
        begin(r, flow->receives++);
        r->goal = peer_goal(r, offsetof(lki_mail, sent), flow->taken + 1);
        return LK_OK;
    }
    if (r->round == 0) {
        LK_TRY(check_message(r, mail));
        r->rounds = pieces_in(r, mail->place);
    }
    if (mail->place.arena != 0 && r->bytes > 0) /* memmove, because a rank may send to itself */
        memmove(r->recv, lki_place_data(comm, mail->place), r->bytes);
    else if (r->bytes > 0)
        memcpy(r->recv + r->round * lki_piece_bytes(comm->size),
               piece_at(comm, r->root, comm->rank, flow->taken), bytes_in(r, r->round));
    atomic_store_explicit(&mine->taken, ++flow->taken, memory_order_release);
    comm->unrung = true;
    if (++r->round == r->rounds)
        lki_request_complete(r);
    else
        r->goal = peer_goal(r, offsetof(lki_mail, sent), flow->taken + 1);
    return LK_OK;
}

/* ---- The calls --------------------------------------------------------------------------- */

static const lki_algorithm sending = { .move = move_send }, receiving = { .move = move_receive };

static lk_status prepare(lk_request *r, lk_comm *comm, bool send, const void *from, void *into,
                         size_t bytes, uint32_t peer)
{
    LK_TRY(lki_check_root(comm, send ? "send" : "recv", peer));
    LK_TRY(lki_check_buffers(send ? "send" : "recv", from, send ? bytes : 0, into, send ? 0 : bytes,
                             false));
    lki_print print = lki_print_make(send ? LKI_OP_SEND : LKI_OP_RECV, LK_U8, peer, bytes);
    if (comm->span != NULL && lk_comm_host(comm, peer) == lk_comm_host(comm, comm->rank)) {
        peer = lk_comm_local_rank(comm, peer); /* ranks of one host need no wire */
        comm = comm->span->local;
    }
    *r = (lk_request){
        .comm     = comm,
        .how      = send ? &sending : &receiving,
        .op.print = print,
        .lane     = LKI_LANE_MAIL + 2 * (uint64_t)peer + send,
        .send     = from,
        .recv     = into,
        .bytes    = bytes,
        .root     = peer,
    };
    return LK_OK;
}

lk_status lk_send(lk_comm *comm, const void *send, size_t bytes, uint32_t to)
{
    lk_request r;
    LK_TRY(prepare(&r, comm, true, send, NULL, bytes, to));
    return lki_request_run(&r);
}

lk_status lk_send_start(lk_request **out, lk_comm *comm, const void *send, size_t bytes,
                        uint32_t to)
{
    lk_request r;
    *out = NULL;
    LK_TRY(prepare(&r, comm, true, send, NULL, bytes, to));
    return lki_request_start(out, &r);
}

lk_status lk_recv(lk_comm *comm, void *recv, size_t bytes, uint32_t from)
{
    lk_request r;
    LK_TRY(prepare(&r, comm, false, NULL, recv, bytes, from));
    return lki_request_run(&r);
}

lk_status lk_recv_start(lk_request **out, lk_comm *comm, void *recv, size_t bytes, uint32_t from)
{
    lk_request r;
    *out = NULL;
    LK_TRY(prepare(&r, comm, false, NULL, recv, bytes, from));
    return lki_request_start(out, &r);
}

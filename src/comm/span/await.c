/* span/await.c -- waiting for the wire and for the board, and asking late ranks for their
 * operation.
 *
 * A wait polls while each rank has a core, then sleeps in the link for short intervals ("slices").
 * The board's bell does not wake a rank that sleeps in the link, so the rank checks the board
 * between slices.  Slices are short while requests of this host are open.  Otherwise slices are
 * longer, because then a long slice only delays the detection of failures.
 *
 * A rank that waits for long asks other ranks for their operation (wire.h).  It first asks the
 * ranks for whose messages it waits, and some other ranks.  Once its deadline has passed it asks
 * all ranks (missing.c).
 */
#include "comm/span/span.h"

#include <sched.h>

#include "comm/mpi/engine.h"

enum { SLICE_MS = 10, SHORT_SLICE_MS = 1, YIELDS = 40, PEERS_MS = 50, LATE_MS = 500 };

/* ---- Asking others for their operation --------------------------------------------------- */

static bool is_collective(const lk_request *r)
{
    return !r->complete && r->comm->span != NULL && r->caller == NULL && r->how->move == NULL;
}

/* Asks the ranks at distances 1, 2, 4 ... on both sides of this rank.  If one rank's operation
 * differs from that of the other ranks, a neighbour at one of these distances detects the
 * difference. */
static void ask_around(const lk_request *r)
{
    const lk_comm *comm = r->comm;
    lki_wire_op    op   = lki_span_name(r);

    for (uint32_t away = 1; away < comm->size; away *= 2) {
        uint32_t before = (comm->rank + comm->size - away) % comm->size;
        lki_wire_ask(comm->self->wire, comm->world[(comm->rank + away) % comm->size], &op);
        lki_wire_ask(comm->self->wire, comm->world[before], &op);
    }
}

/* Asks about the oldest operation of each communicator: the first one in which ranks can differ. */
static void ask_others(const lki_self *self)
{
    if (!lki_wire_probe(self->wire))
        return;
    for (const lk_request *r = self->requests; r != NULL; r = r->next) {
        const lk_request *first = self->requests;
        while (first != r && !(is_collective(first) && first->comm == r->comm))
            first = first->next;
        if (first == r && is_collective(r))
            ask_around(r);
    }
}

void lki_span_poll(lki_self *self)
{
    bool moved;

    if (lki_wire_progress(self->wire, 0, &moved) != LK_OK)
        lki_span_condemn(self);
    else if (!moved)
        ask_others(self);
}

/* ---- Waiting ----------------------------------------------------------------------------- */

/* Returns true if requests of communicators within this host are open. */
static bool local_work(const lki_self *self)
{
    for (const lk_request *r = self->requests; r != NULL; r = r->next)
        if (!r->complete && r->comm->span == NULL)
            return true;
    return false;
}

/* Polls everything once, and sleeps for a slice if there is nothing to do. */
static lk_status look(lk_request *r, int64_t ms, bool *idle)
{
    lk_comm  *comm = r->comm;
    lki_self *self = comm->self;
    bool      moved = lki_progress(comm);

    *idle = false;
    if (lki_failed(comm))
        return lki_group_failure(comm);
    if (r->complete || moved)
        return LK_OK;
    lki_ring(comm->span->local);
    if (lki_wire_progress(self->wire, ms, &moved) != LK_OK) {
        lki_span_condemn(self);
        return lki_group_failure(comm);
    }
    *idle = !moved;
    if (!moved)
        ask_others(self);
    return LK_OK;
}

lk_status lki_span_await(lk_request *r, int64_t ms, int64_t *late)
{
    lk_comm  *comm  = r->comm;
    lki_wire *wire  = comm->self->wire;
    int64_t   began = lki_wire_now_ms(wire), looked = began;
    uint32_t  polls = 0, yielded = 0;
    bool      idle;

    *late = 0;
    while (!r->complete) {
        int64_t before = lki_wire_now_ms(wire), left = ms - (before - began);
        int64_t slice  = local_work(comm->self) ? SHORT_SLICE_MS : SLICE_MS;
        slice          = left < 0 || r->native != NULL ? 0 : left < slice ? left : slice;
        bool    spins = polls++ < comm->spins;
        bool    yields = !spins && slice == SHORT_SLICE_MS && yielded++ < YIELDS;
        if (yields)
            (void)sched_yield(); /* the late rank may need this core */
        LK_TRY(look(r, spins || yields ? 0 : slice, &idle));
        if (idle && r->native != NULL)
            lki_native_rest(before - began);
        yielded = idle ? yielded : 0;
        int64_t now = lki_wire_now_ms(wire);
        began += now - before > LATE_MS ? now - before : 0; /* the process was stopped and has
                                                             * continued */
        if (r->complete || !idle)
            continue;
        if (now - looked >= PEERS_MS) {
            looked = now;
            LK_TRY(lki_peers_check(comm->span->local, (lki_goal){ 0 }));
        }
        if (now - began >= ms) {
            *late = now - began > 0 ? now - began : 1;
            return LK_OK;
        }
    }
    return LK_OK;
}

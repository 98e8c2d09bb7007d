/* span/await.c -- waiting for both worlds, and asking about those who do not come.
 *
 * Polls as long as ranks have a core each, then sleeps in the link.  Who sleeps there does not hear
 * the bell of its board, so it looks at it between slices: short ones while requests of this host
 * are open, too, longer ones where only failures can be missed.
 *
 * Who waits for long asks others what they are in (wire/wire.h): first those whose messages it
 * waits for, and some more; when its time is over, everybody (missing.c).
 */
#include "comm/span/span.h"

#include <sched.h>

#include "comm/engine.h"

enum { SLICE_MS = 10, SHORT_SLICE_MS = 1, YIELDS = 40, PEERS_MS = 50, LATE_MS = 500 };

/* ---- Asking what others are in ----------------------------------------------------------- */

static bool is_collective(const lk_request *r)
{
    return !r->complete && r->comm->span != NULL && r->caller == NULL && r->how->move == NULL;
}

/* Whoever may be in another operation than others are has a neighbour among these that is in
 * another one, so that all ranks together need no more questions than that, whatever the operation
 * waits for: messages, or memory of this host. */
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

/* In each communicator about the oldest operation: there the ranks are in another one first. */
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

/* Whether operations of this host alone are open. */
static bool local_work(const lki_self *self)
{
    for (const lk_request *r = self->requests; r != NULL; r = r->next)
        if (!r->complete && r->comm->span == NULL)
            return true;
    return false;
}

/* One look at everything, and a slice of sleep if there is nothing to do. */
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
            (void)sched_yield(); /* what it waits for may be a rank of this host */
        LK_TRY(look(r, spins || yields ? 0 : slice, &idle));
        if (idle && r->native != NULL)
            lki_native_rest(before - began);
        yielded = idle ? yielded : 0;
        int64_t now = lki_wire_now_ms(wire);
        began += now - before > LATE_MS ? now - before : 0; /* stopped, and continued */
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

/* fill.c -- an arena that is filled by all hosts while their ranks do something else.
 *
 * A mirror (algorithm/mirror.c) between two meetings of the ranks of each host: before the first
 * one somebody may still read what was there, after the second one all is there that came for
 * others.
 *
 *      ENTERING      all ranks of my host have started it - my part is put into place
 *      TRAVELLING    my part goes to every other host, and parts of theirs come - and are taken
 *      LEAVING       the other ranks of my host have taken what came to them
 *
 * Several may be under way.  Ranks must start meetings in one order: the first ones are started
 * with the operation, the others in turn, in a group of their own.  A rank that is alone on its
 * host meets nobody.
 *
 * Cost:    that of a mirror, and two barriers of a host; and what the filler does.
 * Memory:  none.
 */
#include "comm/span/fill.h"

#include "base/memory.h"
#include "comm/span/span.h"
#include "comm/span/task.h"

typedef enum { ENTERING, TRAVELLING, LEAVING } stage;

struct lki_filling {
    lk_request *request, *meeting; /* the latter owned, or NULL */
    lki_doors  *doors;             /* NULL: alone */
    stage       stage;
    uint64_t    number;
    bool        moving, taken;
};

static lk_status meet(lki_filling *f, lk_comm *group)
{
    group->caller = f->request;
    lk_status st  = lk_barrier_start(&f->meeting, group);
    group->caller = NULL;
    return st;
}

static bool have_met(lki_filling *f)
{
    if (f->meeting != NULL && !f->meeting->complete)
        return false;
    lk_request_free(f->meeting);
    f->meeting = NULL;
    return true;
}

lk_status lki_filling_new(lki_filling **out, lk_request *r)
{
    lki_span *span = r->comm->span;
    lki_filling *f;

    *out = NULL;
    LK_TRY(LKI_NEW(&f, 1, "memory that hosts fill"));
    f->request = r;
    if (span->doors.enter != NULL) {
        f->doors     = &span->doors;
        f->number    = f->doors->next;
        lk_status st = meet(f, f->doors->enter);
        if (st != LK_OK) {
            lki_filling_free(f);
            return st;
        }
        f->doors->next++;
    }
    *out = f;
    return LK_OK;
}

void lki_filling_free(lki_filling *f)
{
    if (f == NULL)
        return;
    lk_request_free(f->meeting);
    lki_free(f);
}

/* ---- From stage to stage ----------------------------------------------------------------- */

static void put_mine(const lk_request *r)
{
    size_t from = r->offsets[r->comm->rank];
    if (r->offsets[r->comm->rank + 1] > from)
        r->filler->put(r->filler->context, r->recv + from);
}

/* My own part, and what has come to me. */
static void take_parts(const lk_request *r)
{
    const lki_span *span = r->comm->span;
    uint32_t        me = r->comm->rank, here = span->host_of[me];

    for (uint32_t rank = 0; r->filler->take != NULL && rank < r->comm->size; rank++) {
        bool local = span->host_of[rank] == here;
        if (local ? rank == me : lki_mirror_taker(span, rank, here) == me)
            r->filler->take(r->filler->context, rank);
    }
}

static lk_status move(lki_filling *f, bool *moved, bool *done)
{
    bool over = false;

    if (f->stage == ENTERING && have_met(f)) {
        put_mine(f->request);
        LK_TRY(lki_span_travel(f->request));
        f->stage = TRAVELLING;
        *moved   = true;
    }
    if (f->stage == TRAVELLING)
        LK_TRY(lki_task_move(f->request->task, moved, &over));
    if (over && !f->taken) {
        take_parts(f->request);
        f->taken = true;
    }
    if (over && f->doors == NULL) {
        *done = true;
    } else if (over && f->doors->turn == f->number) {
        f->stage = LEAVING;
        f->doors->turn++;
        *moved = true;
        LK_TRY(meet(f, f->doors->leave));
    }
    if (f->stage == LEAVING)
        *done = have_met(f);
    return LK_OK;
}

lk_status lki_filling_move(lki_filling *f, bool *moved, bool *done)
{
    lk_status st = LK_OK;

    *done = false;
    if (f->moving) /* starting a meeting may wait, and what waits moves all requests */
        return LK_OK;
    f->moving = true;
    st        = move(f, moved, done);
    f->moving = false;
    return st;
}

/* ---- The call ---------------------------------------------------------------------------- */

static lk_status open_doors(lk_comm *comm)
{
    lki_span *span = comm->span;
    uint32_t  here = span->local_ranks[comm->rank];

    if (span->local->size == 1 || span->doors.leave != NULL)
        return LK_OK;
    LK_TRY(lk_comm_split(&span->doors.enter, span->local, 0, here));
    return lk_comm_split(&span->doors.leave, span->local, 0, here);
}

lk_status lki_arena_fill_start(lk_request **out, lk_comm *comm, lk_arena *arena, size_t offset,
                               const size_t *bytes, const lki_filler *filler)
{
    lk_request r = { .comm = comm, .filler = filler };

    *out = NULL;
    LK_ASSERT(comm->span != NULL);
    LK_TRY(open_doors(comm));
    LK_TRY(lki_span_mirror_prepare(&r, arena, offset, bytes));
    r.op.print.hash ^= LKI_OP_MIRROR; /* another operation than one that returns when it is done */
    return lki_request_start(out, &r);
}

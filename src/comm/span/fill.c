/* fill.c -- an arena that all hosts fill in the background.
 *
 * A fill is a mirror (algorithm/mirror.c) between two meetings (barriers) of the ranks of each
 * host.  Before the first meeting a rank may still read the old contents.  After the second one all
 * data from other hosts is complete.
 *
 *      ENTERING      waits until all ranks of this host have started the fill; then puts this
 *                    rank's part into place
 *      TRAVELLING    exchanges parts with the other hosts; then takes the received parts
 *      LEAVING       waits until the other ranks of this host have taken their received parts
 *
 * Several fills may be in progress.  Ranks must start meetings in the same order.  The first
 * meeting is started with the operation.  The second meetings have their own group and are started
 * in turn.  A rank that is the only one of its host has no meetings.
 *
 * Cost:    that of a mirror, two barriers of a host, and the filler's own work.
 * Memory:  none.
 */
#include "comm/span/fill.h"

#include "base/memory.h"
#include "comm/span/span.h"
#include "comm/span/task.h"

typedef enum { ENTERING, TRAVELLING, LEAVING } stage;

struct lki_filling {
    lk_request *request, *meeting; /* `meeting` is owned and may be NULL */
    lki_doors  *doors;             /* NULL: the only rank of its host */
    stage       stage;
    uint64_t    number;
    bool        moving, taken;
};

static lk_status meet(lki_filling *f, lk_comm *group)
{
    LK_ASSERT(group->caller == NULL);
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

/* Takes this rank's own part and the parts that it has received. */
static void take_parts(const lk_request *r)
{
    const lki_span *span = r->comm->span;
    uint32_t        me = r->comm->rank, here = span->map.host_of[me];

    for (uint32_t rank = 0; r->filler->take != NULL && rank < r->comm->size; rank++) {
        bool local = span->map.host_of[rank] == here;
        if (local ? rank == me : lki_mirror_taker(&span->map, rank, here) == me)
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
        *moved = true;
        LK_TRY(meet(f, f->doors->leave)); /* may wait.  The wait may advance the next fill, which
                                           * cannot enter LEAVING while `turn` is ours. */
        f->stage = LEAVING;
        f->doors->turn++;
    }
    if (f->stage == LEAVING)
        *done = have_met(f);
    return LK_OK;
}

lk_status lki_filling_move(lki_filling *f, bool *moved, bool *done)
{
    lk_status st = LK_OK;

    *done = false;
    if (f->moving) /* starting a meeting may wait, and a wait advances all requests */
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
    uint32_t  here = span->map.local_ranks[comm->rank];

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
    r.op.print.hash ^= LKI_OP_MIRROR; /* distinguishes it from lki_span_mirror(), which blocks */
    return lki_request_start(out, &r);
}

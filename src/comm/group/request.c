/* request.c -- advancing requests without a separate thread.
 *
 * All cores are in use by ranks, so there is no core for such a thread.  A rank advances its
 * requests whenever it tests or waits for one of them, and whenever it would otherwise sleep.
 */
#include "comm/group/request.h"


#include "base/memory.h"
#include "comm/group/engine.h"
#include "comm/flight.h"
#include "comm/group/span.h"

/* ---- The list ---------------------------------------------------------------------------- */

/* Appends a request to the list, which is in order of start.  Requests become ready in this
 * order. */
static void enter(lk_request *request)
{
    lki_self    *self = request->comm->self;
    lk_request **last = &self->requests;

    while (*last != NULL)
        last = &(*last)->next;
    *last = request;
    self->pending++;
}

static void remove_from_list(lk_request *request)
{
    lki_self    *self = request->comm->self;
    lk_request **at   = &self->requests;

    while (*at != NULL && *at != request)
        at = &(*at)->next;
    if (*at == request) {
        *at = request->next;
        self->pending -= !request->complete;
    }
}

static lk_request *first_in_lane(const lk_request *request)
{
    lk_request *r = request->comm->self->requests;

    while (r != NULL && r != request &&
           (r->complete || r->comm != request->comm || r->lane != request->lane))
        r = r->next;
    return r;
}

bool lki_request_first(const lk_request *request)
{
    lk_request *first = first_in_lane(request);
    return request->lane == LKI_LANE_NONE || first == NULL || first == request;
}

void lki_request_text(char out[LKI_OPERATION_BYTES], const lk_request *request)
{
    const lk_request *r = request->caller != NULL ? request->caller : request;
    lki_print_text(out, LKI_OPERATION_BYTES, r->op.print, r->op.seq, r->comm->group);
}

/* ---- Moving forward ---------------------------------------------------------------------- */

void lki_request_complete(lk_request *request)
{
    request->complete = true;
    if (request->op.flight != 0)
        lki_flight_end(request->comm->self->flight, request->op.flight, LKI_FATE_COMPLETE);
    lki_free(request->offsets);
    request->offsets = NULL;
}

void lki_payload_write(const lk_request *r, const void *data, size_t bytes, size_t total)
{
    lki_op_write_word(r->comm, &r->op, data, bytes);
    lki_op_write_cells(r->comm, &r->op, data, bytes, total);
}

/* Sets the goal "all ranks have written their cells".  Calls without a request write their cells
 * only after they publish. */
void lki_payload_await(lk_request *request, size_t total)
{
    if (total > LKI_WORD_BYTES)
        request->goal = lki_op_cell_goal(request->comm, &request->op, lki_cells(total) - 1);
}

static void complete_collective(lk_request *request)
{
    lk_comm *comm = request->comm;

    comm->rounds[lki_op_index(&request->op)] += request->rounds - 1;
    lki_op_close(comm, &request->op);
    lki_request_complete(request);
}

/* Performs this rank's part of one round of a request, and traces it. */
static lk_status act(lk_request *request)
{
    lki_track *track  = request->comm->self->track;
    uint64_t  begun  = lki_trace_begin(track);
    lk_status status = request->how->act(request);
    lki_trace_end(track, LKI_SPAN_REDUCE, 0, begun);
    return status;
}

/* Advances a collective.  A mismatch within a sub-request means that the parent requests differ
 * between ranks.  The comparison of the parents reports the mismatch, with the names of their
 * operations (span/span.c). */
static lk_status move_collective(lk_request *r, bool *moved)
{
    if (!r->met) {
        if (r->caller != NULL && lki_op_dissenter(r->comm, &r->op) < r->comm->size)
            return LK_OK;
        LK_TRY(lki_op_compare(r->comm, &r->op));
        r->how->plan(r);
        r->met = true;
    }
    if (!lki_request_first(r) || !lki_arrived(r->comm, r->goal))
        return LK_OK;
    *moved = true;
    LK_TRY(act(r));
    if (++r->round == r->rounds)
        complete_collective(r);
    else
        r->goal = lki_op_round(r->comm, &r->op, r->round);
    return LK_OK;
}

lk_status lki_request_step(lk_request *r, bool *moved)
{
    *moved = false;
    if (r->complete || !lki_arrived(r->comm, r->goal))
        return LK_OK;
    return r->how->move != NULL ? r->how->move(r, moved) : move_collective(r, moved);
}

/* Advances a request as far as possible without waiting.  Sets *moved if it advanced.  Returns the
 * failure of the group, if any. */
static lk_status advance(lk_request *r, bool *moved)
{
    bool more = true;

    if (r->comm->span != NULL)
        return r->complete ? LK_OK : r->comm->self->span_ops->advance(r, moved);
    while (more) {
        LK_TRY(lki_request_step(r, &more));
        *moved = *moved || more;
    }
    return LK_OK;
}

bool lki_progress(lk_comm *comm)
{
    lki_self *self = comm->self;
    bool      any  = false;

    if (self->pending == 0)
        return false;
    if (self->wire != NULL)
        self->span_ops->poll(self);
    for (lk_request *r = self->requests; r != NULL; r = r->next) {
        bool moved = false, open = !r->complete;
        if (advance(r, &moved) != LK_OK)
            return true; /* the caller's wait will find the failure */
        self->pending -= open && r->complete;
        any = any || moved;
        if (moved && r->comm != comm)
            lki_ring(r->comm);
    }
    return any;
}

/* Returns the first request in the lane of `request`, which must move before all others in the
 * lane. */
static lk_request *next_to_move(lk_request *request)
{
    lk_request *first = request->lane == LKI_LANE_NONE ? NULL : first_in_lane(request);
    return first == NULL ? request : first;
}

static lk_status await_span(lk_request *request, int64_t ms, int64_t *late)
{
    lki_track *track  = request->comm->self->track;
    uint64_t  begun  = lki_trace_begin(track);
    lk_status status = request->comm->self->span_ops->await(request, ms, late);
    lki_trace_end(track, LKI_SPAN_WAIT, 0, begun);
    return status;
}

/* Advances a request by one goal.  Waits up to `ms` for the goal.  *late is as in
 * lki_await_for(). */
static lk_status nearer(lk_request *first, int64_t ms, int64_t *late)
{
    lki_self *self  = first->comm->self;
    bool      moved = false;

    if (first->comm->span != NULL)
        return await_span(first, ms, late);
    LK_TRY(lki_await_for(first->comm, first->goal, ms, late)); /* may complete the request */
    if (*late != 0 || first->complete)
        return LK_OK;
    LK_TRY(advance(first, &moved));
    self->pending -= first->complete;
    return LK_OK;
}

static lk_status finish(lk_request *request)
{
    lk_comm *comm = request->comm;
    int64_t  ms   = comm->timeout_ms;

    while (!request->complete) {
        int64_t     late;
        lk_request *first = next_to_move(request);
        LK_TRY(nearer(first, ms, &late));
        if (late != 0 && comm->span != NULL)
            return request->comm->self->span_ops->timeout(request, late);
        if (late != 0)
            return lki_fail_timeout(comm, first->goal, late);
    }
    lki_ring(comm);
    return LK_OK;
}

/* ---- Starting ---------------------------------------------------------------------------- */

/* Publishes a request.  A collective gets its sequence number here.  Messages are numbered
 * separately. */
static lk_status publish(lk_request *request)
{
    if (request->comm->span != NULL)
        return request->comm->self->span_ops->publish(request);
    if (lki_failed(request->comm))
        return lki_group_failure(request->comm);
    if (request->how->move != NULL)
        return LK_OK;
    LK_TRY(lki_op_open(&request->op, request->comm, request->op.print));
    if (request->how->publish != NULL)
        request->how->publish(request);
    if (request->caller == NULL)
        lki_op_note(request->comm, &request->op);
    lki_op_show(request->comm, &request->op);
    request->goal = lki_op_goal(request->comm, &request->op);
    return LK_OK;
}

/* Gives a sub-request the fingerprint of its parent, so that a mismatch is reported for the call
 * that the user made.  The sequence number of the parent is mixed in.  The sub-request's own number
 * does not identify the call, because ranks that have no part in a sub-request do not count it. */
static void call_by_caller(lk_request *request)
{
    request->op.print = request->caller->op.print;
    request->op.print.hash ^= (request->caller->op.seq + 1) * UINT64_C(0x9e3779b97f4a7c15);
}

/* Runs a request to completion, without adding it to the list. */
static lk_status run_at_once(lk_request *request)
{
    lk_comm *comm = request->comm;

    LK_TRY(lki_await(comm, request->goal));
    LK_TRY(lki_op_compare(comm, &request->op));
    request->how->plan(request);
    if (request->rounds == 1)
        LK_TRY(lki_await(comm, request->goal));
    for (;;) {
        LK_TRY(act(request));
        if (++request->round == request->rounds)
            break;
        LK_TRY(lki_await(comm, lki_op_round(comm, &request->op, request->round)));
    }
    complete_collective(request);
    lki_ring(comm);
    return LK_OK;
}

/* Returns true if no other request can affect this request: no other request is open, or this
 * request has no lane. */
static bool is_alone(const lk_request *request)
{
    return request->how->move == NULL && request->comm->span == NULL &&
           (request->lane == LKI_LANE_NONE || request->comm->self->pending == 0);
}

/* Lets the engine of the job, if there is one, take over the request. */
static void claim(lk_request *request)
{
    lki_engine *engine = request->comm->self->engine;

    if (engine != NULL)
        engine->ops->claim(request);
}

lk_status lki_request_run(lk_request *request)
{
    claim(request);
    lk_status st   = publish(request);
    bool      span = request->comm->span != NULL;

    if (st == LK_OK && is_alone(request)) {
        st = run_at_once(request);
    } else if (st == LK_OK) {
        enter(request);
        st = finish(request);
        remove_from_list(request);
        if (span && st != LK_OK)
            request->comm->self->span_ops->drop(request, false);
    }
    lki_free(request->offsets);
    return st;
}

lk_status lki_request_start(lk_request **out, const lk_request *request)
{
    lk_request *copy;
    bool        moved = false;

    *out         = NULL;
    lk_status st = LKI_NEW(&copy, 1, "request");
    if (st == LK_OK) {
        *copy = *request;
        if (copy->caller == NULL)
            copy->caller = copy->comm->caller;
        if (copy->caller != NULL)
            call_by_caller(copy);
        claim(copy);
        st = publish(copy);
    }
    if (st == LK_OK) {
        enter(copy);
        if (copy->how->move != NULL || copy->comm->span != NULL) /* sends as much as possible at
                                                                  * once */
            st = advance(copy, &moved);
        copy->comm->self->pending -= copy->complete;
        if (st != LK_OK)
            remove_from_list(copy);
        if (st != LK_OK && copy->comm->span != NULL)
            copy->comm->self->span_ops->drop(copy, false);
    }
    if (st != LK_OK) {
        lki_free(request->offsets);
        lki_free(copy);
        return st;
    }
    if (copy->comm->span != NULL)
        copy->comm->self->span_ops->poll(copy->comm->self);
    lki_ring(copy->comm);
    *out = copy;
    return LK_OK;
}

/* ---- For the caller ---------------------------------------------------------------------- */

static lk_request *first_of(const lk_comm *comm)
{
    lk_request *r = comm->self->requests;
    while (r != NULL && r->comm != comm)
        r = r->next;
    return r;
}

void lki_requests_abandon(lk_comm *comm)
{
    char        text[LKI_OPERATION_BYTES];
    lk_request *r = comm->self->requests;

    while (r != NULL && (r->comm != comm || r->complete))
        r = r->next;
    if (r == NULL || comm->span == NULL || lki_failed(comm))
        return;
    lki_request_text(text, r);
    (void)(lki_fail_group(comm, comm->self->rank, LK_EPEER,
                          "rank %u left a group with its %s open: it freed the communicator before "
                          "the request was complete", comm->self->rank, text) == LK_OK);
}

/* Starts again at the head of the list after each request, because dropping a request over hosts
 * frees its sub-requests. */
void lki_requests_orphan(lk_comm *comm)
{
    for (lk_request *r = first_of(comm); r != NULL; r = first_of(comm)) {
        remove_from_list(r);
        if (r->op.flight != 0)
            lki_flight_end(comm->self->flight, r->op.flight, LKI_FATE_ABANDONED);
        if (comm->span != NULL && !r->complete) {
            r->comm->self->span_ops->drop(r, false);
            r->complete = false;
        }
        lki_free(r->offsets);
        r->offsets = NULL;
        r->comm    = NULL;
    }
}

static lk_status check_alive(const lk_request *request)
{
    if (request->complete)
        return LK_OK;
    if (request->comm == NULL)
        return lk_fail(LK_EINVAL, "the communicator of this request has been freed");
    if (lki_failed(request->comm))
        return lki_group_failure(request->comm);
    return LK_OK;
}

lk_status lk_request_test(lk_request *request, bool *done)
{
    *done = request->complete;
    LK_TRY(check_alive(request));
    if (request->complete)
        return LK_OK;
    (void)lki_progress(request->comm); /* also advances earlier requests in the lane of this one */
    lki_ring(request->comm);
    *done = request->complete;
    return *done || !lki_failed(request->comm) ? LK_OK : lki_group_failure(request->comm);
}

lk_status lk_request_wait(lk_request *request)
{
    LK_TRY(check_alive(request));
    return request->complete ? LK_OK : finish(request);
}

lk_status lk_request_wait_for(lk_request *request, uint32_t timeout_ms)
{
    int64_t end = lki_now_ms() + timeout_ms, left = timeout_ms, late = 0;

    LK_TRY(check_alive(request));
    while (!request->complete && late == 0) {
        LK_TRY(nearer(next_to_move(request), left, &late));
        left = end - lki_now_ms();
        left = left < 0 ? 0 : left;
    }
    if (request->complete) {
        if (request->comm != NULL)
            lki_ring(request->comm);
        return LK_OK;
    }
    char text[LKI_OPERATION_BYTES];
    lki_request_text(text, request);
    return lk_fail(LK_ETIMEOUT,
                   "%s is not complete after %u ms; it continues, and can be waited for "
                   "again",
                   text, timeout_ms);
}

/* Frees an incomplete request.  Fails the group if other ranks still need this rank for the
 * request. */
static void give_up(lk_request *request)
{
    lk_comm *comm = request->comm;
    char     text[LKI_OPERATION_BYTES];

    if (request->op.flight != 0)
        lki_flight_end(comm->self->flight, request->op.flight, LKI_FATE_FREED);
    if (comm->span != NULL) {
        request->comm->self->span_ops->drop(request, true);
        return;
    }
    if (request->lane == LKI_LANE_NONE && (!request->met || request->rounds == 1)) {
        request->rounds = 1;
        complete_collective(request);
        lki_ring(comm);
        return;
    }
    lki_request_text(text, request);
    (void)(lki_fail_group(comm, comm->self->rank, LK_EPEER,
                          "rank %u freed its request of %s before it was complete",
                          comm->self->rank, text) == LK_OK);
}

void lk_request_free(lk_request *request)
{
    if (request == NULL)
        return;
    if (request->comm != NULL) {
        remove_from_list(request);
        if (!request->complete)
            give_up(request);
    }
    lki_free(request->offsets);
    lki_free(request);
}

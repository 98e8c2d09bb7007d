/* request.c -- moving requests forward, without a thread of their own.
 *
 * There is no core to spare for one: a rank works on its requests when it asks about one of
 * them, and whenever it would otherwise go to sleep in any wait.  A request is ready as soon as
 * all ranks have started the operation, and then complete after this rank's share of the work.
 */
#include "comm/request.h"

#include "base/memory.h"

void lki_request_enter(lk_comm *comm, lk_request *request)
{
    lk_request **last = &comm->requests;
    while (*last != NULL) /* in order of start: that is the order in which they become ready */
        last = &(*last)->next;
    *last = request;
    comm->pending++;
}

static void complete(lk_request *request)
{
    request->complete = true;
    request->comm->pending--;
    lki_op_close(request->comm, &request->op);
}

/* Does what can be done now.  A failure is the group's. */
static lk_status advance(lk_request *request)
{
    lk_comm *comm = request->comm;
    bool     met;

    if (request->complete)
        return LK_OK;
    LK_TRY(lki_op_peek(comm, &request->op, &met));
    if (!met)
        return LK_OK;
    LK_TRY(lki_tree_reduce_finish(comm, request));
    complete(request);
    return LK_OK;
}

bool lki_progress(lk_comm *comm)
{
    uint32_t before = comm->pending;

    for (lk_request *r = comm->requests; r != NULL && comm->pending > 0; r = r->next)
        if (advance(r) != LK_OK)
            return true; /* the wait that called will find the group failed */
    return comm->pending != before;
}

void lki_requests_orphan(lk_comm *comm)
{
    for (lk_request *r = comm->requests; r != NULL; r = r->next)
        r->comm = NULL;
    comm->requests = NULL;
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
    LK_TRY(advance(request));
    lki_ring(request->comm);
    *done = request->complete;
    return LK_OK;
}

lk_status lk_request_wait(lk_request *request)
{
    LK_TRY(check_alive(request));
    if (request->complete)
        return LK_OK;
    LK_TRY(lki_op_await(request->comm, &request->op)); /* may complete it on the way */
    LK_TRY(advance(request));
    lki_ring(request->comm);
    return LK_OK;
}

void lk_request_free(lk_request *request)
{
    if (request == NULL)
        return;
    lk_comm *comm = request->comm;
    if (comm != NULL) {
        if (!request->complete) { /* given up: my slices stay as they are, the ring moves on */
            complete(request);
            lki_ring(comm);
        }
        lk_request **at = &comm->requests;
        while (*at != request)
            at = &(*at)->next;
        *at = request->next;
    }
    lki_free(request);
}

/* comm/request.h -- an operation that goes on while its rank does something else. */
#ifndef LKI_COMM_REQUEST_H
#define LKI_COMM_REQUEST_H

#include "comm/group.h"

struct lk_request {
    lk_request *next;
    lk_comm    *comm; /* NULL once the communicator is gone */
    lki_op      op;
    lk_tree_op  tree; /* its arrays are the caller's */
    bool        complete;
};

/* Does what this rank has to do for a request that all ranks have started (coll/tree_reduce.c). */
LK_NODISCARD lk_status lki_tree_reduce_finish(lk_comm *comm, const lk_request *request);

/* Adds a request to those that lki_progress() moves forward. */
void lki_request_enter(lk_comm *comm, lk_request *request);

#endif

/* comm/request.h -- an operation that goes on while its rank does something else.
 *
 * Every collective but the smallest is a request, also a blocking one (it lies on the stack
 * then).  A request waits for one goal at a time; when that is reached its algorithm does the
 * next piece of work and says what to wait for next.
 *
 * A collective begins with "all have published".  Then `plan` looks at what all have told and
 * decides, the same on every rank, in how many rounds to go on; `act` does a round, and the next
 * one begins when all have finished it.
 *
 * Requests that use the same buffers (the staging buffers; the mail to or from one peer) take
 * turns in the order in which they were started: they are in the same `lane`.
 */
#ifndef LKI_COMM_REQUEST_H
#define LKI_COMM_REQUEST_H

#include "comm/fill.h"
#include "comm/group.h"
#include "comm/wire/parcel.h"
#include "comm/slot.h"

typedef enum { LKI_LANE_NONE, LKI_LANE_STAGES, LKI_LANE_NATIVE, LKI_LANE_MAIL } lki_lane;

typedef struct {
    void (*publish)(lk_request *request);  /* NULL: there is nothing to tell */
    void (*plan)(lk_request *request);     /* all have: sets `rounds`, leaves the lane if it can */
    lk_status (*act)(lk_request *request); /* round number request->round */
    lk_status (*move)(lk_request *request, bool *moved); /* NULL: a collective */
} lki_algorithm;

/* What a reduction is about. */
typedef struct {
    lk_dtype              dtype;
    lk_reduce_op          op;
    size_t                count, width; /* elements in all, bytes of one */
    const lk_reduce_part *parts;        /* NULL: one vector, from send to recv */
    size_t                part_count;
} lki_reduction;

struct lk_request {
    lk_request          *next;
    lk_comm             *comm; /* NULL once the communicator is gone */
    lk_request          *caller; /* it is a part of this one's work, and called by its name; NULL */
    const lki_algorithm *how;
    lki_op               op;
    lki_goal             goal;
    uint64_t             round, rounds;
    uint64_t             lane;   /* lki_lane; for mail also which: see coll/send_recv.c */
    bool                 met;    /* all have published the same, and `plan` was called; over
                                  * hosts: messages travel */
    bool                 filled; /* the first chunk was staged before publishing */
    bool                 complete;

    const unsigned char *send;
    unsigned char       *recv;
    size_t               bytes; /* of one part; see coll/move.h */
    size_t               send_bytes, recv_bytes, longest;
    size_t              *offsets; /* owned: of parts that differ in size */
    uint32_t             root;
    bool                 in_place; /* nobody may read what I send but by staging */
    bool                 staged;   /* decided by `plan` */
    bool                 far;      /* so is this: recv goes past the cache */
    const lki_route     *route;
    lki_reduction        reduce;
    lk_tree_op           tree; /* its arrays are the caller's */
    uint64_t             named;  /* segments whose messages have names: its own, or its parts' */
    struct lki_task     *task;   /* over hosts: owned */
    struct lki_forest   *forest; /* over hosts, of a tree_reduce: owned */
    struct lki_relay    *relay;  /* over hosts of several ranks: owned */
    struct lki_filling  *fill;    /* over hosts, of a mirror that waits for its ranks: owned */
    const lki_filler    *filler;  /* of such a one; the caller's */
    struct lki_native   *native;  /* over hosts, by MPI's own collective: owned */
    unsigned char       *staging; /* owned: parts as one vector */
};

/* Publishes, waits and completes; frees what the request owns. */
LK_NODISCARD lk_status lki_request_run(lk_request *request);

/* Publishes, and lets a copy of the request go on by itself. */
LK_NODISCARD lk_status lki_request_start(lk_request **out, const lk_request *request);

/* Whether no earlier request is in the request's lane. */
bool lki_request_first(const lk_request *request);

/* For `publish`: the payload, `bytes` of the `total` that the largest has. */
void lki_payload_write(const lk_request *request, const void *data, size_t bytes, size_t total);

/* For `plan`: the next round needs the payload of `total` bytes of all ranks. */
void lki_payload_await(lk_request *request, size_t total);

/* "all_reduce #12 (F32 sum, 100 elements)": what was called. */
void lki_request_text(char out[LKI_OPERATION_BYTES], const lk_request *request);

/* For `move`: the request is done. */
void lki_request_complete(lk_request *request);

#endif

/* comm/group/request.h -- a collective that is in progress while its rank may do other work.
 *
 * Every collective is a request, except the smallest ones.  The request of a blocking call is on
 * the stack.  A request waits for one goal at a time.  When the goal is reached, the request's
 * algorithm does the next piece of work and sets the next goal.
 *
 * A collective begins with the goal "all ranks have published".  Then `plan` reads the published
 * data and decides the number of rounds, which is equal on every rank.  `act` performs one round.
 * The next round begins when all ranks have finished the current one.
 *
 * Requests that use the same buffers (the staging buffers, or the mail with one peer) have the same
 * `lane` and proceed one by one, in the order in which they were started.
 */
#ifndef LKI_COMM_GROUP_REQUEST_H
#define LKI_COMM_GROUP_REQUEST_H

#include "comm/fill.h"
#include "comm/group/group.h"
#include "comm/group/parcel.h"
#include "comm/group/slot.h"

struct lki_forest;

typedef enum { LKI_LANE_NONE, LKI_LANE_STAGES, LKI_LANE_NATIVE, LKI_LANE_MAIL } lki_lane;

typedef struct {
    void (*publish)(lk_request *request);  /* NULL: no data to publish */
    void (*plan)(lk_request *request);     /* called when all ranks have published; sets `rounds`,
                                            * and leaves the lane if possible */
    lk_status (*act)(lk_request *request); /* does round number request->round */
    lk_status (*move)(lk_request *request, bool *moved); /* replaces the functions above; NULL: the
                                                          * request is a collective */
} lki_algorithm;

/* The parameters of a reduction. */
typedef struct {
    lk_dtype              dtype;
    lk_reduce_op          op;
    size_t                count, width; /* number of elements in total; bytes per element */
    const lk_reduce_part *parts;        /* NULL: one vector, from send to recv */
    size_t                part_count;
} lki_reduction;

/* Receives the tree nodes that the ranks of this host hold, in ascending order of their leaves. */
typedef lk_status lki_tree_take(struct lki_forest *forest, const lki_tree_input *inputs,
                                uint32_t count);

struct lk_request {
    lk_request          *next;
    lk_comm             *comm; /* NULL after the communicator was freed */
    lk_request          *caller; /* the request of which this request is a part, or NULL.  Messages
                                  * and errors name the operation of that request */
    const lki_algorithm *how;
    lki_op               op;
    lki_goal             goal;
    uint64_t             round, rounds;
    uint64_t             lane;   /* requests of one lane proceed one by one (lki_lane); for messages
                                  * it includes the peer and direction: see coll/send_recv.c */
    bool                 met;    /* one host: all fingerprints match and `plan` was called; several
                                  * hosts: messages are being sent */
    bool                 filled; /* the first chunk was staged before publishing */
    bool                 complete;

    const unsigned char *send;
    unsigned char       *recv;
    size_t               bytes; /* bytes of one part; see coll/move.h */
    size_t               send_bytes, recv_bytes, longest;
    size_t              *offsets; /* owned: offsets of parts of different sizes */
    uint32_t             root;
    bool                 in_place; /* send and recv overlap, so other ranks may read `send` only
                                    * through staging buffers */
    bool                 staged;   /* set by `plan` */
    bool                 far;      /* set by `plan`: copies to recv bypass the cache */
    const lki_route     *route;
    lki_reduction        reduce;
    lk_tree_op           tree; /* its arrays belong to the caller */
    uint64_t             named;  /* number of segments of the request and its parts that already
                                  * have message names */
    struct lki_task     *task;   /* owned; for an operation over hosts */
    struct lki_forest   *forest; /* over hosts, tree_reduce; owned */
    lki_tree_take       *take;   /* for the part of a tree_reduce within a host: receives the
                                  * nodes */
    struct lki_relay    *relay;  /* owned; for an operation over hosts with several ranks */
    struct lki_filling  *fill;    /* owned; for a mirror that waits for the ranks of this host */
    const lki_filler    *filler;  /* belongs to the caller; for the mirror in `fill` */
    struct lki_native   *native;  /* owned; for an operation over hosts that MPI performs */
    unsigned char       *staging; /* owned: parts as one vector */
};

/* Runs a request to completion and frees what it owns. */
LK_NODISCARD lk_status lki_request_run(lk_request *request);

/* Publishes the request and starts a copy of it.  Later calls advance the copy.  *out becomes the
 * copy. */
LK_NODISCARD lk_status lki_request_start(lk_request **out, const lk_request *request);

/* Makes one move of a request on one host: one round, or one piece of a message.  The request must
 * be first in its lane and its goal must be reached.  *moved becomes true if the request moved.
 * All progress consists of such moves, so a test can try all orders of moves. */
LK_NODISCARD lk_status lki_request_step(lk_request *request, bool *moved);

/* Returns true if no earlier request has the lane of this request. */
bool lki_request_first(const lk_request *request);

/* Writes the payload of this rank; called by `publish`.  `bytes` is the payload size on this rank,
 * `total` the largest payload size on any rank. */
void lki_payload_write(const lk_request *request, const void *data, size_t bytes, size_t total);

/* Makes the next round wait until all ranks have written a payload of `total` bytes; called by
 * `plan`. */
void lki_payload_await(lk_request *request, size_t total);

/* Writes "all_reduce #12 (F32 sum, 100 elements)", naming the operation that the user called. */
void lki_request_text(char out[LKI_OPERATION_BYTES], const lk_request *request);

/* Marks the request as complete; called by `move`. */
void lki_request_complete(lk_request *request);

#endif

/* lockstep/comm.h -- a group of ranks, the memory they share, and the collectives they run.
 *
 * A communicator is an ordered set of `size` ranks on one host: processes that were handed the
 * same control memory, or threads.  Every rank issues the same collectives in the same order; a
 * fingerprint (operation, sequence, dtype, count, root ...) rides on each, and ranks that
 * disagree are told so at once, both sides named (LK_EMISMATCH).
 *
 * Arenas:    memory that all ranks map (memfd).  Buffers inside arenas move without a copy.
 * Waiting:   spin, yield, then sleep, until the operation's deadline; LK_ETIMEOUT names the
 *            ranks that are missing, where they last were, and whether they are alive.  The
 *            death of a peer ends every wait at once with LK_EPEER.
 * Failure:   after LK_EPEER, LK_ETIMEOUT or LK_EMISMATCH the communicator is dead: every later
 *            call returns the same failure.  Only lk_comm_free() remains useful.
 * Threads:   one thread at a time per communicator.
 * Ownership: buffers stay the caller's; an asynchronous call borrows them until it completes.
 */
#ifndef LK_COMM_H
#define LK_COMM_H

#include "lockstep/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lk_comm    lk_comm;
typedef struct lk_arena   lk_arena;
typedef struct lk_request lk_request;

/* ---- Life cycle -------------------------------------------------------------------------- */

typedef struct {
    uint32_t timeout_ms; /* of every wait; 0 = 30 s */
} lk_comm_options;

/* `size` ranks inside this process, one for each thread that the caller starts: out[r] is rank
 * r's.  All or nothing.  (Processes get theirs from lk_join(), lockstep/launch.h.) */
LK_API LK_NODISCARD lk_status lk_comm_open_threads(lk_comm **out, uint32_t size,
                                                   const lk_comm_options *options);

/* Leaves the group.  NULL is allowed.  Never fails, never waits for peers. */
LK_API void lk_comm_free(lk_comm *comm);

LK_API uint32_t lk_comm_rank(const lk_comm *comm);
LK_API uint32_t lk_comm_size(const lk_comm *comm);

/* Where this rank is, for the errors that others print about it: "step 12", "backward". The text
 * is copied (63 bytes). Cheap: call it as often as the place changes. */
LK_API void lk_comm_note(lk_comm *comm, uint64_t step, const char *phase);

/* From here on this rank's waits have this deadline (0 = the one given at opening): for stretches
 * in which one rank works long while the others wait, such as writing a large file.  A peer that is
 * stopped is no such one: it is missed after the deadline given at opening. */
LK_API void lk_comm_set_timeout(lk_comm *comm, uint32_t timeout_ms);

/* Tells every rank to stop waiting: their calls return LK_EPEER with this rank's last error. */
LK_API void lk_comm_abort(lk_comm *comm);

/* ---- Shared memory ----------------------------------------------------------------------- */

/* Collective.  Creates `bytes` of zeroed memory that all ranks see; every page is really there on
 * return (lack of memory is LK_ENOMEM here, not a signal later).  All ranks give the same name
 * and size.  The arena is unmapped by lk_comm_free() at the latest. */
LK_API LK_NODISCARD lk_status lk_comm_arena(lk_arena **out, lk_comm *comm, const char *name, size_t bytes);
LK_API void *lk_arena_data(const lk_arena *arena); /* this rank's mapping; 64-byte aligned */
LK_API size_t lk_arena_bytes(const lk_arena *arena);

/* ---- Collectives ------------------------------------------------------------------------- */

LK_API LK_NODISCARD lk_status lk_barrier(lk_comm *comm);

/* Copies root's `bytes` bytes at `data` to every rank's. */
LK_API LK_NODISCARD lk_status lk_broadcast(lk_comm *comm, void *data, size_t bytes, uint32_t root);

/* Every rank's `bytes` bytes, in order of rank, into recv (size * bytes) on every rank. */
LK_API LK_NODISCARD lk_status lk_all_gather(lk_comm *comm, const void *send, void *recv, size_t bytes);

/* Leaves the sum of all ranks' `send` in every rank's `recv` (send == recv: in place), by the
 * canonical tree over ranks; LK_F32 and LK_F64.  Direct: each rank sums its slice, all read it. */
LK_API LK_NODISCARD lk_status lk_all_reduce(lk_comm *comm, const void *send, void *recv, size_t count,
                                            lk_dtype dtype);

/* ---- The central operation --------------------------------------------------------------- */

/* A node of the canonical balanced tree over `leaves` virtual workers that this rank holds: the
 * sum over [first, first + count).  `data` points into an arena: `elements` FP32 values. */
typedef struct {
    uint32_t     first, count;
    const float *data;
} lk_tree_node;

/* Elements [first, first + count) are summed by rank `owner`. */
typedef struct {
    size_t   first, count;
    uint32_t owner;
} lk_slice;

typedef struct {
    uint32_t            leaves;     /* V */
    size_t              elements;   /* in each node's data */
    const lk_tree_node *nodes;      /* those that I hold, in ascending order of `first` */
    uint32_t            node_count; /* may be 0; at most LK_TREE_NODES_MAX */
    const lk_slice     *slices;     /* the same on every rank, ascending, disjoint */
    size_t              slice_count;
    float              *out;        /* `elements` wide; only my slices are written.  May be the
                                     * data of a node that I hold (in place) */
} lk_tree_op;

enum { LK_TREE_NODES_MAX = 16 };

/* Starts the elementwise sum of all ranks' nodes in the order of the canonical tree,
 * ((g0+g1)+(g2+g3))+...; when it completes, my slices of `out` hold the sum.  Direct algorithm:
 * each owner reads every node of its slice once and writes the result once.  The arrays of
 * `op` are borrowed until completion, and other ranks may read my nodes until every
 * rank has completed (a later lk_barrier() tells). */
LK_API LK_NODISCARD lk_status lk_tree_reduce_start(lk_request **out, lk_comm *comm, const lk_tree_op *op);
LK_API LK_NODISCARD lk_status lk_tree_reduce(lk_comm *comm, const lk_tree_op *op);

/* Moves a request forward without waiting; *done tells whether it is complete.  Does the work of
 * this rank's slices as soon as every rank has started the operation. */
LK_API LK_NODISCARD lk_status lk_request_test(lk_request *request, bool *done);

/* Waits for completion.  The request is freed by lk_request_free() only; one that is freed before
 * it is complete leaves its slices of `out` as they are, and does not disturb the others. */
LK_API LK_NODISCARD lk_status lk_request_wait(lk_request *request);
LK_API void lk_request_free(lk_request *request);

#ifdef __cplusplus
}
#endif
#endif /* LK_COMM_H */

/* lockstep/comm.h -- a group of ranks, the memory they share, and the collectives they run.
 *
 * A communicator is an ordered set of `size` ranks.  The ranks are threads, or processes that map
 * the same control memory.  Every rank issues the same collectives in the same order.  Each
 * collective carries a fingerprint (operation, sequence, dtype, reduction, count, root ...).  If
 * two fingerprints differ, all ranks fail at once with LK_EMISMATCH, which names two ranks.
 *
 * Groups:    lk_comm_split(), lk_comm_subset() and lk_mesh_open() (mesh.h) create communicators of
 *            some of the ranks.  The results may overlap, and each has its own order of operations.
 *            A failure in one communicator fails all of them.  Messages name ranks by their world
 *            rank.
 * Arenas:    memory that all ranks map (memfd).  Buffers inside arenas are not copied.
 * Waiting:   a call spins, yields, then sleeps, until the operation's deadline.  LK_ETIMEOUT names
 *            the missing ranks, the last position of each, and whether each is alive.  The death of
 *            a peer ends every wait at once with LK_EPEER.
 * Failure:   after LK_EPEER, LK_ETIMEOUT or LK_EMISMATCH every later call on the communicator
 *            returns the same failure.  Only lk_comm_free() and lk_comm_rebuild() still work.
 * Threads:   only one thread at a time may use the communicators of a rank, and no forked child.
 * Ownership: buffers belong to the caller; an asynchronous call borrows them until it completes.
 * Buffers:   send and recv may overlap only as documented for each call (in place); any other
 *            overlap is LK_EINVAL.  Sizes may be zero, and then pointers may be NULL.
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
    size_t      struct_size; /* see LK_COMM_OPTIONS_INIT */
    uint32_t    timeout_ms; /* deadline of every wait; 0 = 30 s */
    const char *flight;     /* directory of the flight records (flight.h); NULL = none */
    const char *algorithms; /* algorithms between hosts, equal on all ranks:
                             * "all_reduce:halving,all_gather:ring"; NULL = the fastest by the
                             * constants that lk_comm_tune() measures.  "all_reduce:native" is MPI's
                             * own algorithm, which is timed and needs lk_comm_open_mpi() */
    const char *tuning;     /* file with these constants, read by rank 0; NULL = measured */
    const char *cache;      /* directory in which rank 0 caches its measurements; NULL = none */
} lk_comm_options;

#define LK_COMM_OPTIONS_INIT LK_OPTIONS_INIT(lk_comm_options)

/* Creates a communicator of `size` ranks that are threads of this process.  The caller starts the
 * threads; out[r] belongs to rank r.  On failure nothing is created.  Processes call lk_join()
 * (launch.h) instead. */
LK_API LK_NODISCARD lk_status lk_comm_open_threads(lk_comm **out, uint32_t size,
                                                   const lk_comm_options *options);

/* Leaves the group.  Accepts NULL and never fails.  On one host the call does not wait.  On several
 * hosts, freeing a rank's last communicator flushes pending writes, for at most 7 s.  Under MPI it
 * waits for the other ranks (see lk_comm_open_mpi()).  Communicators created from this one stay
 * usable, and its arenas stay usable through them.  Waiting for an open request of a freed
 * communicator is LK_EINVAL.  On several hosts an incomplete request also ends the group, with
 * LK_EPEER on all ranks.  In a forked child the call does nothing. */
LK_API void lk_comm_free(lk_comm *comm);

/* Returns the rank of the caller in this communicator, from 0. */
LK_API uint32_t lk_comm_rank(const lk_comm *comm);
/* Returns the number of ranks of this communicator. */
LK_API uint32_t lk_comm_size(const lk_comm *comm);

/* Returns the world rank of a rank of this communicator: RANK as `lockstep run` assigns it, which
 * messages print.  The world rank may differ from `rank` after a split or a rebuild. */
LK_API uint32_t lk_comm_world_rank(const lk_comm *comm, uint32_t rank);

/* Returns the number of hosts.  Hosts are numbered from 0 in the order of their lowest ranks. */
LK_API uint32_t lk_comm_hosts(const lk_comm *comm);
/* Returns what carries the bytes between hosts, as text for users: "TCP", "TCP with TLS 1.3", "MPI
 * (Open MPI 4.1.4)"; "" if all ranks are on one host. */
LK_API const char *lk_comm_carrier(const lk_comm *comm);
/* Returns the number of the host of a rank.  Ranks of one host share memory (arenas). */
LK_API uint32_t lk_comm_host(const lk_comm *comm, uint32_t rank);
/* Returns the position of a rank among the ranks of its host, from 0, in the order of ranks. */
LK_API uint32_t lk_comm_local_rank(const lk_comm *comm, uint32_t rank);
/* Returns the number of ranks on a host. */
LK_API uint32_t lk_comm_local_size(const lk_comm *comm, uint32_t host);

/* Records this rank's position (`step` 12, `phase` "backward").  The errors of other ranks print
 * it.  Copies at most 63 bytes of `phase`.  The call is cheap enough for every change of phase. */
LK_API void lk_comm_note(lk_comm *comm, uint64_t step, const char *phase);

/* Sets the deadline of this rank's later waits; 0 = the deadline given at opening.  Meant for
 * phases in which one rank works long while the others wait, such as writing a large file.  A
 * stopped (SIGSTOP) peer is still reported after the original deadline. */
LK_API void lk_comm_set_timeout(lk_comm *comm, uint32_t timeout_ms);

/* Ends the waits of all ranks: their calls return LK_EPEER with this rank's last error.  Accepts
 * NULL, for a rank that could not join. */
LK_API void lk_comm_abort(lk_comm *comm);

/* ---- Groups ------------------------------------------------------------------------------ */

#define LK_NO_COLOR UINT32_MAX

/* Splits the communicator.  Collective.  Ranks with the same `color` form a new communicator,
 * ordered by `key`, then by their rank in `comm`.  A rank with LK_NO_COLOR joins none, and its *out
 * is NULL. */
LK_API LK_NODISCARD lk_status lk_comm_split(lk_comm **out, lk_comm *comm, uint32_t color,
                                            uint32_t key);

/* Creates a communicator of the `count` listed ranks, in the order of the list.  All ranks of
 * `comm` must call with the same list.  On ranks that are not listed *out is NULL. */
LK_API LK_NODISCARD lk_status lk_comm_subset(lk_comm **out, lk_comm *comm, const uint32_t *ranks,
                                             uint32_t count);

/* ---- Shared memory ----------------------------------------------------------------------- */

/* Creates an arena: `bytes` of zeroed memory that all ranks of a host map.  Collective, with the
 * same name and size on all ranks.  All pages are allocated on return, so lack of memory is
 * LK_ENOMEM here, not a signal later.  The arena is unmapped by lk_comm_free() at the latest.  If
 * ranks run on several NUMA nodes, the arena is divided equally in order of rank, and each part is
 * placed on its rank's NUMA node. */
LK_API LK_NODISCARD lk_status lk_comm_arena(lk_arena **out, lk_comm *comm, const char *name,
                                            size_t bytes);
/* Copies each rank's part of the arena from the rank's host to all other hosts.  Collective, with
 * the same list on all ranks.  Part r has bytes[r] bytes; the parts are consecutive from `offset`
 * on.  On one host this is a barrier. */
LK_API LK_NODISCARD lk_status lk_arena_mirror(lk_comm *comm, lk_arena *arena, size_t offset,
                                              const size_t *bytes);

LK_API void *lk_arena_data(const lk_arena *arena); /* this rank's mapping; 64-byte aligned */
LK_API size_t lk_arena_bytes(const lk_arena *arena);

/* ---- Collectives that move bytes --------------------------------------------------------- */

/* Returns when all ranks have called it. */
LK_API LK_NODISCARD lk_status lk_barrier(lk_comm *comm);

/* Copies root's `bytes` bytes at `data` to every rank's `data`. */
LK_API LK_NODISCARD lk_status lk_broadcast(lk_comm *comm, void *data, size_t bytes, uint32_t root);

/* Gathers `bytes` bytes from every rank, in order of rank, into `recv` (size * bytes) on every
 * rank.  In place: send == recv + rank * bytes. */
LK_API LK_NODISCARD lk_status lk_all_gather(lk_comm *comm, const void *send, void *recv,
                                            size_t bytes);

/* Gathers bytes[r] bytes from each rank r, in order of rank, into `recv` on every rank.  All ranks
 * pass the same list.  In place: `send` is this rank's part of `recv`. */
LK_API LK_NODISCARD lk_status lk_all_gather_v(lk_comm *comm, const void *send, void *recv,
                                              const size_t *bytes);

/* Gathers `bytes` bytes from every rank, in order of rank, into root's `recv`.  Other ranks' `recv`
 * is ignored.  In place, on root: send == recv + root * bytes. */
LK_API LK_NODISCARD lk_status lk_gather(lk_comm *comm, const void *send, void *recv, size_t bytes,
                                        uint32_t root);

/* Scatters root's `send` (size * bytes): part r is copied to rank r's `recv`.  Other ranks' `send`
 * is ignored.  In place, on root: recv == send + root * bytes. */
LK_API LK_NODISCARD lk_status lk_scatter(lk_comm *comm, const void *send, void *recv, size_t bytes,
                                         uint32_t root);

/* Sends part r of every rank's `send` to rank r, which stores the parts in `recv` in order of rank.
 * A part is `bytes` bytes.  In place: send == recv. */
LK_API LK_NODISCARD lk_status lk_all_to_all(lk_comm *comm, const void *send, void *recv,
                                            size_t bytes);

/* Sends send_bytes[r] bytes to each rank r and receives recv_bytes[r] bytes from rank r.  The parts
 * of a buffer are consecutive.  Two ranks that disagree about a size fail with LK_EMISMATCH.  In
 * place: send == recv, with equal lists. */
LK_API LK_NODISCARD lk_status lk_all_to_all_v(lk_comm *comm, const void *send,
                                              const size_t *send_bytes, void *recv,
                                              const size_t *recv_bytes);

/* Sends a message to rank `to`, and returns when the receiver has all of it.  Messages from one
 * rank to another arrive in order, and both sides must pass the same size.  If two ranks send to
 * each other, one side must use lk_send_start() or lk_recv_start(), or both wait forever. */
LK_API LK_NODISCARD lk_status lk_send(lk_comm *comm, const void *send, size_t bytes, uint32_t to);
/* Receives a message of exactly `bytes` bytes from rank `from`. */
LK_API LK_NODISCARD lk_status lk_recv(lk_comm *comm, void *recv, size_t bytes, uint32_t from);

/* ---- Collectives that reduce ------------------------------------------------------------- */

/* All reductions except ADASUM are elementwise, along the canonical tree over ranks: ((r0 op r1) op
 * (r2 op r3)) ... The bits therefore do not depend on sizes, buffer addresses or timing.
 * lk_reduce_op defines the operations for each type.  Buffers must be aligned to their type. */

/* Reduces all ranks' `send` into every rank's `recv`.  In place: send == recv. */
LK_API LK_NODISCARD lk_status lk_all_reduce(lk_comm *comm, const void *send, void *recv,
                                            size_t count, lk_dtype dtype, lk_reduce_op op);

/* Reduces all ranks' `send` into root's `recv`; other ranks' `recv` is ignored.  In place, on root:
 * send == recv. */
LK_API LK_NODISCARD lk_status lk_reduce(lk_comm *comm, const void *send, void *recv, size_t count,
                                        lk_dtype dtype, lk_reduce_op op, uint32_t root);

/* Reduces all ranks' `send` (size * count elements).  Rank r receives part r.  In place: recv ==
 * send + rank * count elements. */
LK_API LK_NODISCARD lk_status lk_reduce_scatter(lk_comm *comm, const void *send, void *recv,
                                                size_t count, lk_dtype dtype, lk_reduce_op op);

/* Reduces all ranks' `send`.  Rank r receives counts[r] elements.  All ranks pass the same list. */
LK_API LK_NODISCARD lk_status lk_reduce_scatter_v(lk_comm *comm, const void *send, void *recv,
                                                  const size_t *counts, lk_dtype dtype,
                                                  lk_reduce_op op);

/* One tensor of lk_all_reduce_many(). */
typedef struct {
    const void *send;
    void       *recv;
    size_t      count;
    lk_dtype    dtype;
} lk_reduce_part;

/* Performs lk_all_reduce() on every part, with the bits of separate calls, but in fewer operations:
 * small neighbouring parts of one type are sent together.  The grouping depends only on the list of
 * parts. */
LK_API LK_NODISCARD lk_status lk_all_reduce_many(lk_comm *comm, const lk_reduce_part *parts,
                                                 size_t part_count, lk_reduce_op op);

/* ---- Algorithms over several hosts ------------------------------------------------------- */

/* Measures the constants of the cost model, by which algorithms are chosen from now on, between
 * rank 0 and a rank on another host.  Collective.  Rank 0 writes them to the file `path`, unless
 * `path` is NULL.  LK_EINVAL if all ranks are on one host, or `path` has a file of another kind. */
LK_API LK_NODISCARD lk_status lk_comm_tune(lk_comm *comm, const char *path);

/* Returns a text that names the source of the constants.  Only rank 0's text can name a file. */
LK_API const char *lk_comm_tuning(const lk_comm *comm);

/* Reads a file as in lk_comm_options.tuning: `latency` is the seconds of a small message, and
 * `bandwidth` the bytes per second of a host. */
LK_API LK_NODISCARD lk_status lk_comm_read_tuning(const char *path, double *latency,
                                                  double *bandwidth);

/* Selects algorithms from now on, as lk_comm_options.algorithms does; NULL = none.  All ranks must
 * pass the same text.  LK_EINVAL if an algorithm does not support these ranks; the message lists
 * the algorithms that do. */
LK_API LK_NODISCARD lk_status lk_comm_set_algorithms(lk_comm *comm, const char *algorithms);

typedef struct {
    const char *name;    /* "direct", "ring" ... */
    bool        exact;   /* has the bits of the canonical tree; if false, used only on request */
    bool        chosen;
    double      seconds; /* predicted from the constants; 0 = unknown */
} lk_algorithm;

/* Lists the algorithms of an operation ("all_reduce") on `bytes` bytes of FP32 per rank (of all
 * parts together if the data has parts).  Writes the first `capacity` of them to `out`, and the
 * number of all of them to *count.  The number is 0 if all ranks are on one host without MPI. */
LK_API LK_NODISCARD lk_status lk_comm_explain(const lk_comm *comm, const char *operation,
                                              size_t bytes, lk_algorithm *out, uint32_t capacity,
                                              uint32_t *count);

/* ---- Asynchronous ------------------------------------------------------------------------ */

/* Asynchronous versions of the calls above.  They return at once; lk_request_wait() or
 * lk_request_test() completes the request.  All ranks must call these functions and the
 * other operations in the same order.  Requests complete in any order.  Lists of sizes are copied,
 * buffers borrowed.  On one host at most 64 operations of a communicator are open: a call past this
 * limit waits until all ranks have completed the operation 64 calls before, or for the deadline.
 * Messages do not count, and on several hosts there is no limit. */
LK_API LK_NODISCARD lk_status lk_barrier_start(lk_request **out, lk_comm *comm);
LK_API LK_NODISCARD lk_status lk_broadcast_start(lk_request **out, lk_comm *comm, void *data,
                                                 size_t bytes, uint32_t root);
LK_API LK_NODISCARD lk_status lk_all_gather_start(lk_request **out, lk_comm *comm, const void *send,
                                                  void *recv, size_t bytes);
LK_API LK_NODISCARD lk_status lk_all_gather_v_start(lk_request **out, lk_comm *comm,
                                                    const void *send, void *recv,
                                                    const size_t *bytes);
LK_API LK_NODISCARD lk_status lk_gather_start(lk_request **out, lk_comm *comm, const void *send,
                                              void *recv, size_t bytes, uint32_t root);
LK_API LK_NODISCARD lk_status lk_scatter_start(lk_request **out, lk_comm *comm, const void *send,
                                               void *recv, size_t bytes, uint32_t root);
LK_API LK_NODISCARD lk_status lk_all_to_all_start(lk_request **out, lk_comm *comm, const void *send,
                                                  void *recv, size_t bytes);
LK_API LK_NODISCARD lk_status lk_all_to_all_v_start(lk_request **out, lk_comm *comm,
                                                    const void *send, const size_t *send_bytes,
                                                    void *recv, const size_t *recv_bytes);
LK_API LK_NODISCARD lk_status lk_send_start(lk_request **out, lk_comm *comm, const void *send,
                                            size_t bytes, uint32_t to);
LK_API LK_NODISCARD lk_status lk_recv_start(lk_request **out, lk_comm *comm, void *recv,
                                            size_t bytes, uint32_t from);
LK_API LK_NODISCARD lk_status lk_all_reduce_start(lk_request **out, lk_comm *comm, const void *send,
                                                  void *recv, size_t count, lk_dtype dtype,
                                                  lk_reduce_op op);
LK_API LK_NODISCARD lk_status lk_reduce_start(lk_request **out, lk_comm *comm, const void *send,
                                              void *recv, size_t count, lk_dtype dtype,
                                              lk_reduce_op op, uint32_t root);
LK_API LK_NODISCARD lk_status lk_reduce_scatter_start(lk_request **out, lk_comm *comm,
                                                      const void *send, void *recv, size_t count,
                                                      lk_dtype dtype, lk_reduce_op op);
LK_API LK_NODISCARD lk_status lk_reduce_scatter_v_start(lk_request **out, lk_comm *comm,
                                                        const void *send, void *recv,
                                                        const size_t *counts, lk_dtype dtype,
                                                        lk_reduce_op op);

/* Advances a request without waiting, and sets *done to true if the request is complete. */
LK_API LK_NODISCARD lk_status lk_request_test(lk_request *request, bool *done);

/* Waits for completion.  Exceeding the communicator's deadline fails the group. */
LK_API LK_NODISCARD lk_status lk_request_wait(lk_request *request);

/* Waits up to `timeout_ms`.  LK_ETIMEOUT does not fail the group: the request continues, and the
 * caller can wait for it again. */
LK_API LK_NODISCARD lk_status lk_request_wait_for(lk_request *request, uint32_t timeout_ms);

/* Frees a request, complete or not; the caller must free every request.  An incomplete request
 * leaves its results unset if the other ranks no longer need this rank for it (a tree_reduce, or
 * data that fits in a slot).  Any other incomplete request ends the group with LK_EPEER. */
LK_API void lk_request_free(lk_request *request);

/* ---- The central operation --------------------------------------------------------------- */

/* A node of the canonical tree over `leaves` virtual workers that this rank holds: the sum over
 * leaves [first, first + count).  `data` points into an arena and has `elements` FP32 values. */
typedef struct {
    uint32_t     first, count;
    const float *data;
} lk_tree_node;

/* A slice: elements [first, first + count), summed by rank `owner`.  On several hosts, the hosts
 * whose number modulo lk_tree_op.shards is `shard` receive the slice, unless lk_tree_op.wanted says
 * otherwise.  On such a host the rank whose local rank is `owner` modulo the local size sums it. */
typedef struct {
    size_t   first, count;
    uint32_t owner, shard;
} lk_slice;

/* How hosts exchange the nodes of a tree_reduce.  The bits are the same. */
typedef enum {
    LK_TREE_AUTO = 0, /* as lk_comm_options.algorithms says for "tree_reduce".  Without that: on two
                       * hosts with one node each, the faster by the constants; otherwise direct */
    LK_TREE_DIRECT,   /* each host sums an equal part, and sends it to the others */
    LK_TREE_LINEAR    /* each host receives all nodes and sums everything: one round less, and no
                       * more bytes on two hosts with one node each */
} lk_tree_algorithm;

typedef struct {
    uint32_t            leaves;     /* V */
    size_t              elements;   /* number of elements of each node's data */
    const lk_tree_node *nodes;      /* nodes that this rank holds, by ascending `first` */
    uint32_t            node_count; /* may be 0; at most LK_TREE_NODES_MAX */
    const lk_slice     *slices;     /* equal on every rank, ascending, disjoint */
    size_t              slice_count;
    uint32_t            shards;     /* 0 or 1: every host receives every slice; at most the number
                                     * of hosts */
    const uint8_t      *wanted;     /* [hosts][shards], equal on every rank: nonzero if the host
                                     * receives the shard.  A host may receive several shards, and a
                                     * single host receives all.  NULL: see lk_slice */
    float              *out;        /* `elements` long; only this rank's slices are written.  May be
                                     * the data of a node that this rank holds (in place) */
    bool                packed;     /* `out` has only this rank's slices (of shards that its host
                                     * receives), consecutively */
    lk_dtype            rounded;    /* 0: LK_F32.  LK_BF16 or LK_F16: every node of the tree, leaves
                                     * included, is rounded to this type and sent between hosts in 2
                                     * bytes per element; the bits do not depend on ranks and hosts.
                                     * LK_I8 or LK_I4: every node is rounded in blocks of 256
                                     * elements, counted from element 0, which slices must not
                                     * split.  A block has 8- or 4-bit integers and one factor,
                                     * which maps the largest magnitude to 127 or 7.  A block with a
                                     * non-finite element becomes NaN */
    lk_tree_algorithm   algorithm;  /* equal on every rank; no effect on one host */
} lk_tree_op;

enum { LK_TREE_NODES_MAX = 16 };

/* Returns the number of bytes in which `elements` elements are sent when rounded to `rounded` (0:
 * LK_F32). */
LK_API size_t lk_rounded_bytes(lk_dtype rounded, size_t elements);

/* Starts the elementwise sum of all ranks' nodes in the order of the canonical tree,
 * ((g0+g1)+(g2+g3))+... On completion this rank's slices of `out` hold the sum.  The algorithm is
 * direct: each owner reads every node of its slice once and writes the result once.  The arrays of
 * `op` are borrowed until completion.  Other ranks may read this rank's nodes until every rank has
 * completed, which a later lk_barrier() ensures. */
LK_API LK_NODISCARD lk_status lk_tree_reduce_start(lk_request **out, lk_comm *comm,
                                                   const lk_tree_op *op);
/* Computes the sum of lk_tree_reduce_start() and waits for its completion. */
LK_API LK_NODISCARD lk_status lk_tree_reduce(lk_comm *comm, const lk_tree_op *op);

#ifdef __cplusplus
}
#endif
#include "lockstep/recovery.h"
#include "lockstep/mesh.h"
#endif /* LK_COMM_H */

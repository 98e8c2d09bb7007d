/* lockstep/comm.h -- a group of ranks, the memory they share, and the collectives they run.
 *
 * A communicator is an ordered set of `size` ranks on one host: processes that were handed the
 * same control memory, or threads.  Every rank issues the same collectives in the same order; a
 * fingerprint (operation, sequence, dtype, reduction, count, root ...) rides on each, and ranks
 * that disagree are told so at once, both sides named (LK_EMISMATCH).
 *
 * Groups:    lk_comm_split() and its like make communicators of some of the ranks.  They may
 *            overlap, and each has its own order of operations.  What fails in one has failed in
 *            all; messages name ranks by their number in the first communicator.
 *
 * Arenas:    memory that all ranks map (memfd).  Buffers inside arenas move without a copy.
 * Waiting:   spin, yield, then sleep, until the operation's deadline; LK_ETIMEOUT names the
 *            ranks that are missing, where they last were, and whether they are alive.  The
 *            death of a peer ends every wait at once with LK_EPEER.
 * Failure:   after LK_EPEER, LK_ETIMEOUT or LK_EMISMATCH the communicator is dead: every later
 *            call returns the same failure.  What remains is lk_comm_free(), or, for those who go
 *            on without the ranks that were lost, lk_comm_rebuild().
 * Threads:   one thread at a time for all communicators of a rank.
 * Ownership: buffers stay the caller's; an asynchronous call borrows them until it completes.
 * Buffers:   send and recv may be the same place where a call says what that means (in place);
 *            any other overlap is LK_EINVAL.  Sizes may be zero, and the pointers NULL then.
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
    uint32_t    timeout_ms; /* of every wait; 0 = 30 s */
    const char *flight;     /* a directory in which every rank keeps a record of what it did last
                             * (lockstep/flight.h); NULL = none */
    const char *algorithms; /* over several hosts: "all_reduce:halving,all_gather:ring"; the same on
                             * all ranks; NULL = the cheapest, by constants that lk_comm_tune()
                             * measures.  "all_reduce:native" is MPI's own, not exact, and only for
                             * lk_comm_open_mpi() (there on one host, too) */
    const char *tuning;     /* a file of such constants, which rank 0 reads; NULL = they are
                             * measured when hosts meet */
    const char *cache;      /* a directory in which rank 0 keeps what it measured; NULL = none */
} lk_comm_options;

/* `size` ranks inside this process, one for each thread that the caller starts: out[r] is rank
 * r's.  All or nothing.  (Processes get theirs from lk_join(), lockstep/launch.h.) */
LK_API LK_NODISCARD lk_status lk_comm_open_threads(lk_comm **out, uint32_t size,
                                                   const lk_comm_options *options);

/* Leaves the group.  NULL is allowed.  Never fails.  On one host it waits for nobody; the last one
 * of a rank over several sees off what was written, for 7 s at most (under MPI it waits for the
 * others: lk_comm_open_mpi()).  Communicators made from this one stay usable, and so do the arenas
 * of this one for them. */
LK_API void lk_comm_free(lk_comm *comm);

LK_API uint32_t lk_comm_rank(const lk_comm *comm);
LK_API uint32_t lk_comm_size(const lk_comm *comm);

/* The number that a rank of this communicator has in the job: RANK, as lockstep run gives it, and
 * as messages name it.  In a group made by split, or made anew, it may differ from `rank`. */
LK_API uint32_t lk_comm_world_rank(const lk_comm *comm, uint32_t rank);

/* Where the ranks are.  Hosts are numbered from 0 in the order of their lowest ranks; the ranks of
 * one host share memory (arenas), and are numbered from 0 there in the order of their ranks. */
LK_API uint32_t lk_comm_hosts(const lk_comm *comm);
LK_API uint32_t lk_comm_host(const lk_comm *comm, uint32_t rank);
LK_API uint32_t lk_comm_local_rank(const lk_comm *comm, uint32_t rank);
LK_API uint32_t lk_comm_local_size(const lk_comm *comm, uint32_t host);

/* Where this rank is, for the errors that others print about it: "step 12", "backward". The text
 * is copied (63 bytes). Cheap: call it as often as the place changes. */
LK_API void lk_comm_note(lk_comm *comm, uint64_t step, const char *phase);

/* From here on this rank's waits have this deadline (0 = the one given at opening): for stretches
 * in which one rank works long while the others wait, such as writing a large file.  A peer that is
 * stopped is no such one: it is missed after the deadline given at opening. */
LK_API void lk_comm_set_timeout(lk_comm *comm, uint32_t timeout_ms);

/* Tells every rank to stop waiting: their calls return LK_EPEER with this rank's last error.
 * NULL is allowed: whoever could not join has nobody to tell. */
LK_API void lk_comm_abort(lk_comm *comm);

/* ---- After a failure --------------------------------------------------------------------- */

/* Collective over those who go on: a new first communicator of the ranks that are left, in their
 * old order and with numbers from 0.  `failed` is the one that lk_join() or this call gave, and has
 * failed.  It stays the caller's, with its arenas, so that what is in them can be taken over; free
 * it then.  Its requests, and those of communicators made from it, are abandoned.
 *
 * The launcher decides who is left (`lockstep run --on-failure continue`, or on_failure of
 * lk_launch()): it waits until every rank of `failed` has called this, has left, or has ended.
 * Who has done none of that when the shortest timeout of those who called is over is killed.  A
 * rank that dies meanwhile is not in the new group, or fails it as it would any other.  On several
 * hosts node 0's launcher decides, by what each says of its own; a host may be lost as a whole.
 *
 * Ranks that are threads of one process decide together: who has freed its first communicator is
 * gone, and who has not come when the time is up is not killed, but refused the new group.
 *
 * options->timeout_ms limits the waits here and, until lk_comm_set_timeout(), in the new
 * communicator; NULL, or 0, is the deadline given at opening, which stays that of `failed`.
 * Operations count from 0 again, there are no arenas, and a flight record goes on.
 *
 * LK_EINVAL where `failed` is not as above; LK_EUNSUPPORTED where nobody decides (another
 * launcher, --on-failure stop); LK_EPEER and LK_ETIMEOUT where the launcher, that of node 0 or the
 * others went away, or did not come, in the middle of it. */
LK_API LK_NODISCARD lk_status lk_comm_rebuild(lk_comm **out, lk_comm *failed,
                                              const lk_comm_options *options);

/* The arenas of `failed` become those of `comm`, which lk_comm_rebuild() made of it and which has
 * none yet, with all that is in them and where they are: nothing is copied.  On several hosts each
 * keeps its own, which may have come to different places when the group failed.  Every rank of
 * `comm` calls it.  LK_EINVAL where that is not so. */
LK_API LK_NODISCARD lk_status lk_comm_take_arenas(lk_comm *comm, lk_comm *failed);

/* Whether what ended the group is that a rank was lost: it died, left, or did not come in time; and
 * not that one has given up, with an error of its own, that others would not escape. */
LK_API bool lk_comm_has_lost(const lk_comm *comm);

/* ---- Groups ------------------------------------------------------------------------------ */

#define LK_NO_COLOR UINT32_MAX

/* Collective.  Ranks that give the same color form a new communicator, ordered by key, then by
 * their rank here.  With LK_NO_COLOR a rank is in none, and *out is NULL. */
LK_API LK_NODISCARD lk_status lk_comm_split(lk_comm **out, lk_comm *comm, uint32_t color,
                                            uint32_t key);

/* Collective over all of `comm`, all with the same list: a communicator of those `count` ranks,
 * in the order of the list.  On other ranks *out is NULL. */
LK_API LK_NODISCARD lk_status lk_comm_subset(lk_comm **out, lk_comm *comm, const uint32_t *ranks,
                                             uint32_t count);

/* Collective.  Ranks in rows of `columns`, one row after the other: this rank's row, and its
 * column.  rows * columns is the size. */
LK_API LK_NODISCARD lk_status lk_comm_mesh(lk_comm **row, lk_comm **column, lk_comm *comm,
                                           uint32_t rows, uint32_t columns);

/* ---- Shared memory ----------------------------------------------------------------------- */

/* Collective.  Creates `bytes` of zeroed memory that all ranks see; every page is really there on
 * return (lack of memory is LK_ENOMEM here, not a signal later).  All ranks give the same name
 * and size.  The arena is unmapped by lk_comm_free() at the latest.  Where ranks run on several
 * NUMA nodes, equal parts of it, in order of rank, lie on the nodes of the ranks. */
LK_API LK_NODISCARD lk_status lk_comm_arena(lk_arena **out, lk_comm *comm, const char *name,
                                            size_t bytes);
/* Collective.  Piece r of what begins at `offset` (bytes[r] bytes, one piece behind the other) was
 * written by rank r; on return every host's arena has all of them.  On one host that is a barrier.
 * All ranks give the same list. */
LK_API LK_NODISCARD lk_status lk_arena_mirror(lk_comm *comm, lk_arena *arena, size_t offset,
                                              const size_t *bytes);

LK_API void *lk_arena_data(const lk_arena *arena); /* this rank's mapping; 64-byte aligned */
LK_API size_t lk_arena_bytes(const lk_arena *arena);

/* ---- Collectives that move bytes --------------------------------------------------------- */

/* Nobody leaves before everybody has come. */
LK_API LK_NODISCARD lk_status lk_barrier(lk_comm *comm);

/* Copies root's `bytes` bytes at `data` to every rank's. */
LK_API LK_NODISCARD lk_status lk_broadcast(lk_comm *comm, void *data, size_t bytes, uint32_t root);

/* Every rank's `bytes` bytes, in order of rank, into recv (size * bytes) on every rank.
 * In place: send == recv + rank * bytes. */
LK_API LK_NODISCARD lk_status lk_all_gather(lk_comm *comm, const void *send, void *recv,
                                            size_t bytes);

/* The same with bytes[r] bytes from rank r; all ranks give the same list.
 * In place: send is where this rank's part of recv is. */
LK_API LK_NODISCARD lk_status lk_all_gather_v(lk_comm *comm, const void *send, void *recv,
                                              const size_t *bytes);

/* Every rank's `bytes` bytes, in order of rank, into root's recv; elsewhere recv is not looked at.
 * In place: as lk_all_gather(), on root. */
LK_API LK_NODISCARD lk_status lk_gather(lk_comm *comm, const void *send, void *recv, size_t bytes,
                                        uint32_t root);

/* Part r of root's send (size * bytes) into rank r's recv; elsewhere send is not looked at.
 * In place, on root: recv == send + root * bytes. */
LK_API LK_NODISCARD lk_status lk_scatter(lk_comm *comm, const void *send, void *recv, size_t bytes,
                                         uint32_t root);

/* Part r of every rank's send goes to rank r, which has the parts in order of rank in recv; a
 * part is `bytes` bytes.  In place: send == recv. */
LK_API LK_NODISCARD lk_status lk_all_to_all(lk_comm *comm, const void *send, void *recv,
                                            size_t bytes);

/* The same with send_bytes[r] bytes to rank r and recv_bytes[r] from it, one part behind the
 * other.  Two ranks that do not mean the same number are told so.  In place: send == recv, and
 * both lists are the same. */
LK_API LK_NODISCARD lk_status lk_all_to_all_v(lk_comm *comm, const void *send,
                                              const size_t *send_bytes, void *recv,
                                              const size_t *recv_bytes);

/* A message between two ranks.  lk_send() returns when the receiver has all of it; messages from
 * one rank to another arrive in order, and both say the same number of bytes.  Two ranks that
 * send to each other must start one of the two calls instead of waiting in both. */
LK_API LK_NODISCARD lk_status lk_send(lk_comm *comm, const void *send, size_t bytes, uint32_t to);
LK_API LK_NODISCARD lk_status lk_recv(lk_comm *comm, void *recv, size_t bytes, uint32_t from);

/* ---- Collectives that reduce ------------------------------------------------------------- */

/* All reductions are elementwise, along the canonical tree over ranks, ((r0 op r1) op (r2 op r3))
 * ...; so the bits do not depend on sizes, on where buffers lie or on timing.  What the operations
 * mean for each type is said beside lk_reduce_op.  Buffers are aligned as their type. */

/* The reduction of all ranks' `send` into every rank's `recv`.  In place: send == recv. */
LK_API LK_NODISCARD lk_status lk_all_reduce(lk_comm *comm, const void *send, void *recv,
                                            size_t count, lk_dtype dtype, lk_reduce_op op);

/* The same into root's recv alone; elsewhere recv is not looked at. */
LK_API LK_NODISCARD lk_status lk_reduce(lk_comm *comm, const void *send, void *recv, size_t count,
                                        lk_dtype dtype, lk_reduce_op op, uint32_t root);

/* The reduction of all ranks' send (size * count elements), of which rank r gets part r.
 * In place: recv == send + rank * count elements. */
LK_API LK_NODISCARD lk_status lk_reduce_scatter(lk_comm *comm, const void *send, void *recv,
                                                size_t count, lk_dtype dtype, lk_reduce_op op);

/* The same with counts[r] elements for rank r; all ranks give the same list. */
LK_API LK_NODISCARD lk_status lk_reduce_scatter_v(lk_comm *comm, const void *send, void *recv,
                                                  const size_t *counts, lk_dtype dtype,
                                                  lk_reduce_op op);

/* One tensor of many. */
typedef struct {
    const void *send;
    void       *recv;
    size_t      count;
    lk_dtype    dtype;
} lk_reduce_part;

/* lk_all_reduce() of every part, with the bits of separate calls, in fewer: neighbours of the same
 * type travel together while they are small.  Which do is decided by the list alone. */
LK_API LK_NODISCARD lk_status lk_all_reduce_many(lk_comm *comm, const lk_reduce_part *parts,
                                                 size_t part_count, lk_reduce_op op);

/* ---- Algorithms over several hosts ------------------------------------------------------- */

/* Collective.  Measures the constants by which algorithms are chosen from here on, between rank 0
 * and a rank on another host; rank 0 writes them to the file `path`, unless that is NULL.
 * LK_EINVAL where all ranks are on one host. */
LK_API LK_NODISCARD lk_status lk_comm_tune(lk_comm *comm, const char *path);

/* Where the constants come from, in words; only rank 0 knows of files. */
LK_API const char *lk_comm_tuning(const lk_comm *comm);

/* From here on as if opened with these options.algorithms; NULL = none.  All ranks alike.
 * LK_EINVAL, with those that there are, where these ranks cannot carry one out. */
LK_API LK_NODISCARD lk_status lk_comm_set_algorithms(lk_comm *comm, const char *algorithms);

typedef struct {
    const char *name;    /* "direct", "ring" ... */
    bool        exact;   /* the bits of the canonical tree; else only taken when asked for */
    bool        chosen;
    double      seconds; /* that it takes, by the constants; 0 = not known */
} lk_algorithm;

/* The algorithms of an operation ("all_reduce") on `bytes` bytes of FP32 a rank (of all parts
 * together where data is in parts).  *count is how many there are, 0 where all ranks are on one
 * host without MPI; the first `capacity` of them are in `out`. */
LK_API LK_NODISCARD lk_status lk_comm_explain(const lk_comm *comm, const char *operation,
                                              size_t bytes, lk_algorithm *out, uint32_t capacity,
                                              uint32_t *count);

/* ---- Asynchronous ------------------------------------------------------------------------ */

/* As the calls above, but they return at once; the request is completed by lk_request_wait() and
 * its like.  All ranks start an operation where they start or call it; requests complete in any
 * order.  Lists of sizes are copied, buffers borrowed. */
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

/* Moves a request forward without waiting; *done tells whether it is complete. */
LK_API LK_NODISCARD lk_status lk_request_test(lk_request *request, bool *done);

/* Waits for completion; the communicator's deadline ends the group. */
LK_API LK_NODISCARD lk_status lk_request_wait(lk_request *request);

/* Waits up to `timeout_ms`.  LK_ETIMEOUT is no failure of the group: the request goes on, and can
 * be waited for again. */
LK_API LK_NODISCARD lk_status lk_request_wait_for(lk_request *request, uint32_t timeout_ms);

/* Every request is freed by its owner.  One that is not complete: those that the others do not
 * need this rank for any more (tree_reduce, messages of a slot's size) leave their results unset;
 * any other ends the group with LK_EPEER. */
LK_API void lk_request_free(lk_request *request);

/* ---- The central operation --------------------------------------------------------------- */

/* A node of the canonical balanced tree over `leaves` virtual workers that this rank holds: the
 * sum over [first, first + count).  `data` points into an arena: `elements` FP32 values. */
typedef struct {
    uint32_t     first, count;
    const float *data;
} lk_tree_node;

/* Elements [first, first + count) are summed by rank `owner`.  On several hosts they are wanted by
 * every host whose number modulo the operation's `shards` is `shard`, or that `wanted` says, and
 * summed there by the rank whose local rank is `owner` modulo the local size. */
typedef struct {
    size_t   first, count;
    uint32_t owner, shard;
} lk_slice;

typedef struct {
    uint32_t            leaves;     /* V */
    size_t              elements;   /* in each node's data */
    const lk_tree_node *nodes;      /* those that I hold, in ascending order of `first` */
    uint32_t            node_count; /* may be 0; at most LK_TREE_NODES_MAX */
    const lk_slice     *slices;     /* the same on every rank, ascending, disjoint */
    size_t              slice_count;
    uint32_t            shards;     /* 0 or 1: every host wants every slice; at most the hosts */
    const uint8_t      *wanted;     /* [hosts][shards], the same on every rank: which host wants
                                     * which shard, of any number (one host alone wants all);
                                     * NULL: see lk_slice */
    float              *out;        /* `elements` wide; only my slices are written.  May be the
                                     * data of a node that I hold (in place) */
    bool                packed;     /* out has my slices alone, one behind the other (those that my
                                     * host wants) */
    lk_dtype            rounded;    /* LK_BF16 or LK_F16: every node of the tree, leaves too, is
                                     * rounded to it, and travels between hosts in its 2 bytes; the
                                     * bits stay those of any ranks and hosts.  LK_I8 or LK_I4: the
                                     * same in blocks of 256 elements from the first on, of which
                                     * slices cut none: integers of 8 or 4 bits and a factor that
                                     * they share, by which the largest is 127 or 7; a block with
                                     * what is not finite is NaN.  0: LK_F32 */
} lk_tree_op;

enum { LK_TREE_NODES_MAX = 16 };

/* Bytes in which so many elements travel that are rounded to `rounded` (0: LK_F32). */
LK_API size_t lk_rounded_bytes(lk_dtype rounded, size_t elements);

/* Starts the elementwise sum of all ranks' nodes in the order of the canonical tree,
 * ((g0+g1)+(g2+g3))+...; when it completes, my slices of `out` hold the sum.  Direct algorithm:
 * each owner reads every node of its slice once and writes the result once.  The arrays of
 * `op` are borrowed until completion, and other ranks may read my nodes until every
 * rank has completed (a later lk_barrier() tells). */
LK_API LK_NODISCARD lk_status lk_tree_reduce_start(lk_request **out, lk_comm *comm,
                                                   const lk_tree_op *op);
LK_API LK_NODISCARD lk_status lk_tree_reduce(lk_comm *comm, const lk_tree_op *op);

#ifdef __cplusplus
}
#endif
#endif /* LK_COMM_H */

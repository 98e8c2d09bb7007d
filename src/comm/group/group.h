/* comm/group/group.h -- a rank's own state, and the primitives of all collectives.
 *
 * A rank has one lki_self for all its communicators, and an lk_comm for each of them.  The memory
 * that ranks share is in comm/board.h.  All waiting on shared memory is done by lki_await().
 */
#ifndef LKI_COMM_GROUP_GROUP_H
#define LKI_COMM_GROUP_GROUP_H

#include <pthread.h>

#include "base/file.h"
#include "base/status.h"
#include "base/trace.h"
#include "comm/algorithm/cost.h"
#include "comm/board.h"
#include "comm/packet.h"
#include "comm/worker.h"
#include "device/reduce.h"

/* ---- State ------------------------------------------------------------------------------- */

typedef struct lki_mapping {
    struct lki_mapping *next;
    void               *data;
    size_t              bytes;
} lki_mapping;

/* The state that the ranks of one process share.  The last rank that leaves unmaps the memory. */
typedef struct {
    _Atomic uint32_t users;
    bool             threads;  /* ranks are threads of this process */
    lki_board       *board;
    pthread_mutex_t  lock;     /* protects `mappings`, to which the first rank of every new
                                * communicator adds */
    lki_mapping     *mappings; /* mappings of the arenas */
    struct lki_thread_rebuild *rebuild; /* threads: decides which ranks survive; NULL: none */
} lki_group;

/* The state that the communicators of one rank share. */
typedef struct {
    lki_group  *group;
    uint32_t    rank;       /* world rank, and index of the rank's record */
    uint32_t    seated;     /* number of ranks of this host, in the group or not */
    int         socket;     /* socket to the launcher; -1 = no launcher */
    pid_t       process;    /* a forked child has another one */
    const volatile sig_atomic_t *asked; /* not 0: a signal has asked this rank to stop; or NULL */
    bool        told;       /* the launcher has been informed of the group's failure */
    bool        admits;     /* this rank admits the ranks that wait to enter the next group */
    int        *pidfds;     /* pidfds of this host's ranks, -1 = none; NULL if ranks are threads */
    struct lki_wire *wire;  /* messages to the other hosts; NULL on one host */
    const struct lki_span_ops *span_ops; /* functions of communicators over hosts; NULL on one
                                          * host */
    struct lki_rooms *rooms; /* scratch memory for elements that arrive from other hosts */
    struct lki_engine *engine; /* MPI, if MPI has started the job; or NULL */
    lki_tuning  tuning;     /* the choice of algorithms between hosts */
    double      granted;    /* cores whose time the container has (lk_allowance); 0 = no limit */
    bool        crowded;    /* emulated hosts: ranks of other hosts share these cores */
    bool        secure;     /* the job has a key for connections between hosts */
    unsigned char key[LKI_KEY_BYTES];
    lk_request *requests;   /* all live requests, in order of start */
    uint32_t    pending;    /* number of incomplete requests */

    uint64_t    memory_limit; /* memory limit for all ranks of this host together; 0 = none */
    uint64_t    arena_bytes;  /* total size of the arenas created while the limit is set */
    uint64_t    one_bytes;    /* part of the limit that is reserved for one rank */
    bool        is_one;       /* that part is reserved for this rank */
    struct lki_flight *flight; /* the flight recorder (comm/flight.h), or NULL */
    lki_track         *track;  /* the trace track (comm/trace.h), or NULL */
} lki_self;

struct lk_arena {
    struct lk_arena *next;
    void            *data;
    size_t           bytes;
    uint32_t         index; /* number of the arena in order of creation, equal on every rank */
    int              fd;    /* kept open for ranks that enter later; -1 = none */
    bool             seats; /* the arena holds the seats of a split communicator; a rebuild does not
                             * move it */
    char             name[LKI_ARENA_NAME_BYTES];
};

/* The message counters for one peer: pieces and messages sent to it, pieces and messages
 * received. */
typedef struct {
    uint64_t sent, sends, taken, receives;
} lki_flow;

struct lk_comm {
    lki_board       *board;
    lki_rank        *me;
    lki_seat        *seat;        /* this rank's seat */
    unsigned char   *seats;       /* seats of all ranks, seat_bytes each */
    size_t           seat_bytes;
    lki_self        *self;
    struct lki_span *span;        /* NULL: all ranks are on this host (group/span.h) */
    lk_request      *caller;      /* the request of which this communicator's operations are parts
                                   * (span/relay.c); or NULL */
    lk_comm         *parent;      /* NULL: this is the first communicator */
    uint32_t         users;       /* number of references: one of the owner, until it frees the
                                   * communicator, and one per child */
    uint32_t         level;       /* 0 = the first communicator, 1 = communicators created from it,
                                   * and so on */
    uint64_t         key;         /* differs from the keys of all other communicators of the
                                   * ranks */
    uint64_t         group;       /* description of the group for lki_print_text() */
    uint64_t         flight_group; /* number in the flight recorder; 0 = none yet */
    uint32_t         rank, size;
    uint32_t        *world;       /* world ranks, by rank */
    uint32_t         timeout_ms, opened_timeout_ms;
    uint32_t         spins;       /* number of polls before yielding; 0 if ranks must share cores */
    uint64_t         seq;         /* number of the next operation */
    uint64_t         rounds[LKI_IN_FLIGHT]; /* number of rounds of completed operations, as in
                                             * lki_body */
    lki_flow        *flows;       /* counters for every peer */
    uint64_t         chunks;      /* number of staging buffers used so far, equal on every rank */
    size_t           stage_bytes; /* used bytes of a staging buffer: LKI_STAGE_BYTES, or less in
                                   * tests */
    uint32_t         ring;        /* number of slots used, a power of two: LKI_IN_FLIGHT, or less in
                                   * tests */
    uint64_t         room;        /* all ranks have retired the operations with lower numbers */
    uint64_t         done;        /* bit i: this rank has completed operation number retired + i */
    bool             unrung;      /* data was published since the last lki_ring() */
    lk_arena        *arenas;
    uint32_t         arena_count;
    lki_tree_input  *inputs;      /* 2 * size * LK_TREE_NODES_MAX entries: for all nodes, and for
                                   * the nodes of one slice */
    const void     **pointers;    /* 2 * size entries: for the buffers of all ranks, and for blocks
                                   * of these buffers */
    void           **targets;     /* `size` entries */
    unsigned char   *payloads;    /* payloads of all ranks, lki_payload_most() bytes each */
};

static inline lki_rank *lki_rank_of(const lk_comm *comm, uint32_t rank)
{
    return &comm->board->ranks[comm->world[rank]];
}

static inline lki_seat *lki_seat_of(const lk_comm *comm, uint32_t rank)
{
    return (lki_seat *)(void *)(comm->seats + rank * comm->seat_bytes);
}

/* Returns the counter at `offset` of a rank's seat, loaded with acquire order. */
static inline uint64_t lki_counter(const lk_comm *comm, uint32_t rank, size_t offset)
{
    const unsigned char *seat = comm->seats + rank * comm->seat_bytes;
    return atomic_load_explicit((const _Atomic uint64_t *)(const void *)(seat + offset),
                                memory_order_acquire);
}

/* The condition that ends a wait: the counters at `offset` in the seats of ranks [first, end) have
 * reached `target`.  The struct is small enough to be passed in registers. */
typedef struct {
    uint64_t target;
    uint32_t offset;
    uint16_t first, end;
} lki_goal;

_Static_assert(LKI_RANKS_MAX <= UINT16_MAX, "ranks of a goal");

static inline lki_goal lki_goal_all(const lk_comm *comm, size_t offset, uint64_t target)
{
    return (lki_goal){ .target = target,
                       .offset = (uint32_t)offset,
                       .first  = 0,
                       .end    = (uint16_t)comm->size };
}

/* Creates a communicator with `size` seats at `seats`, which is NULL if the ranks are on several
 * hosts.  `rank` is this rank's number.  The caller fills in world, key and group (comm.c). */
LK_NODISCARD lk_status lki_comm_new(lk_comm **out, lki_self *self, uint32_t rank, uint32_t size,
                                    void *seats);
void lki_comm_delete(lk_comm *comm);

/* Frees all communicators of a rank without leaving the group, so that the rank can ask for the
 * next group.  `comm` is the last of these communicators.  The socket belongs to the caller
 * again. */
void lki_comm_give_up(lk_comm *comm);

/* Returns true for the rank's first communicator, which has no parent. */
bool lki_comm_is_first(const lk_comm *comm);

/* Opens the ranks of one of several hosts as threads, like lk_comm_open_threads().  All hosts share
 * `rebuild`, which is NULL if the ranks do not continue after a failure. */
LK_NODISCARD lk_status lki_comm_open_seated(lk_comm **out, lki_roster roster,
                                            struct lki_thread_rebuild *rebuild,
                                            const lk_comm_options     *options);

/* Opens the ranks of a host as threads.  If there is only this host, creates a rebuild for the
 * ranks. */
LK_NODISCARD lk_status lki_comm_open_roster(lk_comm **out, lki_roster roster,
                                            const lk_comm_options *options);

/* ---- Waiting (wait.c) -------------------------------------------------------------------- */

/* Waits until the goal is reached.  Fails the group when the communicator's timeout expires. */
LK_NODISCARD lk_status lki_await(lk_comm *comm, lki_goal goal);

/* Waits until the goal is reached or `ms` milliseconds have passed.  *late becomes 0 if the goal is
 * reached.  Otherwise nothing fails, and *late becomes the time waited in ms, at least 1. */
LK_NODISCARD lk_status lki_await_for(lk_comm *comm, lki_goal goal, int64_t ms, int64_t *late);

/* Returns true if the goal is reached.  Does not wait. */
bool lki_arrived(const lk_comm *comm, lki_goal goal);

/* Wakes the ranks that may be asleep while they wait for data of this rank. */
void lki_ring(lk_comm *comm);

/* Sleeps until this rank's bell differs from `seen`, or for `ms` milliseconds. */
void lki_sleep(lk_comm *comm, uint32_t seen, int64_t ms);

/* ---- Operations (slot.h) and requests (request.c) ---------------------------------------- */

typedef struct {
    uint64_t  seq;
    uint32_t  slot; /* index in the ring of slots */
    lki_print print;
    uint64_t  flight; /* number of the operation's flight recorder entry; 0 = none */
} lki_op;

/* Exchanges the outcomes of all ranks.  Returns LK_OK if all ranks succeeded.  Otherwise returns,
 * on every rank, the error of the lowest rank that failed.  `mine` is the status of the last call
 * on this thread. */
LK_NODISCARD lk_status lki_agree(lk_comm *comm, lk_status mine);

/* Advances every pending request of this rank.  Returns true if any request advanced
 * (request.c). */
bool lki_progress(lk_comm *comm);

/* Fails a group over several hosts if a request of this communicator is incomplete, because other
 * ranks may wait for messages of the request. */
void lki_requests_abandon(lk_comm *comm);

/* Detaches the open requests from a communicator that is being freed. */
void lki_requests_orphan(lk_comm *comm);

/* ---- Failing together (failure.c) -------------------------------------------------------- */

static inline bool lki_failed(const lk_comm *comm)
{
    return atomic_load_explicit(&comm->board->failed, memory_order_acquire) != 0;
}

/* Reports the group's failure to the other hosts, over the wire and through the launcher. */
void lki_failure_spread(const lk_comm *comm);

lk_status lki_fail_peer_gone(lk_comm *comm, uint32_t rank);
lk_status lki_fail_peer_left(lk_comm *comm, uint32_t rank);
lk_status lki_fail_timeout(lk_comm *comm, lki_goal goal, int64_t waited_ms);

/* Returns true if a rank for which the goal still waits is stopped (SIGSTOP, a debugger). */
bool lki_waits_for_stopped(const lk_comm *comm, lki_goal goal);
lk_status lki_fail_mismatch(lk_comm *comm, const lki_op *op, uint32_t rank);

/* Returns the state of the process of another rank on this host: "alive", "stopped" or "gone". */
const char *lki_liveness(const lki_self *self, const lki_rank_view *view);

/* ---- Peers (peers.c) --------------------------------------------------------------------- */

LK_NODISCARD lk_status lki_peers_open(lk_comm *comm);
void lki_peers_close(lki_self *self);

/* Returns true if the launcher, or a signal to this rank, has asked it to stop. */
bool lki_is_asked_to_stop(const lki_self *self);

/* Fails the group if a peer's process has ended, or if a rank for which the goal waits has left. */
LK_NODISCARD lk_status lki_peers_check(lk_comm *comm, lki_goal goal);

/* ---- Memory (arena.c) -------------------------------------------------------------------- */

lki_place lki_place_of(const lk_comm *comm, const void *data, size_t bytes);
void     *lki_place_data(const lk_comm *comm, lki_place place);
void      lki_arenas_close(lk_comm *comm);

/* ---- Limits (limit.c) -------------------------------------------------------------------- */

/* Adds the size of a new arena to the memory that counts towards the limit, before the arena is
 * created.  Called on every rank.  Returns LK_ENOMEM if the arena would exceed the limit. */
LK_NODISCARD lk_status lki_limit_take(lk_comm *comm, const char *name, size_t bytes);

#endif

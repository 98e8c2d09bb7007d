/* comm/group.h -- the control memory that the ranks share, and the few moves all collectives
 * are made of.
 *
 * Every collective takes the next sequence number and publishes a slot: a fingerprint, and a few
 * words of whatever the operation needs to tell (the smallest payloads, where large ones are).
 * The slot's own sequence word is the flag, so that flag and words travel in one cache line.
 * Payloads of up to LKI_PAYLOAD_BYTES follow in cells, lines with a flag each, so that nobody asks
 * for a line only when another has come; what is not in such a hurry has a body of up to
 * LKI_BODY_BYTES.  "Everybody has published" is the only synchronisation most operations
 * need; those that also touch each other's memory go on in rounds, and a rank counts the rounds
 * that it has finished beside the operation's slot, so that operations which are open at the same
 * time do not disturb each other.
 *
 * A rank has one record, the same for all groups it belongs to (where it is, what ended it, the
 * word that it sleeps on), and in each group a seat with everything that operations need.  The
 * seats of the first group lie behind the records, those of a later one in an arena.  A job on
 * several hosts has such memory on each of them: records of all ranks, seats of those that are
 * there.
 *
 * Every word that somebody waits for is an ascending 64-bit counter in a rank's seat, so one
 * function, lki_await(), does all the waiting.
 *
 * A slot is used again LKI_IN_FLIGHT operations later, when all ranks have retired the old one
 * (have read everything they will ever read of it).  Requests complete in any order; `retired`
 * counts the operations below which all are done.
 */
#ifndef LKI_COMM_GROUP_H
#define LKI_COMM_GROUP_H

#include <errno.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>

#include "base/status.h"
#include "base/trace.h"
#include "comm/control.h"
#include "comm/algorithm/cost.h"
#include "device/reduce.h"

enum {
    LKI_IN_FLIGHT   = 64,    /* operations that may be open at once */
    LKI_LINE        = 64,
    LKI_WORD_BYTES  = 32,    /* payload that fits beside the flag */
    LKI_BODY_BYTES  = 1080,  /* what an operation can tell: LK_TREE_NODES_MAX nodes */
    LKI_CELL_BYTES  = 56,    /* payload beside the flag of a cell */
    LKI_CELLS       = 36,
    LKI_PAYLOAD_BYTES = 2048, /* that travels in slot and cells */
    LKI_STAGES      = 3,     /* staging buffers a rank: see coll/all_reduce.c */
    LKI_STAGE_BYTES = 65536, /* three of them from each of two ranks fit a 1 MiB cache */
};

/* ---- What ranks share -------------------------------------------------------------------- */

typedef enum {
    LKI_OP_NONE,
    LKI_OP_BARRIER,
    LKI_OP_BROADCAST,
    LKI_OP_ALL_GATHER,
    LKI_OP_ALL_REDUCE,
    LKI_OP_TREE_REDUCE,
    LKI_OP_ARENA,
    LKI_OP_AGREE,
    LKI_OP_REDUCE,
    LKI_OP_REDUCE_SCATTER,
    LKI_OP_REDUCE_SCATTER_V,
    LKI_OP_ALL_GATHER_V,
    LKI_OP_GATHER,
    LKI_OP_SCATTER,
    LKI_OP_ALL_TO_ALL,
    LKI_OP_ALL_TO_ALL_V,
    LKI_OP_SEND,
    LKI_OP_RECV,
    LKI_OP_SPLIT,
    LKI_OP_ADASUM,
    LKI_OP_MIRROR,
    LKI_OP_MESSAGE, /* what sender and receiver call a message between hosts */
} lki_op_kind;

/* What ranks must agree on before they touch each other's memory. */
typedef struct lki_print {
    uint64_t what;  /* operation, dtype, kind of reduction, root: lki_print_make() */
    uint64_t count; /* elements or bytes, as the operation counts */
    uint64_t hash;  /* of the rest: counts of all ranks, factors, slices, names */
} lki_print;

typedef struct {
    alignas(LKI_LINE) _Atomic uint64_t seq; /* 1 + sequence number of the operation in here */
    _Atomic uint64_t what, count, hash;
    unsigned char    word[LKI_WORD_BYTES];
} lki_slot;

typedef struct {
    alignas(LKI_LINE) unsigned char bytes[LKI_CELL_BYTES];
    _Atomic uint64_t seq; /* as in the slot: `bytes` are that operation's */
} lki_cell;

_Static_assert(LKI_WORD_BYTES + LKI_CELLS * LKI_CELL_BYTES >= LKI_PAYLOAD_BYTES, "cells hold it");

typedef struct {
    alignas(LKI_LINE) unsigned char bytes[LKI_BODY_BYTES];
    _Atomic uint64_t rounds; /* finished, of all operations that ever used this slot */
} lki_body;

/* Where something lies, in words that every rank understands. */
typedef struct {
    uint32_t arena; /* 1 + its index; 0 = not in an arena */
    uint32_t level; /* of the communicator that the arena belongs to: 0 = the first */
    uint64_t offset;
} lki_place;

/* What a rank keeps for one peer: the message on its way there, and how much it has taken of
 * what came from there.  Two pieces of a message follow (coll/send_recv.c). */
typedef struct {
    alignas(LKI_LINE) _Atomic uint64_t sent, taken; /* pieces of all messages */
    _Atomic uint64_t what, count;
    lki_place        place;
} lki_mail;

/* A rank's part in a group; the mail to and from each rank of the group follows. */
typedef struct {
    alignas(LKI_LINE) _Atomic uint64_t joined;
    _Atomic uint32_t left;

    alignas(LKI_LINE) _Atomic uint64_t retired;

    lki_slot slots[LKI_IN_FLIGHT];
    lki_body bodies[LKI_IN_FLIGHT];
    lki_cell cells[LKI_IN_FLIGHT][LKI_CELLS];

    alignas(4096) unsigned char stages[LKI_STAGES][LKI_STAGE_BYTES];
} lki_seat;

/* A rank's record: each line has one writer, save the bell. */
typedef struct {
    alignas(LKI_LINE) _Atomic uint32_t bell; /* the word it sleeps on */
    _Atomic uint32_t sleeping;

    alignas(LKI_LINE) _Atomic uint64_t started; /* the last operation: 1 + its number ... */
    _Atomic uint64_t what, count, group;        /* ... and the rest: lki_print_text() */
    _Atomic uint64_t step;
    _Atomic uint32_t noted;

    alignas(LKI_LINE) _Atomic uint64_t phase[LKI_PHASE_BYTES / 8];

    alignas(LKI_LINE) _Atomic uint32_t state;
    _Atomic int32_t  pid, exit_code, signal;
    _Atomic uint32_t erred; /* 0, then 1 for ever: the four below are set */
    uint32_t         culprit; /* the rank that it is about */
    lk_status        status;  /* what happened to this rank */
    lk_status        verdict; /* what that means for the others */
    char             message[LKI_MESSAGE_BYTES];

    /* In a job on several hosts: whose name the launcher writes before any worker starts, and
     * where the rank listens; by itself, or by the launcher where it is on another host. */
    alignas(LKI_LINE) _Atomic uint32_t reachable; /* 0, then 1 for ever: the address is set */
    char             address[LKI_ADDRESS_BYTES];
    char             host[LKI_HOST_BYTES];
    uint32_t         node; /* the number of that host */
    uint32_t         seat; /* 1 + its place among those of this host that are in the group; or 0 */
    uint32_t         member; /* 1 = it is in the group, on whatever host; see comm/rebuild.c */
    uint32_t         fresh;  /* 1 = it was not in the one before: it has entered */
    uint64_t         since;  /* the epoch in which it entered; 0 = from the beginning */
    _Atomic uint32_t home; /* 1 + the NUMA node where it runs; 0 = not known, or there is one */
    _Atomic uint64_t lost; /* 1 + the last epoch in which it was; 0 = never.  And how: */
    char             loss[LKI_LOSS_BYTES];
} lki_rank;

typedef struct {
    uint64_t magic, bytes;
    uint32_t size, rank_bytes; /* of the job; of a record and a seat */
    uint32_t first, seated;    /* the ranks that are on this host ... */
    uint32_t members;          /* ... and how many of them have seats: see comm/rebuild.c */

    lki_job_facts job; /* in a job on several hosts; before any worker starts */

    alignas(LKI_LINE) _Atomic uint32_t failed; /* 0, or 1 + the record with the verdict for all */
    _Atomic uint32_t stop;   /* all are asked to save and leave */
    _Atomic uint32_t heeded; /* a rank has looked at that, so they will */
    _Atomic uint32_t awaited; /* somebody waits for the group to let him in */
    _Atomic uint32_t leaving; /* this host's ranks shall leave the others */

    alignas(LKI_LINE) _Atomic uint32_t sleepers; /* how many ranks may be asleep */

    alignas(LKI_LINE) lki_rank ranks[]; /* `size` ranks, then one for the launcher */
} lki_board;

/* The longest vector that every rank of a group reads whole from all others: more takes longer than
 * a second synchronisation. */
static inline size_t lki_payload_most(uint32_t size)
{
    return size <= 2 ? LKI_PAYLOAD_BYTES : LKI_PAYLOAD_BYTES / 2;
}

/* Bytes of a seat with its mail in a group of `size`, and of one piece of a message there. */
size_t lki_seat_bytes(uint32_t size);
size_t lki_piece_bytes(uint32_t size);

/* Bytes of the control memory: board, records, seats of `members` of this host's ranks. */
size_t lki_board_bytes(lki_roster roster, uint32_t members);

/* Of zeroed memory.  `out` is NULL, or tells which ranks of the job are not in the group. */
void   lki_board_init(lki_board *board, lki_roster roster, const bool *out);
bool   lki_board_valid(const lki_board *board, size_t bytes);

/* What a rank has noted of where it is, from one epoch to the next. */
void lki_board_carry_place(lki_rank *to, const lki_rank *from);

/* How many ranks of the job are in the group, on all hosts. */
uint32_t lki_board_group_size(const lki_board *board);
void  *lki_board_seats(lki_board *board);

/* Of a rank of this host that has one. */
lki_seat *lki_board_seat(lki_board *board, uint32_t rank);

/* ---- What a rank keeps for itself -------------------------------------------------------- */

typedef struct lki_mapping {
    struct lki_mapping *next;
    void               *data;
    size_t              bytes;
} lki_mapping;

/* What the ranks of one process share; the last to leave unmaps it. */
typedef struct {
    _Atomic uint32_t users;
    bool             threads;  /* ranks are threads of this process */
    lki_board       *board;
    pthread_mutex_t  lock;     /* of `mappings`: the first rank of every group adds to it */
    lki_mapping     *mappings; /* of the arenas */
    struct lki_council *council; /* of threads: who goes on after a failure; or NULL */
} lki_group;

/* What the communicators of one rank share. */
typedef struct {
    lki_group  *group;
    uint32_t    rank;       /* in the job: the record */
    uint32_t    seated;     /* ranks of the job on this host, in the group or not */
    int         socket;     /* to the launcher; -1 without one */
    bool        told;       /* the launcher knows that the group has failed */
    bool        admits;     /* the next group shall have those who wait for it */
    int        *pidfds;     /* of the ranks of this host, -1 = none; NULL among threads */
    struct lki_wire *wire;  /* to the other hosts; NULL where there are none */
    struct lki_rooms *rooms; /* scratch for what comes from them */
    struct lki_engine *engine; /* MPI, where that has started the job; NULL */
    lki_tuning  tuning;     /* of the algorithms to them */
    bool        crowded;    /* ranks of other hosts are on these cores, too: emulated ones */
    bool        secure;     /* there is a key of the job, to them: */
    unsigned char key[LKI_KEY_BYTES];
    lk_request *requests;   /* all that live, in order of start */
    uint32_t    pending;    /* of them, those not complete */

    uint64_t    memory_limit; /* bytes that the ranks of this host may have; 0 = no limit */
    uint64_t    arena_bytes;  /* of arenas made under it */
    uint64_t    one_bytes;    /* of it, what one of them has beside its part: */
    bool        is_one;       /* this one */
    struct lki_flight *flight; /* what it writes down: comm/flight.h; NULL = nothing */
    lki_track         *track;  /* and what it spends its time on: comm/trace.h; likewise */
} lki_self;

enum { LKI_ARENA_NAME_BYTES = 52 };

struct lk_arena {
    struct lk_arena *next;
    void            *data;
    size_t           bytes;
    uint32_t         index; /* in order of creation: the same on every rank */
    int              fd;    /* kept for who enters later; -1 = none */
    bool             seats; /* of a group made by split: it stays with the one that was split */
    char             name[LKI_ARENA_NAME_BYTES];
};

/* Messages with one peer: pieces and messages sent, pieces and messages taken. */
typedef struct {
    uint64_t sent, sends, taken, receives;
} lki_flow;

struct lk_comm {
    lki_board       *board;
    lki_rank        *me;
    lki_seat        *seat;        /* mine */
    unsigned char   *seats;       /* of all ranks, seat_bytes each */
    size_t           seat_bytes;
    lki_self        *self;
    struct lki_span *span;        /* NULL: all ranks are on this host (span/span.h) */
    lk_request      *caller;      /* what is started here is a part of it (span/relay.c); NULL */
    lk_comm         *parent;      /* NULL: this is the first */
    uint32_t         users;       /* its owner, until it is freed, and its children */
    uint32_t         level;       /* 0 = the first, 1 = its children ... */
    uint64_t         key;         /* tells it from the other groups of its ranks */
    uint64_t         group;       /* for lki_print_text() */
    uint64_t         flight_group; /* what the flight recorder calls it; 0 = not yet */
    uint32_t         rank, size;
    uint32_t        *world;       /* of every rank: its rank in the job */
    uint32_t         timeout_ms, opened_timeout_ms;
    uint32_t         spins;       /* polls before yielding; 0 where ranks outnumber cores */
    uint64_t         seq;         /* of the next operation */
    uint64_t         rounds[LKI_IN_FLIGHT]; /* as in lki_body, of the operations completed */
    lki_flow        *flows;       /* to and from every peer */
    uint64_t         chunks;      /* staging buffers used so far: the same on every rank */
    uint64_t         room;        /* all ranks have retired what is below */
    uint64_t         done;        /* bit i: operation retired + i is complete here */
    bool             unrung;      /* something was published since the last lki_ring() */
    lk_arena        *arenas;
    uint32_t         arena_count;
    lki_tree_input  *inputs;      /* size * LK_TREE_NODES_MAX, twice: all nodes, one slice */
    const void     **pointers;    /* size, twice: buffers of all ranks, blocks of them */
    void           **targets;     /* size */
    unsigned char   *payloads;    /* of all ranks: lki_payload_most() each */
};

static inline lki_rank *lki_rank_of(const lk_comm *comm, uint32_t rank)
{
    return &comm->board->ranks[comm->world[rank]];
}

static inline lki_seat *lki_seat_of(const lk_comm *comm, uint32_t rank)
{
    return (lki_seat *)(void *)(comm->seats + rank * comm->seat_bytes);
}

/* The counter at `offset` of a rank's seat; what was written before it was raised is seen. */
static inline uint64_t lki_counter(const lk_comm *comm, uint32_t rank, size_t offset)
{
    const unsigned char *seat = comm->seats + rank * comm->seat_bytes;
    return atomic_load_explicit((const _Atomic uint64_t *)(const void *)(seat + offset),
                                memory_order_acquire);
}

/* What a wait is for: the counters at `offset` of ranks [first, end) reach `target`.  Small, so
 * that it is passed in registers. */
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

/* A communicator over `size` seats (NULL: over several hosts), of which `rank` is mine; world, key
 * and group are the caller's to fill in (comm.c). */
LK_NODISCARD lk_status lki_comm_new(lk_comm **out, lki_self *self, uint32_t rank, uint32_t size,
                                    void *seats);
void lki_comm_delete(lk_comm *comm);

/* Frees the communicators of a rank, of which this is the last, as if they had never been: it has
 * not left, and may ask for another group.  Its socket stays the caller's. */
void lki_comm_give_up(lk_comm *comm);

/* Whether it is no part of another one: what lk_join() gives. */
bool lki_comm_is_first(const lk_comm *comm);

/* The ranks of one host of several as threads; as lk_comm_open_threads().  `council`: of the ranks
 * of all hosts; NULL where they do not go on after a failure. */
LK_NODISCARD lk_status lki_comm_open_seated(lk_comm **out, lki_roster roster,
                                            struct lki_council *council,
                                            const lk_comm_options *options);

/* The same without a council, where there are other hosts; else with one of its own. */
LK_NODISCARD lk_status lki_comm_open_roster(lk_comm **out, lki_roster roster,
                                            const lk_comm_options *options);

/* ---- Waiting (wait.c) -------------------------------------------------------------------- */

/* Returns when the goal is reached.  The end of the communicator's timeout fails the group. */
LK_NODISCARD lk_status lki_await(lk_comm *comm, lki_goal goal);

/* The same, but to give up after `ms` fails nothing: LK_OK, and *late is how many ms that took (at
 * least 1; 0 where the goal is reached). */
LK_NODISCARD lk_status lki_await_for(lk_comm *comm, lki_goal goal, int64_t ms, int64_t *late);

/* Whether it is reached, without waiting. */
bool lki_arrived(const lk_comm *comm, lki_goal goal);

/* Wakes those who may sleep on what this rank has published. */
void lki_ring(lk_comm *comm);
void lki_wake_all(lki_board *board);

int64_t lki_now_ms(void);

/* Sleeps until this rank's bell is no longer `seen`, or for `ms`. */
void lki_sleep(lk_comm *comm, uint32_t seen, int64_t ms);

/* ---- Operations (slot.h) and requests (request.c) ---------------------------------------- */

typedef struct {
    uint64_t  seq;
    lki_print print;
    uint64_t  flight; /* its entry there; 0 = none */
} lki_op;

/* "all_reduce #12 (F32 sum, 100 elements)".  `group` is 0 for the first communicator, else
 * its size << 32 | its lowest rank, which the text then tells. */
void lki_print_text(char *out, size_t bytes, lki_print print, uint64_t seq, uint64_t group);

/* Bytes that a rank gives (or gets from a root); 0 where `count` does not say. */
uint64_t lki_print_bytes(lki_print print);

static inline lki_print lki_print_make(lki_op_kind kind, lk_dtype dtype, uint32_t root,
                                       uint64_t count)
{
    return (lki_print){
        .what  = (uint64_t)kind | (uint64_t)dtype << 8 | (uint64_t)root << 32,
        .count = count,
        .hash  = 0,
    };
}

static inline lki_print lki_print_reduce(lki_op_kind kind, lk_dtype dtype, lk_reduce_op op,
                                         uint32_t root, uint64_t count)
{
    lki_print print = lki_print_make(kind, dtype, root, count);

    print.what |= (uint64_t)op.kind << 16;
    if (op.kind == LK_REDUCE_PREMUL_SUM)
        memcpy(&print.hash, &op.factor, sizeof print.hash);
    return print;
}

/* Every rank tells its outcome: LK_OK where all succeeded, else the failure of the lowest rank
 * that failed, on all.  `mine` is the status of the call that just returned on this thread. */
LK_NODISCARD lk_status lki_agree(lk_comm *comm, lk_status mine);

/* Moves every pending request of this rank forward; whether any moved (request.c). */
bool lki_progress(lk_comm *comm);
void lki_requests_orphan(lk_comm *comm);

/* ---- Failing together (failure.c) -------------------------------------------------------- */

static inline bool lki_failed(const lk_comm *comm)
{
    return atomic_load_explicit(&comm->board->failed, memory_order_acquire) != 0;
}

/* Records the failure for the whole group, unless there is one, and wakes everybody.  Returns
 * what the group failed with, as this thread's error. */
lk_status lki_fail_group(lk_comm *comm, uint32_t culprit, lk_status verdict, const char *format,
                         ...) __attribute__((format(printf, 4, 5)));

/* The group's failure as this thread's error. */
lk_status lki_group_failure(const lk_comm *comm);

/* The board has failed, and the other hosts shall know: by the wire, and by the launcher. */
void lki_failure_spread(const lk_comm *comm);

/* The same for an observer: the verdict that all ranks are told. */
void lki_board_failure(const lki_board *board, lk_error *out);

/* The rank that the failure is about. */
uint32_t lki_board_culprit(const lki_board *board);

/* Makes `record` the group's verdict if there is none: about `culprit`, to whom `status` has
 * happened, which the others are told as `verdict`. */
void lki_board_condemn(lki_board *board, uint32_t record, uint32_t culprit, lk_status status,
                       lk_status verdict, const char *message);

lk_status lki_fail_peer_gone(lk_comm *comm, uint32_t rank);
lk_status lki_fail_peer_left(lk_comm *comm, uint32_t rank);
lk_status lki_fail_timeout(lk_comm *comm, lki_goal goal, int64_t waited_ms);

/* Whether a process that the goal still waits for is stopped (SIGSTOP, a debugger). */
bool lki_waits_for_stopped(const lk_comm *comm, lki_goal goal);
lk_status lki_fail_mismatch(lk_comm *comm, const lki_op *op, uint32_t rank);

void lki_board_view(const lki_board *board, uint32_t rank, lki_rank_view *out);

/* "rank 5 (pid 4711)", or "rank 5 (host b, pid 4711)" in a job on several hosts.  `more` goes on
 * before the bracket closes: ", stopped". */
void lki_board_who(char out[LKI_WHO_BYTES], const lki_board *board, uint32_t rank,
                   const char *more);

/* Where a message, or a part of it behind a semicolon, begins with "rank 5 " and the rank's host
 * has a name: says it the same way, as long as there is room. */
void lki_board_name_hosts(char message[LKI_MESSAGE_BYTES], const lki_board *board);

/* ---- Peers (peers.c) --------------------------------------------------------------------- */

LK_NODISCARD lk_status lki_peers_open(lk_comm *comm);
void lki_peers_close(lki_self *self);

/* Fails the group if the process of a peer is gone or a missing rank has left. */
LK_NODISCARD lk_status lki_peers_check(lk_comm *comm, lki_goal goal);

/* ---- Memory (arena.c) -------------------------------------------------------------------- */

lki_place lki_place_of(const lk_comm *comm, const void *data, size_t bytes);
void     *lki_place_data(const lk_comm *comm, lki_place place);
void      lki_arenas_close(lk_comm *comm);

/* ---- Between a worker and its launcher (packet.c) ---------------------------------------- */

typedef enum {
    LKI_PACKET_NONE,   /* nothing has come */
    LKI_PACKET_NUDGE,  /* there is news in the control memory */
    LKI_PACKET_NOTE,   /* a line for whoever watches the job */
    LKI_PACKET_ARENA,  /* with the descriptor of an arena */
    LKI_PACKET_ASK,    /* this rank wants the group made anew (comm/rebuild.c) ... */
    LKI_PACKET_ANSWER, /* ... and here it is, with a new control memory; or why not */
} lki_packet_kind;

/* What rank 0 of a group says about an arena. */
typedef struct {
    uint64_t bytes;
    uint64_t group;                       /* the communicator's key */
    uint64_t members[LKI_RANKS_MAX / 64]; /* a bit for each rank that it is passed on to */
    uint32_t index;
    char     name[LKI_ARENA_NAME_BYTES];
} lki_arena_message;

#define LKI_NO_EPOCH UINT64_MAX

typedef struct {
    uint64_t epoch; /* that is over; LKI_NO_EPOCH: this rank has been in none, and wants to enter */
    uint64_t number; /* unlike that of any other of this rank: the answer has it, too */
    uint32_t timeout_ms;
    uint32_t admits; /* who wants to enter may */
} lki_ask;

typedef struct {
    uint64_t  epoch; /* that begins; or that is over, with a failure */
    uint64_t  number;
    lk_status status;
    char      why[LKI_MESSAGE_BYTES];
} lki_answer;

typedef struct {
    uint64_t magic;
    uint32_t version, kind; /* lki_packet_kind */
    union {
        char              note[LKI_MESSAGE_BYTES];
        lki_arena_message arena;
        lki_ask           ask;
        lki_answer        answer;
    };
} lki_packet;

/* Never blocks.  A `fd` that is not -1 rides along. */
LK_NODISCARD lk_status lki_packet_send(int socket, lki_packet *packet, int fd);

/* Takes one packet.  *fd is -1 where none came along; *open is false when the other side has
 * closed. */
LK_NODISCARD lk_status lki_packet_receive(int socket, lki_packet *packet, int *fd, bool *open);

/* The same, but it stays there, until it is dropped. */
LK_NODISCARD lk_status lki_packet_look(int socket, lki_packet *packet, int *fd, bool *open);
void lki_packet_drop(int socket);

/* Tells the launcher of a job on several hosts that there is news in the control memory.  Lost
 * where it does not read: then it is about to end this process anyway. */
void lki_launcher_nudge(int socket);

/* Has the launcher tell whoever watches the job.  Nobody does where there is none. */
void lki_launcher_note(int socket, const char *text);

/* Opens a descriptor that another process of this user has open, by /proc; LK_EUNSUPPORTED where
 * that is not allowed. */
LK_NODISCARD lk_status lki_descriptor_open(int *out, int32_t pid, int fd);

/* From here on the ranks of this host, all of which say so, have `bytes` bytes between them.
 * LK_ENOMEM: they have more already; LK_EUNSUPPORTED: they are threads. */
LK_NODISCARD lk_status lki_comm_limit_memory(lk_comm *comm, uint64_t bytes);

/* Of that one rank has `bytes` beside its part, as all of the host's say; `mine`: it is this one,
 * which may be said later, too.  LK_ENOMEM likewise. */
LK_NODISCARD lk_status lki_comm_limit_one(lk_comm *comm, uint64_t bytes, bool mine);

/* Every rank, before an arena is made: LK_ENOMEM if such a limit forbids it. */
LK_NODISCARD lk_status lki_limit_take(lk_comm *comm, const char *name, size_t bytes);

/* What to do about shared memory that could not be had, where that is not plain. */
static inline const char *lki_memory_hint(int error)
{
    return error == EFBIG ? "; ulimit -f limits shared memory too: raise it" : "";
}

#endif

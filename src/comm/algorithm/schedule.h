/* algorithm/schedule.h -- a rank's part in a collective over messages: a list of actions.
 *
 * An algorithm is a function that writes the list.  It sends nothing and waits for nothing, so it
 * can be tested without a network.  Actions are grouped in rounds.  The actions of a round are
 * performed in order; a send is done when the message is handed to the wire.  The next round begins
 * when all messages of the current round have been sent and received.  Two ranks identify a message
 * between them by its round number and its message lane (its number within the round), so both must
 * place the message in the same round.  There are two lanes, or more if fewer rounds are enough
 * (see `stride`).
 *
 * Large vectors are cut into segments.  Every segment is the same problem with a different window,
 * and has its own schedule.  All operations are elementwise, so cutting does not change the bits.
 */
#ifndef LKI_COMM_SCHEDULE_H
#define LKI_COMM_SCHEDULE_H

#include "device/partial.h"
#include "link/operation.h"
#include "lockstep/comm.h"

/* ---- The problem ------------------------------------------------------------------------- */

/* The hosts of the ranks of a communicator. */
typedef struct {
    uint32_t  hosts;
    uint32_t *host_of;     /* [rank]: the rank's host */
    uint32_t *local_ranks; /* [rank]: the rank's local rank */
    uint32_t *local_sizes; /* [host]: the number of the host's ranks */
    uint32_t *first_of;    /* [host]: the index of the host's first rank in `ranks` */
    uint32_t *ranks;       /* all ranks, host after host */
} lki_host_map;

/* A collective from the view of one rank.  Ranks are those of the communicator. */
typedef struct lki_problem {
    lki_op_kind   kind;
    uint32_t      rank, size;
    uint32_t      each;  /* ranks per host; 0 if this differs between hosts or ranks are not in the
                          * order of hosts */
    uint32_t      root;  /* root of broadcast, reduce, gather, scatter; peer of send and recv */
    lk_dtype      dtype; /* type of the elements of a reduction */
    lk_reduce_op  op;
    size_t        width; /* bytes per element; 1 if nothing is reduced */
    size_t        bytes; /* bytes of the vector, or of each part if all parts are equal */
    const size_t *parts; /* size + 1 offsets of uneven parts; NULL = even */
    const size_t *recv_parts; /* all_to_all_v: offsets of the received parts; `parts` has those of
                               * the sent parts */
    bool          in_place;   /* send and recv are one buffer, divided into parts */
    size_t        at, window; /* the segment's place and length in the vector, or in each part */
    bool          native;     /* MPI supports the operation */
    bool          rounded;    /* every node of the tree is rounded to `dtype` */
    const struct lki_forest *forest; /* tree_reduce only (span/forest.h); `at` is then a segment
                                      * number */
    const lki_host_map      *map;    /* mirror only: the hosts of the ranks */
    uint32_t hosts, branches; /* tree_reduce only: number of hosts, and of subtrees of which one
                               * host has all leaves */
} lki_problem;

/* A range of a buffer: bytes [at, at + bytes). */
typedef struct {
    size_t at, bytes;
} lki_range;

/* Returns the window of part `rank` of the divided buffer. */
lki_range lki_problem_part(const lki_problem *p, uint32_t rank);

/* Returns the window of the part that is received from `rank` in an all_to_all_v. */
lki_range lki_problem_recv_part(const lki_problem *p, uint32_t rank);

/* Returns the window of an undivided vector. */
lki_range lki_problem_whole(const lki_problem *p);

/* Returns slice `rank` of the window of an undivided vector.  Slices are whole elements, of sizes
 * as equal as possible. */
lki_range lki_problem_slice(const lki_problem *p, uint32_t rank);

/* Returns the length that is cut into windows: the length of the longest part, or of the vector if
 * it is undivided. */
size_t lki_problem_longest(const lki_problem *p);

/* ---- The schedule ------------------------------------------------------------------------ */

typedef enum { LKI_SEND_BUFFER, LKI_RECV_BUFFER, LKI_SCRATCH, LKI_BUFFERS } lki_buffer;

typedef struct {
    lki_buffer buffer;
    size_t     at;
} lki_spot;

typedef enum { LKI_ACT_SEND, LKI_ACT_RECEIVE, LKI_ACT_COPY, LKI_ACT_COMBINE } lki_act_kind;

/* A node of the tree over ranks and its place: the elements of one rank, or accumulators. */
typedef struct {
    uint32_t first, count;
    bool     leaf;
    lki_spot spot;
} lki_term;

typedef struct {
    lki_act_kind kind;
    uint32_t     round;
    uint32_t     peer, step;     /* for SEND and RECEIVE */
    lki_spot     spot, from;     /* `spot`: data sent or written; `from`: data that a COPY reads */
    size_t       bytes;          /* for SEND, RECEIVE and COPY */
    size_t       count;          /* COMBINE: number of elements */
    uint32_t     first, leaves;  /* COMBINE: the tree node */
    bool         root;           /* COMBINE: the result is elements, not accumulators */
    size_t       term;           /* COMBINE: index of its first term in schedule->terms */
    uint32_t     term_count;
} lki_action;

/* A schedule under construction; zeroed, it is empty.  `status` is the first failure; later calls
 * then have no effect. */
typedef struct {
    lki_action *actions;
    lki_term   *terms;
    size_t      count, capacity, term_count, term_capacity, messages;
    size_t      scratch; /* number of bytes of scratch memory */
    uint32_t    round, lane, terms_most;
    uint32_t    stride; /* rounds per lane in message numbers (lane * stride + round); 0 =
                         * LKI_ROUNDS_MAX */
    lk_status   status;
} lki_schedule;

enum { LKI_ROUNDS_MAX = 4096, LKI_STEPS_MAX = 2 * LKI_ROUNDS_MAX };

void lki_schedule_free(lki_schedule *s);

/* Adds a send, unless `bytes` is 0. */
void lki_schedule_send(lki_schedule *s, uint32_t to, lki_spot from, size_t bytes);

/* Adds a receive, unless `bytes` is 0. */
void lki_schedule_receive(lki_schedule *s, uint32_t from, lki_spot to, size_t bytes);

/* Adds a send of an empty message. */
void lki_schedule_signal(lki_schedule *s, uint32_t to);

/* Adds the receive of an empty message. */
void lki_schedule_await(lki_schedule *s, uint32_t from);

/* Adds a copy, unless `bytes` is 0. */
void lki_schedule_copy(lki_schedule *s, lki_spot to, lki_spot from, size_t bytes);

/* Adds an action that combines `terms` into `out`.  The terms cover tree node [first, first +
 * leaves).  The result is elements if `root` is true, else accumulators. */
void lki_schedule_combine(lki_schedule *s, lki_spot out, bool root, uint32_t first, uint32_t leaves,
                          size_t count, const lki_term *terms, uint32_t term_count);

/* Begins a combination of many terms, which lki_schedule_combine_term() adds in order of rank. */
void lki_schedule_combine_begin(lki_schedule *s, lki_spot out, bool root, uint32_t first,
                                uint32_t leaves, size_t count);
void lki_schedule_combine_term(lki_schedule *s, lki_term term);

/* Starts round number `round`, which must not be below the current one. */
void lki_schedule_round(lki_schedule *s, uint32_t round);

/* Reserves `bytes` bytes of scratch, aligned for every type. */
lki_spot lki_schedule_room(lki_schedule *s, size_t bytes);

static inline lki_spot lki_spot_at(lki_buffer buffer, size_t at)
{
    return (lki_spot){ buffer, at };
}

static inline lki_spot lki_spot_plus(lki_spot spot, size_t bytes)
{
    return (lki_spot){ spot.buffer, spot.at + bytes };
}

/* ---- Carrying out ------------------------------------------------------------------------ */

/* Performs a COPY or COMBINE.  `base` has the addresses of the buffers; `nodes` has room for
 * terms_most nodes. */
void lki_schedule_compute(const lki_schedule *s, const lki_action *action, const lki_problem *p,
                          unsigned char *const base[LKI_BUFFERS], lki_partial_node *nodes);

/* ---- Algorithms (algorithm/) ------------------------------------------------------------- */

/* The factors of the cost model's constants.  The first fields are those of the busiest rank,
 * summed over rounds.  The all_ fields are totals over all ranks, for ranks that share cores. */
typedef struct {
    double rounds, messages;
    double bytes;
    double combined;         /* bytes of elements read to be combined */
    double all_messages, all_bytes;
} lki_work;

/* Returns the work of an algorithm in which every rank does the same amount. */
static inline lki_work lki_work_alike(double ranks, double rounds, double messages, double bytes,
                                      double combined)
{
    return (lki_work){ rounds, messages, bytes, combined, ranks * messages, ranks * bytes };
}

/* Returns the work of a tree_reduce whose sums every host wants, by direct or linear
 * (span/forest.h).  `bytes` is that of a host, not of a rank. */
lki_work lki_work_of_tree(const lki_problem *p, bool linear);

struct lki_tuning;

typedef struct lki_method {
    const char *name;
    bool        exact; /* reductions have the bits of the canonical tree, for every size */
    bool        uncut; /* always one segment */
    bool        asked; /* used only if selected by name */
    bool (*can)(const lki_problem *p);
    lki_work (*work)(const lki_problem *p);
    double (*seconds)(const struct lki_tuning *tuning, const lki_problem *p); /* replaces `work` */
    void (*build)(const lki_problem *p, lki_schedule *s); /* builds one segment; NULL: sends no
                                                           * messages of its own (span/relay.h,
                                                           * engine.h) */
} lki_method;

extern const lki_method lki_method_direct, lki_method_ring, lki_method_tree, lki_method_double_tree,
    lki_method_halving, lki_method_linear, lki_method_levels, lki_method_dissemination,
    lki_method_mail, lki_method_mirror, lki_method_native;

/* All algorithms; NULL ends the list. */
extern const lki_method *const lki_methods[];

/* Returns 1 + the algorithm's index in lki_methods; 0 for NULL. */
uint32_t lki_method_number(const lki_method *method);

/* Returns the rank on `host` that receives the part of `rank`, a rank of another host, in a mirror
 * (mirror.c). */
uint32_t lki_mirror_taker(const lki_host_map *map, uint32_t rank, uint32_t host);

/* Returns the size of the accumulators for `bytes` bytes of elements. */
static inline size_t lki_problem_partial(const lki_problem *p, size_t bytes)
{
    return bytes / p->width * lki_partial_width(p->dtype);
}

#endif

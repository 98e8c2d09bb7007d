/* algorithm/schedule.h -- what one rank does in a collective over messages: a list of actions.
 *
 * An algorithm is a function that writes the list; it sends nothing and waits for nothing, so that
 * it can be read, counted and tested on paper.  Actions come in rounds: those of a round are done
 * in order (a message counts as done when it is handed over), and the next round begins when all
 * messages of this one have come and gone.  Two ranks name a message between them by the number
 * of its round and by its lane, of which there are two (or more, if fewer rounds are enough: see
 * `stride`), so both must send and receive it in the same round.
 *
 * Large vectors are cut into segments.  Every segment is the same problem with another window, and
 * has a schedule of its own.  As everything is elementwise that cannot change a bit.
 */
#ifndef LKI_COMM_SCHEDULE_H
#define LKI_COMM_SCHEDULE_H

#include "comm/group.h"
#include "device/partial.h"

/* ---- The problem ------------------------------------------------------------------------- */

/* What a collective is about, as one rank sees it.  Ranks are those of the group. */
typedef struct lki_problem {
    lki_op_kind   kind;
    uint32_t      rank, size;
    uint32_t      each;  /* ranks on every host; 0 where they are not equally many and in order */
    uint32_t      root;  /* of broadcast, reduce, gather, scatter; the peer of send and recv */
    lk_dtype      dtype; /* of reductions */
    lk_reduce_op  op;
    size_t        width; /* of one element; 1 where nothing is reduced */
    size_t        bytes; /* of the vector, or of each part where all are even */
    const size_t *parts; /* size + 1 offsets of uneven parts; NULL = even */
    const size_t *recv_parts; /* all_to_all_v: offsets of what comes; `parts` of what goes */
    bool          in_place;   /* send and recv are one buffer, and both are divided */
    size_t        at, window; /* the segment: of the vector, or of each part */
    bool          native;     /* MPI can do it itself */
    bool          rounded;    /* every node of the tree is rounded to `dtype` */
    const struct lki_forest *forest; /* of a tree_reduce (span/forest.h); `at` numbers its pieces */
    const struct lki_span   *span;   /* of a mirror: which ranks share memory */
} lki_problem;

/* Bytes [at, at + bytes) of a buffer. */
typedef struct {
    size_t at, bytes;
} lki_range;

/* The window of part `rank` of the divided buffer. */
lki_range lki_problem_part(const lki_problem *p, uint32_t rank);

/* The same of what comes from `rank` in an all_to_all_v. */
lki_range lki_problem_recv_part(const lki_problem *p, uint32_t rank);

/* The window of an undivided vector, and slice `rank` of it: whole elements, as even as can be. */
lki_range lki_problem_whole(const lki_problem *p);
lki_range lki_problem_slice(const lki_problem *p, uint32_t rank);

/* The longest part, or the vector: what windows are cut from. */
size_t lki_problem_longest(const lki_problem *p);

/* ---- The schedule ------------------------------------------------------------------------ */

typedef enum { LKI_SEND_BUFFER, LKI_RECV_BUFFER, LKI_SCRATCH, LKI_BUFFERS } lki_buffer;

typedef struct {
    lki_buffer buffer;
    size_t     at;
} lki_spot;

typedef enum { LKI_ACT_SEND, LKI_ACT_RECEIVE, LKI_ACT_COPY, LKI_ACT_COMBINE } lki_act_kind;

/* A node of the tree over ranks that lies in a spot: elements of one rank, or accumulators. */
typedef struct {
    uint32_t first, count;
    bool     leaf;
    lki_spot spot;
} lki_term;

typedef struct {
    lki_act_kind kind;
    uint32_t     round;
    uint32_t     peer, step;     /* SEND, RECEIVE */
    lki_spot     spot, from;     /* what is sent or written; COPY: read */
    size_t       bytes;          /* SEND, RECEIVE, COPY */
    size_t       count;          /* COMBINE: elements */
    uint32_t     first, leaves;  /* COMBINE: the node */
    bool         root;           /* COMBINE: to elements */
    size_t       term;           /* COMBINE: its first, in schedule->terms */
    uint32_t     term_count;
} lki_action;

/* Zero is an empty one.  The first failure stays in `status`; building goes on without effect. */
typedef struct {
    lki_action *actions;
    lki_term   *terms;
    size_t      count, capacity, term_count, term_capacity, messages;
    size_t      scratch; /* bytes */
    uint32_t    round, lane, terms_most;
    uint32_t    stride; /* rounds a lane has names for; 0 = LKI_ROUNDS_MAX */
    lk_status   status;
} lki_schedule;

enum { LKI_ROUNDS_MAX = 4096, LKI_STEPS_MAX = 2 * LKI_ROUNDS_MAX };

void lki_schedule_free(lki_schedule *s);

/* Messages of no bytes are left out; a signal is one that is not. */
void lki_schedule_send(lki_schedule *s, uint32_t to, lki_spot from, size_t bytes);
void lki_schedule_receive(lki_schedule *s, uint32_t from, lki_spot to, size_t bytes);
void lki_schedule_signal(lki_schedule *s, uint32_t to);
void lki_schedule_await(lki_schedule *s, uint32_t from);
void lki_schedule_copy(lki_schedule *s, lki_spot to, lki_spot from, size_t bytes);

/* `out` = node [first, first + leaves), of terms that cover it; its elements if it is `root`. */
void lki_schedule_combine(lki_schedule *s, lki_spot out, bool root, uint32_t first, uint32_t leaves,
                          size_t count, const lki_term *terms, uint32_t term_count);

/* The same in steps, for many terms: begin, then each, in order of rank. */
void lki_schedule_combine_begin(lki_schedule *s, lki_spot out, bool root, uint32_t first,
                                uint32_t leaves, size_t count);
void lki_schedule_combine_term(lki_schedule *s, lki_term term);

/* What follows happens in round number `round`, which is not below the one before. */
void lki_schedule_round(lki_schedule *s, uint32_t round);

/* Room for `bytes` bytes, aligned for every type. */
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

/* Does a COPY or COMBINE; `base` is where the buffers are, `nodes` has room for terms_most. */
void lki_schedule_compute(const lki_schedule *s, const lki_action *action, const lki_problem *p,
                          unsigned char *const base[LKI_BUFFERS], lki_partial_node *nodes);

/* ---- Algorithms (algorithm/) ------------------------------------------------------------- */

/* What the model of costs multiplies its constants with: the sum over rounds of what the busiest
 * rank sends, or receives; and what all ranks send, for those that share cores. */
typedef struct {
    double rounds, messages;
    double bytes;
    double combined;         /* bytes of elements that are read to be combined */
    double all_messages, all_bytes;
} lki_work;

/* The same effort of every rank. */
static inline lki_work lki_work_alike(double ranks, double rounds, double messages, double bytes,
                                      double combined)
{
    return (lki_work){ rounds, messages, bytes, combined, ranks * messages, ranks * bytes };
}

struct lki_tuning;

typedef struct lki_method {
    const char *name;
    bool        exact; /* reductions have the bits of the canonical tree for every size */
    bool        uncut; /* one segment, whatever the size */
    bool        asked; /* never taken but by name */
    bool (*can)(const lki_problem *p);
    lki_work (*work)(const lki_problem *p);
    double (*seconds)(const struct lki_tuning *tuning, const lki_problem *p); /* in its place */
    void (*build)(const lki_problem *p, lki_schedule *s); /* one segment; NULL: no messages of ours,
                                                              * see span/relay.h, engine.h */
} lki_method;

extern const lki_method lki_method_direct, lki_method_ring, lki_method_tree, lki_method_double_tree,
    lki_method_halving, lki_method_linear, lki_method_levels, lki_method_dissemination,
    lki_method_mail, lki_method_mirror, lki_method_native;

/* All of them; NULL ends the list. */
extern const lki_method *const lki_methods[];

/* 1 + its place among them; 0 for NULL. */
uint32_t lki_method_number(const lki_method *method);

/* Bytes of an accumulator. */
static inline size_t lki_problem_partial(const lki_problem *p, size_t bytes)
{
    return bytes / p->width * lki_partial_width(p->dtype);
}

#endif

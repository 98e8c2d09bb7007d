/* parallel/turn.h -- the turns of a step, and the reports of virtual workers.  See core/turns.c. */
#ifndef LKI_PARALLEL_TURN_H
#define LKI_PARALLEL_TURN_H

#include "parallel/strategy.h"

/* A virtual worker counts, was dropped, or was never begun. */
typedef enum { LKI_COUNTS = 0, LKI_DROPPED, LKI_NOT_BEGUN } lki_counting;

/* The arguments of a rank's calls in a step, which are equal on all ranks. */
typedef struct {
    uint64_t step;  /* of lk_parallel_begin() */
    double   lr;    /* of lk_parallel_finish() */
    double   seed;  /* the factor of gradients by lk_parallel_loss_scale() */
    uint64_t rules; /* hash of those of lk_parallel_set_rules() */
} lki_asked;

/* The report of one virtual worker on one step, visible to all ranks. */
typedef struct {
    double   loss;
    double   square;  /* of a client's change of weights, times its number of samples */
    double   seconds; /* seconds that the rank spent on the virtual worker's turns */
    double   data;    /* the share of `seconds` that the rank waited for data */
    uint64_t count, hits;
    uint64_t written; /* in a rank's first report: hash of the parameters that this rank wrote */
    lki_asked asked;  /* in a rank's first report */
    uint32_t micros;  /* number of micro-batches of this step */
    uint32_t maker;   /* the rank that computed the virtual worker */
    lki_counting counting;  /* whether this virtual worker counts */
    /* samples of each micro-batch, followed by the bytes that features have reserved (feature.h) */
    uint64_t     samples[];
} lki_report;

/* The kinds of turns. */
typedef enum {
    LKI_TURN_OWN = 0, /* virtual workers of this rank */
    LKI_TURN_HELP,    /* a virtual worker of another rank; the result may count */
    LKI_TURN_AGAIN    /* a virtual worker that has been computed; the result never counts */
} lki_turn_kind;

/* The turns of the current step.  One turn computes `together` virtual workers, which functions get
 * as an `index` below `together`.  In lock step each has its own gradients.  In a joint turn the
 * virtual workers are a subtree.  The caller sums their gradients in the memory of index 0. */
typedef struct {
    uint32_t      leaf, micro; /* this rank's current turn; `leaf` counts from 0 in this rank's
                                * share */
    uint32_t      together;
    uint32_t      part;      /* with adds_once: number of the virtual worker that is computed */
    bool          adds_once; /* joint turns have two virtual workers, computed one at a time */
    uint32_t      gradients; /* number of gradients: `together`, or 1 in a joint turn */
    double        since;     /* start time of the current turn, by this rank's clock */
    double        waited;    /* seconds of the current turn that this rank waited for other ranks */
    lki_turn_kind kind;
    uint32_t      guest;  /* the virtual worker, unless `kind` is LKI_TURN_OWN */
    uint32_t      owner;  /* row of the feature that ends the turn, or LKI_NO_FEATURE */
    lki_report   *report; /* the current virtual worker's report; NULL: it is in the common table */
    bool          running;
    bool          dropped;  /* the result of this turn will be ignored */
    bool          left_out; /* the caller has skipped a turn of the current virtual worker */
    bool          closing;  /* the caller computes no more turns */
    /* [gradients][term_count]: the current virtual worker has announced the term */
    uint8_t      *ready;
    /* [gradients][term_count]: the memory is zeroed, or the caller will overwrite it */
    uint8_t *begun;
    /* [term_count]: number of gradients of the turn that have announced the term */
    uint32_t *announced;
    /* [term_count]: the terms that the first virtual worker of the turn has announced before the
     * turn ended, in order */
    uint32_t      *finished;
    uint32_t       finished_count;
    lki_gradients *current; /* [gradients] */
} lki_turn_state;

/* Returns the memory to which a virtual worker of the turn adds a term of the layout.  The call
 * does not count as a use of the term. */
float *lki_gradient_now(lk_parallel *parallel, uint32_t index, uint32_t term);

/* Returns true if no gradients of single virtual workers are needed, so that turns may be joined
 * (joint.h). */
bool lki_turns_may_join(const lk_parallel *parallel);

/* Returns the limit of virtual workers of a turn, at most `most`.  A turn does not span groups
 * (lki_effects.cut). */
uint32_t lki_turns_limit(const lk_parallel *parallel, uint32_t most);

/* Returns the number of virtual workers of the current turn. */
uint32_t lki_turn_count(const lk_parallel *parallel);

/* Returns the number of a virtual worker of the turn among all V. */
uint32_t lki_leaf_now(const lk_parallel *parallel, uint32_t index);

/* Returns the report of a virtual worker of the turn.  Other ranks cannot see it yet. */
lki_report *lki_report_now(const lk_parallel *parallel, uint32_t index);

/* Adds to lk_step_result.square for a virtual worker of the turn. */
void lki_report_square(lk_parallel *parallel, uint32_t index, double square);

/* Ends the turns of the step.  Turns that the caller has skipped have no effect. */
void lki_turns_end(lk_parallel *parallel);

/* ---- Turns, for features that begin them (turns.c) ------------------------------------------- */

/* Begins this rank's next turn of kind LKI_TURN_OWN, and its virtual workers.  Returns false if
 * there is none. */
bool lki_turn_begin_own(lk_parallel *parallel);

/* Begins a turn whose virtual workers have begun. */
void lki_turn_begin(lk_parallel *parallel);

/* Prepares a virtual worker of kind LKI_TURN_HELP or LKI_TURN_AGAIN: marks no term as ready and no
 * memory as zeroed. */
void lki_turn_clear(lk_parallel *parallel);

/* Clears the report of a virtual worker, before it is computed. */
void lki_report_begin(lk_parallel *parallel, uint32_t index);

/* Clears the report of a virtual worker of this rank whose results do not count.  Keeps the times
 * if the virtual worker was begun.  Defined in reports.c. */
void lki_report_drop(const lk_parallel *parallel, uint32_t leaf, lki_counting counting);

/* Reports that `seconds` of the current turn were spent waiting for data.  Defined in reports.c. */
void lki_report_waited(lk_parallel *parallel, double seconds);

/* Announces all terms that a virtual worker of the turn has not announced yet. */
void lki_turn_end_terms(lk_parallel *parallel, uint32_t index);

/* Takes part in the gathers that other ranks still do in this turn. */
void lki_turn_catch_up(lk_parallel *parallel);

#endif

/* parallel/ledger.h -- the progress of a step, in memory that outlives a rank.
 *
 * A host has one copy of the parameters and the optimizer's state, and owners update it in place.
 * With options.survives a run continues when a rank dies in the middle of an update.  The other
 * ranks must then determine which elements were updated, and how to continue.  The ledger has:
 *
 *   a mark   for each rank: the results that all ranks exchanged before a step's update, and the
 *            parameters of the update.  The mark is written before any value is changed, and a rank
 *            that can write it knows that the sums of all ranks are complete.  So one rank's mark
 *            is enough to decide that this step will be completed.
 *   a stamp  for each block of elements (a span): the last complete stage of a step.
 *   entries  an undo log, one for each thread that changes a span: that span, how many elements are
 *            done, and the old values of the current piece.  Every rank has the same number of
 *            entries, because ranks may have different numbers of threads.
 *   places   the offset of each span's sum, which stays in the memory of the span's owner.
 *
 * If no rank has marked a step, only gradients have been written, and the step is computed again.
 * If a rank has marked it, pieces that are still open are undone.  The update then continues from
 * the sums, in every span whose stamp is old, at the element where the span stopped.  So every
 * piece is updated exactly once.
 *
 * Only one thread writes the words of an entry.  Its stores, in order, and the state after each:
 *
 *      entry: span, done 0, torn 0             nothing of the span is changed
 *         its values of [0, n)                 saved; not valid while torn is 0
 *         done 0, torn n          one word     [0, n) may be partly changed; it was saved
 *         [0, n) is updated
 *         done n, torn 0          one word     [0, n) is new; the saved values are not valid
 *         ...                                  until the whole span is done
 *         the hash of the new values, the stamp, no span
 *
 * On any processor, a rank dies between two instructions: it has made all stores that come before
 * that point in program order, and none after it.  Other ranks read the words only after the kernel
 * has reported the death.  So the stores need no memory fences, but the compiler must not reorder
 * them.  A piece is small enough for its old and current values to fit into the first-level cache.
 *
 * Finished elements of a span are not undone.  When a dead rank's entry is undone, their number is
 * stored beside the stamp of the span, because the entry will be reused.  Attestation skips such a
 * span, because its values belong to two steps.
 *
 * Every host has its own ledger with the marks of its ranks; see agreement.c.
 *
 * Running state is staged beside the old values, stamped and then copied.  The copy can be
 * repeated.
 *
 * Cost: a copy, in cache, of the values that a span's update reads, and 24 KiB for each thread of a
 * rank, up to LKI_ENTRIES.  Memory for the entries of other threads is reserved but not written.
 * Without options.survives there is no ledger.
 */
#ifndef LKI_PARALLEL_LEDGER_H
#define LKI_PARALLEL_LEDGER_H

#include <stdalign.h>
#include <stdatomic.h>

#include "base/status.h"
#include "lockstep/parallel.h"
#include "parallel/layout.h"
#include "parallel/losses.h"
#include "tensor/ops.h"

/* The stages of an update.  LAMB has both stages, all other optimizers only the second. */
typedef enum { LKI_DIRECTED = 0, LKI_UPDATED } lki_update_stage;

enum { LKI_TALLY_BYTES = 128 }; /* maximum that all features together may reserve */

/* The results that all ranks have once a step's sums are complete. */
typedef struct {
    lk_step_result result;
    lki_losses     losses;
    lk_update      update; /* the step's update, without the values that differ between tensors */
    uint32_t       owners; /* number of owners of running state */
    unsigned char  of_features[LKI_TALLY_BYTES]; /* see lki_tally_reserve() */
} lki_tally;

/* The last two steps: one record is complete while the other is being written. */
typedef struct {
    struct {
        /* 1 + number of the step; 0: none, or the record is being written */
        alignas(64) _Atomic uint64_t steps;
        lki_tally tally;
    } turns[2];
} lki_mark;

/* The parts of an entry: optimizer states, values and sums of the piece that is being changed. */
enum { LKI_ENTRY_VALUES = LK_OPTIMIZER_STATES_MAX, LKI_ENTRY_SUMS, LKI_ENTRY_PARTS };

enum { LKI_PIECE = 1024 }; /* elements of a span that are changed at a time */

enum { LKI_ENTRIES = 16 }; /* spans that a rank changes at a time; more threads wait */

typedef struct {
    alignas(64) _Atomic uint64_t span; /* 1 + number of the span that is being changed; 0: none */
    /* elements done << 32 | elements that may be partly changed (torn) */
    _Atomic uint64_t progress;
    uint64_t         stamp;            /* the stamp that the span will get */
    alignas(64) float values[LKI_ENTRY_PARTS][LKI_PIECE];
} lki_entry;

/* Elements [first, first + count) of a span. */
typedef struct {
    size_t first, count;
} lki_piece;

typedef struct {
    _Atomic bool held;
} lki_hold;

typedef enum { LKI_ARENA_MODEL, LKI_ARENA_GRADIENTS, LKI_LEDGER_ARENAS } lki_ledger_arenas;

typedef struct {
    bool               kept;  /* false: there is no ledger, and everything here is empty */
    uint32_t           seats; /* maximum number of ranks in the run */
    uint32_t           here;  /* maximum number of ranks on one host */
    lki_deal           dealt; /* the owners when the run began, if hosts store shards */
    /* with ranges: maximum number of buffers that the ranks of a host need */
    size_t             neighbours;
    /* with rounds: [1 + seats]: entry n is the number of buffers that n surviving ranks need */
    uint32_t          *round_buffers;
    bool               goes_on; /* during open: existing arenas are taken over */
    /* the object whose arenas are taken over; NULL: this rank is new and opens them by name */
    const lk_parallel *before;
    lk_arena          *arenas[LKI_LEDGER_ARENAS];
    float             *gradients; /* the strategy's arena */

    /* The fields below are in the model's arena. */
    lki_mark         *marks;        /* [seats] */
    lki_entry        *entries;      /* [seats][LKI_ENTRIES] */
    _Atomic uint64_t *stamps;       /* [span_count] */
    uint64_t         *begun; /* [span_count]: elements that a dead rank finished after the stamp */
    uint64_t         *hashes;       /* [span_count]: see lk_parallel.hashes */
    uint64_t         *sums; /* [span_count]: offset of each sum in `gradients`, in elements */
    uint64_t         *state_sums;   /* [seats]: offsets of each owner's sums of running state */
    _Atomic uint64_t *state_stamps; /* [seats]: 1 + the last step that each owner has staged */
    float            *staged;       /* the new running state, and its moving average */

    lki_hold holds[LKI_ENTRIES]; /* whether each of this rank's entries is in use */
} lki_ledger;

typedef struct lki_durable lki_durable; /* durable.h */

/* Reads the options and sets parallel->durable. */
LK_NODISCARD lk_status lki_ledger_describe(lk_parallel *parallel,
                                           const lk_parallel_options *options);

/* Computes the number of buffers for every smaller number of ranks, once virtual workers are
 * assigned. */
LK_NODISCARD lk_status lki_ledger_count(lk_parallel *parallel);

/* Opens an arena or takes over the existing one, with or without a ledger.  Collective if the arena
 * is new. */
LK_NODISCARD lk_status lki_ledger_arena(lk_parallel *parallel, lki_ledger_arenas which,
                                        size_t bytes, lk_arena **out);

/* ---- After a failure ---------------------------------------------------------------------- */

/* Returns the last step whose sums are complete, counted from 1, and sets *out to its tally.
 * Returns 0 if there is no such step. */
uint64_t lki_ledger_last(const lk_parallel *parallel, lki_tally *out);

/* Finds the last step whose sums are complete on any host, and sets *last and *out as
 * lki_ledger_last() does.  A host whose ledger is older receives the other hosts' mark, so that
 * every host's ledger agrees with *out afterwards.  Collective.  Defined in agreement.c. */
LK_NODISCARD lk_status lki_ledger_agree(lk_parallel *parallel, uint64_t *last, lki_tally *out);

/* Marks the first `steps` steps as done in the whole ledger, on a host that receives its values
 * from other hosts. */
void lki_ledger_fill(lk_parallel *parallel, uint64_t steps);

/* Stages the running state that this host has received from other hosts. */
void lki_ledger_stage(lk_parallel *parallel);

/* Restores the old values of the pieces that a dead rank was changing. */
void lki_ledger_undo(lk_parallel *parallel);

#endif

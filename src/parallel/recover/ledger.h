/* parallel/recover/ledger.h -- how far a step has come, in memory that outlives a rank.
 *
 * Parameters and the optimizer's state exist once on a host, and owners update them in place.  If a
 * run shall go on without a rank that dies in the middle of that (options.survives), others must
 * know what has been updated, and how to go on:
 *
 *   a mark   of each rank: what all have come to know at the meeting of a step, and with what it
 *            updates.  It is there before anything is changed; and who can write it knows that
 *            everybody's sums are complete.  So the mark of any rank says: this step will be.
 *   a stamp  of each span: the last stage of a step that is complete.
 *   entries  an undo log, one for each thread: how far it has come in the span that it is changing,
 *            and the values of the piece that it is changing now.
 *   places   of the sums of each span, which the strategy leaves with their owner.
 *
 * Without marks of a step nothing of it is anywhere but in gradients, and it is made again.  With
 * one, pieces that are still open are undone, and then the update goes on from the sums over all
 * spans whose stamp is behind, from where each is begun: no piece is updated twice, none never.
 *
 * The protocol of a span is one of its thread alone, with words that say what holds behind them:
 *
 *      entry: span, done 0, torn 0             nothing of it is changed
 *         its values of [0, n)                 kept, while torn is 0: they mean nothing yet
 *         done 0, torn n          one word     [0, n) may be changed, in part; the entry has it
 *         [0, n) is updated
 *         done n, torn 0          one word     [0, n) is new, and what the entry has means nothing
 *         ...                                  until done is all of it
 *         the hash of what is written, the stamp, no span
 *
 * Who is dead has made all stores before one of its instructions, and none after, in the order of
 * the program, on any processor; and who looks does so after the kernel has told of the death.  So
 * the words need no fences of memory, but the compiler must leave their order to them.  A piece is
 * small: what is kept of it is in the first-level cache, as are its values, which are read anyway.
 * Where the entry of a dead rank is undone, what was done of the span is written down beside its
 * stamp, so that it outlives the entry: what was done cannot be taken back, and need not be.
 * Of such a span what is there cannot be compared with the hash of what was written: it is of two
 * steps.
 *
 * Every host has a ledger of its own, with marks of its own ranks: see accord.c.
 *
 * Running state is staged beside the old values, stamped and then copied, which can be done again.
 *
 * Cost: a copy, in cache, of what a span's update reads anyway; 20 KiB for each thread.  Without
 * options.survives nothing of this is there.
 */
#ifndef LKI_PARALLEL_LEDGER_H
#define LKI_PARALLEL_LEDGER_H

#include <stdalign.h>
#include <stdatomic.h>

#include "base/status.h"
#include "lockstep/parallel.h"
#include "parallel/layout.h"
#include "tensor/ops.h"

/* Of a step: lamb has the first, all have the second. */
typedef enum { LKI_DIRECTED = 0, LKI_UPDATED } lki_update_stage;

/* What all ranks know once a step's sums are complete. */
typedef struct {
    lk_step_result result;
    lk_loss_scaler scaler; /* after the step */
    double         scale;  /* in it */
    lk_noise       noise;  /* after it */
    lk_update      update; /* but for what differs between tensors */
    uint32_t       owners; /* of running state */
} lki_tally;

/* The last two steps, so that one is whole while the other is written. */
typedef struct {
    struct {
        alignas(64) _Atomic uint64_t steps; /* 1 + its number; 0: none, or being written */
        lki_tally tally;
    } turns[2];
} lki_mark;

/* States, values and sums, of which an entry has those that are being changed. */
enum { LKI_ENTRY_VALUES = LK_OPTIMIZER_STATES_MAX, LKI_ENTRY_SUMS, LKI_ENTRY_PARTS };

enum { LKI_PIECE = 1024 }; /* elements of a span that are changed at a time */

typedef struct {
    alignas(64) _Atomic uint64_t span; /* 1 + the span that is being changed; 0: none */
    _Atomic uint64_t progress;         /* elements: << 32 those that are done, and the torn ones */
    uint64_t         stamp;            /* that it gets */
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
    bool               kept;  /* else all of this is empty */
    uint32_t           seats; /* ranks that there may be, of those that the job has ... */
    uint32_t           here;  /* ... and on one host */
    uint32_t           threads;
    lki_deal           dealt; /* of owners, when the run began; where hosts have shards */
    size_t             neighbours;    /* in ranges: the most buffers that ranks of a host need */
    uint32_t          *round_buffers; /* in rounds: [1 + seats], that so many ranks need */
    bool               goes_on; /* while it is opened: arenas are taken over ... */
    const lk_parallel *before;  /* ... of this, or, where this rank has entered, by their names */
    lk_arena          *arenas[LKI_LEDGER_ARENAS];
    float             *gradients; /* the strategy's arena */

    /* In the model's arena. */
    lki_mark         *marks;        /* [seats] */
    lki_entry        *entries;      /* [seats][threads] */
    _Atomic uint64_t *stamps;       /* of spans */
    uint64_t         *begun;        /* of spans: elements that a dead rank has done, after it */
    uint64_t         *hashes;       /* of spans: lk_parallel.hashes */
    uint64_t         *sums;         /* of spans: elements from `gradients` */
    uint64_t         *state_sums;   /* [seats]: of an owner */
    _Atomic uint64_t *state_stamps; /* [seats]: what it has staged */
    float            *staged;       /* running state, and its moving mean */

    lki_hold *holds; /* [threads]: mine, on my entries */
} lki_ledger;

/* From options; exec is there, or there is one thread. */
LK_NODISCARD lk_status lki_ledger_describe(lk_parallel *parallel,
                                           const lk_parallel_options *options);
LK_NODISCARD lk_status lki_ledger_open(lk_parallel *parallel);

/* Once it is known how virtual workers are dealt: what fewer ranks will need of buffers. */
LK_NODISCARD lk_status lki_ledger_count(lk_parallel *parallel);
void                   lki_ledger_close(lk_parallel *parallel);

/* With a ledger or without: a new arena, or that which was there before.  Collective where it is
 * new. */
LK_NODISCARD lk_status lki_ledger_arena(lk_parallel *parallel, lki_ledger_arenas which,
                                        size_t bytes, lk_arena **out);

/* Bytes behind `at` of the arena that begins at `base` (NULL: only measures). */
size_t lki_ledger_lay_out(lk_parallel *parallel, char *base, size_t at);

/* ---- While a step is made: nothing without a ledger --------------------------------------- */

void lki_ledger_note_sum(lk_parallel *parallel, size_t span, const float *sum);
void lki_ledger_note_states(lk_parallel *parallel, const float *sums);
void lki_ledger_mark(lk_parallel *parallel, const lki_tally *tally);

/* Around a change of a span; NULL without a ledger. */
lki_entry *lki_ledger_keep(lk_parallel *parallel, size_t index, lki_update_stage stage);
void       lki_ledger_drop(lk_parallel *parallel, size_t index, lki_entry *entry);

/* What of it is to be changed next, from { 0, 0 } on; false: nothing is left.  Without a ledger it
 * is all at once. */
bool lki_ledger_next(const lk_parallel *parallel, size_t index, lki_entry *entry, lki_piece *piece);

/* Whether a dead rank has changed a part of it for good. */
bool lki_ledger_is_begun(const lk_parallel *parallel, size_t index);

/* Whether that stage of the step under way is complete for a span. */
bool lki_ledger_has(const lk_parallel *parallel, size_t index, lki_update_stage stage);

/* ---- After a failure ---------------------------------------------------------------------- */

/* The last step whose sums are complete, counted from 1; 0 = none. */
uint64_t lki_ledger_last(const lk_parallel *parallel, lki_tally *out);

/* The same over all hosts, of which some may be behind: these learn what the others know, so that
 * each host's ledger says from here on what *out does.  Collective; accord.c. */
LK_NODISCARD lk_status lki_ledger_accord(lk_parallel *parallel, uint64_t *last, lki_tally *out);

/* For a host that gets all of it from others: nothing of the first `steps` is left to be done; and,
 * when it is there, running state is as staged. */
void lki_ledger_fill(lk_parallel *parallel, uint64_t steps);
void lki_ledger_stage(lk_parallel *parallel);

/* Gives pieces that a dead rank was changing the values that they had. */
void lki_ledger_undo(lk_parallel *parallel);

#endif

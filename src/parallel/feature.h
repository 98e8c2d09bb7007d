/* parallel/feature.h -- the interface of features: optional code that observes or changes a step.
 *
 * A feature is one file in features/ and one row of LKI_FEATURES (features/table.h).  The core
 * walks the table and knows no row by name.  Features take effect in the order of the rows, so
 * place a new row with care and never reorder rows.
 *
 * Ownership: open() allocates the feature's state, and every other entry gets it as `self`.  Only
 *            close() frees it.  A feature without a state is off, and none of its other entries is
 *            called, except hash_options().
 * Failures:  an entry that returns a status may fail the step.  Others report a failure with
 *            lki_step_keep().
 * Threads:   one at a time for each lk_parallel.  Entries marked "collective" are called by all
 *            ranks in the same order, and only they may communicate.
 *
 * All entries except `name`, open() and close() are optional and may be NULL.
 */
#ifndef LKI_PARALLEL_FEATURE_H
#define LKI_PARALLEL_FEATURE_H

#include <string.h>

#include "base/status.h"
#include "lockstep/parallel.h"
#include "parallel/ledger.h"
#include "parallel/turn.h"

enum { LKI_FEATURES_MAX = 16 };

/* No row of the table. */
#define LKI_NO_FEATURE UINT32_MAX

typedef struct {
    const char *name;

    /* ---- Its life ------------------------------------------------------------------------- */

    /* Reads the options.  Allocates the state in *self, or sets *self to NULL if the options do not
     * enable the feature.  LK_EUNSUPPORTED names the option that excludes the feature.  Strategy,
     * world, shares and layout are known.  There is no memory and perhaps no communicator, because
     * a plan also calls open().  May reserve bytes in each report and in each tally. */
    lk_status (*open)(lk_parallel *parallel, const lk_parallel_options *options, void **self);

    /* Frees the state, even if open() or attach() failed halfway. */
    void (*close)(void *self);

    /* Hashes the options of the feature, which must be equal on all ranks. */
    uint64_t (*hash_options)(const lk_parallel_options *options);

    /* Places shared memory at offset `at` of the model's arena, and returns the offset of its end.
     * If `base` is NULL, only computes the offset.  New memory is zero. */
    size_t (*lay_out)(lk_parallel *parallel, void *self, char *base, size_t at);

    /* Allocates memory that depends on the layout, before the strategy is attached.  Collective. */
    lk_status (*attach)(lk_parallel *parallel, void *self);

    /* Takes over the state of `before`, an object that failed, before any rank begins a step.
     * `before` is NULL if this rank is new. */
    void (*take_over)(lk_parallel *parallel, void *self, const void *before);

    /* ---- Turns ---------------------------------------------------------------------------- */

    void (*begin_step)(lk_parallel *parallel, void *self);

    /* Begins the virtual workers of a turn of kind LKI_TURN_OWN or LKI_TURN_HELP. */
    lk_status (*begin_leaves)(lk_parallel *parallel, void *self);

    /* Called when a virtual worker of the turn requests the memory of a term.  Not called for
     * LKI_TURN_AGAIN. */
    void (*term_asked)(lk_parallel *parallel, void *self, uint32_t index, uint32_t term);

    /* Called when a virtual worker of the turn has computed a term, in its last micro-batch.
     * lki_gradient_now() returns the values, to which nothing has been added yet.  Called in all
     * kinds of turns, but only if open() of a feature has set parallel->effects.watches. */
    lk_status (*term_ready)(lk_parallel *parallel, void *self, uint32_t index, uint32_t term);

    /* Called when a virtual worker of the turn is complete but not merged yet.  Not called for
     * LKI_TURN_AGAIN, nor if the virtual worker's results are dropped. */
    void (*end_leaf)(lk_parallel *parallel, void *self, uint32_t index);

    /* Returns true if the results of the current turn, and of all later turns of this rank in this
     * step, will not be used.  `over`: this rank has finished its turns, so the answer is final;
     * with lki_effects.holds_back the rank has sent nothing yet. */
    bool (*is_moot)(lk_parallel *parallel, void *self, bool over);

    /* (with is_moot()) Ends this rank's turns of the step without their results. */
    lk_status (*drop)(lk_parallel *parallel, void *self);

    /* Begins a turn that only this feature knows, and sets `kind`, `guest`, `report` and `owner` of
     * parallel->turn.  Returns false if there is no such turn.  Called after this rank's own turns.
     * If begin_step() has set `owner` to this feature, next_turn() is called for every turn. */
    bool (*next_turn)(lk_parallel *parallel, void *self);

    /* (with next_turn()) Ends the current turn, which this feature owns. */
    void (*end_turn)(lk_parallel *parallel, void *self);

    /* ---- The end of a step ---------------------------------------------------------------- */

    /* (with lki_effects.cut) Returns the bytes that a host sends in a step for the sums of
     * gradients.  There may be no communicator. */
    uint64_t (*sent)(const lk_parallel *parallel, const void *self, uint32_t host);

    /* (with lki_effects.cut) Computes the sums over all groups.  The strategy has summed the
     * gradients of each group only.  Collective. */
    lk_status (*combine)(lk_parallel *parallel, void *self, lki_gradients *sums);

    /* Reads the reports of all virtual workers, which have arrived with the sums.  All ranks have
     * the same reports and must decide alike.  No value has been updated yet, and after a failure
     * none will be. */
    lk_status (*reports)(lk_parallel *parallel, void *self, lk_step_result *result);

    /* Called when the step is sure to be completed or skipped (tally->result.skipped).  Stores the
     * values that other ranks need to complete the step, or to continue after it
     * (lki_tally_put()). */
    void (*before_update)(lk_parallel *parallel, void *self, lki_tally *tally);

    /* (with LAMB) Called when the norms of tensors are known, before the update.  May set
     * parallel->norms.trusts.  Other ranks may call it again to complete the step. */
    void (*ratios)(lk_parallel *parallel, void *self, const lk_update *update);

    /* Restores this rank's state after the step of `tally`, which other ranks have decided.  Also
     * sets the feature's fields of *standing.  Called after take_over(). */
    void (*restore)(lk_parallel *parallel, void *self, const lki_tally *tally,
                    lk_parallel_standing *standing);

    /* Called when this rank has updated the slices that it owns. */
    void (*after_update)(lk_parallel *parallel, void *self);

    /* Called when all ranks have finished the step.  May change the layout or the shares.
     * Collective. */
    lk_status (*end_step)(lk_parallel *parallel, void *self, lk_step_result *result);
} lki_feature;

/* All features, in the order in which they take effect.  Defined in features/table.c. */
extern const lki_feature *const lki_feature_table[];
extern const uint32_t           lki_feature_count;

/* Returns the state of a feature; NULL if it is off. */
void *lki_feature_state(const lk_parallel *parallel, const lki_feature *feature);

/* Returns the number of a feature's row in lki_feature_table. */
uint32_t lki_feature_row(const lki_feature *feature);

/* ---- Bytes of a feature in reports and tallies: reports.c ------------------------------------ */

/* Reserves bytes in every report, and returns their offset.  Called by open().  The bytes are zero
 * when a virtual worker begins. */
size_t lki_report_reserve(lk_parallel *parallel, size_t bytes);

/* Returns the address of reserved bytes, a multiple of 8. */
static inline void *lki_report_at(lki_report *report, size_t offset)
{
    return (char *)report + offset;
}

/* Reserves bytes in every tally, and returns their offset.  Called by open().  All features may
 * reserve LKI_TALLY_BYTES together. */
size_t lki_tally_reserve(lk_parallel *parallel, size_t bytes);

/* Stores a value in reserved bytes. */
static inline void lki_tally_put(lki_tally *tally, size_t offset, const void *value, size_t bytes)
{
    memcpy(tally->of_features + offset, value, bytes);
}

/* Copies a value from reserved bytes. */
static inline void lki_tally_get(const lki_tally *tally, size_t offset, void *value, size_t bytes)
{
    memcpy(value, tally->of_features + offset, bytes);
}

/* ---- Calls of all enabled features: features.c ----------------------------------------------- */

LK_NODISCARD lk_status lki_features_open(lk_parallel *parallel, const lk_parallel_options *options);
void                   lki_features_close(lk_parallel *parallel);
uint64_t               lki_features_hash(const lk_parallel_options *options);
size_t                 lki_features_lay_out(lk_parallel *parallel, char *base, size_t at);
LK_NODISCARD lk_status lki_features_attach(lk_parallel *parallel);
void                   lki_features_take_over(lk_parallel *parallel, const lk_parallel *before);
void                   lki_features_begin_step(lk_parallel *parallel);
LK_NODISCARD lk_status lki_features_begin_leaves(lk_parallel *parallel);
void lki_features_term_asked(lk_parallel *parallel, uint32_t index, uint32_t term);
LK_NODISCARD lk_status lki_features_term_ready(lk_parallel *parallel, uint32_t index,
                                               uint32_t term);
void                   lki_features_end_leaf(lk_parallel *parallel, uint32_t index);
bool                   lki_features_are_moot(lk_parallel *parallel, bool over);
LK_NODISCARD lk_status lki_features_drop(lk_parallel *parallel);
bool                   lki_features_next_turn(lk_parallel *parallel);
uint64_t               lki_features_sent(const lk_parallel *parallel, uint32_t host);
LK_NODISCARD lk_status lki_features_combine(lk_parallel *parallel, lki_gradients *sums);
LK_NODISCARD lk_status lki_features_reports(lk_parallel *parallel, lk_step_result *result);
void                   lki_features_before_update(lk_parallel *parallel, lki_tally *tally);
void                   lki_features_ratios(lk_parallel *parallel, const lk_update *update);
void                   lki_features_restore(lk_parallel *parallel, const lki_tally *tally,
                                            lk_parallel_standing *standing);
void                   lki_features_after_update(lk_parallel *parallel);
LK_NODISCARD lk_status lki_features_end_step(lk_parallel *parallel, lk_step_result *result);

#endif

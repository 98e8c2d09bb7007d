/* train/core/stopping.h -- the limits that end a run, and the results of its evaluations.
 *
 * Limits of samples, tokens and epochs are converted to steps before the run; a time limit cannot
 * be converted.  Evaluation results are equal on all ranks and are stored in checkpoints.  So a
 * resumed run has the same patience left and keeps the same best checkpoints.
 */
#ifndef LKI_TRAIN_STOPPING_H
#define LKI_TRAIN_STOPPING_H

#include <jansson.h>

#include "lockstep/data.h"
#include "lockstep/train.h"

typedef struct {
    uint64_t step;
    double   value; /* loss or accuracy */
} lki_best;

/* An evaluation that was among the best, until the evaluation of step `by` displaced it.  Its
 * checkpoint is kept until the checkpoint of step `by` is written. */
typedef struct {
    lki_best it;
    uint64_t by;
} lki_displaced;

enum { LKI_DISPLACED_MAX = 2 }; /* by the checkpoint being written, and by the next one */

typedef struct {
    uint64_t      evaluations, lowest_step;
    double        lowest; /* lowest loss; undefined without evaluations */
    uint64_t      stale;  /* number of evaluations since lowest_step */
    uint32_t      best_count;
    lki_best      best[LK_BEST_MAX]; /* best first; equal values in order of steps */
    uint32_t      displaced_count; /* displaced by checkpoints that may still fail; oldest first */
    lki_displaced displaced[LKI_DISPLACED_MAX];
} lki_stopping;

/* Returns the last step of the run, from all limits except time.  *option becomes the name of the
 * option that sets this last step, or NULL. */
uint64_t lki_last_step(const lk_train_config *config, const lk_dataset_info *data,
                       const char **option);

/* Fails with LK_EINVAL if a limit is invalid or requires an option that is missing. */
LK_NODISCARD lk_status lki_stopping_check(const lk_train_config *config,
                                          const lk_dataset_info *data);

/* Adds an evaluation.  Returns true if it is one of the best, so that its checkpoint is kept. */
bool lki_stopping_see(lki_stopping *self, const lk_train_config *config, uint64_t step, double loss,
                      double accuracy);

/* Records that the checkpoint of `step` was written.  Drops the evaluations that it displaced. */
void lki_stopping_written(lki_stopping *self, uint64_t step);

/* Records that writing the checkpoint of `step` failed.  Restores the evaluations that it
 * displaced. */
void lki_stopping_refused(lki_stopping *self, const lk_train_config *config, uint64_t step);

/* Returns true if --patience is exhausted. */
bool lki_stopping_tires(const lki_stopping *self, const lk_train_config *config);

/* Returns the state as JSON for a checkpoint; NULL without --patience and --keep-best. */
json_t *lki_stopping_json(const lki_stopping *self, const lk_train_config *config);

/* Restores the state from a checkpoint.  Does nothing if `object` is NULL. */
void lki_stopping_read(const json_t *object, lki_stopping *self);

#endif

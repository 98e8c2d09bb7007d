/* train/watch.h -- which limit ends a run first, and what its evaluations have said so far.
 *
 * Limits of samples, tokens and epochs are steps, known before the run; time is not.  What
 * evaluations have said is the same on all ranks, and stands in the checkpoint, so that a resumed
 * run has the same patience left and keeps the same best checkpoints.
 */
#ifndef LKI_TRAIN_WATCH_H
#define LKI_TRAIN_WATCH_H

#include <jansson.h>

#include "lockstep/data.h"
#include "lockstep/train.h"

typedef struct {
    uint64_t step;
    double   value; /* its loss or its accuracy */
} lki_best;

/* One that a better one has displaced; its checkpoint stays until that one's is written. */
typedef struct {
    lki_best it;
    uint64_t by;
} lki_displaced;

enum { LKI_DISPLACED_MAX = 2 }; /* by the checkpoint that is being written, and by the next */

typedef struct {
    uint64_t evaluations, lowest_step;
    double   lowest; /* loss; without evaluations none */
    uint64_t stale;  /* evaluations since then that were no better */
    uint32_t best_count;
    lki_best best[LK_BEST_MAX]; /* the best first; of equals the earlier */
    uint32_t displaced_count;   /* with checkpoints that may yet be refused: the earlier first */
    lki_displaced displaced[LKI_DISPLACED_MAX];
} lki_watch;

/* The step with which the run ends if nothing ends it before, and in *option why if not by its
 * steps, else NULL. */
uint64_t lki_last_step(const lk_train_config *config, const lk_dataset_info *data,
                       const char **option);

/* LK_EINVAL: limits that make no sense, or that need something that is not there. */
LK_NODISCARD lk_status lki_watch_check(const lk_train_config *config, const lk_dataset_info *data);

/* Takes notice of an evaluation; true: it is one of the best, so its checkpoint is to be kept. */
bool lki_watch_see(lki_watch *watch, const lk_train_config *config, uint64_t step, double loss,
                   double accuracy);

/* What became of the checkpoint of a step: it was written, and what it displaced is gone; or the
 * disk refused it, and what it displaced is back in its place. */
void lki_watch_written(lki_watch *watch, uint64_t step);
void lki_watch_refused(lki_watch *watch, const lk_train_config *config, uint64_t step);

/* Whether no more patience is left. */
bool lki_watch_tires(const lki_watch *watch, const lk_train_config *config);

/* As a checkpoint keeps it; NULL: the run watches nothing.  Reading nothing changes nothing. */
json_t *lki_watch_json(const lki_watch *watch, const lk_train_config *config);
void    lki_watch_read(const json_t *object, lki_watch *watch);

#endif

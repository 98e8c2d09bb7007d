/* train/core/progress.h -- the progress of a run: its steps, their losses, and its end. */
#ifndef LKI_TRAIN_PROGRESS_H
#define LKI_TRAIN_PROGRESS_H

#include "train/core/session.h"

/* Computes the last step of the run, from its first step and the evaluations so far. */
void lki_find_end(lki_session *session);

/* Returns true if the time limit of the run has passed or has already ended the run. */
bool lki_time_is_over(const lki_session *s);

/* Begins the time of step `step`, from 1, at `now`.  The time of a step that is repeated after a
 * loss of ranks goes on, because the loss has cost it. */
void lki_session_clock(lki_session *s, uint64_t step, double now);

/* Adds the loss of step `done` to the loss chain. */
void lki_session_chain(lki_session *s, uint64_t done, const lk_step_result *result);

/* Fills in the log record of step record->step. */
void lki_session_record(const lki_session *s, const lk_step_result *result, double loss_scale,
                        lki_step_record *record);

/* Returns true if `step` is a multiple of `every`; false if `every` is 0. */
static inline bool lki_is_due(uint64_t every, uint64_t step)
{
    return every > 0 && step % every == 0;
}

/* Records an evaluation once; returns true if its checkpoint is one of the best.  Ignores the
 * evaluation of an interrupted run at its end, since an uninterrupted run would not have it. */
bool lki_heed_evaluation(lki_session *session, uint64_t done, double loss, double accuracy);

#endif

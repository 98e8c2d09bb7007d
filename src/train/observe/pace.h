/* train/observe/pace.h -- slow ranks: moves some of their virtual workers to other ranks, and
 * reports why they are slow.  See pace.c. */
#ifndef LKI_TRAIN_PACE_H
#define LKI_TRAIN_PACE_H

#include "train/core/session.h"

LK_NODISCARD lk_status lki_pace_open(lki_session *s);
void                   lki_pace_close(lki_session *s); /* accepts a session without pace */

/* Adds the times of a complete step.  If ranges have changed, adopts this rank's new range and
 * reopens its data. */
LK_NODISCARD lk_status lki_pace_step(lki_session *s, uint64_t done, const lk_step_result *result);

/* Logs moved virtual workers and slow ranks, after the step's own log line.  *told becomes true if
 * anything was logged. */
LK_NODISCARD lk_status lki_pace_tell(lki_session *s, const lki_step_record *record, bool *told);

/* Resets the statistics after the communicator was replaced.  Until the first step of the new
 * communicator, lki_pace_bounds() returns the previous bounds. */
void            lki_pace_regroup(lki_session *s);

/* Returns the bounds of the ranges, as in lki_dealing.bounds; NULL if none are known. */
const uint32_t *lki_pace_bounds(const lki_session *s);

/* Prints the totals at the end of the run. */
void lki_pace_summary(const lki_session *s);

#endif

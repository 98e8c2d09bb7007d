/* train/observe/pace.h -- ranks that are slower than others: whose virtual workers move to them or
 * from them, who is slow, and why.  See pace.c. */
#ifndef LKI_TRAIN_PACE_H
#define LKI_TRAIN_PACE_H

#include "train/session.h"

/* Whether virtual workers move, and whether others make them; LK_EINVAL says why they cannot where
 * that was asked for. */
bool                   lki_pace_moves(const lk_train_config *config);
bool                   lki_pace_duplicates(const lk_train_config *config);
LK_NODISCARD lk_status lki_pace_check(const lk_train_config *config);

LK_NODISCARD lk_status lki_pace_open(lki_session *s);
void                   lki_pace_close(lki_session *s); /* accepts what was not opened */

/* A step is complete: this rank's share is what it is from here on, and so are its data. */
LK_NODISCARD lk_status lki_pace_step(lki_session *s, uint64_t done, const lk_step_result *result);

/* When the step's line is in the log: who has got what, and who is slow. */
LK_NODISCARD lk_status lki_pace_tell(lki_session *s, const lki_step_record *record);

/* Another group makes the next step; until it is told of this gives the shares of the one before,
 * as lki_dealing has them. */
void            lki_pace_regroup(lki_session *s);
const uint32_t *lki_pace_bounds(const lki_session *s);

/* At the end of the run. */
void lki_pace_summary(const lki_session *s);

#endif

/* train/core/events.h -- event files, which TensorBoard and most trackers read.
 *
 * A file is a sequence of TFRecords, each with the protocol buffer Event: a few fields, which are
 * written here without a library.  All functions do nothing if `events` is NULL.
 */
#ifndef LKI_TRAIN_EVENTS_H
#define LKI_TRAIN_EVENTS_H

#include "base/status.h"
#include "train/core/step_record.h"

typedef struct lki_events lki_events;

/* Creates a new file in the directory, and the directory if there is none.  The first scalar says
 * where the file begins, so that readers drop later steps of an earlier file.  So a resumed run has
 * each step once.  Locks the directory until lki_events_free(); fails if `alone` is set and another
 * run has the lock. */
LK_NODISCARD lk_status lki_events_open(lki_events **out, const char *directory, bool alone);
LK_NODISCARD lk_status lki_events_step(lki_events *events, const lki_step_record *record);
LK_NODISCARD lk_status lki_events_evaluation(lki_events *events, uint64_t step, double loss,
                                             double accuracy, double rmse, bool tokens);
LK_NODISCARD lk_status lki_events_text(lki_events *events, const char *tag, const char *text);
void                   lki_events_free(lki_events *events);

#endif

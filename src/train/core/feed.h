/* train/core/feed.h -- the source of a rank's micro-batches.  See feed.c. */
#ifndef LKI_TRAIN_FEED_H
#define LKI_TRAIN_FEED_H

#include "train/core/session.h"

/* Fails if the data are a stream and an option needs a data set of known length. */
LK_NODISCARD lk_status lki_feed_check(const lk_train_config *config, const lk_dataset *dataset);

/* Returns the number of training samples as text. */
const char            *lki_feed_text(const lki_session *session, char text[40]);

/* Opens the source of micro-batches, beginning with step `start`. */
LK_NODISCARD lk_status lki_feed_open(lki_session *session, uint64_t start);
/* Opens a loader for step `step` only, for virtual workers between `first` and `last`. */
LK_NODISCARD lk_status lki_feed_open_some(lki_session *session, uint64_t step, uint32_t first,
                                          uint32_t last);
/* Reopens the loader from step `start` on, after this rank's virtual workers have changed. */
LK_NODISCARD lk_status lki_feed_deal(lki_session *session, uint64_t start);
void                   lki_feed_close(lki_session *session);
/* Reads the batch of a step from a stream, on all ranks.  *there becomes false if the stream has
 * ended (sets session->ended) or a request to stop came first (sets session->stopped). */
LK_NODISCARD lk_status lki_feed_step(lki_session *session, uint64_t step, bool *there);

/* Returns the next micro-batch of this rank, which must be number `micro` of virtual worker `v`. */
LK_NODISCARD lk_status lki_feed_next(lki_session *session, uint64_t step, uint32_t v,
                                     uint32_t micro, lk_batch *out);
/* Returns a micro-batch of any virtual worker, of this rank or another. */
LK_NODISCARD lk_status lki_feed_again(lki_session *session, uint64_t step, uint32_t v,
                                      uint32_t micro, lk_batch *out);

/* Returns the range of samples of step `step`, from 0. */
lk_step_span lki_step_span(const lki_session *session, uint64_t step);

#endif

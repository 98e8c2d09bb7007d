/* data/stream.h -- samples from a pipe, which are read once and in order.  Their number is
 * unknown. */
#ifndef LKI_DATA_STREAM_H
#define LKI_DATA_STREAM_H

#include "lockstep/data.h"

typedef struct lki_stream lki_stream;

/* Returns true if the data set is a stream (stream:PATH).  A stream can only be read by the
 * functions below, and its count of samples is a placeholder. */
bool lki_dataset_is_stream(const lk_dataset *dataset);

/* Opens the stream after its first `skip` samples, to take up to `most` samples at a time.  Returns
 * LK_EINVAL if samples cannot be skipped, as in a pipe.  Borrows the data set. */
LK_NODISCARD lk_status lki_stream_open(lki_stream **out, const lk_dataset *dataset, uint64_t skip,
                                       uint64_t most);
void lki_stream_close(lki_stream *stream);

/* Reads the next `count` samples; *got is less than `count` only at the end of the stream.  Waits
 * for the samples, and then until the stream ends or has more bytes. *last becomes true if the
 * stream ends.  Returns LK_ESTOPPED if the file descriptor `wake` (-1: none) becomes readable
 * first.  The stream must not be used after LK_ESTOPPED. */
LK_NODISCARD lk_status lki_stream_take(lki_stream *stream, int wake, uint64_t count, void *x,
                                       int32_t *y, uint64_t *got, bool *last);

/* ---- Reading ahead (ahead.c) ---------------------------------------------------------------- */

typedef struct lki_ahead lki_ahead;

/* Opens a stream as lki_stream_open() does, and starts a thread that reads batches of `most`
 * samples, one batch ahead. */
LK_NODISCARD lk_status lki_ahead_open(lki_ahead **out, const lk_dataset *dataset, uint64_t skip,
                                      uint64_t most);

/* Stops the thread, even if it waits for a pipe, and closes the stream. */
void lki_ahead_close(lki_ahead *ahead);

/* Waits up to `most_ms` for the next batch.  Returns true if lki_ahead_take() would not wait. */
bool lki_ahead_ready(lki_ahead *ahead, uint32_t most_ms);

/* Copies the next batch to `x` and `y`.  The results are those of lki_stream_take() for the
 * batch size given to lki_ahead_open().  Must not be called after the last batch or a failure. */
LK_NODISCARD lk_status lki_ahead_take(lki_ahead *ahead, void *x, int32_t *y, uint64_t *got,
                                      bool *last);

#endif

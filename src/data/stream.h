/* data/stream.h -- samples from a pipe: read once, in order, and nobody knows how many. */
#ifndef LKI_DATA_STREAM_H
#define LKI_DATA_STREAM_H

#include "lockstep/data.h"

typedef struct lki_stream lki_stream;

/* Whether the data set is a stream (stream:PATH): it can only be read by the functions below, and
 * its count of samples stands for one that is not known. */
bool lki_dataset_is_stream(const lk_dataset *dataset);

/* Opens the stream behind its first `skip` samples, for up to `most` samples at a time.  LK_EINVAL
 * if it cannot go there: a pipe is at its beginning only.  Borrows the data set. */
LK_NODISCARD lk_status lki_stream_open(lki_stream **out, const lk_dataset *dataset, uint64_t skip,
                                       uint64_t most);
void lki_stream_close(lki_stream *stream);

/* The next `count` samples, or those that are left, *got of them; waits until they are there and
 * it is known whether any follows: *last says that none does.  LK_ESTOPPED where `wake`, a file
 * descriptor (or -1), becomes readable before that: the stream is of no use then. */
LK_NODISCARD lk_status lki_stream_take(lki_stream *stream, int wake, uint64_t count, void *x,
                                       int32_t *y, uint64_t *got, bool *last);

/* ---- Ahead of their use (ahead.c) ----------------------------------------------------------- */

typedef struct lki_ahead lki_ahead;

/* Opens a stream as above, and a thread that takes `most` samples at a time from it, one such batch
 * ahead of its use. */
LK_NODISCARD lk_status lki_ahead_open(lki_ahead **out, const lk_dataset *dataset, uint64_t skip,
                                      uint64_t most);

/* Whatever the thread waits for. */
void lki_ahead_close(lki_ahead *ahead);

/* Waits up to `most_ms` for the next batch: whether lki_ahead_take() has it at once. */
bool lki_ahead_ready(lki_ahead *ahead, uint32_t most_ms);

/* The next batch, as lki_stream_take() of `most` samples gives it.  Nothing follows the last, nor a
 * failure. */
LK_NODISCARD lk_status lki_ahead_take(lki_ahead *ahead, void *x, int32_t *y, uint64_t *got,
                                      bool *last);

#endif

/* parallel/offload.h -- the optimizer's state in files: each rank's own part in a file of its own.
 *
 * The spans that a rank owns are cut into chunks, in order; a chunk has all states of its spans.
 * An update goes over the chunks: while one is computed on, the next is read and the one before is
 * written.  What comes back is compared with its hash (XXH3) before anything uses it.  A chunk that
 * was never written is zeros, and not read.
 *
 * Cost: a step reads and writes every state once (lamb: twice); LKI_OFFLOAD_BUFFERS chunks of
 *       memory a rank, and 12 bytes for each span of the model.
 */
#ifndef LKI_PARALLEL_OFFLOAD_H
#define LKI_PARALLEL_OFFLOAD_H

#include "parallel/strategy.h"

enum { LKI_OFFLOAD_BUFFERS = 4 };

/* Nothing happens in these where parallel->offload is NULL; parallel->offload_dir says where files
 * are to be. */
LK_NODISCARD lk_status lki_offload_open(lk_parallel *parallel);
void                   lki_offload_close(lk_parallel *parallel);

/* Bytes of memory, and of files, of the ranks of a host; asks for nothing but the layout. */
size_t lki_offload_memory(const lk_parallel *parallel);
size_t lki_offload_files(const lk_parallel *parallel);

/* Goes over my spans by chunks: their states can be found while visit() is called with places
 * [first, end) in parallel->mine. */
typedef void (*lki_offload_visit)(void *context, size_t first, size_t end);
LK_NODISCARD lk_status lki_offload_walk(lk_parallel *parallel, lki_offload_visit visit,
                                        void *context);

/* The states of a span (by its number in the layout) whose chunk is there. */
void lki_offload_states(const lk_parallel *parallel, size_t span, float **states);

/* Copies elements [from, from + count) of a span's state out of, or all into, its chunk, which is
 * fetched if need be.  What was put is in the file after lki_offload_settle(). */
LK_NODISCARD lk_status lki_offload_get(lk_parallel *parallel, size_t span, uint32_t state,
                                       size_t from, size_t count, float *out);
LK_NODISCARD lk_status lki_offload_put(lk_parallel *parallel, size_t span, uint32_t state,
                                       const float *values);
LK_NODISCARD lk_status lki_offload_settle(lk_parallel *parallel);

/* Seconds that this rank has waited for its file since it was asked last. */
double lki_offload_stalled(lk_parallel *parallel);

#endif

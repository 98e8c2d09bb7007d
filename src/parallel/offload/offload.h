/* parallel/offload/offload.h -- the optimizer's state, or parameters, in files: each rank's own
 * part in a file of its own.  See offload.c. */
#ifndef LKI_PARALLEL_OFFLOAD_H
#define LKI_PARALLEL_OFFLOAD_H

#include "parallel/strategy.h"

/* Nothing happens in these where parallel->in_files is 0; else parallel->offload_dir says where
 * files are to be. */
LK_NODISCARD lk_status lki_offload_open(lk_parallel *parallel);
void                   lki_offload_close(lk_parallel *parallel);

/* Bytes of memory, for states and for parameters, and of files, of the ranks of a host; asks for
 * nothing but the layout. */
size_t lki_offload_states_memory(const lk_parallel *parallel);
size_t lki_offload_params_memory(const lk_parallel *parallel);
size_t lki_offload_files(const lk_parallel *parallel);

/* What is gone over, where it is in a file: states, to be written back; parameters; and whether
 * these are written back. */
enum { LKI_OVER_STATES = 1, LKI_OVER_PARAMS = 2, LKI_OVER_CHANGES = 4 };

/* Whether any of it is in a file. */
bool lki_offload_has(const lk_parallel *parallel, unsigned over);

/* Goes over my spans by chunks: lki_offload_states() and lki_values_of() find theirs while visit()
 * is called with places [first, end) in parallel->mine. */
typedef void (*lki_offload_visit)(void *context, size_t first, size_t end);
LK_NODISCARD lk_status lki_offload_walk(lk_parallel *parallel, unsigned over,
                                        lki_offload_visit visit, void *context);

/* The states of a span (by its number in the layout) whose chunk is there. */
void lki_offload_states(const lk_parallel *parallel, size_t span, float **states);

/* Copies elements [from, from + count) of a span's value out of, or all into, its file: `which` is
 * 0 for the parameter, else 1 + the state's number.  What was put is there after
 * lki_offload_settle(). */
LK_NODISCARD lk_status lki_offload_get(lk_parallel *parallel, size_t span, uint32_t which,
                                       size_t from, size_t count, float *out);
LK_NODISCARD lk_status lki_offload_put(lk_parallel *parallel, size_t span, uint32_t which,
                                       const float *values);
LK_NODISCARD lk_status lki_offload_settle(lk_parallel *parallel);

/* Seconds that this rank has waited for its files since it was asked last. */
double lki_offload_stalled(lk_parallel *parallel);

#endif

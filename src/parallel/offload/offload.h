/* parallel/offload/offload.h -- the optimizer's state, or parameters, in files.  Each rank has a
 * file for its own part.  See offload.c. */
#ifndef LKI_PARALLEL_OFFLOAD_H
#define LKI_PARALLEL_OFFLOAD_H

#include "parallel/state.h"

/* Opens the files in parallel->offload.folder.  All functions of this header do nothing if
 * parallel->offload.kinds is 0. */
LK_NODISCARD lk_status lki_offload_open(lk_parallel *parallel);
void                   lki_offload_close(lk_parallel *parallel);

/* Returns the bytes of memory for states, over all ranks of a host.  Like the next two functions,
 * it needs only the layout. */
size_t lki_offload_states_memory(const lk_parallel *parallel);

/* Returns the bytes of memory for parameters. */
size_t lki_offload_params_memory(const lk_parallel *parallel);

/* Returns the bytes of all files. */
size_t lki_offload_files(const lk_parallel *parallel);

/* Flags of the values that a walk needs.  STATES: states, which are written back.  PARAMS:
 * parameters.  CHANGES: parameters are written back as well. */
enum { LKI_OVER_STATES = 1, LKI_OVER_PARAMS = 2, LKI_OVER_CHANGES = 4 };

/* Returns true if any of these values is in a file. */
bool lki_offload_has(const lk_parallel *parallel, unsigned over);

/* Visits this rank's spans chunk by chunk.  visit() gets a range [first, end) of indices into
 * parallel->owned.spans, for which lki_offload_states() and lki_values_of() are valid during the
 * call. */
typedef void (*lki_offload_visit)(void *context, size_t first, size_t end);
LK_NODISCARD lk_status lki_offload_walk(lk_parallel *parallel, unsigned over,
                                        lki_offload_visit visit, void *context);

/* Returns the states of a span, given by its number in the layout.  The span's chunk must be in
 * memory. */
void lki_offload_states(const lk_parallel *parallel, size_t span, float **states);

/* Copies elements [from, from + count) of a span's value from its file.  `which` is 0 for the
 * parameter, else 1 + the number of the state. */
LK_NODISCARD lk_status lki_offload_get(lk_parallel *parallel, size_t span, uint32_t which,
                                       size_t from, size_t count, float *out);

/* Copies all elements of a span's value to its file.  They are written before the file is read
 * again. */
LK_NODISCARD lk_status lki_offload_put(lk_parallel *parallel, size_t span, uint32_t which,
                                       const float *values);

/* Returns the seconds that this rank has waited for its files since the last call. */
double lki_offload_stalled(lk_parallel *parallel);

#endif

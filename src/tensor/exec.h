/* tensor/exec.h -- what operators take from an lk_exec: kernels, threads, buffers. */
#ifndef LKI_TENSOR_EXEC_H
#define LKI_TENSOR_EXEC_H

#include "tensor/isa/kernels.h"

enum {
    LKI_EXEC_SHARED  = 1u << 20, /* floats all threads share: packed panels of b */
    LKI_EXEC_PRIVATE = 1u << 18, /* floats a thread has to itself */
};

const lki_kernels *lki_exec_kernels(const lk_exec *exec);

/* Buffers that an operator may use while it runs; operators called from it use them too. */
float *lki_exec_shared(lk_exec *exec);
float *lki_exec_private(lk_exec *exec, uint32_t thread);

/* Binds its threads, one by one, to cores that the caller may run on, as lki_pool_pin() does, and
 * gives each a buffer near by; where that cannot be, they run where there is room. */
LK_NODISCARD lk_status lki_exec_pin(lk_exec *exec);
void                   lki_exec_pin_caller(lk_exec *exec, bool pinned); /* lki_pool_pin_caller() */

/* From here on what the thread that uses `exec` does is added to track 0 of `trace`, and what its
 * helpers do to the tracks from `helpers` on.  NULL: nothing. */
void      lki_exec_trace(lk_exec *exec, lki_trace *trace, uint32_t helpers);
lki_track *lki_exec_track(const lk_exec *exec); /* track 0, or NULL */

/* Floating-point operations a second of all threads together: independent steps of products of
 * `operands`, F32 or BF16, in registers, for about `seconds`.  What any kernel could at most. */
double lki_exec_peak(lk_exec *exec, lk_dtype operands, double seconds);

/* As lk_parallel_for(), with the thread's number. */
void lki_exec_run(lk_exec *exec, size_t count, lki_task task, void *context);

enum { LKI_GRAIN = 16384 }; /* elements: a span of cheap work that outweighs its hand-over */

#endif

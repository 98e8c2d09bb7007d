/* tensor/exec.h -- the parts of an lk_exec that operators use. */
#ifndef LKI_TENSOR_EXEC_H
#define LKI_TENSOR_EXEC_H

#include "tensor/ops.h"

enum {
    LKI_EXEC_SHARED  = 1u << 20, /* floats that all threads share, for packed panels of b */
    LKI_EXEC_PRIVATE = 1u << 18, /* floats for each thread */
};

/* The tables of kernels of an instruction set (isa/kernels.h). */
typedef struct lki_kernels lki_kernels;

const lki_kernels *lki_exec_kernels(const lk_exec *exec);

/* Returns the buffer that all threads share.  The current operator, and operators that it calls,
 * may use it. */
float *lki_exec_shared(lk_exec *exec);

/* Returns the buffer of one thread, for the current operator and operators that it calls. */
float *lki_exec_private(lk_exec *exec, uint32_t thread);

/* Returns the size of a core's second-level cache, or 1 MiB if it is not known. */
size_t lki_exec_near_bytes(const lk_exec *exec);

/* Binds each thread to one of the caller's cores, as lki_pool_pin() does, and gives it a buffer in
 * nearby memory.  If this is impossible, threads are not bound. */
LK_NODISCARD lk_status lki_exec_pin(lk_exec *exec);

/* Calls lki_pool_pin_caller(). */
void                   lki_exec_pin_caller(lk_exec *exec, bool pinned);

/* Traces the work of all threads from now on.  The work of the calling thread is recorded in track
 * 0 of `trace`, the work of its helpers in the tracks from `helpers` on.  NULL stops recording. */
void      lki_exec_trace(lk_exec *exec, lki_trace *trace, uint32_t helpers);
lki_track *lki_exec_track(const lk_exec *exec); /* track 0, or NULL */

/* Runs tasks like lk_parallel_for(), and passes the thread's number to each. */
void lki_exec_run(lk_exec *exec, size_t count, lki_task task, void *context);

/* The number of elements per task.  With fewer elements, starting a task would cost more than cheap
 * work on them. */
enum { LKI_GRAIN = 16384 };

#endif

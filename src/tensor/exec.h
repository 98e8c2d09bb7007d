/* tensor/exec.h -- what operators take from an lk_exec: kernels, threads, buffers. */
#ifndef LKI_TENSOR_EXEC_H
#define LKI_TENSOR_EXEC_H

#include "tensor/isa/kernels.h"

enum {
    LKI_EXEC_SHARED  = 1u << 20, /* floats all threads share: packed panels of b */
    LKI_EXEC_PRIVATE = 1u << 17, /* floats a thread has to itself */
};

const lki_kernels *lki_exec_kernels(const lk_exec *exec);

/* Buffers that an operator may use while it runs; operators called from it use them too. */
float *lki_exec_shared(lk_exec *exec);
float *lki_exec_private(lk_exec *exec, uint32_t thread);

/* As lk_parallel_for(), with the thread's number. */
void lki_exec_run(lk_exec *exec, size_t count, lki_task task, void *context);

enum { LKI_GRAIN = 16384 }; /* elements: a span of cheap work that outweighs its hand-over */

#endif

/* ops/gemm_turned.h -- products of few rows with the transpose of a large matrix. */
#ifndef LKI_TENSOR_OPS_GEMM_TURNED_H
#define LKI_TENSOR_OPS_GEMM_TURNED_H

#include "tensor/ops.h"

/* Computes lki_gemm(exec, args) if that is faster than packing b, which is the case for some shapes
 * only; else it does nothing and returns false.  The same bits. */
bool lki_gemm_turned(lk_exec *exec, const lki_gemm_args *args);

/* Whether it would; looks at no memory. */
bool lki_gemm_turns(const lk_exec *exec, const lki_gemm_args *args);

#endif

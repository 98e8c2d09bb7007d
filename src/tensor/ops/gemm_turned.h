/* ops/gemm_turned.h -- products of few rows with a large matrix. */
#ifndef LKI_TENSOR_OPS_GEMM_TURNED_H
#define LKI_TENSOR_OPS_GEMM_TURNED_H

#include "tensor/ops.h"

/* Computes the product of lki_gemm(exec, args), with the same bits, if for its shape this method is
 * faster than packing b.  Otherwise does nothing and returns false. */
bool lki_gemm_turned(lk_exec *exec, const lki_gemm_args *args);

/* Returns true if lki_gemm_turned() would compute the product.  Does not read the operands. */
bool lki_gemm_turns(const lk_exec *exec, const lki_gemm_args *args);

/* Computes the product of lki_gemm(exec, args), with the same bits, if it has one row and b can be
 * read in place (gemm_row.c).  Otherwise does nothing and returns false. */
bool lki_gemm_row(lk_exec *exec, const lki_gemm_args *args);

#endif

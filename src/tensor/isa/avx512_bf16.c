/* avx512_bf16.c -- the matrix product of bf16 values, where an instruction multiplies pairs. */
#include "tensor/isa/kernels.h"

#if defined(__x86_64__)
#include <string.h>

#include "base/float.h"
#include "tensor/isa/simd.h"

#include "tensor/isa/half.inc"

#include "tensor/isa/gemm_tile.inc"
#include "tensor/isa/gemm_bf16.inc"

const lki_gemm_kernels lki_gemm_avx512_bf16 = LKI_GEMM_BF16;
#endif

/* amx.c -- the kernels of products of bf16 values on AMX tiles. */
#include "tensor/isa/kernels.h"

#if defined(__x86_64__)
#include <string.h>

#include "base/float.h"
#include "tensor/isa/simd.h"

#include "tensor/isa/half.inc"

#define LKI_GEMM_WHOLE_CHUNKS
#include "tensor/isa/gemm_bf16.inc"

#include "tensor/isa/amx.h"
#include "tensor/isa/amx.inc"

const lki_gemm_kernels *const lki_gemm_amx = &amx_kernels;
#endif

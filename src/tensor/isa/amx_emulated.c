/* amx_emulated.c -- the kernels of amx.c, with the operations on tiles in C, for any processor. */
#include "tensor/isa/kernels.h"

#include <string.h>

#include "base/float.h"
#define LKI_SIMD_PORTABLE
#include "tensor/isa/simd.h"

#include "tensor/isa/half.inc"

#define LKI_GEMM_WHOLE_CHUNKS
#include "tensor/isa/gemm_bf16.inc"

#define LKI_AMX_EMULATED
#include "tensor/isa/amx.h"
#include "tensor/isa/amx.inc"

const lki_gemm_kernels *const lki_gemm_amx_emulated = &amx_kernels;

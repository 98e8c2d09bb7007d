/* avx512_bf16.c -- the kernels of bf16 values, with the instruction that multiplies pairs of
 * values. */
#include "tensor/isa/kernels.h"

#if defined(__x86_64__)
#include <string.h>

#include "base/float.h"
#include "tensor/isa/simd.h"

#include "tensor/isa/half.inc"
#include "tensor/isa/math.inc"
#include "tensor/isa/philox.inc"

#include "tensor/isa/bf16.inc"

const lki_bf16_kernels lki_bf16_avx512 = LKI_BF16_KERNELS;
#endif

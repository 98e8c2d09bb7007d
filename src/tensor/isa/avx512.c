/* avx512.c -- the kernels on 512-bit registers. */
#include "tensor/isa/kernels.h"

#if defined(__x86_64__)
#include "tensor/isa/bodies.inc"

const lki_kernels lki_kernels_avx512 = { .name = "avx512", LKI_KERNEL_FAMILIES };
#endif

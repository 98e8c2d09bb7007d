/* avx2.c -- the kernels on 256-bit registers with FMA. */
#include "tensor/isa/kernels.h"

#if defined(__x86_64__)
#include "tensor/isa/bodies.inc"

const lki_kernels lki_kernels_avx2 = { .name = "avx2", LKI_KERNEL_FAMILIES };
#endif

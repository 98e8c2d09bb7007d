/* neon.c -- the kernels on 128-bit registers of 64-bit ARM, which all have fma. */
#include "tensor/isa/kernels.h"

#if defined(__aarch64__)
#include "tensor/isa/bodies.inc"

const lki_kernels lki_kernels_neon = { .name = "neon", LKI_KERNEL_FAMILIES };
#endif

/* portable.c -- the kernels on the vectors that every processor of the target has. */
#include "tensor/isa/kernels.h"

#define LKI_SIMD_PORTABLE

#include "tensor/isa/bodies.inc"

const lki_kernels lki_kernels_portable = { .name = "portable", LKI_KERNEL_FAMILIES };

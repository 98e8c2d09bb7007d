/* portable.c -- the kernels on whatever vectors the target's baseline has. */
#include "tensor/isa/kernels.h"

#define LKI_SIMD_PORTABLE

#include "tensor/isa/bodies.inc"

const lki_kernels lki_kernels_portable = { .name = "portable", LKI_KERNEL_FAMILIES };

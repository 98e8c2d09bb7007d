/* row_neon.c -- the kernels of products of one row on NEON registers. */
#include "tensor/isa/row.h"

#if defined(__aarch64__)
#include "tensor/isa/row.inc"

const lki_row_kernels lki_row_neon = LKI_ROW_KERNELS;
#endif

/* row_avx512.c -- the kernels of products of one row on 512-bit registers. */
#include "tensor/isa/row.h"

#if defined(__x86_64__)
#include "tensor/isa/row.inc"

const lki_row_kernels lki_row_avx512 = LKI_ROW_KERNELS;
#endif

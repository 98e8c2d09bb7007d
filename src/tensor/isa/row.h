/* tensor/isa/row.h -- the kernels of products of one row: c (n) = a (k) b. */
#ifndef LKI_TENSOR_ISA_ROW_H
#define LKI_TENSOR_ISA_ROW_H

#include "tensor/isa/kernels.h"

/* Operands are float or uint16_t (bf16).  Rows of b are `ldb` elements apart; ldb is even in bf16.
 * The sums are those of lki_gemm(). */
typedef struct {
    size_t      n, k;
    const void *a, *b;
    size_t      ldb;
    float      *sums;
} lki_row_product;

typedef struct {
    /* b is (k, n); k is a multiple of 8, in bf16 of LKI_CHUNK. */
    void (*f32)(const lki_row_product *product);
    void (*bf16)(const lki_row_product *product);

    /* b is (n, k); k is a multiple of 16, in bf16 of LKI_CHUNK. */
    void (*f32_transposed)(const lki_row_product *product);
    void (*bf16_transposed)(const lki_row_product *product);
} lki_row_kernels;

#if defined(__x86_64__)
extern const lki_row_kernels lki_row_avx512, lki_row_avx2;
#endif
#if defined(__aarch64__)
extern const lki_row_kernels lki_row_neon;
#endif

#endif

/* tensor/ops/gemm_product.h -- a matrix product that is being computed, and the operands, sums and
 * end of a block of it. */
#ifndef LKI_TENSOR_OPS_GEMM_PRODUCT_H
#define LKI_TENSOR_OPS_GEMM_PRODUCT_H

#include "base/memory.h"
#include "tensor/exec.h"
#include "tensor/isa/kernels.h"

/* The offsets in a thread's buffer: packed a, packed panels of b, and the sums of a tile.  A part
 * of whole micro-panels may have up to LKI_GEMM_ROWS_MAX rows more than a tile. */
enum {
    LKI_PRODUCT_PANELS  = 256, /* columns of b in a thread's buffer */
    LKI_PRODUCT_B_AT    = (LKI_GEMM_M + LKI_GEMM_ROWS_MAX) * LKI_GEMM_K,
    LKI_PRODUCT_SUMS_AT = LKI_PRODUCT_B_AT + LKI_GEMM_K * LKI_PRODUCT_PANELS,
};

typedef struct {
    const lki_gemm_args    *args;
    const lki_kernels      *all;
    const lki_gemm_kernels *kernels;
    lk_exec                *exec;
    float                  *packed;
    /* the whole packed b in args->pack; NULL: there is no pack */
    const float            *kept;
    lk_dtype                result;
    size_t                  bytes, pair;  /* bytes of an element of an operand; elements per word */
    size_t                  b_bytes;      /* bytes of an element of b in the caller's memory */
    void (*pack_panel)(bool transposed, size_t n, size_t k, const void *b, size_t ldb, float *to);
    size_t                  steps;        /* words along k */
    size_t                  lda, ldb, ldc;
    /* columns of b and c in the slab: number of the first, and count */
    size_t                  col, columns;
    /* words along k in the slab: number of the first, and count */
    size_t                  k, depth;
    size_t                  pack_panels;  /* panels of a packing task */
    bool                    pack_a, b_in_place;
    size_t                  tiles_down, tiles_across;
} lki_product;

/* Returns the address of an element of a matrix in the caller's memory. */
static inline const void *lki_operand_at(const void *base, size_t row, size_t stride,
                                         size_t column, size_t bytes)
{
    return (const char *)base + (row * stride + column) * bytes;
}

/* Packs the panel of b that starts at word k0, column j. */
void lki_product_pack_b(const lki_product *p, size_t k0, size_t k, size_t j, size_t n, float *to);

/* Returns words k0 .. k0 + k of b, from column `col` on, in the pack. */
const float *lki_product_kept_b(const lki_product *p, size_t k0, size_t k, size_t col);

/* Points the block to its rows of `a`, from words k0 on: in place, or packed into the thread's
 * buffer. */
void lki_product_place_a(const lki_product *p, lki_gemm_block *block, size_t row, size_t k0,
                         uint32_t thread);

/* Makes the block keep the sums of the tile at (row, col) in c or, for a result in bf16, in the
 * thread's buffer.  With `accumulate` the buffer then begins with the values of c. */
void lki_product_place_sums(const lki_product *p, lki_gemm_block *block, size_t row, size_t col,
                            uint32_t thread);

/* Decides how bias, residual and activation are applied to a block at (row, col): by the
 * micro-kernel, or afterwards as described in *end. */
void lki_product_place_end(const lki_product *p, lki_gemm_block *block, lki_gemm_finish *end,
                           size_t row, size_t col);

/* Writes the result of a block at (row, col) whose sums are complete, if its rows are pixels. */
void lki_product_write_pixels(const lki_product *p, const lki_gemm_block *block, size_t row,
                              size_t col);

#endif

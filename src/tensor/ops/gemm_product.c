/* gemm_product.c -- the operands, sums and end of a block of a product; see gemm_product.h. */
#include "tensor/ops/gemm_product.h"

/* Returns the number of elements of k in `words` words from word `first` on. */
static size_t elements(const lki_product *p, size_t first, size_t words)
{
    return lki_min(words * p->pair, p->args->k - first * p->pair);
}

void lki_product_pack_b(const lki_product *p, size_t k0, size_t k, size_t j, size_t n, float *to)
{
    const lki_gemm_args *g   = p->args;
    size_t               row = k0 * p->pair;
    p->pack_panel(g->transpose_b, n, elements(p, k0, k),
                  g->transpose_b ? lki_operand_at(g->b, j, p->ldb, row, p->b_bytes)
                                 : lki_operand_at(g->b, row, p->ldb, j, p->b_bytes), p->ldb, to);
}

const float *lki_product_kept_b(const lki_product *p, size_t k0, size_t k, size_t col)
{
    return p->kept + k0 * lki_round_up(p->args->n, p->kernels->columns) + col * k;
}

/* Points the block to its rows of windows, which are copied to `packed` as rows of words. */
static void place_windows(const lki_product *p, lki_gemm_block *block, size_t row, size_t k0,
                          float *packed)
{
    p->kernels->pack_windows(p->args->windows, row, block->m, k0 * p->pair,
                             elements(p, k0, block->k), packed);
    block->a          = packed;
    block->row_stride = block->k;
}

void lki_product_place_a(const lki_product *p, lki_gemm_block *block, size_t row, size_t k0,
                         uint32_t thread)
{
    const lki_gemm_args *g      = p->args;
    size_t               k_at   = k0 * p->pair;
    float               *packed = lki_exec_private(p->exec, thread);
    if (g->a == NULL) {
        place_windows(p, block, row, k0, packed);
        return;
    }
    const void *a = g->transpose_a ? lki_operand_at(g->a, k_at, p->lda, row, p->bytes)
                                   : lki_operand_at(g->a, row, p->lda, k_at, p->bytes);
    block->a          = a;
    block->row_stride = p->lda / p->pair;
    if (!p->pack_a)
        return;
    p->kernels->pack_a(g->transpose_a, block->m, elements(p, k0, block->k), a, p->lda, packed);
    block->a          = packed;
    block->packed     = p->pair == 1;
    block->row_stride = block->k;
}

void lki_product_place_sums(const lki_product *p, lki_gemm_block *block, size_t row, size_t col,
                            uint32_t thread)
{
    const lki_gemm_args *g = p->args;
    if (p->result == LK_F32) {
        block->c   = (float *)g->c + row * p->ldc + col;
        block->ldc = p->ldc;
        return;
    }
    block->c   = lki_exec_private(p->exec, thread) + LKI_PRODUCT_SUMS_AT;
    block->ldc = block->n;
    for (size_t i = 0; g->accumulate && i < block->m; i++)
        p->all->elementwise->convert(block->n, LK_BF16,
                                     (const uint16_t *)g->c + (row + i) * p->ldc + col, LK_F32,
                                     block->c + i * block->n);
}

/* Returns how the sums of a block become rows of the result from `row` on. */
static lki_gemm_finish finish_of(const lki_product *p, const lki_gemm_block *block, size_t row,
                                 size_t col)
{
    const lki_gemm_args *g  = p->args;
    size_t               at = (row * p->ldc + col) * lk_dtype_bytes(p->result);
    return (lki_gemm_finish){
        .sums       = block->c,
        .ld_sums    = block->ldc,
        .bias       = g->bias == NULL ? NULL : g->bias + col,
        .activation = g->activation,
        .type       = p->result,
        .c          = (char *)g->c + at,
        .pre        = g->pre == NULL ? NULL : (char *)g->pre + at,
        .residual   = g->residual == NULL ? NULL : (const char *)g->residual + at,
        .ldc        = p->ldc,
    };
}

void lki_product_place_end(const lki_product *p, lki_gemm_block *block, lki_gemm_finish *end,
                           size_t row, size_t col)
{
    const lki_gemm_args *g  = p->args;
    bool                 sums = p->result == LK_F32 && g->activation == LKI_ACT_NONE;
    if (g->pixels != NULL || (sums && g->bias == NULL && g->residual == NULL))
        return;
    if (sums && p->pair == 1) {
        block->bias     = g->bias == NULL ? NULL : g->bias + col;
        block->residual = g->residual == NULL ? NULL
                                              : (const float *)g->residual + row * p->ldc + col;
        return;
    }
    *end          = finish_of(p, block, row, col);
    block->ends   = p->all->gemm_ends;
    block->finish = end;
}

void lki_product_write_pixels(const lki_product *p, const lki_gemm_block *block, size_t row,
                              size_t col)
{
    const lki_pixel_rows *to = p->args->pixels;
    if (to == NULL)
        return;
    lki_gemm_block rest = *block;
    for (size_t run; rest.m > 0; rest.m -= run, row += run, rest.c += run * rest.ldc) {
        size_t line = row / to->across, j = row % to->across;
        size_t y = line / to->down * to->h + to->y + line % to->down * to->step;
        lki_gemm_finish end = finish_of(p, &rest, y * to->w + to->x + j * to->step, col);
        run     = lki_min(rest.m, to->across - j);
        end.ldc = to->step * p->ldc;
        p->all->gemm_ends->finish(&end, 0, 0, run, block->n);
    }
}

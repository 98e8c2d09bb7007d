/* tensor/isa/scores.h -- the kernels of attention in bf16, other than matrix products.
 *
 * Scores are FP32 results of a product.  Probabilities and gradients of scores are operands of the
 * next product: bf16 values, rounded by v16_to_operand(), which replaces subnormal values by zero.
 * 2^x is v16_exp2().
 */
#ifndef LKI_TENSOR_ISA_SCORES_H
#define LKI_TENSOR_ISA_SCORES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A block.  Its matrices are (queries, keys) with rows `ld` apart; `queries` is at most 64, and
 * `keys` is a multiple of 16.  The first query may attend to the first `past` keys, and each
 * further query to one more. */
typedef struct {
    size_t       queries, keys, past, ld;
    float        factor; /* log2 e / sqrt(head size), for powers of 2 */
    const float *scores;
    const float *keep; /* for each score: 0 or 1 / (1 - p); NULL without dropout */
    uint16_t    *p;    /* probabilities */
    uint16_t    *ds;   /* backward: gradients of scores */

    /* Forward: the state of every query. */
    float *max;               /* maximum score so far, times factor */
    float *sums;              /* (queries, 16): lane l sums keys l, l + 16, ... */
    /* (queries, width), rows padded to whole vectors; NULL for the first block */
    float *out;
    size_t width;

    /* For backward. */
    const float *dp;          /* gradients of the probabilities, before dropout */
    const float *lse, *delta;
} lki_score_block;

typedef struct {
    /* Updates `max`, `sums` and `out` with a block, and stores its probabilities (0 if dropped). */
    void (*forward)(const lki_score_block *block);

    /* Computes keep p and ds = p (keep dp - delta), where p = 2^(factor score - lse). */
    void (*backward)(const lki_score_block *block);

    /* Stores y = x factor or, with `add`, y + x factor, rounded once. */
    void (*finish)(size_t n, float factor, const float *x, uint16_t *y, bool add);
    float (*lane_sum)(const float *lanes); /* returns the sum of 16 lanes, by the lane tree */
    float (*dot)(size_t n, const uint16_t *a, const uint16_t *b); /* on 16 lanes, in FP32 */
} lki_score_kernels;

#endif

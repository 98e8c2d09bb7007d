/* tensor/isa/scores.h -- what attention in bf16 does between its products.
 *
 * Scores come out of a product in FP32; probabilities and gradients of scores go into the next as
 * words of two bf16 values (isa/gemm.h), rounded as v16_to_operand() says: subnormal values are
 * zeros.  2^x is v16_exp2().
 */
#ifndef LKI_TENSOR_ISA_SCORES_H
#define LKI_TENSOR_ISA_SCORES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LKI_SCORE_LANES = 16 };

/* A block: all its matrices are (queries, keys) with rows `ld` apart; queries <= 64, keys in whole
 * lanes.  The first `past` keys are in the past of the first query, one more of the next's. */
typedef struct {
    size_t       queries, keys, past, ld;
    float        factor;      /* to the base of 2: log2 e / sqrt(head size) */
    const float *scores;
    const float *keep;        /* 0 or 1 / (1 - p) a score; NULL without dropout */
    uint16_t    *operand;     /* forward: probabilities; backward: gradients of scores */

    /* forward: of every query, so far */
    float *max;               /* factor times the largest score */
    float *sums;              /* (queries, 16): lane l has the keys l modulo 16 */
    float *out;               /* (queries, width), rows whole lanes; NULL before the first block */
    size_t width;

    /* backward: of every query; then words of two queries each, (queries / 2 rounded up, ld) */
    const float *dp;          /* gradients of the probabilities, without dropout */
    const float *lse, *delta;
    float       *p_pairs, *ds_pairs;
} lki_score_block;

typedef struct {
    /* Moves max, sums and out on by a block and leaves its probabilities (dropped ones 0). */
    void (*forward)(const lki_score_block *block);

    /* p = 2^(factor score - lse), ds = p (keep dp - delta); p_pairs gets keep p. */
    void (*backward)(const lki_score_block *block);

    /* y = x factor, or y + x factor, rounded once. */
    void (*finish)(size_t n, float factor, const float *x, uint16_t *y, bool add);
    float (*lane_sum)(const float *lanes); /* of 16, by the lane tree */
    float (*dot)(size_t n, const uint16_t *a, const uint16_t *b); /* on 16 lanes, in FP32 */
} lki_score_kernels;

#endif

/* tensor/ops/conv.h -- what the files of convolution share. */
#ifndef LKI_TENSOR_OPS_CONV_H
#define LKI_TENSOR_OPS_CONV_H

#include "base/memory.h"
#include "tensor/exec.h"

enum { LKI_CONV_LANES = 16 };

/* Weights are reordered for some columns of the result at a time, so that they are still in a near
 * cache when they are used: as many as about 1 MiB holds, but a multiple of `least`. */
#define LKI_CONV_WAVE ((size_t)1 << 18) /* floats */

static inline size_t lki_conv_wave(size_t depth, size_t columns, size_t least)
{
    size_t wave = LKI_CONV_WAVE / lki_max(1, depth) / least * least;
    return lki_min(columns, lki_max(least, wave));
}

/* The most that the matrix of a wave takes, for up to `depth` rows and `least` up to 64. */
static inline size_t lki_conv_wave_bytes(size_t depth, size_t columns)
{
    size_t whole = depth * lki_round_up(columns, LKI_CONV_LANES);
    size_t wave  = lki_max(LKI_CONV_WAVE, depth * 64) + depth * LKI_CONV_LANES;
    return lki_round_up(lki_min(whole, wave) * sizeof(float), 64);
}

/* Scratch of the weights' gradient. */
size_t lki_conv_weights_bytes(const lki_conv_shape *shape);
size_t lki_conv_weights_bf16_bytes(const lki_conv_shape *shape);

/* A wave of dw (cout, cin, kh, kw), and the same in the order of the tiles: a matrix
 * (kh kw cin, columns). */
typedef struct {
    const lki_conv_shape *shape;
    float                *dw, *matrix;
    size_t                first, columns; /* of output channels, in whole lanes */
} lki_conv_dw;
void lki_conv_reorder(lk_exec *exec, const lki_conv_dw *dw);
void lki_conv_restore(lk_exec *exec, const lki_conv_dw *dw);

#endif

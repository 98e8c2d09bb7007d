/* tensor/ops/conv.h -- functions shared by the files of convolution. */
#ifndef LKI_TENSOR_OPS_CONV_H
#define LKI_TENSOR_OPS_CONV_H

#include "base/memory.h"
#include "tensor/exec.h"

enum { LKI_CONV_LANES = 16 };

/* Positions 0 .. count - 1 along an axis of an image of `size` pixels.  Position i uses those of
 * the pixels start + i * step .. start + i * step + taps - 1 that exist. */
typedef struct {
    ptrdiff_t start;
    size_t    step, count, taps, size;
} lki_conv_axis;

/* Returns, along one axis, the input positions *first + i * stride, which use the taps of residue r
 * modulo the stride, and the outputs that they use. */
static inline lki_conv_axis lki_conv_residue(size_t *first, size_t r, size_t in, size_t out,
                                             size_t kernel, size_t stride, size_t pad)
{
    lki_conv_axis a = { .step = 1, .size = out };
    *first  = (r + stride - pad % stride) % stride;
    a.count = *first < in ? (in - *first + stride - 1) / stride : 0;
    a.taps  = r < kernel ? (kernel - r + stride - 1) / stride : 0;
    a.start = (ptrdiff_t)((*first + pad - r) / stride + 1) - (ptrdiff_t)a.taps;
    return a;
}

/* The number of weights that are reordered at a time, 1 MiB of floats, so that they are still in a
 * near cache when they are used.  The columns that are reordered at a time are called a wave. */
#define LKI_CONV_WAVE ((size_t)1 << 18)

/* Returns how many columns of the result have their weights reordered at a time: a multiple of
 * `least`. */
static inline size_t lki_conv_wave(size_t depth, size_t columns, size_t least)
{
    size_t wave = LKI_CONV_WAVE / lki_max(1, depth) / least * least;
    return lki_min(columns, lki_max(least, wave));
}

/* Returns the maximum bytes of the reordered weights of a wave, for up to `depth` rows and for
 * `least` up to 64. */
static inline size_t lki_conv_wave_bytes(size_t depth, size_t columns)
{
    size_t whole = depth * lki_round_up(columns, LKI_CONV_LANES);
    size_t wave  = lki_max(LKI_CONV_WAVE, depth * 64) + depth * LKI_CONV_LANES;
    return lki_round_up(lki_min(whole, wave) * sizeof(float), 64);
}

/* Returns the bytes of scratch memory of the weights' gradient for samples with `parts` parts. */
size_t lki_conv_weights_bytes(const lki_conv_shape *shape, uint32_t parts);

/* Returns the bytes of a pack of the weights in bf16, for y or dx. */
size_t lki_conv_bf16_pack_bytes(const lki_conv_shape *shape, bool backward);

/* ---- conv_product.c ---------------------------------------------------------------------- */

/* Return true if y or dx, or dw in FP32, is computed as a matrix product. */
bool lki_conv_is_product(const lki_conv_shape *shape);
bool lki_conv_input_is_product(const lki_conv_shape *shape, lk_dtype dtype, bool add);
bool lki_conv_weights_are_product(const lk_exec *exec, const lki_conv_shape *shape);

/* Compute y, dx and dw, as the functions of ops.h do; y and dx have values of `dtype`.  dw needs
 * lki_conv_product_weights_bytes() bytes of scratch memory. */
void   lki_conv_product(lk_exec *exec, const lki_conv_shape *shape, lk_dtype dtype, const void *x,
                        const float *w, void *y, const lk_pack *pack);
void   lki_conv_product_input(lk_exec *exec, const lki_conv_shape *shape, lk_dtype dtype,
                              const void *dy, const float *w, void *dx, bool add,
                              const lk_pack *pack);
void   lki_conv_product_weights(lk_exec *exec, const lki_conv_shape *shape, const float *x,
                                const float *dy, float *dw, bool add, const lki_parts *parts,
                                void *scratch);
size_t lki_conv_product_weights_bytes(const lki_conv_shape *shape);

/* Returns the bytes of a pack of the weights in FP32, for y or dx. */
size_t lki_conv_product_pack_bytes(const lk_exec *exec, const lki_conv_shape *shape,
                                   bool backward);

#endif

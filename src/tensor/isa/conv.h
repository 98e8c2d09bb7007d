/* tensor/isa/conv.h -- the kernels of convolution that each instruction set provides.
 *
 * Both products, in FP32, read images in place, because a row of a window is contiguous in NHWC.
 * Every sum is one chain in ascending order of its index.  So the sizes of tiles change no bits,
 * and each instruction set chooses its own.  In bf16, convolution is a product of isa/gemm.h with
 * windows.
 */
#ifndef LKI_TENSOR_ISA_CONV_H
#define LKI_TENSOR_ISA_CONV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/ops.h"

/* Chains over k of a (rows, k) times b (k, columns).  A row of `a` consists of `segments` runs of
 * `length` values, a_pitch apart, and begins at its pointer plus a_offset. b is in panels of 16
 * columns, padded: b(segment, l, j) is b[j / 16 * panel + segment * b_pitch + l * 16 + j % 16].
 *
 * Chains begin at zero or continue from `sums`, whose rows are padded to whole vectors.  If `to` is
 * given, the chains end here, and row i of the result is written or added to to[i].  Without `to`
 * the sums remain in `sums`.
 */
typedef struct {
    size_t              rows, columns;
    const float *const *a;
    size_t              a_offset, segments, length, a_pitch;
    const float        *b;
    size_t              panel, b_pitch;
    float              *sums;
    bool                from_zero, add;
    void *const        *to;
} lki_conv_windows;

/* Continues the chains of c (rows, columns) over k of a(k, row) b(k, column).  k runs over `sets`
 * sets of `runs` runs of `run` steps.  `a_set`, `a_run` and `a_step` are the distances between
 * sets, runs and steps in a, and `b_set`, `b_run` and `b_step` those in b. `columns` is a multiple
 * of 16, and `rows` is at most `outer_rows`. */
typedef struct {
    size_t       rows, columns, sets, runs, run;
    const float *a;
    size_t       a_set, a_run, a_step;
    const float *b;
    size_t       b_set, b_run, b_step;
    float       *c;
    size_t       ldc;
} lki_conv_outer;

/* A panel of weights (cout, cin, taps): `columns` <= 16 output channels, starting at w.  `matrix`
 * has the same panel as sixteen columns with rows (tap, ci), `step` elements apart. */
typedef struct {
    size_t       columns, cin, taps, step;
    const float *w;  /* weights to be read */
    float       *dw; /* gradients to be written */
    float       *matrix;
} lki_weight_panel;

enum { LKI_CONV_SLACK = 16 }; /* floats that pack_pixels() may write past the end of its result */

/* The maximum rows of an lki_conv_outer: with 16 columns (narrow), and with more (wide). */
typedef struct { size_t narrow, wide; } lki_outer_rows;

typedef struct {
    lki_outer_rows outer_rows;

    void (*windows)(const lki_conv_windows *windows);
    void (*outer)(const lki_conv_outer *outer);

    /* Copies `channels` <= 16 values of each pixel to contiguous memory.  Pixels are `stride`
     * apart. */
    void (*pack_pixels)(size_t pixels, size_t channels, const float *from, size_t stride,
                        float *to);
    void (*pack_weights)(const lki_weight_panel *panel); /* writes zeros beyond `columns` */
    void (*unpack_weights)(const lki_weight_panel *panel);
} lki_conv_kernels;

#endif

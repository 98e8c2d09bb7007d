/* tensor/isa/conv.h -- what convolution needs from an instruction set.
 *
 * Both products read images where they lie: a row of a window is contiguous in NHWC.  Every sum is
 * one chain in ascending order of its index, so the tiles' sizes change no bits and each
 * instruction set picks its own.  In FP32 a step of a chain is an fma of values; in bf16 it is
 * v16_dot2() of words of two values (isa/gemm.h), and `values` of a, b below are words.
 */
#ifndef LKI_TENSOR_ISA_CONV_H
#define LKI_TENSOR_ISA_CONV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Chains over k of a (rows, k) times b (k, columns).  A row of `a` is `segments` runs of `length`
 * values, a_pitch apart; it starts a_offset behind its pointer.  b lies in panels of 16 columns,
 * padded: b(segment, l, j) is b[j / 16 * panel + segment * b_pitch + l * 16 + j % 16].
 *
 * Chains begin at zero or go on from `sums`, whose rows are as wide as whole vectors.  Where `to`
 * is given they end: row i of the result begins at to[i], or of what they are added to; in bf16 it
 * is of bf16.  Else `sums` has them. */
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

/* c (rows, columns) continues its chain over k of a(k, row) b(k, column).  k walks `sets` of `runs`
 * of `run` steps; the three distances say how far a and b move with each.  columns is a multiple of
 * 16; there are at most outer_rows rows. */
typedef struct {
    size_t       rows, columns, sets, runs, run;
    const float *a;
    size_t       a_set, a_run, a_step;
    const float *b;
    size_t       b_set, b_run, b_step;
    float       *c;
    size_t       ldc;
} lki_conv_outer;

/* `columns` <= 16 output channels of weights (cout, cin, taps) from w on, and their sixteen columns
 * of a matrix with rows (tap, ci), `step` elements apart. */
typedef struct {
    size_t       columns, cin, taps, step;
    const float *w;  /* to read */
    float       *dw; /* to write */
    float       *matrix;
} lki_weight_panel;

enum { LKI_CONV_SLACK = 16 }; /* floats behind what pack_pixels() writes */

/* The most rows of a lki_conv_outer: of 16 columns, and of more. */
typedef struct { size_t narrow, wide; } lki_outer_rows;

typedef struct {
    lki_outer_rows outer_rows;

    void (*windows)(const lki_conv_windows *windows);
    void (*outer)(const lki_conv_outer *outer);

    /* `channels` <= 16 values of each pixel, `stride` apart, close together. */
    void (*pack_pixels)(size_t pixels, size_t channels, const float *from, size_t stride,
                        float *to);
    void (*pack_weights)(const lki_weight_panel *panel); /* zeros beyond columns */
    void (*unpack_weights)(const lki_weight_panel *panel);
} lki_conv_kernels;

/* Words of pixels of a row: entry i has, of each channel, pixel i * step - pad in its low half and
 * the pixel `apart` after it in the other; zeros where there is no pixel.  An entry's words are
 * `pitch` behind those of the last; `lanes` are written: `channels`, or that in whole vectors. */
typedef struct {
    size_t          entries, step, pad, apart;
    size_t          pixels, channels, stride; /* of the row; values from pixel to pixel */
    const uint16_t *from;
    size_t          pitch, lanes;
    float          *to;
} lki_pixel_zip;

typedef struct {
    lki_outer_rows outer_rows;
    void (*windows)(const lki_conv_windows *windows);
    void (*outer)(const lki_conv_outer *outer);

    /* (taps, rows, 16) FP32 become (taps, rows / 2 rounded up, 16) words, rounded, in place. */
    void (*round_rows)(size_t taps, size_t rows, float *matrix);
    void (*zip_pixels)(const lki_pixel_zip *zip);

    /* Odd channels become whole words, with a zero. */
    void (*pad_pixels)(size_t pixels, size_t channels, const uint16_t *from, float *to);
} lki_conv_bf16_kernels;

#endif

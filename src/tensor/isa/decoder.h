/* tensor/isa/decoder.h -- the kernels of RMSNorm, rotary embeddings and SwiGLU. */
#ifndef LKI_TENSOR_ISA_DECODER_H
#define LKI_TENSOR_ISA_DECODER_H

#include <stdbool.h>
#include <stddef.h>

#include "lockstep/base.h"

/* Rows of RMSNorm, `stride` apart, or some of their columns.  x, y, dy and dx have the type `type`
 * (F32 or BF16); y and dx are as far apart as x. */
typedef struct {
    lk_dtype     type;
    size_t       rows, columns, stride;
    float        eps;
    const void  *x, *dy;
    const float *gamma;
    void        *y, *dx;
    float       *rstd; /* (rows) */
    bool         add;
    float       *dgamma;
} lki_rms_rows;

/* One row of heads, at one position, from element `at` of x and y on.  `table` has half a head of
 * cosines and then half a head of sines. */
typedef struct {
    lk_dtype     type;
    size_t       heads, size, at;
    const float *table;
    bool         back, add; /* back: rotate by the negative angles */
    const void  *x;
    void        *y;
} lki_rope_row;

/* Runs of n elements.  The gradients dgate and dup may be NULL. */
typedef struct {
    lk_dtype    type;
    size_t      n;
    const void *gate, *up, *dy;
    void       *y, *dgate, *dup;
    bool        add_gate, add_up;
} lki_swiglu_run;

typedef struct {
    void (*rmsnorm)(const lki_rms_rows *rows);
    void (*rmsnorm_dx)(const lki_rms_rows *rows);
    void (*rmsnorm_dgamma)(const lki_rms_rows *columns);
    void (*rope)(const lki_rope_row *row);
    void (*swiglu)(const lki_swiglu_run *run);
    void (*swiglu_backward)(const lki_swiglu_run *run);
} lki_decoder_kernels;

#endif

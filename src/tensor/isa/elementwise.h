/* tensor/isa/elementwise.h -- spans of elements. */
#ifndef LKI_TENSOR_ISA_ELEMENTWISE_H
#define LKI_TENSOR_ISA_ELEMENTWISE_H

#include "tensor/ops.h"

/* Some columns of dy (m, stride): see lki_bias_backward().  The pointers are those of the first. */
typedef struct {
    lki_activation act;
    size_t         m, columns, stride;
    const float   *x, *dy;
    float         *dz, *db;
} lki_bias_columns;

typedef struct {
    void (*fill)(size_t n, float value, float *y);
    void (*add)(size_t n, const float *a, const float *b, float *y);
    void (*convert)(size_t n, lk_dtype from, const void *x, lk_dtype to, void *y);
    void (*activate)(lki_activation act, size_t n, const float *x, float *y);
    void (*activate_backward)(lki_activation act, size_t n, const float *x, const float *dy,
                              float *dx, bool add);
    void (*bias_backward)(const lki_bias_columns *columns);

    /* Elements first .. first + n - 1 of the sample in slot `slot`; first is a multiple of 64. */
    void (*dropout)(const lki_dropout_key *key, uint32_t slot, size_t first, size_t n,
                    const float *x, float *y, bool add);

    /* Some thousands of independent fma in registers, of numbers around `x`, which lies in [0, 1];
     * adds something that is not negative to *sink, and says how many operations they were. */
    uint64_t (*multiply_adds)(float x, float *sink);
} lki_elementwise_kernels;

#endif

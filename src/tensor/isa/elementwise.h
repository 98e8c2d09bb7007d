/* tensor/isa/elementwise.h -- kernels on runs of elements. */
#ifndef LKI_TENSOR_ISA_ELEMENTWISE_H
#define LKI_TENSOR_ISA_ELEMENTWISE_H

#include "tensor/ops.h"

/* Some columns of dy (m, stride): see lki_bias_backward().  The pointers are to the first of these
 * columns. */
typedef struct {
    lk_dtype       type; /* type of x, dy and dz */
    lki_activation act;
    size_t         m, columns, stride;
    const void    *x, *dy;
    void          *dz;
    float         *db;
} lki_bias_columns;

typedef struct {
    void (*fill)(size_t n, float value, float *y);
    void (*add)(lk_dtype type, size_t n, const void *a, const void *b, void *y);
    void (*convert)(size_t n, lk_dtype from, const void *x, lk_dtype to, void *y);
    void (*activate)(lk_dtype type, lki_activation act, size_t n, const void *x, void *y);
    void (*activate_backward)(lk_dtype type, lki_activation act, size_t n, const void *x,
                              const void *dy, void *dx, bool add);
    void (*bias_backward)(const lki_bias_columns *columns);

    /* Drops elements first .. first + n - 1 of the sample in batch slot `slot`; first is a multiple
     * of 64. */
    void (*dropout)(lk_dtype type, const lki_dropout_key *key, uint32_t slot, size_t first,
                    size_t n, const void *x, void *y, bool add);
} lki_elementwise_kernels;

#endif

/* tensor/isa/pool.h -- the kernels of max pooling, for a window of positions with neighbouring
 * channels. */
#ifndef LKI_TENSOR_ISA_POOL_H
#define LKI_TENSOR_ISA_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lockstep/base.h"

/* The input positions of an output, at least one: rows of `columns` positions, whose values are
 * `row` elements apart.  x has the first position's values, of type `type` (F32 or BF16). */
typedef struct {
    lk_dtype    type;
    size_t      channels, rows, columns, row;
    const void *x;
    uint32_t    at, at_row; /* number of the first position, and distance of the rows' numbers */
    void       *y;
    uint32_t   *argmax;
} lki_max_window;

/* The outputs whose windows have an input position, with the number `at`.  There may be none. */
typedef struct {
    lk_dtype        type;
    size_t          channels, rows, columns, row;
    const void     *dy;
    const uint32_t *argmax;
    uint32_t        at;
    void           *dx;
    bool            add;
} lki_max_outputs;

typedef struct {
    void (*max)(const lki_max_window *window);
    void (*max_backward)(const lki_max_outputs *outputs);
} lki_pool_kernels;

#endif

/* parallel/pieces.h -- in which pieces gradients travel, told without placing anything. */
#ifndef LKI_PARALLEL_PIECES_H
#define LKI_PARALLEL_PIECES_H

#include "lockstep/parallel.h"

/* Buckets whose last gradient is of the same block. */
typedef struct {
    uint32_t term;           /* the last that they have something of */
    size_t   buckets;
    size_t   elements, dealt; /* of gradients; and of these, those of first uses */
    double   gathers[2][2];   /* of parameters, how often they are: in the first turn of a step, in
                               * each other one; forward, backward */
} lki_grad_piece;

/* In the order of terms, as many as *count; the caller's to lki_free(). */
LK_NODISCARD lk_status lki_pieces_make(lki_grad_piece **out, uint32_t *count,
                                       const lk_param *params, uint32_t param_count,
                                       const lk_parallel_options *options,
                                       const uint32_t *host_sizes, uint32_t hosts);

#endif

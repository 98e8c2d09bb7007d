/* parallel/pieces.h -- the pieces in which gradients are sent, computed without allocating the
 * gradients. */
#ifndef LKI_PARALLEL_PIECES_H
#define LKI_PARALLEL_PIECES_H

#include "lockstep/parallel.h"

/* The consecutive buckets whose last gradient term belongs to one block. */
typedef struct {
    uint32_t term;           /* the last term that overlaps the buckets */
    size_t   buckets;
    size_t   elements, dealt; /* elements of all gradients; elements of first uses */
    /* The number of gathers of the piece's parameters, [turn][pass]. turn 0: the first of a step,
     * turn 1: all later turns.  pass 0: forward, pass 1: backward. */
    double   gathers[2][2];
} lki_grad_piece;

/* Lists the pieces in the order of terms.  The caller frees *out with lki_free(). */
LK_NODISCARD lk_status lki_pieces_make(lki_grad_piece **out, uint32_t *count,
                                       const lk_param *params, uint32_t param_count,
                                       const lk_parallel_options *options,
                                       const uint32_t *host_sizes, uint32_t hosts);

#endif

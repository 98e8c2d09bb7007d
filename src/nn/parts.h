/* nn/parts.h -- passes that have the samples of several virtual workers. */
#ifndef LKI_NN_PARTS_H
#define LKI_NN_PARTS_H

#include "lockstep/nn.h"
#include "tensor/ops.h"

/* The samples of one virtual worker in a pass, and the sums over its rows. */
typedef struct {
    uint32_t samples;
    double   loss_sum;
    uint64_t count, hits;
} lki_pass_part;

/* Divides the samples of the following passes among `count` virtual workers, in order.  `count` is
 * a power of two; 0 ends the division.  Losses, counts and hits are added to `parts` instead of to
 * the pass.  Gradients are overwritten by the sums of the virtual workers' gradients, by the
 * canonical tree.  Only for models with lk_model_sums_parts(), one context and no `length`. */
void lki_engine_divide(lk_engine *engine, lki_pass_part *parts, uint32_t count);

#endif

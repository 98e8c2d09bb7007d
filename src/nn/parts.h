/* nn/parts.h -- passes that have the samples of several virtual workers. */
#ifndef LKI_NN_PARTS_H
#define LKI_NN_PARTS_H

#include "lockstep/nn.h"
#include "tensor/ops.h"

/* The samples of one virtual worker in a pass, and the sums over its rows. */
typedef struct {
    uint32_t samples, first_slot;
    double   loss_sum;
    uint64_t count, hits;
} lki_pass_part;

/* Creates an engine for passes that may have the samples of up to `parts` virtual workers, each of
 * which has up to `micro_batch` samples.  `parts` is a power of two. */
LK_NODISCARD lk_status lki_engine_open_parts(lk_engine **out, const lk_model *model, lk_exec *exec,
                                             lk_dtype dtype, uint32_t micro_batch,
                                             uint32_t parts);

/* Computes the bytes of such an engine. */
LK_NODISCARD lk_status lki_engine_parts_bytes(size_t *out, const lk_model *model,
                                              const lk_exec *exec, lk_dtype dtype,
                                              uint32_t micro_batch, uint32_t parts);

/* Divides the samples of the following passes among `count` virtual workers, in order.  `count` is
 * a power of two; 0 ends the division.  Losses, counts and hits are added to `parts` instead of to
 * the pass.  Gradients and sums of state are overwritten by the sums over the virtual workers, by
 * the canonical tree.  Only for models without statistics (lk_model_lock_step()), one context and
 * no `length`. */
void lki_engine_divide(lk_engine *engine, lki_pass_part *parts, uint32_t count);

#endif

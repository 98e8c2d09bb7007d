/* nn/widen.h -- calls of blocks in an engine whose values are narrower than FP32. */
#ifndef LKI_NN_WIDEN_H
#define LKI_NN_WIDEN_H

#include "nn/model.h"

/* A call, and the same with values as the block takes them: FP32 copies in place of narrow ones;
 * or, if it takes narrow ones, a narrow copy in place of the model's input. */
typedef struct {
    const lki_block_entry *entry;
    const lk_block_call   *narrow;
    lk_block_call          call;
} lki_widened;

/* What the block's calls have values of, in an engine that stores them as `dtype`. */
lk_dtype lki_taken_dtype(const lki_block_entry *entry, lk_dtype dtype);

/* The most memory that copies need for micro-batches of `samples`. */
size_t lki_widen_bytes(const lki_block_entry *entry, lk_dtype dtype, uint32_t samples);

/* Makes w->call from `narrow`, with copies in `memory`; what the block writes there,
 * lki_widen_end() rounds once and puts where it belongs. */
void lki_widen_begin(lki_widened *w, const lki_block_entry *entry, const lk_block_call *narrow,
                     void *memory);
void lki_widen_end(const lki_widened *w);

#endif

/* nn/widen.h -- calls of blocks in an engine that stores values in a type narrower than FP32. */
#ifndef LKI_NN_WIDEN_H
#define LKI_NN_WIDEN_H

#include "nn/model.h"

/* The engine's call, whose values are bf16 or fp16 (`narrow`), and the call that the block gets.  A
 * block that accepts only FP32 gets FP32 copies of the values.  A block that accepts narrow values
 * gets the values themselves, and a narrow copy of the model's input, which is FP32. */
typedef struct {
    const lki_block_entry *entry;
    const lk_block_call   *narrow;
    lk_block_call          call;
} lki_widened;

/* Returns the type of the values in calls of the block, in an engine that stores values as
 * `dtype`. */
lk_dtype lki_taken_dtype(const lki_block_entry *entry, lk_dtype dtype);

/* Returns the maximum bytes of all copies, with micro-batches of `samples`. */
size_t lki_widen_bytes(const lki_block_entry *entry, lk_dtype dtype, uint32_t samples);

/* Builds w->call from `narrow`, with copies in `memory`. */
void lki_widen_begin(lki_widened *w, const lki_block_entry *entry, const lk_block_call *narrow,
                     void *memory);

/* Rounds the block's results once, and stores them in the memory of `narrow`. */
void lki_widen_end(const lki_widened *w);

#endif

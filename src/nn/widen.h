/* nn/widen.h -- calls of blocks that know FP32 alone, in an engine whose values are narrower. */
#ifndef LKI_NN_WIDEN_H
#define LKI_NN_WIDEN_H

#include "nn/model.h"

/* A call, and the same with FP32 copies in place of narrow values. */
typedef struct {
    const lki_block_entry *entry;
    const lk_block_call   *narrow;
    lk_block_call          wide;
} lki_widened;

/* The most memory that the block's calls need for micro-batches of `samples`. */
size_t lki_widen_bytes(const lki_block_entry *entry, uint32_t samples);

/* Makes w->wide from `narrow`, with copies in `memory`; what the block writes there,
 * lki_widen_end() rounds once and puts where it belongs. */
void lki_widen_begin(lki_widened *w, const lki_block_entry *entry, const lk_block_call *narrow,
                     void *memory);
void lki_widen_end(const lki_widened *w);

#endif

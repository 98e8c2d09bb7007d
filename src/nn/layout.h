/* nn/layout.h -- where a context's values, saved memory and gradients lie.
 *
 * Offsets are in bytes from the start of a context's memory.  layout.c says how they are chosen.
 */
#ifndef LKI_NN_LAYOUT_H
#define LKI_NN_LAYOUT_H

#include "nn/model.h"

#define LKI_NO_SLOT UINT32_MAX

/* Memory for the gradient of a value, or of several that follow each other in place: alive from
 * the backward pass of block `from` down to that of block `to`. */
typedef struct {
    size_t   offset, bytes;
    uint32_t from, to;
} lki_grad_slot;

/* What one block needs. */
typedef struct {
    size_t   value, value_bytes; /* of y; a loss block has none */
    size_t   saved, saved_bytes;
    uint32_t readers;            /* how many inputs of later blocks are y */
    bool     value_shared;       /* y lies where x[0] does */
    bool     kept;               /* y is kept from forward to backward, not made again */
    uint32_t aside;              /* 1 + y's number among values in a file: it lies elsewhere */
    uint32_t leaves;             /* 1 + that of the value whose last reader in forward this is */
    bool     again;              /* the block runs again before its segment's backward */
    bool     wanted;             /* there are parameters at or before this block */
    bool     grad_in_value;      /* y's gradient lies where y does: the loss block made it there */
    uint32_t slot;               /* else of y's gradient; LKI_NO_SLOT if there is none */
    bool     dx[LK_BLOCK_INPUTS_MAX], add[LK_BLOCK_INPUTS_MAX];
} lki_place;

typedef struct {
    lki_place     *places; /* one a block */
    lki_grad_slot *slots;
    uint32_t       slot_count;
    size_t         context_bytes;           /* of one context: what is kept, the segments' memory,
                                             * gradients */
    size_t         segment, segment_bytes;  /* where the memory that segments share begins */
    size_t         grads, grads_bytes;      /* where the gradients' part begins, and its size */
    size_t         scratch_bytes;           /* the most that any block wants */
    uint32_t       aside_count;             /* values in a file, and the bytes of the largest */
    size_t         aside_bytes;
    size_t         wide_bytes;              /* the most that copies of values take */
    lk_dtype       dtype;                   /* of values and their gradients */
    size_t         loss_rows;               /* of a micro-batch */
} lki_layout;

/* Lays out the memory for micro-batches of up to `micro_batch` samples, values stored as `dtype`;
 * `files`: what checkpointed segments keep may be in a file.
 * LK_EINVAL: the model has no loss, or a value nobody reads.  LK_ENOMEM says what is too large. */
LK_NODISCARD lk_status lki_layout_init(lki_layout *layout, const lk_model *model,
                                       const lk_exec *exec, lk_dtype dtype, uint32_t micro_batch,
                                       bool files);
void lki_layout_deinit(lki_layout *layout);

#endif

/* nn/layout.h -- the places of a context's values, saved memory and gradients.
 *
 * Offsets are in bytes from the start of a context's memory. layout.c explains how they are chosen.
 */
#ifndef LKI_NN_LAYOUT_H
#define LKI_NN_LAYOUT_H

#include "nn/model.h"

#define LKI_NO_SLOT UINT32_MAX

/* Memory for the gradient of a value, or of several values that are computed in place one after
 * another.  It is in use from the backward pass of block `from` to that of block `to`. */
typedef struct {
    size_t   offset, bytes;
    uint32_t from, to;
} lki_grad_slot;

/* The places of one block's output y and saved memory. */
typedef struct {
    size_t   value, value_bytes; /* place of y; a loss block has no y */
    size_t   saved, saved_bytes;
    size_t   saved_part; /* bytes of the saved memory of one part; 0: calls have all parts */
    uint32_t readers;      /* number of inputs of later blocks that read y */
    bool     value_shared; /* y is in the memory of x[0] */
    bool     kept;         /* y is stored from forward to backward and not recomputed */
    uint32_t spilled;      /* 1 + y's number among the values in a file; 0: y is in memory */
    /* 1 + the number of a value in the file, if this block is its last reader in forward; 0:
     * none */
    uint32_t leaves;
    bool     again; /* the block runs forward again, before its segment's backward pass */
    bool     wanted;             /* this block or an earlier one has parameters */
    bool     grad_in_value;      /* the loss block writes y's gradient over y */
    uint32_t slot; /* lki_grad_slot of y's gradient, or LKI_NO_SLOT; unused with grad_in_value */
    bool     dx[LK_BLOCK_INPUTS_MAX], add[LK_BLOCK_INPUTS_MAX];
} lki_place;

typedef struct {
    lki_place     *places; /* one for each block */
    lki_grad_slot *slots;
    uint32_t       slot_count;
    /* bytes of one context: stored values, the segments' shared memory, gradients */
    size_t   context_bytes;
    size_t   segment, segment_bytes; /* offset and size of the memory that segments share */
    size_t   grads, grads_bytes;     /* offset and size of the part for gradients */
    size_t   scratch_bytes;          /* maximum that a block needs */
    /* bytes of a slot, for the sums of the parameters' gradients and of the state of a block that
     * runs for each part; bytes of all slots */
    size_t   slot_bytes, parts_bytes;
    uint32_t spilled_count;          /* number of values in a file; bytes of the largest of them */
    size_t   spilled_bytes;
    size_t   wide_bytes; /* maximum bytes for copies of values */
    lk_dtype dtype;      /* type of values and their gradients */
    uint32_t positions;  /* of values; 0: all of the model's */
    uint32_t parts;      /* maximum number of virtual workers whose samples are in a pass */
    size_t   loss_rows;  /* rows of loss of a micro-batch */
} lki_layout;

/* Returns the block as planned in a model of `length` positions; 0: as it is. */
const lk_block *lki_shortened(lk_block *room, const lk_block *block, uint32_t length);

/* Returns true if a block of a model that has samples of up to `parts` virtual workers in a pass
 * runs once for each of them. */
static inline bool lki_runs_by_part(const lki_block_entry *entry, uint32_t parts)
{
    return parts > 1 && !entry->type->sums_parts;
}

/* Lays out the memory for micro-batches of up to `micro_batch` samples, those of up to `parts`
 * virtual workers (a power of two that divides `micro_batch`), with values stored as `dtype`.  With
 * `files`, stored values of checkpointed segments may be in a file.  Returns LK_EINVAL if the model
 * has no loss or has a value that no block reads, and LK_ENOMEM, with the name, if a size is too
 * large. */
LK_NODISCARD lk_status lki_layout_init(lki_layout *layout, const lk_model *model,
                                       const lk_exec *exec, lk_dtype dtype, uint32_t micro_batch,
                                       uint32_t parts, bool files);

/* Lays out the memory for passes of at most `positions` positions, all values of which have that
 * many in their first dimension. */
LK_NODISCARD lk_status lki_layout_init_short(lki_layout *layout, const lk_model *model,
                                             const lk_exec *exec, lk_dtype dtype,
                                             uint32_t samples, uint32_t positions);
void lki_layout_deinit(lki_layout *layout);

#endif

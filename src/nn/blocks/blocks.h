/* nn/blocks/blocks.h -- helpers of the built-in blocks. */
#ifndef LKI_NN_BLOCKS_H
#define LKI_NN_BLOCKS_H

#include "nn/model.h"
#include "tensor/ops.h"

/* Returns the innermost dimension. */
uint64_t lki_width(lk_shape shape);

/* Returns the number of rows of lki_width() elements in a sample. */
uint64_t lki_rows(lk_shape shape);

bool lki_same_shape(lk_shape a, lk_shape b);

/* Returns the number of elements of a value of `shape`, for all samples of the call. */
size_t lki_elements(const lk_block_call *call, lk_shape shape);

/* Copies `count` values of the call's type, unless x and y are the same memory. */
void lki_copy(const lk_block_call *call, size_t count, const void *x, void *y);

/* Passes dy to input `i` unchanged, overwriting or adding as the call requires.  Does nothing if
 * that gradient is not needed. */
void lki_pass_gradient(const lk_block_call *call, uint32_t i, size_t count, const void *dy);

/* Returns parameter `i` in the type of the call, and sets *type to LK_F32 or LK_BF16. */
const void *lki_param_of(const lk_block_call *call, uint32_t i, lk_dtype *type);

/* Sets operand b of a matrix product of the call's values and weight `i`. */
void lki_weight_of(const lk_block_call *call, uint32_t i, lki_gemm_args *gemm);

/* Fills `room` with the parts of the rows of a call, which has `each` rows for a sample.  Returns
 * NULL if the call has the samples of a single virtual worker. */
typedef struct {
    size_t    ends[LKI_PARTS_MAX];
    lki_parts parts;
} lki_part_rows;
const lki_parts *lki_parts_of(lki_part_rows *room, const lk_block_call *call, size_t each);

/* Reserves the next `count` elements of four bytes in the memory at *at, aligned to 64 bytes, and
 * advances *at. */
void *lki_cut(unsigned char **at, size_t count);

/* Returns the bytes that lki_cut() reserves for `count` elements. */
size_t lki_cut_bytes(size_t count);


/* Checks that dropout with probability p can be applied to `elements` elements of a sample.
 * Messages call the elements `what` and the probability `option`. */
LK_NODISCARD lk_status lki_plan_dropout(const lk_plan *plan, const char *option, float p,
                                        const char *what, uint64_t elements);

#endif

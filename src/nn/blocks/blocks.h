/* nn/blocks/blocks.h -- what the built-in blocks have in common. */
#ifndef LKI_NN_BLOCKS_H
#define LKI_NN_BLOCKS_H

#include "nn/model.h"
#include "tensor/ops.h"

/* The innermost dimension, and how many rows of it a sample has. */
uint64_t lki_width(lk_shape shape);
uint64_t lki_rows(lk_shape shape);

bool lki_same_shape(lk_shape a, lk_shape b);

/* The elements that the call's samples have in a value of `shape`. */
size_t lki_elements(const lk_block_call *call, lk_shape shape);

/* y = x, `count` values of the call's type, unless they are the same memory. */
void lki_copy(const lk_block_call *call, size_t count, const void *x, void *y);

/* Hands dy on to input `i` unchanged: written or added as the call says; nothing if nobody wants
 * it. */
void lki_pass_gradient(const lk_block_call *call, uint32_t i, size_t count, const void *dy);

/* Parameter `i` where the call has it: *type is LK_F32 or LK_BF16. */
const void *lki_param_of(const lk_block_call *call, uint32_t i, lk_dtype *type);

/* Of a product of the call's values and a weight: where and as what that is read. */
void lki_weight_of(const lk_block_call *call, uint32_t i, lki_gemm_args *gemm);

/* Cuts the next `count` elements of four bytes from memory at *at; aligned to 64 bytes. */
void *lki_cut(unsigned char **at, size_t count);
/* The bytes that lki_cut() takes for `count` elements. */
size_t lki_cut_bytes(size_t count);


/* Whether the block can drop so many elements of a sample with probability p; messages call the
 * elements `what` and the probability `option`. */
LK_NODISCARD lk_status lki_plan_dropout(const lk_plan *plan, const char *option, float p,
                                        const char *what, uint64_t elements);

#endif

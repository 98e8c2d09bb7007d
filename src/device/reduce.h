/* device/reduce.h -- sums on the processor, in the order of the canonical tree. */
#ifndef LKI_DEVICE_REDUCE_H
#define LKI_DEVICE_REDUCE_H

#include "lockstep/base.h"

/* One node of the canonical tree over `leaves` virtual workers: the sum over [first, first +
 * count). */
typedef struct {
    uint32_t     first, count;
    const float *data;
} lki_tree_input;

/* Returns true if `rounded` has an encoder (encoder.h), so that nodes are rounded.  Otherwise
 * `rounded` is LK_F32 or 0. */
bool lki_rounds(lk_dtype rounded);

/* Computes the sum of the canonical tree over `leaves` leaves, elementwise, from the given nodes.
 * The given nodes must be in ascending order of `first` and cover [0, leaves) once (LK_ASSERTed).
 * The lower node is always the left operand.  `out` may be one of the inputs.  Every node,
 * including leaves and root, is rounded to `rounded` and stored as FP32.  Blocks begin with the
 * first element. */
void lki_tree_sum_f32(lk_dtype rounded, uint32_t leaves, const lki_tree_input *inputs,
                      uint32_t input_count, size_t n, float *out);

/* Computes left = left + right, for neighbouring nodes of the tree. */
void lki_merge_f32(lk_dtype rounded, size_t n, float *left, const float *right);

/* Computes right = left + right, for neighbouring nodes of the tree. */
void lki_merge_right_f32(lk_dtype rounded, size_t n, const float *left, float *right);

/* Returns true if [first, first + count) is a node of the canonical tree over `leaves` leaves. */
bool lki_tree_is_node(uint32_t leaves, uint32_t first, uint32_t count);

/* Returns the number of leaves in the left subtree of `count` > 1 leaves: the largest power of two
 * below `count`. */
uint32_t lki_tree_left(uint32_t count);

/* Merges `right`, the right neighbour in the tree, into `left`.  Both have `width` numbers. */
typedef void (*lki_row_merge)(uint32_t width, double *left, const double *right);

/* Merges the rows of `count` leaves, stored one after another, into the first row. */
void lki_tree_merge_rows(lki_row_merge merge, uint32_t width, double *rows, uint32_t count);

#endif

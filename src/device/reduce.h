/* device/reduce.h -- sums on the processor, in the order of the canonical tree. */
#ifndef LKI_DEVICE_REDUCE_H
#define LKI_DEVICE_REDUCE_H

#include "lockstep/base.h"

/* One node of the canonical tree over `leaves` virtual workers: the sum over
 * [first, first + count), which must be a node of that tree. */
typedef struct {
    uint32_t     first, count;
    const float *data;
} lki_tree_input;

/* Whether nodes are rounded to `rounded`: LK_F16, LK_BF16, or in blocks (quantise.h) LK_I8 or
 * LK_I4; else it is LK_F32, or 0. */
static inline bool lki_rounds(lk_dtype rounded)
{
    return rounded == LK_F16 || rounded == LK_BF16 || rounded == LK_I8 || rounded == LK_I4;
}

/* out[i] = the canonical tree over `leaves` leaves, evaluated elementwise from the given nodes
 * (in ascending order of `first`, covering [0, leaves) once; the lower node is always the left
 * operand; LK_ASSERTed).  `out` may be one of the inputs.  Every node, leaves and root too, is
 * rounded to `rounded`, and stays FP32; blocks begin with the first element. */
void lki_tree_sum_f32(lk_dtype rounded, uint32_t leaves, const lki_tree_input *inputs,
                      uint32_t input_count, size_t n, float *out);

/* left = left + right, nodes that are neighbours in the tree. */
void lki_merge_f32(lk_dtype rounded, size_t n, float *left, const float *right);

/* The same sum in the other's place: right = left + right. */
void lki_merge_right_f32(lk_dtype rounded, size_t n, const float *left, float *right);

/* Whether [first, first + count) is a node of the canonical tree over `leaves` leaves. */
bool lki_tree_is_node(uint32_t leaves, uint32_t first, uint32_t count);

/* Leaves in the left subtree of a node of `count` > 1 leaves: the largest power of two below. */
uint32_t lki_tree_left(uint32_t count);

/* Makes of `left` what it and `right`, its neighbour in the tree, come to; `width` numbers each. */
typedef void (*lki_row_merge)(uint32_t width, double *left, const double *right);

/* The rows of a subtree's `count` leaves stand behind each other; merged, they are in the first. */
void lki_tree_merge_rows(lki_row_merge merge, uint32_t width, double *rows, uint32_t count);

#endif

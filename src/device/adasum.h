/* device/adasum.h -- the arithmetic of adaptive summation on one processor.
 *
 * Vectors hold accumulators: floats or doubles (`width` bytes).  Dot products are FP64 sums over
 * blocks of LKI_DOT_BLOCK elements.  A block has 16 lanes, and lane i adds the products of elements
 * i, i + 16 ... in order.  Lanes are added in pairs: first i and i + 8, then i and i + 4, i + 2, i
 * + 1.  Blocks are added along the canonical tree.  So the bits depend neither on how the work is
 * divided nor on instruction sets.
 */
#ifndef LKI_DEVICE_ADASUM_H
#define LKI_DEVICE_ADASUM_H

#include "lockstep/base.h"

enum { LKI_DOT_BLOCK = 4096 };

/* The dot products a.b, a.a and b.b. */
typedef struct {
    double ab, aa, bb;
} lki_dots;

/* Computes the dot products of one block of n <= LKI_DOT_BLOCK elements. */
lki_dots lki_dots_block(size_t width, size_t n, const void *a, const void *b);

/* Computes left = left * (1 - ab / (2 aa)) + right * (1 - ab / (2 bb)), in FP64, rounded once.  The
 * factor of a vector whose squared norm is 0 is 1.  If a dot product is not finite, all elements
 * become NaN. */
void lki_adasum(size_t width, size_t n, const lki_dots *dots, void *left, const void *right);

#endif

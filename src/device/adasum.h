/* device/adasum.h -- the arithmetic of adaptive summation on one processor.
 *
 * Vectors are of accumulators: floats or doubles (`width` bytes).  Dot products are sums in FP64
 * over blocks of LKI_DOT_BLOCK elements: 16 lanes inside a block, lane i the products of elements
 * i, i + 16 ... in order, the lanes added as i to i + 8, then 4, 2, 1; over the blocks the
 * canonical tree.  So the bits depend neither on how the work is cut nor on instruction sets. */
#ifndef LKI_DEVICE_ADASUM_H
#define LKI_DEVICE_ADASUM_H

#include "lockstep/base.h"

enum { LKI_DOT_BLOCK = 4096 };

/* a.b, a.a and b.b. */
typedef struct {
    double ab, aa, bb;
} lki_dots;

/* Of n <= LKI_DOT_BLOCK elements: one block. */
lki_dots lki_dots_block(size_t width, size_t n, const void *a, const void *b);

/* left = left * (1 - ab / (2 aa)) + right * (1 - ab / (2 bb)), in FP64, rounded once.  The factor
 * of a vector whose squared norm is 0 is 1; where a dot product is not finite all elements
 * become NaN. */
void lki_adasum(size_t width, size_t n, const lki_dots *dots, void *left, const void *right);

#endif

/* tensor/ops/conv.h -- what the two files of convolution share. */
#ifndef LKI_TENSOR_OPS_CONV_H
#define LKI_TENSOR_OPS_CONV_H

#include "tensor/ops.h"

enum { LKI_CONV_LANES = 16 };

/* What the weights' gradient needs besides the matrix: dy with its channels in whole lanes. */
size_t lki_conv_padded_bytes(const lki_conv_shape *shape);

#endif

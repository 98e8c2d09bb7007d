/* tensor/reference_bf16.h -- plain references of attention and convolution in bf16; see
 * tensor/reference_nn.h. */
#ifndef LKI_TENSOR_REFERENCE_BF16_H
#define LKI_TENSOR_REFERENCE_BF16_H

#include "tensor/ops.h"

void lki_reference_attention_bf16(const lki_attention_shape *s, const uint16_t *qkv, uint16_t *y,
                                  float *lse);

/* Computes dqkv without the final rounding, so that a test can add it to other
 * values. */
void lki_reference_attention_bf16_backward(const lki_attention_shape *s, const uint16_t *qkv,
                                           const uint16_t *y, const float *lse, const uint16_t *dy,
                                           float *dqkv);

void lki_reference_conv_bf16(const lki_conv_shape *s, const uint16_t *x, const float *w,
                             uint16_t *y);
void lki_reference_conv_bf16_backward_input(const lki_conv_shape *s, const uint16_t *dy,
                                            const float *w, uint16_t *dx, bool add);
void lki_reference_conv_bf16_backward_weights(const lki_conv_shape *s, const uint16_t *x,
                                              const uint16_t *dy, float *dw);

#endif

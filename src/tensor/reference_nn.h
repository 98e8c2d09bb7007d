/* tensor/reference_nn.h -- plain references of convolution, norms, attention, embedding and loss.
 *
 * Each index has one loop, and elements are computed one at a time.  The order of operations is
 * that of tensor/ops.h and of the file comments in tensor/ops/.  The operators must equal these
 * references to the bit.  They are slow and used only by tests.
 */
#ifndef LKI_TENSOR_REFERENCE_NN_H
#define LKI_TENSOR_REFERENCE_NN_H

#include "tensor/ops.h"

/* Sums n values on 16 lanes: value i is added to lane i % 16.  Then lane l + 8 is added to lane l,
 * then l + 4, l + 2 and l + 1. */
float lki_reference_lane_sum(size_t n, const float *x);

void lki_reference_layernorm(size_t rows, size_t c, const float *x, const float *gamma,
                             const float *beta, float *y, float *mean, float *rstd);
void lki_reference_layernorm_backward(size_t rows, size_t c, const float *x, const float *gamma,
                                      const float *mean, const float *rstd, const float *dy,
                                      float *dx, bool add, float *dgamma, float *dbeta);
void lki_reference_batchnorm(size_t rows, size_t c, const float *x, const float *gamma,
                             const float *beta, float *y, float *mean, float *rstd, float *var);
void lki_reference_batchnorm_backward(size_t rows, size_t c, const float *x, const float *gamma,
                                      const float *mean, const float *rstd, const float *dy,
                                      float *dx, bool add, float *dgamma, float *dbeta);

void lki_reference_conv(const lki_conv_shape *s, const float *x, const float *w, float *y);
void lki_reference_conv_backward_input(const lki_conv_shape *s, const float *dy, const float *w,
                                       float *dx, bool add);
void lki_reference_conv_backward_weights(const lki_conv_shape *s, const float *x, const float *dy,
                                         float *dw);

void lki_reference_maxpool(const lki_conv_shape *s, const float *x, float *y, uint32_t *argmax);
void lki_reference_avgpool(size_t n, size_t positions, size_t c, const float *x, float *y);

/* A row of qkv has the queries of all heads, then the keys, then the values (ops.h:
 * lki_attention_packed()).  Returns its width, and the offsets of a head's query, key and value. */
typedef struct { size_t width, q, k, v; } lki_reference_row;
lki_reference_row lki_reference_row_of(const lki_attention_shape *s, size_t head);

void lki_reference_attention(const lki_attention_shape *s, const float *qkv, float *y, float *lse);
void lki_reference_attention_backward(const lki_attention_shape *s, const float *qkv,
                                      const float *y, const float *lse, const float *dy,
                                      float *dqkv);

void lki_reference_rmsnorm(const lki_rmsnorm_args *a); /* F32 only, here and below */
void lki_reference_rmsnorm_backward(const lki_rmsnorm_args *a);
void lki_reference_rope(const lki_rope_args *a);
void lki_reference_swiglu(const lki_swiglu_args *a);
void lki_reference_swiglu_backward(const lki_swiglu_args *a);

void lki_reference_embedding_backward(size_t b, size_t t, size_t c, const int32_t *tokens,
                                      const float *dy, float *dwte, float *dwpe);

void lki_reference_softmax_xent(size_t rows, size_t classes, float *logits, const int32_t *targets,
                                float *loss, uint8_t *hit, bool gradient);

#endif

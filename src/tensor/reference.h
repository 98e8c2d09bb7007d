/* tensor/reference.h -- the plain version of every core operator, one value at a time.
 *
 * Tests compare the operators with these versions, to the bit.  The versions use fmaf(), the scalar
 * functions of ops.h and base/rng.h, and no threads, tiles or vectors.
 */
#ifndef LKI_TENSOR_REFERENCE_H
#define LKI_TENSOR_REFERENCE_H

#include "tensor/ops.h"

/* Returns fma(a, b, sum) with subnormal values replaced by zero: half a step of a product of bf16
 * values. */
float lki_reference_fma_flushed(float a, float b, float sum);

/* Adds the products of a chunk of 32 bf16 values to `sum`; see isa/gemm_chunks.inc. */
float lki_reference_chunk(const float a[32], const float b[32], float sum);

void   lki_reference_gemm(const lki_gemm_args *args);
void   lki_reference_bias_backward(size_t m, size_t n, const float *dy, float *db);
float  lki_reference_activate(lki_activation act, float x);
float  lki_reference_activate_slope(lki_activation act, float x);
void   lki_reference_dropout(lki_dropout_key key, size_t samples, size_t per_sample, const float *x,
                             float *y, bool add);
float  lki_reference_init(uint64_t seed, uint32_t index, const lk_param *param, size_t element);
double lki_reference_sum_squares(size_t n, const float *x);
void   lki_reference_adamw(const lki_adamw_step *step, size_t n, const float *g, float *p, float *m,
                           float *v);
void   lki_reference_sgd(const lki_sgd_step *step, size_t n, const float *g, float *p, float *b);
void   lki_reference_lamb_direction(const lki_adamw_step *step, size_t n, float *g, const float *p,
                                    float *m, float *v);
void   lki_reference_lion(const lki_adamw_step *step, size_t n, const float *g, float *p, float *m);
void   lki_reference_adagrad(const lki_adagrad_step *step, size_t n, const float *g, float *p,
                             float *sum);
void   lki_reference_yogi(const lki_adamw_step *step, size_t n, const float *g, float *p, float *m,
                          float *v);

#endif

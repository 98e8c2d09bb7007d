/* tensor/isa/param.h -- parameters' initial values, norms and updates, over spans. */
#ifndef LKI_TENSOR_ISA_PARAM_H
#define LKI_TENSOR_ISA_PARAM_H

#include "tensor/ops.h"

/* lki_adamw_step as the floats the elements are multiplied by. */
typedef struct {
    float scale, clip, keep, mix1, beta2, mix2, rate, root2, eps;
    float lift1, decay; /* of lamb: 1 / c1, weight decay */
} lki_adamw_factors;

typedef struct {
    /* The 64 values from element `first`, a multiple of 64, of parameter `index`. */
    void (*init64)(uint64_t seed, uint32_t index, lk_init init, float scale, size_t first,
                   float *y);

    /* Of each of `count` stretches. */
    void (*sum_squares)(size_t count, const size_t *n, const float *const *x, double *sums);
    void (*adamw)(const lki_adamw_factors *f, size_t n, const float *g, float *p, float *m,
                  float *v);
    void (*sgd)(const lki_sgd_step *step, size_t n, const float *g, float *p, float *b);
    void (*lamb_direction)(const lki_adamw_factors *f, size_t n, float *g, const float *p, float *m,
                           float *v);
    void (*descend)(float rate, size_t n, const float *u, float *p);
    void (*lion)(const lki_adamw_factors *f, size_t n, const float *g, float *p, float *m);
} lki_param_kernels;

#endif

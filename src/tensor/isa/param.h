/* tensor/isa/param.h -- kernels for initial values, norms and updates of parameters. */
#ifndef LKI_TENSOR_ISA_PARAM_H
#define LKI_TENSOR_ISA_PARAM_H

#include "tensor/ops.h"

/* The factors of an lki_adamw_step as floats, with which elements are multiplied. */
typedef struct {
    float scale, clip, keep, mix1, beta2, mix2, rate, root2, eps;
    float lift1, decay; /* for LAMB: 1 / c1, and the weight decay */
} lki_adamw_factors;

typedef struct {
    /* Computes the 64 values from element `first`, a multiple of 64, of parameter `index`. */
    void (*init64)(uint64_t seed, uint32_t index, lk_init init, float scale, size_t first,
                   float *y);

    /* Sums the squares of each of `count` arrays. */
    void (*sum_squares)(size_t count, const size_t *n, const float *const *x, double *sums);
    void (*adamw)(const lki_adamw_factors *f, size_t n, const float *g, float *p, float *m,
                  float *v);
    void (*sgd)(const lki_sgd_step *step, size_t n, const float *g, float *p, float *b);
    void (*lamb_direction)(const lki_adamw_factors *f, size_t n, float *g, const float *p, float *m,
                           float *v);
    void (*descend)(float rate, size_t n, const float *u, float *p);
    void (*lion)(const lki_adamw_factors *f, size_t n, const float *g, float *p, float *m);
    void (*adagrad)(const lki_adagrad_step *step, size_t n, const float *g, float *p, float *sum);
    void (*yogi)(const lki_adamw_factors *f, size_t n, const float *g, float *p, float *m,
                 float *v);
} lki_param_kernels;

#endif

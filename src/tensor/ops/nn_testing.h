/* tensor/ops/nn_testing.h -- execs and values for tests of operators, and two criteria for results.
 *
 * Bits:      every instruction set of this processor, with several numbers of threads, must give
 *            the result of the scalar reference, byte for byte.
 * Gradients: a backward pass must agree with central differences of a forward pass.  The test
 *            writes that forward pass in double precision, without code of the operator or its
 *            reference.
 */
#ifndef LKI_TENSOR_OPS_NN_TESTING_H
#define LKI_TENSOR_OPS_NN_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "device/half.h"
#include "tensor/ops.h"
#include "tensor/reference_nn.h"
#include "tensor/tensor_testing.h"
#include "tensor/isa/kernels.h"

typedef struct { size_t count; lk_exec *exec[LKI_EXECS_MAX]; } nn_machines;

static inline nn_machines nn_machines_for(bool bf16)
{
    nn_machines m = { 0 };
    m.count = lki_test_execs_for(m.exec, bf16);
    return m;
}

static inline nn_machines nn_machines_open(void)
{
    return nn_machines_for(false);
}

static inline void nn_machines_free(nn_machines *m)
{
    lki_test_execs_free(m->exec, m->count);
}

static inline void *nn_bytes(size_t bytes)
{
    void *p = calloc(1, bytes > 0 ? bytes : 1);
    assert_non_null(p);
    return p;
}

/* Returns n values in [-1, 1), each of which depends only on (seed, i). */
static inline float *nn_values(size_t n, uint32_t seed)
{
    float *x = nn_bytes(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        lki_random r = lki_philox(seed, LKI_RNG_DATA, (uint32_t)i, 0, 0, 0);
        x[i]         = 2.0f * lki_random_unit(r.word[0]) - 1.0f;
    }
    return x;
}

static inline float *nn_copy(const float *x, size_t n)
{
    float *y = nn_bytes(n * sizeof *y);
    memcpy(y, x, n * sizeof *y);
    return y;
}

static inline double *nn_doubles(const float *x, size_t n)
{
    double *y = nn_bytes(n * sizeof *y);
    for (size_t i = 0; i < n; i++)
        y[i] = (double)x[i];
    return y;
}

/* Returns n values in [-scale, scale) in bf16. */
static inline uint16_t *nn_values_bf16(size_t n, uint32_t seed, float scale)
{
    float    *x = nn_values(n, seed);
    uint16_t *y = nn_bytes(n * sizeof *y);
    for (size_t i = 0; i < n; i++)
        y[i] = lki_bf16_narrow(x[i] * scale);
    free(x);
    return y;
}

/* Returns a copy of n bf16 values as floats. */
static inline float *nn_widen(const uint16_t *x, size_t n)
{
    float *y = nn_bytes(n * sizeof *y);
    for (size_t i = 0; i < n; i++)
        y[i] = lki_bf16_widen(x[i]);
    return y;
}

static inline void nn_same_bf16(const lk_exec *exec, const char *what, size_t n,
                                const uint16_t *got, const uint16_t *want)
{
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("%s[%zu of %zu] is %a, the reference says %a (%s, %u threads)", what, i, n,
                     (double)lki_bf16_widen(got[i]), (double)lki_bf16_widen(want[i]),
                     lk_exec_isa(exec), lk_exec_threads(exec));
}

static inline void nn_same(const lk_exec *exec, const char *what, size_t n, const float *got,
                           const float *want)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            fail_msg("%s[%zu of %zu] is %a, the reference says %a (%s, %u threads)", what, i, n,
                     (double)got[i], (double)want[i], lk_exec_isa(exec), lk_exec_threads(exec));
}

/* ---- bf16: equal values in both types, and FP32 results rounded once ----------------------- */

/* Rounds x in place to values that are exact in bf16, and returns a copy in bf16. */
static inline uint16_t *nn_bf16(float *x, size_t n)
{
    uint16_t *narrow = nn_bytes(n * sizeof *narrow);
    for (size_t i = 0; i < n; i++) {
        narrow[i] = lki_bf16_narrow(x[i]);
        x[i]      = lki_bf16_widen(narrow[i]);
    }
    return narrow;
}

static inline void nn_same_rounded(const lk_exec *exec, const char *what, size_t n,
                                   const uint16_t *got, const float *want)
{
    for (size_t i = 0; i < n; i++)
        if (got[i] != lki_bf16_narrow(want[i]))
            fail_msg("%s[%zu of %zu] is %#x in bf16, FP32 says %a (%s, %u threads)", what, i, n,
                     got[i], (double)want[i], lk_exec_isa(exec), lk_exec_threads(exec));
}

/* The scalar function whose gradient is tested.  `context` has its inputs. */
typedef double (*nn_loss)(const void *context);

/* Compares gradient[i] (minus before[i], if given) with (loss(x + h) - loss(x - h)) / 2h for up to
 * about 200 values of i.  `tolerance` is both the absolute and the relative error allowed. */
static inline void nn_gradient_within(double tolerance, const char *what, nn_loss loss,
                                      const void *context, double *x, size_t n,
                                      const float *gradient, const float *before)
{
    const double h = 1e-4;
    for (size_t i = 0; i < n; i += n / 200 + 1) {
        double keep = x[i];
        x[i]        = keep + h;
        double up   = loss(context);
        x[i]        = keep - h;
        double down = loss(context);
        x[i]        = keep;
        double want = (up - down) / (2 * h);
        double got  = (double)gradient[i] - (before == NULL ? 0.0 : (double)before[i]);
        if (!(fabs(got - want) <= tolerance * (1 + fabs(want))))
            fail_msg("%s[%zu of %zu] is %.9g, differences say %.9g", what, i, n, got, want);
    }
}

static inline void nn_gradient(const char *what, nn_loss loss, const void *context, double *x,
                               size_t n, const float *gradient, const float *before)
{
    nn_gradient_within(2e-4, what, loss, context, x, n, gradient, before);
}

#endif

/* tensor/testing.h -- what the tests of operators share: every kind of exec, reproducible data. */
#ifndef LKI_TENSOR_TESTING_H
#define LKI_TENSOR_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "tensor/ops.h"

enum { LKI_EXECS_MAX = 20, LKI_TEST_ISAS = 5 };

/* One exec for each instruction set that this processor has, on 1, 2 and 3 threads. */
static inline size_t lki_test_execs(lk_exec *execs[LKI_EXECS_MAX])
{
    static const char *const isas[] = { "avx512", "avx2", "neon", "portable" };
    size_t                   count  = 0;
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++)
        for (uint32_t threads = 1; threads <= 3; threads++) {
            lk_status status = lk_exec_open(&execs[count], threads, isas[i]);
            if (status == LK_OK)
                count++;
            else
                assert_int_equal(status, LK_EUNSUPPORTED);
        }
    assert_true(count >= 3);
    return count;
}

/* One exec for each way of multiplying matrices that this processor has, on `threads` threads. */
static inline size_t lki_test_products(lk_exec *execs[LKI_EXECS_MAX], uint32_t threads)
{
    static const char *const isas[LKI_TEST_ISAS] = { "avx512_bf16", "avx512", "avx2", "neon",
                                                         "portable" };
    size_t                   count               = 0;
    for (size_t i = 0; i < LKI_TEST_ISAS; i++)
        if (lk_exec_open(&execs[count], threads, isas[i]) == LK_OK)
            count++;
    assert_true(count >= 1);
    return count;
}

static inline void lki_test_execs_free(lk_exec *execs[LKI_EXECS_MAX], size_t count)
{
    for (size_t i = 0; i < count; i++)
        lk_exec_free(execs[i]);
}

/* Values of mixed sign and size in [-scale, scale). */
static inline void lki_test_fill(float *x, size_t n, uint32_t seed, float scale)
{
    for (size_t i = 0; i < n; i++) {
        lki_random r = lki_philox(seed, LKI_RNG_DATA, (uint32_t)i, 0, 0, 0);
        x[i]         = (lki_random_unit(r.word[0]) * 2.0f - 1.0f) * scale;
    }
}

#endif

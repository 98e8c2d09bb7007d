/* tensor/tensor_testing.h -- execs of every kind and reproducible data, for tests of operators. */
#ifndef LKI_TENSOR_TENSOR_TESTING_H
#define LKI_TENSOR_TENSOR_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/sanitized_testing.h"
#include "base/thorough_testing.h"
#include "tensor/ops.h"

/* LKI_EXECS_MAX: execs of all instruction sets, of which there are seven. */
enum { LKI_TEST_THREADS = 5, LKI_EXECS_MAX = 7 * LKI_TEST_THREADS };

/* Returns the number of execs that are opened for each instruction set. */
static inline size_t lki_test_threads(void)
{
    return lki_thorough() ? LKI_TEST_THREADS : LKI_SANITIZED || lki_brief() ? 2 : 3;
}

/* Returns true if the t-th number of threads is tested with an instruction set. */
static inline bool lki_takes_threads(const char *isa, size_t t)
{
    if (lki_thorough())
        return true;
    if (strcmp(isa, "amx_emulated") == 0)
        return t == (lki_brief() ? 0 : 1);
    return strcmp(isa, "portable") != 0 || !lki_brief() || t == 1;
}

/* Opens execs on 1, 3 and 8 threads (with LK_THOROUGH=1 also 2 and 5, with LK_BRIEF=1 and
 * under sanitizers only 1 and 3) for each instruction set of this processor.  With `bf16`, this
 * includes instruction sets that differ only in the kernels of bf16.  The emulated tiles of AMX are
 * last and slow, so they are opened on 3 threads only, where tests also try packs, or on 1 thread
 * with LK_BRIEF=1.  The portable kernels are then opened on 3 threads only. */
static inline size_t lki_test_execs_for(lk_exec *execs[LKI_EXECS_MAX], bool bf16)
{
    static const char *const isas[]    = { "avx512",      "avx2", "neon",        "portable",
                                           "avx512_bf16", "amx",  "amx_emulated" };
    static const uint32_t    threads[] = { 1, 3, 8, 2, 5 };
    size_t                   count     = 0;
    for (size_t i = 0; i < (bf16 ? 7 : 4); i++)
        for (size_t t = 0; t < lki_test_threads(); t++) {
            if (!lki_takes_threads(isas[i], t))
                continue;
            lk_exec  *exec   = NULL;
            lk_status status = lk_exec_open(&exec, threads[t], isas[i]);
            if (status == LK_OK) {
                assert_true(count < LKI_EXECS_MAX);
                execs[count++] = exec;
            } else
                assert_int_equal(status, LK_EUNSUPPORTED);
        }
    assert_true(count > 0); /* every processor supports "portable" */
    return count;
}

static inline size_t lki_test_execs(lk_exec *execs[LKI_EXECS_MAX])
{
    return lki_test_execs_for(execs, false);
}

/* Returns the index of the first exec after `k` that has another instruction set, or `count`. */
static inline size_t lki_test_next_isa(lk_exec *const execs[], size_t count, size_t k)
{
    const char *isa = lk_exec_isa(execs[k]);
    while (k < count && strcmp(lk_exec_isa(execs[k]), isa) == 0)
        k++;
    return k;
}

static inline void lki_test_execs_free(lk_exec *execs[LKI_EXECS_MAX], size_t count)
{
    for (size_t i = 0; i < count; i++)
        lk_exec_free(execs[i]);
}

/* Fills x with values of mixed sign and size in [-scale, scale). */
static inline void lki_test_fill(float *x, size_t n, uint32_t seed, float scale)
{
    for (size_t i = 0; i < n; i++) {
        lki_random r = lki_philox(seed, LKI_RNG_DATA, (uint32_t)i, 0, 0, 0);
        x[i]         = (lki_random_unit(r.word[0]) * 2.0f - 1.0f) * scale;
    }
}

#endif

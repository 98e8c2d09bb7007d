/* apart_test.c -- a product whose fma is split into two operations has other bits.
 *
 * Goal:   hashes of results detect a compiler or an instruction set that rounds between the
 *         multiplication and the addition, on any processor.
 * Method: the bodies of tensor/isa/ are compiled again with this file's flags (NEON's on ARM, the
 *         portable ones elsewhere), with two roundings in place of v16_fma().  The hash must differ
 *         from that of the same body in the library, and must be equal if the values are such that
 *         nothing is rounded.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/float.h"
#include "base/hash.h"
#include "device/half.h"
#include "tensor/exec.h"
#include "tensor/isa/kernels.h"
#include "tensor/isa/simd.h"
#include "tensor/tensor_testing.h"

LKI_SIMD v16 two_roundings(v16 a, v16 b, v16 c)
{
    return v16_add(v16_mul(a, b), c);
}
#define v16_fma two_roundings

#include "tensor/isa/gemm_tile.inc"

LKI_MICRO_KERNELS(f32)

enum { M = 13, N = 16 * VECTORS, K = 40 };

/* Returns the hash of a product of a (M, K), in place, and b (K, N), as one panel. */
static uint64_t hash_of(void (*multiply)(const lki_gemm_block *), float scale)
{
    float a[M * K], b[K * N], c[M * N];
    lki_test_fill(a, (size_t)M * K, 1, scale);
    lki_test_fill(b, (size_t)K * N, 2, scale);
    for (size_t i = 0; scale > 1 && i < (size_t)M * K; i++)
        a[i] = (float)(int)a[i];
    for (size_t i = 0; scale > 1 && i < (size_t)K * N; i++)
        b[i] = (float)(int)b[i];
    multiply(&(lki_gemm_block){ .m = M, .n = N, .k = K, .a = a, .row_stride = K,
                                .b = b, .b_row = N, .b_panel = (size_t)N * K, .c = c, .ldc = N,
                                .from_zero = true });
    return lki_xxh3(c, sizeof c);
}

static void apart(const lki_gemm_block *block)
{
    (void)micro_peak; /* is defined with the kernels */
    walk_block(micro_f32, block);
}

static void whole(const lki_gemm_block *block)
{
    lk_exec *exec;
    if (lk_exec_open(&exec, 1, "portable") != LK_OK)
        fail_msg("%s", lk_error_last()->message);
    lk_gemm(exec, false, false, block->m, block->n, block->k, block->a, block->b, block->c, false);
    lk_exec_free(exec);
}

static void two_roundings_change_the_hash(void **state)
{
    (void)state;
    assert_true(hash_of(apart, 1.0f) != hash_of(whole, 1.0f));
}

static void exact_products_have_equal_hashes(void **state)
{
    (void)state;
    assert_true(hash_of(apart, 9.0f) == hash_of(whole, 9.0f));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_roundings_change_the_hash),
        cmocka_unit_test(exact_products_have_equal_hashes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* parts_test.c -- a sum over all parts of the rows equals the sums of the single parts, added by
 * the tree. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "device/half.h"
#include "device/reduce.h"
#include "tensor/ops.h"
#include "tensor/tensor_testing.h"

enum { ROOM = 150 * 900, COUNT_MOST = 64 };

static float    a[ROOM], b[ROOM], got[ROOM], want[ROOM], terms[COUNT_MOST][ROOM / 4];
static uint16_t a16[ROOM], b16[ROOM];

static void fill(float scale)
{
    lki_test_fill(a, ROOM, 1, scale);
    lki_test_fill(b, ROOM, 2, scale);
    for (size_t i = 0; i < ROOM; i++) {
        a16[i] = lki_bf16_narrow(a[i]);
        b16[i] = lki_bf16_narrow(b[i]);
    }
}

/* Adds terms[0 .. count - 1] by the canonical tree. */
static void add_terms(uint32_t count, size_t n, float *out)
{
    lki_tree_input inputs[COUNT_MOST];
    for (uint32_t i = 0; i < count; i++)
        inputs[i] = (lki_tree_input){ .first = i, .count = 1, .data = terms[i] };
    lki_tree_sum_f32(LK_F32, count, inputs, count, n, out);
}

/* Divides k rows into `count` parts of unequal length, some of which may be empty. */
static void divide(size_t *ends, uint32_t count, size_t k, bool even)
{
    for (uint32_t i = 0; i < count; i++)
        ends[i] = even ? k * (i + 1) / count : k * (i / 2 * 2 + 2) / (count + count % 2);
    ends[count - 1] = k;
}

static void check_product(lk_exec *exec, lk_dtype type, bool turned, const size_t size[3],
                          uint32_t count, bool even)
{
    const size_t  m = size[0], n = size[1], k = size[2];
    size_t        ends[COUNT_MOST], begin = 0;
    lki_parts     parts = { count, ends };
    bool          brain = type == LK_BF16;
    size_t        bytes = brain ? 2 : 4;
    lki_gemm_args args  = { .transpose_a = true,
                            .operands    = type,
                            .m           = turned ? n : m,
                            .n           = turned ? m : n,
                            .k           = k,
                            .a           = brain ? (void *)a16 : a,
                            .b           = brain ? (void *)b16 : b,
                            .c           = got };
    LK_ASSERT(m * n <= ROOM / 4);
    divide(ends, count, k, even);
    memset(got, 0xff, m * n * sizeof *got);
    lki_gemm_parts(exec, &args, &parts);
    for (uint32_t i = 0; i < count; begin = ends[i++]) {
        lki_gemm_args one = args;
        one.k             = ends[i] - begin;
        one.a             = (const char *)args.a + begin * args.m * bytes;
        one.b             = (const char *)args.b + begin * args.n * bytes;
        one.c             = terms[i];
        lki_gemm(exec, &one);
    }
    add_terms(count, m * n, want);
    if (memcmp(got, want, m * n * sizeof *got) != 0)
        fail_msg("%s: type %d, m %zu n %zu k %zu, %u parts%s", lk_exec_isa(exec), (int)type, args.m,
                 args.n, k, count, even ? "" : " of unequal length");
}

static void products_of_parts_are_added_by_the_tree(void **state)
{
    /* the last size has more steps than a short product, and the one before fills the buffer */
    static const size_t sizes[][3] = { { 1, 1, 1 },    { 10, 3, 8 },    { 56, 128, 64 },
                                       { 15, 47, 63 }, { 130, 33, 7 },  { 57, 129, 16 },
                                       { 27, 31, 64 }, { 5, 265, 490 }, { 10, 20, 600 } };
    lk_exec            *execs[LKI_EXECS_MAX];
    size_t              count = lki_test_execs_for(execs, true);
    (void)state;
    fill(1.0f);
    for (size_t e = 0; e < count; e++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            /* large products take long where AMX is emulated */
            bool     large  = sizes[s][0] * sizes[s][1] * sizes[s][2] > 100000;
            uint32_t factor = large || lki_brief() ? 8 : 2;
            for (uint32_t parts = 1; parts <= COUNT_MOST; parts *= factor)
                for (int even = 0; even < 2; even++) {
                    bool turned = parts & 10;
                    check_product(execs[e], LK_F32, turned, sizes[s], parts, even);
                    check_product(execs[e], LK_BF16, turned, sizes[s], parts, even);
                }
        }
    lki_test_execs_free(execs, count);
}

/* Products and sums of the larger scales are normal numbers, and those of the smaller scales are
 * subnormal numbers, which are replaced by zero in a product, but not in the tree. */
static void parts_of_small_values_are_added_by_the_tree(void **state)
{
    static const size_t sizes[][3] = { { 27, 31, 64 }, { 9, 50, 37 } };
    lk_exec            *execs[LKI_EXECS_MAX];
    size_t              count = lki_test_execs_for(execs, true);
    (void)state;
    for (int exponent = -24; exponent > -76; exponent -= lki_brief() ? 12 : 6) {
        fill(ldexpf(1.0f, exponent));
        for (size_t e = 0; e < count; e++)
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
                for (uint32_t parts = 1; parts <= COUNT_MOST; parts *= 8)
                    check_product(execs[e], LK_BF16, false, sizes[s], parts, true);
    }
    lki_test_execs_free(execs, count);
}

/* The even product is (1 + u)^2 and the odd one -(1 + 2u), times a power of two.  Their sum is u^2
 * times this power, which becomes zero if it is subnormal. */
static void only_sums_that_are_subnormal_become_zero(void **state)
{
    const float u = 0x1p-7f;
    lk_exec    *execs[LKI_EXECS_MAX];
    size_t      count = lki_test_execs_for(execs, true);
    (void)state;
    for (size_t e = 0; e < count; e++)
        for (int exponent = -125; exponent > -128; exponent--) {
            float    scale = ldexpf(1.0f, -50), other = ldexpf(1.0f, exponent + 14 + 50);
            uint16_t x[2]   = { lki_bf16_narrow((1 + u) * scale),
                                lki_bf16_narrow(-(1 + 2 * u) * scale) };
            uint16_t y[2]   = { lki_bf16_narrow((1 + u) * other), lki_bf16_narrow(other) };
            size_t   end    = 2;
            float    result = -1;
            lki_gemm_parts(execs[e],
                           &(lki_gemm_args){ .transpose_a = true,
                                             .operands    = LK_BF16,
                                             .m           = 1,
                                             .n           = 1,
                                             .k           = 2,
                                             .a           = x,
                                             .b           = y,
                                             .c           = &result },
                           &(lki_parts){ 1, &end });
            float expected = exponent < -126 ? 0.0f : ldexpf(1.0f, exponent);
            if (result != expected)
                fail_msg("%s: %a instead of %a", lk_exec_isa(execs[e]), (double)result,
                         (double)expected);
        }
    lki_test_execs_free(execs, count);
}

static void check_columns(lk_exec *exec, lk_dtype type, lki_activation act, size_t m, size_t n,
                          uint32_t count)
{
    static unsigned char dz[2][ROOM * 4];
    size_t               ends[COUNT_MOST], begin = 0, bytes = lk_dtype_bytes(type);
    const char          *x     = type == LK_BF16 ? (const char *)a16 : (const char *)a;
    const char          *dy    = type == LK_BF16 ? (const char *)b16 : (const char *)b;
    lki_parts            parts = { count, ends };

    divide(ends, count, m, true);
    memset(got, 0xff, n * sizeof *got);
    lki_bias_backward_parts(exec, type, act, n, x, dy, dz[0], got, &parts);
    for (uint32_t i = 0; i < count; begin = ends[i++]) {
        size_t at = begin * n * bytes;
        memset(terms[i], 0, n * sizeof *got);
        lki_bias_backward(exec, type, act, ends[i] - begin, n, x + at, dy + at, dz[1] + at,
                          terms[i]);
    }
    add_terms(count, n, want);
    assert_memory_equal(got, want, n * sizeof *got);
    if (act != LKI_ACT_NONE)
        assert_memory_equal(dz[0], dz[1], m * n * bytes);
}

static void column_sums_of_parts_are_added_by_the_tree(void **state)
{
    lk_exec *execs[LKI_EXECS_MAX];
    size_t   count = lki_test_execs(execs);
    (void)state;
    fill(1.0f);
    for (size_t e = 0; e < count; e++)
        for (uint32_t parts = 1; parts <= COUNT_MOST; parts *= 4) {
            check_columns(execs[e], LK_F32, LKI_ACT_RELU, 130, 600, parts);
            check_columns(execs[e], LK_F32, LKI_ACT_NONE, 3, 70, parts);
            check_columns(execs[e], LK_BF16, LKI_ACT_GELU_TANH, 65, 129, parts);
        }
    lki_test_execs_free(execs, count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_parts_are_added_by_the_tree),
        cmocka_unit_test(parts_of_small_values_are_added_by_the_tree),
        cmocka_unit_test(only_sums_that_are_subnormal_become_zero),
        cmocka_unit_test(column_sums_of_parts_are_added_by_the_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

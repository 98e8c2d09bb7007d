/* gemm_test.c -- the matrix product is one chain of fma an element, whoever computes it.
 *
 * Goal:   the bits of a scalar loop for every instruction set, thread count, shape, transpose,
 *         stride, epilogue, and cut of the rows.
 * Method: memcmp with the reference.  A chain that is cut in two and a product without fma must
 *         give other bits, or the data would prove nothing.
 */
#include <math.h>

#include "base/memory.h"
#include "tensor/reference.h"
#include "tensor/testing.h"

enum { ROOM = 200000 };
static float a[ROOM], b[ROOM], start[ROOM], bias[ROOM], want[ROOM], got[ROOM], want_pre[ROOM],
    got_pre[ROOM];

typedef struct {
    size_t m, n, k;
} size;

/* Micro-tile borders of all instruction sets, one row, one column, no k, more k than one panel. */
static const size sizes[] = {
    { 1, 1, 1 },     { 1, 33, 7 },    { 6, 16, 5 },   { 14, 32, 9 },   { 15, 31, 3 },
    { 48, 17, 40 },  { 49, 33, 65 },  { 3, 5, 0 },    { 13, 1, 64 },   { 1, 65, 385 },
    { 5, 40, 769 },  { 61, 20, 390 }, { 113, 70, 8 }, { 57, 1300, 3 }, { 7, 1299, 2 },
    { 50, 64, 512 }, { 64, 128, 17 },
};

static void check(lk_exec *const *execs, size_t count, lki_gemm_args args)
{
    size_t rows = args.ldc != 0 ? args.ldc : args.n, used = args.m * rows;
    LK_ASSERT(used <= ROOM && (args.m + 3) * (args.k + 3) <= ROOM &&
              (args.n + 3) * (args.k + 3) <= ROOM);
    memcpy(want, start, used * sizeof *want);
    memcpy(want_pre, start, used * sizeof *want);
    args.c   = want;
    args.pre = want_pre;
    lki_reference_gemm(&args);
    for (size_t e = 0; e < count; e++) {
        memcpy(got, start, used * sizeof *got);
        memcpy(got_pre, start, used * sizeof *got);
        args.c   = got;
        args.pre = got_pre;
        lki_gemm(execs[e], &args);
        if (memcmp(got, want, used * sizeof *got) != 0 ||
            memcmp(got_pre, want_pre, used * sizeof *got) != 0)
            fail_msg("%s, %u threads: m %zu n %zu k %zu, a%s b%s differ from the scalar loop",
                     lk_exec_isa(execs[e]), lk_exec_threads(execs[e]), args.m, args.n, args.k,
                     args.transpose_a ? "'" : "", args.transpose_b ? "'" : "");
    }
}

static void fill_all(void)
{
    lki_test_fill(a, ROOM, 1, 1.0f);
    lki_test_fill(b, ROOM, 2, 1.0f);
    lki_test_fill(start, ROOM, 3, 2.0f);
    lki_test_fill(bias, ROOM, 4, 1.0f);
}

static void equals_the_scalar_loop(void **state)
{
    (void)state;
    lk_exec *execs[LKI_EXECS_MAX];
    size_t   count = lki_test_execs(execs);
    fill_all();
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (unsigned way = 0; way < 8; way++)
            check(execs, count,
                  (lki_gemm_args){ .transpose_a = way & 1,
                                   .transpose_b = way & 2,
                                   .accumulate  = way & 4,
                                   .m           = sizes[s].m,
                                   .n           = sizes[s].n,
                                   .k           = sizes[s].k,
                                   .a           = a,
                                   .b           = b });
    lki_test_execs_free(execs, count);
}

static void equals_it_with_strides_and_epilogues(void **state)
{
    (void)state;
    lk_exec *execs[LKI_EXECS_MAX];
    size_t   count = lki_test_execs(execs);
    fill_all();
    static const size some[] = { { 15, 31, 3 }, { 49, 33, 65 }, { 20, 7, 390 } };
    for (size_t s = 0; s < sizeof some / sizeof some[0]; s++)
        for (unsigned way = 0; way < 4; way++)
            for (int act = LKI_ACT_NONE; act <= LKI_ACT_GELU_ERF; act++) {
                size z = some[s];
                check(execs, count,
                      (lki_gemm_args){ .transpose_a = way & 1,
                                       .transpose_b = way & 2,
                                       .m           = z.m,
                                       .n           = z.n,
                                       .k           = z.k,
                                       .a           = a,
                                       .b           = b,
                                       .lda         = (way & 1 ? z.m : z.k) + 3,
                                       .ldb         = (way & 2 ? z.k : z.n) + 2,
                                       .ldc         = z.n + 5,
                                       .bias        = bias,
                                       .activation  = (lki_activation)act });
            }
    lki_test_execs_free(execs, count);
}

static void rows_do_not_depend_on_their_batch(void **state)
{
    (void)state;
    enum { M = 60, N = 37, K = 400 };
    lk_exec *execs[LKI_EXECS_MAX];
    size_t   count = lki_test_execs(execs);
    fill_all();
    lk_gemm(execs[0], false, true, M, N, K, a, b, want, false);
    for (size_t e = 0; e < count; e++)
        for (size_t first = 0, rows = 1; first < M;
             first += rows, rows    = lki_min(2 * rows, M - first)) {
            lk_gemm(execs[e], false, true, rows, N, K, a + first * K, b, got, false);
            assert_memory_equal(got, want + first * N, rows * N * sizeof *got);
        }
    lki_test_execs_free(execs, count);
}

/* The data must be able to tell: rounding products, or adding two half chains, shows. */
static void other_orders_give_other_bits(void **state)
{
    (void)state;
    enum { M = 20, N = 20, K = 64 };
    fill_all();
    lki_gemm_args args = { .m = M, .n = N, .k = K, .a = a, .b = b, .c = want };
    lki_reference_gemm(&args);
    size_t unfused = 0, cut = 0;
    for (size_t i = 0; i < M; i++)
        for (size_t j = 0; j < N; j++) {
            float sum = 0.0f, half[2] = { 0.0f, 0.0f };
            for (size_t p = 0; p < K; p++) {
                float x = a[i * K + p], y = b[p * N + j], product = x * y;
                sum               = sum + product;
                half[p / (K / 2)] = fmaf(x, y, half[p / (K / 2)]);
            }
            unfused += sum != want[i * N + j];
            cut += half[0] + half[1] != want[i * N + j];
        }
    assert_true(unfused > 0 && cut > 0);
}

static void sums_columns(void **state)
{
    (void)state;
    lk_exec *execs[LKI_EXECS_MAX];
    size_t   count = lki_test_execs(execs);
    fill_all();
    static const size_t widths[] = { 1, 16, 63, 200, 1025 };
    for (size_t w = 0; w < 5; w++) {
        memcpy(want, start, sizeof want);
        lki_reference_bias_backward(33, widths[w], a, want);
        for (size_t e = 0; e < count; e++) {
            memcpy(got, start, sizeof got);
            lki_bias_backward(execs[e], 33, widths[w], a, got);
            assert_memory_equal(got, want, sizeof got);
        }
    }
    lki_test_execs_free(execs, count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_scalar_loop),
        cmocka_unit_test(equals_it_with_strides_and_epilogues),
        cmocka_unit_test(rows_do_not_depend_on_their_batch),
        cmocka_unit_test(other_orders_give_other_bits),
        cmocka_unit_test(sums_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

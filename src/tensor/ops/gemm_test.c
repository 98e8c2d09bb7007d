/* gemm_test.c -- every element of a matrix product is one chain of fma, on every exec.
 *
 * Goal:   the product has the bits of a scalar loop for every instruction set, thread count, shape,
 *         transpose, stride, epilogue and division of the rows.
 * Method: results are compared with the reference by memcmp.  Every size is tested with every
 *         transpose, and the other choices alternate; LK_THOROUGH=1 tests all combinations.  A
 *         chain that is cut in two and a product without fma must give other bits, or the data
 *         would prove nothing.
 */
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/thorough_testing.h"
#include "device/half.h"
#include "tensor/reference.h"
#include "tensor/tensor_testing.h"
#include "tensor/isa/kernels.h"

enum { ROOM = 200000 };
static float    a[ROOM], b[ROOM], start[ROOM], bias[ROOM], residual[ROOM], want[ROOM], got[ROOM],
    want_pre[ROOM], got_pre[ROOM];
static uint16_t a16[ROOM], b16[ROOM], start16[ROOM];

/* The ways of testing: without a pack, with a pack that the call fills, with a full pack, and with
 * a pack that another thread is filling. */
enum { PACK_NONE, PACK_NEW, PACK_THERE, PACK_BUSY, PACK_WAYS };
static _Alignas(64) float pack_room[2 * ROOM];
static lki_pack_state     pack_state;

typedef struct {
    size_t m, n, k;
} size;

/* Sizes at the borders of micro-tiles of all instruction sets.  Also one row, one column, no k,
 * more k than one panel, and more rows and columns than one tile.  For gemm_turned.c, few rows with
 * a large transpose.  Also few rows, with columns that are whole vectors but not whole
 * micro-tiles.  For gemm_row.c, one row with a k of whole chunks, with few columns and with more
 * than a task has; at even places, since those at odd ones are tested with `accumulate`. */
static const size sizes[] = {
    { 1, 1, 1 },     { 1, 33, 7 },    { 6, 16, 5 },   { 14, 32, 9 },   { 15, 31, 3 },
    { 48, 17, 40 },  { 49, 33, 65 },  { 3, 5, 0 },    { 13, 1, 64 },   { 1, 65, 385 },
    { 5, 40, 769 },  { 61, 20, 390 }, { 113, 70, 8 }, { 57, 1300, 3 }, { 7, 1299, 2 },
    { 50, 64, 512 }, { 300, 64, 17 }, { 393, 33, 400 }, { 49, 300, 390 }, { 400, 290, 6 },
    { 31, 70, 140 }, { 64, 130, 128 }, { 96, 193, 129 }, { 32, 65, 391 },
    { 32, 784, 32 }, { 47, 112, 400 }, { 29, 96, 788 }, { 2, 64, 36 },  { 1, 67, 64 },
    { 14, 32, 512 }, { 1, 2070, 64 },
};

/* Prepares the pack for a way of testing.  Returns false if this product cannot be tested in that
 * way.  Packs are tested on one exec of each instruction set. */
static bool open_pack(const lk_exec *exec, lki_gemm_args *args, int way)
{
    static const lk_pack pack  = { .state = &pack_state, .version = 3, .data = pack_room };
    size_t               bytes = lki_gemm_pack_bytes(exec, args);

    args->pack = way == PACK_NONE ? NULL : &pack;
    if (way == PACK_NONE || bytes == 0 || lk_exec_threads(exec) != 3)
        return way == PACK_NONE;
    LK_ASSERT(bytes <= sizeof pack_room);
    if (way == PACK_THERE) {
        assert_int_equal(pack_state >> 4, pack.version);
        assert_true((pack_state & 1) != 0);
        return true;
    }
    memset(pack_room, 0xff, bytes);
    pack_state = (way == PACK_NEW ? pack.version - 1 : pack.version) << 4;
    return true;
}

static void check(lk_exec *const *execs, size_t count, lki_gemm_args args)
{
    if (count == 0)
        return;
    size_t rows = args.ldc != 0 ? args.ldc : args.n, used = args.m * rows;
    LK_ASSERT(used <= ROOM && (args.m + 3) * (args.k + 3) <= ROOM &&
              (args.n + 3) * (args.k + 3) <= ROOM);
    size_t      bytes = used * (args.result == LK_BF16 ? sizeof *start16 : sizeof *start);
    const void *from  = args.result == LK_BF16 ? (const void *)start16 : (const void *)start;
    memcpy(want, from, bytes);
    memcpy(want_pre, from, bytes);
    args.c   = want;
    args.pre = want_pre;
    lki_reference_gemm(&args);
    for (size_t e = 0; e < count; e++) {
        for (int way = PACK_NONE; way < PACK_WAYS && open_pack(execs[e], &args, way); way++) {
            memcpy(got, from, bytes);
            memcpy(got_pre, from, bytes);
            args.c   = got;
            args.pre = got_pre;
            lki_gemm(execs[e], &args);
            if (memcmp(got, want, bytes) != 0 || memcmp(got_pre, want_pre, bytes) != 0)
                fail_msg("%s, %u threads: m %zu n %zu k %zu, a%s b%s, operands %d, result %d, "
                         "pack %d differ from the scalar loop", lk_exec_isa(execs[e]),
                         lk_exec_threads(execs[e]), args.m, args.n, args.k,
                         args.transpose_a ? "'" : "", args.transpose_b ? "'" : "",
                         (int)args.operands, (int)args.result, way);
        }
    }
}

static void fill_all(void)
{
    lki_test_fill(a, ROOM, 1, 1.0f);
    lki_test_fill(b, ROOM, 2, 1.0f);
    lki_test_fill(start, ROOM, 3, 2.0f);
    lki_test_fill(bias, ROOM, 4, 1.0f);
    lki_test_fill(residual, ROOM, 5, 1.0f);
    for (size_t i = 0; i < ROOM; i++) {
        a16[i]     = lki_bf16_narrow(a[i]);
        b16[i]     = lki_bf16_narrow(b[i]);
        start16[i] = lki_bf16_narrow(start[i]);
    }
}

/* Returns true if the nth size is tested with this transpose and this choice.  Without LK_THOROUGH
 * each transpose is tested with one of the `choices`, and with LK_BRIEF every fifth transpose. */
static bool takes_turn(size_t nth, unsigned transpose, unsigned choice, unsigned choices)
{
    if (lki_brief() && (nth / choices + transpose) % 5 != 0)
        return false;
    return lki_thorough() || (transpose + choice) % choices == nth % choices;
}

static void products_equal_the_scalar_loop(void **state)
{
    (void)state;
    lk_exec *execs[LKI_EXECS_MAX];
    size_t   count = lki_test_execs(execs);
    fill_all();
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (unsigned way = 0; way < 8; way++)
            check(execs, takes_turn(s, way % 4, way / 4, 2) ? count : 0,
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

static void strided_products_equal_the_scalar_loop(void **state)
{
    (void)state;
    lk_exec *execs[LKI_EXECS_MAX];
    size_t   count = lki_test_execs(execs);
    fill_all();
    static const size some[] = { { 15, 31, 3 }, { 49, 33, 65 }, { 20, 7, 390 }, { 31, 70, 140 },
                                 { 32, 65, 386 } };
    for (size_t s = 0; s < sizeof some / sizeof some[0]; s++)
        for (unsigned way = 0; way < 4; way++)
            for (int act = LKI_ACT_NONE; act <= LKI_ACT_GELU_ERF; act++) {
                size z = some[s];
                check(execs, lki_brief() && (s + way + (unsigned)act) % 5 != 0 ? 0 : count,
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
                                       .residual    = way != 0 ? residual : NULL,
                                       .activation  = (lki_activation)act });
            }
    lki_test_execs_free(execs, count);
}

/* Tests every shape and transpose, with results that are FP32 or bf16, written or accumulated. */
static void bf16_products_equal_the_scalar_loop(void **state)
{
    (void)state;
    lk_exec *execs[LKI_EXECS_MAX];
    size_t   count = lki_test_execs_for(execs, true);
    fill_all();
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (unsigned way = 0; way < 16; way++)
            check(execs, takes_turn(s, way % 4, way / 4, 4) ? count : 0,
                  (lki_gemm_args){ .transpose_a = way & 1,
                                   .transpose_b = way & 2,
                                   .accumulate  = way & 4,
                                   .operands    = LK_BF16,
                                   .result      = way & 8 ? LK_BF16 : LK_F32,
                                   .m           = sizes[s].m,
                                   .n           = sizes[s].n,
                                   .k           = sizes[s].k,
                                   .a           = a16,
                                   .b           = b16 });
    lki_test_execs_free(execs, count);
}

/* Tests with a matrix b of floats: ties, values that round up to the next exponent, and subnormal
 * values. */
static void an_fp32_b_is_rounded_to_bf16(void **state)
{
    (void)state;
    static const uint32_t kinds[] = { 0x3f808000, 0x3f818000, 0xbf7fff00, 0x007fffff, 0x3f808001 };
    static float          wide[ROOM];
    lk_exec              *execs[LKI_EXECS_MAX];
    size_t                count = lki_test_execs_for(execs, true);
    fill_all();
    memcpy(wide, b, sizeof wide);
    for (size_t i = 0; i < ROOM; i += 3)
        wide[i] = lki_f32_from_bits(kinds[i / 3 % (sizeof kinds / sizeof kinds[0])]);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (unsigned way = 0; way < 4; way++)
            check(execs, takes_turn(s, way % 2, way / 2, 2) ? count : 0,
                  (lki_gemm_args){ .transpose_b = way & 1,
                                   .accumulate  = way & 2,
                                   .operands    = LK_BF16,
                                   .result      = way & 2 ? LK_F32 : LK_BF16,
                                   .wide_b      = true,
                                   .m           = sizes[s].m,
                                   .n           = sizes[s].n,
                                   .k           = sizes[s].k,
                                   .ldb         = (way & 1 ? sizes[s].k : sizes[s].n) + 3,
                                   .a           = a16,
                                   .b           = wide });
    lki_test_execs_free(execs, count);
}

/* Tests a k so long that the shared buffer of the threads cannot hold even one panel of it. */
static void bf16_products_over_a_long_k_equal_the_scalar_loop(void **state)
{
    (void)state;
    enum { M = 114, N = 1, K = 66001 };
    lk_exec  *execs[LKI_EXECS_MAX];
    size_t    count = lki_test_execs_for(execs, true);
    uint16_t *left  = calloc((size_t)M * K, sizeof *left);
    uint16_t *right = calloc((size_t)N * K, sizeof *right);
    assert_true(left != NULL && right != NULL);
    for (size_t i = 0; i < (size_t)M * K; i++)
        left[i] = lki_bf16_narrow((float)(i * 7919 % 1000) * 1e-3f - 0.5f);
    for (size_t i = 0; i < (size_t)N * K; i++)
        right[i] = lki_bf16_narrow((float)(i * 104729 % 1000) * 1e-3f - 0.5f);
    lki_gemm_args args = { .transpose_b = true, .operands = LK_BF16, .result = LK_BF16, .m = M,
                           .n = N, .k = K, .a = left, .b = right, .c = want };
    lki_reference_gemm(&args);
    for (size_t e = 0; e < count; e++) {
        if (lk_exec_threads(execs[e]) != 3)
            continue;
        memset(got, 0, sizeof got);
        args.c = got;
        lki_gemm(execs[e], &args);
        assert_memory_equal(got, want, M * N * sizeof(uint16_t));
    }
    free(left);
    free(right);
    lki_test_execs_free(execs, count);
}

/* Tests strides of every parity, operands at odd addresses, every epilogue, and mixed types. */
static void strided_bf16_products_equal_the_scalar_loop(void **state)
{
    (void)state;
    lk_exec          *execs[LKI_EXECS_MAX];
    size_t            count  = lki_test_execs_for(execs, true);
    static const size some[] = {
        { 15, 31, 3 }, { 49, 33, 66 }, { 20, 7, 770 }, { 66, 40, 0 }, { 66, 40, 418 },
    };
    fill_all();
    for (size_t s = 0; s < sizeof some / sizeof some[0]; s++)
        for (unsigned way = 0; way < 32; way++) {
            size z = some[s];
            check(execs, count,
                  (lki_gemm_args){ .transpose_a = way & 1,
                                   .transpose_b = way & 2,
                                   .operands    = way & 4 ? LK_BF16 : LK_F32,
                                   .result      = way & 4 && way & 16 ? LK_F32 : LK_BF16,
                                   .m           = z.m,
                                   .n           = z.n,
                                   .k           = z.k,
                                   .a           = way & 4 ? (const void *)(a16 + (way >> 3 & 1))
                                                          : (const void *)a,
                                   .b = way & 4 ? (const void *)(b16 + 1) : (const void *)b,
                                   .lda         = (way & 1 ? z.m : z.k) + (way >> 3),
                                   .ldb         = (way & 2 ? z.k : z.n) + 1,
                                   .ldc         = z.n + 5,
                                   .bias        = bias,
                                   .activation  = (lki_activation)(way % 4),
                                   .residual    = way & 8 ? (way & 4 && way & 16
                                                                 ? (const void *)residual
                                                                 : (const void *)start16)
                                                          : NULL });
        }
    lki_test_execs_free(execs, count);
}

/* Uses values so small that many sums and operands are subnormal. */
static void bf16_products_flush_subnormal_values(void **state)
{
    (void)state;
    enum { M = 17, N = 35, K = 70 };
    lk_exec *execs[LKI_EXECS_MAX];
    size_t   count = lki_test_execs_for(execs, true), zeros = 0, kept = 0;
    fill_all();
    for (size_t i = 0; i < ROOM; i++) {
        a16[i]   = lki_bf16_narrow(a[i] * 0x1p-63f);
        b16[i]   = lki_bf16_narrow(b[i] * 0x1p-63f);
        start[i] = start[i] * 0x1p-125f;
    }
    for (unsigned way = 0; way < 8; way++)
        check(execs, count,
              (lki_gemm_args){ .transpose_a = way & 1,
                               .transpose_b = way & 2,
                               .accumulate  = way & 4,
                               .operands    = LK_BF16,
                               .m           = M,
                               .n           = N,
                               .k           = K,
                               .a           = a16,
                               .b           = b16 });
    for (size_t i = 0; i < M * N; i++) {
        zeros += want[i] == 0.0f;
        kept += want[i] != 0.0f && fabsf(want[i]) < 0x1p-120f;
    }
    assert_true(zeros > 0 && kept > 0); /* otherwise the data would not detect an error */

    /* 2^-126 minus the largest value for which the result is normal, 2^-126 minus the smallest
     * value for which it is subnormal, and a subnormal operand times a large one. */
    static const uint16_t edge[][2] = { { 0x1980, 0x9a00 },
                                        { 0x1980, 0x9a10 },
                                        { 0x0040, 0x7f00 } };
    for (size_t i = 0; i < sizeof edge / sizeof edge[0]; i++)
        for (int odd = 0; odd < 2; odd++) {
            memset(a16, 0, 4 * sizeof *a16);
            memset(b16, 0, 4 * sizeof *b16);
            a16[odd]     = 0x0080; /* 2^-126 times 1 */
            b16[odd]     = 0x3f80;
            a16[2 + odd] = edge[i][0];
            b16[2 + odd] = edge[i][1];
            check(
                execs, count,
                (lki_gemm_args){ .operands = LK_BF16, .m = 1, .n = 1, .k = 4, .a = a16, .b = b16 });
            assert_true(want[0] == (i == 1 ? 0.0f : 0x1p-126f));
        }
    lki_test_execs_free(execs, count);
}

/* Adds the product of k values of a16 and b16 to -0, on all instruction sets.  Returns true if the
 * result is -0. */
static bool keeps_minus_zero(lk_exec **execs, size_t count, size_t k)
{
    start[0] = -0.0f;
    check(execs, count,
          (lki_gemm_args){ .accumulate = true,
                           .operands   = LK_BF16,
                           .m          = 1,
                           .n          = 1,
                           .k          = k,
                           .a          = a16,
                           .b          = b16 });
    return signbit(want[0]) != 0;
}

/* The chains of a chunk that is not full end with products of +0, so they are never -0.  But their
 * sum is -0 if it is a negative subnormal value. */
static void missing_values_are_products_of_zeros(void **state)
{
    (void)state;
    lk_exec *execs[LKI_EXECS_MAX];
    size_t   count = lki_test_execs_for(execs, true);
    for (size_t k = 2; k <= 64; k += 2) {
        for (size_t i = 0; i < k; i++) { /* -2^-160, which becomes -0 */
            a16[i] = 0x1780;
            b16[i] = 0x9780;
        }
        assert_int_equal(keeps_minus_zero(execs, count, k), k == 32 || k == 64);
    }
    static const uint16_t chains[] = { 0x0080, 0x8081 }; /* 2^-126, and -2^-126 (1 + 2^-7) */
    for (size_t k = 2; k <= 64; k += 2) {
        memset(a16, 0, k * sizeof *a16);
        memset(b16, 0, k * sizeof *b16);
        for (size_t i = 0; i < 2; i++) {
            a16[k - 2 + i] = chains[i];
            b16[k - 2 + i] = 0x3f80;
        }
        assert_int_equal(keeps_minus_zero(execs, count, k), k <= LKI_CHUNK);
    }
    lki_test_execs_free(execs, count);
}

/* The data must detect errors: one chain, chains that are added to the sum one after the other, a
 * chain of halves, or one rounding for two products, must give other bits. */
static void other_orders_give_other_bits_in_bf16(void **state)
{
    (void)state;
    enum { K = 64, N = 200 };
    size_t single = 0, apart = 0, halves = 0, together = 0;
    fill_all();
    lki_gemm_args args = { .operands    = LK_BF16,
                           .transpose_b = true,
                           .m           = 1,
                           .n           = N,
                           .k           = K,
                           .a           = a16,
                           .b           = b16,
                           .c           = want };
    lki_reference_gemm(&args);
    for (size_t j = 0; j < N; j++) {
        float one = 0.0f, odd_first = 0.0f, cut = 0.0f, once = 0.0f;
        for (size_t p = 0; p < K; p += LKI_CHUNK) {
            float chain[2] = { 0 }, half[2] = { 0 }, pairs = 0.0f;
            for (size_t i = 0; i < LKI_CHUNK; i++) {
                float x = lki_bf16_widen(a16[p + i]), y = lki_bf16_widen(b16[j * K + p + i]);
                one                       = fmaf(x, y, one);
                chain[i % 2]              = fmaf(x, y, chain[i % 2]);
                half[i / (LKI_CHUNK / 2)] = fmaf(x, y, half[i / (LKI_CHUNK / 2)]);
                if (i % 2 != 0)
                    pairs = (float)((double)x * (double)y + (double)pairs +
                                    (double)lki_bf16_widen(a16[p + i - 1]) *
                                        (double)lki_bf16_widen(b16[j * K + p + i - 1]));
            }
            odd_first = (odd_first + chain[1]) + chain[0];
            cut       = cut + (half[0] + half[1]);
            once      = once + pairs;
        }
        single += one != want[j];
        apart += odd_first != want[j];
        halves += cut != want[j];
        together += once != want[j];
    }
    assert_true(single > 0 && apart > 0 && halves > 0 && together > 0);
}

static void converts_between_types(void **state)
{
    (void)state;
    lk_exec *execs[LKI_EXECS_MAX];
    size_t   count = lki_test_execs(execs);
    enum { N = 65536 + 37 };
    static uint16_t half[N], back[N];
    fill_all();
    for (size_t i = 0; i < N; i++) { /* every pattern of 16 bits, and floats of every size */
        half[i] = (uint16_t)i;
        want[i]    = lki_f32_from_bits((uint32_t)i << 16 | (uint32_t)(i * 40503 & 0xffff));
    }
    for (size_t e = 0; e < count; e++)
        for (int brain = 0; brain < 2; brain++) {
            lk_dtype type = brain ? LK_BF16 : LK_F16;
            lki_convert(execs[e], N, type, half, LK_F32, got);
            lki_convert(execs[e], N, LK_F32, want, type, back);
            for (size_t i = 0; i < N; i++) {
                float    wide  = brain ? lki_bf16_widen(half[i]) : lki_f16_widen(half[i]);
                uint16_t small = brain ? lki_bf16_narrow(want[i]) : lki_f16_narrow(want[i]);
                if (lki_f32_bits(got[i]) != lki_f32_bits(wide) || back[i] != small)
                    fail_msg("%s: %#zx of %s: %a, wanted %a; %#x, wanted %#x",
                             lk_exec_isa(execs[e]), i,
                             lk_dtype_name(type), (double)got[i], (double)wide, back[i], small);
            }
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

/* The data must detect errors: rounding products, or adding two half chains, must give other
 * bits. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_equal_the_scalar_loop),
        cmocka_unit_test(strided_products_equal_the_scalar_loop),
        cmocka_unit_test(bf16_products_equal_the_scalar_loop),
        cmocka_unit_test(an_fp32_b_is_rounded_to_bf16),
        cmocka_unit_test(bf16_products_over_a_long_k_equal_the_scalar_loop),
        cmocka_unit_test(strided_bf16_products_equal_the_scalar_loop),
        cmocka_unit_test(bf16_products_flush_subnormal_values),
        cmocka_unit_test(missing_values_are_products_of_zeros),
        cmocka_unit_test(other_orders_give_other_bits_in_bf16),
        cmocka_unit_test(converts_between_types),
        cmocka_unit_test(rows_do_not_depend_on_their_batch),
        cmocka_unit_test(other_orders_give_other_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

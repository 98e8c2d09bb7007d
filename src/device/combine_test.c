/* combine_test.c -- compares reductions of every type with naive reductions, bit by bit.
 *
 * Goal:   every kind of reduction of every type, for every number of operands and every length,
 *         matches plain_testing.h; 16-bit conversions are exact or rounded to nearest even.
 * Method: random patterns including NaNs, infinities, subnormals and zeros of both signs.
 *         Conversions of all 16-bit patterns, and of values at, above and below every midpoint of
 *         two neighbours, which determines rounding for all floats.
 */
#include "device/combine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "device/combine_loops.h"
#include "device/half.h"
#include "device/plain_testing.h"

enum { LEAVES_MAX = 9, COUNT_MAX = 4100 };

typedef struct {
    const lki_type_loops *loops;
    plain_tables          tables;
    double                data[LEAVES_MAX][COUNT_MAX], out[COUNT_MAX]; /* large enough for any
                                                                        * type */
} bench;

static const lk_reduce_op ops[] = {
    { LK_REDUCE_SUM, 1 }, { LK_REDUCE_PRODUCT, 1 }, { LK_REDUCE_MIN, 1 },
    { LK_REDUCE_MAX, 1 }, { LK_REDUCE_AVG, 1 },     { LK_REDUCE_PREMUL_SUM, -3 },
};
enum { OPS = sizeof ops / sizeof ops[0] };

static bool possible(lk_dtype d, lk_reduce_op op)
{
    return plain_is_float(d) || op.kind != LK_REDUCE_AVG;
}

static void check_one(bench *b, lk_dtype d, lk_reduce_op op, uint32_t leaves, size_t count,
                      bool in_place)
{
    const void *from[LEAVES_MAX];
    size_t      width = lk_dtype_bytes(d);
    char       *want  = malloc(count * width + 1);

    for (uint32_t k = 0; k < leaves; k++) {
        plain_fill(d, b->data[k], count, k + 100 * leaves);
        from[k] = b->data[k];
    }
    for (size_t i = 0; i < count; i++)
        plain_reduce(&b->tables, d, op, leaves, from, i, want + i * width);
    void *out = in_place ? (void *)b->data[leaves / 2] : (void *)b->out;
    assert_int_equal(lki_combine_check(d, op), LK_OK);
    lki_combine_by(b->loops, d, op, leaves, from, count, out);
    for (size_t i = 0; i < count; i++)
        if (memcmp((char *)out + i * width, want + i * width, width) != 0)
            fail_msg("%s %s of %u, element %zu of %zu", lk_dtype_name(d), lki_reduce_name(op.kind),
                     leaves, i, count);
    free(want);
}

/* Checks reductions into `places` destinations.  Any destination may also be a leaf. */
static void check_all(bench *b, lk_dtype d, lk_reduce_op op, uint32_t leaves, size_t count,
                      uint32_t places)
{
    const void *from[LEAVES_MAX];
    void       *out[LEAVES_MAX];
    size_t      bytes = count * lk_dtype_bytes(d);
    char       *want  = malloc(bytes + 1);

    for (uint32_t k = 0; k < leaves; k++) {
        plain_fill(d, b->data[k], count, k + 100 * leaves);
        from[k] = b->data[k];
    }
    lki_combine_by(b->loops, d, op, leaves, from, count, want);
    for (uint32_t k = 0; k < places; k++)
        out[k] = k == 0 ? (void *)b->out : (void *)b->data[k - 1];
    lki_combine_all_by(b->loops, d, op, leaves, from, count, out, places);
    for (uint32_t k = 0; k < places; k++)
        assert_memory_equal(out[k], want, bytes);
    for (uint32_t k = 0; k < leaves; k++) /* again, in place: leaf k is destination k */
        plain_fill(d, b->data[k], count, k + 100 * leaves);
    for (uint32_t k = 0; k < places; k++)
        out[k] = b->data[k];
    lki_combine_all_by(b->loops, d, op, leaves, from, count, out, places);
    for (uint32_t k = 0; k < places; k++)
        assert_memory_equal(out[k], want, bytes);
    free(want);
}

static void into_several_places(bench *b)
{
    static const size_t counts[] = { 0, 1, 15, 16, 17, 255, 1000, COUNT_MAX };

    for (size_t d = 0; d < PLAIN_DTYPES; d++)
        for (size_t k = 0; k < OPS; k++)
            for (uint32_t leaves = 1; leaves <= 4; leaves++)
                for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
                    for (uint32_t places = 1; places <= leaves; places++)
                        if (possible(plain_dtypes[d], ops[k]))
                            check_all(b, plain_dtypes[d], ops[k], leaves, counts[c], places);
}

/* Checks sums that bypass the cache at every alignment: the bits are equal, and no adjacent byte is
 * written. */
static void past_the_cache(bench *b)
{
    float *left = (float *)b->data[0], *right = (float *)b->data[1], *out = (float *)b->data[2];
    float  want[128];

    plain_fill(LK_F32, left, 128, 1);
    plain_fill(LK_F32, right, 128, 2);
    b->loops[LK_F32].combine[LK_REDUCE_SUM](128, left, right, want);
    for (size_t first = 0; first < 17; first++)
        for (size_t count = 0; count < 70; count++) {
            memset(out, 0, 128 * sizeof *out);
            b->loops[LK_F32].sum_far(count, left + first, right + first, out + first);
            assert_memory_equal(out + first, want + first, count * sizeof *out);
            for (size_t i = 0; i < 128; i++)
                assert_true((i >= first && i < first + count) || lki_f32_bits(out[i]) == 0);
        }
}

static void every_type_and_kind(bench *b)
{
    static const size_t counts[] = { 0, 1, 2, 7, 64, 1000, COUNT_MAX };

    for (size_t d = 0; d < PLAIN_DTYPES; d++)
        for (size_t k = 0; k < OPS; k++)
            for (uint32_t leaves = 1; leaves <= LEAVES_MAX; leaves++)
                for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
                    if (possible(plain_dtypes[d], ops[k]) && (c < 6 || leaves % 3 == 0))
                        check_one(b, plain_dtypes[d], ops[k], leaves, counts[c], (leaves + c) % 2);
}

static void portable_loops_equal_plain_reductions(void **state)
{
    bench *b = *state;
    b->loops = lki_combine_portable;
    every_type_and_kind(b);
    into_several_places(b);
    past_the_cache(b);
}

static void avx2_loops_equal_plain_reductions(void **state)
{
#if defined(__x86_64__)
    bench *b = *state;
    b->loops = lki_combine_avx2;
    if (!__builtin_cpu_supports("avx2"))
        return;
    every_type_and_kind(b);
    into_several_places(b);
    past_the_cache(b);
#else
    (void)state;
#endif
}

static void the_best_loops_equal_plain_reductions(void **state)
{
    bench *b = *state;
    b->loops = lki_combine_best();
    every_type_and_kind(b);
    into_several_places(b);
    past_the_cache(b);
}

/* ---- Conversions ------------------------------------------------------------------------- */

static void midpoints(const plain_tables *t, bool bf16)
{
    int infinite              = bf16 ? 0x7f80 : 0x7c00;
    uint16_t (*narrow)(float) = bf16 ? lki_bf16_narrow : lki_f16_narrow;

    for (int h = 0; h < infinite; h++) {
        double above = h + 1 < infinite ? t->value[bf16][h + 1]
                                        : 2 * t->value[bf16][h] - t->value[bf16][h - 1];
        float  half  = (float)(t->value[bf16][h] + (above - t->value[bf16][h]) / 2);
        assert_true((double)half == t->value[bf16][h] + (above - t->value[bf16][h]) / 2);
        assert_int_equal(narrow(half), h % 2 == 0 ? h : h + 1);
        assert_int_equal(narrow(nextafterf(half, 0)), h);
        assert_int_equal(narrow(nextafterf(half, INFINITY)), h + 1);
        assert_int_equal(narrow(-nextafterf(half, INFINITY)), 0x8000 + h + 1);
        assert_int_equal(narrow(-half), 0x8000 + (h % 2 == 0 ? h : h + 1));
    }
    assert_int_equal(narrow(INFINITY), infinite);
    assert_int_equal(narrow(-INFINITY), 0x8000 + infinite);
    assert_int_equal(narrow(0x1p-149f), 0);
    assert_int_equal(narrow(-0x1p-149f), 0x8000);
}

static void conversions_are_exact(void **state)
{
    const plain_tables *t = &((bench *)*state)->tables;

    for (int bf16 = 0; bf16 < 2; bf16++) {
        for (int h = 0; h < 0x10000; h++) {
            float wide  = bf16 ? lki_bf16_widen((uint16_t)h) : lki_f16_widen((uint16_t)h);
            float plain = plain_widen(t, bf16 == 1, (uint16_t)h);
            assert_true(isnan(plain) ? isnan(wide) : memcmp(&wide, &plain, sizeof wide) == 0);
            int back = bf16 ? lki_bf16_narrow(wide) : lki_f16_narrow(wide);
            assert_int_equal(back, !isnan(plain) ? h : bf16 ? 0x7fc0 : 0x7e00);
        }
        midpoints(t, bf16 == 1);
    }
}

/* ---- Special cases ----------------------------------------------------------------------- */

static uint16_t sum_f16(uint32_t leaves, const uint16_t *values)
{
    const void *from[LEAVES_MAX];
    uint16_t    out;
    for (uint32_t k = 0; k < leaves; k++)
        from[k] = &values[k];
    lki_combine(LK_F16, LK_SUM, leaves, from, 1, &out);
    return out;
}

/* Checks that halves are rounded once.  In 2048 + 1 + 1, rounding at each step would lose both
 * ones. 65504 + 65504 - 65504 - 65504 would overflow in 16 bits. */
static void halves_are_rounded_once(void **state)
{
    const uint16_t grows[] = { 0x6800, 0x3c00, 0x3c00, 0 };
    const uint16_t falls[] = { 0x7bff, 0x7bff, 0xfbff, 0xfbff };
    (void)state;
    assert_int_equal(sum_f16(4, grows), 0x6801);
    assert_int_equal(sum_f16(4, falls), 0);
}

/* Checks that max(1, NaN, 3, 4) is NaN wherever the NaN is, and that -0 < +0 in either order. */
static void minimum_and_maximum_handle_nan_and_signed_zeros(void **state)
{
    (void)state;
    for (uint32_t place = 0; place < 4; place++) {
        float       values[4] = { 1, 2, 3, 4 }, out;
        const void *from[4]   = { &values[0], &values[1], &values[2], &values[3] };
        values[place]         = -NAN;
        lki_combine(LK_F32, LK_MIN, 4, from, 1, &out);
        assert_int_equal(lki_f32_bits(out), 0x7fc00000);
        lki_combine(LK_F32, LK_MAX, 4, from, 1, &out);
        assert_int_equal(lki_f32_bits(out), 0x7fc00000);
    }
    const float plus = 0.0f, minus = -0.0f;
    float       out;
    const void *zeros[2] = { &plus, &minus }, *soroz[2] = { &minus, &plus };
    lki_combine(LK_F32, LK_MIN, 2, zeros, 1, &out);
    assert_true(signbit(out));
    lki_combine(LK_F32, LK_MAX, 2, soroz, 1, &out);
    assert_false(signbit(out));
}

static void invalid_types_and_reductions_are_refused(void **state)
{
    (void)state;
    assert_int_equal(lki_combine_check((lk_dtype)77, LK_SUM), LK_EINVAL);
    assert_int_equal(lki_combine_check(LK_F32, (lk_reduce_op){ (lk_reduce_kind)7, 0 }), LK_EINVAL);
    assert_int_equal(lki_combine_check(LK_I32, LK_AVG), LK_EINVAL);
    assert_int_equal(lki_combine_check(LK_U8, lk_premul_sum(0.5)), LK_EINVAL);
    assert_int_equal(lki_combine_check(LK_I64, lk_premul_sum((double)NAN)), LK_EINVAL);
    assert_int_equal(lki_combine_check(LK_BF16, lk_premul_sum(0.5)), LK_OK);
}

static int set_up(void **state)
{
    bench *b = malloc(sizeof *b);
    if (b == NULL)
        return 1;
    plain_init(&b->tables);
    *state = b;
    return 0;
}

static int tear_down(void **state)
{
    free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversions_are_exact),
        cmocka_unit_test(halves_are_rounded_once),
        cmocka_unit_test(minimum_and_maximum_handle_nan_and_signed_zeros),
        cmocka_unit_test(invalid_types_and_reductions_are_refused),
        cmocka_unit_test(portable_loops_equal_plain_reductions),
        cmocka_unit_test(avx2_loops_equal_plain_reductions),
        cmocka_unit_test(the_best_loops_equal_plain_reductions),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

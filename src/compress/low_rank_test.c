/* low_rank_test.c -- powersgd.
 *
 * Goal:    a sum of low rank is sent whole, and with error feedback nothing is lost: what was sent
 *          is the sum of all gradients without the last errors.  The group's own residual gives
 *          what the averaged residual of other programs gives.
 * Method:  noise of several groups, over steps; sums are compared in FP64.
 * Control: with the error of one group for another, something is lost.
 */
#include "compress/compress_testing.h"

#include <math.h>

#include "base/hash.h"
#include "base/rng.h"

#define HASH UINT64_C(0xce7731ec75599493)

enum { ROWS = 37, COLS = 53, COUNT = ROWS * COLS, GROUPS = 3 };

static float noise(uint32_t a, uint32_t b, uint32_t c)
{
    return 2 * lki_random_unit(lki_philox(5, LKI_RNG_DATA, a, b, c, 0).word[0]) - 1;
}

static lkt_compressed make(uint32_t rank)
{
    lkt_compressed c = { .options = LK_COMPRESSION_INIT,
                         .key     = { .rows = ROWS, .cols = COLS, .tensor = 2 },
                         .groups  = GROUPS,
                         .samples = 6 };
    assert_int_equal(lk_compressor_find(&c.by, "powersgd"), LK_OK);
    c.options.rank = rank;
    lkt_compressed_open(&c);
    return c;
}

static float values_of[GROUPS][COUNT];
static float *const values[GROUPS] = { values_of[0], values_of[1], values_of[2] };

static void fill(uint32_t step)
{
    for (uint32_t g = 0; g < GROUPS; g++)
        for (uint32_t i = 0; i < COUNT; i++)
            values_of[g][i] = noise(i, g, step);
}

static double norm(const float *x)
{
    double squares = 0;
    for (size_t i = 0; i < COUNT; i++)
        squares += (double)x[i] * (double)x[i];
    return sqrt(squares);
}

static void a_sum_of_low_rank_is_sent_whole(void **state)
{
    static float   want[COUNT], out[COUNT];
    lkt_compressed c = make(4);
    (void)state;
    for (uint32_t i = 0; i < COUNT; i++) {
        want[i] = 0;
        for (uint32_t g = 0; g < GROUPS; g++) {
            values_of[g][i] = 0;
            for (uint32_t a = 0; a < 2; a++)
                values_of[g][i] += noise(i / COLS, a, g + 10) * noise(i % COLS, a, 20);
            want[i] += values_of[g][i];
        }
    }
    lkt_compressed_step(&c, values, out);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_true(fabsf(out[i] - want[i]) < 1e-5f);
        assert_true(fabsf(values_of[0][i] + values_of[1][i] + values_of[2][i]) < 1e-5f);
    }
    lkt_compressed_close(&c);
}

/* Returns the norm of what is lost in some steps, relative to what is sent. */
static double lost(bool mixes)
{
    static float   out[COUNT], difference[COUNT], sent[COUNT];
    lkt_compressed c = make(2);
    memset(difference, 0, sizeof difference);
    memset(sent, 0, sizeof sent);
    for (uint32_t step = 0; step < 30; step++) {
        fill(step);
        for (uint32_t g = 0; g < GROUPS; g++)
            for (uint32_t i = 0; i < COUNT; i++)
                difference[i] += values_of[g][i];
        if (mixes)
            memcpy(c.errors[1], c.errors[0], COUNT * sizeof(float));
        lkt_compressed_step(&c, values, out);
        for (uint32_t i = 0; i < COUNT; i++) {
            difference[i] -= out[i];
            sent[i] += out[i];
        }
    }
    for (uint32_t g = 0; g < GROUPS; g++)
        for (uint32_t i = 0; i < COUNT; i++)
            difference[i] -= (float)c.samples * c.errors[g][i];
    lkt_compressed_close(&c);
    return norm(difference) / norm(sent);
}

static void nothing_is_lost(void **state)
{
    (void)state;
    assert_true(lost(false) < 1e-5);
    assert_true(lost(true) > 1e-2);
}

/* Fills in gradients whose singular values differ, as those of models do.  In noise whose singular
 * values are alike, differences by rounding grow with the steps. */
static void fill_smooth(uint32_t step)
{
    for (uint32_t g = 0; g < GROUPS; g++)
        for (uint32_t i = 0; i < COUNT; i++) {
            values_of[g][i] = 0.01f * noise(i, g, step);
            for (uint32_t a = 0; a < 3; a++)
                values_of[g][i] += (float)(1u << 2 * a) * noise(i / COLS, a, g + 10) *
                                   noise(i % COLS, a, 20);
        }
}

static void own_and_averaged_residuals_give_the_same(void **state)
{
    static float   outs[2][COUNT], before[GROUPS][COUNT];
    lkt_compressed own = make(3), averaged = make(3);
    (void)state;
    for (uint32_t step = 0; step < 50; step++) {
        fill_smooth(step);
        lkt_compressed_step(&own, values, outs[0]);
        fill_smooth(step);
        for (uint32_t g = 0; g < GROUPS; g++)
            for (uint32_t i = 0; i < COUNT; i++)
                before[g][i] = values_of[g][i] + 6 * averaged.errors[g][i];
        lkt_compressed_step(&averaged, values, outs[1]);
        for (uint32_t g = 0; g < GROUPS; g++)
            for (uint32_t i = 0; i < COUNT; i++)
                averaged.errors[g][i] = (before[g][i] - outs[1][i] / GROUPS) / 6;
        for (uint32_t i = 0; i < COUNT; i++)
            outs[1][i] -= outs[0][i];
        assert_true(norm(outs[1]) < 1e-5 * norm(outs[0]));
    }
    lkt_compressed_close(&own);
    lkt_compressed_close(&averaged);
}

static void any_range_is_decoded(void **state)
{
    static float   out[COUNT], part[COUNT];
    lkt_compressed c = make(3);
    (void)state;
    fill(0);
    lkt_compressed_step(&c, values, out);
    for (size_t first = 0; first < COUNT; first += 97)
        for (size_t count = 1; first + count <= COUNT; count = 3 * count + 5) {
            lkt_compressed_decode(&c, first, count, part);
            assert_memory_equal(part, out + first, count * sizeof *part);
        }
    lkt_compressed_close(&c);
}

static void a_parameter_may_be_unused_for_a_time(void **state)
{
    static float   out[COUNT];
    lkt_compressed c = make(2);
    (void)state;
    for (uint32_t step = 0; step < 3; step++) {
        memset(values_of, 0, sizeof values_of);
        lkt_compressed_step(&c, values, out);
        assert_true(norm(out) == 0);
    }
    fill(3);
    lkt_compressed_step(&c, values, out);
    assert_true(norm(out) > 1);
    lkt_compressed_close(&c);
}

/* P may be of unit length where Q is rounded to 0. */
static void tiny_gradients_stay_tiny(void **state)
{
    static float   out[COUNT];
    lkt_compressed c = make(4);
    (void)state;
    for (uint32_t step = 0; step < 3; step++) {
        fill(step);
        for (uint32_t g = 0; g < GROUPS; g++)
            for (uint32_t i = 0; i < COUNT; i++)
                values_of[g][i] *= 0x1p-148f;
        lkt_compressed_step(&c, values, out);
        for (uint32_t i = 0; i < COUNT; i++)
            assert_true(fabsf(out[i]) < 0x1p-140f);
    }
    lkt_compressed_close(&c);
}

static void values_that_are_not_finite_are_seen(void **state)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    static float       out[COUNT];
    (void)state;
    for (size_t b = 0; b < 3; b++) {
        lkt_compressed c = make(2);
        fill(0);
        values_of[1][700] = bad[b];
        lkt_compressed_step(&c, values, out);
        assert_true(!(norm(out) < (double)INFINITY));
        lkt_compressed_close(&c);
    }
}

static void small_tensors_are_left_whole(void **state)
{
    lkt_compressed c = make(4);
    (void)state;
    assert_int_equal(c.by->bytes(&c.options, &c.key, 0), 4 * ROWS * sizeof(float));
    assert_int_equal(c.by->bytes(&c.options, &c.key, 1), 4 * COLS * sizeof(float));
    c.options.rank = 11; /* 2 x 11 x (37 + 53) is above 37 x 53 */
    assert_int_equal(c.by->bytes(&c.options, &c.key, 0), 0);
    c.key.cols = 1;
    assert_int_equal(c.by->bytes(&c.options, &c.key, 0), 0);
    c.key.cols = COLS;
    c.options.rank = 4;
    lkt_compressed_close(&c);
}

/* Compares bits with those of the first version, on any processor and with any compiler. */
static void bits_do_not_change(void **state)
{
    static float   out[COUNT];
    lkt_compressed c = make(4);
    uint64_t       hash = 0;
    (void)state;
    for (uint32_t step = 0; step < 3; step++) {
        fill(step);
        lkt_compressed_step(&c, values, out);
        hash ^= lki_xxh3(out, sizeof out);
    }
    assert_int_equal(hash, HASH);
    lkt_compressed_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sum_of_low_rank_is_sent_whole),
        cmocka_unit_test(nothing_is_lost),
        cmocka_unit_test(own_and_averaged_residuals_give_the_same),
        cmocka_unit_test(any_range_is_decoded),
        cmocka_unit_test(a_parameter_may_be_unused_for_a_time),
        cmocka_unit_test(tiny_gradients_stay_tiny),
        cmocka_unit_test(values_that_are_not_finite_are_seen),
        cmocka_unit_test(small_tensors_are_left_whole),
        cmocka_unit_test(bits_do_not_change),
    };
    return cmocka_run_group_tests_name("compress.low_rank", tests, NULL, NULL);
}

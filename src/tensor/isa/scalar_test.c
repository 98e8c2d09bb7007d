/* scalar_test.c -- the elementary functions against the C library's doubles.
 *
 * Goal:   the error is at most 2 units in the last place over every range that occurs in training,
 *         and results at the edges are correct.
 * Method: dense sweeps; the double function of the C library is the reference.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tensor/ops.h"

/* Returns the distance in units in the last place of a float of this size (for denormals: of
 * 2^-149). */
static double ulps(float got, double want)
{
    int exponent;
    (void)frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1.0, exponent - 24 < -149 ? -149 : exponent - 24);
}

static void sweep(const char *name, float (*ours)(float), double (*theirs)(double), float low,
                  float high)
{
    enum { POINTS = 200000 };
    for (int i = 0; i <= POINTS; i++) {
        float  x   = low + (high - low) * ((float)i / (float)POINTS);
        double off = ulps(ours(x), theirs((double)x));
        if (!(off <= 2.0))
            fail_msg("%s(%a) is %.2f units off", name, (double)x, off);
    }
}

static void errors_are_at_most_two_ulps(void **state)
{
    (void)state;
    sweep("exp", lki_expf, exp, -103.0f, 88.7f);
    sweep("exp", lki_expf, exp, -1.0f, 1.0f);
    sweep("log", lki_logf, log, 1e-45f, 1e-37f);
    sweep("log", lki_logf, log, 1e-6f, 4.0f);
    sweep("log", lki_logf, log, 0.95f, 1.05f);
    sweep("log", lki_logf, log, 4.0f, 3e38f);
    sweep("tanh", lki_tanhf, tanh, -10.0f, 10.0f);
    sweep("tanh", lki_tanhf, tanh, -1e-3f, 1e-3f);
    sweep("erf", lki_erff, erf, -5.0f, 5.0f);
    sweep("erf", lki_erff, erf, -1e-3f, 1e-3f);
    sweep("cos", lki_cosf, cos, -6433.0f, 6433.0f);
}

/* The documented error of lki_exp2f() is larger, because its results are rounded to bf16. */
static void exp2_is_within_its_documented_error(void **state)
{
    (void)state;
    for (int i = -126 * 4096; i <= 127 * 4096; i += 3) {
        float  x    = (float)i / 4096.0f;
        double want = exp2((double)x);
        assert_true(fabs((double)lki_exp2f(x) - want) <= 2.3e-7 * want);
    }
    assert_true(lki_exp2f(0.0f) == 1.0f && lki_exp2f(-3.0f) == 0.125f);
    assert_true(lki_exp2f(-INFINITY) == 0x1p-126f && isnan(lki_exp2f(NAN)));
}

static void values_at_the_edges_are_correct(void **state)
{
    (void)state;
    assert_true(lki_expf(0.0f) == 1.0f);
    assert_true(lki_expf(-200.0f) == 0.0f && lki_expf(-INFINITY) == 0.0f);
    assert_true(isinf(lki_expf(89.0f)) && isinf(lki_expf(INFINITY)));
    assert_true(lki_logf(1.0f) == 0.0f && lki_logf(0.0f) == -INFINITY);
    assert_true(isinf(lki_logf(INFINITY)) && isnan(lki_logf(-1.0f)));
    assert_true(lki_tanhf(INFINITY) == 1.0f && lki_tanhf(-INFINITY) == -1.0f);
    assert_true(lki_erff(INFINITY) == 1.0f && lki_erff(-9.0f) == -1.0f);
    assert_true(isnan(lki_expf(NAN)) && isnan(lki_logf(NAN)) && isnan(lki_tanhf(NAN)) &&
                isnan(lki_erff(NAN)));
}

static void functions_for_schedules_are_accurate(void **state)
{
    (void)state;
    for (double x = -16.0; x <= 16.0; x += 1e-3)
        assert_true(fabs(lki_cos(x) - cos(x)) < 3e-16);
    for (double x = 1.0; x < 1 << 20; x *= 1.0003)
        assert_true(fabs(lki_cos(x) - cos(x)) < 3e-16 && fabs(lki_sin(x) - sin(x)) < 3e-16);
    assert_true(lki_cos(0.0) == 1.0 && lki_sin(0.0) == 0.0 && lki_sin(-0.5) == -lki_sin(0.5));
    for (uint64_t n = 0; n < 5000; n += 7) {
        assert_true(fabs(lki_powi(0.999, n) - pow(0.999, (double)n)) < 1e-12);
        assert_true(fabs(lki_powi(0.9, n) - pow(0.9, (double)n)) < 1e-14);
    }
    for (double x = 1.0; x > 1e-9; x *= 0.97)
        for (double y = 0.1; y < 8.0; y += 0.45)
            assert_true(fabs(lki_pow(x, y) - pow(x, y)) <= 2e-14 * pow(x, y));
    assert_true(lki_pow(0.0, 0.9) == 0.0 && lki_pow(1.0, 0.9) == 1.0 && lki_pow(0.3, 0.0) == 1.0);
    assert_true(lki_pow(0.5, 2.0) == 0.25 && lki_pow(0x1p-1050, 0.5) == 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_at_most_two_ulps),
        cmocka_unit_test(exp2_is_within_its_documented_error),
        cmocka_unit_test(values_at_the_edges_are_correct),
        cmocka_unit_test(functions_for_schedules_are_accurate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

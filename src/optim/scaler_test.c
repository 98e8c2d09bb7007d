/* scaler_test.c -- loss scaling by the rules of PyTorch and DeepSpeed.
 *
 * Goal:   the scale after every step equals that of torch.amp.GradScaler and of DeepSpeed's
 *         DynamicLossScaler, with default and other settings.
 * Method: traces with known values.  Long random traces are compared with each rule in its original
 *         formulation: PyTorch's growth tracker, DeepSpeed's iterations since the last overflow.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/status.h"
#include "lockstep/optim.h"

/* Repeats a step `count` times and returns the scale. */
static double after(const lk_loss_scaling *scaling, lk_loss_scaler *s, int count, bool overflow)
{
    for (int i = 0; i < count; i++)
        assert_int_equal(lk_loss_scaler_update(scaling, s, overflow), LK_OK);
    return s->scale;
}

static void follows_the_trace_of_pytorch(void **state)
{
    lk_loss_scaling pytorch = { .rule = LK_SCALE_PYTORCH };
    lk_loss_scaler  s       = lk_loss_scaler_begin(&pytorch);
    (void)state;
    assert_true(s.scale == 65536);
    assert_true(after(&pytorch, &s, 1, true) == 32768);
    assert_true(after(&pytorch, &s, 2, true) == 8192);
    assert_true(after(&pytorch, &s, 1999, false) == 8192);
    assert_true(after(&pytorch, &s, 1, false) == 16384);
    assert_true(after(&pytorch, &s, 1999, false) == 16384);
    assert_true(after(&pytorch, &s, 1, true) == 8192); /* the count restarts */
    assert_true(after(&pytorch, &s, 1999, false) == 8192);
    assert_true(after(&pytorch, &s, 1, false) == 16384);
    assert_int_equal(s.skipped, 4);
}

static void follows_the_trace_of_deepspeed(void **state)
{
    lk_loss_scaling deepspeed = { .rule = LK_SCALE_DEEPSPEED };
    lk_loss_scaler  s         = lk_loss_scaler_begin(&deepspeed);
    (void)state;
    assert_true(after(&deepspeed, &s, 1000, false) == 65536);
    assert_true(after(&deepspeed, &s, 1, false) == 131072);
    assert_true(after(&deepspeed, &s, 999, false) == 131072);
    assert_true(after(&deepspeed, &s, 1, false) == 262144);
    assert_true(after(&deepspeed, &s, 1, true) == 262144); /* hysteresis */
    assert_true(after(&deepspeed, &s, 1, true) == 131072);
    assert_true(after(&deepspeed, &s, 500, false) == 131072);
    /* the hysteresis stays used up until the scale is doubled */
    assert_true(after(&deepspeed, &s, 2, true) == 32768);
    assert_true(after(&deepspeed, &s, 1001, false) == 65536);
    assert_true(after(&deepspeed, &s, 1, true) == 65536);
    assert_true(after(&deepspeed, &s, 1, true) == 32768);
    assert_int_equal(s.skipped, 6);
}

typedef struct {
    double scale;
    long   tracker, iteration, last, hysteresis;
} plain;

static void plain_pytorch(plain *p, long interval, bool overflow)
{
    p->tracker = overflow ? 0 : p->tracker + 1;
    if (overflow)
        p->scale *= 0.5;
    if (p->tracker == interval) {
        p->scale *= 2.0;
        p->tracker = 0;
    }
}

static void plain_deepspeed(plain *p, long window, long hysteresis, bool overflow)
{
    long stable = p->iteration - p->last - 1;
    if (overflow && (hysteresis == 1 || p->hysteresis == 1))
        p->scale = fmax(p->scale / 2, 1);
    else if (overflow)
        p->hysteresis--;
    else if (stable > 0 && stable % window == 0) {
        p->hysteresis = hysteresis;
        p->scale *= 2;
    }
    if (overflow)
        p->last = p->iteration;
    p->iteration++;
}

/* Uses small windows and many overflows, so that the scale moves up and down. */
static void follows_long_random_traces(void **state)
{
    (void)state;
    for (uint32_t trace = 0; trace < 200; trace++) {
        bool            pytorch = trace % 2 == 0;
        lk_loss_scaling how     = { .rule       = pytorch ? LK_SCALE_PYTORCH : LK_SCALE_DEEPSPEED,
                                    .window     = 1 + trace % 7,
                                    .hysteresis = 1 + trace % 3 };
        lk_loss_scaler  s       = lk_loss_scaler_begin(&how);
        plain p = { .scale = 65536, .last = -1, .hysteresis = (long)how.hysteresis };
        for (uint32_t t = 0; t < 400; t++) {
            lki_random r        = lki_philox(trace, LKI_RNG_DATA, t, 0, 0, 0);
            bool       overflow = r.word[0] % 8 == 0 || (s.scale > 0x1p28 && r.word[0] % 2 == 0);
            if (s.scale < 16) /* the minimum is covered by another test */
                overflow = false;
            if (s.scale > 0x1p31)
                break;
            if (pytorch)
                plain_pytorch(&p, (long)how.window, overflow);
            else
                plain_deepspeed(&p, (long)how.window, (long)how.hysteresis, overflow);
            assert_true(after(&how, &s, 1, overflow) == p.scale);
        }
    }
}

static void an_overflow_at_the_smallest_scale_is_an_error(void **state)
{
    lk_loss_scaling deepspeed = { .rule = LK_SCALE_DEEPSPEED, .initial = 4 },
                    pytorch   = { .rule = LK_SCALE_PYTORCH, .initial = 0x1p-23 },
                    fixed     = { .rule = LK_SCALE_FIXED, .initial = 8 };
    lk_loss_scaler s = lk_loss_scaler_begin(&deepspeed);
    (void)state;
    assert_true(after(&deepspeed, &s, 3, true) == 1);
    assert_int_equal(lk_loss_scaler_update(&deepspeed, &s, true), LK_ENONFINITE);
    assert_non_null(strstr(lk_error_last()->message, "smallest loss scale, 1"));
    s = lk_loss_scaler_begin(&pytorch);
    assert_true(after(&pytorch, &s, 1, true) == 0x1p-24);
    assert_int_equal(lk_loss_scaler_update(&pytorch, &s, true), LK_ENONFINITE);
    s = lk_loss_scaler_begin(&fixed);
    assert_true(after(&fixed, &s, 5000, false) == 8);
    assert_int_equal(s.skipped, 0);
}

static void takes_powers_of_two_alone(void **state)
{
    static const double bad[] = { 3, -2, 0x1p33, 0x1p-25, HUGE_VAL };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        lk_loss_scaling scaling = { .rule = LK_SCALE_FIXED, .initial = bad[i] };
        assert_int_equal(lk_loss_scaling_check(&scaling), LK_EINVAL);
        assert_non_null(strstr(lk_error_last()->message, "power of two"));
    }
    assert_int_equal(lk_loss_scaling_check(&(lk_loss_scaling){ .initial = 0x1p-24 }), LK_OK);
    assert_int_equal(lk_loss_scaling_check(&(lk_loss_scaling){ .rule = (lk_scale_rule)9 }),
                     LK_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_trace_of_pytorch),
        cmocka_unit_test(follows_the_trace_of_deepspeed),
        cmocka_unit_test(follows_long_random_traces),
        cmocka_unit_test(an_overflow_at_the_smallest_scale_is_an_error),
        cmocka_unit_test(takes_powers_of_two_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

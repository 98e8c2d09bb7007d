/* loss_test.c -- softmax cross-entropy has the reference's bits on every exec, and correct
 * gradients.  The other losses have the same bits on every exec, and are close to their formulas in
 * double precision. */
#include "tensor/ops/nn_testing.h"

static const size_t classes_tried[] = { 1, 2, 10, 16, 17, 65, 256, 5003 };

enum { TRIED = sizeof classes_tried / sizeof classes_tried[0], ROWS = 19 };

/* Returns logits of a few nats.  Some targets are masked, and some rows have several maxima. */
static float *logits_new(size_t classes, int32_t *targets)
{
    float *logits = nn_values(ROWS * classes, 1);
    for (size_t i = 0; i < ROWS * classes; i++)
        logits[i] *= 6.0f;
    for (size_t r = 0; r < ROWS; r++) {
        targets[r] = r % 5 == 3 ? -1 : (int32_t)(r * 7 % classes);
        if (r % 2 == 0) {
            logits[r * classes + r * 7 % classes]     = 9.0f;
            logits[r * classes + r * 3 % classes]     = 9.0f;
        }
    }
    return logits;
}

static void loss_bits(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 0; i < 2 * TRIED; i++) {
        size_t  classes = classes_tried[i / 2];
        bool    gradient = i % 2 == 0;
        int32_t targets[ROWS];
        float   want_loss[ROWS], loss[ROWS];
        uint8_t want_hit[ROWS], hit[ROWS];
        float  *want = logits_new(classes, targets);
        lki_reference_softmax_xent(ROWS, classes, want, targets, want_loss, want_hit, gradient);
        for (size_t k = 0; k < m.count; k++) {
            float *logits = logits_new(classes, targets);
            lki_softmax_xent(m.exec[k], LK_F32, ROWS, classes, logits, targets, loss, hit,
                             gradient, 0);
            nn_same(m.exec[k], "logits", ROWS * classes, logits, want);
            nn_same(m.exec[k], "loss", ROWS, loss, want_loss);
            assert_memory_equal(hit, want_hit, sizeof hit);
            free(logits);
        }
        free(want);
    }
    nn_machines_free(&m);
}

/* Losses are those of FP32, and gradients are rounded once.  Without a gradient the logits are
 * unchanged. */
static void loss_bits_in_bf16(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 0; i < 2 * TRIED; i++) {
        size_t    classes  = classes_tried[i / 2];
        bool      gradient = i % 2 == 0;
        int32_t   targets[ROWS];
        float     want_loss[ROWS], loss[ROWS];
        uint8_t   want_hit[ROWS], hit[ROWS];
        float    *want  = logits_new(classes, targets);
        uint16_t *start = nn_bf16(want, ROWS * classes), *got = nn_bytes(ROWS * classes * 2);
        lki_reference_softmax_xent(ROWS, classes, want, targets, want_loss, want_hit, gradient);
        for (size_t k = 0; k < m.count; k++) {
            memcpy(got, start, ROWS * classes * sizeof *got);
            lki_softmax_xent(m.exec[k], LK_BF16, ROWS, classes, got, targets, loss, hit, gradient,
                             0);
            nn_same_rounded(m.exec[k], "logits", ROWS * classes, got, want);
            nn_same(m.exec[k], "loss", ROWS, loss, want_loss);
            assert_memory_equal(hit, want_hit, sizeof hit);
        }
        free(want);
        free(start);
        free(got);
    }
    nn_machines_free(&m);
}

/* Tests targets with known results: a hit, a tie that an earlier class wins, a miss, a masked
 * row. */
static void hits_and_masks(void **state)
{
    float   logits[4][3] = { { 0, 2, 1 }, { 2, 2, 1 }, { 0, 2, 1 }, { 0, 2, 1 } };
    int32_t targets[4]   = { 1, 1, 2, -1 };
    uint8_t hit[4], want[4] = { 1, 0, 0, 0 };
    float   loss[4];
    lk_exec *exec = NULL;
    (void)state;
    assert_int_equal(lk_exec_open(&exec, 1, NULL), LK_OK);
    lki_softmax_xent(exec, LK_F32, 4, 3, logits[0], targets, loss, hit, true, 0);
    assert_memory_equal(hit, want, sizeof hit);
    assert_true(loss[3] == 0.0f);
    for (size_t i = 0; i < 3; i++)
        assert_true(logits[3][i] == 0.0f);
    lk_exec_free(exec);
}

typedef struct { size_t classes; const int32_t *targets; double *logits; } exact;

static double exact_loss(const void *context)
{
    const exact *e = context;
    double total = 0;
    for (size_t r = 0; r < ROWS; r++) {
        double sum = 0;
        for (size_t i = 0; i < e->classes; i++)
            sum += exp(e->logits[r * e->classes + i]);
        if (e->targets[r] >= 0)
            total += log(sum) - e->logits[r * e->classes + (size_t)e->targets[r]];
    }
    return total;
}

static void loss_gradients(void **state)
{
    lk_exec *exec = NULL;
    (void)state;
    assert_int_equal(lk_exec_open(&exec, 2, NULL), LK_OK);
    for (size_t i = 0; i + 1 < TRIED; i++) {
        size_t  classes = classes_tried[i];
        int32_t targets[ROWS];
        uint8_t hit[ROWS];
        float   loss[ROWS], *logits = logits_new(classes, targets);
        exact   e = { classes, targets, nn_doubles(logits, ROWS * classes) };
        double  sum = 0;
        lki_softmax_xent(exec, LK_F32, ROWS, classes, logits, targets, loss, hit, true, 0);
        for (size_t r = 0; r < ROWS; r++)
            sum += (double)loss[r];
        assert_true(fabs(sum - exact_loss(&e)) <= 1e-4);
        nn_gradient("dlogits", exact_loss, &e, e.logits, ROWS * classes, logits, NULL);
        free(e.logits);
        free(logits);
    }
    lk_exec_free(exec);
}

/* ---- Losses of single elements, and smoothed labels ---------------------------------------- */

enum { ELEMENTS = 16384 + 37 };

static double double_loss(const lki_element_loss *how, double x, double t)
{
    double d = fabs(x - t), delta = (double)how->delta;
    switch (how->kind) {
    case LKI_LOSS_HUBER: return d <= delta ? d * d / 2 : delta * (d - delta / 2);
    case LKI_LOSS_BCE: return (x > 0 ? x : 0) - x * t + log1p(exp(-fabs(x)));
    case LKI_LOSS_MSE: break;
    }
    return d * d;
}

static double double_slope(const lki_element_loss *how, double x, double t)
{
    double d = x - t, delta = (double)how->delta;
    switch (how->kind) {
    case LKI_LOSS_HUBER: return d > delta ? delta : d < -delta ? -delta : d;
    case LKI_LOSS_BCE: return 1 / (1 + exp(-x)) - t;
    case LKI_LOSS_MSE: break;
    }
    return 2 * d;
}

/* Values from -50 to 50, most of them small.  The targets are 0, 1/4, 1/2 and so on, and some are
 * masked. */
static float *elements_new(float *targets)
{
    float *x = nn_values(ELEMENTS, 4);
    for (size_t i = 0; i < ELEMENTS; i++) {
        x[i] *= i % 7 == 0 ? 50.0f : 2.0f;
        targets[i] = i % 11 == 5 ? NAN : (float)(i % 5) / 4.0f;
    }
    return x;
}

static bool is_close(double got, double want)
{
    return fabs(got - want) <= 1e-6 + 1e-6 * fabs(want);
}

static void check_elements(const lki_element_loss *how, const float *x, const float *targets,
                           const float *loss, const uint8_t *hit, const float *slope)
{
    for (size_t i = 0; i < ELEMENTS; i++) {
        bool   known = targets[i] == targets[i];
        double t     = known ? (double)targets[i] : 0;
        double wants = known ? double_loss(how, (double)x[i], t) : 0;
        double leads = known ? double_slope(how, (double)x[i], t) : 0;
        bool   hits  = known && how->kind == LKI_LOSS_BCE && (x[i] > 0) == (t > 0.5);
        if (!is_close((double)loss[i], wants) || !is_close((double)slope[i], leads) ||
            hit[i] != hits)
            fail_msg("loss %d of %g for %g: %g, slope %g, hit %d; not %g, %g, %d", (int)how->kind,
                     (double)x[i], (double)targets[i], (double)loss[i], (double)slope[i],
                     (int)hit[i], wants, leads, (int)hits);
    }
}

/* Compares the losses of bf16 elements with those of FP32, and the slopes with the rounded ones of
 * FP32. */
static void check_narrow(const lk_exec *exec, const uint16_t *slope, const float *loss,
                         const uint8_t *hit, const float *want_slope, const float *want_loss,
                         const uint8_t *want_hit)
{
    nn_same_rounded(exec, "slopes", ELEMENTS, slope, want_slope);
    nn_same(exec, "losses in bf16", ELEMENTS, loss, want_loss);
    assert_memory_equal(hit, want_hit, ELEMENTS);
}

static void element_losses(void **state)
{
    const lki_element_loss all[] = { { .kind = LKI_LOSS_MSE },
                                     { .kind = LKI_LOSS_HUBER, .delta = 0.7f },
                                     { .kind = LKI_LOSS_BCE } };
    nn_machines m = nn_machines_open();
    float      *targets = nn_bytes(ELEMENTS * sizeof *targets);
    float      *x = elements_new(targets), *loss = nn_bytes(ELEMENTS * sizeof *loss);
    uint8_t    *hit = nn_bytes(ELEMENTS), *first_hit = nn_bytes(ELEMENTS);
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        uint16_t *narrow = nn_bf16(x, ELEMENTS); /* rounds x, too */
        float    *first = nn_copy(x, ELEMENTS), *first_loss = nn_copy(x, ELEMENTS);
        lki_element_losses(m.exec[0], LK_F32, &all[i], ELEMENTS, first, targets, first_loss,
                           first_hit, 1);
        check_elements(&all[i], x, targets, first_loss, first_hit, first);
        for (size_t k = 0; k < m.count; k++) {
            float    *got = nn_copy(x, ELEMENTS);
            uint16_t *got_narrow = nn_bytes(ELEMENTS * sizeof *got_narrow);
            memcpy(got_narrow, narrow, ELEMENTS * sizeof *narrow);
            lki_element_losses(m.exec[k], LK_BF16, &all[i], ELEMENTS, got_narrow, targets, loss,
                               hit, 1);
            check_narrow(m.exec[k], got_narrow, loss, hit, first, first_loss, first_hit);
            lki_element_losses(m.exec[k], LK_F32, &all[i], ELEMENTS, got, targets, loss, hit, 1);
            nn_same(m.exec[k], "slopes", ELEMENTS, got, first);
            nn_same(m.exec[k], "losses", ELEMENTS, loss, first_loss);
            free(got);
            free(got_narrow);
        }
        free(first);
        free(first_loss);
        free(narrow);
    }
    free(targets);
    free(x);
    free(loss);
    free(hit);
    free(first_hit);
    nn_machines_free(&m);
}

/* Compares a row of smoothed cross-entropy with its formula. */
static void check_smoothed(size_t classes, const float *logits, int32_t target, double smoothing,
                           float loss, const float *gradient)
{
    double sum = 0, mean = 0;
    for (size_t i = 0; i < classes; i++) {
        sum += exp((double)logits[i]);
        mean += (double)logits[i] / (double)classes;
    }
    double wanted = target >= 0 ? log(sum) - (1 - smoothing) * (double)logits[target] -
                                      smoothing * mean : 0;
    if (!(fabs((double)loss - wanted) <= 4e-6 + 1e-6 * fabs(wanted)))
        fail_msg("smoothed loss of %zu classes: %.9g, not %.9g", classes, (double)loss, wanted);
    for (size_t i = 0; i < classes && target >= 0; i++) {
        double slope = exp((double)logits[i]) / sum - smoothing / (double)classes -
                       ((int32_t)i == target ? 1 - smoothing : 0);
        if (!(fabs((double)gradient[i] - slope) <= 1e-6))
            fail_msg("gradient of class %zu of %zu: %.9g, not %.9g", i, classes,
                     (double)gradient[i], slope);
    }
}

static void smoothed_labels(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 1; i < TRIED; i++) {
        size_t  classes = classes_tried[i];
        int32_t targets[ROWS];
        float   loss[ROWS], first_loss[ROWS];
        uint8_t hit[ROWS];
        float  *logits = logits_new(classes, targets), *first = nn_copy(logits, ROWS * classes);
        lki_softmax_xent(m.exec[0], LK_F32, ROWS, classes, first, targets, first_loss, hit, 1,
                         0.1f);
        for (size_t r = 0; r < ROWS; r++)
            check_smoothed(classes, logits + r * classes, targets[r], (double)0.1f, first_loss[r],
                           first + r * classes);
        for (size_t k = 1; k < m.count; k++) {
            float *got = nn_copy(logits, ROWS * classes);
            lki_softmax_xent(m.exec[k], LK_F32, ROWS, classes, got, targets, loss, hit, 1, 0.1f);
            nn_same(m.exec[k], "smoothed gradients", ROWS * classes, got, first);
            nn_same(m.exec[k], "smoothed losses", ROWS, loss, first_loss);
            free(got);
        }
        free(logits);
        free(first);
    }
    nn_machines_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_bits),
        cmocka_unit_test(loss_bits_in_bf16),
        cmocka_unit_test(hits_and_masks),
        cmocka_unit_test(loss_gradients),
        cmocka_unit_test(element_losses),
        cmocka_unit_test(smoothed_labels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* loss_test.c -- softmax cross-entropy has the reference's bits on every exec, and correct
 * gradients. */
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
                             gradient);
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
            lki_softmax_xent(m.exec[k], LK_BF16, ROWS, classes, got, targets, loss, hit, gradient);
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
    lki_softmax_xent(exec, LK_F32, 4, 3, logits[0], targets, loss, hit, true);
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
        lki_softmax_xent(exec, LK_F32, ROWS, classes, logits, targets, loss, hit, true);
        for (size_t r = 0; r < ROWS; r++)
            sum += (double)loss[r];
        assert_true(fabs(sum - exact_loss(&e)) <= 1e-4);
        nn_gradient("dlogits", exact_loss, &e, e.logits, ROWS * classes, logits, NULL);
        free(e.logits);
        free(logits);
    }
    lk_exec_free(exec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_bits),
        cmocka_unit_test(loss_bits_in_bf16),
        cmocka_unit_test(hits_and_masks),
        cmocka_unit_test(loss_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

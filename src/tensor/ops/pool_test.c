/* pool_test.c -- maximum and mean have the reference's bits on every exec, and correct
 * gradients. */
#include "tensor/ops/nn_testing.h"

/* n, h, w, c, c, kh, kw, stride, pad: windows that are separate, that overlap, and at the
 * border. */
static const lki_conv_shape shapes[] = {
    { 1, 2, 2, 1, 1, 2, 2, 2, 0, 1, 1 },    { 2, 8, 8, 16, 16, 2, 2, 2, 0, 4, 4 },
    { 2, 7, 9, 33, 33, 3, 3, 2, 1, 4, 5 },  { 1, 5, 6, 70, 70, 3, 3, 1, 1, 5, 6 },
};

enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Returns a few different values, so that windows have ties.  All are negative, so that zero
 * padding would be the maximum. */
static float *tied_values(size_t n)
{
    float *x = nn_values(n, 1);
    for (size_t i = 0; i < n; i++)
        x[i] = floorf(x[i] * 3.0f) - 10.0f;
    return x;
}

static void maxpool_bits(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        const lki_conv_shape *s = &shapes[i];
        size_t in = s->n * s->h * s->w * s->cin, out = s->n * s->oh * s->ow * s->cin;
        float *x = tied_values(in), *y = nn_values(out, 2), *want = nn_values(out, 3);
        uint32_t *argmax      = nn_bytes(out * sizeof *argmax);
        uint32_t *want_argmax = nn_bytes(out * sizeof *argmax);
        lki_reference_maxpool(s, x, want, want_argmax);
        for (size_t k = 0; k < m.count; k++) {
            lki_maxpool(m.exec[k], LK_F32, s, x, y, argmax);
            nn_same(m.exec[k], "y", out, y, want);
            assert_memory_equal(argmax, want_argmax, out * sizeof *argmax);
        }
        free(x);
        free(y);
        free(want);
        free(argmax);
        free(want_argmax);
    }
    nn_machines_free(&m);
}

/* A NaN wins at any position of the window, and the first of two NaNs is kept. */
static void maxpool_keeps_nan(void **state)
{
    const lki_conv_shape s = { 1, 2, 2, 1, 1, 2, 2, 2, 0, 1, 1 };
    nn_machines          m = nn_machines_open();
    (void)state;
    for (size_t k = 0; k < m.count; k++)
        for (uint32_t at = 0; at < 4; at++) {
            float    x[4] = { 1.0f, 2.0f, 3.0f, 4.0f }, y = 0.0f;
            uint32_t argmax = 9;
            x[at] = x[3] = NAN;
            lki_maxpool(m.exec[k], LK_F32, &s, x, &y, &argmax);
            assert_true(isnan(y));
            assert_int_equal(argmax, at);
        }
    nn_machines_free(&m);
}

/* Every dy must be added at the position of its maximum, in order of outputs. */
static void maxpool_backward_bits(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 0; i < 2 * SHAPES; i++) {
        const lki_conv_shape *s = &shapes[i / 2];
        bool   add = i % 2 != 0;
        size_t in = s->n * s->h * s->w * s->cin, out = s->n * s->oh * s->ow * s->cin;
        float *x = tied_values(in), *y = nn_values(out, 2), *dy = nn_values(out, 3);
        float *want = add ? nn_values(in, 4) : nn_bytes(in * sizeof *want);
        uint32_t *argmax = nn_bytes(out * sizeof *argmax);
        lki_reference_maxpool(s, x, y, argmax);
        for (size_t o = 0; o < out; o++) {
            size_t sample = o / s->cin / s->ow / s->oh;
            size_t at     = (sample * s->h * s->w + argmax[o]) * s->cin + o % s->cin;
            want[at]      = want[at] + dy[o];
        }
        for (size_t k = 0; k < m.count; k++) {
            float *dx = nn_values(in, 4);
            lki_maxpool_backward(m.exec[k], LK_F32, s, argmax, dy, dx, add);
            nn_same(m.exec[k], "dx", in, dx, want);
            free(dx);
        }
        free(x);
        free(y);
        free(dy);
        free(want);
        free(argmax);
    }
    nn_machines_free(&m);
}

/* Values are those of FP32.  Gradients of overlapping windows are added in FP32 and rounded
 * once. */
static void maxpool_bits_in_bf16(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 0; i < 2 * SHAPES; i++) {
        const lki_conv_shape *s = &shapes[i / 2];
        bool   add = i % 2 != 0;
        size_t in = s->n * s->h * s->w * s->cin, out = s->n * s->oh * s->ow * s->cin;
        float *x = tied_values(in), *y = nn_values(out, 2), *dy = nn_values(out, 3);
        float *start = nn_values(in, 4), *dx = nn_values(in, 4);
        uint32_t *argmax = nn_bytes(out * sizeof *argmax), *want = nn_bytes(out * sizeof *want);
        uint16_t *x16 = nn_bf16(x, in), *dy16 = nn_bf16(dy, out), *start16 = nn_bf16(start, in);
        uint16_t *y16 = nn_bytes(out * sizeof *y16), *dx16 = nn_bytes(in * sizeof *dx16);
        memcpy(dx, start, in * sizeof *dx);
        lki_reference_maxpool(s, x, y, want);
        lki_maxpool_backward(m.exec[0], LK_F32, s, want, dy, dx, add);
        for (size_t k = 0; k < m.count; k++) {
            lki_maxpool(m.exec[k], LK_BF16, s, x16, y16, argmax);
            nn_same_rounded(m.exec[k], "y", out, y16, y);
            assert_memory_equal(argmax, want, out * sizeof *argmax);
            memcpy(dx16, start16, in * sizeof *dx16);
            lki_maxpool_backward(m.exec[k], LK_BF16, s, argmax, dy16, dx16, add);
            nn_same_rounded(m.exec[k], "dx", in, dx16, dx);
        }
        void *lists[] = { x, y, dy, start, dx, argmax, want, x16, dy16, start16, y16, dx16 };
        for (size_t k = 0; k < sizeof lists / sizeof lists[0]; k++)
            free(lists[k]);
    }
    nn_machines_free(&m);
}

static void avgpool_bits(void **state)
{
    enum { N = 3, POSITIONS = 49, C = 37, IN = N * POSITIONS * C };
    nn_machines m = nn_machines_open();
    float *x = nn_values(IN, 1), *y = nn_values(N * C, 2), *want = nn_values(N * C, 3);
    (void)state;
    lki_reference_avgpool(N, POSITIONS, C, x, want);
    for (size_t k = 0; k < m.count; k++) {
        float *dx = nn_values(IN, 4), *want_dx = nn_values(IN, 4);
        lki_avgpool(m.exec[k], LK_F32, N, POSITIONS, C, x, y);
        nn_same(m.exec[k], "y", N * C, y, want);
        lki_avgpool_backward(m.exec[k], LK_F32, N, POSITIONS, C, y, dx, true);
        for (size_t i = 0; i < IN; i++)
            want_dx[i] = want_dx[i] + y[i / C / POSITIONS * C + i % C] / (float)POSITIONS;
        nn_same(m.exec[k], "dx added", IN, dx, want_dx);
        lki_avgpool_backward(m.exec[k], LK_F32, N, POSITIONS, C, y, dx, false);
        for (size_t i = 0; i < IN; i++)
            want_dx[i] = y[i / C / POSITIONS * C + i % C] / (float)POSITIONS;
        nn_same(m.exec[k], "dx", IN, dx, want_dx);
        free(dx);
        free(want_dx);
    }
    free(x);
    free(y);
    free(want);
    nn_machines_free(&m);
}

static void avgpool_bits_in_bf16(void **state)
{
    enum { N = 3, POSITIONS = 49, C = 37, IN = N * POSITIONS * C };
    nn_machines m = nn_machines_open();
    float      *x = nn_values(IN, 1), *dy = nn_values(N * C, 2), *want = nn_values(N * C, 3);
    float      *start = nn_values(IN, 4), *dx = nn_values(IN, 4);
    uint16_t   *x16 = nn_bf16(x, IN), *dy16 = nn_bf16(dy, N * C), *start16 = nn_bf16(start, IN);
    uint16_t   *y16 = nn_bytes(N * C * sizeof *y16), *dx16 = nn_bytes(IN * sizeof *dx16);
    (void)state;
    lki_reference_avgpool(N, POSITIONS, C, x, want);
    for (size_t k = 0; k < m.count; k++)
        for (int add = 0; add < 2; add++) {
            lki_avgpool(m.exec[k], LK_BF16, N, POSITIONS, C, x16, y16);
            nn_same_rounded(m.exec[k], "y", N * C, y16, want);
            memcpy(dx, start, IN * sizeof *dx);
            memcpy(dx16, start16, IN * sizeof *dx16);
            lki_avgpool_backward(m.exec[k], LK_BF16, N, POSITIONS, C, dy16, dx16, add);
            lki_avgpool_backward(m.exec[0], LK_F32, N, POSITIONS, C, dy, dx, add);
            nn_same_rounded(m.exec[k], "dx", IN, dx16, dx);
        }
    void *lists[] = { x, dy, want, start, dx, x16, dy16, start16, y16, dx16 };
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        free(lists[i]);
    nn_machines_free(&m);
}

typedef struct { const lki_conv_shape *s; double *x, *dy; } exact;

static double exact_loss(const void *context)
{
    const exact          *e = context;
    const lki_conv_shape *s = e->s;
    double loss = 0;
    for (size_t o = 0; o < s->n * s->oh * s->ow * s->cin; o++) {
        size_t ox = o / s->cin % s->ow, oy = o / s->cin / s->ow % s->oh;
        double max = -HUGE_VAL;
        for (size_t k = 0; k < s->kh * s->kw; k++) {
            size_t y = oy * s->stride + k / s->kw - s->pad, x = ox * s->stride + k % s->kw - s->pad;
            size_t sample = o / s->cin / s->ow / s->oh;
            if (y < s->h && x < s->w)
                max = fmax(max, e->x[((sample * s->h + y) * s->w + x) * s->cin + o % s->cin]);
        }
        loss += e->dy[o] * max;
    }
    return loss;
}

static void maxpool_gradients(void **state)
{
    lk_exec *exec = NULL;
    (void)state;
    assert_int_equal(lk_exec_open(&exec, 2, NULL), LK_OK);
    for (size_t i = 0; i < SHAPES; i++) {
        const lki_conv_shape *s = &shapes[i];
        size_t in = s->n * s->h * s->w * s->cin, out = s->n * s->oh * s->ow * s->cin;
        float *x = nn_values(in, 1), *y = nn_values(out, 2);
        float *dy = nn_values(out, 3), *dx = nn_values(in, 4);
        uint32_t *argmax = nn_bytes(out * sizeof *argmax);
        for (size_t k = 0; k < in; k++)
            /* there are no ties within a window, so that differences are defined */
            x[k] = (float)(k * 7919 % 8191);
        lki_maxpool(exec, LK_F32, s, x, y, argmax);
        lki_maxpool_backward(exec, LK_F32, s, argmax, dy, dx, false);
        exact e = { s, nn_doubles(x, in), nn_doubles(dy, out) };
        nn_gradient("dx", exact_loss, &e, e.x, in, dx, NULL);
        free(e.x);
        free(e.dy);
        free(x);
        free(y);
        free(dy);
        free(dx);
        free(argmax);
    }
    lk_exec_free(exec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maxpool_bits),
        cmocka_unit_test(maxpool_keeps_nan),
        cmocka_unit_test(maxpool_backward_bits),
        cmocka_unit_test(maxpool_bits_in_bf16),
        cmocka_unit_test(avgpool_bits),
        cmocka_unit_test(avgpool_bits_in_bf16),
        cmocka_unit_test(maxpool_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

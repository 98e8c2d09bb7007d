/* conv_test.c -- convolution: the reference's bits on every machine; gradients. */
#include "tensor/ops/testing_nn.h"

/* n, h, w, cin, cout, kh, kw, stride, pad; odd on purpose, and the kinds that networks use; then
 * kernels larger than the image, strides larger than the kernel, and what does not fit into the
 * buffers that a task has. */
static const lki_conv_shape shapes[] = {
    { 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0 },    { 2, 5, 6, 3, 16, 3, 3, 1, 1, 0, 0 },
    { 1, 9, 7, 16, 33, 3, 3, 1, 1, 0, 0 },  { 3, 8, 8, 20, 17, 3, 3, 2, 1, 0, 0 },
    { 2, 7, 9, 5, 40, 1, 1, 2, 0, 0, 0 },   { 2, 4, 4, 32, 16, 1, 1, 1, 0, 0, 0 },
    { 1, 13, 14, 3, 18, 7, 7, 2, 3, 0, 0 }, { 2, 6, 5, 2, 70, 2, 3, 3, 1, 0, 0 },
    { 1, 11, 12, 4, 5, 5, 5, 1, 0, 0, 0 },  { 3, 2, 2, 48, 64, 3, 3, 1, 1, 0, 0 },
    { 2, 2, 3, 5, 6, 5, 5, 1, 2, 0, 0 },    { 1, 10, 9, 3, 4, 2, 2, 4, 1, 0, 0 },
    { 9, 4, 4, 29, 80, 3, 3, 1, 1, 0, 0 },  { 2, 1, 700, 4, 18, 1, 3, 2, 0, 0, 0 },
    { 3, 64, 64, 30, 34, 1, 1, 1, 0, 0, 0 }, { 1, 2, 2500, 14, 16, 3, 3, 1, 1, 0, 0 },
};

enum { SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct { size_t x, w, y; } counts;

static lki_conv_shape shape_at(size_t i)
{
    lki_conv_shape s = shapes[i];
    s.oh = (s.h + 2 * s.pad - s.kh) / s.stride + 1;
    s.ow = (s.w + 2 * s.pad - s.kw) / s.stride + 1;
    return s;
}

static counts counts_of(const lki_conv_shape *s)
{
    return (counts){ s->n * s->h * s->w * s->cin, s->cout * s->cin * s->kh * s->kw,
                     s->n * s->oh * s->ow * s->cout };
}

/* Garbage in the scratch must not show. */
static void *scratch_new(const lk_exec *exec, const lki_conv_shape *s)
{
    size_t bytes = lki_conv_scratch_bytes(exec, s);
    void  *p     = nn_bytes(bytes);
    memset(p, 0xff, bytes);
    return p;
}

static void forward_bits(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        lki_conv_shape s = shape_at(i);
        counts c = counts_of(&s);
        float *x = nn_values(c.x, 1), *w = nn_values(c.w, 2);
        float *y = nn_values(c.y, 3), *want = nn_values(c.y, 4);
        lki_reference_conv(&s, x, w, want);
        for (size_t k = 0; k < m.count; k++) {
            void *scratch = scratch_new(m.exec[k], &s);
            lki_conv(m.exec[k], &s, x, w, y, scratch);
            nn_same(m.exec[k], "y", c.y, y, want);
            free(scratch);
        }
        free(x);
        free(w);
        free(y);
        free(want);
    }
    nn_machines_free(&m);
}

static void input_bits(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 0; i < 2 * SHAPES; i++) {
        lki_conv_shape s = shape_at(i / 2);
        counts c = counts_of(&s);
        bool   add = i % 2 != 0;
        float *dy = nn_values(c.y, 1), *w = nn_values(c.w, 2), *want = nn_values(c.x, 3);
        lki_reference_conv_backward_input(&s, dy, w, want, add);
        for (size_t k = 0; k < m.count; k++) {
            void  *scratch = scratch_new(m.exec[k], &s);
            float *dx      = nn_values(c.x, 3);
            lki_conv_backward_input(m.exec[k], &s, dy, w, dx, add, scratch);
            nn_same(m.exec[k], "dx", c.x, dx, want);
            free(scratch);
            free(dx);
        }
        free(dy);
        free(w);
        free(want);
    }
    nn_machines_free(&m);
}

static void weights_bits(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        lki_conv_shape s = shape_at(i);
        counts c = counts_of(&s);
        float *x = nn_values(c.x, 1), *dy = nn_values(c.y, 2), *want = nn_values(c.w, 3);
        lki_reference_conv_backward_weights(&s, x, dy, want);
        for (size_t k = 0; k < m.count; k++) {
            void  *scratch = scratch_new(m.exec[k], &s);
            float *dw      = nn_values(c.w, 3);
            lki_conv_backward_weights(m.exec[k], &s, x, dy, dw, scratch);
            nn_same(m.exec[k], "dw", c.w, dw, want);
            free(scratch);
            free(dw);
        }
        free(x);
        free(dy);
        free(want);
    }
    nn_machines_free(&m);
}

typedef struct { const lki_conv_shape *s; double *x, *w, *dy; } exact;

/* Scatters instead of gathering: every input value, through every tap, to where it lands. */
static double exact_loss(const void *context)
{
    const exact          *e = context;
    const lki_conv_shape *s = e->s;
    double loss = 0;
    for (size_t i = 0; i < s->n * s->h * s->w * s->cin; i++) {
        size_t ci = i % s->cin, ix = i / s->cin % s->w, iy = i / s->cin / s->w % s->h;
        for (size_t k = 0; k < s->cout * s->kh * s->kw; k++) {
            size_t kx = k % s->kw, ky = k / s->kw % s->kh, co = k / s->kw / s->kh;
            size_t y = iy + s->pad - ky, x = ix + s->pad - kx;
            if (iy + s->pad < ky || ix + s->pad < kx || y % s->stride != 0 || x % s->stride != 0)
                continue;
            if (y / s->stride >= s->oh || x / s->stride >= s->ow)
                continue;
            size_t sample = i / s->cin / s->w / s->h;
            size_t out = (sample * s->oh + y / s->stride) * s->ow + x / s->stride;
            loss += e->x[i] * e->w[((co * s->cin + ci) * s->kh + ky) * s->kw + kx] *
                    e->dy[out * s->cout + co];
        }
    }
    return loss;
}

static void conv_gradients(void **state)
{
    lk_exec *exec = NULL;
    (void)state;
    assert_int_equal(lk_exec_open(&exec, 2, NULL), LK_OK);
    for (size_t i = 0; i < SHAPES; i++) {
        lki_conv_shape s = shape_at(i);
        counts c = counts_of(&s);
        if (c.x * s.cout * s.kh * s.kw > 100000)
            continue; /* differences cost a forward pass a place */
        float *x = nn_values(c.x, 1), *w = nn_values(c.w, 2), *dy = nn_values(c.y, 3);
        float *dx = nn_values(c.x, 4), *dw = nn_values(c.w, 5), *old_dw = nn_values(c.w, 5);
        void  *scratch = scratch_new(exec, &s);
        lki_conv_backward_input(exec, &s, dy, w, dx, false, scratch);
        lki_conv_backward_weights(exec, &s, x, dy, dw, scratch);
        exact e = { &s, nn_doubles(x, c.x), nn_doubles(w, c.w), nn_doubles(dy, c.y) };
        nn_gradient("dx", exact_loss, &e, e.x, c.x, dx, NULL);
        nn_gradient("dw", exact_loss, &e, e.w, c.w, dw, old_dw);
        float *lists[] = { x, w, dy, dx, dw, old_dw };
        for (size_t k = 0; k < sizeof lists / sizeof lists[0]; k++)
            free(lists[k]);
        free(scratch);
        free(e.x);
        free(e.w);
        free(e.dy);
    }
    lk_exec_free(exec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_bits),
        cmocka_unit_test(input_bits),
        cmocka_unit_test(weights_bits),
        cmocka_unit_test(conv_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

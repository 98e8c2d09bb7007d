/* conv_test.c -- convolution has the reference's bits on every exec, and correct gradients. */
#include "tensor/ops/conv_testing.h"

/* Returns scratch memory filled with garbage, which must not affect results. */
static void *scratch_new(const lk_exec *exec, const lki_conv_shape *s)
{
    size_t bytes = lki_conv_scratch_bytes(exec, s, 1);
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
            void     *scratch = scratch_new(m.exec[k], &s);
            conv_pack p;
            for (int way = 0; way < pack_ways(m.exec[k]); way++) {
                memset(y, 0xff, c.y * sizeof *y);
                lki_conv(m.exec[k], &s, x, w, y, scratch,
                         pack_of(&p, m.exec[k], &s, LK_F32, FORWARD, way));
                nn_same(m.exec[k], "y", c.y, y, want);
            }
            free(p.pack.data);
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
            void     *scratch = scratch_new(m.exec[k], &s);
            conv_pack p;
            for (int way = 0; way < pack_ways(m.exec[k]); way++) {
                float *dx = nn_values(c.x, 3);
                lki_conv_backward_input(m.exec[k], &s, dy, w, dx, add, scratch,
                                        pack_of(&p, m.exec[k], &s, LK_F32,
                                                add ? BACKWARD_ADDED : BACKWARD, way));
                nn_same(m.exec[k], "dx", c.x, dx, want);
                free(dx);
            }
            free(p.pack.data);
            free(scratch);
        }
        free(dy);
        free(w);
        free(want);
    }
    nn_machines_free(&m);
}

static void weights_at(const nn_machines *m, const lki_conv_shape *s, bool add)
{
    counts c = counts_of(s);
    float *x = nn_values(c.x, 1), *dy = nn_values(c.y, 2), *want = nn_values(c.w, 3);
    if (!add)
        memset(want, 0, c.w * sizeof *want);
    lki_reference_conv_backward_weights(s, x, dy, want);
    for (size_t k = 0; k < m->count; k++) {
        void  *scratch = scratch_new(m->exec[k], s);
        float *dw      = nn_values(c.w, 3);
        lki_conv_backward_weights(m->exec[k], s, x, dy, dw, add, NULL, scratch);
        nn_same(m->exec[k], add ? "dw added" : "dw", c.w, dw, want);
        free(scratch);
        free(dw);
    }
    free(x);
    free(dy);
    free(want);
}

static void weights_bits(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        lki_conv_shape s = shape_at(i);
        weights_at(&m, &s, false);
        weights_at(&m, &s, true);
    }
    nn_machines_free(&m);
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
            continue; /* each difference costs a forward pass */
        float *x = nn_values(c.x, 1), *w = nn_values(c.w, 2), *dy = nn_values(c.y, 3);
        float *dx = nn_values(c.x, 4), *dw = nn_values(c.w, 5), *old_dw = nn_values(c.w, 5);
        void  *scratch = scratch_new(exec, &s);
        lki_conv_backward_input(exec, &s, dy, w, dx, false, scratch, NULL);
        lki_conv_backward_weights(exec, &s, x, dy, dw, true, NULL, scratch);
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

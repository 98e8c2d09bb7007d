/* conv_bf16_test.c -- convolution in bf16 has the reference's bits on every exec, and correct
 * gradients. */
#include "tensor/ops/conv_testing.h"
#include "tensor/reference_bf16.h"

/* Returns scratch memory filled with garbage, which must not affect results. */
static void *scratch_new(const lk_exec *exec, const lki_conv_shape *s)
{
    size_t bytes = lki_conv_bf16_scratch_bytes(exec, s, 1);
    void  *p     = nn_bytes(bytes);
    memset(p, 0xff, bytes);
    return p;
}

/* Inputs x (or dx), w, dy (or y), and the results of the reference. */
typedef struct {
    uint16_t *x, *dy, *y, *dx, *sum;
    float    *w, *dw, *fresh; /* fresh: dw that is not added to earlier values */
} results;

static results results_of(const lki_conv_shape *s, float scale)
{
    counts  c = counts_of(s);
    results r = { .x = nn_values_bf16(c.x, 1, scale), .dy = nn_values_bf16(c.y, 2, scale),
                  .y = nn_values_bf16(c.y, 3, 1), .dx = nn_values_bf16(c.x, 3, 1),
                  .sum = nn_values_bf16(c.x, 4, scale * scale), .w = nn_values(c.w, 5),
                  .dw = nn_values(c.w, 6) };
    for (size_t i = 0; i < c.w; i++) {
        r.w[i] *= scale;
        r.dw[i] *= scale * scale;
    }
    lki_reference_conv_bf16(s, r.x, r.w, r.y);
    lki_reference_conv_bf16_backward_input(s, r.dy, r.w, r.dx, false);
    lki_reference_conv_bf16_backward_input(s, r.dy, r.w, r.sum, true);
    lki_reference_conv_bf16_backward_weights(s, r.x, r.dy, r.dw);
    r.fresh = nn_values(c.w, 6);
    memset(r.fresh, 0, c.w * sizeof *r.fresh);
    lki_reference_conv_bf16_backward_weights(s, r.x, r.dy, r.fresh);
    return r;
}

static void results_free(results *r)
{
    void *const all[] = { r->x, r->dy, r->y, r->dx, r->sum, r->w, r->dw, r->fresh };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static void one_machine(lk_exec *exec, const lki_conv_shape *s, const results *want, float scale)
{
    counts    c       = counts_of(s);
    void     *scratch = scratch_new(exec, s);
    uint16_t *y = nn_values_bf16(c.y, 7, 1), *dx = nn_values_bf16(c.x, 4, scale * scale);
    float    *dw = nn_values(c.w, 6);
    conv_pack forward, backward;
    for (size_t i = 0; i < c.w; i++)
        dw[i] *= scale * scale;

    for (int way = 0; way < pack_ways(exec); way++) {
        memset(y, 0xff, c.y * sizeof *y);
        lki_conv_bf16(exec, s, want->x, want->w, y, scratch,
                      pack_of(&forward, exec, s, LK_BF16, FORWARD, way));
        nn_same_bf16(exec, "y", c.y, y, want->y);
    }
    lki_conv_bf16_backward_input(exec, s, want->dy, want->w, dx, true, scratch, NULL);
    nn_same_bf16(exec, "dx added", c.x, dx, want->sum);
    for (int way = 0; way < pack_ways(exec); way++) {
        memset(dx, 0xff, c.x * sizeof *dx);
        lki_conv_bf16_backward_input(exec, s, want->dy, want->w, dx, false, scratch,
                                     pack_of(&backward, exec, s, LK_BF16, BACKWARD, way));
        nn_same_bf16(exec, "dx", c.x, dx, want->dx);
    }
    lki_conv_bf16_backward_weights(exec, s, want->x, want->dy, dw, true, NULL, scratch);
    nn_same(exec, "dw added", c.w, dw, want->dw);
    lki_conv_bf16_backward_weights(exec, s, want->x, want->dy, dw, false, NULL, scratch);
    nn_same(exec, "dw", c.w, dw, want->fresh);
    free(forward.pack.data);
    free(backward.pack.data);
    free(scratch);
    free(y);
    free(dx);
    free(dw);
}

static void conv_bits(void **state)
{
    nn_machines m = nn_machines_for(true);
    (void)state;
    for (size_t i = 0; i < SHAPES; i += lki_brief() ? 3 : 1) {
        lki_conv_shape s = shape_at(i);
        results        r = results_of(&s, 1);
        for (size_t k = 0; k < m.count; k++)
            one_machine(m.exec[k], &s, &r, 1);
        results_free(&r);
    }
    nn_machines_free(&m);
}

/* Uses values so small that many products and sums are subnormal. */
static void conv_flushes_subnormal_values(void **state)
{
    static const size_t some[] = { 1, 3, 4, 9 };
    nn_machines         m = nn_machines_for(true);
    (void)state;
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i += lki_brief() ? 2 : 1) {
        lki_conv_shape s = shape_at(some[i]);
        results        r = results_of(&s, 0x1p-63f);
        for (size_t k = 0; k < m.count; k = lki_test_next_isa(m.exec, m.count, k))
            one_machine(m.exec[k], &s, &r, 0x1p-63f);
        results_free(&r);
    }
    nn_machines_free(&m);
}

/* Allows the error of rounding weights and results to bf16. */
static void conv_gradients(void **state)
{
    lk_exec *exec = NULL;
    (void)state;
    assert_int_equal(lk_exec_open(&exec, 2, NULL), LK_OK);
    for (size_t i = 0; i < SHAPES; i += lki_brief() ? 5 : 1) {
        lki_conv_shape s = shape_at(i);
        counts         c = counts_of(&s);
        if (c.x * s.cout * s.kh * s.kw > 100000)
            continue; /* each difference costs a forward pass */
        uint16_t *x = nn_values_bf16(c.x, 1, 1), *dy = nn_values_bf16(c.y, 3, 1);
        uint16_t *dx = nn_values_bf16(c.x, 4, 1);
        float    *w = nn_values(c.w, 2), *dw = nn_values(c.w, 5), *old_dw = nn_values(c.w, 5);
        float    *wide_x = nn_widen(x, c.x), *wide_dy = nn_widen(dy, c.y);
        void     *scratch = scratch_new(exec, &s);
        lki_conv_bf16_backward_input(exec, &s, dy, w, dx, false, scratch, NULL);
        lki_conv_bf16_backward_weights(exec, &s, x, dy, dw, true, NULL, scratch);
        float *wide_dx = nn_widen(dx, c.x);
        exact  e = { &s, nn_doubles(wide_x, c.x), nn_doubles(w, c.w), nn_doubles(wide_dy, c.y) };
        nn_gradient_within(2e-2, "dx", exact_loss, &e, e.x, c.x, wide_dx, NULL);
        nn_gradient("dw", exact_loss, &e, e.w, c.w, dw, old_dw);
        void *const all[] = { x, dy, dx, w, dw, old_dw, wide_x, wide_dy, wide_dx, scratch, e.x, e.w,
                              e.dy };
        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
            free(all[k]);
    }
    lk_exec_free(exec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv_bits),
        cmocka_unit_test(conv_flushes_subnormal_values),
        cmocka_unit_test(conv_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* attention_bf16_test.c -- attention in bf16 has the reference's bits on every exec, and correct
 * gradients. */
#include "tensor/exec.h"
#include "tensor/isa/kernels.h"
#include "tensor/ops/attention_testing.h"
#include "tensor/reference_bf16.h"

static void *scratch_new(const lk_exec *exec, const lki_attention_shape *s)
{
    size_t bytes = lki_attention_bf16_scratch_bytes(exec, s);
    void  *p     = nn_bytes(bytes);
    memset(p, 0xff, bytes); /* garbage must not affect results */
    return p;
}

typedef struct { uint16_t *qkv, *dy, *y, *d, *sum; float *lse, *exact; } results;

/* Computes the results of the reference.  `d` is the gradient, and `sum` is the gradient added to
 * other values. */
static results results_of(const lki_attention_shape *s, float scale)
{
    counts  c = counts_of(s);
    results r = { .qkv = nn_values_bf16(c.qkv, 1, 2 * scale), .dy = nn_values_bf16(c.y, 2, scale),
                  .y = nn_values_bf16(c.y, 3, 1), .d = nn_values_bf16(c.qkv, 4, 1),
                  .sum = nn_values_bf16(c.qkv, 5, 1), .lse = nn_values(c.lse, 6),
                  .exact = nn_values(c.qkv, 7) };
    lki_reference_attention_bf16(s, r.qkv, r.y, r.lse);
    lki_reference_attention_bf16_backward(s, r.qkv, r.y, r.lse, r.dy, r.exact);
    for (size_t i = 0; i < c.qkv; i++) {
        r.d[i]   = lki_bf16_narrow(r.exact[i]);
        r.sum[i] = lki_bf16_narrow(lki_bf16_widen(r.sum[i]) + r.exact[i]);
    }
    return r;
}

static void results_free(results *r)
{
    free(r->qkv);
    free(r->dy);
    free(r->y);
    free(r->d);
    free(r->sum);
    free(r->lse);
    free(r->exact);
}

static void one_machine(lk_exec *exec, const lki_attention_shape *s, const results *want)
{
    counts    c       = counts_of(s);
    void     *scratch = scratch_new(exec, s);
    uint16_t *y = nn_values_bf16(c.y, 8, 1), *d = nn_values_bf16(c.qkv, 5, 1);
    float    *lse = nn_values(c.lse, 8);
    lki_attention_input x = lki_attention_packed(s, LK_BF16, want->qkv);

    lki_attention_bf16(exec, s, x, y, lse, scratch);
    nn_same_bf16(exec, "y", c.y, y, want->y);
    nn_same(exec, "lse", c.lse, lse, want->lse);
    lki_attention_bf16_backward(exec, s, x, y, lse, want->dy,
                                lki_attention_packed_gradient(s, LK_BF16, d, true), scratch);
    nn_same_bf16(exec, "dqkv added", c.qkv, d, want->sum);
    lki_attention_bf16_backward(exec, s, x, y, lse, want->dy,
                                lki_attention_packed_gradient(s, LK_BF16, d, false), scratch);
    nn_same_bf16(exec, "dqkv", c.qkv, d, want->d);
    free(scratch);
    free(y);
    free(d);
    free(lse);
}

static void attention_bits(void **state)
{
    nn_machines m = nn_machines_for(true);
    (void)state;
    for (size_t i = 0; i < SHAPES; i += lki_brief() ? 2 : 1) {
        results r = results_of(&shapes[i], 1);
        for (size_t k = 0; k < m.count; k++)
            one_machine(m.exec[k], &shapes[i], &r);
        results_free(&r);
    }
    nn_machines_free(&m);
}

/* Uses values so small that many products, sums and gradients of scores are subnormal. */
static void attention_flushes_subnormal_values(void **state)
{
    static const lki_attention_shape s = { .b = 1, .t = 35, .c = 18, .heads = 2 };
    nn_machines m = nn_machines_for(true);
    (void)state;
    for (int power = 58; power <= 66; power += 2) {
        results r = results_of(&s, ldexpf(1.0f, -power));
        for (size_t k = 0; k < m.count; k = lki_test_next_isa(m.exec, m.count, k))
            one_machine(m.exec[k], &s, &r);
        results_free(&r);
    }
    nn_machines_free(&m);
}

/* Tests a value that is flushed although it would round to the smallest normal number, and that
 * number itself.  With p = 1 the gradient of a score is -delta. */
static void operands_are_flushed_before_they_are_rounded(void **state)
{
    enum { ROWS = 4, KEYS = 16 };
    static const float    delta[ROWS] = { 0x1.fffffcp-127f, 0x1p-126f, -0x1p-140f, 0x1.018p-100f };
    static const uint16_t want[ROWS]  = { 0x8000, 0x8080, 0x0000, 0x8d81 };
    nn_machines m = nn_machines_for(true);
    (void)state;
    for (size_t k = 0; k < m.count; k = lki_test_next_isa(m.exec, m.count, k)) {
        float    zeros[ROWS * KEYS] = { 0 };
        uint16_t p[ROWS * KEYS], ds[ROWS * KEYS];
        lki_exec_kernels(m.exec[k])->bf16->scores->backward(&(lki_score_block){ .queries = ROWS,
                                                                                .keys    = KEYS,
                                                                                .past    = KEYS,
                                                                                .ld      = KEYS,
                                                                                .factor  = 1,
                                                                                .scores  = zeros,
                                                                                .p       = p,
                                                                                .ds      = ds,
                                                                                .dp      = zeros,
                                                                                .lse     = zeros,
                                                                                .delta   = delta });
        for (size_t i = 0; i < ROWS; i++)
            assert_int_equal(ds[i * KEYS], want[i]);
    }
    nn_machines_free(&m);
}

/* Allows the error of rounding to bf16: sums of 2^-9 of values near 1. */
static void attention_gradients(void **state)
{
    lk_exec *exec = NULL;
    (void)state;
    assert_int_equal(lk_exec_open(&exec, 2, NULL), LK_OK);
    for (size_t i = 0; i < SHAPES; i++) {
        const lki_attention_shape *s = &shapes[i];
        if (s->t > 100)
            continue; /* each difference costs a forward pass */
        counts    c   = counts_of(s);
        uint16_t *qkv = nn_values_bf16(c.qkv, 1, 2), *dy = nn_values_bf16(c.y, 2, 1);
        uint16_t *y = nn_values_bf16(c.y, 3, 1), *d = nn_values_bf16(c.qkv, 4, 1);
        float    *lse = nn_values(c.lse, 5), *x = nn_widen(qkv, c.qkv), *g = nn_widen(dy, c.y);
        void     *scratch = scratch_new(exec, s);
        lki_attention_input in = lki_attention_packed(s, LK_BF16, qkv);
        lki_attention_bf16(exec, s, in, y, lse, scratch);
        lki_attention_bf16_backward(exec, s, in, y, lse, dy,
                                    lki_attention_packed_gradient(s, LK_BF16, d, false), scratch);
        float *gradient = nn_widen(d, c.qkv);
        exact  e        = { s, nn_doubles(x, c.qkv), nn_doubles(g, c.y) };
        nn_gradient_within(2e-2, "dqkv", exact_loss, &e, e.qkv, c.qkv, gradient, NULL);
        void *const all[] = { qkv, dy, y, d, lse, x, g, scratch, gradient, e.qkv, e.dy };
        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
            free(all[k]);
    }
    lk_exec_free(exec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_bits),
        cmocka_unit_test(attention_flushes_subnormal_values),
        cmocka_unit_test(operands_are_flushed_before_they_are_rounded),
        cmocka_unit_test(attention_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

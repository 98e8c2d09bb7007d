/* attention_test.c -- causal attention has the reference's bits on every exec, and correct
 * gradients. */
#include "tensor/exec.h"
#include "tensor/isa/kernels.h"
#include "tensor/ops/attention_testing.h"

/* Returns values large enough that single keys dominate the softmax. */
static float *qkv_new(size_t n)
{
    float *qkv = nn_values(n, 1);
    for (size_t i = 0; i < n; i++)
        qkv[i] *= 2.0f;
    return qkv;
}

static void *scratch_new(const lk_exec *exec, const lki_attention_shape *s)
{
    size_t bytes = lki_attention_scratch_bytes(exec, s);
    void  *p     = nn_bytes(bytes);
    memset(p, 0xff, bytes); /* garbage must not affect results */
    return p;
}

static void one_machine(lk_exec *exec, const lki_attention_shape *s, const float *qkv,
                        const float *dy, const float *want_y, const float *want_lse,
                        const float *want_d)
{
    counts c       = counts_of(s);
    void  *scratch = scratch_new(exec, s);
    float *y = nn_values(c.y, 3), *lse = nn_values(c.lse, 4);
    float *d = nn_values(c.qkv, 5), *sum = nn_values(c.qkv, 5);
    lki_attention_input x = lki_attention_packed(s, LK_F32, qkv);

    lki_attention(exec, s, x, y, lse, scratch);
    nn_same(exec, "y", c.y, y, want_y);
    nn_same(exec, "lse", c.lse, lse, want_lse);
    lki_attention_backward(exec, s, x, y, lse, dy,
                           lki_attention_packed_gradient(s, LK_F32, d, false), scratch);
    nn_same(exec, "dqkv", c.qkv, d, want_d);
    lki_attention_backward(exec, s, x, y, lse, dy,
                           lki_attention_packed_gradient(s, LK_F32, sum, true), scratch);
    float *old = nn_values(c.qkv, 5);
    for (size_t i = 0; i < c.qkv; i++)
        old[i] = old[i] + want_d[i];
    nn_same(exec, "dqkv added", c.qkv, sum, old);
    free(scratch);
    free(y);
    free(lse);
    free(d);
    free(sum);
    free(old);
}

static void attention_bits(void **state)
{
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        const lki_attention_shape *s = &shapes[i];
        counts c   = counts_of(s);
        float *qkv = qkv_new(c.qkv), *dy = nn_values(c.y, 2);
        float *y = nn_values(c.y, 6), *lse = nn_values(c.lse, 6), *d = nn_values(c.qkv, 6);
        lki_reference_attention(s, qkv, y, lse);
        lki_reference_attention_backward(s, qkv, y, lse, dy, d);
        for (size_t k = 0; k < m.count; k++)
            one_machine(m.exec[k], s, qkv, dy, y, lse, d);
        free(qkv);
        free(dy);
        free(y);
        free(lse);
        free(d);
    }
    nn_machines_free(&m);
}

static void attention_gradients(void **state)
{
    lk_exec *exec = NULL;
    (void)state;
    assert_int_equal(lk_exec_open(&exec, 2, NULL), LK_OK);
    for (size_t i = 0; i < SHAPES; i++) {
        const lki_attention_shape *s = &shapes[i];
        if (s->t > 100)
            continue; /* each difference costs a forward pass */
        counts c   = counts_of(s);
        float *qkv = qkv_new(c.qkv), *dy = nn_values(c.y, 2);
        float *y = nn_values(c.y, 3), *lse = nn_values(c.lse, 4), *d = nn_values(c.qkv, 5);
        void  *scratch = scratch_new(exec, s);
        lki_attention_input x = lki_attention_packed(s, LK_F32, qkv);
        lki_attention(exec, s, x, y, lse, scratch);
        lki_attention_backward(exec, s, x, y, lse, dy,
                               lki_attention_packed_gradient(s, LK_F32, d, false), scratch);
        exact e = { s, nn_doubles(qkv, c.qkv), nn_doubles(dy, c.y) };
        nn_gradient("dqkv", exact_loss, &e, e.qkv, c.qkv, d, NULL);
        free(e.qkv);
        free(e.dy);
        free(scratch);
        free(qkv);
        free(dy);
        free(y);
        free(lse);
        free(d);
    }
    lk_exec_free(exec);
}

enum { PAST = 70 }; /* tokens that stay as they are: the last strip of queries is divided */

/* Computes y with other values in the later tokens, and checks y of the past. */
static void check_past(lk_exec *exec, const lki_attention_shape *s, float later, const float *y)
{
    counts c       = counts_of(s);
    float *changed = nn_values(c.y, 3), *lse = nn_values(c.lse, 4), *qkv = qkv_new(c.qkv);
    void  *scratch = scratch_new(exec, s);
    for (size_t i = (size_t)PAST * 3 * s->c; i < c.qkv; i++)
        qkv[i] = later;
    lki_attention(exec, s, lki_attention_packed(s, LK_F32, qkv), changed, lse, scratch);
    nn_same(exec, "y of the past", PAST * s->c, changed, y);
    assert_memory_not_equal(changed + PAST * s->c, y + PAST * s->c, 10 * s->c * sizeof *y);
    free(scratch);
    free(qkv);
    free(lse);
    free(changed);
}

/* Changing later tokens does not change earlier results, not even if 0 times their values is not
 * 0. */
static void attention_is_causal(void **state)
{
    lki_attention_shape s = { .b = 1, .t = 80, .c = 32, .heads = 2 };
    counts   c = counts_of(&s);
    lk_exec *exec = NULL;
    float   *qkv = qkv_new(c.qkv), *lse = nn_values(c.lse, 4), *y = nn_values(c.y, 3);
    (void)state;
    assert_int_equal(lk_exec_open(&exec, 1, NULL), LK_OK);
    void *scratch = scratch_new(exec, &s);
    lki_attention(exec, &s, lki_attention_packed(&s, LK_F32, qkv), y, lse, scratch);
    check_past(exec, &s, 100.0f, y);
    check_past(exec, &s, INFINITY, y);
    free(scratch);
    free(qkv);
    free(lse);
    free(y);
    lk_exec_free(exec);
}

/* Writes rows `from` .. `to` - 1 of a part (0: of queries, 1: of keys, 2: of values) of qkv. */
static void set_rows(const lki_attention_shape *s, int part, size_t from, size_t to, float value,
                     float *qkv)
{
    for (size_t i = from; i < to; i++)
        for (size_t k = 0; k < s->c; k++)
            qkv[i * 3 * s->c + (size_t)part * s->c + k] = value;
}

/* Gradients of earlier queries do not depend on later keys, and gradients of later keys and values
 * do not depend on earlier queries. */
static void gradients_are_causal(void **state)
{
    lki_attention_shape s = { .b = 1, .t = 80, .c = 32, .heads = 2 };
    counts   c = counts_of(&s);
    lk_exec *exec = NULL;
    float   *qkv = qkv_new(c.qkv), *lse = nn_values(c.lse, 4), *y = nn_values(c.y, 3);
    float   *dy = nn_values(c.y, 2), *d = nn_values(c.qkv, 5), *changed = nn_values(c.qkv, 5);
    lki_attention_input x = lki_attention_packed(&s, LK_F32, qkv);
    (void)state;
    assert_int_equal(lk_exec_open(&exec, 1, NULL), LK_OK);
    void *scratch = scratch_new(exec, &s);
    lki_attention(exec, &s, x, y, lse, scratch);
    lki_attention_backward(exec, &s, x, y, lse, dy,
                           lki_attention_packed_gradient(&s, LK_F32, d, false), scratch);
    set_rows(&s, 1, PAST, s.t, INFINITY, qkv);
    lki_attention_backward(exec, &s, x, y, lse, dy,
                           lki_attention_packed_gradient(&s, LK_F32, changed, false), scratch);
    for (size_t i = 0; i < PAST; i++)
        nn_same(exec, "dq of the past", s.c, changed + i * 3 * s.c, d + i * 3 * s.c);
    free(qkv);
    qkv = qkv_new(c.qkv);
    x   = lki_attention_packed(&s, LK_F32, qkv);
    for (size_t i = 0; i < PAST * s.c; i++)
        dy[i] = INFINITY;
    lki_attention_backward(exec, &s, x, y, lse, dy,
                           lki_attention_packed_gradient(&s, LK_F32, changed, false), scratch);
    for (size_t i = PAST; i < s.t; i++)
        nn_same(exec, "dk and dv of later keys", 2 * s.c, changed + (i * 3 + 1) * s.c,
                d + (i * 3 + 1) * s.c);
    free(scratch);
    free(qkv);
    free(lse);
    free(y);
    free(dy);
    free(d);
    free(changed);
    lk_exec_free(exec);
}

/* Checks the dropout factors that the kernels compute for n elements of a sample, from `first` on.
 * An element's counter is a number of 40 bits.  Its upper 8 bits are stored above the number of the
 * layer, in the same word. */
static void check_keep(const lk_exec *exec, uint64_t first, size_t n, float *keep)
{
    static const uint32_t key[3] = { 7, 11, 3 }; /* slot, step, layer */
    lki_exec_kernels(exec)->nn->dropout_keep(5, key, 0.5f, first, n, keep);
    for (size_t i = 0; i < n; i++) {
        uint64_t   counter = (first + i) / 4;
        lki_random r       = lki_philox(5, LKI_RNG_DROPOUT, (uint32_t)counter, key[0], key[1],
                                        key[2] + ((uint32_t)(counter >> 32) << 16));
        bool       kept    = lki_random_unit(r.word[(first + i) % 4]) >= 0.5f;
        assert_int_equal(keep[i] > 0.0f, kept);
    }
}

static void attention_masks_never_repeat(void **state)
{
    enum { N = 300 };
    static const uint64_t firsts[] = { 0, 1, (UINT64_C(1) << 34) - 61, UINT64_C(1) << 34,
                                       UINT64_C(3) << 34, (UINT64_C(1) << 42) - N };
    nn_machines m = nn_machines_open();
    (void)state;
    for (size_t e = 0; e < m.count; e++) {
        float begin[N], keep[N];
        check_keep(m.exec[e], 0, N, begin);
        for (size_t f = 0; f < sizeof firsts / sizeof firsts[0]; f++) {
            check_keep(m.exec[e], firsts[f], N, keep);
            assert_int_equal(memcmp(keep, begin, sizeof keep) == 0, firsts[f] == 0);
        }
    }
    nn_machines_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_bits),
        cmocka_unit_test(attention_gradients),
        cmocka_unit_test(attention_is_causal),
        cmocka_unit_test(gradients_are_causal),
        cmocka_unit_test(attention_masks_never_repeat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

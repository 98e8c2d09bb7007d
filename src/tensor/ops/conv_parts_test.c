/* conv_parts_test.c -- the gradient of a convolution's weights over all parts of the samples equals
 * the gradients of the single parts, added by the tree. */
#include "device/reduce.h"
#include "tensor/ops/conv_testing.h"

enum { COUNT_MOST = 64 };

/* n, h, w, cin, cout, kh, kw, stride, pad, and the number of parts.  Parts of bf16 values are added
 * alone or up to 16 together, for kernels with one tap and with several.  Images of the sixth shape
 * are larger than a task's buffer. */
static const struct { lki_conv_shape s; uint32_t count; } cases[] = {
    { { 8, 4, 4, 70, 40, 3, 3, 1, 1, 0, 0 }, 8 },  { { 5, 7, 6, 3, 18, 3, 3, 2, 1, 0, 0 }, 4 },
    { { 64, 2, 2, 5, 33, 1, 1, 1, 0, 0, 0 }, 64 }, { { 40, 3, 2, 33, 400, 1, 1, 1, 0, 0, 0 }, 32 },
    { { 17, 3, 3, 16, 8, 3, 3, 1, 1, 0, 0 }, 16 }, { { 3, 30, 40, 20, 17, 3, 3, 1, 1, 0, 0 }, 2 },
    { { 4, 20, 20, 64, 20, 1, 1, 2, 0, 0, 0 }, 4 }, { { 9, 5, 4, 6, 4, 3, 3, 1, 1, 0, 0 }, 1 },
    { { 5, 7, 6, 40, 36, 1, 1, 2, 0, 0, 0 }, 4 },
    { { 6, 1, 2, 520, 512, 1, 1, 1, 0, 0, 0 }, 4 }, { { 5, 3, 3, 530, 500, 1, 1, 2, 0, 0, 0 }, 2 },
};

/* Divides n samples into `count` parts.  If they are not even, every other part is empty. */
static void divide(size_t *ends, uint32_t count, size_t n, bool even)
{
    for (uint32_t i = 0; i < count; i++)
        ends[i] = even ? n * (i + 1) / count : n * (i / 2 * 2) / count;
    ends[count - 1] = n;
}

static void gradient(lk_exec *exec, bool bf16, const lki_conv_shape *s, const float *x,
                     const float *dy, const uint16_t *x16, const uint16_t *dy16, float *dw,
                     const lki_parts *parts)
{
    uint32_t count = parts != NULL ? parts->count : 1;
    size_t   bytes = bf16 ? lki_conv_bf16_scratch_bytes(exec, s, count)
                          : lki_conv_scratch_bytes(exec, s, count);
    void    *scratch = nn_bytes(bytes);
    memset(scratch, 0xff, bytes);
    if (bf16)
        lki_conv_bf16_backward_weights(exec, s, x16, dy16, dw, false, parts, scratch);
    else
        lki_conv_backward_weights(exec, s, x, dy, dw, false, parts, scratch);
    free(scratch);
}

static void check(const nn_machines *m, bool bf16, lki_conv_shape s, uint32_t count, bool even)
{
    s.oh         = (s.h + 2 * s.pad - s.kh) / s.stride + 1;
    s.ow         = (s.w + 2 * s.pad - s.kw) / s.stride + 1;
    counts         c = counts_of(&s);
    size_t         ends[COUNT_MOST], x_each = c.x / s.n, y_each = c.y / s.n;
    lki_tree_input inputs[COUNT_MOST];
    float    *x = nn_values(c.x, 1), *dy = nn_values(c.y, 2), *want = nn_values(c.w, 3);
    float    *terms = nn_values(count * c.w, 4), *dw = nn_values(c.w, 5);
    uint16_t *x16 = nn_values_bf16(c.x, 1, 1), *dy16 = nn_values_bf16(c.y, 2, 1);

    divide(ends, count, s.n, even);
    for (uint32_t i = 0; i < count; i++) {
        size_t         begin = i > 0 ? ends[i - 1] : 0;
        lki_conv_shape one   = s;
        one.n                = ends[i] - begin;
        inputs[i] = (lki_tree_input){ .first = i, .count = 1, .data = terms + i * c.w };
        if (one.n > 0)
            gradient(m->exec[0], bf16, &one, x + begin * x_each, dy + begin * y_each,
                     x16 + begin * x_each, dy16 + begin * y_each, terms + i * c.w, NULL);
        else
            memset(terms + i * c.w, 0, c.w * sizeof *terms);
    }
    lki_tree_sum_f32(LK_F32, count, inputs, count, c.w, want);
    for (size_t k = 0; k < m->count; k++) {
        memset(dw, 0xff, c.w * sizeof *dw);
        gradient(m->exec[k], bf16, &s, x, dy, x16, dy16, dw,
                 &(lki_parts){ .count = count, .ends = ends });
        nn_same(m->exec[k], bf16 ? "dw of parts, bf16" : "dw of parts", c.w, dw, want);
    }
    void *const all[] = { x, dy, want, terms, dw, x16, dy16 };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static void parts_are_added_by_the_tree(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        nn_machines m = nn_machines_for(bf16);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i += lki_brief() ? 2 : 1) {
            check(&m, bf16, cases[i].s, cases[i].count, true);
            check(&m, bf16, cases[i].s, cases[i].count, false);
        }
        nn_machines_free(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(parts_are_added_by_the_tree) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* parts_test.c -- a pass with the samples of several virtual workers has the results of one pass
 * per virtual worker, with gradients added by the tree. */
#include "nn/nets_testing.h"

enum { PARTS = 4, WIDE = 6, CLASSES = 5, ALL = 9 };

static const uint32_t samples_of_part[PARTS] = { 3, 0, 2, 4 };

/* Builds linear blocks with and without bias and activation, and with both layouts of weights. */
static lk_model *net_of_linear_blocks(void)
{
    lk_model         *model;
    lk_linear_options plain = { .out = 7, .no_bias = true };
    MUST(lk_model_new(&model, "parts", (lk_shape){ 1, { WIDE } }, false));
    lk_value v = linear(model, "fc0", 9, "relu", 0);
    v          = add1(model, &lk_block_linear, "fc1", &plain, sizeof plain, v);
    v          = linear(model, "fc2", CLASSES, NULL, v);
    add1(model, &lk_block_cross_entropy, "", NULL, 0, v);
    assert_true(lk_model_sums_parts(model));
    return model;
}

static void add(float *left, const float *right, size_t n)
{
    for (size_t i = 0; i < n; i++)
        left[i] = left[i] + right[i];
}

/* Runs the parts as separate contexts, and sums their gradients in the memory of context 0. */
static void run_alone(net *n, const void *x, size_t x_bytes, const int32_t *y, lk_pass *passes)
{
    lk_walk  walk  = net_walk(n, true);
    uint32_t first = 0;
    for (uint32_t i = 0; i < PARTS; first += samples_of_part[i++])
        passes[i] = net_pass(n, i, samples_of_part[i], (const char *)x + first * x_bytes,
                             y + first);
    lk_engine_forward(n->engine, &walk, passes, PARTS);
    lk_engine_backward(n->engine, &walk, passes, PARTS);
    for (uint32_t t = 0; t < n->term_count; t++) {
        add(n->grads[0][t], n->grads[1][t], net_term_count(n, t));
        add(n->grads[2][t], n->grads[3][t], net_term_count(n, t));
        add(n->grads[0][t], n->grads[2][t], net_term_count(n, t));
    }
}

static void compare(lk_dtype dtype, bool cleared)
{
    static const int32_t y[ALL] = { 1, 4, 0, 2, -1, 3, 3, 0, 1 };
    net                  alone  = net_open_as(dtype, net_of_linear_blocks(), 1, NULL, ALL, PARTS);
    net                  joint  = net_open_as(dtype, net_of_linear_blocks(), 2, NULL, ALL, 1);
    float               *x      = noise_floats(3, ALL * WIDE);
    lk_pass              passes[PARTS], pass;
    lki_pass_part        parts[PARTS] = { { 0, 0, 0, 0 } };
    lk_walk              walk         = net_walk(&joint, true);
    bool                 empty[16];

    run_alone(&alone, x, WIDE * sizeof *x, y, passes);
    pass = net_pass(&joint, 0, ALL, x, y);
    for (uint32_t t = 0; t < joint.term_count; t++) {
        empty[t] = !cleared;
        memset(joint.grads[0][t], cleared ? 0 : 0x7f, net_term_count(&joint, t) * sizeof(float));
    }
    pass.empty = cleared ? NULL : empty;
    for (uint32_t i = 0; i < PARTS; i++)
        parts[i].samples = samples_of_part[i];
    lki_engine_divide(joint.engine, parts, PARTS);
    lk_engine_forward(joint.engine, &walk, &pass, 1);
    lk_engine_backward(joint.engine, &walk, &pass, 1);
    lki_engine_divide(joint.engine, NULL, 0);
    for (uint32_t t = 0; t < joint.term_count; t++)
        assert_memory_equal(joint.grads[0][t], alone.grads[0][t],
                            net_term_count(&joint, t) * sizeof(float));
    for (uint32_t i = 0; i < PARTS; i++) {
        assert_memory_equal(&parts[i].loss_sum, &passes[i].loss_sum, sizeof(double));
        assert_true(parts[i].count == passes[i].count && parts[i].hits == passes[i].hits);
    }
    assert_true(pass.count == 0 && pass.loss_sum == 0);
    lki_free(x);
    net_close(&alone);
    net_close(&joint);
}

static void a_joint_pass_equals_the_passes_alone(void **state)
{
    (void)state;
    compare(LK_F32, true);
    compare(LK_F32, false);
    compare(LK_BF16, false);
    compare(LK_F16, false);
}

static void models_with_other_blocks_are_not_joined(void **state)
{
    lk_model *decoder = plain_decoder(), *images = convnet();
    (void)state;
    assert_false(lk_model_sums_parts(decoder));
    assert_false(lk_model_sums_parts(images));
    lk_model_free(decoder);
    lk_model_free(images);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_joint_pass_equals_the_passes_alone),
        cmocka_unit_test(models_with_other_blocks_are_not_joined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* parts_test.c -- a pass with the samples of several virtual workers has the results of one pass
 * per virtual worker, with gradients and sums of state added by the tree. */
#include "nn/nets_testing.h"

enum { PARTS = 4, WIDE = 6, MOST = 3, ALL = 8 };

static const uint32_t samples_of_part[PARTS] = { 3, 0, 2, 3 };
/* slots of the global batch: some virtual workers of the batch are not among the parts */
static const uint32_t slot_of_part[PARTS] = { 3, 6, 6, 12 };

/* Builds linear blocks with and without bias and activation, and with both layouts of weights. */
static lk_model *net_of_linear_blocks(void)
{
    lk_model         *model;
    lk_linear_options plain = { .out = 7, .no_bias = true };
    MUST(lk_model_new(&model, "parts", (lk_shape){ 1, { WIDE } }, false));
    lk_value v = linear(model, "fc0", 9, "relu", 0);
    v          = add1(model, &lk_block_linear, "fc1", &plain, sizeof plain, v);
    v          = linear(model, "fc2", VOCABULARY, NULL, v);
    add1(model, &lk_block_cross_entropy, "", NULL, 0, v);
    return model;
}

static void add(float *left, const float *right, size_t n)
{
    for (size_t i = 0; i < n; i++)
        left[i] = left[i] + right[i];
}

static size_t state_elements(const net *n, uint32_t state)
{
    uint32_t count;
    return lk_model_states(n->model, &count)[state].count;
}

/* Returns the pass of samples from `first` on. */
static lk_pass pass_from(const net *n, uint32_t context, uint32_t first, uint32_t samples,
                         const float *x)
{
    uint32_t count   = lk_model_loss_rows(n->model);
    bool     decodes = n->model->tokens;
    size_t   each    = lk_shape_count(n->model->input);
    return net_pass(n, context, samples,
                    decodes ? (const void *)(tokens + first * each) : x + first * each,
                    tokens + 1 + (size_t)first * count);
}

/* Runs the parts as separate contexts, and sums their results in the memory of context 0. */
static void run_alone(net *n, const float *x, lk_pass *passes)
{
    static const uint32_t merges[3][2] = { { 0, 1 }, { 2, 3 }, { 0, 2 } };
    lk_walk               walk         = net_walk(n, true);
    uint32_t              first        = 0;
    for (uint32_t i = 0; i < PARTS; first += samples_of_part[i++]) {
        passes[i]            = pass_from(n, i, first, samples_of_part[i], x);
        passes[i].first_slot = slot_of_part[i];
    }
    lk_engine_forward(n->engine, &walk, passes, PARTS);
    lk_engine_backward(n->engine, &walk, passes, PARTS);
    for (int m = 0; m < 3; m++) {
        uint32_t left = merges[m][0], right = merges[m][1];
        for (uint32_t t = 0; t < n->term_count; t++)
            add(n->grads[left][t], n->grads[right][t], net_term_count(n, t));
        for (uint32_t i = 0; i < n->state_count; i++)
            add(n->sums[left][i], n->sums[right][i], state_elements(n, i));
    }
}

/* Opens the net of a joint pass.  Gradients are zeroes or, without `cleared`, garbage. */
static net open_joint(lk_dtype dtype, lk_model *model, bool cleared, bool *empty)
{
    net n = net_open_as(dtype, model, 2, NULL, MOST, 1);
    lk_engine_free(n.engine);
    MUST(lki_engine_open_parts(&n.engine, model, n.exec, dtype, MOST, PARTS));
    for (uint32_t t = 0; t < n.term_count; t++) {
        empty[t] = !cleared;
        memset(n.grads[0][t], cleared ? 0 : 0x7f, net_term_count(&n, t) * sizeof(float));
    }
    return n;
}

static void compare(lk_dtype dtype, build make, bool cleared)
{
    net            alone = net_open_as(dtype, make(), 1, NULL, MOST, PARTS);
    bool           empty[64];
    net            joint = open_joint(dtype, make(), cleared, empty);
    float         *x     = noise_floats(3, ALL * lk_shape_count(joint.model->input));
    lk_pass        passes[PARTS], pass;
    lki_pass_part  parts[PARTS] = { { 0, 0, 0, 0, 0 } };
    lk_walk        walk         = net_walk(&joint, true);

    run_alone(&alone, x, passes);
    pass       = pass_from(&joint, 0, 0, ALL, x);
    pass.empty = cleared ? NULL : empty;
    for (uint32_t i = 0; i < PARTS; i++) {
        parts[i].samples    = samples_of_part[i];
        parts[i].first_slot = slot_of_part[i];
    }
    lki_engine_divide(joint.engine, parts, PARTS);
    lk_engine_forward(joint.engine, &walk, &pass, 1);
    lk_engine_backward(joint.engine, &walk, &pass, 1);
    lki_engine_divide(joint.engine, NULL, 0);
    for (uint32_t t = 0; t < joint.term_count; t++)
        assert_memory_equal(joint.grads[0][t], alone.grads[0][t],
                            net_term_count(&joint, t) * sizeof(float));
    for (uint32_t i = 0; i < joint.state_count; i++)
        assert_memory_equal(joint.sums[0][i], alone.sums[0][i],
                            state_elements(&joint, i) * sizeof(float));
    for (uint32_t i = 0; i < PARTS; i++) {
        assert_memory_equal(&parts[i].loss_sum, &passes[i].loss_sum, sizeof(double));
        assert_true(parts[i].count == passes[i].count && parts[i].hits == passes[i].hits);
    }
    assert_true(pass.count == 0 && pass.loss_sum == 0);
    lki_free(x);
    net_close(&alone);
    net_close(&joint);
}

static void compare_all(build make)
{
    compare(LK_F32, make, true);
    compare(LK_F32, make, false);
    compare(LK_BF16, make, false);
    compare(LK_F16, make, false);
}

static void linear_blocks_sum_their_parts(void **state)
{
    (void)state;
    compare_all(net_of_linear_blocks);
}

/* Blocks with sums of parts, and BatchNorm, which runs for each part. */
static void convnets_sum_their_parts(void **state)
{
    (void)state;
    compare_all(convnet);
    compare_all(checkpointed_convnet);
}

/* Dropout depends on the slots of samples, and blocks of one parameter have several terms. */
static void decoders_sum_their_parts(void **state)
{
    (void)state;
    compare_all(plain_decoder);
    compare_all(checkpointed_decoder);
    compare_all(chunked_decoder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_blocks_sum_their_parts),
        cmocka_unit_test(convnets_sum_their_parts),
        cmocka_unit_test(decoders_sum_their_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

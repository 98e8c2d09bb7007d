/* blocks_test.c -- every block type against finite differences.
 *
 * The block under test is between a probe and a loss.  The probe adds a parameter to the model's
 * input, so the parameter's gradient is that of the block's input, over all samples.  The loss is a
 * fixed random combination of the outputs, summed in FP64.  Every element of every parameter,
 * including the probe's, is changed in both directions, and the slope is compared with the gradient
 * that backward computes.
 *
 * The test is repeated with values stored as bf16, whatever type the block uses internally.  Every
 * parameter's gradient must then be close to its gradient in FP32.
 */
#include "nn/nn_testing.h"

#include <math.h>

#include "tensor/ops.h"

enum { SAMPLES = 3 };

/* ---- The probe: y = x + p, with the same p for each sample --------------------------------- */

static lk_status probe_plan(lk_plan *plan)
{
    lk_shape shape = lk_plan_block(plan)->x[0];
    lk_plan_output(plan, shape);
    return lk_plan_param(plan, "p", shape, LK_INIT_ZERO, 0.0F, false);
}

static void probe_forward(const lk_block_call *call)
{
    size_t       count = lk_shape_count(call->block->y);
    const float *x     = call->x[0];
    float       *y     = call->y;
    for (size_t i = 0; i < call->samples * count; i++)
        y[i] = x[i] + call->params[0][i % count];
}

static void probe_backward(const lk_block_call *call)
{
    size_t       count = lk_shape_count(call->block->y);
    const float *dy    = call->dy;
    for (size_t i = 0; i < call->samples * count; i++)
        call->grads[0][i % count] += dy[i];
}

static const lk_block_type probe = {
    .name = "probe", .plan = probe_plan, .forward = probe_forward, .backward = probe_backward
};

/* ---- The loss: a random combination ------------------------------------------------------- */

typedef struct {
    double *sum;
} combine_options;

static lk_status combine_plan(lk_plan *plan)
{
    lk_plan_output(plan, (lk_shape){ 1, { 1 } });
    return LK_OK;
}

static void combine_forward(const lk_block_call *call)
{
    const combine_options *options = call->block->options;
    size_t                 count   = call->samples * lk_shape_count(call->block->x[0]);
    const float           *y       = call->y;
    *options->sum                  = 0.0;
    for (size_t i = 0; i < count; i++)
        *options->sum += (double)noise(9, (uint32_t)i) * (double)y[i];
    for (uint32_t s = 0; s < call->samples; s++)
        call->loss[s] = 0.0F;
}

static void combine_backward(const lk_block_call *call)
{
    size_t count = call->samples * lk_shape_count(call->block->x[0]);
    float *dx    = call->dx[0];
    for (size_t i = 0; i < count; i++)
        dx[i] = noise(9, (uint32_t)i);
}

static const lk_block_type combine = { .name = "combine", .plan = combine_plan,
                                       .forward = combine_forward, .backward = combine_backward,
                                       .loss = true };

/* ---- The comparison ----------------------------------------------------------------------- */

typedef struct {
    net           n;
    double        sum;
    const void   *x;
    const int32_t targets[15 * SAMPLES];
} rig;

static double loss_of(rig *r)
{
    lk_walk walk = net_walk(&r->n, true);
    lk_pass pass = net_pass(&r->n, 0, SAMPLES, r->x, r->targets);
    r->sum          = 0.0;
    /* a loss may compute some gradients in forward; compare() reads [0] */
    pass.grads      = r->n.grads[1];
    pass.state_sums = NULL;
    lk_engine_forward(r->n.engine, &walk, &pass, 1);
    return r->sum + pass.loss_sum;
}

/* Computes the slope of the loss in one element.  Returns false at a kink (a ReLU at 0, or two
 * equal maxima), where the slopes on both sides differ by more than curvature explains. */
static bool slope(rig *r, uint32_t param, size_t element, double *out)
{
    const float step = 1.0F / 256.0F;
    float      *p = net_param(&r->n, param) + element, kept = *p;
    float       above = kept + step, below = kept - step;
    double      middle = loss_of(r);
    *p                 = above;
    double right       = (loss_of(r) - middle) / ((double)above - (double)kept);
    *p                 = below;
    double left        = (middle - loss_of(r)) / ((double)kept - (double)below);
    *p                 = kept;
    *out               = (right + left) / 2.0;
    return fabs(right - left) <= 0.02 + 0.02 * fabs(*out);
}

/* Returns backward's gradient of one element, over all terms of its parameter. */
static double gradient(const rig *r, uint32_t param, size_t element)
{
    double              sum = 0.0;
    uint32_t            count;
    const lk_grad_term *terms = lk_model_terms(r->n.model, &count);
    for (uint32_t t = 0; t < count; t++)
        if (terms[t].param == param)
            sum += (double)r->n.grads[0][t][element];
    return sum;
}

/* Returns the difference between two contexts' gradients of term `t`, relative to the first. */
static double distance(const net *n, uint32_t t)
{
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < net_term_count(n, t); i++) {
        double x = (double)n->grads[0][t][i], y = (double)n->grads[1][t][i];
        difference += (x - y) * (x - y);
        norm += x * x;
    }
    return sqrt(difference / norm);
}

/* Compares gradients with those in FP32, which are in context 0.  Two percent are allowed: four
 * roundings to 8 bits. */
static void compare_in_bf16(const rig *r)
{
    const double within = 0.02;
    lk_engine   *engine;
    lk_walk      walk = net_walk(&r->n, true);
    lk_pass      pass = net_pass(&r->n, 1, SAMPLES, r->x, r->targets);

    MUST(lk_engine_open(&engine, r->n.model, r->n.exec, LK_BF16, SAMPLES, 1));
    lk_engine_forward(engine, &walk, &pass, 1);
    lk_engine_backward(engine, &walk, &pass, 1);
    for (uint32_t t = 0; t < r->n.term_count; t++)
        if (!(distance(&r->n, t) < within))
            fail_msg("%s: gradient term %u in bf16 is %g from that of FP32",
                     r->n.model->blocks[1].label, t, distance(&r->n, t));
    lk_engine_free(engine);
}

static void compare(rig *r)
{
    uint32_t        count;
    size_t          elements = 0, kinks = 0;
    const lk_param *params = lk_model_params(r->n.model, &count);
    lk_walk         walk   = net_walk(&r->n, true);
    lk_pass         pass   = net_pass(&r->n, 0, SAMPLES, r->x, r->targets);

    lk_engine_forward(r->n.engine, &walk, &pass, 1);
    lk_engine_backward(r->n.engine, &walk, &pass, 1);
    compare_in_bf16(r);
    for (uint32_t p = 0; p < count; p++) {
        for (size_t i = 0; i < lk_shape_count(params[p].shape); i++, elements++) {
            double got = gradient(r, p, i), want;
            if (!slope(r, p, i, &want))
                kinks++;
            else if (!(fabs(got - want) <= 4e-3 + 4e-3 * fabs(want)))
                fail_msg("%s[%zu]: backward says %.6f, differences say %.6f", params[p].name, i,
                         got, want);
        }
    }
    assert_true(elements > 0 && kinks * 6 <= elements);
}

/* Adds the loss, compares, and frees everything. */
static void finish(rig *r, lk_model *model, lk_value out, const void *x)
{
    combine_options options = { .sum = &r->sum };
    if (out != 0)
        MUST(lk_model_add(&out, model, &combine, "", &options, sizeof options, &out, 1));
    r->n = net_open(model, 1, NULL, SAMPLES, 2);
    r->x = x;
    compare(r);
    net_close(&r->n);
}

/* Builds a model of the block with a probe for each input, and tests it. */
static void check_block(const lk_block_type *type, const void *options, size_t options_bytes,
                        lk_shape shape, uint32_t inputs, bool loss)
{
    static const char *const names[LK_BLOCK_INPUTS_MAX] = { "a", "b", "c" };
    rig      r = { .targets = { 1, 0, 3, 2, -1, 1, 0, 0, 2, 3, 1, 2, 0, 1, 3 } };
    lk_model *model;
    lk_value  values[LK_BLOCK_INPUTS_MAX], out;
    float    *x = noise_floats(1, SAMPLES * lk_shape_count(shape));

    MUST(lk_model_new(&model, "test", shape, false));
    for (uint32_t i = 0; i < inputs; i++) {
        const lk_value input = 0;
        MUST(lk_model_add(&values[i], model, &probe, names[i], NULL, 0, &input, 1));
    }
    MUST(lk_model_add(&out, model, type, "block", options, options_bytes, values, inputs));
    finish(&r, model, loss ? 0 : out, x);
    lki_free(x);
}

#define CHECK(type, options, shape, inputs)                                                      \
    check_block(&(type), &(options), sizeof(options), (shape), (inputs), false)
#define CHECK_PLAIN(type, shape, inputs, loss)                                                   \
    check_block(&(type), NULL, 0, (shape), (inputs), (loss))

static const lk_shape sequence = { 2, { 4, 6 } }, image = { 3, { 5, 6, 3 } };

/* ---- The blocks --------------------------------------------------------------------------- */

static void test_linear(void **state)
{
    const char *const activations[] = { NULL, "relu", "gelu", "gelu_tanh" };
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        lk_linear_options plain = { .out = 5, .activation = activations[i] };
        lk_linear_options other = { .out = 5, .activation = activations[i], .transposed = true,
                                    .no_bias = true };
        CHECK(lk_block_linear, plain, sequence, 1);
        CHECK(lk_block_linear, other, sequence, 1);
        plain.out = sequence.dims[1];
        CHECK(lk_block_linear, plain, sequence, 2);
    }
}

static void test_layernorm(void **state)
{
    (void)state;
    CHECK_PLAIN(lk_block_layernorm, sequence, 1, false);
}

static void test_attention(void **state)
{
    lk_attention_options plain = { .heads = 2 }, dropping = { .heads = 2, .dropout = 0.3F };
    const lk_shape       qkv   = { 2, { 5, 12 } };
    (void)state;
    CHECK(lk_block_attention, plain, qkv, 1);
    CHECK(lk_block_attention, dropping, qkv, 1);
}

/* Tests queries, keys and values that are three values, and then heads of queries that share keys
 * and values. */
static void test_grouped_attention(void **state)
{
    const lk_shape       shape   = { 2, { 5, 8 } };
    lk_attention_options plain   = { .heads = 4 }, dropping = { .heads = 2, .dropout = 0.3F };
    lk_linear_options    narrow  = { .out = 4, .no_bias = true, .init = LK_INIT_UNIFORM,
                                     .scale = 0.6F };
    lk_linear_options    wide    = narrow;
    const lk_value       input   = 0;
    float               *x       = noise_floats(1, SAMPLES * lk_shape_count(shape));
    rig                  r       = { 0 };
    lk_model            *model;
    lk_value             v[3], p;
    (void)state;
    CHECK(lk_block_attention, plain, shape, 3);
    CHECK(lk_block_attention, dropping, shape, 3);
    wide.out = 8;
    MUST(lk_model_new(&model, "test", shape, false));
    MUST(lk_model_add(&p, model, &probe, "a", NULL, 0, &input, 1));
    MUST(lk_model_add(&v[0], model, &lk_block_linear, "q", &wide, sizeof wide, &p, 1));
    MUST(lk_model_add(&v[1], model, &lk_block_linear, "k", &narrow, sizeof narrow, &p, 1));
    MUST(lk_model_add(&v[2], model, &lk_block_linear, "v", &narrow, sizeof narrow, &p, 1));
    MUST(lk_model_add(&v[0], model, &lk_block_attention, "block", &plain, sizeof plain, v, 3));
    finish(&r, model, v[0], x);
    lki_free(x);
}

static void test_decoder(void **state)
{
    lk_rmsnorm_options rows = { .eps = 1e-5F }, heads = { .eps = 1e-3F, .size = 3 };
    lk_rope_options    rope = { .size = 6, .theta = 100 };
    lk_rope_options    scaled = { .size = 2, .theta = 50, .factor = 4, .low = 1, .high = 4,
                                  .original = 16 };
    (void)state;
    CHECK(lk_block_rmsnorm, rows, sequence, 1);
    CHECK(lk_block_rmsnorm, heads, sequence, 1);
    CHECK(lk_block_rope, rope, sequence, 1);
    CHECK(lk_block_rope, scaled, sequence, 1);
    CHECK_PLAIN(lk_block_swiglu, sequence, 2, false);
}

static void test_elementwise(void **state)
{
    lk_dropout_options none = { 0 }, some = { .p = 0.4F };
    lk_scale_options   factor = { .factor = -1.7F };
    (void)state;
    CHECK(lk_block_dropout, none, sequence, 1);
    CHECK(lk_block_dropout, some, sequence, 1);
    CHECK_PLAIN(lk_block_add, sequence, 2, false);
    CHECK_PLAIN(lk_block_relu, sequence, 1, false);
    CHECK_PLAIN(lk_block_gelu_tanh, sequence, 1, false);
    CHECK(lk_block_scale, factor, sequence, 1);
    CHECK_PLAIN(lk_block_flatten, image, 1, false);
}

static void test_conv(void **state)
{
    lk_conv_options same = { .out = 4, .kernel = 3, .stride = 1, .pad = 1 };
    lk_conv_options half = { .out = 2, .kernel = 3, .stride = 2, .pad = 1 };
    lk_conv_options point = { .out = 4, .kernel = 1, .stride = 2, .pad = 0 };
    (void)state;
    CHECK(lk_block_conv, same, image, 1);
    CHECK(lk_block_conv, half, image, 1);
    CHECK(lk_block_conv, point, image, 1);
}

static void test_batchnorm(void **state)
{
    lk_batchnorm_options plain = { 0 }, relu = { .relu = true };
    (void)state;
    CHECK(lk_block_batchnorm, plain, sequence, 1);
    CHECK(lk_block_batchnorm, relu, image, 1);
    CHECK(lk_block_batchnorm, plain, sequence, 2);
    CHECK(lk_block_batchnorm, relu, image, 2);
    CHECK(lk_block_sync_batchnorm, plain, sequence, 1);
    CHECK(lk_block_sync_batchnorm, relu, image, 2);
}

static void test_pooling(void **state)
{
    lk_maxpool_options  overlapping = { .kernel = 3, .stride = 2, .pad = 1 };
    lk_shortcut_options shortcut    = { .channels = 5, .stride = 2 };
    (void)state;
    CHECK(lk_block_maxpool, overlapping, image, 1);
    CHECK(lk_block_shortcut, shortcut, image, 1);
    CHECK_PLAIN(lk_block_avgpool, image, 1, false);
}

static void test_cross_entropy(void **state)
{
    (void)state;
    lk_linear_cross_entropy_options own = { .classes = 4, .rows = 7 }; /* a chunk has 32 rows */
    CHECK_PLAIN(lk_block_cross_entropy, ((lk_shape){ 2, { 5, 4 } }), 1, true);
    check_block(&lk_block_linear_cross_entropy, &own, sizeof own, (lk_shape){ 2, { 11, 3 } }, 1,
                true);
}

static void test_other_losses(void **state)
{
    (void)state;
    const lk_shape                  row      = { 2, { 3, 5 } };
    lk_cross_entropy_options        smoothed = { .smoothing = 0.2F };
    lk_linear_cross_entropy_options fused    = { .classes = 4, .rows = 7, .smoothing = 0.2F };
    lk_huber_options                huber    = { .delta = 0.5F };
    check_block(&lk_block_cross_entropy, &smoothed, sizeof smoothed, (lk_shape){ 2, { 5, 4 } }, 1,
                true);
    check_block(&lk_block_linear_cross_entropy, &fused, sizeof fused, (lk_shape){ 2, { 11, 3 } },
                1, true);
    /* the bits of the test's targets are those of a NaN, and of numbers near 0 */
    CHECK_PLAIN(lk_block_mse, row, 1, true);
    CHECK_PLAIN(lk_block_bce, row, 1, true);
    check_block(&lk_block_huber, &huber, sizeof huber, row, 1, true);
}

/* The embedding reads token ids, so it has no probe.  Its weight is also that of the head. */
static void test_embedding(void **state)
{
    const int32_t        tokens[4 * SAMPLES] = { 0, 3, 3, 1, 2, 2, 0, 4, 1, 1, 1, 3 };
    lk_embedding_options embedding           = { .vocabulary = 5, .width = 6 };
    lk_linear_options    head = { .out = 5, .no_bias = true, .shared = "wte.weight" };
    rig                  r    = { 0 };
    lk_model            *model;
    lk_value             v = 0;
    (void)state;
    MUST(lk_model_new(&model, "test", (lk_shape){ 1, { 4 } }, true));
    MUST(lk_model_add(&v, model, &lk_block_embedding, "", &embedding, sizeof embedding, &v, 1));
    MUST(lk_model_add(&v, model, &lk_block_linear, "head", &head, sizeof head, &v, 1));
    finish(&r, model, v, tokens);
}

/* Tests a value with three readers, one of which works in place, and another of which reads the
 * value twice.  The gradients must add up. */
static void test_shared_value(void **state)
{
    lk_dropout_options dropout = { .p = 0.25F };
    float             *x       = noise_floats(1, SAMPLES * 24);
    rig                r       = { 0 };
    lk_model          *model;
    lk_value           v = 0, w, twice[2];
    (void)state;
    MUST(lk_model_new(&model, "test", sequence, false));
    MUST(lk_model_add(&v, model, &probe, "a", NULL, 0, &v, 1));
    MUST(lk_model_add(&w, model, &lk_block_dropout, "", &dropout, sizeof dropout, &v, 1));
    twice[0] = twice[1] = v;
    MUST(lk_model_add(&twice[0], model, &lk_block_add, "", NULL, 0, twice, 2));
    twice[1] = w;
    MUST(lk_model_add(&twice[1], model, &lk_block_add, "", NULL, 0, twice, 2));
    twice[0] = v;
    MUST(lk_model_add(&v, model, &lk_block_add, "", NULL, 0, twice, 2));
    finish(&r, model, v, x);
    lki_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),        cmocka_unit_test(test_layernorm),
        cmocka_unit_test(test_attention),     cmocka_unit_test(test_elementwise),
        cmocka_unit_test(test_conv),          cmocka_unit_test(test_batchnorm),
        cmocka_unit_test(test_pooling),       cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_embedding),     cmocka_unit_test(test_shared_value),
        cmocka_unit_test(test_decoder),       cmocka_unit_test(test_grouped_attention),
        cmocka_unit_test(test_other_losses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

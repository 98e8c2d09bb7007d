/* narrow_test.c -- values that are stored as bf16 or fp16.
 *
 * Goal:   the output of a block is rounded once, and so is the model's input if a block accepts
 *         bf16.  Gradients are close to those of FP32, but not equal.  Parameters that all readers
 *         accept as bf16 may be stored as bf16 without changing a bit.
 * (tests/exactness checks that bits do not depend on the rank that computes them.)
 */
#include "nn/nn_testing.h"

#include <math.h>

#include "device/half.h"

enum { SAMPLES = 5, IN = 12, OUT = 7 };

static const lk_dtype dtypes[]         = { LK_BF16, LK_F16 };
static const int32_t  targets[SAMPLES] = { 1, 0, 6, 3, 3 };

static float rounded(lk_dtype dtype, float x)
{
    return dtype == LK_BF16 ? lki_bf16_widen(lki_bf16_narrow(x)) : lki_f16_widen(lki_f16_narrow(x));
}

/* Builds a net that evaluates BatchNorm.  A ReLU after BatchNorm has nothing to round. */
static lk_model *normalise(bool relu)
{
    lk_model *model;
    MUST(lk_model_new(&model, "narrow", (lk_shape){ 1, { IN } }, false));
    lk_batchnorm_options options = { 0 };
    lk_value             v = add1(model, &lk_block_batchnorm, "bn", &options, sizeof options, 0);
    if (relu)
        v = add1(model, &lk_block_relu, "", NULL, 0, v);
    add1(model, &lk_block_cross_entropy, "", NULL, 0, v);
    return model;
}

static lk_value linear(lk_model *model, const char *name, uint64_t out, const char *activation,
                       lk_value x)
{
    lk_linear_options options = { .out = out, .activation = activation };
    return add1(model, &lk_block_linear, name, &options, sizeof options, x);
}

/* Builds a net with a residual sum, in which gradients are added. */
static lk_model *residual(void)
{
    lk_model *model;
    MUST(lk_model_new(&model, "narrow", (lk_shape){ 1, { IN } }, false));
    lk_value x = linear(model, "a", IN, "gelu_tanh", 0);
    lk_value y = add1(model, &lk_block_layernorm, "ln", NULL, 0, x);
    y          = linear(model, "b", IN, "relu", y);
    y          = add2(model, &lk_block_add, "", NULL, 0, y, x);
    y          = linear(model, "c", OUT, NULL, y);
    add1(model, &lk_block_cross_entropy, "", NULL, 0, y);
    return model;
}

static void test_values_are_rounded_once(void **state)
{
    float *x = noise_floats(3, (size_t)SAMPLES * IN), *taken = new_floats((size_t)SAMPLES * IN);
    (void)state;
    for (size_t d = 0; d < 2 * 2; d++) {
        net     wide = net_open(normalise(d & 1), 1, NULL, SAMPLES, 1);
        net     n    = net_open_as(dtypes[d / 2], normalise(d & 1), 1, NULL, SAMPLES, 1);
        for (size_t i = 0; i < (size_t)SAMPLES * IN; i++)
            taken[i] = dtypes[d / 2] == LK_BF16 ? rounded(LK_BF16, x[i]) : x[i];
        lk_walk walk = net_walk(&wide, false);
        lk_pass pass = net_pass(&wide, 0, SAMPLES, taken, targets);
        lk_engine_forward(wide.engine, &walk, &pass, 1);
        walk = net_walk(&n, false);
        pass = net_pass(&n, 0, SAMPLES, x, targets);
        lk_engine_forward(n.engine, &walk, &pass, 1);
        const float *want = lk_engine_output(wide.engine, 0), *got = lk_engine_output(n.engine, 0);
        for (size_t i = 0; i < (size_t)SAMPLES * IN; i++)
            assert_true(got[i] == rounded(dtypes[d / 2], want[i]));
        net_close(&wide);
        net_close(&n);
    }
    lki_free(x);
    lki_free(taken);
}

/* Returns the difference between the gradients of two nets, relative to the first. */
static double distance(const net *a, const net *b, uint32_t term)
{
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < net_term_count(a, term); i++) {
        double x = (double)a->grads[0][term][i], y = (double)b->grads[0][term][i];
        difference += (x - y) * (x - y);
        norm += x * x;
    }
    return sqrt(difference / norm);
}

static void test_gradients_are_near_those_of_fp32(void **state)
{
    static const double within[] = { 0.02, 0.003 };
    float              *x        = noise_floats(4, (size_t)SAMPLES * IN);
    (void)state;
    for (size_t d = 0; d < 2; d++) {
        net nets[2] = { net_open(residual(), 1, NULL, SAMPLES, 1),
                        net_open_as(dtypes[d], residual(), 2, NULL, SAMPLES, 1) };
        for (size_t i = 0; i < 2; i++) {
            lk_walk walk = net_walk(&nets[i], true);
            lk_pass pass = net_pass(&nets[i], 0, SAMPLES, x, targets);
            lk_engine_forward(nets[i].engine, &walk, &pass, 1);
            lk_engine_backward(nets[i].engine, &walk, &pass, 1);
        }
        for (uint32_t t = 0; t < nets[0].term_count; t++) {
            double far = distance(&nets[0], &nets[1], t);
            if (!(far > 0.0 && far < within[d]))
                fail_msg("%s, term %u: %g", lk_dtype_name(dtypes[d]), t, far);
        }
        net_close(&nets[0]);
        net_close(&nets[1]);
    }
    lki_free(x);
}

/* Builds a net with a head in the loss block.  The loss block computes its weight's gradient in
 * forward. */
static lk_model *headed(uint64_t rows)
{
    lk_linear_cross_entropy_options options = { .classes = OUT, .scale = 0.3f, .rows = rows };
    lk_model                       *model;
    MUST(lk_model_new(&model, "narrow", (lk_shape){ 1, { IN } }, false));
    lk_value x = linear(model, "a", IN, "gelu_tanh", 0);
    add1(model, &lk_block_linear_cross_entropy, "head", &options, sizeof options, x);
    return model;
}

/* The weight's gradient is a product over the rows, of which some are computed at a time. */
static void test_the_bits_do_not_depend_on_the_rows_at_a_time(void **state)
{
    enum { MANY = 75, WAYS = 3 };
    static const uint64_t rows[WAYS] = { 0, 5, 33 };
    int32_t               classes[MANY];
    float                *x = noise_floats(6, (size_t)MANY * IN);
    net                   nets[WAYS];
    (void)state;
    for (int32_t i = 0; i < MANY; i++)
        classes[i] = i % OUT;
    for (size_t way = 0; way < WAYS; way++) {
        nets[way]    = net_open_as(LK_BF16, headed(rows[way]), 1, NULL, MANY, 1);
        lk_walk walk = net_walk(&nets[way], true);
        lk_pass pass = net_pass(&nets[way], 0, MANY, x, classes);
        lk_engine_forward(nets[way].engine, &walk, &pass, 1);
        lk_engine_backward(nets[way].engine, &walk, &pass, 1);
        for (uint32_t t = 0; t < nets[0].term_count; t++)
            assert_memory_equal(nets[way].grads[0][t], nets[0].grads[0][t],
                                net_term_count(&nets[0], t) * sizeof(float));
    }
    for (size_t way = 0; way < WAYS; way++)
        net_close(&nets[way]);
    lki_free(x);
}

static net scaled(lk_dtype dtype, lk_model *model, const float *x, float scale)
{
    net     n       = net_open_as(dtype, model, 1, NULL, SAMPLES, 1);
    lk_walk walk    = net_walk(&n, true);
    lk_pass pass    = net_pass(&n, 0, SAMPLES, x, targets);
    walk.loss_scale = scale;
    lk_engine_forward(n.engine, &walk, &pass, 1);
    lk_engine_backward(n.engine, &walk, &pass, 1);
    return n;
}

static size_t zeros(const net *n, uint32_t term)
{
    size_t count = 0;
    for (size_t i = 0; i < net_term_count(n, term); i++)
        count += n->grads[0][term][i] == 0;
    return count;
}

/* Checks that in FP32 every gradient is multiplied by exactly the loss scale.  Expects that in fp16
 * the gradients that backward computes last are all 0 if the loss scale is 2^-26, and mostly not 0
 * if it is 2^-8. */
static void test_a_loss_scale_scales_every_gradient(void **state)
{
    float *x = noise_floats(5, (size_t)SAMPLES * IN);
    (void)state;
    for (int m = 0; m < 2; m++) {
        net plain = scaled(LK_F32, m == 0 ? residual() : headed(0), x, 0);
        net large = scaled(LK_F32, m == 0 ? residual() : headed(0), x, 256);
        for (uint32_t t = 0; t < plain.term_count; t++)
            for (size_t i = 0; i < net_term_count(&plain, t); i++)
                assert_true(large.grads[0][t][i] == 256 * plain.grads[0][t][i]);
        net tiny = scaled(LK_F16, m == 0 ? residual() : headed(0), x, 0x1p-26f);
        net kept = scaled(LK_F16, m == 0 ? residual() : headed(0), x, 0x1p-8f);
        uint32_t first = plain.term_count - 1; /* the term that backward computes last */
        assert_int_equal(zeros(&tiny, first), net_term_count(&tiny, first));
        assert_true(zeros(&kept, first) < net_term_count(&kept, first) / 4);
        net_close(&plain);
        net_close(&large);
        net_close(&tiny);
        net_close(&kept);
    }
    lki_free(x);
}

/* A block that reads its parameter in FP32, so that a shared table is stored as FP32. */
static lk_status wide_plan(lk_plan *plan)
{
    lk_plan_output(plan, lk_plan_block(plan)->x[0]);
    return lk_plan_param_shared(plan, "wpe.weight", (lk_shape){ 2, { SAMPLES, IN } });
}

static void wide_forward(const lk_block_call *call)
{
    const float *x = call->x[0];
    float       *y = call->y;
    for (size_t i = 0; i < call->samples * (size_t)SAMPLES * IN; i++)
        y[i] = x[i] + call->params[0][i % (SAMPLES * IN)];
}

static void wide_backward(const lk_block_call *call)
{
    const float *dy = call->dy;
    float       *dx = call->dx[0];
    for (size_t i = 0; i < call->samples * (size_t)SAMPLES * IN; i++) {
        dx[i] = call->add[0] ? dx[i] + dy[i] : dy[i];
        call->grads[0][i % (SAMPLES * IN)] += dy[i];
    }
}

static const lk_block_type wide_type = {
    .name = "wide", .plan = wide_plan, .forward = wide_forward, .backward = wide_backward
};

/* Builds a net with all blocks that read matrices: embeddings, weights in both orders, a tied
 * head. */
static lk_model *of_tokens(bool shares)
{
    lk_embedding_options            tables = { .vocabulary = OUT, .width = IN };
    lk_linear_options               turned = { .out = IN, .transposed = true };
    lk_linear_cross_entropy_options head   = { .classes = OUT, .shared = "wte.weight" };
    lk_model                       *model;
    MUST(lk_model_new(&model, "narrow", (lk_shape){ 1, { SAMPLES } }, true));
    lk_value x = add1(model, &lk_block_embedding, "", &tables, sizeof tables, 0);
    if (shares)
        x = add1(model, &wide_type, "wide", NULL, 0, x);
    x = linear(model, "a", 3 * IN, "gelu_tanh", x);
    x = add1(model, &lk_block_linear, "b", &turned, sizeof turned, x);
    x = add1(model, &lk_block_layernorm, "ln", NULL, 0, x);
    add1(model, &lk_block_linear_cross_entropy, "head", &head, sizeof head, x);
    return model;
}

/* Stores all parameters that allow it as bf16, and returns their number. */
static uint32_t keep_narrow(net *n, const uint16_t **narrow)
{
    uint32_t        count, kept = 0;
    const lk_param *params = lk_model_params(n->model, &count);
    for (uint32_t p = 0; p < count; p++) {
        size_t    size = lk_shape_count(params[p].shape);
        uint16_t *to;
        if (!params[p].bf16)
            continue;
        kept++;
        MUST(LKI_NEW(&to, size, "a narrow parameter"));
        for (size_t i = 0; i < size; i++)
            to[i] = lki_bf16_narrow(n->params[p][i]);
        narrow[p] = to;
        lki_free(net_param(n, p));
        n->params[p] = NULL;
    }
    return kept;
}

static double run_tokens(net *n, const uint16_t *const *narrow)
{
    static const int32_t tokens[2 * SAMPLES] = { 0, 3, 3, 1, 2, 2, 0, 4, 6, 1 };
    static const int32_t next[2 * SAMPLES]   = { 3, 3, 1, 2, 5, 0, 4, 6, 1, 1 };
    lk_walk              walk                = net_walk(n, true);
    lk_pass              pass                = net_pass(n, 0, 2, tokens, next);
    walk.params_bf16 = narrow;
    lk_engine_forward(n->engine, &walk, &pass, 1);
    lk_engine_backward(n->engine, &walk, &pass, 1);
    return pass.loss_sum;
}

static void test_parameters_may_be_kept_as_bf16(void **state)
{
    (void)state;
    for (int shares = 0; shares < 2; shares++) {
        const uint16_t *narrow[16] = { NULL };
        net  wide = net_open_as(LK_BF16, of_tokens(shares), 1, NULL, 2, 1);
        net  kept = net_open_as(LK_BF16, of_tokens(shares), 2, NULL, 2, 1);
        assert_int_equal(keep_narrow(&kept, narrow), shares ? 3 : 4);
        assert_true((kept.params[1] != NULL) == (shares != 0)); /* wpe */
        assert_true(run_tokens(&wide, NULL) == run_tokens(&kept, narrow));
        for (uint32_t t = 0; t < wide.term_count; t++)
            assert_memory_equal(wide.grads[0][t], kept.grads[0][t],
                                net_term_count(&wide, t) * sizeof(float));
        for (size_t p = 0; p < 16; p++)
            lki_free((void *)(uintptr_t)narrow[p]);
        net_close(&wide);
        net_close(&kept);
    }
}

static void test_other_types_are_refused(void **state)
{
    lk_exec   *exec;
    lk_engine *engine;
    lk_model  *model = residual();
    (void)state;
    MUST(lk_exec_open(&exec, 1, NULL));
    assert_int_equal(lk_engine_open(&engine, model, exec, LK_F64, 1, 1), LK_EINVAL);
    assert_null(engine);
    assert_non_null(strstr(lk_error_last()->message, "not F64"));
    lk_exec_free(exec);
    lk_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_are_rounded_once),
        cmocka_unit_test(test_gradients_are_near_those_of_fp32),
        cmocka_unit_test(test_the_bits_do_not_depend_on_the_rows_at_a_time),
        cmocka_unit_test(test_a_loss_scale_scales_every_gradient),
        cmocka_unit_test(test_parameters_may_be_kept_as_bf16),
        cmocka_unit_test(test_other_types_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

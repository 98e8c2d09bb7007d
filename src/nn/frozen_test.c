/* frozen_test.c -- tests models with frozen parameters.
 *
 * Goal:   losses and the gradients of the other parameters have the bits of a model without frozen
 *         parameters.  Frozen ones are not among the parameters, and have no terms.
 * Method: a small decoder, of which one block is trainable, against the same with all trainable.
 */
#include "nn/nn_testing.h"

enum { TIME = 6, WIDTH = 8, VOCABULARY = 11, SAMPLES = 3 };

static const int32_t tokens[SAMPLES * TIME + 1] = { 0, 3, 5, 9, 10, 2, 4, 4, 1, 7,
                                                    6, 8, 5, 0, 2,  10, 9, 3, 1 };

static lk_value linear(lk_model *model, const char *name, const char *activation, lk_value x,
                       lk_value added)
{
    lk_linear_options options = { .out = WIDTH, .activation = activation };
    return added == 0 ? add1(model, &lk_block_linear, name, &options, sizeof options, x)
                      : add2(model, &lk_block_linear, name, &options, sizeof options, x, added);
}

/* Builds the model.  With `frozen`, only the block "middle" is trainable. */
static lk_model *build(bool frozen, bool segments)
{
    lk_embedding_options embedding = { .vocabulary = VOCABULARY, .width = WIDTH };
    lk_rmsnorm_options   rms       = { .eps = 1e-5F };
    lk_linear_cross_entropy_options head = { .classes = VOCABULARY, .shared = "wte.weight" };
    lk_model            *model;
    MUST(lk_model_new(&model, "decoder", (lk_shape){ 1, { TIME } }, true));
    lk_model_freeze(model, frozen);
    lk_value x = add1(model, &lk_block_embedding, "", &embedding, sizeof embedding, 0);
    if (segments)
        lk_model_checkpoint_begin(model);
    lk_value h = add1(model, &lk_block_layernorm, "first", NULL, 0, x);
    h          = linear(model, "early", "gelu_tanh", h, 0);
    lk_model_freeze(model, false);
    h = linear(model, "middle", NULL, h, x);
    lk_model_freeze(model, frozen);
    if (segments)
        lk_model_checkpoint_begin(model);
    x = add1(model, &lk_block_layernorm, "second", NULL, 0, h);
    x = linear(model, "late", "relu", x, h);
    lk_model_checkpoint_end(model);
    x = add1(model, &lk_block_rmsnorm, "last", &rms, sizeof rms, x);
    add1(model, &lk_block_linear_cross_entropy, "head", &head, sizeof head, x);
    return model;
}

static uint32_t index_of(const lk_param *params, uint32_t count, const char *name)
{
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(params[i].name, name) == 0)
            return i;
    fail_msg("no parameter %s", name);
    return 0;
}

/* Returns the term of a parameter. */
static uint32_t term_of(const lk_model *model, const char *name)
{
    uint32_t            count, params;
    const lk_param     *all   = lk_model_params(model, &params);
    const lk_grad_term *terms = lk_model_terms(model, &count);
    for (uint32_t t = 0; t < count; t++)
        if (terms[t].param == index_of(all, params, name))
            return t;
    fail_msg("no term of %s", name);
    return 0;
}

static double step(net *n)
{
    lk_walk walk = net_walk(n, true);
    lk_pass pass = net_pass(n, 0, SAMPLES, tokens, tokens + 1);
    lk_engine_forward(n->engine, &walk, &pass, 1);
    lk_engine_backward(n->engine, &walk, &pass, 1);
    return pass.loss_sum;
}

static void compare(lk_dtype dtype, bool segments)
{
    static const char *const names[] = { "middle.weight", "middle.bias" };
    static const size_t      bytes[] = { WIDTH * WIDTH * sizeof(float), WIDTH * sizeof(float) };
    net             whole = net_open_as(dtype, build(false, segments), 1, NULL, SAMPLES, 1);
    net             part  = net_open_as(dtype, build(true, segments), 1, NULL, SAMPLES, 1);
    uint32_t        count;
    const lk_param *frozen = lk_model_frozen(part.model, &count);
    const lk_param *all    = lk_model_params(whole.model, &whole.param_count);
    const float   **values;

    MUST(LKI_NEW(&values, count, "frozen values"));
    for (uint32_t i = 0; i < count; i++)
        values[i] = whole.params[index_of(all, whole.param_count, frozen[i].name)];
    lk_engine_set_frozen(part.engine, values);
    for (uint32_t i = 0; i < 2; i++)
        memcpy(net_param(&part, i), whole.params[index_of(all, whole.param_count, names[i])],
               bytes[i]);
    double theirs = step(&whole), ours = step(&part);
    assert_memory_equal(&ours, &theirs, sizeof ours);
    for (uint32_t i = 0; i < 2; i++)
        assert_memory_equal(part.grads[0][term_of(part.model, names[i])],
                            whole.grads[0][term_of(whole.model, names[i])],
                            bytes[i]);
    lki_free(values);
    net_close(&whole);
    net_close(&part);
}

static void the_other_gradients_keep_their_bits(void **state)
{
    (void)state;
    compare(LK_F32, false);
    compare(LK_F32, true);
    compare(LK_BF16, false);
    compare(LK_F16, true);
}

static void strategies_do_not_see_frozen_parameters(void **state)
{
    uint32_t  count, reads[64];
    lk_model *model = build(true, false), *whole = build(false, false);
    (void)state;
    (void)lk_model_params(model, &count);
    assert_int_equal(count, 2);
    (void)lk_model_terms(model, &count);
    assert_int_equal(count, 2);
    assert_int_equal(lk_model_param_elements(model), WIDTH * WIDTH + WIDTH);
    assert_int_equal(lk_model_reads(model, reads), 2); /* forward and backward of "middle" */
    assert_int_equal(reads[0], 3);
    (void)lk_model_frozen(whole, &count);
    assert_int_equal(count, 0);
    lk_model_free(model);
    lk_model_free(whole);
}

static void names_are_unique_and_sharing_is_among_equals(void **state)
{
    lk_linear_options shared = { .out = VOCABULARY, .no_bias = true, .shared = "wte.weight" };
    lk_linear_options again  = { .out = 3 };
    lk_embedding_options embedding = { .vocabulary = VOCABULARY, .width = WIDTH };
    uint32_t  before, after;
    lk_value  x, out;
    lk_model *model;
    (void)state;
    MUST(lk_model_new(&model, "decoder", (lk_shape){ 1, { TIME } }, true));
    lk_model_freeze(model, true);
    x = add1(model, &lk_block_embedding, "", &embedding, sizeof embedding, 0);
    x = add1(model, &lk_block_linear, "a", &again, sizeof again, x);
    (void)lk_model_frozen(model, &before);
    assert_int_equal(lk_model_add(&out, model, &lk_block_linear, "a", &again, sizeof again, &x, 1),
                     LK_EINVAL);
    lk_model_freeze(model, false);
    assert_int_equal(lk_model_add(&out, model, &lk_block_linear, "a", &again, sizeof again, &x, 1),
                     LK_EINVAL);
    assert_non_null(strstr(lk_error_last()->message, "there is a parameter a.weight already"));
    assert_int_equal(lk_model_add(&out, model, &lk_block_linear, "head", &shared, sizeof shared,
                                  &x, 1), LK_EINVAL);
    (void)lk_model_frozen(model, &after);
    assert_int_equal(before, after);
    assert_int_equal(lk_model_param_elements(model), 0);
    lk_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_other_gradients_keep_their_bits),
        cmocka_unit_test(strategies_do_not_see_frozen_parameters),
        cmocka_unit_test(names_are_unique_and_sharing_is_among_equals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* model_test.c -- tests of building models: names, terms, shared parameters, and refused models. */
#include "nn/nn_testing.h"

static lk_model *model_of(lk_shape shape, bool tokens)
{
    lk_model *model;
    MUST(lk_model_new(&model, "test", shape, tokens));
    return model;
}

static lk_status add(lk_value *out, lk_model *model, const lk_block_type *type, const char *name,
                     const void *options, size_t bytes, lk_value x)
{
    return lk_model_add(out, model, type, name, options, bytes, &x, 1);
}

static void assert_says(lk_status got, lk_status want, const char *text)
{
    assert_int_equal(got, want);
    assert_int_equal(lk_error_last()->status, want);
    if (strstr(lk_error_last()->message, text) == NULL)
        fail_msg("\"%s\" is not in: %s", text, lk_error_last()->message);
}

/* A tied embedding and head: wte has two uses, and the head's term is first. */
static void test_terms_stand_in_the_order_of_backward(void **state)
{
    lk_embedding_options embedding = { .vocabulary = 5, .width = 6 };
    lk_linear_options    fc        = { .out = 6 };
    lk_linear_options    head      = { .out = 5, .no_bias = true, .shared = "wte.weight" };
    const lk_grad_term want[] = { { 0, 1, 2 }, { 2, 0, 1 }, { 3, 0, 1 }, { 0, 0, 0 }, { 1, 0, 0 } };
    const char *const    names[]   = { "wte.weight", "wpe.weight", "h.0.fc.weight", "h.0.fc.bias" };
    lk_model            *model     = model_of((lk_shape){ 1, { 4 } }, true);
    lk_value             v;
    uint32_t             count;
    (void)state;
    MUST(add(&v, model, &lk_block_embedding, "", &embedding, sizeof embedding, 0));
    MUST(add(&v, model, &lk_block_linear, "h.0.fc", &fc, sizeof fc, v));
    MUST(add(&v, model, &lk_block_linear, "head", &head, sizeof head, v));
    MUST(add(&v, model, &lk_block_cross_entropy, "", NULL, 0, v));
    assert_memory_equal(lk_model_terms(model, &count), want, sizeof want);
    assert_int_equal(count, 5);
    const lk_param *params = lk_model_params(model, &count);
    assert_int_equal(count, 4);
    for (uint32_t i = 0; i < count; i++) {
        assert_string_equal(params[i].name, names[i]);
        assert_int_equal(params[i].uses, i == 0 ? 2 : 1);
        assert_int_equal(params[i].no_decay, i == 3);
    }
    assert_int_equal(lk_model_param_elements(model), 5 * 6 + 4 * 6 + 6 * 6 + 6);
    assert_int_equal(lk_model_loss_rows(model), 4);
    lk_model_free(model);
}

static void test_a_refused_block_does_not_change_the_model(void **state)
{
    lk_linear_options fc = { .out = 4 }, bad = { .out = 5, .shared = "fc.weight" };
    lk_model         *model = model_of((lk_shape){ 1, { 4 } }, false);
    lk_value          v, ignored;
    uint32_t          count;
    (void)state;
    MUST(add(&v, model, &lk_block_linear, "fc", &fc, sizeof fc, 0));
    assert_says(add(&ignored, model, &lk_block_linear, "fc", &fc, sizeof fc, v), LK_EINVAL,
                "fc.weight");
    assert_says(add(&ignored, model, &lk_block_linear, "b", &bad, sizeof bad, v), LK_EINVAL,
                "(4, 4)");
    bad =
        /* the shared weight is accepted, but then the bias's name exists already */
        (lk_linear_options){ .out = 4, .shared = "fc.weight" };
    assert_says(add(&ignored, model, &lk_block_linear, "fc", &bad, sizeof bad, v), LK_EINVAL,
                "fc.bias");
    bad = (lk_linear_options){ .out = 4, .shared = "nothing" };
    assert_says(add(&ignored, model, &lk_block_linear, "b", &bad, sizeof bad, v), LK_EINVAL,
                "nothing");
    bad = (lk_linear_options){ .out = (uint64_t)1 << 45 };
    assert_says(add(&ignored, model, &lk_block_linear, "b", &bad, sizeof bad, v), LK_EINVAL,
                "b.weight");
    assert_says(add(&ignored, model, &lk_block_linear, "b", &fc, 3, v), LK_EINVAL, "3 bytes");
    assert_says(add(&ignored, model, &lk_block_linear, "b", &fc, sizeof fc, 7), LK_EINVAL,
                "value 7");
    (void)lk_model_params(model, &count);
    assert_int_equal(count, 2);
    assert_int_equal(lk_model_params(model, &count)[0].uses, 1);
    (void)lk_model_terms(model, &count);
    assert_int_equal(count, 2);
    assert_int_equal(lk_model_param_elements(model), 20);
    assert_int_equal(lk_model_block_count(model), 1);
    lk_model_free(model);
}

static void test_shapes_that_do_not_fit_are_named(void **state)
{
    lk_attention_options attention = { .heads = 4 };
    lk_attention_options masked    = { .heads = 8, .dropout = 0.1F };
    lk_conv_options      conv      = { .out = 2, .kernel = 5, .stride = 1 };
    lk_dropout_options   dropout   = { .p = 1.0F };
    lk_model            *model     = model_of((lk_shape){ 2, { 3, 9 } }, false);
    lk_model            *tokens    = model_of((lk_shape){ 1, { 3 } }, true);
    lk_value             v;
    (void)state;
    assert_says(add(&v, model, &lk_block_attention, "a", &attention, sizeof attention, 0),
                LK_EINVAL, "4 heads");
    assert_says(add(&v, model, &lk_block_conv, "c", &conv, sizeof conv, 0), LK_EINVAL, "(3, 9)");
    assert_says(add(&v, model, &lk_block_dropout, "", &dropout, sizeof dropout, 0), LK_EINVAL,
                "[0, 1)");
    lk_model *longest = model_of((lk_shape){ 2, { 1 << 20, 24 } }, false);
    assert_says(add(&v, longest, &lk_block_attention, "a", &masked, sizeof masked, 0), LK_EINVAL,
                "8796093022208 probabilities of a sample are more than dropout can tell apart");
    masked.dropout = 0;
    assert_int_equal(add(&v, longest, &lk_block_attention, "a", &masked, sizeof masked, 0), LK_OK);
    lk_model_free(longest);
    assert_says(add(&v, tokens, &lk_block_relu, "", NULL, 0, 0), LK_EINVAL, "token ids");
    lk_model_free(model);
    lk_model_free(tokens);
}

static void test_dropout_knows_its_last_layer(void **state)
{
    lk_dropout_options dropout = { .p = 0.1F };
    lk_model          *model   = model_of((lk_shape){ 1, { 4 } }, false);
    lk_value           v       = 0;
    (void)state;
    while (lk_model_block_count(model) + 1 < 1 << 16)
        MUST(add(&v, model, &lk_block_relu, "", NULL, 0, v));
    MUST(add(&v, model, &lk_block_dropout, "", &dropout, sizeof dropout, v));
    assert_says(add(&v, model, &lk_block_dropout, "", &dropout, sizeof dropout, v), LK_EINVAL,
                "dropout can tell 65536 blocks of a model apart, and this is block 65536");
    lk_model_free(model);
}

static lk_status open_with(lk_model *model, uint32_t micro_batch, uint32_t contexts)
{
    lk_exec   *exec;
    lk_engine *engine;
    MUST(lk_exec_open(&exec, 1, NULL));
    lk_status st = lk_engine_open(&engine, model, exec, LK_F32, micro_batch, contexts);
    assert_true((st == LK_OK) == (engine != NULL));
    lk_engine_free(engine);
    lk_exec_free(exec);
    return st;
}

static void test_an_engine_refuses_an_incomplete_model(void **state)
{
    lk_linear_options fc    = { .out = 4 };
    lk_model         *model = model_of((lk_shape){ 1, { 4 } }, false);
    lk_value          v, unread;
    (void)state;
    MUST(add(&v, model, &lk_block_linear, "fc", &fc, sizeof fc, 0));
    assert_says(open_with(model, 1, 1), LK_EINVAL, "no loss");
    assert_says(open_with(model, 0, 1), LK_EINVAL, "at least 1");
    MUST(add(&unread, model, &lk_block_linear, "unread", &fc, sizeof fc, v));
    MUST(add(&v, model, &lk_block_cross_entropy, "", NULL, 0, v));
    assert_says(open_with(model, 1, 1), LK_EINVAL, "\"unread\": nobody reads");
    assert_says(add(&v, model, &lk_block_linear, "more", &fc, sizeof fc, unread), LK_EINVAL,
                "last");
    lk_model_free(model);
}

static void test_impossible_memory_is_refused(void **state)
{
    lk_linear_options wide  = { .out = (uint64_t)1 << 38 }, out = { .out = 2 };
    lk_model         *model = model_of((lk_shape){ 1, { 1 } }, false);
    lk_model         *small = model_of((lk_shape){ 1, { 64 } }, false);
    lk_value          v;
    (void)state;
    MUST(add(&v, model, &lk_block_linear, "wide", &wide, sizeof wide, 0));
    MUST(add(&v, model, &lk_block_linear, "out", &out, sizeof out, v));
    MUST(add(&v, model, &lk_block_cross_entropy, "", NULL, 0, v));
    assert_says(open_with(model, UINT32_MAX, 1), LK_ENOMEM, "\"wide\"");
    assert_says(open_with(model, 32, 1), LK_ENOMEM, "GiB");
    MUST(add(&v, small, &lk_block_linear, "out", &out, sizeof out, 0));
    MUST(add(&v, small, &lk_block_cross_entropy, "", NULL, 0, v));
    assert_says(open_with(small, 1 << 24, UINT32_MAX), LK_ENOMEM, "GiB");
    MUST(open_with(small, 8, 2));
    lk_model_free(model);
    lk_model_free(small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_terms_stand_in_the_order_of_backward),
        cmocka_unit_test(test_a_refused_block_does_not_change_the_model),
        cmocka_unit_test(test_shapes_that_do_not_fit_are_named),
        cmocka_unit_test(test_dropout_knows_its_last_layer),
        cmocka_unit_test(test_an_engine_refuses_an_incomplete_model),
        cmocka_unit_test(test_impossible_memory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* models_test.c -- the built-in models against published sizes, names and shapes. */
#include "lockstep/models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

static lk_model *model_of(const char *name, const lk_model_options *options)
{
    lk_model *model;
    if (lk_model_build(&model, name, options) != LK_OK)
        fail_msg("%s: %s", name, lk_error_last()->message);
    return model;
}

static const lk_param *param_of(const lk_model *model, const char *name)
{
    uint32_t        count;
    const lk_param *params = lk_model_params(model, &count);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(params[i].name, name) == 0)
            return &params[i];
    fail_msg("no parameter %s", name);
    return NULL;
}

static void assert_shape(const lk_model *model, const char *name, lk_shape want)
{
    const lk_param *param = param_of(model, name);
    assert_int_equal(param->shape.rank, want.rank);
    for (uint32_t i = 0; i < want.rank; i++)
        assert_int_equal(param->shape.dims[i], want.dims[i]);
}

static void assert_refused(const char *name, lk_model_options options, const char *text)
{
    lk_model *model;
    options.struct_size = sizeof options;
    assert_int_equal(lk_model_build(&model, name, &options), LK_EINVAL);
    assert_null(model);
    if (strstr(lk_error_last()->message, text) == NULL)
        fail_msg("\"%s\" is not in: %s", text, lk_error_last()->message);
}

/* ---- gpt ---------------------------------------------------------------------------------- */

static const lk_model_options gpt2_small = { .struct_size = sizeof(lk_model_options),
                                             .input = { 1, { 1024 } },
                                             .tokens = true,
                                             .classes = 50257,
                                             .layers = 12,
                                             .heads = 12,
                                             .width = 768 };

static void test_gpt2_small_has_its_parameters(void **state)
{
    lk_model *model = model_of("gpt", &gpt2_small);
    uint32_t  count;
    (void)state;
    assert_int_equal(lk_model_param_elements(model), 124439808);
    assert_int_equal(lk_model_loss_rows(model), 1024);
    assert_shape(model, "wte.weight", (lk_shape){ 2, { 50257, 768 } });
    assert_shape(model, "wpe.weight", (lk_shape){ 2, { 1024, 768 } });
    assert_shape(model, "h.0.ln_1.weight", (lk_shape){ 1, { 768 } });
    assert_shape(model, "h.11.attn.c_attn.weight", (lk_shape){ 2, { 768, 2304 } });
    assert_shape(model, "h.11.attn.c_attn.bias", (lk_shape){ 1, { 2304 } });
    assert_shape(model, "h.3.attn.c_proj.weight", (lk_shape){ 2, { 768, 768 } });
    assert_shape(model, "h.3.ln_2.bias", (lk_shape){ 1, { 768 } });
    assert_shape(model, "h.7.mlp.c_fc.weight", (lk_shape){ 2, { 768, 3072 } });
    assert_shape(model, "h.7.mlp.c_proj.weight", (lk_shape){ 2, { 3072, 768 } });
    assert_shape(model, "ln_f.bias", (lk_shape){ 1, { 768 } });
    (void)lk_model_params(model, &count);
    assert_int_equal(count, 2 + 12 * 12 + 2);
    (void)lk_model_terms(model, &count);
    assert_int_equal(count, 2 + 12 * 12 + 2 + 1);
    lk_model_free(model);
}

static void test_gpt_ties_its_head_and_starts_as_gpt2_does(void **state)
{
    lk_model *model = model_of("gpt", &gpt2_small);
    uint32_t  count;
    (void)state;
    const lk_param     *params = lk_model_params(model, &count);
    const lk_grad_term *terms  = lk_model_terms(model, &count);
    assert_string_equal(params[0].name, "wte.weight");
    assert_int_equal(params[0].uses, 2);
    assert_true(terms[0].param == 0 && terms[0].use == 1);
    assert_true(terms[count - 2].param == 0 && terms[count - 2].use == 0);
    assert_true(terms[count - 1].param == 1 && terms[count - 1].use == 0);
    const lk_param *residual = param_of(model, "h.0.mlp.c_proj.weight");
    assert_int_equal(residual->init, LK_INIT_NORMAL);
    assert_true(residual->scale > 0.00408F && residual->scale < 0.00409F); /* 0.02 / sqrt(24) */
    assert_true(param_of(model, "h.0.mlp.c_fc.weight")->scale == 0.02F);
    assert_int_equal(param_of(model, "h.0.ln_1.weight")->init, LK_INIT_ONE);
    assert_int_equal(param_of(model, "h.0.mlp.c_fc.bias")->init, LK_INIT_ZERO);
    assert_true(param_of(model, "h.0.ln_1.weight")->no_decay);
    assert_false(param_of(model, "wte.weight")->no_decay);
    lk_model_free(model);
}

static void test_gpt_has_dropout_only_when_asked(void **state)
{
    lk_model_options options = { .struct_size = sizeof(lk_model_options),
                                 .input = { 1, { 8 } }, .tokens = true, .classes = 256 };
    lk_model        *model   = model_of("gpt", &options);
    uint32_t         blocks  = lk_model_block_count(model);
    (void)state;
    assert_int_equal(blocks, 1 + 4 * 7 + 2);
    lk_model_free(model);
    options.dropout = 0.1F;
    model           = model_of("gpt", &options);
    assert_int_equal(lk_model_block_count(model), blocks + 1 + 4 * 4); /* plus the sums */
    lk_model_free(model);
}

/* ---- llama -------------------------------------------------------------------------------- */

/* Sizes of published models, from their configurations, and their numbers of parameters. */
static const struct {
    size_t   elements;
    uint32_t classes, layers, heads, kv_heads, width, ffn, head_size;
    bool     tie, qkv_bias, qk_norm;
} published[] = {
    { 6738415616, 32000, 32, 32, 32, 4096, 11008, 0, false, false, false }, /* Llama 2 7B */
    { 1235814400, 128256, 16, 32, 8, 2048, 8192, 0, true, false, false },   /* Llama 3.2 1B */
    { 494032768, 151936, 24, 14, 2, 896, 4864, 0, true, true, false },      /* Qwen2.5 0.5B */
    { 596049920, 151936, 28, 16, 8, 1024, 3072, 128, true, false, true },   /* Qwen3 0.6B */
    { 134515008, 49152, 30, 9, 3, 576, 1536, 0, true, false, false },       /* SmolLM2 135M */
};

static void test_llamas_have_their_parameters(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        lk_model_options options = { .struct_size = sizeof options, .input = { 1, { 32 } },
                                     .tokens    = true,
                                     .classes   = published[i].classes,
                                     .layers    = published[i].layers,
                                     .heads     = published[i].heads,
                                     .kv_heads  = published[i].kv_heads,
                                     .width     = published[i].width,
                                     .ffn       = published[i].ffn,
                                     .head_size = published[i].head_size,
                                     .tie       = published[i].tie,
                                     .qkv_bias  = published[i].qkv_bias,
                                     .qk_norm   = published[i].qk_norm };
        lk_model        *model   = model_of("llama", &options);
        assert_int_equal(lk_model_param_elements(model), published[i].elements);
        lk_model_free(model);
    }
}

static void test_llama_has_the_names_of_hugging_face(void **state)
{
    lk_model_options options = { .struct_size = sizeof options, .input = { 1, { 8 } },
                                 .tokens = true, .classes = 256, .heads = 4, .kv_heads = 2,
                                 .head_size = 48, .qkv_bias = true, .qk_norm = true };
    lk_model        *model   = model_of("llama", &options);
    uint32_t         count;
    (void)state;
    assert_shape(model, "model.embed_tokens.weight", (lk_shape){ 2, { 256, 128 } });
    assert_shape(model, "model.layers.0.input_layernorm.weight", (lk_shape){ 1, { 128 } });
    assert_shape(model, "model.layers.0.self_attn.q_proj.weight", (lk_shape){ 2, { 192, 128 } });
    assert_shape(model, "model.layers.1.self_attn.k_proj.weight", (lk_shape){ 2, { 96, 128 } });
    assert_shape(model, "model.layers.2.self_attn.v_proj.bias", (lk_shape){ 1, { 96 } });
    assert_shape(model, "model.layers.2.self_attn.q_norm.weight", (lk_shape){ 1, { 48 } });
    assert_shape(model, "model.layers.2.self_attn.k_norm.weight", (lk_shape){ 1, { 48 } });
    assert_shape(model, "model.layers.3.self_attn.o_proj.weight", (lk_shape){ 2, { 128, 192 } });
    assert_shape(model, "model.layers.3.post_attention_layernorm.weight", (lk_shape){ 1, { 128 } });
    assert_shape(model, "model.layers.3.mlp.gate_proj.weight", (lk_shape){ 2, { 352, 128 } });
    assert_shape(model, "model.layers.3.mlp.up_proj.weight", (lk_shape){ 2, { 352, 128 } });
    assert_shape(model, "model.layers.3.mlp.down_proj.weight", (lk_shape){ 2, { 128, 352 } });
    assert_shape(model, "model.norm.weight", (lk_shape){ 1, { 128 } });
    assert_shape(model, "lm_head.weight", (lk_shape){ 2, { 256, 128 } });
    (void)lk_model_params(model, &count);
    assert_int_equal(count, 1 + 4 * (2 + 4 + 3 + 2 + 3) + 2);
    assert_true(param_of(model, "model.layers.0.mlp.down_proj.weight")->scale == 0.02F);
    assert_true(param_of(model, "model.norm.weight")->no_decay);
    lk_model_free(model);
}

static void test_llama_refuses_heads_that_do_not_fit(void **state)
{
    const lk_model_options text = { .input = { 1, { 8 } }, .tokens = true, .classes = 256 };
    lk_model_options       o;
    (void)state;
    assert_refused("llama", (lk_model_options){ .input = { 1, { 8 } }, .classes = 9 }, "tokens");
    o          = text;
    o.heads    = 3;
    o.width    = 64;
    assert_refused("llama", o, "66 would do");
    o          = text;
    o.heads    = 4;
    o.kv_heads = 3;
    assert_refused("llama", o, "a divisor of 4");
    o           = text;
    o.head_size = 15;
    assert_refused("llama", o, "even number");
    o             = text;
    o.rope_factor = 0.5F;
    assert_refused("llama", o, "`rope_factor`");
    o          = text;
    o.norm_eps = 2;
    assert_refused("llama", o, "`norm_eps`");
}

/* ---- resnet ------------------------------------------------------------------------------- */

static size_t resnet_elements(uint32_t depth, uint64_t side, uint64_t channels, uint32_t classes)
{
    lk_model_options options = { .struct_size = sizeof(lk_model_options),
                                 .input = { 3, { side, side, channels } }, .classes = classes,
                                 .depth = depth };
    lk_model        *model   = model_of("resnet", &options);
    size_t           count   = lk_model_param_elements(model);
    lk_model_free(model);
    return count;
}

static void test_resnets_have_their_parameters(void **state)
{
    (void)state;
    assert_int_equal(resnet_elements(0, 32, 3, 10), 269722);
    assert_int_equal(resnet_elements(20, 32, 3, 10), 269722);
    assert_int_equal(resnet_elements(32, 32, 3, 10), 464154);
    assert_int_equal(resnet_elements(56, 32, 3, 10), 853018);
    assert_int_equal(resnet_elements(110, 32, 3, 10), 1727962);
    assert_int_equal(resnet_elements(20, 28, 1, 10), 269722 - 2 * 9 * 16);
    assert_int_equal(resnet_elements(18, 224, 3, 1000), 11689512);
    assert_int_equal(resnet_elements(18, 32, 3, 10), 11173962); /* a 3x3 stem */
    assert_int_equal(resnet_elements(34, 224, 3, 1000), 21797672);
    assert_int_equal(resnet_elements(50, 224, 3, 1000), 25557032);
    assert_int_equal(resnet_elements(101, 224, 3, 1000), 44549160);
    assert_int_equal(resnet_elements(152, 224, 3, 1000), 60192808);
}

static void test_resnet18_has_the_usual_parameter_names(void **state)
{
    lk_model_options options = { .struct_size = sizeof(lk_model_options),
                                 .input = { 3, { 224, 224, 3 } }, .classes = 1000, .depth = 18 };
    lk_model        *model   = model_of("resnet", &options);
    uint32_t         count;
    (void)state;
    assert_shape(model, "conv1.weight", (lk_shape){ 4, { 64, 3, 7, 7 } });
    assert_shape(model, "bn1.weight", (lk_shape){ 1, { 64 } });
    assert_shape(model, "layer1.0.conv1.weight", (lk_shape){ 4, { 64, 64, 3, 3 } });
    assert_shape(model, "layer1.0.bn1.bias", (lk_shape){ 1, { 64 } });
    assert_shape(model, "layer2.0.downsample.0.weight", (lk_shape){ 4, { 128, 64, 1, 1 } });
    assert_shape(model, "layer2.0.downsample.1.weight", (lk_shape){ 1, { 128 } });
    assert_shape(model, "layer4.1.conv2.weight", (lk_shape){ 4, { 512, 512, 3, 3 } });
    assert_shape(model, "fc.weight", (lk_shape){ 2, { 1000, 512 } });
    assert_shape(model, "fc.bias", (lk_shape){ 1, { 1000 } });
    const lk_state *states = lk_model_states(model, &count);
    assert_int_equal(count, 2 * 20);
    assert_string_equal(states[0].name, "bn1.running_mean");
    assert_string_equal(states[1].name, "bn1.running_var");
    assert_true(states[0].initial == 0.0F && states[1].initial == 1.0F);
    assert_true(states[0].momentum == 0.1F && states[0].count == 64);
    const lk_param *conv = param_of(model, "layer1.0.conv1.weight");
    assert_int_equal(conv->init, LK_INIT_NORMAL);
    assert_true(conv->scale > 0.0589F && conv->scale < 0.0590F); /* sqrt(2 / (9 * 64)) */
    lk_model_free(model);
}

static void test_bottlenecks_have_the_usual_parameter_names(void **state)
{
    lk_model_options options = { .struct_size = sizeof(lk_model_options),
                                 .input = { 3, { 64, 64, 3 } }, .classes = 7, .depth = 50,
                                 .zero_gamma = true };
    lk_model        *model   = model_of("resnet", &options);
    uint32_t         count;
    (void)state;
    assert_shape(model, "conv1.weight", (lk_shape){ 4, { 64, 3, 7, 7 } });
    assert_shape(model, "layer1.0.conv1.weight", (lk_shape){ 4, { 64, 64, 1, 1 } });
    assert_shape(model, "layer1.0.conv2.weight", (lk_shape){ 4, { 64, 64, 3, 3 } });
    assert_shape(model, "layer1.0.conv3.weight", (lk_shape){ 4, { 256, 64, 1, 1 } });
    assert_shape(model, "layer1.0.downsample.0.weight", (lk_shape){ 4, { 256, 64, 1, 1 } });
    assert_shape(model, "layer3.5.conv1.weight", (lk_shape){ 4, { 256, 1024, 1, 1 } });
    assert_shape(model, "layer4.0.downsample.0.weight", (lk_shape){ 4, { 2048, 1024, 1, 1 } });
    assert_shape(model, "fc.weight", (lk_shape){ 2, { 7, 2048 } });
    (void)lk_model_states(model, &count);
    assert_int_equal(count, 2 * 53);
    assert_int_equal(param_of(model, "layer1.0.bn2.weight")->init, LK_INIT_ONE);
    assert_int_equal(param_of(model, "layer1.0.bn3.weight")->init, LK_INIT_ZERO);
    assert_int_equal(param_of(model, "layer1.0.downsample.1.weight")->init, LK_INIT_ONE);
    lk_model_free(model);
}

static void test_zero_gamma_is_for_the_last_norm_of_a_block(void **state)
{
    lk_model_options options = { .struct_size = sizeof(lk_model_options),
                                 .input = { 3, { 32, 32, 3 } }, .classes = 10, .zero_gamma = true };
    lk_model        *model   = model_of("resnet", &options);
    (void)state;
    assert_int_equal(param_of(model, "layer1.0.bn1.weight")->init, LK_INIT_ONE);
    assert_int_equal(param_of(model, "layer1.0.bn2.weight")->init, LK_INIT_ZERO);
    lk_model_free(model);
}

/* ---- mlp ---------------------------------------------------------------------------------- */

static void test_mlp_has_its_parameters(void **state)
{
    lk_model_options options = { .struct_size = sizeof(lk_model_options),
                                 .input = { 3, { 28, 28, 1 } }, .classes = 10 };
    lk_model        *model   = model_of("mlp", &options);
    (void)state;
    assert_shape(model, "fc0.weight", (lk_shape){ 2, { 512, 784 } });
    assert_shape(model, "fc1.weight", (lk_shape){ 2, { 512, 512 } });
    assert_shape(model, "fc2.bias", (lk_shape){ 1, { 10 } });
    const lk_param *weight = param_of(model, "fc0.weight"), *bias = param_of(model, "fc0.bias");
    assert_true(weight->init == LK_INIT_UNIFORM && bias->init == LK_INIT_UNIFORM);
    assert_true(weight->scale == 1.0F / 28.0F && bias->scale == weight->scale);
    assert_int_equal(lk_model_param_elements(model), 785 * 512 + 513 * 512 + 513 * 10);
    lk_model_free(model);
    options.hidden[0]    = 32;
    options.hidden_count = 1;
    model                = model_of("mlp", &options);
    assert_int_equal(lk_model_param_elements(model), 785 * 32 + 33 * 10);
    lk_model_free(model);
}

/* ---- Errors ------------------------------------------------------------------------------- */

static void test_options_that_do_not_fit_say_what_to_change(void **state)
{
    const lk_shape image = { 3, { 32, 32, 3 } }, text = { 1, { 16 } };
    (void)state;
    assert_refused("vgg", (lk_model_options){ .input = image, .classes = 10 },
                   "gpt, llama, resnet and mlp");
    assert_refused("gpt", (lk_model_options){ .input = image, .classes = 10 }, "`data.source`");
    assert_refused(
        "gpt",
        (lk_model_options){ .input = text, .tokens = true, .classes = 9, .width = 100, .heads = 3 },
        "`heads`");
    assert_refused("gpt", (lk_model_options){ .input = text, .tokens = true, .classes = 9,
                                              .dropout = 1.0F }, "`dropout`");
    assert_refused("resnet", (lk_model_options){ .input = text, .classes = 10 }, "images");
    assert_refused("resnet", (lk_model_options){ .input = image, .classes = 10, .depth = 21 },
                   "`depth` 21");
    assert_refused("resnet", (lk_model_options){ .input = image, .classes = 1 }, "labels");
    assert_refused("mlp", (lk_model_options){ .input = text, .tokens = true, .classes = 9 },
                   "tokens");
    assert_refused("mlp", (lk_model_options){ .input = image, .classes = 9, .hidden_count = 2,
                                              .hidden = { 8, 0 } }, "`hidden`");
}

/* Sizes of a bare model can be computed, although no engine may open the model. */
static void test_an_engine_refuses_a_bare_model(void **state)
{
    (void)state;
    lk_model_options options = { .struct_size = sizeof(lk_model_options),
                                 .parameters = 1000, .largest_layer = 400 };
    lk_model        *model   = NULL;
    lk_exec         *exec    = NULL;
    lk_engine       *engine  = NULL;
    assert_int_equal(lk_model_build(&model, "bare", &options), LK_OK);
    assert_int_equal(lk_model_param_elements(model), 1000);
    assert_int_equal(lk_model_block_count(model), 4); /* layers of 400, 400 and 200, and the loss */
    assert_int_equal(lk_exec_open(&exec, 1, NULL), LK_OK);
    assert_int_equal(lk_engine_open(&engine, model, exec, LK_F32, 1, 1), LK_EUNSUPPORTED);
    lk_exec_free(exec);
    lk_model_free(model);
    assert_refused("bare", (lk_model_options){ .parameters = 0 }, "without parameters");
}

static void test_the_list_of_built_in_models_ends(void **state)
{
    (void)state;
    assert_string_equal(lk_model_builtin(0), "gpt");
    assert_string_equal(lk_model_builtin(1), "llama");
    assert_string_equal(lk_model_builtin(2), "resnet");
    assert_string_equal(lk_model_builtin(3), "mlp");
    assert_null(lk_model_builtin(4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2_small_has_its_parameters),
        cmocka_unit_test(test_gpt_ties_its_head_and_starts_as_gpt2_does),
        cmocka_unit_test(test_gpt_has_dropout_only_when_asked),
        cmocka_unit_test(test_llamas_have_their_parameters),
        cmocka_unit_test(test_llama_has_the_names_of_hugging_face),
        cmocka_unit_test(test_llama_refuses_heads_that_do_not_fit),
        cmocka_unit_test(test_resnets_have_their_parameters),
        cmocka_unit_test(test_resnet18_has_the_usual_parameter_names),
        cmocka_unit_test(test_bottlenecks_have_the_usual_parameter_names),
        cmocka_unit_test(test_zero_gamma_is_for_the_last_norm_of_a_block),
        cmocka_unit_test(test_mlp_has_its_parameters),
        cmocka_unit_test(test_options_that_do_not_fit_say_what_to_change),
        cmocka_unit_test(test_an_engine_refuses_a_bare_model),
        cmocka_unit_test(test_the_list_of_built_in_models_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

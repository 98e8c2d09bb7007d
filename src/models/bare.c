/* bare.c -- a model for plans, of which only sizes are known.  It cannot run.
 *
 * A plan only reads the sizes of blocks, so the blocks of this model report sizes and compute
 * nothing.  They are layers of parameters of equal size, except for a smaller last one.  A token
 * takes 2 operations per parameter in forward and 4 in backward (Kaplan et al., Scaling Laws for
 * Neural Language Models, 2020, section 2.1).
 *
 * By default the number of layers is that of a GPT with as many parameters whose width is 128 times
 * its depth: 12 L (128 L)^2 parameters.  GPT-3 has this shape (Brown et al., Language Models are
 * Few-Shot Learners, 2020, table 2.1: 96 layers of 12288).
 */
#include <math.h>

#include "models/build.h"

enum { LAYERS_MAX = 4096, LOGITS = 2 };
/* to be multiplied by the cube of the number of layers */
#define PARAMETERS_OF_DEPTH (12.0 * 128 * 128)

typedef struct {
    uint64_t parameters;
    uint64_t tokens, activation_bytes; /* per sample */
} bare_layer;

static lk_status layer_plan(lk_plan *plan)
{
    const lk_block   *block = lk_plan_block(plan);
    const bare_layer *layer = block->options;
    lk_plan_output(plan, block->x[0]);
    return lk_plan_param(plan, "weight", (lk_shape){ 1, { layer->parameters } }, LK_INIT_ZERO, 0,
                         false);
}

static void layer_buffers(const lk_block *block, const lk_exec *exec, lk_dtype dtype,
                          uint32_t samples, size_t *saved, size_t *scratch)
{
    const bare_layer *layer = block->options;
    (void)exec;
    (void)dtype;
    *saved   = samples * (size_t)layer->activation_bytes;
    *scratch = 0;
}

static lk_block_flops layer_flops(const lk_block *block)
{
    const bare_layer *layer = block->options;
    const double      uses  = (double)layer->parameters * (double)layer->tokens;
    return (lk_block_flops){ .forward = 2 * uses, .weights = 4 * uses };
}

static const lk_block_type bare_block = {
    .name        = "bare",
    .plan        = layer_plan,
    .buffers     = layer_buffers,
    .flops       = layer_flops,
    .bf16        = true,
    .bf16_params = 1,
};

static uint64_t layers_of_gpt(uint64_t parameters)
{
    double layers = round(cbrt((double)parameters / PARAMETERS_OF_DEPTH));
    return layers < 1 ? 1 : (uint64_t)layers;
}

void lki_resolve_bare(lk_model_options *out, const lk_model_options *options)
{
    uint64_t layers = layers_of_gpt(options->parameters);

    out->parameters       = options->parameters;
    out->largest_layer    = (options->parameters + layers - 1) / layers;
    if (options->largest_layer > 0)
        out->largest_layer = options->largest_layer;
    out->sample_tokens    = options->sample_tokens > 0 ? options->sample_tokens : 1;
    out->activation_bytes = options->activation_bytes;
}

static lk_status check_options(const lk_model_options *options)
{
    if (options->parameters == 0)
        return lk_fail(LK_EINVAL, "a model without parameters: give how many there are");
    if (options->largest_layer > options->parameters)
        return lk_fail(LK_EINVAL, "the largest layer has %llu parameters, and the model %llu",
                       (unsigned long long)options->largest_layer,
                       (unsigned long long)options->parameters);
    if ((options->parameters - 1) / options->largest_layer >= LAYERS_MAX)
        return lk_fail(LK_EINVAL, "%llu parameters in layers of %llu are more than %d layers; give "
                       "larger ones", (unsigned long long)options->parameters,
                       (unsigned long long)options->largest_layer, (int)LAYERS_MAX);
    return LK_OK;
}

lk_status lki_build_bare(lk_model **out, const lk_model_options *options)
{
    lki_builder builder;
    LK_TRY(check_options(options));
    uint64_t layers = (options->parameters - 1) / options->largest_layer + 1;
    uint64_t left   = options->parameters;
    lk_value x      = 0;

    LK_TRY(lki_build_begin(&builder, "bare", (lk_shape){ 1, { LOGITS } }, false));
    for (uint64_t i = 0; i < layers; i++) {
        bare_layer layer = { .tokens           = options->sample_tokens,
                             .activation_bytes = options->activation_bytes / layers };
        layer.parameters = left < options->largest_layer ? left : options->largest_layer;
        left -= layer.parameters;
        x = lki_build(&builder, &bare_block, lki_name_of("layer%u", (uint32_t)i).text, &layer,
                      sizeof layer, x);
    }
    lki_build(&builder, &lk_block_cross_entropy, "", NULL, 0, x);
    return lki_build_end(&builder, out);
}

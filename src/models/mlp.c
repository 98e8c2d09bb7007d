/* mlp.c -- fully connected layers with ReLU (fc0, fc1, ...), and a last layer for the classes.
 *
 * Weights and biases are initialised uniformly in [-1/sqrt(fan_in), 1/sqrt(fan_in)), as in
 * torch.nn.Linear (Kaiming uniform with a = sqrt(5)).  An image is read as one row of values.
 */
#include <math.h>

#include "models/build.h"
#include "nn/model.h"

enum { HIDDEN_MAX = sizeof((lk_model_options *)0)->hidden / sizeof(uint32_t) };

static const uint32_t hidden_default[] = { 512, 512 };
enum { HIDDEN_DEFAULT = sizeof hidden_default / sizeof hidden_default[0] };

static lk_value layer(lki_builder *builder, uint32_t index, uint64_t in, uint64_t out,
                      const char *activation, lk_value x)
{
    lk_linear_options options = { .out = out, .activation = activation, .init = LK_INIT_UNIFORM,
                                  .scale = 1.0F / sqrtf((float)in) };
    return lki_build(builder, &lk_block_linear, lki_name_of("fc%u", index).text, &options,
                     sizeof options, x);
}

static const char *loss_name(lk_loss loss)
{
    return loss == LK_LOSS_MSE ? "mse" : loss == LK_LOSS_HUBER ? "huber" : "bce";
}

static lk_status check_numbers(const lk_model_options *options)
{
    if (options->loss == LK_LOSS_CROSS_ENTROPY)
        return lk_fail(LK_EINVAL, "mlp: `loss` cross-entropy needs classes, and the targets of "
                                  "`data.source` are numbers");
    if (options->label_smoothing != 0)
        return lk_fail(LK_EINVAL, "mlp: `label_smoothing` is for the loss cross-entropy, not %s",
                       loss_name(lk_loss_of(options->loss, true)));
    if (options->classes < 1)
        return lk_fail(LK_EINVAL, "mlp: a sample has no target");
    return LK_OK;
}

static lk_status check_options(const lk_model_options *options)
{
    if (options->tokens)
        return lk_fail(LK_EINVAL,
                       "mlp: it reads images or features, not tokens; train gpt on text");
    if (options->numbers)
        LK_TRY(check_numbers(options));
    else if (options->loss > LK_LOSS_CROSS_ENTROPY)
        return lk_fail(LK_EINVAL, "mlp: `loss` %s needs targets that are numbers, and those of "
                                  "`data.source` are classes; use a table (csv:FILE) with such a "
                                  "column, or the loss cross-entropy", loss_name(options->loss));
    else if (options->classes < 2)
        return lk_fail(LK_EINVAL,
                       "mlp: %u classes; the labels of `data.source` must have at least 2",
                       options->classes);
    if (options->hidden_count > HIDDEN_MAX)
        return lk_fail(LK_EINVAL, "mlp: `hidden` has %u layers; at most %d", options->hidden_count,
                       (int)HIDDEN_MAX);
    for (uint32_t i = 0; i < options->hidden_count; i++)
        if (options->hidden[i] == 0)
            return lk_fail(LK_EINVAL, "mlp: layer %u of `hidden` has width 0", i);
    return LK_OK;
}

void lki_resolve_mlp(lk_model_options *out, const lk_model_options *options)
{
    bool given        = options->hidden_count > 0;
    out->hidden_count = given ? options->hidden_count : HIDDEN_DEFAULT;
    for (uint32_t i = 0; i < HIDDEN_MAX && i < out->hidden_count; i++)
        out->hidden[i] = given ? options->hidden[i] : hidden_default[i];
    out->loss        = options->loss;
    out->huber_delta = options->huber_delta != 0 ? options->huber_delta : 1;
}

static void add_loss(lki_builder *builder, const lk_model_options *options, lk_value x)
{
    const lk_huber_options huber = { .delta = options->huber_delta };
    switch (lk_loss_of(options->loss, options->numbers)) {
    case LK_LOSS_MSE: lki_build(builder, &lk_block_mse, "", NULL, 0, x); break;
    case LK_LOSS_HUBER: lki_build(builder, &lk_block_huber, "", &huber, sizeof huber, x); break;
    case LK_LOSS_BCE: lki_build(builder, &lk_block_bce, "", NULL, 0, x); break;
    case LK_LOSS_AUTO:
    case LK_LOSS_CROSS_ENTROPY: lki_build_cross_entropy(builder, options, x); break;
    }
}

lk_status lki_build_mlp(lk_model **out, const lk_model_options *options)
{
    lki_builder builder;
    LK_TRY(check_options(options));
    lk_value x = 0;
    uint64_t in;
    lk_shape row = options->input;
    /* if the number of elements overflows, lk_model_add() refuses the original shape */
    if (lki_shape_elements(options->input, &in))
        row = (lk_shape){ 1, { in } };
    LK_TRY(lki_build_begin(&builder, "mlp", row, false));
    for (uint32_t i = 0; i < options->hidden_count; i++) {
        x  = layer(&builder, i, in, options->hidden[i], "relu", x);
        in = options->hidden[i];
    }
    x = layer(&builder, options->hidden_count, in, options->classes, NULL, x);
    add_loss(&builder, options, x);
    return lki_build_end(&builder, out);
}

/* linear.c -- y = x w + b, with an activation and a sum in the epilogue of the product.
 *
 * The weight is (out, in), as torch.nn.Linear stores it, or (in, out), as the Conv1D of GPT-2 does.
 * It may be an earlier block's weight, which then has one more gradient term (tied embeddings).
 * All leading dimensions of x are rows.  A second input is added within the product: y =
 * activation(x w + b) + x1, the end of a residual branch.
 *
 * Values saved for backward: none without an activation.  For ReLU, y is saved, because it is
 * positive exactly if the value before the activation is.  For GELU, and for ReLU with a second
 * input, the value before the activation is saved.
 *
 * In bf16 all three products multiply bf16 values into FP32 sums.  The weight is rounded
 * when a product reads it, unless it is already bf16.  The saved values and the gradient before the
 * activation are also bf16.
 */
#include <string.h>

#include "nn/blocks/blocks.h"

static const struct {
    const char    *name;
    lki_activation activation;
} activations[] = {
    { "relu", LKI_ACT_RELU }, { "gelu", LKI_ACT_GELU_ERF }, { "gelu_tanh", LKI_ACT_GELU_TANH }
};

static bool find_activation(const char *name, lki_activation *out)
{
    *out = LKI_ACT_NONE;
    if (name == NULL)
        return true;
    for (size_t i = 0; i < sizeof activations / sizeof activations[0]; i++) {
        if (strcmp(activations[i].name, name) == 0) {
            *out = activations[i].activation;
            return true;
        }
    }
    return false;
}

static lki_activation activation_of(const lk_block *block)
{
    const lk_linear_options *options = block->options;
    lki_activation           activation;
    bool                     known = find_activation(options->activation, &activation);
    LK_ASSERT(known);
    return activation;
}

static bool keeps_pre(const lk_block *block)
{
    lki_activation activation = activation_of(block);
    return activation == LKI_ACT_GELU_TANH || activation == LKI_ACT_GELU_ERF ||
           (activation == LKI_ACT_RELU && block->input_count == 2);
}

static lk_status linear_plan(lk_plan *plan)
{
    LK_TRY(lki_plan_options(plan, sizeof(lk_linear_options)));
    LK_TRY(lki_plan_inputs(plan, 1, 2));
    const lk_block          *block   = lk_plan_block(plan);
    const lk_linear_options *options = block->options;
    uint64_t                 in = lki_width(block->x[0]), out = options->out;
    lki_activation           activation;

    if (out == 0)
        return lk_plan_fail(plan, "out is 0; say how many values it puts out");
    if (!find_activation(options->activation, &activation))
        return lk_plan_fail(plan, "unknown activation %s; there are relu, gelu and gelu_tanh",
                            options->activation);
    if (options->shared != NULL && options->transposed)
        return lk_plan_fail(plan, "a shared weight is (out, in): not with transposed");

    lk_shape weight = { 2, { out, in } };
    if (options->transposed)
        weight = (lk_shape){ 2, { in, out } };
    if (options->shared != NULL)
        LK_TRY(lk_plan_param_shared(plan, options->shared, weight));
    else
        LK_TRY(lk_plan_param(plan, "weight", weight, options->init, options->scale, false));
    if (!options->no_bias) {
        lk_init init = options->init == LK_INIT_UNIFORM ? LK_INIT_UNIFORM : LK_INIT_ZERO;
        LK_TRY(lk_plan_param(plan, "bias", (lk_shape){ 1, { out } }, init, options->scale, true));
    }
    lk_shape y = block->x[0];
    if (y.rank == 0)
        y.rank = 1;
    y.dims[y.rank - 1] = out;
    if (block->input_count == 2 && !lki_same_shape(block->x[1], y))
        return lk_plan_fail(plan, "it adds %s to %s; they must have one shape",
                            lki_shape_describe(block->x[1]).text, lki_shape_describe(y).text);
    lk_plan_output(plan, y);
    if (activation != LKI_ACT_RELU || keeps_pre(block))
        lk_plan_output_unread(plan);
    return LK_OK;
}

static void linear_buffers(const lk_block *block, const lk_exec *exec, lk_dtype dtype,
                           uint32_t samples, size_t *saved, size_t *scratch)
{
    size_t bytes = samples * lk_shape_count(block->y) * lk_dtype_bytes(dtype);
    (void)exec;
    *saved   = keeps_pre(block) ? bytes : 0;
    *scratch = activation_of(block) != LKI_ACT_NONE ? bytes : 0;
}

/* Returns the arguments of a product with the weight, for y (forward) or dx (backward). */
static lki_gemm_args product_of(const lk_block *block, lk_dtype dtype, uint32_t samples,
                                bool backward)
{
    const lk_linear_options *options = block->options;
    size_t in = lki_width(block->x[0]), out = options->out;
    return (lki_gemm_args){ .operands    = dtype,
                            .result      = dtype,
                            .wide_b      = dtype == LK_BF16,
                            .transpose_b = backward ? options->transposed : !options->transposed,
                            .m           = samples * lki_rows(block->x[0]),
                            .n           = backward ? in : out,
                            .k           = backward ? out : in };
}

static size_t linear_pack_bytes(const lk_block *block, const lk_exec *exec, lk_dtype dtype,
                                uint32_t samples, bool backward)
{
    lki_gemm_args gemm = product_of(block, dtype, samples, backward);
    return lki_gemm_pack_bytes(exec, &gemm);
}

static void linear_forward(const lk_block_call *call)
{
    const lk_block          *block   = call->block;
    const lk_linear_options *options = block->options;
    lki_gemm_args gemm = product_of(block, call->dtype, call->samples, false);
    gemm.a          = call->x[0];
    gemm.c          = call->y;
    gemm.bias       = options->no_bias ? NULL : call->params[1];
    gemm.activation = activation_of(block);
    gemm.pre        = keeps_pre(block) && call->training ? call->saved : NULL;
    gemm.residual   = block->input_count == 2 ? call->x[1] : NULL;
    gemm.pack       = call->pack;
    lki_weight_of(call, 0, &gemm);
    lki_gemm(call->exec, &gemm);
}

/* Returns the gradient before the activation, and computes the bias's gradient in the same pass. */
static const void *before_activation(const lk_block_call *call, size_t rows, size_t out,
                                     const lki_parts *parts)
{
    const lk_linear_options *options    = call->block->options;
    lki_activation           activation = activation_of(call->block);
    const void              *at         = keeps_pre(call->block) ? call->saved : call->y;
    const bool               biased     = !options->no_bias && call->grads[1] != NULL;

    if (parts != NULL && biased) {
        lki_bias_backward_parts(call->exec, call->dtype, activation, out, at, call->dy,
                                call->scratch, call->grads[1], parts);
        return activation == LKI_ACT_NONE ? call->dy : call->scratch;
    }
    if (biased && call->write[1])
        memset(call->grads[1], 0, out * sizeof *call->grads[1]);
    if (biased)
        lki_bias_backward(call->exec, call->dtype, activation, rows, out, at, call->dy,
                          call->scratch, call->grads[1]);
    else if (activation != LKI_ACT_NONE)
        lki_activate_backward(call->exec, call->dtype, activation, rows * out, at, call->dy,
                              call->scratch, false);
    return activation == LKI_ACT_NONE ? call->dy : call->scratch;
}

/* Computes the gradient of the weight from dz, the gradient before the activation. */
static void weight_backward(const lk_block_call *call, const void *dz, size_t rows,
                            const lki_parts *parts)
{
    const lk_linear_options *options = call->block->options;
    const void *x = call->x[0];
    const size_t in = lki_width(call->block->x[0]), out = options->out;

    lki_gemm_args weight = { .operands = call->dtype, .transpose_a = true,
                             .accumulate = !call->write[0], .m = out, .n = in, .k = rows,
                             .a = dz, .b = x, .c = call->grads[0] };
    if (options->transposed) {
        weight.m = in;
        weight.n = out;
        weight.a = x;
        weight.b = dz;
    }
    if (parts != NULL)
        lki_gemm_parts(call->exec, &weight, parts);
    else
        lki_gemm(call->exec, &weight);
}

static void linear_backward(const lk_block_call *call)
{
    const lk_block          *block   = call->block;
    const lk_linear_options *options = block->options;
    size_t rows = call->samples * lki_rows(block->x[0]), out = options->out;
    lki_part_rows    room;
    const lki_parts *parts = lki_parts_of(&room, call, lki_rows(block->x[0]));
    const void      *dz    = before_activation(call, rows, out, parts); /* (rows, out) */

    if (call->grads[0] != NULL)
        weight_backward(call, dz, rows, parts);
    if (block->input_count == 2)
        lki_pass_gradient(call, 1, rows * out, call->dy);
    if (call->dx[0] == NULL)
        return;
    lki_gemm_args input = product_of(block, call->dtype, call->samples, true);
    input.accumulate = call->add[0];
    input.a          = dz;
    input.c          = call->dx[0];
    input.pack       = call->pack;
    lki_weight_of(call, 0, &input);
    lki_gemm(call->exec, &input);
}

static lk_block_flops linear_flops(const lk_block *block)
{
    const lk_linear_options *options = block->options;
    double each = 2 * (double)lki_rows(block->x[0]) * (double)lki_width(block->x[0]) *
                  (double)options->out;
    return (lk_block_flops){ .forward = each, .weights = each, .input = each };
}

const lk_block_type lk_block_linear = {
    .name         = "linear",
    .plan         = linear_plan,
    .buffers      = linear_buffers,
    .pack_bytes   = linear_pack_bytes,
    .forward      = linear_forward,
    .backward     = linear_backward,
    .residual     = true,
    .bf16         = true,
    .bf16_params  = 1,
    .writes_grads = true,
    .by_position  = true,
    .sums_parts   = true,
    .flops        = linear_flops,
};

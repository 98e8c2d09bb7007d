/* elementwise.c -- dropout, add, relu, gelu_tanh and scale: one output element for each input
 * element.
 *
 * All but gelu_tanh can work in place, because their backward passes need no x and replace dy by dx
 * element by element.
 */
#include "nn/blocks/blocks.h"

/* ---- Dropout ----------------------------------------------------------------------------- */

static lk_status dropout_plan(lk_plan *plan)
{
    LK_TRY(lki_plan_options(plan, sizeof(lk_dropout_options)));
    LK_TRY(lki_plan_inputs(plan, 1, 1));
    const lk_block           *block   = lk_plan_block(plan);
    const lk_dropout_options *options = block->options;

    LK_TRY(lki_plan_dropout(plan, "p", options->p, "values", lk_shape_count(block->x[0])));
    lk_plan_output(plan, block->x[0]);
    lk_plan_output_unread(plan);
    return LK_OK;
}

static lki_dropout_key dropout_key(const lk_block_call *call)
{
    const lk_dropout_options *options = call->block->options;
    return (lki_dropout_key){ .seed = call->seed, .step = call->step,
                              .first_slot = call->first_slot, .layer = call->block->layer,
                              .p = options->p };
}

static void dropout_forward(const lk_block_call *call)
{
    lki_dropout_key key   = dropout_key(call);
    size_t          count = lk_shape_count(call->block->y);
    if (call->training && key.p > 0.0F)
        lki_dropout(call->exec, call->dtype, key, call->samples, count, call->x[0], call->y, false);
    else
        lki_copy(call, call->samples * count, call->x[0], call->y);
}

/* Recomputes the mask from its key, because the mask is not stored. */
static void dropout_backward(const lk_block_call *call)
{
    lki_dropout_key key   = dropout_key(call);
    size_t          count = lk_shape_count(call->block->y);
    if (call->dx[0] == NULL)
        return;
    if (call->training && key.p > 0.0F)
        lki_dropout(call->exec, call->dtype, key, call->samples, count, call->dy, call->dx[0],
                    call->add[0]);
    else
        lki_pass_gradient(call, 0, call->samples * count, call->dy);
}

const lk_block_type lk_block_dropout = {
    .name     = "dropout",
    .plan     = dropout_plan,
    .forward  = dropout_forward,
    .backward = dropout_backward,
    .inplace  = true,
    .bf16     = true,
    .by_position = true,
};

/* ---- Add --------------------------------------------------------------------------------- */

static lk_status add_plan(lk_plan *plan)
{
    const lk_block *block = lk_plan_block(plan);
    LK_TRY(lki_plan_inputs(plan, 2, 2));
    if (!lki_same_shape(block->x[0], block->x[1]))
        return lk_plan_fail(plan, "it adds values of one shape, not %s and %s",
                            lki_shape_describe(block->x[0]).text,
                            lki_shape_describe(block->x[1]).text);
    lk_plan_output(plan, block->x[0]);
    lk_plan_output_unread(plan);
    return LK_OK;
}

static void add_forward(const lk_block_call *call)
{
    lki_add(call->exec, call->dtype, lki_elements(call, call->block->y), call->x[0], call->x[1],
            call->y);
}

/* Passes dy to both inputs.  dx[0] may be the memory of dy, so it is written last. */
static void add_backward(const lk_block_call *call)
{
    size_t count = lki_elements(call, call->block->y);
    if (call->dx[0] != call->dx[1]) {
        lki_pass_gradient(call, 1, count, call->dy);
        lki_pass_gradient(call, 0, count, call->dy);
    /* a value added to itself: the first gradient is written, the second is added */
    } else {
        lki_pass_gradient(call, 0, count, call->dy);
        lki_pass_gradient(call, 1, count, call->dy);
    }
}

const lk_block_type lk_block_add = {
    .name     = "add",
    .plan     = add_plan,
    .forward  = add_forward,
    .backward = add_backward,
    .inplace  = true,
    .bf16     = true,
    .by_position = true,
    .sums_parts = true,
};

/* ---- ReLU -------------------------------------------------------------------------------- */

static lk_status relu_plan(lk_plan *plan)
{
    LK_TRY(lki_plan_inputs(plan, 1, 1));
    lk_plan_output(plan, lk_plan_block(plan)->x[0]); /* backward reads its sign */
    return LK_OK;
}

static void relu_forward(const lk_block_call *call)
{
    size_t count = lki_elements(call, call->block->y);
    lki_activate(call->exec, call->dtype, LKI_ACT_RELU, count, call->x[0], call->y);
}

static void relu_backward(const lk_block_call *call)
{
    size_t count = lki_elements(call, call->block->y);
    if (call->dx[0] != NULL)
        lki_activate_backward(call->exec, call->dtype, LKI_ACT_RELU, count, call->y, call->dy,
                              call->dx[0], call->add[0]);
}

const lk_block_type lk_block_relu = {
    .name     = "relu",
    .plan     = relu_plan,
    .forward  = relu_forward,
    .backward = relu_backward,
    .inplace  = true,
    .bf16     = true,
    .by_position = true,
    .sums_parts = true,
};

/* ---- GELU -------------------------------------------------------------------------------- */

static lk_status gelu_plan(lk_plan *plan)
{
    LK_TRY(lki_plan_inputs(plan, 1, 1));
    lk_plan_output(plan, lk_plan_block(plan)->x[0]);
    lk_plan_output_unread(plan);
    return LK_OK;
}

static void gelu_forward(const lk_block_call *call)
{
    size_t count = lki_elements(call, call->block->y);
    lki_activate(call->exec, call->dtype, LKI_ACT_GELU_TANH, count, call->x[0], call->y);
}

static void gelu_backward(const lk_block_call *call)
{
    size_t count = lki_elements(call, call->block->y);
    if (call->dx[0] != NULL)
        lki_activate_backward(call->exec, call->dtype, LKI_ACT_GELU_TANH, count, call->x[0],
                              call->dy, call->dx[0], call->add[0]);
}

const lk_block_type lk_block_gelu_tanh = {
    .name     = "gelu_tanh",
    .plan     = gelu_plan,
    .forward  = gelu_forward,
    .backward = gelu_backward,
    .bf16     = true,
    .by_position = true,
    .sums_parts = true,
};

/* ---- Scale ------------------------------------------------------------------------------- */

static lk_status scale_plan(lk_plan *plan)
{
    LK_TRY(lki_plan_options(plan, sizeof(lk_scale_options)));
    LK_TRY(lki_plan_inputs(plan, 1, 1));
    lk_plan_output(plan, lk_plan_block(plan)->x[0]);
    lk_plan_output_unread(plan);
    return LK_OK;
}

static void scale(const lk_block_call *call, const float *from, float *to, bool add)
{
    const lk_scale_options *options = call->block->options;
    const size_t            count   = lki_elements(call, call->block->y);
    for (size_t i = 0; i < count; i++)
        to[i] = add ? to[i] + from[i] * options->factor : from[i] * options->factor;
}

static void scale_forward(const lk_block_call *call)
{
    scale(call, call->x[0], call->y, false);
}

static void scale_backward(const lk_block_call *call)
{
    if (call->dx[0] != NULL)
        scale(call, call->dy, call->dx[0], call->add[0]);
}

const lk_block_type lk_block_scale = {
    .name     = "scale",
    .plan     = scale_plan,
    .forward  = scale_forward,
    .backward = scale_backward,
    .inplace  = true,
    .by_position = true,
    .sums_parts = true,
};

/* shape.c -- blocks that only move values: flatten, global average pooling, and the shortcut.
 *
 * The shortcut is the one that has no parameters in He et al. 2015 (section 3.3, option A): every
 * stride-th pixel, with zero channels appended. */
#include <string.h>

#include "device/half.h"
#include "nn/blocks/blocks.h"

/* ---- Flatten ----------------------------------------------------------------------------- */

static lk_status flatten_plan(lk_plan *plan)
{
    LK_TRY(lki_plan_inputs(plan, 1, 1));
    lk_plan_output(plan, (lk_shape){ 1, { lk_shape_count(lk_plan_block(plan)->x[0]) } });
    lk_plan_output_unread(plan);
    return LK_OK;
}

static void flatten_forward(const lk_block_call *call)
{
    lki_copy(call, lki_elements(call, call->block->y), call->x[0], call->y);
}

static void flatten_backward(const lk_block_call *call)
{
    lki_pass_gradient(call, 0, lki_elements(call, call->block->y), call->dy);
}

const lk_block_type lk_block_flatten = {
    .name     = "flatten",
    .plan     = flatten_plan,
    .forward  = flatten_forward,
    .backward = flatten_backward,
    .inplace  = true,
    .bf16     = true,
    .sums_parts = true,
};

/* ---- Average pooling --------------------------------------------------------------------- */

static lk_status avgpool_plan(lk_plan *plan)
{
    LK_TRY(lki_plan_inputs(plan, 1, 1));
    lk_shape x = lk_plan_block(plan)->x[0];
    if (x.rank < 2)
        return lk_plan_fail(plan, "it averages over all but the last dimension; %s has no other",
                            lki_shape_describe(x).text);
    lk_plan_output(plan, (lk_shape){ 1, { lki_width(x) } });
    lk_plan_output_unread(plan);
    return LK_OK;
}

static void avgpool_forward(const lk_block_call *call)
{
    lk_shape x = call->block->x[0];
    lki_avgpool(call->exec, call->dtype, call->samples, lki_rows(x), lki_width(x), call->x[0],
                call->y);
}

static void avgpool_backward(const lk_block_call *call)
{
    lk_shape x = call->block->x[0];
    if (call->dx[0] != NULL)
        lki_avgpool_backward(call->exec, call->dtype, call->samples, lki_rows(x), lki_width(x),
                             call->dy, call->dx[0], call->add[0]);
}

const lk_block_type lk_block_avgpool = {
    .name     = "avgpool",
    .plan     = avgpool_plan,
    .forward  = avgpool_forward,
    .backward = avgpool_backward,
    .bf16     = true,
    .sums_parts = true,
};

/* ---- Shortcut ---------------------------------------------------------------------------- */

static lk_status shortcut_plan(lk_plan *plan)
{
    LK_TRY(lki_plan_options(plan, sizeof(lk_shortcut_options)));
    LK_TRY(lki_plan_inputs(plan, 1, 1));
    const lk_block            *block   = lk_plan_block(plan);
    const lk_shortcut_options *options = block->options;
    const uint64_t            *x       = block->x[0].dims;

    if (block->x[0].rank != 3)
        return lk_plan_fail(plan, "it reads images (height, width, channels), not %s",
                            lki_shape_describe(block->x[0]).text);
    if (options->stride == 0 || options->stride > x[0] || options->stride > x[1])
        return lk_plan_fail(plan, "a stride of %llu does not fit images %s",
                            (unsigned long long)options->stride,
                            lki_shape_describe(block->x[0]).text);
    if (options->channels < x[2])
        return lk_plan_fail(plan, "it can add channels, not drop them: %llu from %llu",
                            (unsigned long long)options->channels, (unsigned long long)x[2]);
    lk_plan_output(plan, (lk_shape){ 3, { (x[0] - 1) / options->stride + 1,
                                          (x[1] - 1) / options->stride + 1, options->channels } });
    lk_plan_output_unread(plan);
    return LK_OK;
}

/* Copies one output row of one sample. */
static void shortcut_forward_row(void *context, size_t index)
{
    const lk_block_call       *call    = context;
    const lk_shortcut_options *options = call->block->options;
    const uint64_t            *x = call->block->x[0].dims, *y = call->block->y.dims;
    size_t      sample = index / y[0], row = index % y[0], bytes = lk_dtype_bytes(call->dtype);
    size_t      from = x[2] * bytes, to = y[2] * bytes; /* bytes of a pixel */
    const char *in =
        (const char *)call->x[0] + (sample * x[0] + row * options->stride) * x[1] * from;
    char       *out = (char *)call->y + index * y[1] * to;

    for (size_t i = 0; i < y[1]; i++) {
        memcpy(out + i * to, in + i * options->stride * from, from);
        memset(out + i * to + from, 0, to - from);
    }
}

static void shortcut_forward(const lk_block_call *call)
{
    lk_block_call copy = *call; /* needed because a task's context is not const */
    lk_parallel_for(call->exec, call->samples * call->block->y.dims[0], shortcut_forward_row,
                    &copy);
}

/* Adds a pixel's dy to its dx.  `at_dy` and `at_dx` are the offsets of the pixel's first
 * channels. */
static void shortcut_pixel(const lk_block_call *call, size_t channels, size_t at_dy, size_t at_dx)
{
    const float    *wide   = (const float *)call->dy + at_dy;
    const uint16_t *narrow = (const uint16_t *)call->dy + at_dy;
    float          *dx     = (float *)call->dx[0] + at_dx;
    uint16_t       *dx16   = (uint16_t *)call->dx[0] + at_dx;
    for (size_t c = 0; c < channels; c++)
        if (call->dtype == LK_BF16)
            dx16[c] = lki_bf16_narrow(lki_bf16_widen(dx16[c]) + lki_bf16_widen(narrow[c]));
        else
            dx[c] += wide[c];
}

/* Computes one input row of one sample: the gradient of the pixels that forward read, and 0 for all
 * other pixels. */
static void shortcut_backward_row(void *context, size_t index)
{
    const lk_block_call       *call    = context;
    const lk_shortcut_options *options = call->block->options;
    const uint64_t            *x = call->block->x[0].dims, *y = call->block->y.dims;
    size_t sample = index / x[0], row = index % x[0], from = x[2], to = y[2];
    size_t at_dx = index * x[1] * from, bytes = lk_dtype_bytes(call->dtype);
    size_t at_dy = (sample * y[0] + row / options->stride) * y[1] * to;

    if (!call->add[0])
        memset((char *)call->dx[0] + at_dx * bytes, 0, x[1] * from * bytes);
    for (size_t i = 0; row % options->stride == 0 && i < y[1]; i++)
        shortcut_pixel(call, from, at_dy + i * to, at_dx + i * options->stride * from);
}

static void shortcut_backward(const lk_block_call *call)
{
    lk_block_call copy = *call;
    if (call->dx[0] != NULL)
        lk_parallel_for(call->exec, call->samples * call->block->x[0].dims[0],
                        shortcut_backward_row, &copy);
}

const lk_block_type lk_block_shortcut = {
    .name     = "shortcut",
    .plan     = shortcut_plan,
    .forward  = shortcut_forward,
    .backward = shortcut_backward,
    .bf16     = true,
    .sums_parts = true,
};

/* conv.c -- 2-D convolution without bias, and max pooling, which has the same geometry.
 *
 * Images are NHWC, weights (out, in, k, k).
 *
 * Kaiming normal initialisation, fan-out: standard deviation sqrt(2 / (k k out)).
 */
#include <math.h>

#include "nn/blocks/blocks.h"

enum { KERNEL_MAX = 255, SIDE_MAX = 1 << 20 };

/* Computes the geometry for one sample from the block's input and the options.  LK_EINVAL if they
 * do not match. */
static lk_status plan_window(const lk_plan *plan, uint64_t kernel, uint64_t stride, uint64_t pad,
                             lki_conv_shape *out)
{
    lk_shape x = lk_plan_block(plan)->x[0];
    if (x.rank != 3)
        return lk_plan_fail(plan, "it reads images (height, width, channels), not %s",
                            lki_shape_describe(x).text);
    if (kernel == 0 || kernel > KERNEL_MAX || stride == 0 || stride > KERNEL_MAX || pad >= kernel)
        return lk_plan_fail(plan,
                            "kernel %llu, stride %llu, pad %llu: kernel and stride are 1 to %d, "
                            "pad is below the kernel",
                            (unsigned long long)kernel, (unsigned long long)stride,
                            (unsigned long long)pad, KERNEL_MAX);
    if (x.dims[0] > SIDE_MAX || x.dims[1] > SIDE_MAX)
        return lk_plan_fail(plan, "images %s are larger than %d on a side",
                            lki_shape_describe(x).text, SIDE_MAX);
    if (x.dims[0] + 2 * pad < kernel || x.dims[1] + 2 * pad < kernel)
        return lk_plan_fail(plan,
                            "a window of %llu does not fit into images %s; use a smaller one, "
                            "less depth or larger images",
                            (unsigned long long)kernel, lki_shape_describe(x).text);
    *out = (lki_conv_shape){
        .n = 1, .h = x.dims[0], .w = x.dims[1], .cin = x.dims[2], .cout = x.dims[2],
        .kh = kernel, .kw = kernel, .stride = stride, .pad = pad,
        .oh = (x.dims[0] + 2 * pad - kernel) / stride + 1,
        .ow = (x.dims[1] + 2 * pad - kernel) / stride + 1,
    };
    return LK_OK;
}

/* Returns the planned geometry, for `samples` samples. */
static lki_conv_shape window_of(const lk_block *block, uint32_t samples, uint64_t kernel,
                                uint64_t stride, uint64_t pad)
{
    const uint64_t *x = block->x[0].dims, *y = block->y.dims;
    return (lki_conv_shape){ .n = samples, .h = x[0], .w = x[1], .cin = x[2], .cout = y[2],
                             .kh = kernel, .kw = kernel, .stride = stride, .pad = pad,
                             .oh = y[0], .ow = y[1] };
}

/* ---- Convolution ------------------------------------------------------------------------- */

static lk_status conv_plan(lk_plan *plan)
{
    LK_TRY(lki_plan_options(plan, sizeof(lk_conv_options)));
    LK_TRY(lki_plan_inputs(plan, 1, 1));
    const lk_conv_options *o = lk_plan_block(plan)->options;
    lki_conv_shape         shape;

    LK_TRY(plan_window(plan, o->kernel, o->stride, o->pad, &shape));
    if (o->out == 0)
        return lk_plan_fail(plan, "out is 0; say how many channels it puts out");
    float deviation = sqrtf(2.0F / ((float)(o->kernel * o->kernel) * (float)o->out));
    LK_TRY(lk_plan_param(plan, "weight",
                         (lk_shape){ 4, { o->out, shape.cin, o->kernel, o->kernel } },
                         LK_INIT_NORMAL, deviation, false));
    lk_plan_output(plan, (lk_shape){ 3, { shape.oh, shape.ow, o->out } });
    lk_plan_output_unread(plan);
    return LK_OK;
}

static lki_conv_shape conv_of(const lk_block *block, uint32_t samples)
{
    const lk_conv_options *o = block->options;
    return window_of(block, samples, o->kernel, o->stride, o->pad);
}

static size_t conv_part_scratch(const lk_block *block, const lk_exec *exec, lk_dtype dtype,
                                uint32_t samples, uint32_t parts)
{
    lki_conv_shape shape = conv_of(block, samples);
    return dtype == LK_BF16 ? lki_conv_bf16_scratch_bytes(exec, &shape, parts)
                            : lki_conv_scratch_bytes(exec, &shape, parts);
}

static void conv_buffers(const lk_block *block, const lk_exec *exec, lk_dtype dtype,
                         uint32_t samples, size_t *saved, size_t *scratch)
{
    *saved   = 0;
    *scratch = conv_part_scratch(block, exec, dtype, samples, 1);
}

static size_t conv_pack_bytes(const lk_block *block, const lk_exec *exec, lk_dtype dtype,
                              uint32_t samples, bool backward)
{
    lki_conv_shape shape = conv_of(block, samples);
    return lki_conv_pack_bytes(exec, &shape, dtype, backward);
}

static void conv_forward(const lk_block_call *call)
{
    lki_conv_shape shape = conv_of(call->block, call->samples);
    if (call->dtype == LK_BF16)
        lki_conv_bf16(call->exec, &shape, call->x[0], call->params[0], call->y, call->scratch,
                      call->pack);
    else
        lki_conv(call->exec, &shape, call->x[0], call->params[0], call->y, call->scratch,
                 call->pack);
}

static void conv_backward_bf16(const lk_block_call *call, const lki_parts *parts)
{
    lki_conv_shape shape = conv_of(call->block, call->samples);
    lki_conv_bf16_backward_weights(call->exec, &shape, call->x[0], call->dy, call->grads[0],
                                   !call->write[0], parts, call->scratch);
    if (call->dx[0] != NULL)
        lki_conv_bf16_backward_input(call->exec, &shape, call->dy, call->params[0], call->dx[0],
                                     call->add[0], call->scratch, call->pack);
}

static void conv_backward(const lk_block_call *call)
{
    lki_conv_shape   shape = conv_of(call->block, call->samples);
    lki_part_rows    room;
    const lki_parts *parts = lki_parts_of(&room, call, 1);
    if (call->dtype == LK_BF16) {
        conv_backward_bf16(call, parts);
        return;
    }
    lki_conv_backward_weights(call->exec, &shape, call->x[0], call->dy, call->grads[0],
                              !call->write[0], parts, call->scratch);
    if (call->dx[0] != NULL)
        lki_conv_backward_input(call->exec, &shape, call->dy, call->params[0], call->dx[0],
                                call->add[0], call->scratch, call->pack);
}

/* Counts, along one side, the pairs of an output position and a kernel position that read inside
 * the image. */
static double taps_inside(uint64_t in, uint64_t out, const lki_conv_shape *s)
{
    uint64_t taps = 0;
    for (uint64_t o = 0; o < out; o++)
        for (uint64_t k = 0; k < s->kh; k++)
            taps += o * s->stride + k >= s->pad && o * s->stride + k < s->pad + in;
    return (double)taps;
}

static lk_block_flops conv_flops(const lk_block *block)
{
    lki_conv_shape s        = conv_of(block, 1);
    double         products = taps_inside(s.h, s.oh, &s) * taps_inside(s.w, s.ow, &s);
    double         each     = 2 * products * (double)(s.cin * s.cout);
    return (lk_block_flops){ .forward = each, .weights = each, .input = each };
}

const lk_block_type lk_block_conv = {
    .name     = "conv",
    .plan     = conv_plan,
    .buffers  = conv_buffers,
    .pack_bytes = conv_pack_bytes,
    .forward  = conv_forward,
    .backward = conv_backward,
    .bf16     = true,
    .writes_grads = true,
    .sums_parts   = true,
    .part_scratch = conv_part_scratch,
    .flops    = conv_flops,
};

/* ---- Max pooling ------------------------------------------------------------------------- */

static lk_status maxpool_plan(lk_plan *plan)
{
    LK_TRY(lki_plan_options(plan, sizeof(lk_maxpool_options)));
    LK_TRY(lki_plan_inputs(plan, 1, 1));
    const lk_maxpool_options *o = lk_plan_block(plan)->options;
    lki_conv_shape            shape;

    LK_TRY(plan_window(plan, o->kernel, o->stride, o->pad, &shape));
    if (2 * o->pad > o->kernel)
        return lk_plan_fail(plan, "pad %llu is more than half the kernel %llu: a window would hold "
                            "nothing but padding", (unsigned long long)o->pad,
                            (unsigned long long)o->kernel);
    lk_plan_output(plan, (lk_shape){ 3, { shape.oh, shape.ow, shape.cin } });
    lk_plan_output_unread(plan);
    return LK_OK;
}

static lki_conv_shape maxpool_of(const lk_block *block, uint32_t samples)
{
    const lk_maxpool_options *o = block->options;
    return window_of(block, samples, o->kernel, o->stride, o->pad);
}

static void maxpool_buffers(const lk_block *block, const lk_exec *exec, lk_dtype dtype,
                            uint32_t samples, size_t *saved, size_t *scratch)
{
    (void)exec;
    (void)dtype;
    *saved   = samples * lk_shape_count(block->y) * sizeof(uint32_t);
    *scratch = 0;
}

static void maxpool_forward(const lk_block_call *call)
{
    lki_conv_shape shape = maxpool_of(call->block, call->samples);
    lki_maxpool(call->exec, call->dtype, &shape, call->x[0], call->y, call->saved);
}

static void maxpool_backward(const lk_block_call *call)
{
    lki_conv_shape shape = maxpool_of(call->block, call->samples);
    if (call->dx[0] != NULL)
        lki_maxpool_backward(call->exec, call->dtype, &shape, call->saved, call->dy, call->dx[0],
                             call->add[0]);
}

const lk_block_type lk_block_maxpool = {
    .name     = "maxpool",
    .plan     = maxpool_plan,
    .buffers  = maxpool_buffers,
    .forward  = maxpool_forward,
    .backward = maxpool_backward,
    .bf16     = true,
    .sums_parts = true,
};

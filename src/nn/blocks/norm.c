/* norm.c -- LayerNorm over the innermost dimension, and BatchNorm over all other dimensions.
 *
 * BatchNorm is "ghost" BatchNorm: training uses the statistics of one micro-batch of one virtual
 * worker, so ranks need not exchange them.  The block adds samples * mean and samples * unbiased
 * variance to the state sums.  The owner of the state divides these sums by the count, and updates
 * the running statistics, which evaluation uses.
 *
 * SyncBatchNorm uses statistics over the micro-batches of all virtual workers.  For each channel a
 * micro-batch contributes the number of its values, their sum, and the sum of squared differences
 * from its mean.  Two contributions are merged in FP64 (Chan, Golub and LeVeque 1979), so no large
 * numbers cancel.  Backward sums dy and dy * xhat.  With one virtual worker the bits are those of
 * BatchNorm.
 *
 * With a second input BatchNorm is the end of a residual block: y = relu(norm(x0) + x1), in one
 * pass.
 *
 * Source: Ioffe and Szegedy 2015 (BatchNorm), Ba et al. 2016 (LayerNorm), Hoffer et al. 2017,
 * section 3.4 (ghost statistics).
 */
#include "nn/blocks/blocks.h"

#include <string.h>

#define BATCHNORM_MOMENTUM 0.1F /* momentum of the running statistics; PyTorch's default */

/* Declares gamma and beta of `c` channels, with PyTorch's names. */
static lk_status plan_affine(lk_plan *plan, uint64_t c, lk_init gamma)
{
    LK_TRY(lk_plan_param(plan, "weight", (lk_shape){ 1, { c } }, gamma, 0.0F, true));
    return lk_plan_param(plan, "bias", (lk_shape){ 1, { c } }, LK_INIT_ZERO, 0.0F, true);
}

/* ---- LayerNorm --------------------------------------------------------------------------- */

typedef struct {
    float *mean, *rstd; /* (rows) each */
    size_t rows, c;
} layernorm_view;

static layernorm_view layernorm_of(const lk_block_call *call)
{
    lk_shape       x    = call->block->x[0];
    unsigned char *at   = call->saved;
    layernorm_view view = { .rows = call->samples * lki_rows(x), .c = lki_width(x) };
    view.mean           = lki_cut(&at, view.rows);
    view.rstd           = lki_cut(&at, view.rows);
    return view;
}

static lk_status layernorm_plan(lk_plan *plan)
{
    const lk_block *block = lk_plan_block(plan);
    LK_TRY(lki_plan_inputs(plan, 1, 1));
    LK_TRY(plan_affine(plan, lki_width(block->x[0]), LK_INIT_ONE));
    lk_plan_output(plan, block->x[0]);
    lk_plan_output_unread(plan);
    return LK_OK;
}

/* Returns the memory for dx, or scratch memory if dx is not needed.  The kernels compute dx in the
 * same pass as the parameters' gradients. */
static void *wanted_or_scratch(const lk_block_call *call, void *scratch)
{
    return call->dx[0] != NULL ? call->dx[0] : scratch;
}

static void layernorm_buffers(const lk_block *block, const lk_exec *exec, lk_dtype dtype,
                              uint32_t samples, size_t *saved, size_t *scratch)
{
    (void)exec;
    (void)dtype;
    *saved   = 2 * lki_cut_bytes(samples * lki_rows(block->x[0]));
    *scratch = lki_cut_bytes(samples * lk_shape_count(block->x[0]));
}

static void layernorm_forward(const lk_block_call *call)
{
    layernorm_view v = layernorm_of(call);
    lki_layernorm(call->exec, call->dtype, v.rows, v.c, call->x[0], call->params[0],
                  call->params[1], call->y, v.mean, v.rstd);
}

static void layernorm_backward(const lk_block_call *call)
{
    layernorm_view v = layernorm_of(call);
    lki_layernorm_backward(call->exec, call->dtype, v.rows, v.c, call->x[0], call->params[0],
                           v.mean, v.rstd, call->dy, wanted_or_scratch(call, call->scratch),
                           call->add[0], call->grads[0], call->grads[1]);
}

const lk_block_type lk_block_layernorm = {
    .name     = "layernorm",
    .plan     = layernorm_plan,
    .buffers  = layernorm_buffers,
    .forward  = layernorm_forward,
    .backward = layernorm_backward,
    .bf16     = true,
    .by_position = true,
};

/* ---- BatchNorm --------------------------------------------------------------------------- */

enum { STATE_MEAN, STATE_VAR };

typedef struct {
    float *mean, *rstd, *var; /* (c) each */
    size_t rows, c;
} batchnorm_view;

static batchnorm_view batchnorm_of(const lk_block_call *call)
{
    lk_shape       x    = call->block->x[0];
    unsigned char *at   = call->saved;
    batchnorm_view view = { .rows = call->samples * lki_rows(x), .c = lki_width(x) };
    view.mean           = lki_cut(&at, view.c);
    view.rstd           = lki_cut(&at, view.c);
    view.var            = lki_cut(&at, view.c);
    return view;
}

static lk_status batchnorm_plan(lk_plan *plan)
{
    LK_TRY(lki_plan_options(plan, sizeof(lk_batchnorm_options)));
    LK_TRY(lki_plan_inputs(plan, 1, 2));
    const lk_block             *block   = lk_plan_block(plan);
    const lk_batchnorm_options *options = block->options;
    uint64_t                    c       = lki_width(block->x[0]);

    if (block->input_count == 2 && !lki_same_shape(block->x[0], block->x[1]))
        return lk_plan_fail(plan, "it adds %s to %s; put a shortcut or a convolution in between",
                            lki_shape_describe(block->x[1]).text,
                            lki_shape_describe(block->x[0]).text);
    LK_TRY(plan_affine(plan, c, options->zero_gamma ? LK_INIT_ZERO : LK_INIT_ONE));
    LK_TRY(lk_plan_state(plan, "running_mean", c, 0.0F, BATCHNORM_MOMENTUM));
    LK_TRY(lk_plan_state(plan, "running_var", c, 1.0F, BATCHNORM_MOMENTUM));
    lk_plan_output(plan, block->x[0]);
    if (!options->relu)
        lk_plan_output_unread(plan);
    return LK_OK;
}

static void batchnorm_buffers(const lk_block *block, const lk_exec *exec, lk_dtype dtype,
                              uint32_t samples, size_t *saved, size_t *scratch)
{
    (void)exec;
    (void)dtype;
    *saved   = 3 * lki_cut_bytes(lki_width(block->x[0]));
    *scratch = lki_cut_bytes(samples * lk_shape_count(block->x[0]));
}

static void sum_statistics(const lk_block_call *call, const batchnorm_view *v)
{
    float samples = (float)call->samples;
    if (call->state_sums == NULL)
        return;
    for (size_t i = 0; i < v->c; i++) {
        call->state_sums[STATE_MEAN][i] += samples * v->mean[i];
        call->state_sums[STATE_VAR][i] += samples * v->var[i];
    }
}

static lki_batchnorm_args batchnorm_args(const lk_block_call *call, const batchnorm_view *v)
{
    const lk_batchnorm_options *options = call->block->options;
    return (lki_batchnorm_args){ .type  = call->dtype,
                                 .rows  = v->rows,
                                 .c     = v->c,
                                 .x     = call->x[0],
                                 .gamma = call->params[0],
                                 .beta  = call->params[1],
                                 .plus  = call->block->input_count == 2 ? call->x[1] : NULL,
                                 .relu  = options->relu,
                                 .y     = call->y,
                                 .mean  = v->mean,
                                 .rstd  = v->rstd,
                                 .var   = v->var };
}

static void batchnorm_forward(const lk_block_call *call)
{
    batchnorm_view     v    = batchnorm_of(call);
    lki_batchnorm_args args = batchnorm_args(call, &v);

    if (!call->training) {
        lki_batchnorm_apply(call->exec, &args, call->state[STATE_MEAN], call->state[STATE_VAR]);
        return;
    }
    lki_batchnorm(call->exec, &args);
    sum_statistics(call, &v);
}

static lki_batchnorm_args batchnorm_backward_args(const lk_block_call *call,
                                                 const batchnorm_view *v)
{
    lki_batchnorm_args args = batchnorm_args(call, v);

    args.dy       = call->dy;
    args.dx       = wanted_or_scratch(call, call->scratch);
    args.add      = call->add[0] && call->dx[0] != NULL;
    args.dplus    = call->block->input_count == 2 ? call->dx[1] : NULL;
    args.add_plus = call->add[1];
    args.dgamma   = call->grads[0];
    args.dbeta    = call->grads[1];
    return args;
}

static void batchnorm_backward(const lk_block_call *call)
{
    batchnorm_view     v    = batchnorm_of(call);
    lki_batchnorm_args args = batchnorm_backward_args(call, &v);
    lki_batchnorm_backward(call->exec, &args);
}

const lk_block_type lk_block_batchnorm = {
    .name     = "batchnorm",
    .plan     = batchnorm_plan,
    .buffers  = batchnorm_buffers,
    .forward  = batchnorm_forward,
    .backward = batchnorm_backward,
    .bf16     = true,
};

/* ---- SyncBatchNorm ----------------------------------------------------------------------- */

/* Returns the width of a row of statistics: the number of values, then two numbers for each
 * channel. */
static uint32_t row_width(const lk_block *block)
{
    return 1 + 2 * (uint32_t)lki_width(block->x[0]);
}

typedef struct {
    batchnorm_view of;
    /* c elements each: sums over this call's rows, then means over all rows */
    float         *first, *second;
} sync_view;

static sync_view sync_of(const lk_block_call *call)
{
    sync_view      view = { .of = batchnorm_of(call) };
    unsigned char *at   = (unsigned char *)call->saved + 3 * lki_cut_bytes(view.of.c);
    view.first          = lki_cut(&at, view.of.c);
    view.second         = lki_cut(&at, view.of.c);
    return view;
}

static void sync_buffers(const lk_block *block, const lk_exec *exec, lk_dtype dtype,
                         uint32_t samples, size_t *saved, size_t *scratch)
{
    batchnorm_buffers(block, exec, dtype, samples, saved, scratch);
    *saved += 2 * lki_cut_bytes(lki_width(block->x[0]));
}

static void put_row(const sync_view *v, double *row)
{
    row[0] = (double)v->of.rows;
    for (size_t i = 0; i < v->of.c; i++) {
        row[1 + i]           = (double)v->first[i];
        row[1 + v->of.c + i] = (double)v->second[i];
    }
}

static void sync_forward_row(const lk_block_call *call, double *row)
{
    sync_view          v    = sync_of(call);
    lki_batchnorm_args args = batchnorm_args(call, &v.of);
    lki_batchnorm_moments(call->exec, &args, v.first, v.second);
    put_row(&v, row);
}

static void merge_moments(uint32_t width, double *left, const double *right)
{
    uint32_t c = (width - 1) / 2;

    if (right[0] == 0)
        return;
    if (left[0] == 0) {
        memcpy(left, right, width * sizeof *left);
        return;
    }
    double counts = left[0] + right[0], weight = left[0] * right[0] / counts;
    for (uint32_t i = 1; i <= c; i++) {
        double apart = right[i] / right[0] - left[i] / left[0];
        left[c + i]  = (left[c + i] + right[c + i]) + apart * apart * weight;
        left[i]      = left[i] + right[i];
    }
    left[0] = counts;
}

static void sync_forward(const lk_block_call *call)
{
    sync_view          v     = sync_of(call);
    lki_batchnorm_args args  = batchnorm_args(call, &v.of);
    const double      *total = call->total, *squares = total + 1 + v.of.c;

    if (!call->training) {
        batchnorm_forward(call);
        return;
    }
    float count = (float)total[0];
    for (size_t i = 0; i < v.of.c; i++) {
        v.of.mean[i] = (float)(total[1 + i] / total[0]);
        v.of.rstd[i] = lki_batchnorm_rstd((float)squares[i] / count);
        v.of.var[i]  = (float)squares[i] / (total[0] > 1 ? (float)(total[0] - 1) : 1.0F);
    }
    lki_batchnorm_normalize(call->exec, &args);
    sum_statistics(call, &v.of);
}

static void sync_backward_row(const lk_block_call *call, double *row)
{
    sync_view          v    = sync_of(call);
    lki_batchnorm_args args = batchnorm_backward_args(call, &v.of);
    lki_batchnorm_products(call->exec, &args, v.first, v.second);
    put_row(&v, row);
}

static void sync_backward(const lk_block_call *call)
{
    sync_view          v     = sync_of(call);
    lki_batchnorm_args args  = batchnorm_backward_args(call, &v.of);
    const double      *total = call->total_backward;

    for (size_t i = 0; i < v.of.c; i++) {
        args.dbeta[i] += v.first[i];
        args.dgamma[i] += v.second[i];
        v.first[i]  = (float)(total[1 + i] / total[0]);
        v.second[i] = (float)(total[1 + v.of.c + i] / total[0]);
    }
    lki_batchnorm_dx(call->exec, &args, v.first, v.second);
}

static const lk_block_statistics sync_statistics = {
    .width        = row_width,
    .forward_row  = sync_forward_row,
    .backward_row = sync_backward_row,
    .merge        = merge_moments,
};

const lk_block_type lk_block_sync_batchnorm = {
    .name       = "sync_batchnorm",
    .plan       = batchnorm_plan,
    .buffers    = sync_buffers,
    .forward    = sync_forward,
    .backward   = sync_backward,
    .bf16       = true,
    .statistics = &sync_statistics,
};

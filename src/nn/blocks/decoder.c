/* decoder.c -- RMSNorm, rotary position embeddings and SwiGLU, of decoders like Llama.
 *
 * RMSNorm saves the reciprocal root mean square of each row.  SwiGLU saves nothing: its backward
 * pass reads both inputs.  Rotary embeddings read a table of cosines and sines, which all blocks of
 * a model with the same options share.
 */
#include <math.h>

#include "nn/blocks/blocks.h"

/* ---- RMSNorm ----------------------------------------------------------------------------- */

static lk_status rmsnorm_plan(lk_plan *plan)
{
    LK_TRY(lki_plan_options(plan, sizeof(lk_rmsnorm_options)));
    LK_TRY(lki_plan_inputs(plan, 1, 1));
    const lk_block           *block   = lk_plan_block(plan);
    const lk_rmsnorm_options *options = block->options;
    uint64_t                  width   = lki_width(block->x[0]);
    uint64_t                  size    = options->size > 0 ? options->size : width;

    if (width % size != 0)
        return lk_plan_fail(plan, "a width of %llu cannot be cut into runs of %llu",
                            (unsigned long long)width, (unsigned long long)size);
    if (!(options->eps >= 0.0F && isfinite(options->eps)))
        return lk_plan_fail(plan, "eps %g is not a small positive number", (double)options->eps);
    LK_TRY(lk_plan_param(plan, "weight", (lk_shape){ 1, { size } }, LK_INIT_ONE, 0.0F, true));
    lk_plan_output(plan, block->x[0]);
    lk_plan_output_unread(plan);
    return LK_OK;
}

static lki_rmsnorm_args rmsnorm_args(const lk_block_call *call)
{
    const lk_rmsnorm_options *options = call->block->options;
    size_t width = lki_width(call->block->x[0]);
    size_t size  = options->size > 0 ? options->size : width;
    return (lki_rmsnorm_args){ .type  = call->dtype,
                               .rows  = lki_elements(call, call->block->x[0]) / size,
                               .c     = size,
                               .eps   = options->eps,
                               .x     = call->x[0],
                               .gamma = call->params[0],
                               .y     = call->y,
                               .rstd  = call->saved };
}

static void rmsnorm_buffers(const lk_block *block, const lk_exec *exec, lk_dtype dtype,
                            uint32_t samples, size_t *saved, size_t *scratch)
{
    const lk_rmsnorm_options *options = block->options;
    uint64_t size = options->size > 0 ? options->size : lki_width(block->x[0]);
    (void)exec;
    *saved   = lki_cut_bytes(samples * lk_shape_count(block->x[0]) / size);
    *scratch = samples * lk_shape_count(block->x[0]) * lk_dtype_bytes(dtype);
}

static void rmsnorm_forward(const lk_block_call *call)
{
    lki_rmsnorm_args args = rmsnorm_args(call);
    lki_rmsnorm(call->exec, &args);
}

/* The kernels compute dx, too, if it is not needed. */
static void rmsnorm_backward(const lk_block_call *call)
{
    lki_rmsnorm_args args = rmsnorm_args(call);
    args.dy     = call->dy;
    args.dx     = call->dx[0] != NULL ? call->dx[0] : call->scratch;
    args.add    = call->dx[0] != NULL && call->add[0];
    args.dgamma = call->grads[0];
    lki_rmsnorm_backward(call->exec, &args);
}

const lk_block_type lk_block_rmsnorm = {
    .name     = "rmsnorm",
    .plan     = rmsnorm_plan,
    .buffers  = rmsnorm_buffers,
    .forward  = rmsnorm_forward,
    .backward = rmsnorm_backward,
    .bf16     = true,
    .by_position = true,
};

/* ---- Rotary embeddings ------------------------------------------------------------------- */

enum { POSITIONS_MAX = 1 << 20 };

static bool same_table(const lk_rope_options *a, const lk_rope_options *b)
{
    bool scaled = a->factor > 0;
    return a->size == b->size && !(a->theta < b->theta) && !(a->theta > b->theta) &&
           !(a->factor < b->factor) && !(a->factor > b->factor) &&
           (!scaled || (!(a->low < b->low) && !(a->low > b->low) && !(a->high < b->high) &&
                        !(a->high > b->high) && a->original == b->original));
}

/* Returns the table of an earlier block with the same options and positions, or NULL. */
static const void *find_table(const lk_plan *plan, const lk_rope_options *options, uint64_t t)
{
    for (size_t i = 0; i < plan->model->block_count; i++) {
        const lki_block_entry *entry = &plan->model->blocks[i];
        if (entry->type == &lk_block_rope && entry->block.x[0].dims[0] == t &&
            same_table(entry->block.options, options))
            return entry->block.constants;
    }
    return NULL;
}

static lk_status check_rope(const lk_plan *plan, const lk_block *block)
{
    const lk_rope_options *o = block->options;
    lk_shape               x = block->x[0];

    if (x.rank != 2 || x.dims[0] > POSITIONS_MAX || o->size == 0 || o->size % 2 != 0 ||
        x.dims[1] % o->size != 0)
        return lk_plan_fail(plan,
                            "it rotates pairs in heads of an even size, at up to %d positions; not "
                            "in %s with heads of %llu", POSITIONS_MAX, lki_shape_describe(x).text,
                            (unsigned long long)o->size);
    if (!(o->theta >= 1.0 && o->theta <= 1e12))
        return lk_plan_fail(plan, "theta %g is not in [1, 1e12]", o->theta);
    if (o->factor > 0.0 && !(o->factor >= 1.0 && o->low > 0.0 && o->high > o->low &&
                             isfinite(o->high) && isfinite(o->factor) && o->original > 0))
        return lk_plan_fail(plan,
                            "factor %g, low %g, high %g, original %llu: the factor is at least 1, "
                            "high is above low, and all are positive", o->factor, o->low, o->high,
                            (unsigned long long)o->original);
    return LK_OK;
}

static lk_status rope_plan(lk_plan *plan)
{
    LK_TRY(lki_plan_options(plan, sizeof(lk_rope_options)));
    LK_TRY(lki_plan_inputs(plan, 1, 1));
    const lk_block        *block   = lk_plan_block(plan);
    const lk_rope_options *options = block->options;

    LK_TRY(check_rope(plan, block));
    uint64_t    t     = block->x[0].dims[0];
    const void *table = find_table(plan, options, t);
    void       *own;
    if (table != NULL) {
        plan->entry->block.constants = table;
    } else {
        LK_TRY(lk_plan_constants(plan, t * options->size * sizeof(float), &own));
        lki_rope_table(&(lki_rope_scale){ .theta = options->theta, .factor = options->factor,
                                          .low = options->low, .high = options->high,
                                          .original = options->original },
                       t, options->size, own);
    }
    lk_plan_output(plan, block->x[0]);
    lk_plan_output_unread(plan);
    return LK_OK;
}

static lki_rope_args rope_args(const lk_block_call *call, const void *x, void *y)
{
    const lk_rope_options *options = call->block->options;
    const uint64_t        *dims    = call->block->x[0].dims;
    return (lki_rope_args){ .type  = call->dtype,
                            .b     = call->samples,
                            .t     = dims[0],
                            .heads = dims[1] / options->size,
                            .size  = options->size,
                            .table = (const float *)call->block->constants +
                                     call->first * options->size,
                            .x     = x,
                            .y     = y };
}

static void rope_forward(const lk_block_call *call)
{
    lki_rope_args args = rope_args(call, call->x[0], call->y);
    lki_rope(call->exec, &args);
}

static void rope_backward(const lk_block_call *call)
{
    lki_rope_args args = rope_args(call, call->dy, call->dx[0]);
    if (call->dx[0] == NULL)
        return;
    args.back = true;
    args.add  = call->add[0];
    lki_rope(call->exec, &args);
}

const lk_block_type lk_block_rope = {
    .name       = "rope",
    .plan       = rope_plan,
    .forward    = rope_forward,
    .backward   = rope_backward,
    .inplace    = true,
    .bf16       = true,
    .by_position = true,
    .sums_parts = true,
};

/* ---- SwiGLU ------------------------------------------------------------------------------ */

static lk_status swiglu_plan(lk_plan *plan)
{
    const lk_block *block = lk_plan_block(plan);
    LK_TRY(lki_plan_inputs(plan, 2, 2));
    if (!lki_same_shape(block->x[0], block->x[1]))
        return lk_plan_fail(plan, "it multiplies values of one shape, not %s and %s",
                            lki_shape_describe(block->x[0]).text,
                            lki_shape_describe(block->x[1]).text);
    lk_plan_output(plan, block->x[0]);
    lk_plan_output_unread(plan);
    return LK_OK;
}

static lki_swiglu_args swiglu_args(const lk_block_call *call)
{
    return (lki_swiglu_args){ .type     = call->dtype,
                              .n        = lki_elements(call, call->block->y),
                              .gate     = call->x[0],
                              .up       = call->x[1],
                              .y        = call->y,
                              .dy       = call->dy,
                              .dgate    = call->dx[0],
                              .dup      = call->dx[1],
                              .add_gate = call->add[0],
                              .add_up   = call->add[1] };
}

static void swiglu_forward(const lk_block_call *call)
{
    lki_swiglu_args args = swiglu_args(call);
    lki_swiglu(call->exec, &args);
}

static void swiglu_backward(const lk_block_call *call)
{
    lki_swiglu_args args = swiglu_args(call);
    lki_swiglu_backward(call->exec, &args);
}

const lk_block_type lk_block_swiglu = {
    .name       = "swiglu",
    .plan       = swiglu_plan,
    .forward    = swiglu_forward,
    .backward   = swiglu_backward,
    .bf16       = true,
    .by_position = true,
    .sums_parts = true,
};

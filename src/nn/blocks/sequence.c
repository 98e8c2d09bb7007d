/* sequence.c -- the two blocks for sequences: embedding and causal self-attention. */
#include "nn/blocks/blocks.h"

/* ---- Embedding --------------------------------------------------------------------------- */

static lk_status embedding_plan(lk_plan *plan)
{
    LK_TRY(lki_plan_options(plan, sizeof(lk_embedding_options)));
    LK_TRY(lki_plan_inputs(plan, 1, 1));
    const lk_block             *block   = lk_plan_block(plan);
    const lk_embedding_options *options = block->options;

    if (block->x[0].rank != 1)
        return lk_plan_fail(plan, "it reads a sequence of token ids (T), not %s",
                            lki_shape_describe(block->x[0]).text);
    uint64_t t = block->x[0].dims[0], v = options->vocabulary, c = options->width;
    if (v == 0 || v > INT32_MAX || c == 0)
        return lk_plan_fail(plan,
                            "vocabulary %llu, width %llu: both are at least 1, the vocabulary "
                            "at most %d",
                            (unsigned long long)v, (unsigned long long)c, INT32_MAX);
    LK_TRY(lk_plan_param(plan, "wte.weight", (lk_shape){ 2, { v, c } }, LK_INIT_NORMAL,
                         options->scale, false));
    LK_TRY(lk_plan_param(plan, "wpe.weight", (lk_shape){ 2, { t, c } }, LK_INIT_NORMAL,
                         options->scale, false));
    lk_plan_output(plan, (lk_shape){ 2, { t, c } });
    lk_plan_output_unread(plan);
    return LK_OK;
}

static void embedding_forward(const lk_block_call *call)
{
    const uint64_t *y = call->block->y.dims;
    lki_table       wte, wpe;
    wte.values = lki_param_of(call, 0, &wte.type);
    wpe.values = lki_param_of(call, 1, &wpe.type);
    lki_embedding(call->exec, call->dtype, call->samples, y[0], y[1], call->x[0], wte, wpe,
                  call->y);
}

static void embedding_backward(const lk_block_call *call)
{
    const uint64_t *y = call->block->y.dims;
    lki_embedding_backward(call->exec, call->dtype, call->samples, y[0], y[1], call->x[0], call->dy,
                           call->grads[0], call->grads[1]);
}

const lk_block_type lk_block_embedding = {
    .name         = "embedding",
    .plan         = embedding_plan,
    .forward      = embedding_forward,
    .backward     = embedding_backward,
    .tokens       = true,
    .bf16         = true,
    .bf16_params  = 3,
    .params_unread= true,
};

/* ---- Attention --------------------------------------------------------------------------- */

static lk_status attention_plan(lk_plan *plan)
{
    LK_TRY(lki_plan_options(plan, sizeof(lk_attention_options)));
    LK_TRY(lki_plan_inputs(plan, 1, 1));
    const lk_block             *block   = lk_plan_block(plan);
    const lk_attention_options *options = block->options;

    if (block->x[0].rank != 2 || block->x[0].dims[1] % 3 != 0)
        return lk_plan_fail(plan, "it reads queries, keys and values (T, 3 C), not %s",
                            lki_shape_describe(block->x[0]).text);
    uint64_t t = block->x[0].dims[0], c = block->x[0].dims[1] / 3;
    if (options->heads == 0 || c % options->heads != 0)
        return lk_plan_fail(plan,
                            "a width of %llu cannot be cut into %llu heads; change one of them",
                            (unsigned long long)c, (unsigned long long)options->heads);
    uint64_t scores;
    if (__builtin_mul_overflow(t, t, &scores) ||
        __builtin_mul_overflow(scores, options->heads, &scores))
        scores = UINT64_MAX;
    LK_TRY(lki_plan_dropout(plan, "dropout", options->dropout, "probabilities", scores));
    lk_plan_output(plan, (lk_shape){ 2, { t, c } }); /* backward reads it */
    return LK_OK;
}

static lki_attention_shape attention_of(const lk_block *block, uint32_t samples)
{
    const lk_attention_options *options = block->options;
    return (lki_attention_shape){ .b = samples, .t = block->y.dims[0], .c = block->y.dims[1],
                                  .heads = options->heads };
}

static lki_attention_shape attention_call(const lk_block_call *call)
{
    const lk_attention_options *options = call->block->options;
    lki_attention_shape         shape   = attention_of(call->block, call->samples);
    shape.dropout = (lki_dropout_key){ .seed = call->seed, .step = call->step,
                                       .first_slot = call->first_slot, .layer = call->block->layer,
                                       .p = call->training ? options->dropout : 0.0F };
    return shape;
}

static void attention_buffers(const lk_block *block, const lk_exec *exec, lk_dtype dtype,
                              uint32_t samples, size_t *saved, size_t *scratch)
{
    lki_attention_shape shape = attention_of(block, samples);
    *saved                    = shape.b * shape.heads * shape.t * sizeof(float);
    *scratch                  = dtype == LK_BF16 ? lki_attention_bf16_scratch_bytes(exec, &shape)
                                                 : lki_attention_scratch_bytes(exec, &shape);
}

static void attention_forward(const lk_block_call *call)
{
    lki_attention_shape shape = attention_call(call);
    if (call->dtype == LK_BF16)
        lki_attention_bf16(call->exec, &shape, call->x[0], call->y, call->saved, call->scratch);
    else
        lki_attention(call->exec, &shape, call->x[0], call->y, call->saved, call->scratch);
}

static void attention_backward(const lk_block_call *call)
{
    lki_attention_shape shape = attention_call(call);
    if (call->dx[0] == NULL)
        return;
    if (call->dtype == LK_BF16)
        lki_attention_bf16_backward(call->exec, &shape, call->x[0], call->y, call->saved, call->dy,
                                    call->dx[0], call->add[0], call->scratch);
    else
        lki_attention_backward(call->exec, &shape, call->x[0], call->y, call->saved, call->dy,
                               call->dx[0], call->add[0], call->scratch);
}

/* Counts the pairs of a position and the same or an earlier position.  Forward has two products
 * over these pairs, backward four.  Backward also recomputes the scores, but this product is not
 * counted, because the definition of the block does not require it. */
static lk_block_flops attention_flops(const lk_block *block)
{
    double t = (double)block->y.dims[0], product = t * (t + 1) * (double)block->y.dims[1];
    return (lk_block_flops){ .forward = 2 * product, .input = 4 * product };
}

const lk_block_type lk_block_attention = {
    .name     = "attention",
    .plan     = attention_plan,
    .buffers  = attention_buffers,
    .forward  = attention_forward,
    .backward = attention_backward,
    .bf16     = true,
    .flops    = attention_flops,
};

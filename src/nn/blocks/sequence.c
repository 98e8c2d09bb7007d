/* sequence.c -- the two blocks for sequences: embedding and causal self-attention. */
#include "nn/blocks/blocks.h"
#include "tensor/attention_cache.h"

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
    uint64_t positions = options->positions != 0 ? options->positions : t;
    if (v == 0 || v > INT32_MAX || c == 0)
        return lk_plan_fail(plan,
                            "vocabulary %llu, width %llu: both are at least 1, the vocabulary "
                            "at most %d",
                            (unsigned long long)v, (unsigned long long)c, INT32_MAX);
    if (positions < t)
        return lk_plan_fail(plan, "%llu positions for a sequence of %llu tokens",
                            (unsigned long long)positions, (unsigned long long)t);
    LK_TRY(lk_plan_param(plan, options->no_positions ? "weight" : "wte.weight",
                         (lk_shape){ 2, { v, c } }, LK_INIT_NORMAL, options->scale, false));
    if (!options->no_positions)
        LK_TRY(lk_plan_param(plan, "wpe.weight", (lk_shape){ 2, { positions, c } }, LK_INIT_NORMAL,
                             options->scale, false));
    lk_plan_output(plan, (lk_shape){ 2, { t, c } });
    lk_plan_output_unread(plan);
    return LK_OK;
}

static void embedding_forward(const lk_block_call *call)
{
    const uint64_t *y = call->block->y.dims;
    lki_table       wte, wpe = { 0 };
    wte.values = lki_param_of(call, 0, &wte.type);
    if (call->block->param_count > 1) {
        wpe.values = lki_param_of(call, 1, &wpe.type);
        wpe.values = (const char *)wpe.values + call->first * y[1] * lk_dtype_bytes(wpe.type);
    }
    lki_embedding(call->exec, call->dtype, call->samples, y[0], y[1], call->x[0], wte, wpe,
                  call->y);
}

static void embedding_backward(const lk_block_call *call)
{
    const uint64_t *y = call->block->y.dims;
    lki_embedding_backward(call->exec, call->dtype, call->samples, y[0], y[1], call->x[0], call->dy,
                           call->grads[0], call->block->param_count > 1 ? call->grads[1] : NULL);
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
    .by_position  = true,
};

/* ---- Attention --------------------------------------------------------------------------- */

/* Checks the shapes of queries (T, heads * size), keys and values (T, kv_heads * size). */
static lk_status check_three(lk_plan *plan, const lk_block *block, uint64_t heads)
{
    uint64_t size = block->x[0].rank == 2 ? block->x[0].dims[1] / heads : 0;
    uint64_t keys = block->x[1].rank == 2 ? block->x[1].dims[1] : 0;

    if (size == 0 || keys == 0 || keys % size != 0 || heads % (keys / size) != 0 ||
        block->x[0].dims[0] != block->x[1].dims[0] || !lki_same_shape(block->x[1], block->x[2]))
        return lk_plan_fail(plan,
                            "queries %s, keys %s and values %s do not fit: keys and values have "
                            "the size of %llu heads, or of a divisor of that number",
                            lki_shape_describe(block->x[0]).text,
                            lki_shape_describe(block->x[1]).text,
                            lki_shape_describe(block->x[2]).text, (unsigned long long)heads);
    for (uint32_t i = 0; i < 3; i++)
        if (plan->entry->inputs[i] == plan->entry->inputs[(i + 1) % 3])
            return lk_plan_fail(plan, "its queries, keys and values are three different values");
    return LK_OK;
}

static lk_status attention_plan(lk_plan *plan)
{
    LK_TRY(lki_plan_options(plan, sizeof(lk_attention_options)));
    const lk_block             *block   = lk_plan_block(plan);
    const lk_attention_options *options = block->options;
    uint64_t                    parts   = block->input_count == 3 ? 1 : 3;
    LK_TRY(lki_plan_inputs(plan, parts == 1 ? 3 : 1, parts == 1 ? 3 : 1));

    if (block->x[0].rank != 2 || block->x[0].dims[1] % parts != 0)
        return lk_plan_fail(plan, "it reads queries, keys and values (T, 3 C), not %s",
                            lki_shape_describe(block->x[0]).text);
    uint64_t t = block->x[0].dims[0], c = block->x[0].dims[1] / parts;
    if (options->heads == 0 || c % options->heads != 0)
        return lk_plan_fail(plan,
                            "a width of %llu cannot be cut into %llu heads; change one of them",
                            (unsigned long long)c, (unsigned long long)options->heads);
    if (parts == 1)
        LK_TRY(check_three(plan, block, options->heads));
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
    lki_attention_shape         shape   = { .b = samples, .t = block->y.dims[0],
                                            .c = block->y.dims[1], .heads = options->heads };
    if (block->input_count == 3)
        shape.kv_heads = block->x[1].dims[1] / (shape.c / shape.heads);
    return shape;
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

static size_t attention_cache_bytes(const lk_block *block, const lk_exec *exec, lk_dtype dtype,
                                    uint32_t samples)
{
    lki_attention_shape shape = attention_of(block, samples);
    (void)exec;
    return dtype == LK_BF16 ? lki_attention_bf16_cache_bytes(&shape)
                            : lki_attention_cache_bytes(&shape);
}

static lki_attention_input attention_input(const lk_block_call *call,
                                           const lki_attention_shape *shape)
{
    const lk_block     *block = call->block;
    lki_attention_input x     = lki_attention_packed(shape, call->dtype, call->x[0]);
    for (uint32_t i = 0; block->input_count == 3 && i < 3; i++) {
        x.rows[i]   = call->x[i];
        x.stride[i] = block->x[i].dims[1];
    }
    return x;
}

static lki_attention_gradient attention_gradient(const lk_block_call *call,
                                                 const lki_attention_shape *shape)
{
    const lk_block        *block = call->block;
    lki_attention_gradient dx =
        lki_attention_packed_gradient(shape, call->dtype, call->dx[0], call->add[0]);
    for (uint32_t i = 0; block->input_count == 3 && i < 3; i++) {
        dx.rows[i]   = call->dx[i];
        dx.stride[i] = block->x[i].dims[1];
        dx.add[i]    = call->add[i];
    }
    return dx;
}

static void attention_forward(const lk_block_call *call)
{
    lki_attention_shape shape = attention_call(call);
    lki_attention_input x     = attention_input(call, &shape);
    lki_attention_cache cache = { call->cache, call->first, call->positions };
    if (call->cache != NULL && call->dtype == LK_BF16)
        lki_attention_bf16_cached(call->exec, &shape, x, cache, call->y, call->scratch);
    else if (call->cache != NULL)
        lki_attention_cached(call->exec, &shape, x, cache, call->y, call->scratch);
    else if (call->dtype == LK_BF16)
        lki_attention_bf16(call->exec, &shape, x, call->y, call->saved, call->scratch);
    else
        lki_attention(call->exec, &shape, x, call->y, call->saved, call->scratch);
}

static void attention_backward(const lk_block_call *call)
{
    lki_attention_shape    shape = attention_call(call);
    lki_attention_input    x     = attention_input(call, &shape);
    lki_attention_gradient dx    = attention_gradient(call, &shape);
    if (call->dx[0] == NULL && (call->block->input_count == 1 ||
                                (call->dx[1] == NULL && call->dx[2] == NULL)))
        return;
    if (call->dtype == LK_BF16)
        lki_attention_bf16_backward(call->exec, &shape, x, call->y, call->saved, call->dy, dx,
                                    call->scratch);
    else
        lki_attention_backward(call->exec, &shape, x, call->y, call->saved, call->dy, dx,
                               call->scratch);
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
    .cache_bytes = attention_cache_bytes,
    .by_position = true,
    .bf16     = true,
    .flops    = attention_flops,
};

/* nn/nets_testing.h -- two nets that use every kind of block, and a step of a net, for tests. */
#ifndef LKI_NN_NETS_TESTING_H
#define LKI_NN_NETS_TESTING_H

#include "nn/nn_testing.h"

enum { SAMPLES = 3, TIME = 6, VOCABULARY = 11, WIDTH = 8 };

/* ---- Two nets that use every kind of block ------------------------------------------------ */

static inline lk_value linear(lk_model *model, const char *name, uint64_t out,
                              const char *activation, lk_value x)
{
    lk_linear_options options = { .out = out, .transposed = true, .activation = activation };
    return add1(model, &lk_block_linear, name, &options, sizeof options, x);
}

static inline void begin_segment(lk_model *model, bool segments)
{
    if (segments)
        lk_model_checkpoint_begin(model);
}

/* Builds a decoder of one layer with a tied head.  The caller passes the block types for dropout,
 * for add and for the end of residual branches, so that a test can replace the types that work in
 * place.  With `segments`, the model uses activation checkpointing.  `rows`: if not 0, the loss
 * block computes the logits, `rows` rows at a time. */
static inline lk_model *decoder_of(uint64_t time, const lk_block_type *dropout,
                                   const lk_block_type *add, const lk_block_type *end,
                                   bool segments, uint64_t rows)
{
    lk_embedding_options embedding = { .vocabulary = VOCABULARY, .width = WIDTH };
    lk_attention_options attention = { .heads = 2, .dropout = 0.2F };
    lk_dropout_options   p         = { .p = 0.3F };
    lk_linear_options    down = { .out = WIDTH, .transposed = true };
    lk_linear_options    head = { .out = VOCABULARY, .no_bias = true, .shared = "wte.weight" };
    lk_linear_cross_entropy_options both = { .classes = VOCABULARY, .shared = "wte.weight",
                                             .rows = rows };
    lk_model *model;

    MUST(lk_model_new(&model, "decoder", (lk_shape){ 1, { time } }, true));
    lk_value x = add1(model, &lk_block_embedding, "", &embedding, sizeof embedding, 0);
    x          = add1(model, dropout, "", &p, sizeof p, x);
    begin_segment(model, segments);
    lk_value h = add1(model, &lk_block_layernorm, "ln_1", NULL, 0, x);
    h          = linear(model, "attn.c_attn", (uint64_t)3 * WIDTH, NULL, h);
    h          = add1(model, &lk_block_attention, "attn", &attention, sizeof attention, h);
    h          = linear(model, "attn.c_proj", WIDTH, NULL, h);
    h          = add1(model, dropout, "", &p, sizeof p, h);
    x          = add2(model, add, "", NULL, 0, h, x);
    begin_segment(model, segments);
    h          = add1(model, &lk_block_layernorm, "ln_2", NULL, 0, x);
    h          = linear(model, "mlp.c_fc", (uint64_t)4 * WIDTH, "gelu_tanh", h);
    x          = add2(model, end, "mlp.c_proj", &down, sizeof down, h, x);
    begin_segment(model, segments);
    h          = add1(model, &lk_block_layernorm, "ln_f", NULL, 0, x);
    x          = add2(model, end, "square", &down, sizeof down, h, x);
    lk_model_checkpoint_end(model);
    if (rows > 0) {
        add1(model, &lk_block_linear_cross_entropy, "head", &both, sizeof both, x);
        return model;
    }
    x = add1(model, &lk_block_linear, "head", &head, sizeof head, x);
    add1(model, &lk_block_cross_entropy, "", NULL, 0, x);
    return model;
}

static inline lk_model *decoder(const lk_block_type *dropout, const lk_block_type *add,
                                const lk_block_type *end, bool segments, uint64_t rows)
{
    return decoder_of(TIME, dropout, add, end, segments, rows);
}

static inline lk_value conv(lk_model *model, const char *name, uint64_t out, uint64_t stride,
                            lk_value x)
{
    lk_conv_options options = { .out = out, .kernel = 3, .stride = stride, .pad = 1 };
    return add1(model, &lk_block_conv, name, &options, sizeof options, x);
}

/* Builds a convnet whose norms are of the given type. */
static inline lk_model *convnet_with(const lk_block_type *norm, bool segments)
{
    lk_batchnorm_options relu     = { .relu = true };
    lk_maxpool_options   pool     = { .kernel = 2, .stride = 2 };
    lk_shortcut_options  shortcut = { .channels = 6, .stride = 2 };
    lk_model            *model;

    MUST(lk_model_new(&model, "convnet", (lk_shape){ 3, { 9, 8, 3 } }, false));
    begin_segment(model, segments);
    lk_value x = conv(model, "conv1", 4, 1, 0);
    x          = add1(model, norm, "bn1", &relu, sizeof relu, x);
    begin_segment(model, segments);
    lk_value h = conv(model, "conv2", 6, 2, x);
    x          = add1(model, &lk_block_shortcut, "", &shortcut, sizeof shortcut, x);
    x          = add2(model, norm, "bn2", &relu, sizeof relu, h, x);
    lk_model_checkpoint_end(model);
    x          = add1(model, &lk_block_maxpool, "", &pool, sizeof pool, x);
    x          = add1(model, &lk_block_relu, "", NULL, 0, x);
    x          = add1(model, &lk_block_avgpool, "", NULL, 0, x);
    x          = linear(model, "fc", VOCABULARY, NULL, x);
    add1(model, &lk_block_cross_entropy, "", NULL, 0, x);
    return model;
}

static inline lk_model *convnet_of(bool segments)
{
    return convnet_with(&lk_block_batchnorm, segments);
}

static const int32_t tokens[CONTEXTS_MAX * SAMPLES * TIME + 1] = {
    0, 3, 5, 9, 10, 2, 4, 4, 1, 7, 6, 8, 5, 0, 2, 10, 9, 3, 1, 1, 8, 4, 6, 2,
    7, 7, 0, 5, 3, 9, 2, 6, 10, 8, 1, 4, 9, 5, 3, 0, 6, 7, 2, 8, 4, 10, 1, 5,
};

/* ---- A step of one net, and all of its results ------------------------------------------- */

static inline lk_pass pass_of(const net *n, uint32_t context, uint32_t index, uint32_t samples,
                              const float *images)
{
    size_t  of_tokens = (size_t)index * SAMPLES * TIME;
    bool    decodes   = n->model->tokens;
    lk_pass pass = net_pass(n, context, samples,
                            decodes ? (const void *)(tokens + of_tokens)
                                    : (const void *)(images + index * SAMPLES * 216),
                            decodes ? tokens + of_tokens + 1 : tokens + of_tokens);
    pass.first_slot = index * SAMPLES;
    return pass;
}

/* Appends all results of a pass to `out`, and returns the total bytes so far. */
static inline size_t collect(const net *n, uint32_t context, const lk_pass *pass,
                             unsigned char *out, size_t at)
{
    uint32_t        count;
    const lk_state *states = lk_model_states(n->model, &count);
    for (uint32_t t = 0; t < n->term_count; at += net_term_count(n, t) * sizeof(float), t++)
        memcpy(out + at, n->grads[context][t], net_term_count(n, t) * sizeof(float));
    for (uint32_t i = 0; i < n->state_count; at += states[i].count * sizeof(float), i++)
        memcpy(out + at, n->sums[context][i], states[i].count * sizeof(float));
    memcpy(out + at, &pass->loss_sum, sizeof pass->loss_sum);
    memcpy(out + at + 8, &pass->count, sizeof pass->count);
    return at + 16;
}

enum { RESULT_BYTES = 1 << 16, PASSES = 3 };
static const uint32_t samples_of[PASSES] = { SAMPLES, 0, 2 };

/* Runs three passes, one of them empty, in groups of `together`. */
static inline size_t run(lk_model *model, uint32_t threads, const char *isa, uint32_t together,
                         const lk_hooks *hooks, unsigned char *out)
{
    net     n      = net_open(model, threads, isa, SAMPLES, together);
    float  *images = noise_floats(2, (size_t)PASSES * SAMPLES * 216);
    lk_walk walk   = net_walk(&n, true);
    size_t  bytes  = 0;

    walk.hooks = hooks;
    for (uint32_t first = 0; first < PASSES; first += together) {
        lk_pass  passes[PASSES];
        uint32_t count = (uint32_t)lki_min(together, PASSES - first);
        net_clear(&n);
        for (uint32_t c = 0; c < count; c++)
            passes[c] = pass_of(&n, c, first + c, samples_of[first + c], images);
        lk_engine_forward(n.engine, &walk, passes, count);
        lk_engine_backward(n.engine, &walk, passes, count);
        for (uint32_t c = 0; c < count; c++)
            bytes = collect(&n, c, &passes[c], out, bytes);
        assert_true(bytes < RESULT_BYTES);
    }
    net_close(&n);
    lki_free(images);
    return bytes;
}

typedef lk_model *(*build)(void);

static inline lk_model *plain_decoder(void)
{
    return decoder(&lk_block_dropout, &lk_block_add, &lk_block_linear, false, 0);
}

static inline lk_model *checkpointed_decoder(void)
{
    return decoder(&lk_block_dropout, &lk_block_add, &lk_block_linear, true, 0);
}

static inline lk_model *chunked_decoder(void)
{
    return decoder(&lk_block_dropout, &lk_block_add, &lk_block_linear, false, 16);
}

static inline lk_model *convnet(void)
{
    return convnet_of(false);
}

static inline lk_model *checkpointed_convnet(void)
{
    return convnet_of(true);
}

static inline void assert_same_results(const unsigned char *a, size_t a_bytes,
                                       const unsigned char *b, size_t b_bytes)
{
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_equal(a, b, a_bytes);
}

#endif

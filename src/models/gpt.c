/* gpt.c -- GPT-2: a decoder of pre-norm transformer blocks, with the head tied to the embedding.
 *
 * Names, shapes and order of the parameters are equal to the Hugging Face checkpoint (Conv1D
 * weights are (in, out)).  So either program can load the weights of the other.
 *
 * Initial values: N(0, 0.02), residual projections 0.02 / sqrt(2 layers), biases 0, norms 1.
 * Dropout applies to the embedding, the attention probabilities and both residual branches.
 *
 * Source: Radford et al. 2019, section 2.3.
 */
#include <math.h>

#include "models/build.h"

enum { LAYERS_MAX = 1000, LAYERS_DEFAULT = 4, HEADS_DEFAULT = 4, WIDTH_DEFAULT = 128 };

#define DEVIATION 0.02F

typedef struct {
    lki_builder base;
    uint32_t    layers, heads, width;
    float       dropout, residual_deviation;
    const lk_model_options *options;
} gpt;

static lk_value norm(gpt *g, lki_name name, lk_value x)
{
    return lki_build(&g->base, &lk_block_layernorm, name.text, NULL, 0, x);
}

static lk_linear_options linear_options(uint64_t out, const char *activation, float deviation)
{
    return (lk_linear_options){ .out = out, .transposed = true, .activation = activation,
                                .init = LK_INIT_NORMAL, .scale = deviation };
}

static lk_value linear(gpt *g, lki_name name, uint64_t out, const char *activation, lk_value x)
{
    lk_linear_options options = linear_options(out, activation, DEVIATION);
    return lki_build_linear(&g->base, g->options, name.text, &options, x, 0);
}

static lk_value dropout(gpt *g, lk_value x)
{
    lk_dropout_options options = { .p = g->dropout };
    if (g->dropout == 0.0F)
        return x;
    return lki_build(&g->base, &lk_block_dropout, "", &options, sizeof options, x);
}

/* Ends a residual branch: x + dropout(h w + b).  Without dropout the matrix product adds x itself.
 * With dropout the branch is the first operand of the sum.  The sum may overwrite the branch,
 * because no other block reads the branch. */
static lk_value end_branch(gpt *g, lki_name name, lk_value h, lk_value x)
{
    lk_linear_options options = linear_options(g->width, NULL, g->residual_deviation);
    if (g->dropout == 0.0F)
        return lki_build_linear(&g->base, g->options, name.text, &options, h, x);
    h = lki_build_linear(&g->base, g->options, name.text, &options, h, 0);
    return lki_build2(&g->base, &lk_block_add, "", NULL, 0, dropout(g, h), x);
}

static lk_value layer(gpt *g, uint32_t i, lk_value x)
{
    lk_attention_options attention = { .heads = g->heads, .dropout = g->dropout };
    uint64_t             c         = g->width;

    lk_value h = norm(g, lki_name_of("h.%u.ln_1", i), x);
    h          = linear(g, lki_name_of("h.%u.attn.c_attn", i), 3 * c, NULL, h);
    h = lki_build(&g->base, &lk_block_attention, lki_name_of("h.%u.attn", i).text, &attention,
                  sizeof attention, h);
    x = end_branch(g, lki_name_of("h.%u.attn.c_proj", i), h, x);

    h = norm(g, lki_name_of("h.%u.ln_2", i), x);
    h = linear(g, lki_name_of("h.%u.mlp.c_fc", i), 4 * c, "gelu_tanh", h);
    return end_branch(g, lki_name_of("h.%u.mlp.c_proj", i), h, x);
}

static void end(gpt *g, const lk_model_options *options, lk_value x)
{
    static const char shared[] = "wte.weight";
    lk_linear_cross_entropy_options both = { .classes = lki_vocabulary(options), .shared = shared,
                                             .smoothing = options->label_smoothing };
    lk_linear_options head = { .out = lki_vocabulary(options), .no_bias = true,
                               .shared = shared };

    if (!options->logits) {
        lki_build(&g->base, &lk_block_linear_cross_entropy, "lm_head", &both, sizeof both, x);
        return;
    }
    x = lki_build(&g->base, &lk_block_linear, "lm_head", &head, sizeof head, x);
    lki_build_cross_entropy(&g->base, options, x);
}

static lk_status check_options(const lk_model_options *options, const gpt *g)
{
    if (!options->tokens || options->input.rank != 1)
        return lk_fail(
            LK_EINVAL,
            "gpt: it reads sequences of tokens; give `data.source` text:FILE or tokens:FILE");
    if (options->classes < 2)
        return lk_fail(LK_EINVAL,
                       "gpt: a vocabulary of %u; the tokens of `data.source` must have at least 2",
                       options->classes);
    LK_TRY(lki_check_tables("gpt", options));
    if (g->layers > LAYERS_MAX)
        return lk_fail(LK_EINVAL, "gpt: `layers` %u; at most %d", g->layers, LAYERS_MAX);
    if (g->width % g->heads != 0)
        return lk_fail(LK_EINVAL, "gpt: `width` %u cannot be cut into `heads` %u; %u would do",
                       g->width, g->heads, (g->width / g->heads + 1) * g->heads);
    if (!(g->dropout >= 0.0F && g->dropout < 1.0F))
        return lk_fail(LK_EINVAL, "gpt: `dropout` %g is not in [0, 1)", (double)g->dropout);
    return LK_OK;
}

void lki_resolve_gpt(lk_model_options *out, const lk_model_options *options)
{
    out->vocabulary = options->vocabulary;
    out->positions  = options->positions;
    out->layers  = options->layers > 0 ? options->layers : LAYERS_DEFAULT;
    out->heads   = options->heads > 0 ? options->heads : HEADS_DEFAULT;
    out->width   = options->width > 0 ? options->width : WIDTH_DEFAULT;
    out->dropout = options->dropout;
    out->logits  = options->logits;
    lki_resolve_lora(out, options, "c_attn");

    out->activation_checkpointing = options->activation_checkpointing;
}

lk_status lki_build_gpt(lk_model **out, const lk_model_options *options)
{
    gpt g = { .layers  = options->layers,
              .heads   = options->heads,
              .width   = options->width,
              .dropout = options->dropout,
              .options = options };
    g.residual_deviation = DEVIATION / sqrtf(2.0F * (float)g.layers);

    LK_TRY(check_options(options, &g));
    LK_TRY(lki_build_begin(&g.base, "gpt", options->input, true));
    lki_build_freeze(&g.base, options);
    lk_embedding_options embedding = { .vocabulary = lki_vocabulary(options), .width = g.width,
                                       .scale = DEVIATION, .positions = options->positions };
    lk_value x = lki_build(&g.base, &lk_block_embedding, "", &embedding, sizeof embedding, 0);
    x          = dropout(&g, x);
    for (uint32_t i = 0; i < g.layers; i++) {
        lki_build_segment(&g.base, options->activation_checkpointing);
        x = layer(&g, i, x);
    }
    lki_build_segment(&g.base, false);
    x = norm(&g, lki_name_of("ln_f"), x);
    end(&g, options, x);
    return lki_build_end(&g.base, out);
}

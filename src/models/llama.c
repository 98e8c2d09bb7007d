/* llama.c -- Llama, and the models of its kind: Qwen2, Qwen3, SmolLM, Mistral without its window.
 *
 * A decoder of pre-norm blocks with RMSNorm, rotary position embeddings, grouped queries, SwiGLU.
 * Names and shapes of the parameters are equal to the Hugging Face checkpoint (weights are (out,
 * in)), so either program can load the weights of the other.  The models differ in options: Qwen2
 * has biases of queries, keys and values; Qwen3 has norms of queries and keys, and a head size of
 * its own; small models share the head's weight with the embedding.
 *
 * Initial values: N(0, 0.02), biases 0, norms 1, as in transformers.
 *
 * Source: Touvron et al. 2023, section 2.2; Ainslie et al. 2023 (grouped queries).
 */
#include <math.h>

#include "models/build.h"

enum { LAYERS_MAX = 1000, LAYERS_DEFAULT = 4, HEADS_DEFAULT = 4, WIDTH_DEFAULT = 128 };
enum { HEAD_SIZE_MAX = 4096 }; /* tables of sines and cosines have as many columns */
enum { ORIGINAL_DEFAULT = 8192, FFN_UNIT = 32 };

#define DEVIATION 0.02F

typedef struct {
    lki_builder             base;
    const lk_model_options *options;
} llama;

static lk_value norm(llama *m, lki_name name, uint32_t size, lk_value x)
{
    lk_rmsnorm_options options = { .eps = m->options->norm_eps, .size = size };
    return lki_build(&m->base, &lk_block_rmsnorm, name.text, &options, sizeof options, x);
}

static lk_linear_options linear_options(uint64_t out, bool bias)
{
    return (lk_linear_options){ .out = out, .no_bias = !bias, .init = LK_INIT_NORMAL,
                                .scale = DEVIATION };
}

static lk_value linear(llama *m, lki_name name, uint64_t out, bool bias, lk_value x)
{
    lk_linear_options options = linear_options(out, bias);
    return lki_build_linear(&m->base, m->options, name.text, &options, x, 0);
}

/* Ends a residual branch: x + h w, in one product. */
static lk_value end_branch(llama *m, lki_name name, lk_value h, lk_value x)
{
    lk_linear_options options = linear_options(m->options->width, false);
    return lki_build_linear(&m->base, m->options, name.text, &options, h, x);
}

/* Returns queries or keys with their positions. */
static lk_value rotated(llama *m, uint32_t i, char part, uint32_t heads, lk_value h)
{
    const lk_model_options *o = m->options;
    lk_rope_options rope = { .size = o->head_size, .theta = (double)o->rope_theta,
                             .factor = (double)o->rope_factor, .low = (double)o->rope_low,
                             .high = (double)o->rope_high, .original = o->rope_original };

    h = linear(m, lki_name_of("model.layers.%u.self_attn.%c_proj", i, part),
               (uint64_t)heads * o->head_size, o->qkv_bias, h);
    if (o->qk_norm)
        h = norm(m, lki_name_of("model.layers.%u.self_attn.%c_norm", i, part), o->head_size, h);
    return lki_build(&m->base, &lk_block_rope, "", &rope, sizeof rope, h);
}

static lk_value layer(llama *m, uint32_t i, lk_value x)
{
    const lk_model_options *o         = m->options;
    lk_attention_options    attention = { .heads = o->heads };

    lk_value h = norm(m, lki_name_of("model.layers.%u.input_layernorm", i), 0, x);
    lk_value q = rotated(m, i, 'q', o->heads, h), k = rotated(m, i, 'k', o->kv_heads, h);
    lk_value v = linear(m, lki_name_of("model.layers.%u.self_attn.v_proj", i),
                        (uint64_t)o->kv_heads * o->head_size, o->qkv_bias, h);
    h = lki_build3(&m->base, &lk_block_attention,
                   lki_name_of("model.layers.%u.self_attn", i).text, &attention, sizeof attention,
                   q, k, v);
    x = end_branch(m, lki_name_of("model.layers.%u.self_attn.o_proj", i), h, x);

    h = norm(m, lki_name_of("model.layers.%u.post_attention_layernorm", i), 0, x);
    lk_value gate = linear(m, lki_name_of("model.layers.%u.mlp.gate_proj", i), o->ffn, false, h);
    lk_value up   = linear(m, lki_name_of("model.layers.%u.mlp.up_proj", i), o->ffn, false, h);
    h             = lki_build2(&m->base, &lk_block_swiglu, "", NULL, 0, gate, up);
    return end_branch(m, lki_name_of("model.layers.%u.mlp.down_proj", i), h, x);
}

static void end(llama *m, lk_value x)
{
    const lk_model_options *o      = m->options;
    const char             *shared = o->tie ? "model.embed_tokens.weight" : NULL;
    lk_linear_cross_entropy_options both = { .classes = lki_vocabulary(o), .shared = shared,
                                             .scale = DEVIATION,
                                             .smoothing = o->label_smoothing };
    lk_linear_options head = linear_options(lki_vocabulary(o), false);

    if (!o->logits) {
        lki_build(&m->base, &lk_block_linear_cross_entropy, "lm_head", &both, sizeof both, x);
        return;
    }
    head.shared = shared;
    x = lki_build(&m->base, &lk_block_linear, "lm_head", &head, sizeof head, x);
    lki_build_cross_entropy(&m->base, o, x);
}

static lk_status check_heads(const lk_model_options *o)
{
    if (o->width % o->heads != 0 && o->head_size == o->width / o->heads)
        return lk_fail(LK_EINVAL,
                       "llama: `width` %u cannot be cut into `heads` %u; %u would do, or give "
                       "`head_size`",
                       o->width, o->heads, (o->width / o->heads + 1) * o->heads);
    if (o->heads % o->kv_heads != 0)
        return lk_fail(LK_EINVAL,
                       "llama: `heads` %u cannot share `kv_heads` %u evenly; give a divisor of %u",
                       o->heads, o->kv_heads, o->heads);
    if (o->head_size == 0 || o->head_size % 2 != 0)
        return lk_fail(LK_EINVAL,
                       "llama: a head of %u values; rotary embeddings need an even number (`width` "
                       "/ `heads`, or `head_size`)",
                       o->head_size);
    if (o->head_size > HEAD_SIZE_MAX)
        return lk_fail(LK_EINVAL, "llama: a head of %u values (`head_size`); at most %d",
                       o->head_size, HEAD_SIZE_MAX);
    return LK_OK;
}

static lk_status check_options(const lk_model_options *o)
{
    if (!o->tokens || o->input.rank != 1)
        return lk_fail(
            LK_EINVAL,
            "llama: it reads sequences of tokens; give `data.source` text:FILE or tokens:FILE");
    if (o->classes < 2)
        return lk_fail(LK_EINVAL,
                       "llama: a vocabulary of %u; the tokens of `data.source` must have at least "
                       "2", o->classes);
    LK_TRY(lki_check_tables("llama", o));
    if (o->layers > LAYERS_MAX)
        return lk_fail(LK_EINVAL, "llama: `layers` %u; at most %d", o->layers, LAYERS_MAX);
    LK_TRY(check_heads(o));
    if (!(o->norm_eps > 0.0F && o->norm_eps < 1.0F))
        return lk_fail(LK_EINVAL, "llama: `norm_eps` %g is not in (0, 1)", (double)o->norm_eps);
    if (!(o->rope_theta >= 1.0F && o->rope_theta <= 1e12F))
        return lk_fail(LK_EINVAL, "llama: `rope_theta` %g is not in [1, 1e12]",
                       (double)o->rope_theta);
    if (o->rope_factor > 0.0F && !(o->rope_factor >= 1.0F && o->rope_high > o->rope_low))
        return lk_fail(LK_EINVAL,
                       "llama: `rope_factor` %g, `rope_low` %g, `rope_high` %g; a factor is at "
                       "least 1, and high is above low",
                       (double)o->rope_factor, (double)o->rope_low, (double)o->rope_high);
    return LK_OK;
}

/* Returns 8/3 of the width, rounded up to a multiple of 32: three such matrices have about as many
 * values as two of 4 times the width. */
static uint32_t usual_ffn(uint32_t width)
{
    uint64_t units = ((uint64_t)width * 8 + 3 * FFN_UNIT - 1) / (3 * FFN_UNIT);
    return (uint32_t)(units * FFN_UNIT);
}

void lki_resolve_llama(lk_model_options *out, const lk_model_options *options)
{
    out->vocabulary = options->vocabulary;
    out->positions  = options->positions;
    out->layers     = options->layers > 0 ? options->layers : LAYERS_DEFAULT;
    out->heads      = options->heads > 0 ? options->heads : HEADS_DEFAULT;
    out->kv_heads   = options->kv_heads > 0 ? options->kv_heads : out->heads;
    out->width      = options->width > 0 ? options->width : WIDTH_DEFAULT;
    out->head_size  = options->head_size > 0 ? options->head_size : out->width / out->heads;
    out->ffn        = options->ffn > 0 ? options->ffn : usual_ffn(out->width);
    out->rope_theta = options->rope_theta > 0.0F ? options->rope_theta : 10000.0F;
    out->norm_eps   = options->norm_eps > 0.0F ? options->norm_eps : 1e-5F;
    out->tie        = options->tie;
    out->qkv_bias   = options->qkv_bias;
    out->qk_norm    = options->qk_norm;
    out->logits     = options->logits;
    lki_resolve_lora(out, options, "q_proj,v_proj");

    out->rope_factor   = options->rope_factor;
    out->rope_low      = options->rope_low > 0.0F ? options->rope_low : 1.0F;
    out->rope_high     = options->rope_high > 0.0F ? options->rope_high : 4.0F;
    out->rope_original = options->rope_original > 0 ? options->rope_original : ORIGINAL_DEFAULT;

    out->activation_checkpointing = options->activation_checkpointing;
}

lk_status lki_build_llama(lk_model **out, const lk_model_options *options)
{
    llama m = { .options = options };

    LK_TRY(check_options(options));
    LK_TRY(lki_build_begin(&m.base, "llama", options->input, true));
    lki_build_freeze(&m.base, options);
    lk_embedding_options embedding = { .vocabulary = lki_vocabulary(options),
                                       .width = options->width, .scale = DEVIATION,
                                       .no_positions = true };
    lk_value x = lki_build(&m.base, &lk_block_embedding, "model.embed_tokens", &embedding,
                           sizeof embedding, 0);
    for (uint32_t i = 0; i < options->layers; i++) {
        lki_build_segment(&m.base, options->activation_checkpointing);
        x = layer(&m, i, x);
    }
    lki_build_segment(&m.base, false);
    x = norm(&m, lki_name_of("model.norm"), 0, x);
    end(&m, x);
    return lki_build_end(&m.base, out);
}

/* sample.c -- generates text with a trained gpt or llama, whose tokens are bytes or those of a tokenizer.
 *
 * For every new token the window of the last T tokens passes through the whole model.  Attention
 * only looks back, so positions after the last token have no influence and are zero.  No values of
 * the previous pass are stored.  A cache of these values would save the factor T of work, but needs
 * more code; a model of this size answers in milliseconds.
 *
 * The next token is drawn from the top k tokens with weights exp((logit - max) / temperature).
 * They are summed in FP64 in the order of tokens.  The chosen token is the first at which the
 * running sum exceeds a keyed random number.  The exp function is that of the kernels, so every
 * machine draws the same token.
 */
#include <stdlib.h>
#include <string.h>

#include "base/float.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/rng.h"
#include "tensor/ops.h"
#include "train/loop/sample_text.h"
#include "train/loop/trained.h"

/* A token that may be drawn. */
typedef struct {
    float    logit;
    uint32_t token;
} candidate;

typedef struct {
    const lk_sample_options *options;
    lki_trained              trained;
    lk_exec                 *exec;
    lk_engine               *engine;
    int32_t                 *window;
    float                   *weights; /* of each token, for the draw */
    candidate               *candidates; /* [choices], with top-k */
    lki_sample_text          text;
    uint32_t                 context, vocabulary;
    uint32_t                 choices; /* tokens that may be drawn; the vocabulary may be larger */
} sampler;

/* Chooses the model's window and vocabulary. */
static lk_status describe(sampler *s)
{
    lk_model_options *o = &s->trained.options;
    if (!o->tokens || o->input.rank != 1 || o->input.dims[0] > UINT32_MAX)
        return lk_fail(LK_EINVAL, "%s has a %s, which generates no text; gpt and llama do",
                       s->options->path, s->trained.name);
    s->context    = (uint32_t)o->input.dims[0];
    s->vocabulary = s->choices = o->classes;
    o->logits     = true;
    return lki_sample_text_open(&s->text, s->options, &s->choices);
}

/* ---- Drawing ----------------------------------------------------------------------------- */

static uint32_t likeliest(const float *logits, uint32_t count)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

static int by_logit(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token;
}

/* Sets the weights of the k most likely tokens to 1 and of all others to 0.  Of equally likely
 * tokens the lowest indices come first. */
static void choose_top(const sampler *s, const float *logits)
{
    uint32_t count = s->choices, k = s->options->top_k;
    bool     all   = k == 0 || k >= count;
    for (uint32_t i = 0; i < count; i++) {
        s->weights[i]    = all ? 1 : 0;
        s->candidates[i] = (candidate){ logits[i], i };
    }
    if (all)
        return;
    qsort(s->candidates, count, sizeof *s->candidates, by_logit);
    for (uint32_t i = 0; i < k; i++)
        s->weights[s->candidates[i].token] = 1;
}

static uint32_t draw(const sampler *s, const float *logits, uint32_t index)
{
    uint32_t count = s->choices, best = likeliest(logits, count);
    double   sum = 0;
    if (s->options->temperature <= 0)
        return best;

    choose_top(s, logits);
    for (uint32_t i = 0; i < count; i++) {
        double x      = (double)(logits[i] - logits[best]) / s->options->temperature;
        s->weights[i] = s->weights[i] > 0 ? lki_expf((float)x) : 0;
        sum += (double)s->weights[i];
    }
    lki_random random = lki_philox(s->options->seed, LKI_RNG_SAMPLE, index, 0, 0, 0);
    double     mark   = sum * (double)lki_random_unit(random.word[0]);
    double     past   = 0;
    for (uint32_t i = 0; i < count; i++) {
        past += (double)s->weights[i];
        if (mark < past)
            return i;
    }
    return best;
}

/* ---- Generating -------------------------------------------------------------------------- */

/* Appends a token to the window.  If the window is full, drops the oldest token. */
static void push(sampler *s, uint32_t *used, int32_t token)
{
    if (*used == s->context) {
        memmove(s->window, s->window + 1, (s->context - 1) * sizeof *s->window);
        --*used;
    }
    s->window[(*used)++] = token;
}

static void generate(sampler *s)
{
    const char *prompt = s->options->prompt != NULL ? s->options->prompt : "\n";
    uint32_t    used   = 0;
    lk_walk     walk   = { .params = s->trained.params };

    for (size_t i = 0; i < s->text.count; i++)
        push(s, &used, s->text.prompt[i]);
    s->options->emit(s->options->context, prompt, strlen(prompt));
    for (uint32_t i = 0; i < s->options->tokens; i++) {
        lk_pass pass = { .samples = 1, .x = s->window };
        lk_engine_forward(s->engine, &walk, &pass, 1);
        const float *logits = lk_engine_output(s->engine, 0) + (size_t)(used - 1) * s->vocabulary;
        int32_t      token  = (int32_t)draw(s, logits, i);
        push(s, &used, token);
        lki_sample_text_emit(&s->text, s->options, token);
    }
    lki_sample_text_end(&s->text, s->options);
}

static lk_status open_sampler(sampler *s)
{
    const char *prompt = s->options->prompt;
    if (prompt != NULL && *prompt == '\0')
        return lk_fail(LK_EINVAL, "the prompt is empty; leave it out to begin with a line end");
    if (s->options->path == NULL)
        return lk_fail(LK_EINVAL, "sample: no checkpoint given");
    LK_TRY(lki_trained_open(&s->trained, s->options->path, s->options->heads));
    LK_TRY(describe(s));
    LK_TRY(lk_exec_open(&s->exec, s->options->threads, s->options->isa));
    LK_TRY(lki_trained_load(&s->trained, s->exec, s->options->weights, LK_F32));
    LK_TRY(lk_engine_open(&s->engine, s->trained.model, s->exec, LK_F32, 1, 1));
    LK_TRY(LKI_NEW(&s->window, s->context, "the window"));
    LK_TRY(lki_sample_text_prompt(&s->text, prompt != NULL ? prompt : "\n"));
    LK_TRY(LKI_NEW(&s->candidates, s->choices, "tokens of a draw"));
    return LKI_NEW(&s->weights, s->choices, "weights of a draw");
}

lk_status lk_sample(const lk_sample_options *options)
{
    lk_sample_options mine;

    LK_TRY(lki_options_copy(&mine, sizeof mine, options, "lk_sample_options"));
    sampler  s    = { .options = &mine };
    uint64_t mode = lki_float_mode();
    lki_float_mode_set(LKI_FLOAT_STANDARD);
    lk_status status = open_sampler(&s);
    if (status == LK_OK)
        generate(&s);
    lki_float_mode_set(mode);
    lki_sample_text_close(&s.text);
    lki_free(s.candidates);
    lki_free(s.weights);
    lki_free(s.window);
    lk_engine_free(s.engine);
    lki_trained_close(&s.trained);
    lk_exec_free(s.exec);
    return status;
}

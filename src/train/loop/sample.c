/* sample.c -- generates text with a trained gpt or llama.  Its tokens are bytes, or those of a
 * tokenizer.
 *
 * A pass computes only the positions that are new, because the engine keeps the keys and values of
 * the earlier ones.  The prompt goes through the model in parts of PART positions.  If the window
 * of the model is full, the oldest token is dropped.  All positions have then changed, and are
 * computed again for every token.
 *
 * Without the cache the whole window passes through the model for every token.  The logits have the
 * same bits.
 */
#include <string.h>

#include "base/float.h"
#include "base/memory.h"
#include "base/options.h"
#include "checkpoint/directory.h"
#include "models/build.h"
#include "train/loop/draw.h"
#include "train/loop/sample_text.h"
#include "train/loop/trained.h"
#include "train/saves/tokenizer.h"

enum { PART = 64 };

typedef struct {
    const lk_sample_options *options;
    lki_trained              trained;
    lk_exec                 *exec;
    lk_engine               *engine;
    lki_draw                 draw;
    lki_sample_text          text;
    uint32_t                 context, vocabulary;
    int32_t                 *window; /* [context] */
    uint32_t                 used;   /* tokens in the window */
    uint32_t                 passed; /* of them, those that the engine has seen at their places */
} sampler;

/* ---- Generating -------------------------------------------------------------------------- */

/* Appends a token to the window.  If the window is full, drops the oldest token. */
static void push(sampler *s, int32_t token)
{
    if (s->used == s->context) {
        memmove(s->window, s->window + 1, (s->context - 1) * sizeof *s->window);
        s->used--;
        s->passed = 0;
    }
    s->window[s->used++] = token;
}

/* Returns the logits of the token after the window. */
static const float *next_logits(sampler *s)
{
    lk_walk  walk  = { .params = s->trained.params, .params_bf16 = s->trained.params_bf16 };
    uint32_t count = 0, most = s->options->no_cache ? s->context : PART;

    for (s->passed = s->options->no_cache ? 0 : s->passed; s->passed < s->used;
         s->passed += count) {
        count        = (uint32_t)lki_min(most, s->used - s->passed);
        lk_pass pass = { .samples = 1, .first = s->passed, .length = count,
                         .x = s->window + s->passed };
        lk_engine_forward(s->engine, &walk, &pass, 1);
    }
    return lk_engine_output(s->engine, 0) + (size_t)(count - 1) * s->vocabulary;
}

static void generate(sampler *s, uint32_t text)
{
    const lk_sample_options *o = s->options;
    s->used = s->passed = 0;
    for (size_t i = 0; i < s->text.count; i++)
        push(s, s->text.prompt[i]);
    o->emit(o->context, lki_sample_prompt(o), strlen(lki_sample_prompt(o)));
    for (uint32_t i = 0; i < o->tokens; i++) {
        int32_t token = (int32_t)lki_draw_token(&s->draw, next_logits(s), text, i);
        if (token == s->text.end && !o->ignore_end)
            break;
        push(s, token);
        lki_sample_text_emit(&s->text, o, token);
    }
    lki_sample_text_end(&s->text, o);
    if (o->finished != NULL)
        o->finished(o->context, text);
}

/* ---- Opening ----------------------------------------------------------------------------- */

/* Opens the tokenizer of the model, unless bytes are its tokens. */
static lk_status open_text(sampler *s)
{
    char        found[LKI_PATH_BYTES];
    const char *path = lki_trained_tokenizer(&s->trained, s->options->tokenizer, found);
    if (path == NULL && lki_tokenizer_is_used(&s->trained.options, s->trained.config))
        return lk_fail(LK_EINVAL, "%s has a vocabulary of %u tokens, which are not bytes, and no "
                                  "tokenizer.json lies beside it; give `tokenizer` FILE",
                       s->options->path, s->draw.count);
    return lki_sample_text_open(&s->text, path, &s->draw.count);
}

/* Chooses the vocabulary and the window, which need not be longer than the text. */
static lk_status describe(sampler *s)
{
    const lk_sample_options *o     = s->options;
    lk_model_options        *model = &s->trained.options;
    if (!model->tokens || model->input.rank != 1)
        return lk_fail(LK_EINVAL, "%s has a %s, which generates no text; gpt and llama do",
                       o->path, s->trained.name);
    s->vocabulary = lki_vocabulary(model);
    s->draw       = (lki_draw){ .temperature = o->temperature, .top_k = o->top_k, .seed = o->seed,
                                .top_p = o->top_p > 0 ? o->top_p : 1, .count = model->classes };
    LK_TRY(open_text(s));
    LK_TRY(lki_sample_text_prompt(&s->text, lki_sample_prompt(o)));
    model->input.dims[0] = lki_min(model->input.dims[0], s->text.count + o->tokens);
    model->logits        = true;
    s->context           = (uint32_t)model->input.dims[0];
    return LK_OK;
}

static lk_status open_engine(sampler *s)
{
    const lk_sample_options *o    = s->options;
    lk_dtype                 type = o->precision == LK_BF16 ? LK_BF16 : LK_F32;
    LK_TRY(lk_exec_open(&s->exec, o->threads, o->isa));
    LK_TRY(lki_trained_load(&s->trained, s->exec, o->weights, type));
    if (o->no_cache)
        LK_TRY(lk_engine_open(&s->engine, s->trained.model, s->exec, type, 1, 1));
    else
        LK_TRY(lk_engine_open_cached(&s->engine, s->trained.model, s->exec, type, 1,
                                     (uint32_t)lki_min(PART, s->context)));
    lk_engine_set_frozen(s->engine, s->trained.frozen);
    return LK_OK;
}

static lk_status open_sampler(sampler *s)
{
    if (*lki_sample_prompt(s->options) == '\0')
        return lk_fail(LK_EINVAL, "the prompt is empty; leave it out to begin with a line end");
    if (s->options->path == NULL)
        return lk_fail(LK_EINVAL, "sample: no checkpoint given");
    LK_TRY(lki_trained_open(&s->trained, s->options->path, s->options->heads,
                            s->options->adapter, s->options->tokenizer));
    LK_TRY(describe(s));
    LK_TRY(open_engine(s));
    LK_TRY(LKI_NEW(&s->window, s->context, "the window"));
    return lki_draw_open(&s->draw);
}

lk_status lk_sample(const lk_sample_options *options)
{
    lk_sample_options mine;

    LK_TRY(lki_options_copy(&mine, sizeof mine, options, "lk_sample_options"));
    sampler  s    = { .options = &mine };
    uint64_t mode = lki_float_mode();
    lki_float_mode_set(LKI_FLOAT_STANDARD);
    lk_status status = open_sampler(&s);
    for (uint32_t i = 0; status == LK_OK && i < lki_max(mine.count, 1); i++)
        generate(&s, i);
    lki_float_mode_set(mode);
    lki_sample_text_close(&s.text);
    lki_draw_close(&s.draw);
    lki_free(s.window);
    lk_engine_free(s.engine);
    lki_trained_close(&s.trained);
    lk_exec_free(s.exec);
    return status;
}

/* sample.c -- generates text with a trained gpt, whose tokens are bytes or those of a tokenizer.
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
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/float.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/rng.h"
#include "lockstep/checkpoint.h"
#include "lockstep/train.h"
#include "tensor/ops.h"
#include "train/loop/sample_text.h"

/* A token that may be drawn. */
typedef struct {
    float    logit;
    uint32_t token;
} candidate;

typedef struct {
    const lk_sample_options *options;
    lk_checkpoint           *checkpoint; /* NULL if `file` is open instead */
    lk_safetensors          *file;
    lk_exec                 *exec;
    lk_model                *model;
    lk_engine               *engine;
    const float            **params;
    float                   *values; /* the memory behind `params` */
    int32_t                 *window;
    float                   *weights; /* of each token, for the draw */
    candidate               *candidates; /* [choices], with top-k */
    lki_sample_text          text;
    uint32_t                 context, vocabulary, param_count;
    uint32_t                 choices; /* tokens that may be drawn; the vocabulary may be larger */
} sampler;

/* ---- Contents of the file ---------------------------------------------------------------- */

static const lk_tensor *tensor_at(const sampler *s, size_t index)
{
    return s->checkpoint != NULL ? lk_checkpoint_tensor(s->checkpoint, index)
                                 : lk_safetensors_at(s->file, index);
}

/* Finds a tensor by name.  Other programs may write the names with the prefix "transformer.". */
static const lk_tensor *find_tensor(const sampler *s, const char *name)
{
    static const char prefix[] = "transformer.";
    const lk_tensor  *tensor;
    for (size_t i = 0; (tensor = tensor_at(s, i)) != NULL; i++) {
        const char *bare = tensor->name;
        if (strncmp(bare, prefix, sizeof prefix - 1) == 0)
            bare += sizeof prefix - 1;
        if (strcmp(bare, name) == 0)
            return tensor;
    }
    return NULL;
}

/* Finds a parameter or, if requested, its moving mean in the optimizer's file. */
static const lk_tensor *find_weights(const sampler *s, const char *name)
{
    char             averaged[LK_NAME_MAX + 8];
    const lk_tensor *tensor = NULL;
    (void)snprintf(averaged, sizeof averaged, "%s.ema", name);
    if (s->options->weights != LK_WEIGHTS_MODEL)
        tensor = find_tensor(s, averaged);
    return tensor != NULL || s->options->weights == LK_WEIGHTS_EMA ? tensor : find_tensor(s, name);
}

static uint32_t count_layers(const sampler *s)
{
    char     name[LK_NAME_MAX];
    uint32_t layers = 0;
    do
        (void)snprintf(name, sizeof name, "h.%u.ln_1.weight", (unsigned)layers++);
    while (find_tensor(s, name) != NULL);
    return layers - 1;
}

static lk_status stored_heads(const sampler *s, uint32_t *out)
{
    *out = s->options->heads;
    if (*out != 0)
        return LK_OK;
    if (s->checkpoint != NULL) {
        const char *text   = lk_checkpoint_describe(s->checkpoint)->config;
        json_t     *config = text == NULL ? NULL : json_loads(text, 0, NULL);
        json_t     *heads  = json_object_get(config, "heads");
        json_int_t  number = json_integer_value(heads);
        if (json_is_integer(heads) && number >= 0 && number <= UINT32_MAX) {
            lk_model_options stored = { .struct_size = sizeof stored, .heads = (uint32_t)number };
            if (lk_model_resolve(&stored, "gpt") == LK_OK) /* 0: the default */
                *out = stored.heads;
        }
        json_decref(config);
    }
    if (*out == 0)
        return lk_fail(LK_EINVAL,
                       "%s does not say how many attention heads the model has; give `heads`",
                       s->options->path);
    return LK_OK;
}

static lk_status open_file(sampler *s)
{
    struct stat about;
    const char *path = s->options->path;
    if (path == NULL)
        return lk_fail(LK_EINVAL, "sample: no checkpoint given");
    if (stat(path, &about) == 0 && S_ISREG(about.st_mode))
        return lk_safetensors_open(&s->file, path);
    return lk_checkpoint_open(&s->checkpoint, path, NULL, 0);
}

/* Derives the model's options from the shapes, except the number of heads. */
static lk_status describe(sampler *s, lk_model_options *out)
{
    const lk_tensor *tokens = find_tensor(s, "wte.weight"), *places = find_tensor(s, "wpe.weight");
    uint32_t         heads = 0;

    if (tokens == NULL || places == NULL || tokens->shape.rank != 2 || places->shape.rank != 2)
        return lk_fail(LK_EINVAL, "%s holds no gpt: it has no matrices wte.weight and wpe.weight",
                       s->options->path);
    if (places->shape.dims[0] > UINT32_MAX || tokens->shape.dims[1] > UINT32_MAX ||
        tokens->shape.dims[0] > INT32_MAX)
        return lk_fail(LK_EFORMAT, "%s: wte.weight or wpe.weight is impossibly large",
                       s->options->path);
    LK_TRY(stored_heads(s, &heads));
    s->vocabulary = s->choices = (uint32_t)tokens->shape.dims[0];
    LK_TRY(lki_sample_text_open(&s->text, s->options, &s->choices));
    s->context    = (uint32_t)places->shape.dims[0];
    *out          = (lk_model_options){ .struct_size = sizeof *out,
                                        .input       = { 1, { s->context } },
                                        .tokens      = true,
                                        .logits      = true,
                                        .classes     = s->vocabulary,
                                        .layers      = count_layers(s),
                                        .heads       = heads,
                                        .width       = (uint32_t)tokens->shape.dims[1] };
    if (out->layers == 0)
        return lk_fail(LK_EINVAL, "%s holds no gpt: it has no h.0.ln_1.weight", s->options->path);
    return LK_OK;
}

/* ---- Weights ----------------------------------------------------------------------------- */

static bool same_shape(lk_shape a, lk_shape b)
{
    return a.rank == b.rank && memcmp(a.dims, b.dims, a.rank * sizeof a.dims[0]) == 0;
}

static lk_status load_weights(sampler *s)
{
    const lk_param *params = lk_model_params(s->model, &s->param_count);
    float          *to     = NULL;

    LK_TRY(LKI_NEW(&s->params, s->param_count, "parameters"));
    LK_TRY(LKI_NEW(&s->values, lk_model_param_elements(s->model), "weights"));
    to = s->values;
    for (uint32_t i = 0; i < s->param_count; i++) {
        const lk_tensor *tensor = find_weights(s, params[i].name);
        if (tensor == NULL)
            return lk_fail(LK_EFORMAT, "%s has no tensor %s%s", s->options->path, params[i].name,
                           s->options->weights == LK_WEIGHTS_EMA ? ".ema" : "");
        if (tensor->dtype != LK_F32 || !same_shape(tensor->shape, params[i].shape))
            return lk_fail(LK_EFORMAT,
                           "%s: %s has another shape or type than the model's FP32 tensor",
                           s->options->path, params[i].name);
        size_t count = lk_shape_count(params[i].shape);
        if (tensor->data == NULL)
            return lk_fail(LK_ENOMEM, "%s: a tensor of %zu elements", tensor->name, count);
        memcpy(to, tensor->data, count * sizeof(float));
        size_t finite = lki_finite_count(to, count);
        if (finite < count)
            return lk_fail(LK_EFORMAT,
                           "'%s': element %zu of tensor '%s' is %g; with such weights there is no "
                           "text to be had",
                           s->options->path, finite, tensor->name, (double)to[finite]);
        s->params[i] = to;
        to += count;
    }
    return LK_OK;
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
    lk_walk     walk   = { .params = s->params };

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
    lk_model_options options;
    const char      *prompt = s->options->prompt;
    if (prompt != NULL && *prompt == '\0')
        return lk_fail(LK_EINVAL, "the prompt is empty; leave it out to begin with a line end");
    LK_TRY(open_file(s));
    LK_TRY(describe(s, &options));
    LK_TRY(lk_model_build(&s->model, "gpt", &options));
    LK_TRY(load_weights(s));
    LK_TRY(lk_exec_open(&s->exec, s->options->threads, s->options->isa));
    LK_TRY(lk_engine_open(&s->engine, s->model, s->exec, LK_F32, 1, 1));
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
    lk_exec_free(s.exec);
    lk_model_free(s.model);
    lki_free(s.values);
    lki_free(s.params);
    lk_safetensors_free(s.file);
    lk_checkpoint_free(s.checkpoint);
    return status;
}

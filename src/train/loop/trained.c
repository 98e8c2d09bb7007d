/* trained.c -- reads a trained model; see trained.h. */
#include "train/loop/trained.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/float.h"
#include "base/memory.h"
#include "checkpoint/directory.h"
#include "tensor/ops.h"
#include "train/core/recorded.h"
#include "train/loop/loop.h"
#include "train/loop/sample_text.h"
#include "train/saves/base.h"
#include "train/saves/tokenizer.h"

/* ---- Tensors ----------------------------------------------------------------------------- */

static const lk_tensor *tensor_at(const lki_trained *t, size_t index)
{
    return t->checkpoint != NULL ? lk_checkpoint_tensor(t->checkpoint, index)
                                 : lk_safetensors_at(t->file, index);
}

/* Finds a tensor by name.  Other programs may write the names with the prefix "transformer.". */
static const lk_tensor *find_tensor(const lki_trained *t, const char *name)
{
    static const char prefix[] = "transformer.";
    const lk_tensor  *tensor;
    for (size_t i = 0; (tensor = tensor_at(t, i)) != NULL; i++) {
        const char *bare = tensor->name;
        if (strncmp(bare, prefix, sizeof prefix - 1) == 0)
            bare += sizeof prefix - 1;
        if (strcmp(bare, name) == 0)
            return tensor;
    }
    return NULL;
}

/* Finds a value or, if requested, its moving mean. */
static const lk_tensor *find_weights(const lki_trained *t, const char *name, lk_weights weights)
{
    char             averaged[LK_NAME_MAX + 8];
    const lk_tensor *tensor = NULL;
    (void)snprintf(averaged, sizeof averaged, "%s.ema", name);
    if (weights != LK_WEIGHTS_MODEL)
        tensor = find_tensor(t, averaged);
    return tensor != NULL || weights == LK_WEIGHTS_EMA ? tensor : find_tensor(t, name);
}

/* ---- The options in a checkpoint --------------------------------------------------------- */

/* Reads the model and its options from the configuration of a checkpoint. */
static lk_status read_config(lki_trained *t)
{
    LK_TRY(lki_recorded_model(t->config, t->path, &t->name, &t->options));
    t->options.activation_checkpointing = false;
    return LK_OK;
}

/* ---- The shapes in a file ---------------------------------------------------------------- */

static uint32_t count_layers(const lki_trained *t)
{
    char     name[LK_NAME_MAX];
    uint32_t layers = 0;
    do
        (void)snprintf(name, sizeof name, "h.%u.ln_1.weight", (unsigned)layers++);
    while (find_tensor(t, name) != NULL);
    return layers - 1;
}

/* Derives the options of a gpt from its shapes, except the number of heads. */
static lk_status read_shapes(lki_trained *t, uint32_t heads)
{
    const lk_tensor *tokens = find_tensor(t, "wte.weight"), *places = find_tensor(t, "wpe.weight");
    const uint32_t   layers = count_layers(t);

    if (find_tensor(t, "model.embed_tokens.weight") != NULL)
        return lk_fail(LK_EINVAL,
                       "'%s' has a llama, but not its options; give the directory of the "
                       "checkpoint", t->path);
    if (tokens == NULL || places == NULL || tokens->shape.rank != 2 || places->shape.rank != 2)
        return lk_fail(LK_EINVAL, "%s holds no gpt: it has no matrices wte.weight and wpe.weight",
                       t->path);
    if (places->shape.dims[0] > UINT32_MAX || tokens->shape.dims[1] > UINT32_MAX ||
        tokens->shape.dims[0] > INT32_MAX)
        return lk_fail(LK_EFORMAT, "%s: wte.weight or wpe.weight is impossibly large", t->path);
    if (layers == 0)
        return lk_fail(LK_EINVAL, "%s holds no gpt: it has no h.0.ln_1.weight", t->path);
    if (heads == 0)
        return lk_fail(LK_EINVAL,
                       "%s does not say how many attention heads the model has; give `heads`",
                       t->path);
    t->name    = "gpt";
    t->options = (lk_model_options){ .struct_size = sizeof t->options,
                                     .input       = { 1, { places->shape.dims[0] } },
                                     .tokens      = true,
                                     .classes     = (uint32_t)tokens->shape.dims[0],
                                     .layers      = layers,
                                     .heads       = heads,
                                     .width       = (uint32_t)tokens->shape.dims[1] };
    return LK_OK;
}

/* ---- A Hugging Face folder --------------------------------------------------------------- */

/* Reads the options of the model and of its adapters. */
static lk_status open_pretrained(lki_trained *t, const char *tokenizer)
{
    char            path[LKI_PATH_BYTES];
    lk_train_config config = { .struct_size = sizeof config, .init = t->path };
    config.model_options.adapter = t->adapter;
    config.data.tokenizer        = tokenizer;
    LK_TRY(lki_pretrained_complete(&config));
    t->name                = config.model;
    t->options             = config.model_options;
    t->options.struct_size = sizeof t->options;
    t->options.tokens      = true;
    t->options.classes     = t->options.vocabulary;
    t->options.input       = (lk_shape){ 1, { t->options.positions } };
    if (t->adapter == NULL)
        return LK_OK;
    LK_TRY(lki_directory_join(path, t->adapter, LKI_PEFT_FILE));
    LK_TRY(lki_peft_read_file(&t->peft, path));
    t->options.lora_targets = t->peft.targets;
    return LK_OK;
}

/* Checks the targets of adapters before the model is built with them, which would refuse them as
 * those of a run. */
static lk_status check_targets(const lki_trained *t)
{
    char             path[LKI_PATH_BYTES];
    lk_model        *model   = NULL;
    lk_model_options options = t->options;
    if (t->adapter == NULL)
        return LK_OK;
    options.lora_rank    = 0;
    options.lora_targets = NULL;
    LK_TRY(lki_directory_join(path, t->adapter, LKI_PEFT_FILE));
    LK_TRY(lk_model_build(&model, t->name, &options));
    lk_status status = lki_peft_check(&t->peft, model, path);
    lk_model_free(model);
    return status;
}

/* Checks the files of the weights, before memory is allocated for them, and opens those of the
 * parameters. */
static lk_status check_pretrained(lki_trained *t, lk_weights weights)
{
    char path[LKI_PATH_BYTES];
    if (weights == LK_WEIGHTS_EMA)
        return lk_fail(LK_EINVAL, "'%s' is no run: it has no moving means", t->path);
    LK_TRY(lki_init_check(t->path, t->model));
    if (t->adapter == NULL)
        return lki_folder_open(&t->folder, t->path);
    LK_TRY(lki_adapter_check(t->adapter, t->model));
    LK_TRY(lki_directory_join(path, t->adapter, LKI_PEFT_WEIGHTS));
    return lki_folder_open(&t->folder, path);
}

/* Refuses adapters for what is no Hugging Face folder. */
static lk_status refuse_adapter(const char *path)
{
    if (access(path, F_OK) != 0)
        return lk_fail(LK_EIO, "cannot open '%s', the model that the adapters adapt: %s", path,
                       strerror(errno));
    return lk_fail(LK_EINVAL, "`adapter` is for a folder as transformers writes it, and '%s' is "
                              "none; leave it out, as a run has its own", path);
}

/* Refuses a number of heads for a model whose configuration has it. */
static lk_status refuse_heads(const char *path)
{
    return lk_fail(LK_EINVAL, "`heads` is for a .safetensors file, which does not store it, and "
                              "'%s' has a configuration; leave it out", path);
}

/* Checks a given tokenizer, if there is one beside the weights. */
static lk_status check_tokenizer(const char *path, const char *tokenizer)
{
    char own[LKI_PATH_BYTES];
    return tokenizer != NULL && lki_sample_text_find(own, path)
               ? lki_tokenizer_match(tokenizer, own) : LK_OK;
}

const char *lki_trained_tokenizer(const lki_trained *t, const char *given,
                                  char found[LKI_PATH_BYTES])
{
    const bool used = t->pretrained || lki_tokenizer_is_used(&t->options, t->config);
    return given == NULL && used && lki_sample_text_find(found, t->path) ? found : given;
}

/* Checks that the tokenizer has the tokens of the model. */
static lk_status check_tokens(const lki_trained *t, const char *given)
{
    char        found[LKI_PATH_BYTES];
    const char *tokenizer = lki_trained_tokenizer(t, given, found);
    return tokenizer == NULL ? LK_OK
                             : lki_tokenizer_fits_run(tokenizer, t->path, &t->options, t->config);
}

static lk_status open_run(lki_trained *t, uint32_t heads)
{
    struct stat about;
    if (stat(t->path, &about) == 0 && S_ISREG(about.st_mode)) {
        LK_TRY(lk_safetensors_open(&t->file, t->path));
        return read_shapes(t, heads);
    }
    LK_TRY(lk_checkpoint_open(&t->checkpoint, t->path, NULL, 0));
    const char *text = lk_checkpoint_describe(t->checkpoint)->config;
    t->config        = text == NULL ? NULL : json_loads(text, 0, NULL);
    if (!json_is_string(json_object_get(t->config, "model")))
        return read_shapes(t, heads);
    return heads > 0 ? refuse_heads(t->path) : read_config(t);
}

lk_status lki_trained_open(lki_trained *t, const char *path, uint32_t heads, const char *adapter,
                           const char *tokenizer)
{
    *t = (lki_trained){ .path = path, .adapter = adapter };
    LK_TRY(lki_is_pretrained(&t->pretrained, path));
    if (t->pretrained && heads > 0)
        return refuse_heads(path);
    if (t->pretrained)
        return open_pretrained(t, tokenizer);
    if (adapter != NULL)
        return refuse_adapter(path);
    LK_TRY(check_tokenizer(path, tokenizer));
    LK_TRY(open_run(t, heads));
    return check_tokens(t, tokenizer);
}

/* ---- Weights ----------------------------------------------------------------------------- */

/* Finds the tensor of a parameter or of running state, and checks it. */
static lk_status find_values(const lki_trained *t, const char *name, lk_shape shape,
                             lk_weights weights, const float **out)
{
    const lk_tensor *tensor = find_weights(t, name, weights);
    size_t           count  = lk_shape_count(shape);
    if (tensor == NULL)
        return lk_fail(LK_EFORMAT, "%s has no tensor %s%s", t->path, name,
                       weights == LK_WEIGHTS_EMA ? ".ema: the run was without `optimizer.ema`"
                                                 : "");
    if (tensor->dtype != LK_F32 || !lki_init_fits(name, shape, tensor->shape))
        return lk_fail(LK_EFORMAT, "%s: %s has another shape or type than the model's FP32 tensor",
                       t->path, name);
    if (tensor->data == NULL)
        return lk_fail(LK_ENOMEM, "%s: a tensor of %zu elements", tensor->name, count);
    size_t finite = lki_finite_count(tensor->data, count);
    if (finite < count)
        return lk_fail(LK_EFORMAT,
                       "'%s': element %zu of tensor '%s' is %g; nothing can be computed with such "
                       "weights",
                       t->path, finite, tensor->name,
                       (double)((const float *)tensor->data)[finite]);
    *out = tensor->data;
    return LK_OK;
}

/* Returns the bytes of a value, in whole cache lines. */
static size_t bytes_of(size_t count, size_t each)
{
    return lki_round_up(count * each, LKI_LINE);
}

/* Reads a parameter as floats. */
static lk_status read_param(lki_trained *t, lk_exec *exec, const lk_param *param,
                            lk_weights weights, float *out)
{
    const char  *folder = t->adapter != NULL ? t->adapter : t->path;
    const float *from   = NULL;
    if (t->pretrained)
        return lki_init_read(exec, t->folder, folder, param, out);
    LK_TRY(find_values(t, param->name, param->shape, weights, &from));
    memcpy(out, from, lk_shape_count(param->shape) * sizeof *out);
    return LK_OK;
}

static lk_status load_param(lki_trained *t, lk_exec *exec, const lk_param *param, uint32_t p,
                            lk_weights weights, unsigned char **at)
{
    float       *wide  = NULL;
    const size_t count = lk_shape_count(param->shape);
    if (t->params_bf16 == NULL || !param->bf16) {
        float *values = (float *)(void *)*at;
        t->params[p]  = values;
        *at += bytes_of(count, sizeof *values);
        return read_param(t, exec, param, weights, values);
    }
    LK_TRY(LKI_NEW(&wide, count, "a parameter"));
    lk_status status = read_param(t, exec, param, weights, wide);
    if (status == LK_OK)
        lki_convert(exec, count, LK_F32, wide, LK_BF16, *at);
    lki_free(wide);
    t->params_bf16[p] = (const uint16_t *)(const void *)*at;
    *at += bytes_of(count, sizeof **t->params_bf16);
    return status;
}

static lk_status load_state(lki_trained *t, const lk_state *state, uint32_t i, lk_weights weights,
                            unsigned char **at)
{
    const float *from  = NULL;
    lk_shape     shape = { 1, { state->count } };
    LK_TRY(find_values(t, state->name, shape, weights, &from));
    memcpy(*at, from, state->count * sizeof *from);
    t->state[i] = (const float *)(const void *)*at;
    *at += bytes_of(state->count, sizeof *from);
    return LK_OK;
}

static size_t count_bytes(const lki_trained *t, const lk_param *params, const lk_state *states)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < t->param_count; i++)
        bytes += bytes_of(lk_shape_count(params[i].shape),
                          t->params_bf16 != NULL && params[i].bf16 ? 2 : 4);
    for (uint32_t i = 0; i < t->state_count; i++)
        bytes += bytes_of(states[i].count, 4);
    return bytes;
}

/* Reads the frozen parameters of a model with adapters. */
static lk_status load_base(lki_trained *t, lk_exec *exec)
{
    uint32_t    count;
    char        hash[65];
    const char *folder = t->pretrained ? t->path : lki_base_recorded(t->config);
    (void)lk_model_frozen(t->model, &count);
    if (count == 0)
        return LK_OK;
    if (folder == NULL)
        return lk_fail(LK_EFORMAT, "'%s' has adapters, but does not say of which model", t->path);
    LK_TRY(LKI_NEW(&t->frozen, count, "frozen parameters"));
    LK_TRY(lki_alloc(&t->base, lki_base_bytes(t->model), "frozen parameters"));
    LK_TRY(lki_base_read(folder, exec, t->model, t->base, t->frozen, t->pretrained ? NULL : hash));
    return t->pretrained ? LK_OK : lki_base_compare(t->config, folder, hash);
}

lk_status lki_trained_load(lki_trained *t, lk_exec *exec, lk_weights weights, lk_dtype dtype)
{
    unsigned char *at;
    LK_TRY(check_targets(t));
    LK_TRY(lk_model_build(&t->model, t->name, &t->options));
    const lk_param *params = lk_model_params(t->model, &t->param_count);
    const lk_state *states = lk_model_states(t->model, &t->state_count);

    if (t->pretrained)
        LK_TRY(check_pretrained(t, weights));
    LK_TRY(LKI_NEW(&t->params, t->param_count, "parameters"));
    LK_TRY(LKI_NEW(&t->state, t->state_count, "running state"));
    if (dtype == LK_BF16)
        LK_TRY(LKI_NEW(&t->params_bf16, t->param_count, "parameters"));
    LK_TRY(lki_alloc(&t->values, count_bytes(t, params, states), "weights"));
    at = t->values;
    for (uint32_t i = 0; i < t->param_count; i++)
        LK_TRY(load_param(t, exec, &params[i], i, weights, &at));
    for (uint32_t i = 0; i < t->state_count; i++)
        LK_TRY(load_state(t, &states[i], i, weights, &at));
    return load_base(t, exec);
}

void lki_trained_close(lki_trained *t)
{
    lk_model_free(t->model);
    lki_free(t->values);
    lki_free(t->params);
    lki_free(t->params_bf16);
    lki_free(t->state);
    lki_free(t->frozen);
    lki_free(t->base);
    lki_folder_free(t->folder);
    lk_safetensors_free(t->file);
    lk_checkpoint_free(t->checkpoint);
    json_decref(t->config);
}

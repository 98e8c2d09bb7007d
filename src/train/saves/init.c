/* init.c -- the weights that a run starts with, from a safetensors file or a Hugging Face folder,
 * and adapters in a folder of PEFT's.
 *
 * Rank 0 reads the values and broadcasts them.  All names, types and shapes are checked before.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/float.h"
#include "base/memory.h"
#include "checkpoint/folder.h"
#include "models/peft.h"
#include "tensor/ops.h"
#include "train/saves/base.h"

/* Sets *out to true if a folder has one of the files. */
static lk_status has_one(bool *out, const char *folder, const char *const *names)
{
    char path[LKI_PATH_BYTES];
    for (*out = false; !*out && *names != NULL; names++) {
        LK_TRY(lki_directory_join(path, folder, *names));
        *out = access(path, F_OK) == 0;
    }
    return LK_OK;
}

lk_status lki_is_pretrained(bool *out, const char *path)
{
    static const char *const configs[]  = { "config.json", LKI_PEFT_FILE, NULL };
    static const char *const weights[]  = { LKI_MODEL_FILE, "model.safetensors.index.json", NULL };
    static const char *const manifest[] = { LKI_MANIFEST_NAME, NULL };
    static const char *const command[]  = { LK_RUN_COMMAND, NULL };
    bool                     other      = false; /* a run or a checkpoint */
    *out = false;
    if (!lki_is_folder(path))
        return LK_OK;
    LK_TRY(lk_checkpoint_exists(path, &other));
    if (!other)
        LK_TRY(has_one(&other, path, command)); /* before its first checkpoint */
    if (!other)
        LK_TRY(has_one(out, path, configs));
    if (other || *out)
        return LK_OK;
    LK_TRY(has_one(&other, path, manifest));
    return other ? LK_OK : has_one(out, path, weights);
}

/* The prefixes that other programs may write before names: of GPT-2, and of adapters. */
static const char *const prefixes[] = { "", "transformer.", "base_model.model.",
                                        "base_model.model.transformer.", NULL };

const char *lki_init_bare(const char *name)
{
    size_t longest = 0;
    for (size_t i = 0; prefixes[i] != NULL; i++) {
        size_t bytes = strlen(prefixes[i]);
        if (bytes > longest && strncmp(name, prefixes[i], bytes) == 0)
            longest = bytes;
    }
    return name + longest;
}

static const lk_tensor *find_param(const lki_folder *file, const char *name)
{
    char             prefixed[LK_NAME_MAX + 48];
    const lk_tensor *tensor = NULL;
    for (size_t i = 0; tensor == NULL && prefixes[i] != NULL; i++) {
        (void)snprintf(prefixed, sizeof prefixed, "%s%s", prefixes[i], name);
        tensor = lki_folder_find(file, prefixed);
    }
    return tensor;
}

/* Returns true if `name` is that of a parameter, after one of the prefixes. */
static bool is_named(const char *name, const char *param)
{
    bool same = false;
    for (size_t i = 0; !same && prefixes[i] != NULL; i++) {
        size_t bytes = strlen(prefixes[i]);
        same = strncmp(name, prefixes[i], bytes) == 0 && strcmp(name + bytes, param) == 0;
    }
    return same;
}

bool lki_init_fits(const char *name, lk_shape shape, lk_shape file)
{
    bool fits = file.rank == shape.rank;
    for (uint32_t d = 0; fits && d < file.rank; d++)
        if (d == 0 && strcmp(name, "wpe.weight") == 0)
            fits = file.dims[d] >= shape.dims[d];
        else
            fits = file.dims[d] == shape.dims[d];
    return fits;
}

/* Does the same for a tensor of a file or of a folder, whose configuration has the number of
 * positions. */
static bool fits(const lk_param *param, const lk_tensor *tensor, const char *path)
{
    return lki_init_fits(param->name, param->shape, tensor->shape) &&
           (tensor->shape.dims[0] == param->shape.dims[0] || !lki_is_folder(path));
}

static void describe_shape(lk_shape shape, char *text, size_t bytes)
{
    size_t at = 0;
    text[0]   = '\0';
    for (uint32_t d = 0; d < shape.rank && at < bytes; d++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%llu", d ? " x " : "",
                               (unsigned long long)shape.dims[d]);
}

/* Returns what to do about a file or folder that does not fit: other words for the tensors of
 * adapters. */
static const char *advice(const char *path, const char *param)
{
    const bool adapter = strstr(param, ".lora_A.") != NULL || strstr(param, ".lora_B.") != NULL;
    return adapter ? "the adapters were made for another base than that of `init`, or with another "
                     "configuration"
           : lki_is_folder(path) ? "config.json and the weights of the folder are of two models; "
                                   "copy both from one"
                                 : "set the model's options as the file was made";
}

static lk_status init_tensor(const lk_tensor **out, const lki_folder *file, const char *path,
                             const lk_param *param)
{
    char theirs[96], ours[96];
    *out = find_param(file, param->name);
    if (*out == NULL && strcmp(param->name, "lm_head.weight") == 0)
        return lk_fail(LK_EFORMAT, "'%s' has no tensor 'lm_head.weight', so its head is the "
                                   "embedding, but this model's is not (%s)", path,
                       lki_is_folder(path) ? "tie_word_embeddings in config.json" : "`tie`");
    if (*out == NULL)
        return lk_fail(LK_EFORMAT, "'%s' has no tensor '%s': it is not a file of this model; %s",
                       path, param->name, advice(path, param->name));
    if (!fits(param, *out, path)) {
        describe_shape((*out)->shape, theirs, sizeof theirs);
        describe_shape(param->shape, ours, sizeof ours);
        return lk_fail(LK_EFORMAT,
                       "'%s': tensor '%s' is %s, but this model's is %s; %s",
                       path, param->name, theirs, ours, advice(path, param->name));
    }
    if ((*out)->dtype != LK_F32 && (*out)->dtype != LK_F16 && (*out)->dtype != LK_BF16)
        return lk_fail(LK_EUNSUPPORTED, "'%s': tensor '%s' is %s; F32, F16 and BF16 can be read",
                       path, param->name, lk_dtype_name((*out)->dtype));
    return LK_OK;
}

/* Describes a running statistic as a parameter. */
static lk_param param_of_state(const lk_state *state)
{
    lk_param param = { .shape = { 1, { state->count } } };
    (void)snprintf(param.name, sizeof param.name, "%s", state->name);
    return param;
}

/* Returns true if the file has running statistics, such as a state_dict of PyTorch. */
static bool has_states(const lki_folder *file, const lk_state *states, uint32_t count)
{
    return count > 0 && find_param(file, states[0].name) != NULL;
}

/* Returns true for tensors that a file may have in addition to the model's: buffers of older
 * versions of transformers, and the numbers of batches of a state_dict with BatchNorm. */
static bool is_buffer(const char *name)
{
    const char *tail = strrchr(name, '.');
    bool        bias = tail != NULL && strcmp(tail, ".bias") == 0 && tail - name >= 5 &&
                strncmp(tail - 5, ".attn", 5) == 0;
    bool batches = tail != NULL && strcmp(tail, ".num_batches_tracked") == 0;
    return bias || batches || strstr(name, ".attn.masked_bias") != NULL ||
           strstr(name, ".rotary_emb.inv_freq") != NULL;
}

/* Checks the head of a file for a model whose head is the embedding: it must be equal to that. */
static lk_status check_tied(const lki_folder *file, const char *path, const lk_tensor *head)
{
    const lk_tensor *table = find_param(file, "wte.weight");
    table = table != NULL ? table : find_param(file, "model.embed_tokens.weight");
    if (table != NULL && table->dtype == head->dtype &&
        lk_shape_count(table->shape) == lk_shape_count(head->shape) &&
        memcmp(table->data, head->data,
               lk_shape_count(table->shape) * lk_dtype_bytes(table->dtype)) == 0)
        return LK_OK;
    return lk_fail(LK_EFORMAT, "'%s': the tensor '%s' is not equal to the embedding, but this "
                               "model has one weight for both", path, head->name);
}

/* Fails if a file has a tensor under two names, with and without a prefix, and other values. */
static lk_status check_doubled(const lki_folder *file, const char *path, const lk_tensor *tensor)
{
    const lk_tensor *used = find_param(file, lki_init_bare(tensor->name));
    if (used == NULL || used == tensor)
        return LK_OK;
    const uint64_t count = lk_shape_count(tensor->shape);
    if (used->dtype == tensor->dtype && lk_shape_count(used->shape) == count &&
        memcmp(used->data, tensor->data, count * lk_dtype_bytes(tensor->dtype)) == 0)
        return LK_OK;
    return lk_fail(LK_EFORMAT, "'%s' has one weight under two names, '%s' and '%s', with other "
                               "values: remove one of them", path, used->name, tensor->name);
}

/* The tensors that a file must have: parameters, and possibly running statistics. */
typedef struct {
    const lk_param *params;
    const lk_state *states;
    uint32_t        count, state_count;
} contents;

/* Fails if the file has more tensors than the model, because it then belongs to another model. */
static lk_status check_nothing_left(const lki_folder *file, const char *path, const contents *c)
{
    const lk_tensor *tensor;
    for (size_t i = 0; (tensor = lki_folder_at(file, i)) != NULL; i++) {
        const char *name = tensor->name;
        bool        used = false;
        LK_TRY(check_doubled(file, path, tensor));
        for (uint32_t p = 0; p < c->count && !used; p++)
            used = is_named(name, c->params[p].name);
        for (uint32_t k = 0; k < c->state_count && !used; k++)
            used = is_named(name, c->states[k].name);
        if (!used && is_named(name, "lm_head.weight"))
            LK_TRY(check_tied(file, path, tensor));
        else if (!used && !is_buffer(name))
            return lk_fail(LK_EFORMAT,
                           "'%s' has a tensor '%s' for which this model has no place: it is "
                           "another model's; %s", path, tensor->name,
                           advice(path, c->params[0].name));
    }
    return LK_OK;
}

/* Fails if a file that should have a model has adapters. */
static lk_status refuse_adapters(const lki_folder *file, const char *path, const contents *c)
{
    const lk_tensor *first = lki_folder_at(file, 0);
    if (first == NULL || strstr(first->name, ".lora_A.") == NULL || c->count == 0 ||
        strstr(c->params[0].name, ".lora_A.") != NULL)
        return LK_OK;
    return lk_fail(LK_EINVAL, "'%s' has adapters, not a model: give their folder as `adapter`, and "
                              "the model that they adapt as `init`", path);
}

static lk_status check_file(const char *path, const contents *c)
{
    const lk_tensor *tensor;
    lki_folder      *file   = NULL;
    lk_status        status = lki_folder_open(&file, path);
    if (status == LK_OK)
        status = refuse_adapters(file, path, c);
    for (uint32_t p = 0; status == LK_OK && p < c->count; p++)
        status = init_tensor(&tensor, file, path, &c->params[p]);
    if (status == LK_OK && has_states(file, c->states, c->state_count))
        for (uint32_t i = 0; status == LK_OK && i < c->state_count; i++) {
            const lk_param state = param_of_state(&c->states[i]);
            status               = init_tensor(&tensor, file, path, &state);
        }
    if (status == LK_OK)
        status = check_nothing_left(file, path, c);
    lki_folder_free(file);
    return status;
}

/* Fails because there is no such file or folder.  The message has the whole path, as verify has
 * changed to the directory in which the run was started. */
static lk_status refuse_missing(const char *path)
{
    const int  why = errno;
    char       here[LKI_PATH_BYTES];
    const bool relative = *path != '/' && getcwd(here, sizeof here) != NULL;
    return lk_fail(LK_EIO, "cannot open '%s%s%s', the weights that the run begins with: %s; if "
                           "they have moved, give their new path as `init`",
                   relative ? here : "", relative ? "/" : "", path, strerror(why));
}

lk_status lki_init_check(const char *path, const lk_model *model)
{
    contents c;
    if (access(path, F_OK) != 0)
        return refuse_missing(path);
    c.params = lk_model_frozen(model, &c.count);
    if (c.count == 0)
        c.params = lk_model_params(model, &c.count);
    c.states = lk_model_states(model, &c.state_count);
    return check_file(path, &c);
}

lk_status lki_init_read_part(lk_exec *exec, const lki_folder *file, const char *path,
                             const lk_param *param, size_t first, size_t count, float *values)
{
    const lk_tensor *tensor;
    LK_TRY(init_tensor(&tensor, file, path, param));
    const uint8_t *from = (const uint8_t *)tensor->data + first * lk_dtype_bytes(tensor->dtype);
    lki_convert(exec, count, tensor->dtype, from, LK_F32, values);
    size_t finite = lki_finite_count(values, count);
    if (finite < count)
        return lk_fail(LK_EFORMAT, "'%s': element %zu of tensor '%s' is %g; weights must be finite",
                       path, first + finite, tensor->name, (double)values[finite]);
    return LK_OK;
}

lk_status lki_init_read(lk_exec *exec, const lki_folder *file, const char *path,
                        const lk_param *param, float *values)
{
    return lki_init_read_part(exec, file, path, param, 0, lk_shape_count(param->shape), values);
}

/* Reads initial values on the rank that has the file, and shares them.  The caller frees
 * *values. */
static lk_status share_values(lki_session *session, const lki_folder *file, const char *path,
                              const lk_param *param, float **values)
{
    size_t count = lk_shape_count(param->shape);
    LK_TRY(LKI_NEW(values, count, "initial values"));
    if (file != NULL)
        LK_TRY(lki_init_read(session->exec, file, path, param, *values));
    return lk_broadcast(session->comm, *values, count * sizeof **values, 0);
}

/* Loads the running statistics, if the file has them. */
static lk_status load_states(lki_session *session, const lki_folder *file)
{
    lk_status status = LK_OK;
    bool has = file != NULL && has_states(file, session->states, session->state_count);
    LK_TRY(lk_broadcast(session->comm, &has, sizeof has, 0));
    for (uint32_t i = 0; has && status == LK_OK && i < session->state_count; i++) {
        const lk_param state  = param_of_state(&session->states[i]);
        float         *values = NULL;
        status                = share_values(session, file, session->config->init, &state, &values);
        if (status == LK_OK)
            status = lk_parallel_load_state(session->parallel, i, values);
        lki_free(values);
    }
    return status;
}

/* Loads the parameters, and the running statistics that the file may have. */
static lk_status load_file(lki_session *session, const char *path)
{
    lki_folder *file   = NULL;
    lk_status   status = LK_OK;
    if (session->rank == 0)
        status = lki_folder_open(&file, path);
    for (uint32_t p = 0; status == LK_OK && p < session->param_count; p++) {
        float *values = NULL;
        status        = share_values(session, file, path, &session->params[p], &values);
        if (status == LK_OK)
            status = lk_parallel_load(session->parallel, p, 0, values);
        lki_free(values);
    }
    if (status == LK_OK)
        status = load_states(session, file);
    lki_folder_free(file);
    return status;
}

lk_status lki_init_load(lki_session *session)
{
    const lk_train_config *config = session->config;
    char                   path[LKI_PATH_BYTES];
    if (session->base == NULL)
        return config->init == NULL ? LK_OK : load_file(session, config->init);
    if (config->model_options.adapter == NULL)
        return LK_OK;
    LK_TRY(lki_directory_join(path, config->model_options.adapter, LKI_PEFT_WEIGHTS));
    return load_file(session, path);
}

/* ---- Adapters ------------------------------------------------------------------------------ */

/* Fails if a folder has its adapters in PyTorch's format only. */
static lk_status refuse_pickled(const char *folder)
{
    char path[LKI_PATH_BYTES];
    LK_TRY(lki_directory_join(path, folder, LKI_PEFT_WEIGHTS));
    if (access(path, F_OK) == 0)
        return LK_OK;
    LK_TRY(lki_directory_join(path, folder, "adapter_model.bin"));
    if (access(path, F_OK) != 0)
        return LK_OK;
    return lk_fail(LK_EUNSUPPORTED, "'%s' has adapter_model.bin, but only safetensors is read: "
                                    "load it with PEFT and save it again (save_pretrained), which "
                                    "writes " LKI_PEFT_WEIGHTS, folder);
}

lk_status lki_adapter_check(const char *folder, const lk_model *model)
{
    contents c = { .states = NULL };
    char     path[LKI_PATH_BYTES];
    lki_peft peft;
    c.params = lk_model_params(model, &c.count);
    LK_TRY(lki_directory_join(path, folder, LKI_PEFT_FILE));
    LK_TRY(lki_peft_read_file(&peft, path));
    LK_TRY(lki_peft_compare(&peft, model, path));
    LK_TRY(refuse_pickled(folder));
    LK_TRY(lki_directory_join(path, folder, LKI_PEFT_WEIGHTS));
    return check_file(path, &c);
}

lk_status lki_adapter_complete(lk_train_config *c)
{
    lk_model_options *o = &c->model_options;
    char              path[LKI_PATH_BYTES];
    lki_peft          peft;
    const bool        told = o->lora_rank != 0 && o->lora_alpha > 0;
    if (o->adapter == NULL || (told && c->checkpoint.resume_required))
        return LK_OK;
    LK_TRY(lki_directory_join(path, o->adapter, LKI_PEFT_FILE));
    if (told && access(path, F_OK) != 0)
        return LK_OK; /* a run that continues does not need the folder; another one reports it */
    if (access(path, F_OK) != 0)
        return lk_fail(LK_EINVAL, "`adapter`: '%s' has no " LKI_PEFT_FILE "; give a folder as PEFT "
                                  "writes it, and a whole model as `init`",
                       o->adapter);
    LK_TRY(lki_peft_read_file(&peft, path));
    if (o->lora_rank != 0 && o->lora_rank != peft.rank)
        return lk_fail(LK_EINVAL, "`lora_rank` is %u, but %s has %u; leave it out", o->lora_rank,
                       path, peft.rank);
    if (o->lora_alpha > 0 && (o->lora_alpha < peft.alpha || o->lora_alpha > peft.alpha))
        return lk_fail(LK_EINVAL, "`lora_alpha` is %g, but %s has %g; leave it out",
                       (double)o->lora_alpha, path, (double)peft.alpha);
    o->lora_rank  = peft.rank;
    o->lora_alpha = peft.alpha;
    return LK_OK;
}

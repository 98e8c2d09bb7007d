/* init.c -- the weights that a run starts with, from a safetensors file or a Hugging Face folder.
 *
 * Rank 0 reads the values and broadcasts them.  All names, types and shapes are checked before.
 */
#include <stdio.h>
#include <string.h>

#include "base/float.h"
#include "base/memory.h"
#include "checkpoint/folder.h"
#include "tensor/ops.h"
#include "train/saves/save.h"

/* Finds a parameter by name.  Other programs may write GPT-2's names with the prefix
 * "transformer.". */
static const lk_tensor *find_param(const lki_folder *file, const char *name)
{
    char             prefixed[LK_NAME_MAX + 16];
    const lk_tensor *tensor = lki_folder_find(file, name);
    if (tensor != NULL)
        return tensor;
    (void)snprintf(prefixed, sizeof prefixed, "transformer.%s", name);
    return lki_folder_find(file, prefixed);
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

static void describe_shape(lk_shape shape, char *text, size_t bytes)
{
    size_t at = 0;
    text[0]   = '\0';
    for (uint32_t d = 0; d < shape.rank && at < bytes; d++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%llu", d ? " x " : "",
                               (unsigned long long)shape.dims[d]);
}

static lk_status init_tensor(const lk_tensor **out, const lki_folder *file, const char *path,
                             const lk_param *param)
{
    char theirs[96], ours[96];
    *out = find_param(file, param->name);
    if (*out == NULL && strcmp(param->name, "lm_head.weight") == 0)
        return lk_fail(LK_EFORMAT, "'%s' has no tensor 'lm_head.weight', so its head is the "
                                   "embedding, but this model's is not (`tie`)", path);
    if (*out == NULL)
        return lk_fail(LK_EFORMAT, "'%s' has no tensor '%s': it is not a file of this model", path,
                       param->name);
    if (!lki_init_fits(param->name, param->shape, (*out)->shape)) {
        describe_shape((*out)->shape, theirs, sizeof theirs);
        describe_shape(param->shape, ours, sizeof ours);
        return lk_fail(LK_EFORMAT,
                       "'%s': tensor '%s' is %s, but this model's is %s; set the model's "
                       "options as the file was made",
                       path, param->name, theirs, ours);
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

/* Fails if the file has more tensors than the model, because it then belongs to another model. */
static lk_status check_nothing_left(const lki_folder *file, const char *path,
                                    const lk_model *model)
{
    uint32_t         count, state_count;
    const lk_param  *params = lk_model_params(model, &count);
    const lk_state  *states = lk_model_states(model, &state_count);
    const lk_tensor *tensor;
    for (size_t i = 0; (tensor = lki_folder_at(file, i)) != NULL; i++) {
        const char      *name   = tensor->name;
        bool             used   = false;
        if (strncmp(name, "transformer.", 12) == 0)
            name += 12;
        for (uint32_t p = 0; p < count && !used; p++)
            used = strcmp(name, params[p].name) == 0;
        for (uint32_t k = 0; k < state_count && !used; k++)
            used = strcmp(name, states[k].name) == 0;
        if (!used && strcmp(name, "lm_head.weight") == 0)
            LK_TRY(check_tied(file, path, tensor));
        else if (!used && !is_buffer(name))
            return lk_fail(LK_EFORMAT,
                           "'%s' has a tensor '%s' for which this model has no place: it is "
                           "another model's; set the model's options as the file was made",
                           path, tensor->name);
    }
    return LK_OK;
}

lk_status lki_init_check(const char *path, const lk_model *model)
{
    uint32_t         count, state_count;
    const lk_param  *params = lk_model_params(model, &count);
    const lk_state  *states = lk_model_states(model, &state_count);
    const lk_tensor *tensor;
    lki_folder      *file   = NULL;
    lk_status        status = lki_folder_open(&file, path);
    for (uint32_t p = 0; status == LK_OK && p < count; p++)
        status = init_tensor(&tensor, file, path, &params[p]);
    if (status == LK_OK && has_states(file, states, state_count))
        for (uint32_t i = 0; status == LK_OK && i < state_count; i++) {
            const lk_param state = param_of_state(&states[i]);
            status               = init_tensor(&tensor, file, path, &state);
        }
    if (status == LK_OK)
        status = check_nothing_left(file, path, model);
    lki_folder_free(file);
    return status;
}

/* Reads a tensor of the file as floats, and checks that all values are finite. */
static lk_status read_init(lk_exec *exec, const lki_folder *file, const char *path,
                           const lk_param *param, size_t count, float *values)
{
    const lk_tensor *tensor;
    LK_TRY(init_tensor(&tensor, file, path, param));
    lki_convert(exec, count, tensor->dtype, tensor->data, LK_F32, values);
    size_t finite = lki_finite_count(values, count);
    if (finite < count)
        return lk_fail(LK_EFORMAT, "'%s': element %zu of tensor '%s' is %g; weights must be finite",
                       path, finite, tensor->name, (double)values[finite]);
    return LK_OK;
}

/* Reads initial values on the rank that has the file, and shares them.  The caller frees
 * *values. */
static lk_status share_values(lki_session *session, const lki_folder *file, const lk_param *param,
                              float **values)
{
    size_t count = lk_shape_count(param->shape);
    LK_TRY(LKI_NEW(values, count, "initial values"));
    if (file != NULL)
        LK_TRY(read_init(session->exec, file, session->config->init, param, count, *values));
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
        status                = share_values(session, file, &state, &values);
        if (status == LK_OK)
            status = lk_parallel_load_state(session->parallel, i, values);
        lki_free(values);
    }
    return status;
}

lk_status lki_init_load(lki_session *session)
{
    lki_folder *file   = NULL;
    lk_status   status = LK_OK;
    if (session->rank == 0)
        status = lki_folder_open(&file, session->config->init);
    for (uint32_t p = 0; status == LK_OK && p < session->param_count; p++) {
        float *values = NULL;
        status        = share_values(session, file, &session->params[p], &values);
        if (status == LK_OK)
            status = lk_parallel_load(session->parallel, p, 0, values);
        lki_free(values);
    }
    if (status == LK_OK)
        status = load_states(session, file);
    lki_folder_free(file);
    return status;
}

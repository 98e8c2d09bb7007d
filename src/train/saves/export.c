/* export.c -- a checkpoint as a folder of Hugging Face's transformers, or its adapters as one of
 * PEFT's; or such a folder again, with other types or shards.
 *
 * The model is built from the recorded options or those of the folder, so names and shapes of all
 * tensors are known before anything is written.  Values are read, converted and written piece by
 * piece.
 */
#include "lockstep/train.h"

#include <errno.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/float.h"
#include "base/memory.h"
#include "base/options.h"
#include "checkpoint/directory.h"
#include "checkpoint/folder.h"
#include "checkpoint/output.h"
#include "lockstep/tokenizer.h"
#include "models/hugging_face.h"
#include "models/peft.h"
#include "tensor/ops.h"
#include "train/core/group_values.h"
#include "train/core/recorded.h"
#include "train/saves/base.h"
#include "train/saves/tokenizer.h"
#include "train/saves/types.h"

#define SHARD_BYTES UINT64_C(5000000000)
#define F16_OVERFLOW 65520.0F /* smallest number that rounds to infinity */

typedef struct {
    const lk_export_options *options;
    lk_checkpoint           *checkpoint;
    lki_folder              *folder; /* in place of a checkpoint; or NULL */
    char                     run[LKI_PATH_BYTES]; /* the directory of the run, or the folder */
    char                     draft[LKI_PATH_BYTES];
    const lki_hf_family     *family;
    json_t                  *config; /* config.json, or adapter_config.json */
    bool                     adapters; /* only the adapters are written */
    bool                     copies; /* the small files of the run, or of the folder */
    bool                     kept;   /* `config` is that of the run's first folder, unchanged */
    lk_model                *model;
    const lk_param          *params;
    uint32_t                 count;
    lk_tensor               *tensors;
    char                   (*names)[LK_NAME_MAX + 48];
    bool                     averaged; /* the weights are the moving means */
    json_t                  *types; /* of the tensors of the folder, also of that with which the run
                                     * began (types.h); or NULL */
    lk_dtype                 dtype; /* of tensors that are not in `types` */
    float                   *piece;
    lk_exec                 *exec;
} exporter;

/* ---- The recorded model -------------------------------------------------------------------- */

/* Reads the recorded options, with the sizes of tables that they leave to the data. */
static lk_status read_options(const exporter *e, const json_t *config, const char **model,
                              lk_model_options *options)
{
    LK_TRY(lki_recorded_model(config, e->options->path, model, options));
    options->vocabulary = options->vocabulary != 0 ? options->vocabulary : options->classes;
    options->positions  = options->positions != 0 ? options->positions
                                                  : (uint32_t)options->input.dims[0];
    return LK_OK;
}

/* ---- config.json --------------------------------------------------------------------------- */

/* The types of weights, as transformers names them. */
static const struct {
    lk_dtype    dtype;
    const char *name;
} types[] = { { LK_F32, "float32" }, { LK_BF16, "bfloat16" }, { LK_F16, "float16" } };

enum { TYPE_COUNT = sizeof types / sizeof types[0] };

static const char *type_name(lk_dtype dtype)
{
    size_t i = 0;
    while (i + 1 < TYPE_COUNT && types[i].dtype != dtype)
        i++;
    return types[i].name;
}

/* Returns the type of a name; F32 if it is NULL or another one. */
static lk_dtype type_of(const char *name)
{
    for (size_t i = 0; name != NULL && i < TYPE_COUNT; i++)
        if (strcmp(types[i].name, name) == 0)
            return types[i].dtype;
    return LK_F32;
}

/* Returns the key of the type of the weights, which transformers 5 has renamed. */
static const char *type_key(const json_t *config)
{
    return json_object_get(config, "dtype") != NULL ? "dtype" : "torch_dtype";
}

/* Reads the configuration that the run has kept, which must be that of the recorded model. */
static lk_status read_kept(exporter *e, const char *model, const lk_model_options *options)
{
    char                 path[LKI_PATH_BYTES];
    lk_model_options     stored, recorded = *options;
    const lki_hf_family *family = NULL;
    LK_TRY(lki_directory_join(path, e->run, "config.json"));
    if (access(path, F_OK) != 0)
        return LK_OK;
    LK_TRY(lki_hf_read_file(&family, &stored, &e->config, path));
    if (strcmp(family->model, model) != 0)
        return lk_fail(LK_EFORMAT, "%s is for a %s, but the run has trained a %s", path,
                       family->model, model);
    LK_TRY(lki_hf_complete(&recorded, family, &stored, path));
    e->family = family;
    return LK_OK;
}

/* Sets the tokens at the beginning and the end of texts: none, and the one between documents of the
 * run's tokenizer, if it has one. */
static lk_status set_tokens(exporter *e)
{
    char          path[LKI_PATH_BYTES];
    lk_tokenizer *tokenizer = NULL;
    int32_t       end       = -1;
    LK_TRY(lki_directory_join(path, e->run, "tokenizer.json"));
    if (e->copies && access(path, F_OK) == 0) {
        LK_TRY(lk_tokenizer_open(&tokenizer, path));
        end = lk_tokenizer_describe(tokenizer)->end;
        lk_tokenizer_free(tokenizer);
    }
    (void)json_object_set_new(e->config, "bos_token_id", json_null());
    (void)json_object_set_new(e->config, "eos_token_id", end < 0 ? json_null() : json_integer(end));
    return LK_OK;
}

/* Fails if text became tokens of the model by a tokenizer: it is not beside the run. */
static lk_status refuse_missing(const exporter *e, const json_t *recorded, const char *tokenizer)
{
    return !json_is_true(json_object_get(recorded, "tokenizer"))
               ? LK_OK
               : lk_fail(LK_EINVAL, "the model of '%s' was trained with a tokenizer, and there is "
                                    "no '%s'; put it back", e->options->path, tokenizer);
}

/* Decides whether files are copied, and checks the tokenizer among them.  A run on bytes that has
 * kept no folder has none: a tokenizer.json beside it is not its own. */
static lk_status choose_files(exporter *e, const json_t *recorded, const lk_model_options *options)
{
    char path[LKI_PATH_BYTES];
    LK_TRY(lki_directory_join(path, e->run, "config.json"));
    e->copies = !e->adapters &&
                (access(path, F_OK) == 0 || lki_tokenizer_is_used(options, recorded));
    LK_TRY(lki_directory_join(path, e->run, "tokenizer.json"));
    if (!e->copies)
        return LK_OK;
    return access(path, F_OK) != 0
               ? refuse_missing(e, recorded, path)
               : lki_tokenizer_fits_run(path, e->options->path, options, recorded);
}

/* Makes the configuration of adapters, in place of that of the model. */
static lk_status make_adapter_config(exporter *e, const json_t *recorded,
                                     const lk_model_options *options)
{
    const char *base = lki_base_recorded(recorded);
    if (!e->adapters)
        return LK_OK;
    json_decref(e->config);
    e->kept   = false;
    e->dtype  = e->options->dtype != 0 ? e->options->dtype : LK_F32;
    e->config = lki_peft_write(e->model, options, base != NULL ? base : "");
    return e->config != NULL ? LK_OK : lk_fail(LK_ENOMEM, LKI_PEFT_FILE);
}

static lk_status make_config(exporter *e, const char *model, const lk_model_options *options)
{
    LK_TRY(read_kept(e, model, options));
    const bool  kept = e->config != NULL;
    const char *said = json_string_value(json_object_get(e->config, type_key(e->config)));
    if (!kept) {
        LK_TRY(lki_hf_family_of(&e->family, model, options));
        e->config = lki_hf_write(e->family, options);
        if (e->config == NULL)
            return lk_fail(LK_ENOMEM, "config.json");
        LK_TRY(set_tokens(e));
    }
    e->dtype = e->options->dtype != 0 ? e->options->dtype : type_of(said);
    e->kept  = kept && e->options->dtype == 0 && e->types != NULL;
    if (e->kept)
        return LK_OK;
    e->kept = kept && strcmp(said != NULL ? said : type_name(LK_F32), type_name(e->dtype)) == 0;
    if (!e->kept)
        (void)json_object_set_new(e->config, type_key(e->config),
                                  json_string(type_name(e->dtype)));
    return LK_OK;
}

/* ---- Weights ------------------------------------------------------------------------------- */

/* Returns true if the checkpoint has moving means of the weights. */
static bool has_means(const exporter *e)
{
    const lk_tensor *tensor;
    if (e->checkpoint == NULL)
        return false;
    for (size_t i = 0; (tensor = lk_checkpoint_tensor(e->checkpoint, i)) != NULL; i++) {
        const char *end = strrchr(tensor->name, '.');
        if (end != NULL && strcmp(end, ".ema") == 0)
            return true;
    }
    return false;
}

/* Fails if a value is infinite as F16. */
static lk_status check_range(const exporter *e, lk_dtype dtype, const char *name, size_t first,
                             size_t count)
{
    for (size_t i = 0; dtype == LK_F16 && i < count; i++)
        if (fabsf(e->piece[i]) >= F16_OVERFLOW)
            return lk_fail(LK_EINVAL, "element %zu of '%s' is %g, too large for f16; "
                                      "choose f32 or bf16", first + i, name, (double)e->piece[i]);
    return LK_OK;
}

/* Reads a piece of a tensor of the checkpoint. */
static lk_status read_checkpoint(const exporter *e, const char *name, lk_shape shape, size_t first,
                                 size_t count)
{
    LK_TRY(lk_checkpoint_read(e->checkpoint, e->averaged ? LKI_OPTIMIZER_FILE : LKI_MODEL_FILE,
                              name, shape, first, count, e->piece));
    size_t finite = lki_finite_count(e->piece, count);
    return finite == count ? LK_OK
                           : lk_fail(LK_EFORMAT, "element %zu of '%s' is %g; weights must be "
                                                 "finite", first + finite, name,
                                     (double)e->piece[finite]);
}

/* Reads a piece of a parameter and converts it.  Implements lk_checkpoint_fetch. */
static lk_status fetch(void *context, size_t tensor, size_t first, size_t count, void *out)
{
    exporter       *e     = context;
    const lk_param *param = &e->params[tensor];
    const lk_dtype  dtype = e->tensors[tensor].dtype;
    char            name[LKI_OPTIMIZER_NAME_MAX];
    if (e->options->stop != NULL && e->options->stop(e->options->stop_context))
        return lk_fail(LK_ESTOPPED, "stopped on request; '%s' was not written", e->options->out);
    (void)snprintf(name, sizeof name, "%s%s", param->name, e->averaged ? ".ema" : "");
    LK_TRY(e->folder != NULL
               ? lki_init_read_part(e->exec, e->folder, e->run, param, first, count, e->piece)
               : read_checkpoint(e, name, param->shape, first, count));
    LK_TRY(check_range(e, dtype, name, first, count));
    lki_convert(e->exec, count, LK_F32, e->piece, dtype, out);
    return LK_OK;
}

static lk_status build_model(exporter *e, const char *model, const lk_model_options *options)
{
    LK_TRY(lk_exec_open(&e->exec, 1, NULL));
    LK_TRY(lk_model_build(&e->model, model, options));
    e->params = lk_model_params(e->model, &e->count);
    return LK_OK;
}

static lk_status plan_weights(exporter *e)
{
    LK_TRY(LKI_NEW(&e->tensors, e->count, "tensors"));
    LK_TRY(LKI_NEW(&e->names, e->count, "names of tensors"));
    LK_TRY(LKI_NEW(&e->piece, LK_CHECKPOINT_PIECE, "a piece of a tensor"));
    for (uint32_t i = 0; i < e->count; i++) {
        const char *name   = e->params[i].name;
        const char *prefix = strcmp(name, e->family->head) == 0 ? "" : e->family->prefix;
        lk_dtype    dtype  = e->dtype;
        if (e->options->dtype == 0)
            LK_TRY(lki_types_find(&dtype, e->types, name, e->options->path));
        (void)snprintf(e->names[i], sizeof e->names[i], "%s%s%s",
                       e->adapters ? "base_model.model." : "", prefix, name);
        e->tensors[i] = (lk_tensor){ e->names[i], dtype, e->params[i].shape, NULL };
    }
    e->averaged = e->options->weights != LK_WEIGHTS_MODEL && has_means(e);
    if (e->options->weights == LK_WEIGHTS_EMA && !e->averaged)
        return lk_fail(LK_EINVAL, "'%s' has no moving means: the run was without `optimizer.ema`",
                       e->options->path);
    return LK_OK;
}

/* ---- The folder ---------------------------------------------------------------------------- */

static lk_status put_config(const exporter *e)
{
    char path[LKI_PATH_BYTES];
    LK_TRY(lki_directory_join(path, e->draft, e->adapters ? LKI_PEFT_FILE : "config.json"));
    return lki_output_write_json(path, e->config);
}

/* Copies the small files that the run has kept, or those of the folder. */
static lk_status put_kept(const exporter *e)
{
    char    from[LKI_PATH_BYTES], to[LKI_PATH_BYTES];
    lki_map content;
    for (size_t i = 0; e->copies && lki_kept_names[i] != NULL; i++) {
        bool config = strcmp(lki_kept_names[i], "config.json") == 0;
        LK_TRY(lki_directory_join(from, e->run, lki_kept_names[i]));
        LK_TRY(lki_directory_join(to, e->draft, lki_kept_names[i]));
        if ((config && !e->kept) || access(from, F_OK) != 0)
            continue;
        LK_TRY(lki_map_open(&content, from));
        lk_status status = lki_output_write(to, true, content.data, content.bytes);
        lki_map_close(&content);
        LK_TRY(status);
    }
    return e->kept ? LK_OK : put_config(e);
}

static lk_status put_folder(exporter *e)
{
    const lk_checkpoint_file file = { .name = e->options->out, .tensors = e->tensors,
                                      .tensor_count = e->count, .fetch = fetch, .context = e };
    const uint64_t most = e->options->shard_bytes != 0 ? e->options->shard_bytes : SHARD_BYTES;
    LK_TRY(put_kept(e));
    LK_TRY(e->adapters ? lki_folder_write_one(e->draft, LKI_PEFT_WEIGHTS, &file)
                       : lki_folder_write(e->draft, &file, most));
    LK_TRY(lki_directory_sync(e->draft));
    if (rename(e->draft, e->options->out) != 0)
        return lk_fail(LK_EIO, "cannot rename '%s' to '%s': %s", e->draft, e->options->out,
                       strerror(errno));
    return LK_OK;
}

static lk_status publish(exporter *e)
{
    struct stat info;
    size_t      length = strlen(e->options->out);
    while (length > 1 && e->options->out[length - 1] == '/')
        length--;
    if (lstat(e->options->out, &info) == 0)
        return lk_fail(LK_EINVAL, "'%s' is there already and is not overwritten", e->options->out);
    if (snprintf(e->draft, sizeof e->draft, "%.*s.tmp-%ld", (int)length, e->options->out,
                 (long)getpid()) >= (int)sizeof e->draft)
        return lk_fail(LK_EINVAL, "'%.60s...' is too long for a path", e->options->out);
    if (mkdir(e->draft, 0777) != 0)
        return lk_fail(LK_EIO, "cannot create '%s': %s", e->draft, strerror(errno));
    lk_status status = put_folder(e);
    if (status != LK_OK) {
        lki_directory_remove(e->draft);
        return status;
    }
    return lki_directory_sync(dirname(e->draft)); /* which has its final name by now */
}

/* ---- The whole ----------------------------------------------------------------------------- */

/* Sets the directory of the run: the one that has the step. */
static lk_status find_run(exporter *e)
{
    return lki_directory_above(e->run, lk_checkpoint_path(e->checkpoint));
}

/* Writes a folder again. */
static lk_status export_folder(exporter *e)
{
    const char      *path = e->options->path, *model = NULL;
    char             adapters[LKI_PATH_BYTES];
    lk_model_options options = { .struct_size = sizeof options };
    if (e->options->weights == LK_WEIGHTS_EMA)
        return lk_fail(LK_EINVAL, "'%s' is no run: it has no moving means", path);
    LK_TRY(lki_directory_join(e->run, path, "config.json"));
    LK_TRY(lki_directory_join(adapters, path, LKI_PEFT_FILE));
    if (access(e->run, F_OK) != 0 && access(adapters, F_OK) == 0)
        return lk_fail(LK_EINVAL, "'%s' has adapters as PEFT writes them; give a run, or the "
                                  "folder of a model", path);
    (void)snprintf(e->run, sizeof e->run, "%s", path);
    LK_TRY(lk_folder_model(&model, path));
    LK_TRY(lk_folder_options(&options, path));
    options.tokens  = true;
    options.classes = options.vocabulary;
    options.input   = (lk_shape){ 1, { options.positions } };
    LK_TRY(choose_files(e, NULL, &options));
    LK_TRY(lki_folder_open(&e->folder, path));
    LK_TRY(lki_types_list(&e->types, e->folder));
    LK_TRY(make_config(e, model, &options));
    LK_TRY(build_model(e, model, &options));
    LK_TRY(lki_init_check(path, e->model));
    LK_TRY(plan_weights(e));
    return publish(e);
}

static lk_status export_run(exporter *e)
{
    const char       *model = NULL;
    lk_model_options  options;
    LK_TRY(lk_checkpoint_open(&e->checkpoint, e->options->path, NULL, 0));
    LK_TRY(find_run(e));
    json_t *config = json_loads(lk_checkpoint_describe(e->checkpoint)->config, 0, NULL);
    lk_status status = read_options(e, config, &model, &options);
    e->adapters      = options.lora_rank > 0;
    if (status == LK_OK)
        status = lki_types_read(&e->types, e->run);
    if (status == LK_OK)
        status = choose_files(e, config, &options);
    if (status == LK_OK)
        status = make_config(e, model, &options);
    if (status == LK_OK)
        status = build_model(e, model, &options);
    if (status == LK_OK)
        status = make_adapter_config(e, config, &options);
    if (status == LK_OK)
        status = plan_weights(e);
    if (status == LK_OK)
        status = publish(e);
    json_decref(config); /* `model` is in it */
    return status;
}

/* Returns the type of all tensors; 0 if they have several. */
static lk_dtype common_type(const exporter *e)
{
    lk_dtype type = e->count > 0 ? e->tensors[0].dtype : e->dtype;
    for (uint32_t i = 1; i < e->count && type != 0; i++)
        type = e->tensors[i].dtype == type ? type : 0;
    return type;
}

lk_status lk_export(const lk_export_options *options, lk_exported *result)
{
    lk_export_options mine;
    LK_TRY(lki_options_copy(&mine, sizeof mine, options, "lk_export_options"));
    if (mine.path == NULL || mine.out == NULL)
        return lk_fail(LK_EINVAL, "lk_export: `path` and `out` are required");
    if (mine.dtype != 0 && mine.dtype != LK_F32 && mine.dtype != LK_BF16 && mine.dtype != LK_F16)
        return lk_fail(LK_EINVAL, "lk_export: `dtype` is F32, BF16 or F16");
    exporter *e      = NULL;
    bool      folder = false;
    LK_TRY(lki_is_pretrained(&folder, mine.path));
    LK_TRY(LKI_NEW(&e, 1, "an export"));
    e->options       = &mine;
    lk_status status = folder ? export_folder(e) : export_run(e);
    if (status == LK_OK && result != NULL) {
        *result = (lk_exported){ .step = folder ? 0 : lk_checkpoint_describe(e->checkpoint)->step,
                                 .parameters = lk_model_param_elements(e->model),
                                 .dtype      = common_type(e) };
        (void)snprintf(result->type, sizeof result->type, "%s", e->family->type);
    }
    lk_exec_free(e->exec);
    lki_free(e->piece);
    lki_free(e->names);
    lki_free(e->tensors);
    lk_model_free(e->model);
    json_decref(e->config);
    json_decref(e->types);
    lki_folder_free(e->folder);
    lk_checkpoint_free(e->checkpoint);
    lki_free(e);
    return status;
}

/* logits.c -- prints the logits of a Hugging Face folder with FP32 weights, and possibly adapters.
 *
 *     logits FOLDER [ADAPTERS] <tokens >logits
 *
 * tokens: int32, one sample; logits: floats, a row a token
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/folder.h"
#include "lockstep/nn.h"
#include "models/hugging_face.h"
#include "models/peft.h"

enum { TOKENS_MAX = 4096 };

static int32_t tokens[TOKENS_MAX];

/* Returns the address of each parameter.  `before`: what their names in the folder begin with. */
static const float **weights_of(const lk_param *params, uint32_t count, const char *before,
                                const lki_hf_family *family, const lki_folder *folder)
{
    const float **values = calloc(count + 1, sizeof *values);
    for (uint32_t i = 0; values != NULL && i < count; i++) {
        char        name[2 * LK_NAME_MAX];
        const bool  head = strcmp(params[i].name, family->head) == 0;
        (void)snprintf(name, sizeof name, "%s%s%s", before, head ? "" : family->prefix,
                       params[i].name);
        const lk_tensor *tensor = lki_folder_find(folder, name);
        values[i] = tensor != NULL && tensor->dtype == LK_F32 ? tensor->data : NULL;
        if (values[i] == NULL) {
            fprintf(stderr, "logits: no FP32 tensor %s\n", name);
            exit(1);
        }
    }
    return values;
}

/* Opens adapters, and sets the options of the model that they have. */
static lk_status open_adapters(lki_folder **out, lki_peft *peft, lk_model_options *options,
                               const char *path)
{
    char file[1024];
    if (path == NULL)
        return LK_OK;
    (void)snprintf(file, sizeof file, "%s/adapter_config.json", path);
    LK_TRY(lki_peft_read_file(peft, file));
    options->lora_rank    = peft->rank;
    options->lora_alpha   = peft->alpha;
    options->lora_targets = peft->targets;
    (void)snprintf(file, sizeof file, "%s/adapter_model.safetensors", path);
    return lki_folder_open(out, file);
}

static lk_status run(const lk_model *model, const float *const *params, const float *const *frozen,
                     size_t count, uint32_t classes)
{
    lk_exec   *exec   = NULL;
    lk_engine *engine = NULL;
    LK_TRY(lk_exec_open(&exec, 1, NULL));
    LK_TRY(lk_engine_open(&engine, model, exec, LK_F32, 1, 1));
    lk_walk walk = { .params = params };
    lk_pass pass = { .samples = 1, .x = tokens };
    lk_engine_set_frozen(engine, frozen);
    lk_engine_forward(engine, &walk, &pass, 1);
    (void)fwrite(lk_engine_output(engine, 0), sizeof(float), count * classes, stdout);
    lk_engine_free(engine);
    lk_exec_free(exec);
    return LK_OK;
}

static lk_status print_logits(const char *path, const char *adapters, size_t count)
{
    char                 config[1024];
    uint32_t             own, cold;
    lki_peft             peft;
    const lki_hf_family *family  = NULL;
    lk_model_options     options = LK_MODEL_OPTIONS_INIT;
    lki_folder          *folder  = NULL, *more = NULL;
    json_t              *json    = NULL;
    lk_model            *model   = NULL;
    (void)snprintf(config, sizeof config, "%s/config.json", path);
    LK_TRY(lki_hf_read_file(&family, &options, &json, config));
    LK_TRY(lki_folder_open(&folder, path));
    LK_TRY(open_adapters(&more, &peft, &options, adapters));
    options.input   = (lk_shape){ 1, { count } };
    options.classes = options.vocabulary;
    options.logits  = true;
    LK_TRY(lk_model_build(&model, family->model, &options));
    const lk_param *params = lk_model_params(model, &own), *frozen = lk_model_frozen(model, &cold);
    const float   **values = weights_of(params, own, more != NULL ? "base_model.model." : "",
                                        family, more != NULL ? more : folder);
    const float   **base   = weights_of(frozen, cold, "", family, folder);
    lk_status       status = run(model, values, base, count, options.classes);
    free(values);
    free(base);
    lk_model_free(model);
    lki_folder_free(folder);
    lki_folder_free(more);
    json_decref(json);
    return status;
}

int main(int argc, char **argv)
{
    size_t count = fread(tokens, sizeof tokens[0], TOKENS_MAX, stdin);
    bool   good  = argc == 2 || argc == 3;
    if (good && count > 0 && print_logits(argv[1], argv[2], count) == LK_OK && fflush(stdout) == 0)
        return 0;
    fprintf(stderr, "logits: %s\n",
            good ? lk_error_last()->message : "FOLDER [ADAPTERS] <tokens");
    return 1;
}

/* logits.c -- prints the logits of a Hugging Face folder with FP32 weights.
 *
 *     logits FOLDER <tokens >logits     tokens: int32, one sample; logits: floats, a row a token
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/folder.h"
#include "lockstep/nn.h"
#include "models/hugging_face.h"

enum { TOKENS_MAX = 4096 };

static int32_t tokens[TOKENS_MAX];

static const float **weights_of(const lk_model *model, const lki_hf_family *family,
                                const lki_folder *folder)
{
    uint32_t        count;
    const lk_param *params = lk_model_params(model, &count);
    const float   **values = calloc(count, sizeof *values);
    for (uint32_t i = 0; values != NULL && i < count; i++) {
        char        name[2 * LK_NAME_MAX];
        const bool  head = strcmp(params[i].name, family->head) == 0;
        (void)snprintf(name, sizeof name, "%s%s", head ? "" : family->prefix, params[i].name);
        const lk_tensor *tensor = lki_folder_find(folder, name);
        values[i] = tensor != NULL && tensor->dtype == LK_F32 ? tensor->data : NULL;
        if (values[i] == NULL) {
            fprintf(stderr, "logits: no FP32 tensor %s\n", name);
            exit(1);
        }
    }
    return values;
}

static lk_status print_logits(const char *path, size_t count)
{
    char                 config[1024];
    const lki_hf_family *family  = NULL;
    lk_model_options     options = LK_MODEL_OPTIONS_INIT;
    lki_folder          *folder  = NULL;
    json_t              *json    = NULL;
    lk_model            *model   = NULL;
    lk_exec             *exec    = NULL;
    lk_engine           *engine  = NULL;
    (void)snprintf(config, sizeof config, "%s/config.json", path);
    LK_TRY(lki_hf_read_file(&family, &options, &json, config));
    LK_TRY(lki_folder_open(&folder, path));
    options.input   = (lk_shape){ 1, { count } };
    options.classes = options.vocabulary;
    options.logits  = true;
    LK_TRY(lk_model_build(&model, family->model, &options));
    LK_TRY(lk_exec_open(&exec, 1, NULL));
    LK_TRY(lk_engine_open(&engine, model, exec, LK_F32, 1, 1));
    const float **params = weights_of(model, family, folder);
    lk_walk       walk   = { .params = params };
    lk_pass       pass   = { .samples = 1, .x = tokens };
    lk_engine_forward(engine, &walk, &pass, 1);
    (void)fwrite(lk_engine_output(engine, 0), sizeof(float), count * options.classes, stdout);
    free(params);
    lk_engine_free(engine);
    lk_exec_free(exec);
    lk_model_free(model);
    lki_folder_free(folder);
    json_decref(json);
    return LK_OK;
}

int main(int argc, char **argv)
{
    size_t count = fread(tokens, sizeof tokens[0], TOKENS_MAX, stdin);
    if (argc == 2 && count > 0 && print_logits(argv[1], count) == LK_OK && fflush(stdout) == 0)
        return 0;
    fprintf(stderr, "logits: %s\n", argc == 2 ? lk_error_last()->message : "FOLDER <tokens");
    return 1;
}

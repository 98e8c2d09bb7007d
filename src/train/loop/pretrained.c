/* pretrained.c -- completes a configuration from the folder of a Hugging Face model (`init`).
 *
 * Every host reads config.json; rank 0 alone reads the weights.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/options.h"
#include "checkpoint/directory.h"
#include "data/batch.h"
#include "models/hugging_face.h"
#include "models/peft.h"
#include "train/loop/loop.h"
#include "train/saves/save.h"
#include "train/saves/tokenizer.h"

/* Checks the tokenizer before data are read with it, or that of the folder, which the run keeps. */
static lk_status check_tokenizer(const lk_train_config *c, uint32_t vocabulary)
{
    char        own[LKI_PATH_BYTES];
    const char *given = c->data.tokenizer;
    LK_TRY(lki_directory_join(own, c->init, "tokenizer.json"));
    if (given != NULL)
        LK_TRY(lki_tokenizer_match(given, own));
    else if (access(own, F_OK) != 0)
        return LK_OK;
    return lki_tokenizer_fits(given != NULL ? given : own, c->init, vocabulary, given != NULL);
}

/* Fails because a folder has no config.json. */
static lk_status refuse_folder(const char *folder)
{
    char path[LKI_PATH_BYTES];
    bool run = false;
    LK_TRY(lk_checkpoint_exists(folder, &run));
    if (run)
        return lk_fail(LK_EINVAL, "`init`: '%s' has the checkpoints of a run; name a folder that "
                                  "lockstep export has made of it", folder);
    LK_TRY(lki_directory_join(path, folder, LKI_PEFT_FILE));
    if (access(path, F_OK) == 0)
        return lk_fail(LK_EINVAL, "`init`: '%s' has adapters, not a model: give it as `adapter`, "
                                  "and the model that they adapt as `init`", folder);
    return lk_fail(LK_EINVAL, "the folder '%s' has no config.json, which says what its "
                              "model is, and which every host needs; copy it from where the "
                              "weights are from, or give the .safetensors file alone", folder);
}

/* Reads config.json, whose path is also returned. */
static lk_status read_config(const char *folder, const lki_hf_family **family,
                             lk_model_options *options, char path[LKI_PATH_BYTES])
{
    json_t *json = NULL;
    LK_TRY(lki_directory_join(path, folder, "config.json"));
    if (access(path, F_OK) != 0)
        return refuse_folder(folder);
    LK_TRY(lki_hf_read_file(family, options, &json, path));
    json_decref(json);
    return LK_OK;
}

lk_status lk_folder_model(const char **model, const char *folder)
{
    char                 path[LKI_PATH_BYTES];
    const lki_hf_family *family = NULL;
    lk_model_options     options;
    LK_TRY(read_config(folder, &family, &options, path));
    *model = family->model;
    return LK_OK;
}

lk_status lk_folder_options(lk_model_options *options, const char *folder)
{
    char                 path[LKI_PATH_BYTES];
    const lki_hf_family *family = NULL;
    lk_model_options     given, own;
    LK_TRY(lki_options_copy(&given, sizeof given, options, "lk_model_options"));
    LK_TRY(read_config(folder, &family, &own, path));
    lki_options_return(options, &own);
    return LK_OK;
}

lk_status lki_pretrained_complete(lk_train_config *c)
{
    char                 path[LKI_PATH_BYTES];
    const lki_hf_family *family = NULL;
    lk_model_options     from;
    LK_TRY(lki_adapter_complete(c));
    if (c->init == NULL || !lki_is_folder(c->init))
        return LK_OK;
    LK_TRY(read_config(c->init, &family, &from, path));
    if (c->model != NULL && strcmp(c->model, family->model) != 0)
        return lk_fail(LK_EINVAL, "%s is for a %s, not for a %s: `model_type` is %s", path,
                       family->model, c->model, family->type);
    c->model = family->model;
    LK_TRY(lki_hf_complete(&c->model_options, family, &from, path));
    return check_tokenizer(c, from.vocabulary);
}

lk_status lki_pretrained_check(const lk_train_config *c, const lk_dataset *data)
{
    const uint32_t vocabulary = c->model_options.vocabulary;
    const uint32_t classes    = lk_dataset_describe(data)->classes;
    if (c->init == NULL || !lki_is_folder(c->init) || !lki_dataset_is_bytes(data) ||
        classes == vocabulary)
        return LK_OK;
    if (strncmp(c->data.source, "stream:", 7) == 0)
        return lk_fail(LK_EINVAL, "the model of '%s' has %u tokens, and '%s' is read as bytes, "
                                  "which are %u: write token ids to the stream, and give "
                                  "?width=16 or 32 and vocab=%u", c->init, vocabulary,
                       c->data.source, classes, vocabulary);
    return lk_fail(LK_EINVAL, "the model of '%s' has %u tokens, not the %u of text without a "
                              "tokenizer; give `data.tokenizer` FILE", c->init, vocabulary,
                   classes);
}

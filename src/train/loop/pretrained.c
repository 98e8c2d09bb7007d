/* pretrained.c -- completes a configuration from the folder of a Hugging Face model (`init`).
 *
 * Every host reads config.json; rank 0 alone reads the weights.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/options.h"
#include "checkpoint/directory.h"
#include "data/batch.h"
#include "models/hugging_face.h"
#include "models/peft.h"
#include "train/loop/loop.h"
#include "train/saves/save.h"
#include "train/saves/tokenizer.h"

/* Compares the given tokenizer with that of the folder.  A run that continues is given the one that
 * it keeps. */
static lk_status match_tokenizer(const lk_train_config *c, const char *own)
{
    const lk_status status = lki_tokenizer_match(c->data.tokenizer, own);
    if (status != LK_EINVAL || !c->checkpoint.resume)
        return status;
    return lk_fail(LK_EINVAL, "the tokenizer '%s' differs from '%s', that of the model with which "
                              "the run began; a run goes on with the same one: put that back",
                   c->data.tokenizer, own);
}

/* Checks the tokenizer before data are read with it, or that of the folder, which the run keeps. */
static lk_status check_tokenizer(const lk_train_config *c, uint32_t vocabulary)
{
    char        own[LKI_PATH_BYTES];
    const char *given = c->data.tokenizer;
    LK_TRY(lki_directory_join(own, c->init, "tokenizer.json"));
    if (given != NULL)
        LK_TRY(match_tokenizer(c, own));
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
    LK_TRY(lki_directory_join(path, folder, LKI_MANIFEST_NAME));
    if (access(path, F_OK) == 0)
        return lk_fail(LK_EINVAL, "`init`: '%s' is a checkpoint of a run; give the "
                                  "model.safetensors in it, and the model, or a folder that "
                                  "lockstep export has made of it", folder);
    LK_TRY(lki_directory_join(path, folder, LKI_PEFT_FILE));
    if (access(path, F_OK) == 0)
        return lk_fail(LK_EINVAL, "`init`: '%s' has adapters, not a model: give it as `adapter`, "
                                  "and the model that they adapt as `init`", folder);
    return lk_fail(LK_EINVAL, "the folder '%s' has no config.json, which says what its "
                              "model is, and which every host needs; copy it from where the "
                              "weights are from, or give the .safetensors file alone", folder);
}

/* Checks that the options of a folder are those of a model, with samples of a few tokens. */
static lk_status check_options(const lki_hf_family *family, const lk_model_options *from,
                               const char *path)
{
    lk_model        *model   = NULL;
    lk_model_options options = *from;
    options.classes          = options.vocabulary;
    options.input            = (lk_shape){ 1, { lki_min(options.positions, 8) } };
    const lk_status status   = lk_model_build(&model, family->model, &options);
    lk_model_free(model);
    return status == LK_EINVAL ? lki_hf_refuse(family, path) : status;
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
    return check_options(*family, options, path);
}

lk_status lk_folder_model(const char **model, const char *folder)
{
    char                 path[LKI_PATH_BYTES];
    const lki_hf_family *family = NULL;
    lk_model_options     options;
    LK_TRY(lki_check_given("lk_folder_model", "folder", folder, 1));
    LK_TRY(read_config(folder, &family, &options, path));
    *model = family->model;
    return LK_OK;
}

lk_status lk_folder_options(lk_model_options *options, const char *folder)
{
    char                 path[LKI_PATH_BYTES];
    const lki_hf_family *family = NULL;
    lk_model_options     given, own;
    LK_TRY(lki_check_given("lk_folder_options", "folder", folder, 1));
    LK_TRY(lki_options_copy(&given, sizeof given, options, "lk_model_options"));
    LK_TRY(read_config(folder, &family, &own, path));
    lki_options_return(options, &own);
    return LK_OK;
}

/* Sets the fields of *options that a folder determines. */
static lk_status complete(lk_model_options *options, const lk_train_config *c,
                          const lki_hf_family *family, const lk_model_options *from,
                          const char *path)
{
    if (c->model != NULL && strcmp(c->model, family->model) != 0)
        return lk_fail(LK_EINVAL, "%s is for a %s, not for a %s: `model_type` is %s", path,
                       family->model, c->model, family->type);
    return lki_hf_complete(options, family, from, path);
}

lk_status lki_pretrained_compare(const lk_train_config *c, const char *run)
{
    char                 path[LKI_PATH_BYTES];
    const lki_hf_family *family  = NULL;
    lk_model_options     options = c->model_options, from;
    bool                 same    = true;
    if (c->init == NULL || run == NULL || !lki_is_folder(c->init))
        return LK_OK;
    LK_TRY(read_config(c->init, &family, &from, path));
    if (complete(&options, c, family, &from, path) == LK_OK)
        return LK_OK;
    LK_TRY(lki_kept_compare(&same, c->init, run));
    return same ? LK_OK
                : lk_fail(LK_EINVAL, "the model in '%s' is not the one with which the run in '%s' "
                                     "began: it has other options; give the folder of that one, or "
                                     "leave `init` out", c->init, run);
}

lk_status lki_pretrained_complete(lk_train_config *c)
{
    char                 path[LKI_PATH_BYTES];
    const lki_hf_family *family = NULL;
    lk_model_options     from;
    LK_TRY(lki_adapter_complete(c));
    if (c->init == NULL || !lki_is_folder(c->init))
        return LK_OK;
    if (c->checkpoint.resume)
        LK_TRY(lki_pretrained_compare(c, c->checkpoint.folder));
    LK_TRY(read_config(c->init, &family, &from, path));
    LK_TRY(complete(&c->model_options, c, family, &from, path));
    c->model = family->model;
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

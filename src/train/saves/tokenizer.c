/* tokenizer.c -- keeps the tokenizer of a run in its checkpoint directory. */
#include "train/saves/tokenizer.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/directory.h"
#include "lockstep/checkpoint.h"
#include "lockstep/tokenizer.h"
#include "models/build.h"
#include "train/core/identity.h"
#include "train/saves/types.h"

enum { BYTES = 256 }; /* the tokens of text without a tokenizer */

bool lki_tokenizer_is_used(const lk_model_options *model, const json_t *config)
{
    return model->tokens &&
           (model->classes != BYTES || json_is_true(json_object_get(config, "tokenizer")));
}

static lk_status write_file(const char *folder, const char *name, const void *data, size_t bytes)
{
    char path[LKI_PATH_BYTES];
    LK_TRY(lki_directory_join(path, folder, name));
    return lki_file_replace(path, data, bytes);
}

/* Compares the bytes of two files. */
static lk_status compare(bool *same, const char *one, const char *other)
{
    lki_map first, second;
    LK_TRY(lki_map_open(&first, one));
    lk_status status = lki_map_open(&second, other);
    if (status == LK_OK) {
        *same = first.bytes == second.bytes &&
                memcmp(first.data, second.data, first.bytes) == 0;
        lki_map_close(&second);
    }
    lki_map_close(&first);
    return status;
}

const char *const lki_kept_names[] = {
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template.jinja", NULL,
};

/* Copies the small files of a Hugging Face folder, and notes the types of its weights, at the start
 * of a run. */
static lk_status keep_folder(const char *from, const char *to)
{
    char    path[LKI_PATH_BYTES];
    lki_map content;
    for (size_t i = 0; lki_kept_names[i] != NULL; i++) {
        LK_TRY(lki_directory_join(path, from, lki_kept_names[i]));
        if (access(path, F_OK) != 0)
            continue;
        LK_TRY(lki_map_open(&content, path));
        lk_status status = write_file(to, lki_kept_names[i], content.data, content.bytes);
        lki_map_close(&content);
        LK_TRY(status);
    }
    return lki_types_keep(from, to);
}

lk_status lki_kept_check(const lk_train_config *config)
{
    const char *folder = config->checkpoint.folder;
    char        path[LKI_PATH_BYTES];
    const bool  init   = config->init != NULL && lki_is_folder(config->init);
    bool        run    = false;
    if (folder == NULL || (config->data.tokenizer == NULL && !init))
        return LK_OK;
    LK_TRY(lki_directory_join(path, folder, LK_RUN_COMMAND));
    LK_TRY(lk_checkpoint_exists(folder, &run));
    if (run || access(path, F_OK) == 0)
        return LK_OK;
    for (size_t i = 0; lki_kept_names[i] != NULL; i++) {
        LK_TRY(lki_directory_join(path, folder, lki_kept_names[i]));
        if (access(path, F_OK) == 0)
            return lk_fail(LK_EINVAL, "`checkpoint.folder` %s has a file that is not a run's, and "
                                      "might be overwritten: %s; give another directory", folder,
                           lki_kept_names[i]);
    }
    return LK_OK;
}

lk_status lki_kept_compare(bool *same, const char *folder, const char *run)
{
    char theirs[LKI_PATH_BYTES], kept[LKI_PATH_BYTES];
    *same = true;
    LK_TRY(lki_directory_join(theirs, folder, "config.json"));
    LK_TRY(lki_directory_join(kept, run, "config.json"));
    return access(kept, F_OK) == 0 ? compare(same, theirs, kept) : LK_OK;
}

lk_status lki_tokenizer_check(const lk_train_config *config)
{
    char path[LKI_PATH_BYTES];
    bool same = true;
    if (config->data.tokenizer == NULL)
        return LK_OK;
    LK_TRY(lki_directory_join(path, config->checkpoint.folder, "tokenizer.json"));
    if (access(path, F_OK) != 0)
        return LK_OK;
    LK_TRY(compare(&same, path, config->data.tokenizer));
    return same ? LK_OK
                : lk_fail(LK_EINVAL, "the tokenizer '%s' differs from '%s', which the run keeps; a "
                                     "run goes on with the tokenizer with which it began: put that "
                                     "back, or start a new run in another directory",
                          config->data.tokenizer, path);
}

lk_status lki_tokenizer_match(const char *given, const char *own)
{
    bool same = true;
    if (access(own, F_OK) != 0)
        return LK_OK;
    LK_TRY(compare(&same, given, own));
    return same ? LK_OK : lk_fail(LK_EINVAL, "`data.tokenizer` '%s' differs from '%s', the "
                                             "tokenizer of the model; leave it out", given, own);
}

/* Describes a tokenizer.  If its kind is not supported and it is not `used`, *out has no
 * tokens. */
static lk_status describe(lk_tokenizer_info *out, const char *tokenizer, bool used)
{
    lk_tokenizer *opened = NULL;
    lk_status     status = lk_tokenizer_open(&opened, tokenizer);
    *out                 = (lk_tokenizer_info){ .vocabulary = 0 };
    if (status == LK_OK)
        *out = *lk_tokenizer_describe(opened);
    lk_tokenizer_free(opened);
    return status == LK_EUNSUPPORTED && !used ? LK_OK : status;
}

static lk_status compare_counts(const char *tokenizer, uint32_t has, const char *path,
                                uint32_t vocabulary)
{
    return has <= vocabulary
               ? LK_OK
               : lk_fail(LK_EINVAL, "the tokenizer '%s' has %u tokens, and the model of '%s' only "
                                    "%u: it is another model's", tokenizer, has, path, vocabulary);
}

lk_status lki_tokenizer_fits(const char *tokenizer, const char *path, uint32_t vocabulary,
                             bool used)
{
    lk_tokenizer_info has;
    LK_TRY(describe(&has, tokenizer, used));
    return compare_counts(tokenizer, has.vocabulary, path, vocabulary);
}

lk_status lki_tokenizer_fits_run(const char *tokenizer, const char *path,
                                 const lk_model_options *model, const json_t *config)
{
    const char       *hash = json_string_value(json_object_get(config, LKI_TOKENIZER_KEY));
    const bool        used = json_is_true(json_object_get(config, "tokenizer"));
    lk_tokenizer_info has;
    LK_TRY(describe(&has, tokenizer, used));
    LK_TRY(compare_counts(tokenizer, has.vocabulary, path, lki_vocabulary(model)));
    if (used && has.vocabulary != model->classes)
        return lk_fail(LK_EINVAL, "the tokenizer '%s' has %u tokens, and the model of '%s' was "
                                  "trained with %u: it is another run's", tokenizer,
                       has.vocabulary, path, model->classes);
    return hash == NULL || strcmp(hash, has.hash) == 0
               ? LK_OK
               : lk_fail(LK_EINVAL, "the tokenizer '%s' is not the one with which the model of "
                                    "'%s' was trained: that has the hash %s, and this %s; put the "
                                    "run's own back", tokenizer, path, hash, has.hash);
}

/* Describes the tokenizer to Hugging Face's transformers.  Without this file they take a class by
 * the model's type, and that of a llama adds tokens to the vocabulary. */
static lk_status write_description(const char *folder, const char *tokenizer)
{
    lk_tokenizer *opened = NULL;
    size_t        bytes  = 0;
    LK_TRY(lk_tokenizer_open(&opened, tokenizer));
    const int32_t end    = lk_tokenizer_describe(opened)->end;
    const char   *name   = end < 0 ? NULL : lk_tokenizer_bytes(opened, (uint32_t)end, &bytes);
    json_t       *object = json_pack("{s:s}", "tokenizer_class", "PreTrainedTokenizerFast");
    if (name != NULL)
        (void)json_object_set_new(object, "eos_token", json_stringn(name, bytes));
    char *text = json_dumps(object, JSON_INDENT(2) | JSON_SORT_KEYS);
    lk_status status = text == NULL ? lk_fail(LK_ENOMEM, "the description of a tokenizer")
                                    : write_file(folder, "tokenizer_config.json", text,
                                                 strlen(text));
    json_decref(object);
    free(text);
    lk_tokenizer_free(opened);
    return status;
}

lk_status lki_tokenizer_keep(const lk_train_config *config)
{
    char        path[LKI_PATH_BYTES];
    bool        exists = false;
    lki_map     content;
    LK_TRY(lk_checkpoint_exists(config->checkpoint.folder, &exists));
    bool folder = config->init != NULL && lki_is_folder(config->init);
    if (!exists && folder)
        LK_TRY(keep_folder(config->init, config->checkpoint.folder));
    if (config->data.tokenizer == NULL)
        return LK_OK;
    LK_TRY(lki_directory_join(path, config->checkpoint.folder, "tokenizer.json"));
    if (exists && access(path, F_OK) == 0)
        return lki_tokenizer_check(config);
    LK_TRY(lki_map_open(&content, config->data.tokenizer));
    lk_status status = write_file(config->checkpoint.folder, "tokenizer.json", content.data,
                                  content.bytes);
    lki_map_close(&content);
    return status != LK_OK || folder
               ? status : write_description(config->checkpoint.folder, config->data.tokenizer);
}

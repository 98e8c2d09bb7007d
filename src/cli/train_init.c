/* train_init.c -- checks of --init: what a path may be, and which model it has.
 *
 * Only paths are looked at, and the first bytes of a file.  The library compares tensors.
 */
#include <errno.h>
#include <libgen.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/paths.h"
#include "cli/record.h"
#include "cli/train.h"
#include "cli/values.h"
#include "cli/words.h"
#include "lockstep/checkpoint.h"

/* ---- What is no model ---------------------------------------------------------------------- */

static bool refuse_missing(const char *init, lki_message *error)
{
    const int why = errno;
    char      hint[LKI_WORDS_BYTES];
    if (lki_is_url(init))
        return lki_refuse(error, "--init %.200s: " LKI_DOWNLOAD_FIRST, init);
    if (why != ENOENT || !lki_hub_hint(hint, init))
        return lki_refuse(error, "--init %.300s: %s; correct the path", init, strerror(why));
    return lki_refuse(error, "--init %.100s: %s; correct the path, or, %.320s", init,
                      strerror(why), hint);
}

/* Refuses a checkpoint of a run, or the directory of a run. */
static bool refuse_run(const char *init, bool checkpoint, lki_message *error)
{
    char        copy[4096];
    const char *run = init;
    if (checkpoint && snprintf(copy, sizeof copy, "%s", init) < (int)sizeof copy)
        run = dirname(copy);
    return lki_refuse(error, "--init %.80s: is %s; to continue the run, use lockstep resume %.80s; "
                             "to start another run with its weights, give %s%.80s/%s, and MODEL, "
                             "or the folder that lockstep export writes", init,
                      checkpoint ? "a checkpoint of a run" : "the directory of a run", run,
                      checkpoint ? "" : "the file of a checkpoint, ", init,
                      checkpoint ? "model.safetensors" : "step-.../model.safetensors");
}

/* Returns true unless a directory is that of a run or a checkpoint, for which --init has no use. */
static bool is_no_run(const char *init, lki_message *error)
{
    const bool one = lki_has_file(init, "manifest.json") && !lki_has_file(init, "config.json");
    return (!one && !lki_is_run(init)) || refuse_run(init, one, error);
}

/* Returns true if a file may be one of safetensors: its header, after 8 bytes, begins with a brace.
 * The library reports one that is too short. */
static bool is_weights(const char *init, lki_message *error)
{
    unsigned char head[9] = { 0 };
    if (lki_read_beginning(init, head, sizeof head) < sizeof head || head[8] == '{')
        return true;
    if (memcmp(head, "version h", sizeof head) == 0)
        return true; /* a pointer of git-lfs, which the library reports */
    const char *what = head[0] == '{'                   ? "is JSON, such as the log of a run"
                       : memcmp(head, "PK\3\4", 4) == 0 ? "is a PyTorch file or another archive"
                       : memcmp(head, "GGUF", 4) == 0   ? "is a GGUF file"
                                                        : "is no safetensors file";
    return lki_refuse(error, "--init %.200s: %s; weights are read from .safetensors files, such as "
                             "RUN/step-.../model.safetensors, and from folders as transformers "
                             "writes them", init, what);
}

static bool is_model(const char *init, const struct stat *info, lki_message *error)
{
    return S_ISDIR(info->st_mode)   ? is_no_run(init, error)
           : S_ISREG(info->st_mode) ? is_weights(init, error)
                                    : true;
}

/* ---- A run that continues ------------------------------------------------------------------- */

/* Returns true if a path is that of another one, which may be absolute.  Equal paths need not
 * exist. */
static bool is_path_of(const char *path, const char *whole)
{
    struct stat one, other;
    char        here[4096];
    if (stat(path, &one) == 0 && stat(whole, &other) == 0)
        return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
    if (strcmp(path, whole) == 0)
        return true;
    if (*path == '/' || getcwd(here, sizeof here) == NULL)
        return false;
    const size_t bytes = strlen(here);
    return strncmp(whole, here, bytes) == 0 && whole[bytes] == '/' &&
           strcmp(whole + bytes + 1, path) == 0;
}

/* Returns true if a run that continues may have another --init than it began with: only the base
 * of adapters, which is compared later, may have moved. */
static bool is_moved_base(const train_options *o, const char *began, lki_message *error)
{
    const lk_train_config *c    = &o->config;
    const char            *init = c->init;
    struct stat            info;
    if (stat(init, &info) != 0)
        return lki_writes_elsewhere(o) || refuse_missing(init, error);
    if (c->model_options.lora_rank > 0 || c->model_options.adapter != NULL)
        return !S_ISDIR(info.st_mode) || is_no_run(init, error);
    return lki_refuse(error, "--init %.200s: the run in '%.200s' began with %.200s%s and goes on "
                             "from its checkpoint; leave --init out", init, c->checkpoint.folder,
                      began != NULL ? began : "no --init", began != NULL ? "," : "");
}

/* Returns true unless --init contradicts the record of the run that continues. */
static bool is_as_recorded(const train_options *o, lki_message *error)
{
    const char *folder = o->config.checkpoint.folder;
    char        began[4096];
    bool        exists = false;
    if (folder == NULL || !lki_record_exists(folder) ||
        lk_checkpoint_exists(folder, &exists) != LK_OK || !exists)
        return true;
    if (!lki_record_init(folder, began, sizeof began))
        return is_moved_base(o, NULL, error);
    return is_path_of(o->config.init, began) || is_moved_base(o, began, error);
}

/* ---- All of it ------------------------------------------------------------------------------ */

bool lki_train_check_init(const train_options *o, lki_message *error)
{
    const char *init = o->config.init;
    struct stat info;
    char        hint[LKI_WORDS_BYTES];
    if (init == NULL)
        return true;
    if (o->config.checkpoint.resume)
        return is_as_recorded(o, error);
    if (stat(init, &info) != 0) /* rank 0 alone reads a file */
        return (!lki_hub_hint(hint, init) && !lki_is_url(init)) || lki_writes_elsewhere(o) ||
               refuse_missing(init, error);
    return is_model(init, &info, error);
}

/* Returns true unless --init has what only runs have.  A run may keep its checkpoints in the folder
 * with which it began. */
static bool is_no_other_run(const train_options *o, lki_message *error)
{
    const char *init = o->config.init, *folder = o->config.checkpoint.folder;
    struct stat info;
    return init == NULL || stat(init, &info) != 0 || !S_ISDIR(info.st_mode) ||
           (folder != NULL && is_path_of(init, folder)) || is_no_run(init, error);
}

/* Returns true if the options name a model, or do not have --init in its place, or its folder has
 * one.  Otherwise writes the reason why the model of --init is not known. */
static bool has_model(const train_options *options, lki_message *error)
{
    const char *init = options->config.init, *model = NULL;
    struct stat info;
    char        words[LKI_WORDS_BYTES];
    if (options->config.model != NULL || init == NULL)
        return true;
    if (stat(init, &info) != 0)
        return refuse_missing(init, error);
    if (!S_ISDIR(info.st_mode))
        return lki_refuse(error, "MODEL is missing: the file of --init has weights only; name "
                                 "their model, gpt, llama, resnet or mlp");
    if (lk_folder_model(&model, init) == LK_OK)
        return true;
    lki_words(words, sizeof words, lk_error_last()->message);
    return lki_refuse(error, "%s", words);
}

size_t lki_train_check_model(const lki_command *command, const void *target, lki_message *errors,
                             size_t most)
{
    const train_options *o = target;
    lki_message          plain;
    if (most == 0 || (is_no_other_run(o, &plain) && has_model(o, &plain)))
        return 0;
    lki_name_lines(&errors[0], command, &o->file, plain.text);
    return 1;
}

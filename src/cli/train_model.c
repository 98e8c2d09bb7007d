/* train_model.c -- checks of train's options that need more than one option: the model that the
 * folder of --init has, and the files and directories that a run writes. */
#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/record.h"
#include "cli/train.h"
#include "cli/values.h"
#include "cli/words.h"
#include "lockstep/checkpoint.h"

/* ---- Where the process runs ---------------------------------------------------------------- */

/* Returns true if this process has been started by a launcher or MPI, or runs on a host other than
 * that of rank 0.  It may then write no files. */
static bool writes_elsewhere(const train_options *o)
{
    bool launched = false;
    return (o->nodes.count > 1 && o->nodes.number != 0) || o->mpi == LK_MPI_ON ||
           lk_launched(&launched) != LK_OK || launched;
}

/* ---- The model of a folder ----------------------------------------------------------------- */

/* Returns true if a path that is not there may be the name of a model on the Hugging Face hub, such
 * as gpt2 or HuggingFaceTB/SmolLM2-135M. */
static bool is_hub_name(const char *path)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "._-/";
    const char       *slash = strchr(path, '/'), *end = strrchr(path, '.');
    return path[0] != '.' && path[0] != '/' && path[strspn(path, letters)] == '\0' &&
           (slash == NULL || (slash[1] != '\0' && strchr(slash + 1, '/') == NULL)) &&
           (end == NULL || strcmp(end, ".safetensors") != 0);
}

static bool refuse_missing(const char *init, lki_message *error)
{
    const int why = errno;
    if (why != ENOENT || !is_hub_name(init))
        return lki_refuse(error, "--init %.300s: %s; correct the path", init, strerror(why));
    return lki_refuse(error, "--init %.100s: %s; correct the path, or, if this is a name on the "
                             "Hugging Face hub, download its folder first: hf download %.100s "
                             "--local-dir %.100s", init, strerror(why), init, init);
}

/* Returns true unless a directory is that of a run or a checkpoint, for which --init has no use. */
static bool is_no_run(const char *init, lki_message *error)
{
    char path[4096];
    bool exists = false, one = false;
    if (snprintf(path, sizeof path, "%s/manifest.json", init) < (int)sizeof path)
        one = access(path, F_OK) == 0;
    if (!lki_record_exists(init) && lk_checkpoint_exists(init, &exists) != LK_OK)
        return true;
    if (!one && !exists && !lki_record_exists(init))
        return true;
    return lki_refuse(error, "--init %.100s: is %s; to continue the run, use lockstep resume "
                             "%.100s; to start another run with its weights, give their file%s "
                             "(model.safetensors), or the folder that lockstep export writes",
                      init, one ? "a checkpoint of a run" : "the directory of a run",
                      one ? "and the directory above it" : init,
                      one ? "" : " in one of its checkpoints");
}

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
        return writes_elsewhere(o) || refuse_missing(init, error);
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

/* Returns true if the weights of --init can be those of a new run, or are those with which a run
 * that continues began, as far as the path shows. */
static bool is_initial(const train_options *o, lki_message *error)
{
    const char *init = o->config.init;
    struct stat info;
    if (init == NULL)
        return true;
    if (o->config.checkpoint.resume)
        return is_as_recorded(o, error);
    if (stat(init, &info) != 0) /* rank 0 alone reads a file */
        return !is_hub_name(init) || writes_elsewhere(o) || refuse_missing(init, error);
    return !S_ISDIR(info.st_mode) || is_no_run(init, error);
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
    if (most == 0 || has_model(o, &plain))
        return 0;
    lki_name_lines(&errors[0], command, &o->file, plain.text);
    return 1;
}

/* ---- Outputs ------------------------------------------------------------------------------- */

/* Returns true if two paths, of which neither is there, are the same but for "./" and "/". */
static bool are_alike(const char *one, const char *other)
{
    one   += strncmp(one, "./", 2) == 0 ? 2 : 0;
    other += strncmp(other, "./", 2) == 0 ? 2 : 0;
    const size_t length = strlen(one);
    return strncmp(one, other, length) == 0 && other[length + strspn(other + length, "/")] == '\0';
}

/* Explains why a path that does not exist cannot be created.  The run itself creates the directory
 * `folder` (or NULL) of its checkpoints before the files in it. */
static bool can_create(const char *path, const char *name, const char *folder, lki_message *error)
{
    char        copy[4096];
    struct stat info;
    if (snprintf(copy, sizeof copy, "%s", path) >= (int)sizeof copy)
        return lki_refuse(error, "--%s: the path has %zu bytes, too many", name, strlen(path));
    const char *parent = dirname(copy);
    if (folder != NULL && are_alike(parent, folder) && stat(parent, &info) != 0 && errno == ENOENT)
        return true;
    if (stat(parent, &info) != 0 && errno == ENOENT)
        return lki_refuse(error, "--%s %.200s: there is no directory '%.200s'; make it first "
                                 "(mkdir -p), or correct the path", name, path, parent);
    if (stat(parent, &info) != 0)
        return lki_refuse(error, "--%s %.300s: %s; correct the path", name, path, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return lki_refuse(error, "--%s %.200s: '%.200s' is no directory; correct the path", name,
                          path, parent);
    if (access(parent, W_OK | X_OK) != 0)
        return lki_refuse(error, "--%s %.200s: cannot write in '%.200s': %s; give another path",
                          name, path, parent, strerror(errno));
    return true;
}

/* Returns true if a run can write the file, or files in the directory, that an option names.
 * Creates nothing. */
static bool can_write(const char *path, const char *name, bool folder, const char *checkpoints,
                      lki_message *error)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return errno == ENOENT ? can_create(path, name, checkpoints, error)
                               : lki_refuse(error, "--%s %.300s: %s; correct the path", name, path,
                                            strerror(errno));
    if (folder && !S_ISDIR(info.st_mode))
        return lki_refuse(error, "--%s %.300s: is a file, not a directory; give another path",
                          name, path);
    if (!folder && S_ISDIR(info.st_mode))
        return lki_refuse(error, "--%s %.300s: is a directory; name a file in it", name, path);
    if (access(path, folder ? W_OK | X_OK : W_OK) != 0)
        return lki_refuse(error, "--%s %.300s: cannot be written: %s; give another path", name,
                          path, strerror(errno));
    return true;
}

typedef struct {
    const char *name, *path;
    bool        folder;
} output;

size_t lki_train_check_options(const lki_command *command, const void *target,
                               lki_message *errors, size_t most)
{
    const train_options   *o         = target;
    const lk_train_config *c         = &o->config;
    const output           outputs[] = {
        { "checkpoint", c->checkpoint.folder, true },
        { "log", c->log, false },
        { "tensorboard", c->outputs.tensorboard, true },
        { "metrics", c->outputs.metrics, false },
        { "trace", c->trace, false },
        { "record", c->exchange.async.record, false },
        { "flight-recorder", o->flight, true },
    };
    size_t      count = 0;
    lki_message plain;
    if (is_initial(o, &plain))
        count = lki_train_check_model(command, target, errors, most);
    else if (most > 0)
        lki_name_lines(&errors[count++], command, &o->file, plain.text);
    if (writes_elsewhere(o))
        return count;
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0] && count < most; i++)
        if (outputs[i].path != NULL &&
            !can_write(outputs[i].path, outputs[i].name, outputs[i].folder,
                       i > 0 ? c->checkpoint.folder : NULL, &plain))
            lki_name_lines(&errors[count++], command, &o->file, plain.text);
    return count;
}

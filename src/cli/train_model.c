/* train_model.c -- checks of train's options that need more than one option: the model that the
 * folder of --init has, and the files and directories that a run writes. */
#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/train.h"
#include "cli/values.h"
#include "cli/words.h"

/* ---- The model of a folder ----------------------------------------------------------------- */

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
        return lki_refuse(error, "--init %.300s: %s; correct the path", init, strerror(errno));
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

/* Explains why a path that does not exist cannot be created. */
static bool can_create(const char *path, const char *name, lki_message *error)
{
    char        copy[4096];
    struct stat info;
    if (snprintf(copy, sizeof copy, "%s", path) >= (int)sizeof copy)
        return lki_refuse(error, "--%s: the path has %zu bytes, too many", name, strlen(path));
    const char *parent = dirname(copy);
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
static bool can_write(const char *path, const char *name, bool folder, lki_message *error)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return errno == ENOENT ? can_create(path, name, error)
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

/* Returns true if this process has been started by a launcher or MPI, or runs on a host other than
 * that of rank 0.  It may then write no files. */
static bool writes_elsewhere(const train_options *o)
{
    bool launched = false;
    return (o->nodes.count > 1 && o->nodes.number != 0) || o->mpi == LK_MPI_ON ||
           lk_launched(&launched) != LK_OK || launched;
}

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
    size_t      count = lki_train_check_model(command, target, errors, most);
    lki_message plain;
    if (writes_elsewhere(o))
        return count;
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0] && count < most; i++)
        if (outputs[i].path != NULL &&
            !can_write(outputs[i].path, outputs[i].name, outputs[i].folder, &plain))
            lki_name_lines(&errors[count++], command, &o->file, plain.text);
    return count;
}

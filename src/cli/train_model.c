/* train_model.c -- checks of train's options that need more than one option: the files and
 * directories that a run writes, and those of --init (train_init.c). */
#include <errno.h>
#include <libgen.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/train.h"
#include "cli/values.h"

bool lki_writes_elsewhere(const train_options *o)
{
    bool launched = false;
    return (o->nodes.count > 1 && o->nodes.number != 0) || o->mpi == LK_MPI_ON ||
           lk_launched(&launched) != LK_OK || launched;
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
    if (lki_train_check_init(o, &plain))
        count = lki_train_check_model(command, target, errors, most);
    else if (most > 0)
        lki_name_lines(&errors[count++], command, &o->file, plain.text);
    if (lki_writes_elsewhere(o))
        return count;
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0] && count < most; i++)
        if (outputs[i].path != NULL &&
            !can_write(outputs[i].path, outputs[i].name, outputs[i].folder,
                       i > 0 ? c->checkpoint.folder : NULL, &plain))
            lki_name_lines(&errors[count++], command, &o->file, plain.text);
    return count;
}

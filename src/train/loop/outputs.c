/* outputs.c -- checks the files that a run writes, before it starts: they can be written, and no
 * file and no other run's log is lost by that.  The checks leave no file behind. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "lockstep/data.h"
#include "train/loop/loop.h"
#include "train/observe/observe.h"

/* A file that a run writes, and how each file of its kind begins.  NULL: it is the log. */
typedef struct {
    const char *option, *path, *head;
} output;

/* Splits a path into its directory and its last part.  Returns the last part. */
static const char *split(const char *path, char directory[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    (void)snprintf(directory, PATH_MAX, "%s", path);
    return slash != NULL ? slash + 1 : path;
}

/* Returns true if two paths name the same file or directory, which need not be there yet. */
static bool are_same_place(const char *one, const char *other)
{
    char here[PATH_MAX], there[PATH_MAX];
    if (access(one, F_OK) == 0 || access(other, F_OK) == 0)
        return lki_is_same_file(one, other);
    const char *name = split(one, here);
    return strcmp(name, split(other, there)) == 0 &&
           lki_is_same_file(dirname(here), dirname(there));
}

/* Returns true if two paths name the same file.  A pipe or a device may have several outputs. */
static bool are_same(const char *one, const char *other)
{
    struct stat info;
    return one != NULL && other != NULL && are_same_place(one, other) &&
           (stat(one, &info) != 0 || S_ISREG(info.st_mode));
}

/* Returns 0 if files can be made in a directory, or the errno.  Makes a file under a name of its
 * own and removes it, since permissions do not tell: no file can be made in /proc. */
static int try_directory(const char *directory)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%.4000s/.lockstep-XXXXXX", directory) >= PATH_MAX)
        return ENAMETOOLONG;
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return errno;
    (void)close(fd);
    (void)unlink(path);
    return 0;
}

/* Returns 0 if a file or directory that is not there can be made, or the errno.  Its directory may
 * be the one of the checkpoints, which the run makes. */
static int try_to_make(const lk_train_config *c, const char *path)
{
    char        copy[PATH_MAX];
    struct stat info;
    (void)split(path, copy);
    const char *directory = dirname(copy);
    if (stat(directory, &info) != 0 && errno == ENOENT && c->checkpoint.folder != NULL &&
        are_same_place(directory, c->checkpoint.folder))
        return 0;
    return try_directory(directory);
}

/* Returns 0 if a file can be written, or the errno.  Does not make it, because the run may still be
 * refused, and does not open a pipe or a device: a pipe's reader would see the end of the log when
 * this process closes it. */
static int try_file(const lk_train_config *c, const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return errno == ENOENT ? try_to_make(c, path) : errno;
    if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode))
        return access(path, W_OK) == 0 ? 0 : errno;
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0)
        return errno;
    (void)close(fd);
    return 0;
}

/* Returns true if `path` is one of the files of a data source: KIND:FILE,FILE?PARAMETERS. */
static bool is_data(const char *path, const char *source)
{
    const char *colon = strchr(source, ':');
    for (const char *at = colon != NULL ? colon + 1 : source; *at != '\0';) {
        char   piece[PATH_MAX];
        size_t length = strcspn(at, lk_dataset_path_ends(source));
        (void)snprintf(piece, sizeof piece, "%.*s", (int)length, at);
        if (are_same(path, piece))
            return true;
        at += length;
        if (*at++ != ',')
            return false;
    }
    return false;
}

static bool is_read(const lk_train_config *c, const char *path)
{
    const char *const inputs[] = { c->init, c->data.weights, c->data.loss_weights,
                                   c->exchange.async.replay };
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        if (are_same(path, inputs[i]))
            return true;
    return c->data.source != NULL && is_data(path, c->data.source);
}

static lk_status check_output(const lk_train_config *c, const output *out)
{
    if (strcmp(out->path, "-") == 0)
        return lk_fail(LK_EINVAL, "`%s` - names no file; write /dev/stdout, or ./- if it does",
                       out->option);
    int why = try_file(c, out->path);
    if (why != 0)
        return lk_fail(LK_EIO, "cannot write the %s '%s': %s; give another `%s`", out->option,
                       out->path, strerror(why), out->option);
    if (is_read(c, out->path))
        return lk_fail(LK_EINVAL, "`%s` %s is a file that the run reads, and would be overwritten: "
                                  "give another one", out->option, out->path);
    if (out->head == NULL ? lki_log_is_other(out->path)
                          : lki_file_is_other(out->path, out->head))
        return lk_fail(LK_EINVAL, "`%s` %s is a file of another kind, and would be overwritten: "
                                  "give another one, or remove it", out->option, out->path);
    return LK_OK;
}

/* Checks a path that a new file replaces. */
static lk_status check_replaced(const char *option, const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && !S_ISREG(info.st_mode)
               ? lk_fail(LK_EINVAL, "`%s` %s is no file: a new file replaces it, so it can be no "
                                    "link, pipe, device or directory", option, path)
               : LK_OK;
}

static lk_status check_metrics(const char *path)
{
    LK_TRY(check_replaced("metrics", path));
    return lki_file_is_locked(path) ? lki_output_in_use("metrics", path) : LK_OK;
}

/* The file itself is written at the end.  While a run goes on, its ranks hold locks on their
 * parts. */
static lk_status check_trace(const char *path)
{
    char part[PATH_MAX];
    LK_TRY(lki_trace_part_path(part, path, 0));
    return lki_is_file(part) && lki_file_is_locked(part) ? lki_output_in_use("trace", path) : LK_OK;
}

static lk_status check_tensorboard(const lk_train_config *c)
{
    const char *path = c->outputs.tensorboard;
    struct stat info;
    const bool  there = stat(path, &info) == 0;
    int why = there && !S_ISDIR(info.st_mode) ? ENOTDIR
              : there ? try_directory(path) : errno == ENOENT ? try_to_make(c, path) : errno;
    if (why != 0)
        return lk_fail(LK_EIO, "cannot write event files to `tensorboard` '%s': %s; give another "
                               "directory", path, strerror(why));
    return lki_file_is_locked(path) ? lki_output_in_use("tensorboard", path) : LK_OK;
}

static lk_status share_file(const char *one, const char *other, const char *path)
{
    return lk_fail(LK_EINVAL, "`%s` and `%s` are the same file %s: give each its own", one, other,
                   path);
}

lk_status lki_outputs_check(const lk_train_config *c)
{
    const output outputs[] = { { "log", c->log, NULL },
                               { "metrics", c->outputs.metrics, "# HELP lockstep_" },
                               { "trace", c->trace, LKI_TRACE_OPENING } };
    const char  *record    = c->exchange.async.record; /* checks its own contents */
    const size_t count     = sizeof outputs / sizeof outputs[0];
    if (c->outputs.metrics != NULL)
        LK_TRY(check_metrics(c->outputs.metrics));
    if (c->trace != NULL)
        LK_TRY(check_replaced("trace", c->trace));
    for (size_t i = 0; i < count; i++) {
        if (outputs[i].path == NULL)
            continue;
        LK_TRY(check_output(c, &outputs[i]));
        if (are_same(outputs[i].path, record))
            return share_file("record", outputs[i].option, record);
        for (size_t k = 0; k < i; k++)
            if (are_same(outputs[i].path, outputs[k].path))
                return share_file(outputs[k].option, outputs[i].option, outputs[i].path);
    }
    if (c->trace != NULL)
        LK_TRY(check_trace(c->trace));
    return c->outputs.tensorboard != NULL ? check_tensorboard(c) : LK_OK;
}

/* Fails if a run would share its event files' directory with another run that made a step.
 * TensorBoard would then leave out steps of that run. */
static lk_status check_events(const lki_log_run *run)
{
    const char    *folder = run->config->outputs.tensorboard;
    DIR           *list   = opendir(folder);
    bool           used   = false;
    struct dirent *entry;
    while (list != NULL && !used && (entry = readdir(list)) != NULL) {
        char path[PATH_MAX];
        used = strncmp(entry->d_name, "events.out.tfevents.", 20) == 0 &&
               snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) < PATH_MAX &&
               lki_events_are_others(run, path);
    }
    if (list != NULL)
        (void)closedir(list);
    return used ? lk_fail(LK_EINVAL, "`tensorboard` %s has the event files of another run, which "
                                     "TensorBoard would no longer show: give another directory, "
                                     "or remove it", folder)
                : LK_OK;
}

lk_status lki_outputs_check_unused(const lki_log_run *run)
{
    LK_TRY(lki_log_check_unlocked(run));
    LK_TRY(lki_log_check_steps(run));
    return run->config->outputs.tensorboard != NULL ? check_events(run) : LK_OK;
}

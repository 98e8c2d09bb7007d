/* outputs.c -- checks the files that a run writes, before it starts: they can be written, and no
 * file and no other run's log is lost by that. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "train/loop/loop.h"

/* A file that a run writes.  `first` is the first character of such a file; 0: it is a trace, which
 * is written by all ranks at the end. */
typedef struct {
    const char *option, *path;
    char        first;
} output;

/* Creates a file that does not exist.  Does not open a pipe or a device: a pipe's reader would see
 * the end of the log when this process closes it. */
static bool can_write(const char *path)
{
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode))
        return access(path, W_OK) == 0;
    FILE *file = fopen(path, "ae");
    return file != NULL && fclose(file) == 0;
}

/* Returns true if two paths name the same regular file. */
static bool are_same(const char *one, const char *other)
{
    struct stat first, second;
    return one != NULL && other != NULL && stat(one, &first) == 0 && stat(other, &second) == 0 &&
           S_ISREG(first.st_mode) && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

/* Returns true if `path` is one of the files of a data source: KIND:FILE,FILE?PARAMETERS. */
static bool is_data(const char *path, const char *source)
{
    const char *colon = strchr(source, ':');
    for (const char *at = colon != NULL ? colon + 1 : source; *at != '\0';) {
        char   piece[PATH_MAX];
        size_t length = strcspn(at, ",?");
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

/* Returns true if a file has contents that a run does not write. */
static bool is_another_file(const output *out)
{
    struct stat info;
    if (out->first == '\0' || stat(out->path, &info) != 0 || !S_ISREG(info.st_mode))
        return false;
    FILE *file  = fopen(out->path, "re");
    int   first = file != NULL ? getc(file) : EOF;
    if (file != NULL)
        (void)fclose(file);
    return first != EOF && first != out->first;
}

static lk_status check_output(const lk_train_config *c, const output *out)
{
    if (strcmp(out->path, "-") == 0)
        return lk_fail(LK_EINVAL, "`%s` - names no file; write /dev/stdout, or ./- if it does",
                       out->option);
    if (out->first != '\0' && !can_write(out->path))
        return lk_fail(LK_EIO, "cannot write the %s '%s': %s; give another `%s`", out->option,
                       out->path, strerror(errno), out->option);
    if (is_read(c, out->path))
        return lk_fail(LK_EINVAL, "`%s` %s is a file that the run reads, and would be overwritten: "
                                  "give another one", out->option, out->path);
    if (is_another_file(out))
        return lk_fail(LK_EINVAL, "`%s` %s is a file of another kind, and would be overwritten: "
                                  "give another one, or remove it", out->option, out->path);
    return LK_OK;
}

static lk_status check_metrics(const char *path)
{
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return lk_fail(LK_EINVAL, "`metrics` %s is no file: it is replaced every second, so it "
                                  "can be no pipe, device or directory", path);
    return LK_OK;
}

static lk_status check_tensorboard(const char *path)
{
    struct stat info;
    int         why = mkdir(path, 0777) == 0 || errno == EEXIST ? 0 : errno;
    if (why == 0 && stat(path, &info) == 0 && !S_ISDIR(info.st_mode))
        why = ENOTDIR;
    if (why == 0 && access(path, W_OK | X_OK) != 0)
        why = errno;
    return why == 0 ? LK_OK
                    : lk_fail(LK_EIO, "cannot write event files to `tensorboard` '%s': %s; give "
                                      "another directory", path, strerror(why));
}

static lk_status share_file(const char *one, const char *other, const char *path)
{
    return lk_fail(LK_EINVAL, "`%s` and `%s` are the same file %s: give each its own", one, other,
                   path);
}

lk_status lki_outputs_check(const lk_train_config *c)
{
    const output outputs[] = { { "log", c->log, '{' },
                               { "metrics", c->outputs.metrics, '#' },
                               { "trace", c->trace, '\0' } };
    const char  *record    = c->exchange.async.record; /* checks its own contents */
    const size_t count     = sizeof outputs / sizeof outputs[0];
    if (c->outputs.metrics != NULL)
        LK_TRY(check_metrics(c->outputs.metrics));
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
    return c->outputs.tensorboard != NULL ? check_tensorboard(c->outputs.tensorboard) : LK_OK;
}

/* Returns true if a file contains a text. */
static bool contains(const char *path, const char *text)
{
    lki_map map;
    if (lki_map_open(&map, path) != LK_OK)
        return false;
    bool found = map.bytes > 0 && memmem(map.data, map.bytes, text, strlen(text)) != NULL;
    lki_map_close(&map);
    return found;
}

/* Fails if a new run would share its event files' directory with a run that made a step, whose
 * steps TensorBoard would then leave out. */
static lk_status check_events(const lk_train_config *c)
{
    const char    *folder = c->outputs.tensorboard;
    DIR           *list   = opendir(folder);
    bool           used   = false;
    struct dirent *entry;
    while (list != NULL && !used && (entry = readdir(list)) != NULL) {
        char path[PATH_MAX];
        used = strncmp(entry->d_name, "events.out.tfevents.", 20) == 0 &&
               snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) < PATH_MAX &&
               contains(path, "train/loss");
    }
    if (list != NULL)
        (void)closedir(list);
    return used ? lk_fail(LK_EINVAL, "`tensorboard` %s has the event files of another run, which "
                                     "TensorBoard would no longer show: give another directory, "
                                     "or remove it", folder)
                : LK_OK;
}

lk_status lki_outputs_check_unused(const lk_train_config *c)
{
    if (c->checkpoint.resume)
        return LK_OK;
    LK_TRY(lki_journal_check_unused(c));
    return c->outputs.tensorboard != NULL ? check_events(c) : LK_OK;
}

/* target.c -- finds out what a path names.  See target.h. */
#include "report/target.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "lockstep/report.h"
#include "lockstep/checkpoint.h"

static bool ends_with(const char *text, const char *ending)
{
    size_t length = strlen(text), tail = strlen(ending);
    return length > tail && strcmp(text + length - tail, ending) == 0;
}

static bool has_file(const char *directory, const char *name)
{
    char        path[LKI_PATH_BYTES];
    struct stat info;
    return snprintf(path, sizeof path, "%s/%s", directory, name) < (int)sizeof path &&
           stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* ---- Runs that were moved ------------------------------------------------------------------ */

/* Returns the bytes that two paths have in common, up to the end of a component. */
static size_t common_bytes(const char *a, const char *b)
{
    size_t same = 0, at = 0;
    for (; a[at] != '\0' && a[at] == b[at]; at++)
        if (a[at] == '/')
            same = at;
    const bool ends = (a[at] == '\0' || a[at] == '/') && (b[at] == '\0' || b[at] == '/');
    return ends ? at : same;
}

/* Writes the path that `path` has if `was`, to which it is relative, is now `run`: as far up from
 * `run`, and as far down. */
static void follow(char *out, size_t bytes, const char *was, const char *run, const char *path)
{
    const size_t same   = common_bytes(was, path);
    size_t       length = strlen(run);
    for (const char *at = was + same; *at != '\0'; at++)
        if (*at == '/' && at[1] != '\0')
            while (length > 0 && run[--length] != '/')
                continue;
    (void)snprintf(out, bytes, "%.*s%s", (int)length, run, path + same);
}

static bool exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

/* Returns true if two paths name the same directory. */
static bool are_same(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Finds a file with the name of `path` beside the directory `run`, or in it. */
static bool find_near(char *out, size_t bytes, const char *run, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    if (*name == '\0')
        return false;
    (void)snprintf(out, bytes, "%s/../%s", run, name);
    if (exists(out))
        return true;
    (void)snprintf(out, bytes, "%s/%s", run, name);
    return exists(out);
}

/* Finds a file of a run that was moved from `was`, or from an unknown place (NULL). */
static bool find_moved(char *out, size_t bytes, const char *was, const char *run, const char *path)
{
    char      *whole = realpath(run, NULL);
    const bool knows = whole != NULL && was != NULL;
    if (knows)
        follow(out, bytes, was, whole, path);
    const bool found = (knows && exists(out)) ||
                       (whole != NULL && find_near(out, bytes, whole, path));
    free(whole);
    return found;
}

lk_status lki_file_of_run(char *out, size_t bytes, const char *was, const char *run,
                          const char *directory, const char *path)
{
    char       place[LKI_PATH_BYTES];
    const bool whole = path[0] == '/';
    (void)snprintf(place, sizeof place, "%s%s%s", whole ? "" : directory, whole ? "" : "/", path);
    const bool stayed = was != NULL && are_same(was, run);
    const bool first  = stayed || was == NULL; /* where it was is better than a guess */
    if (!(first && exists(place)) && !stayed && find_moved(out, bytes, was, run, place))
        return LK_OK;
    (void)snprintf(out, bytes, "%s", place);
    return exists(place) ? LK_OK : lk_fail(LK_EIO, "cannot find '%s'", place);
}

lk_status lk_run_file(char *out, size_t bytes, const char *run, const char *path)
{
    char record[LKI_PATH_BYTES];
    LK_TRY(lki_check_given("lk_run_file", "run", run, 1));
    LK_TRY(lki_check_given("lk_run_file", "path", path, 1));
    LK_TRY(lki_directory_join(record, run, LK_RUN_COMMAND));
    json_t     *command   = json_load_file(record, 0, NULL);
    const char *directory = json_string_value(json_object_get(command, "directory"));
    const char *was       = json_string_value(json_object_get(command, "checkpoint"));
    lk_status   status    = lki_file_of_run(out, bytes, was, run,
                                            directory != NULL ? directory : ".", path);
    json_decref(command);
    return status;
}

/* ---- Logs ---------------------------------------------------------------------------------- */

/* Finds the log that `lockstep train` has noted in RUN/command.json.  Leaves `out` empty if it is
 * not there. */
static lk_status find_recorded(char out[LKI_PATH_BYTES], const char *run)
{
    char path[LKI_PATH_BYTES];
    LK_TRY(lki_directory_join(path, run, LK_RUN_COMMAND));
    json_t     *record = json_load_file(path, 0, NULL);
    const char *log = json_string_value(json_object_get(json_object_get(record, "options"), "log"));
    struct stat info;
    if (log != NULL && (lk_run_file(path, sizeof path, run, log) != LK_OK ||
                        stat(path, &info) != 0 || !S_ISREG(info.st_mode)))
        log = NULL;
    if (log != NULL)
        (void)snprintf(out, LKI_PATH_BYTES, "%s", path);
    json_decref(record);
    return LK_OK;
}

/* Finds the log of a run.  Leaves `out` empty if there is none. */
static lk_status find_log(char out[LKI_PATH_BYTES], const char *run)
{
    struct dirent *entry;
    char           name[256] = "";
    size_t         logs      = 0;
    out[0]                   = '\0';
    if (has_file(run, "log.jsonl"))
        return lki_directory_join(out, run, "log.jsonl");
    DIR *directory = opendir(run);
    while (directory != NULL && (entry = readdir(directory)) != NULL)
        if (ends_with(entry->d_name, ".jsonl") && has_file(run, entry->d_name)) {
            (void)snprintf(name, sizeof name, "%s", entry->d_name);
            logs++;
        }
    if (directory != NULL)
        (void)closedir(directory);
    if (logs == 1)
        return lki_directory_join(out, run, name);
    LK_TRY(find_recorded(out, run));
    if (logs > 1 && out[0] == '\0')
        return lk_fail(LK_EINVAL,
                       "'%s' has %zu files *.jsonl, and none is log.jsonl: name the log itself",
                       run, logs);
    return LK_OK;
}

lk_status lki_no_log(const char *path)
{
    return lk_fail(LK_EINVAL,
                   "'%s' has no log: neither a file *.jsonl, nor the one that its command.json "
                   "names, where it was or beside the run; give the log itself, or start the run "
                   "with `log`",
                   path);
}

lk_status lk_run_log(char *out, size_t bytes, const char *run)
{
    char log[LKI_PATH_BYTES];
    LK_TRY(lki_check_given("lk_run_log", "run", run, 1));
    LK_TRY(find_log(log, run));
    if (log[0] == '\0')
        return lki_no_log(run);
    if (snprintf(out, bytes, "%s", log) >= (int)bytes)
        return lk_fail(LK_EINVAL, "the path of a log has %zu bytes", strlen(log));
    return LK_OK;
}

static lk_status find_in_directory(lki_target *target)
{
    if (has_file(target->path, LKI_MANIFEST_NAME)) {
        target->is_checkpoint = true;
        return LK_OK;
    }
    LK_TRY(lki_steps_list(&target->steps, &target->step_count, target->path));
    LK_TRY(find_log(target->log, target->path));
    if (target->step_count == 0 && target->log[0] == '\0')
        return lk_fail(LK_EINVAL,
                       "'%s' is no run: it has neither checkpoints (step-00000001) nor "
                       "a log",
                       target->path);
    return LK_OK;
}

lk_status lki_target_find(lki_target *out, const char *path)
{
    struct stat info;
    *out = (lki_target){ .path = path };
    if (strlen(path) >= sizeof out->log)
        return lk_fail(LK_EINVAL, "a path of %zu bytes is too long", strlen(path));
    if (stat(path, &info) != 0)
        return lk_fail(LK_EIO,
                       "cannot find '%s': %s; the log of a run exists once the run has begun", path,
                       strerror(errno));
    if (S_ISDIR(info.st_mode)) {
        lk_status status = find_in_directory(out);
        if (status != LK_OK)
            lki_target_free(out);
        return status;
    }
    if (!S_ISREG(info.st_mode))
        return lk_fail(LK_EINVAL,
                       "'%s' is no regular file: logs and tensors are read more than once, so copy "
                       "what a pipe has into a file first",
                       path);
    out->is_tensors = ends_with(path, ".safetensors");
    if (!out->is_tensors)
        (void)snprintf(out->log, sizeof out->log, "%s", path);
    return LK_OK;
}

void lki_target_free(lki_target *target)
{
    lki_free(target->steps);
    target->steps      = NULL;
    target->step_count = 0;
}

/* target.c -- finds out what a path names.  See target.h. */
#include "report/target.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "lockstep/report.h"

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

/* Finds the log that `lockstep train` has noted in RUN/command.json, relative to the directory in
 * which the run was started.  Leaves `out` empty if it is not there. */
static lk_status find_recorded(char out[LKI_PATH_BYTES], const char *run)
{
    char path[LKI_PATH_BYTES];
    LK_TRY(lki_directory_join(path, run, "command.json"));
    json_t     *record = json_load_file(path, 0, NULL);
    const char *folder = json_string_value(json_object_get(record, "directory"));
    const char *log = json_string_value(json_object_get(json_object_get(record, "options"), "log"));
    lk_status   status = LK_OK;
    if (log != NULL && folder != NULL && has_file(log[0] == '/' ? "" : folder, log))
        status = log[0] == '/' ? lki_directory_join(out, "", log + 1)
                               : lki_directory_join(out, folder, log);
    json_decref(record);
    return status;
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
                   "names; give the log itself, or start the run with `log`",
                   path);
}

lk_status lk_run_log(char *out, size_t bytes, const char *run)
{
    char log[LKI_PATH_BYTES];
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

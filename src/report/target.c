/* target.c -- finds out what a path names.  See target.h. */
#include "report/target.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"

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

static lk_status find_log(lki_target *target)
{
    struct dirent *entry;
    char           name[256] = "";
    size_t         logs      = 0;
    if (has_file(target->path, "log.jsonl"))
        return lki_directory_join(target->log, target->path, "log.jsonl");
    DIR *directory = opendir(target->path);
    while (directory != NULL && (entry = readdir(directory)) != NULL)
        if (ends_with(entry->d_name, ".jsonl") && has_file(target->path, entry->d_name)) {
            (void)snprintf(name, sizeof name, "%s", entry->d_name);
            logs++;
        }
    if (directory != NULL)
        (void)closedir(directory);
    if (logs > 1)
        return lk_fail(LK_EINVAL,
                       "'%s' has %zu files *.jsonl, and none is log.jsonl: name the log "
                       "itself",
                       target->path, logs);
    return logs == 1 ? lki_directory_join(target->log, target->path, name) : LK_OK;
}

static lk_status find_in_directory(lki_target *target)
{
    if (has_file(target->path, LKI_MANIFEST_NAME)) {
        target->is_checkpoint = true;
        return LK_OK;
    }
    LK_TRY(lki_steps_list(&target->steps, &target->step_count, target->path));
    LK_TRY(find_log(target));
    if (target->step_count == 0 && target->log[0] == '\0')
        return lk_fail(LK_EINVAL,
                       "'%s' is no run: it has neither checkpoints (step-00000001) nor "
                       "a log (*.jsonl)",
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

/* file_watch.c -- detects changes of a file that is read through a mapping.
 *
 * A mapping shows later writes to its file.  Reading the contents again would cost as much as
 * training.  So the file's size and modification time are compared with those at opening.  Only the
 * file that was opened is checked, not another file that now has its name.
 */
#include "data/source.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/memory.h"

struct lki_watched_file {
    char           *path;
    dev_t           device;
    ino_t           inode;
    off_t           bytes;
    struct timespec written;
};

lk_status lki_file_watch(lk_dataset *dataset, const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return lk_fail(LK_EIO, "cannot look at '%s': %s", path, strerror(errno));
    LK_TRY(lki_reserve((void **)&dataset->watched, &dataset->watched_capacity,
                       dataset->watched_count, sizeof *dataset->watched, "the files of the data"));
    lki_watched_file *watched = &dataset->watched[dataset->watched_count];
    *watched = (lki_watched_file){ NULL, info.st_dev, info.st_ino, info.st_size, info.st_mtim };
    LK_TRY(LKI_NEW(&watched->path, strlen(path) + 1, "a path"));
    memcpy(watched->path, path, strlen(path) + 1);
    dataset->watched_count++;
    return LK_OK;
}

void lki_file_watch_end(lk_dataset *dataset)
{
    for (size_t i = 0; i < dataset->watched_count; i++)
        lki_free(dataset->watched[i].path);
    lki_free(dataset->watched);
    dataset->watched       = NULL;
    dataset->watched_count = dataset->watched_capacity = 0;
}

static lk_status refuse(const lki_watched_file *watched, const struct stat *info)
{
    char      how[80] = "";
    struct tm when;
    if (info->st_size != watched->bytes)
        (void)snprintf(how, sizeof how, "from %lld bytes to %lld", (long long)watched->bytes,
                       (long long)info->st_size);
    else if (gmtime_r(&info->st_mtim.tv_sec, &when) != NULL)
        (void)strftime(how, sizeof how, "written at %Y-%m-%d %H:%M:%S UTC", &when);
    return lk_fail(LK_EIO,
                   "'%s' has changed since it was opened (%s): what is read from it now is "
                   "other data; put it back and continue from the newest checkpoint, or start "
                   "again",
                   watched->path, how);
}

lk_status lk_dataset_check(const lk_dataset *dataset)
{
    for (size_t i = 0; i < dataset->watched_count; i++) {
        const lki_watched_file *watched = &dataset->watched[i];
        struct stat             info;
        if (stat(watched->path, &info) != 0 || info.st_ino != watched->inode ||
            info.st_dev != watched->device)
            continue;
        if (info.st_size != watched->bytes || info.st_mtim.tv_sec != watched->written.tv_sec ||
            info.st_mtim.tv_nsec != watched->written.tv_nsec)
            return refuse(watched, &info);
    }
    return LK_OK;
}

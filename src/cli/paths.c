/* paths.c -- what is at a path; see paths.h. */
#include "cli/paths.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/checkpoint.h"

size_t lki_read_beginning(const char *path, void *out, size_t bytes)
{
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode))
        return 0;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    size_t got = fread(out, 1, bytes, file);
    (void)fclose(file);
    return got;
}

const char *lki_why_unreadable(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0 || access(path, R_OK) != 0)
        return strerror(errno);
    if (S_ISDIR(info.st_mode))
        return strerror(EISDIR);
    return S_ISREG(info.st_mode) ? NULL : "it is a pipe or a device, and is read more than once";
}

bool lki_has_file(const char *folder, const char *name)
{
    char path[4096];
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path &&
           access(path, F_OK) == 0;
}

bool lki_is_run(const char *path)
{
    bool exists = false;
    return lki_has_file(path, LK_RUN_COMMAND) ||
           (lk_checkpoint_exists(path, &exists) == LK_OK && exists);
}

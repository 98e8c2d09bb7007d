/* folder.c -- lists the files of a folder in an order that does not depend on the file system.
 *
 * Subfolders are queued in a list, so deep folders need no recursion.  Links are not followed,
 * because they can form cycles and leave the folder.  Files are in byte order of the whole relative
 * path, so "a.txt" is before "a/b".
 */
#include "data/source.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/sort.h"

lk_status lki_path_join(char **out, const char *folder, const char *name)
{
    size_t head = strlen(folder), tail = strlen(name);
    bool   slash = head > 0 && folder[head - 1] != '/';
    char  *path = NULL;
    *out = NULL;
    LK_TRY(LKI_NEW(&path, head + tail + 2, "path"));
    (void)snprintf(path, head + tail + 2, "%s%s%s", folder, slash ? "/" : "", name);
    *out = path;
    return LK_OK;
}

static lk_status push(lki_listing *list, const char *folder, const char *name)
{
    LK_TRY(lki_reserve((void **)&list->paths, &list->capacity, list->count, sizeof *list->paths,
                       "list of files"));
    LK_TRY(lki_path_join(&list->paths[list->count], folder, name));
    list->count++;
    return LK_OK;
}

static lk_status visit(lki_listing *files, lki_listing *folders, const char *root,
                       const char *folder, const char *name)
{
    char       *relative = NULL, *path = NULL;
    struct stat info;
    LK_TRY(lki_path_join(&relative, folder, name));
    lk_status status = lki_path_join(&path, root, relative);
    if (status == LK_OK && lstat(path, &info) != 0)
        status = lk_fail(LK_EIO, "cannot read '%s': %s", path, strerror(errno));
    else if (status == LK_OK && S_ISREG(info.st_mode))
        status = push(files, folder, name);
    else if (status == LK_OK && folders != NULL && S_ISDIR(info.st_mode) &&
             strcmp(name, "build") != 0)
        status = push(folders, folder, name);
    lki_free(path);
    lki_free(relative);
    return status;
}

static lk_status scan(lki_listing *files, lki_listing *folders, const char *root,
                      const char *folder)
{
    char *path = NULL;
    LK_TRY(lki_path_join(&path, root, folder));
    lk_status status = LK_OK;
    DIR      *handle = opendir(path);
    if (handle == NULL)
        status = lk_fail(LK_EIO, "cannot open the folder '%s': %s", path, strerror(errno));
    while (status == LK_OK) {
        errno = 0;
        const struct dirent *entry = readdir(handle);
        if (entry == NULL) {
            if (errno != 0)
                status = lk_fail(LK_EIO, "cannot list '%s': %s", path, strerror(errno));
            break;
        }
        if (entry->d_name[0] != '.')
            status = visit(files, folders, root, folder, entry->d_name);
    }
    if (handle != NULL)
        (void)closedir(handle);
    lki_free(path);
    return status;
}

lk_status lki_listing_open(lki_listing *out, const char *folder, bool deep)
{
    lki_listing folders = { NULL, 0, 0 };
    *out = (lki_listing){ NULL, 0, 0 };
    lk_status status = scan(out, deep ? &folders : NULL, folder, "");
    for (size_t i = 0; status == LK_OK && i < folders.count; i++)
        status = scan(out, &folders, folder, folders.paths[i]);
    lki_listing_close(&folders);
    if (status != LK_OK)
        lki_listing_close(out);
    else if (out->count > 0)
        qsort(out->paths, out->count, sizeof *out->paths, lki_by_bytes);
    return status;
}

void lki_listing_close(lki_listing *listing)
{
    for (size_t i = 0; i < listing->count; i++)
        lki_free(listing->paths[i]);
    lki_free(listing->paths);
    *listing = (lki_listing){ NULL, 0, 0 };
}

lk_status lki_hash_of_hashes(char hex[33], char (*hashes)[33], size_t count)
{
    if (count == 1) {
        memcpy(hex, hashes[0], 33);
        return LK_OK;
    }
    char *all = NULL;
    LK_TRY(lki_alloc_array((void **)&all, count, 32, "hashes"));
    for (size_t i = 0; i < count; i++)
        memcpy(all + 32 * i, hashes[i], 32);
    lki_xxh3_128(all, 32 * count, hex);
    lki_free(all);
    return LK_OK;
}

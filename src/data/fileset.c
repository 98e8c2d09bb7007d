/* fileset.c -- maps a FILE, FOLDER or RANGE as a list of files, and walks through tar archives. */
#include "data/fileset.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "data/source.h"

enum { SHARDS_MAX = 1 << 20 };

bool lki_ends_with(const char *path, const char *end)
{
    size_t length = strlen(path), tail = strlen(end);
    return length > tail && strcmp(path + length - tail, end) == 0;
}

/* Adds a file.  Takes ownership of `path`, also on failure. */
static lk_status add(lki_fileset *set, lk_dataset *dataset, char *path)
{
    lk_status status = lki_reserve((void **)&set->at, &set->capacity, set->count,
                                   sizeof *set->at, "files of a data set");
    if (status != LK_OK) {
        lki_free(path);
        return status;
    }
    lki_mapped *added = &set->at[set->count++];
    *added           = (lki_mapped){ .path = path };
    LK_TRY(lki_map_open(&added->map, path));
    return lki_file_watch(dataset, path);
}

static lk_status add_copy(lki_fileset *set, lk_dataset *dataset, const char *text)
{
    char *path = NULL;
    LK_TRY(lki_path_join(&path, "", text));
    return add(set, dataset, path);
}

static bool is_wanted(const char *name, const char *const *endings)
{
    for (; *endings != NULL; endings++)
        if (lki_ends_with(name, *endings))
            return true;
    return false;
}

static lk_status add_folder(lki_fileset *set, lk_dataset *dataset, const char *folder,
                            const char *const *endings)
{
    lki_listing files;
    LK_TRY(lki_listing_open(&files, folder, true));
    lk_status status = LK_OK;
    for (size_t i = 0; i < files.count && status == LK_OK; i++) {
        char *path = NULL;
        if (!is_wanted(files.paths[i], endings))
            continue;
        status = lki_path_join(&path, folder, files.paths[i]);
        if (status == LK_OK)
            status = add(set, dataset, path);
    }
    lki_listing_close(&files);
    if (status == LK_OK && set->count == 0)
        status = lk_fail(LK_EIO, "the folder '%s' has no %s file below it", folder, endings[0]);
    return status;
}

static lk_status add_range(lki_fileset *set, lk_dataset *dataset, const char *pattern)
{
    const char        *open = strchr(pattern, '{');
    unsigned long long first, last;
    int                from = 0, to = 0, end = 0;
    if (sscanf(open, "{%n%9llu%n..%9llu}%n", &from, &first, &to, &last, &end) != 2 || end == 0 ||
        open[1] == ' ' || open[1] == '-' || open[1] == '+' || last < first ||
        last - first >= SHARDS_MAX)
        return lk_fail(LK_EINVAL, "'%s': write the range as {000..127}", pattern);
    for (; first <= last; first++) {
        char path[4096];
        int  length = snprintf(path, sizeof path, "%.*s%0*llu%s", (int)(open - pattern), pattern,
                               to - from, first, open + end);
        if (length >= (int)sizeof path)
            return lk_fail(LK_EINVAL, "'%s' is too long a path", pattern);
        LK_TRY(add_copy(set, dataset, path));
    }
    return LK_OK;
}

lk_status lki_fileset_open(lki_fileset *set, lk_dataset *dataset, const char *path,
                          const char *const *endings)
{
    if (strchr(path, '{') != NULL)
        return add_range(set, dataset, path);
    if (lki_is_folder(path))
        return add_folder(set, dataset, path, endings);
    return add_copy(set, dataset, path);
}

void lki_fileset_close(lki_fileset *set)
{
    for (size_t i = 0; i < set->count; i++) {
        lki_map_close(&set->at[i].map);
        lki_free(set->at[i].path);
    }
    lki_free(set->at);
    *set = (lki_fileset){ NULL, 0, 0 };
}

lk_status lki_fileset_hash(const lki_fileset *set, const char more[33], char hex[33])
{
    char (*hashes)[33] = NULL;
    LK_TRY(LKI_NEW(&hashes, set->count + 1, "hashes"));
    for (size_t i = 0; i < set->count; i++)
        lki_xxh3_128(set->at[i].map.data, set->at[i].map.bytes, hashes[i]);
    memcpy(hashes[set->count], more, sizeof hashes[0]);
    lk_status status = lki_hash_of_hashes(hex, hashes, set->count + 1);
    lki_free(hashes);
    return status;
}

/* ---- Samples of an archive ------------------------------------------------------------------ */

static size_t key_length(const char *name)
{
    const char *slash = strrchr(name, '/');
    const char *base  = slash != NULL ? slash + 1 : name;
    return (size_t)(base - name) + strcspn(base, ".");
}

/* Starts a new sample with the current member of the archive, if there is a current member. */
static void begin_sample(lki_tar_walk *walk, size_t length)
{
    walk->begun = walk->member.start;
    memcpy(walk->key, walk->member.name, length);
    walk->key[length] = '\0';
}

lk_status lki_tar_walk_next(lki_tar_walk *walk, lki_tar_event *event)
{
    if (!walk->held)
        LK_TRY(lki_tar_next(&walk->tar, &walk->member, &walk->more));
    const char *name   = walk->more ? walk->member.name : "";
    size_t      length = key_length(name);
    bool        same   = walk->more && strlen(walk->key) == length &&
                memcmp(walk->key, name, length) == 0;
    if (!same && !walk->held) {
        walk->held = true;
        *event     = LKI_TAR_SAMPLE;
        return LK_OK;
    }
    if (!same)
        begin_sample(walk, length);
    walk->held      = false;
    walk->extension = name + length + (name[length] == '.');
    *event          = walk->more ? LKI_TAR_MEMBER : LKI_TAR_END;
    return LK_OK;
}

lk_status lki_tar_visit(const lki_mapped *shard, const lki_tar_visitor *visitor)
{
    lki_tar_walk  walk = { .key = "" };
    lki_tar_event event;
    bool          more = false;
    lki_tar_begin(&walk.tar, shard->map.data, shard->map.bytes, shard->path);
    do {
        LK_TRY(lki_tar_walk_next(&walk, &event));
        if (event == LKI_TAR_MEMBER)
            LK_TRY(visitor->member(visitor->context, &walk.tar, &walk.member, walk.extension));
        else if (event == LKI_TAR_SAMPLE)
            LK_TRY(visitor->end(visitor->context, &walk.tar, walk.key, walk.begun));
        else
            LK_TRY(lki_tar_follows(&walk.tar, &more));
    } while (event != LKI_TAR_END || more);
    return LK_OK;
}

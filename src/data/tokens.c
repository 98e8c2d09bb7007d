/* tokens.c -- tokens:FILE and shards:DIR: token ids from files, which are mapped and never copied.
 *
 * The shards of a folder form one stream, in byte order of their names, with nothing between two
 * shards.  A window may extend from one shard to the next.  A '?' may introduce vocab=N (default:
 * the largest token plus one) and width=16 or 32 (default: by the suffix .u16 or .u32, or the
 * file's header).
 */
#include "data/source.h"

#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "data/files.h"
#include "data/fileset.h"

typedef struct {
    lki_map    map;
    lki_tokens file;
    uint64_t   first; /* position of the shard's first token in the stream */
} shard;

typedef struct {
    shard   *shards;
    size_t   count, capacity;
    uint64_t vocabulary, width; /* 0 = not given */
} tokens;

/* Adds one file.  `self` owns the file even if its contents turn out to be invalid. */
static lk_status add_file(lk_dataset *dataset, const char *path)
{
    tokens *self = dataset->state;
    LK_TRY(lki_reserve((void **)&self->shards, &self->capacity, self->count, sizeof *self->shards,
                       "shards"));
    shard *last = &self->shards[self->count];
    LK_TRY(lki_map_open(&last->map, path));
    self->count++;
    LK_TRY(lki_file_watch(dataset, path));
    LK_TRY(lki_tokens_parse(&last->file, last->map.data, last->map.bytes,
                            lki_tokens_width(self->width, path), self->vocabulary, path));
    last->first     = dataset->total;
    dataset->total += last->file.count;
    if (last->file.max >= dataset->info.classes)
        dataset->info.classes = last->file.max + 1;
    return LK_OK;
}

static lk_status add_folder(lk_dataset *dataset, const char *folder)
{
    lki_listing files;
    LK_TRY(lki_listing_open(&files, folder, false));
    lk_status status = LK_OK;
    for (size_t i = 0; i < files.count && status == LK_OK; i++) {
        const char *name = files.paths[i];
        char       *path = NULL;
        if (!lki_ends_with(name, ".u16") && !lki_ends_with(name, ".u32") &&
            !lki_ends_with(name, ".bin"))
            continue;
        status = lki_path_join(&path, folder, name);
        if (status == LK_OK)
            status = add_file(dataset, path);
        lki_free(path);
    }
    if (status == LK_OK && dataset->total == 0)
        status = lk_fail(LK_EIO, "'%s' has no token files: %zu files, none named .u16, .u32 or "
                                 ".bin", folder, files.count);
    lki_listing_close(&files);
    return status;
}

static lk_status hash_files(lk_dataset *dataset)
{
    const tokens *self = dataset->state;
    char (*hashes)[33] = NULL;
    LK_TRY(LKI_NEW(&hashes, self->count, "hashes"));
    for (size_t i = 0; i < self->count; i++)
        lki_xxh3_128(self->shards[i].file.values,
                     (size_t)self->shards[i].file.count * self->shards[i].file.width, hashes[i]);
    lk_status status = lki_hash_of_hashes(dataset->info.content_hash, hashes, self->count);
    lki_free(hashes);
    return status;
}

/* Removes the text after the last '?' from `path` and parses it. */
static lk_status parse_settings(tokens *self, char *path)
{
    char *mark = strrchr(path, '?');
    if (mark == NULL)
        return LK_OK;
    const lki_setting table[] = {
        { "vocab", &self->vocabulary, 1, LKI_CLASSES_MAX },
        { "width", &self->width, 1, 64 }, /* 16 or 32, as below */
        { NULL, NULL, 0, 0 },
    };
    if (mark == path)
        return lk_fail(LK_EINVAL, "'%s' names no file before its settings: write FILE%s", path,
                       path);
    *mark = '\0';
    LK_TRY(lki_settings_parse(mark + 1, '&', table, path));
    if (self->width != 0 && self->width != 16 && self->width != 32)
        return lk_fail(LK_EINVAL, "'%s': width must be 16 or 32 bits, not %llu", path,
                       (unsigned long long)self->width);
    return LK_OK;
}

static lk_status open_with(lk_dataset *dataset, const char *rest,
                           lk_status (*add)(lk_dataset *, const char *))
{
    tokens *self = NULL;
    char   *path = NULL;
    LK_TRY(LKI_NEW(&self, 1, "token files"));
    dataset->state = self;
    LK_TRY(lki_path_join(&path, "", rest));
    lk_status status = parse_settings(self, path);
    if (status == LK_OK)
        status = add(dataset, path);
    lki_free(path);
    if (status != LK_OK)
        return status;
    dataset->info.tokens = true;
    if (self->vocabulary != 0)
        dataset->info.classes = (uint32_t)self->vocabulary;
    return hash_files(dataset);
}

static lk_status tokens_open(lk_dataset *dataset, const char *rest)
{
    return open_with(dataset, rest, add_file);
}

static lk_status shards_open(lk_dataset *dataset, const char *rest)
{
    return open_with(dataset, rest, add_folder);
}

static void tokens_close(lk_dataset *dataset)
{
    tokens *self = dataset->state;
    for (size_t i = 0; i < self->count; i++)
        lki_map_close(&self->shards[i].map);
    lki_free(self->shards);
    lki_free(self);
}

/* Returns the shard that contains position `at`. */
static const shard *shard_at(const tokens *self, uint64_t at)
{
    size_t low = 0, high = self->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (self->shards[middle].first <= at)
            low = middle;
        else
            high = middle;
    }
    return &self->shards[low];
}

static void tokens_read(const lk_dataset *dataset, uint64_t first, size_t count, int32_t *out)
{
    const tokens *self = dataset->state;
    for (const shard *at = shard_at(self, first); count > 0; at++) {
        uint64_t from = first - at->first;
        size_t   now  = lki_min(count, (size_t)(at->file.count - from));
        lki_tokens_copy(&at->file, from, now, out);
        first += now;
        out   += now;
        count -= now;
    }
}

const lki_source lki_source_tokens = {
    .name        = "tokens",
    .open        = tokens_open,
    .close       = tokens_close,
    .read_tokens = tokens_read,
};

const lki_source lki_source_shards = {
    .name        = "shards",
    .open        = shards_open,
    .close       = tokens_close,
    .read_tokens = tokens_read,
};

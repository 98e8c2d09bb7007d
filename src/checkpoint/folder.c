/* folder.c -- reads and writes folders of safetensors files.
 *
 * model.safetensors.index.json is {"metadata": {...}, "weight_map": {tensor: file, ...}}.  Like the
 * files it may come from anywhere: a name of a file may not lead out of the folder, and what the
 * index says must be what the files have.
 */
#include "checkpoint/folder.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/sort.h"
#include "checkpoint/directory.h"
#include "checkpoint/safetensors.h"

#define WHOLE_NAME "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"

enum { SHARDS_MAX = 4096, TENSORS_MAX = 1 << 15 };

struct lki_folder {
    lk_safetensors **files;
    size_t           file_count;
};

/* ---- The index ----------------------------------------------------------------------------- */

/* Returns true if `name` is that of a safetensors file in the folder itself. */
static bool is_plain(const char *name)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    static const char ending[] = ".safetensors";
    size_t            length   = strlen(name);
    return strspn(name, good) == length && name[0] != '.' && length > sizeof ending - 1 &&
           strcmp(name + length - (sizeof ending - 1), ending) == 0;
}

/* Opens a shard, and checks that the index names its tensors. */
static lk_status open_shard(lki_folder *folder, const char *path, const json_t *map,
                            const char *name)
{
    char shard[LKI_PATH_BYTES];
    LK_TRY(lki_directory_join(shard, path, name));
    if (access(shard, F_OK) != 0)
        return lk_fail(LK_EIO, "%s: it has no '%s', which " INDEX_NAME " names: a shard is missing",
                       path, name);
    LK_TRY(lk_safetensors_open(&folder->files[folder->file_count], shard));
    lk_safetensors *file = folder->files[folder->file_count++];
    for (size_t i = 0; i < lk_safetensors_count(file); i++) {
        const char *tensor = lk_safetensors_at(file, i)->name;
        const char *said   = json_string_value(json_object_get(map, tensor));
        if (said == NULL || strcmp(said, name) != 0)
            return lk_fail(LK_EFORMAT, "%s: it has the tensor '%s', which " INDEX_NAME " does not "
                                       "list", shard, tensor);
    }
    return LK_OK;
}

/* Opens all shards, and then checks that they have what the index names. */
static lk_status open_shards(lki_folder *folder, const char *path, const json_t *map)
{
    const char *tensor;
    json_t     *value, *seen = json_object();
    lk_status   status = LK_OK;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (status != LK_OK || (name != NULL && json_object_get(seen, name) != NULL))
            continue;
        if (name == NULL || !is_plain(name))
            status = lk_fail(LK_EFORMAT, "%s/" INDEX_NAME ": '%.120s' is in '%.120s', which is "
                                         "not the name of a safetensors file in the folder",
                             path, tensor, name != NULL ? name : "none");
        else if (folder->file_count == SHARDS_MAX)
            status = lk_fail(LK_EFORMAT, "%s/" INDEX_NAME ": more than %d files", path, SHARDS_MAX);
        else
            status = open_shard(folder, path, map, name);
        if (status == LK_OK)
            (void)json_object_set_new(seen, name, json_true());
    }
    json_decref(seen);
    LK_TRY(status);
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value)
        if (lki_folder_find(folder, tensor) == NULL)
            return lk_fail(LK_EFORMAT, "%s/%s: it has no tensor '%.120s', which " INDEX_NAME
                                       " lists", path, json_string_value(value), tensor);
    return LK_OK;
}

static lk_status open_index(lki_folder *folder, const char *path, const char *index)
{
    lki_map      map;
    json_error_t error;
    LK_TRY(lki_map_open(&map, index));
    if (map.bytes > LKI_SAFETENSORS_HEADER_MAX) {
        lki_map_close(&map);
        return lk_fail(LK_EFORMAT, "%s: more than %u bytes, too many for an index", index,
                       LKI_SAFETENSORS_HEADER_MAX);
    }
    json_t *root = json_loadb((const char *)map.data, map.bytes, JSON_REJECT_DUPLICATES, &error);
    lki_map_close(&map);
    if (root == NULL)
        return lk_fail(LK_EFORMAT, "%s: line %d: %s", index, error.line, error.text);
    const json_t *names  = json_object_get(root, "weight_map");
    lk_status     status = LK_OK;
    if (!json_is_object(names))
        status = lk_fail(LK_EFORMAT, "%s: it has no object weight_map", index);
    else if (json_object_size(names) > TENSORS_MAX)
        status = lk_fail(LK_EFORMAT, "%s: it has %zu tensors, more than %d", index,
                         json_object_size(names), TENSORS_MAX);
    if (status == LK_OK)
        status = open_shards(folder, path, names);
    json_decref(root);
    return status;
}

/* ---- Opening ------------------------------------------------------------------------------- */

/* Returns true if a directory has a shard. */
static bool has_shard(const char *path)
{
    struct dirent *entry;
    DIR           *folder = opendir(path);
    bool           found  = false;
    while (folder != NULL && !found && (entry = readdir(folder)) != NULL)
        found = strncmp(entry->d_name, "model-0", 7) == 0 && is_plain(entry->d_name);
    if (folder != NULL)
        (void)closedir(folder);
    return found;
}

/* Fails because a directory has no weights that can be read.  Not inlined, because its path is
 * large. */
__attribute__((noinline)) static lk_status refuse_directory(const char *path)
{
    static const char *const pickled[] = { "pytorch_model.bin", "pytorch_model.bin.index.json" };
    char                     file[LKI_PATH_BYTES];
    bool                     run = false;
    LK_TRY(lk_checkpoint_exists(path, &run));
    if (run)
        return lk_fail(LK_EIO, "%s: it has neither " WHOLE_NAME " nor " INDEX_NAME "; it has the "
                               "checkpoints of a run, of which lockstep export makes a folder",
                       path);
    if (has_shard(path))
        return lk_fail(LK_EIO, "%s: it has shards of weights, but not " INDEX_NAME ", which says "
                               "what is in each: copy it from where they are from", path);
    for (size_t i = 0; i < sizeof pickled / sizeof pickled[0]; i++) {
        LK_TRY(lki_directory_join(file, path, pickled[i]));
        if (access(file, F_OK) == 0)
            return lk_fail(LK_EUNSUPPORTED, "%s: it has its weights in pytorch_model.bin, but only "
                                            "safetensors is read: load it with transformers and "
                                            "save it again (save_pretrained)", path);
    }
    return lk_fail(LK_EIO, "%s: it has neither " WHOLE_NAME " nor " INDEX_NAME "; other formats "
                           "are not read", path);
}

static lk_status open_directory(lki_folder *folder, const char *path)
{
    char whole[LKI_PATH_BYTES], index[LKI_PATH_BYTES];
    LK_TRY(lki_directory_join(whole, path, WHOLE_NAME));
    LK_TRY(lki_directory_join(index, path, INDEX_NAME));
    if (access(whole, F_OK) == 0) {
        LK_TRY(lk_safetensors_open(&folder->files[0], whole));
        folder->file_count = 1;
        return LK_OK;
    }
    if (access(index, F_OK) == 0)
        return open_index(folder, path, index);
    return refuse_directory(path);
}

lk_status lki_folder_open(lki_folder **out, const char *path)
{
    struct stat info;
    lki_folder *folder = NULL;
    *out               = NULL;
    LK_TRY(LKI_NEW(&folder, 1, "a folder of tensors"));
    lk_status status = LKI_NEW(&folder->files, SHARDS_MAX, "the files of a folder");
    if (status == LK_OK && stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        status = open_directory(folder, path);
    } else if (status == LK_OK) {
        status             = lk_safetensors_open(&folder->files[0], path);
        folder->file_count = status == LK_OK;
    }
    if (status == LK_OK)
        *out = folder;
    else
        lki_folder_free(folder);
    return status;
}

void lki_folder_free(lki_folder *folder)
{
    if (folder == NULL)
        return;
    for (size_t i = 0; i < folder->file_count; i++)
        lk_safetensors_free(folder->files[i]);
    lki_free(folder->files);
    lki_free(folder);
}

const lk_tensor *lki_folder_at(const lki_folder *folder, size_t index)
{
    for (size_t i = 0; i < folder->file_count; i++) {
        size_t count = lk_safetensors_count(folder->files[i]);
        if (index < count)
            return lk_safetensors_at(folder->files[i], index);
        index -= count;
    }
    return NULL;
}

const lk_tensor *lki_folder_find(const lki_folder *folder, const char *name)
{
    const lk_tensor *found = NULL;
    for (size_t i = 0; found == NULL && i < folder->file_count; i++)
        found = lk_safetensors_find(folder->files[i], name);
    return found;
}

/* ---- Writing ------------------------------------------------------------------------------- */

/* A file to write: tensors [first, end) in the order of their names. */
typedef struct {
    const lk_checkpoint_file *file;
    size_t                   *order; /* indices of tensors, sorted by name */
    size_t                    first, end;
} shard;

/* The names of tensors, for lki_by_bytes(). */
typedef struct {
    const char *name;
    size_t      index;
} named;

static lk_status fetch(void *context, size_t tensor, size_t first, size_t count, void *out)
{
    const shard *s = context;
    return s->file->fetch(s->file->context, s->order[s->first + tensor], first, count, out);
}

/* A tensor of a shard, for by_place(). */
typedef struct {
    const lk_tensor *tensor;
    size_t           index;
} placed;

/* Returns a number by which types are ordered: that of a wider type is larger. */
static int width_of(lk_dtype dtype)
{
    return (int)(2 * lk_dtype_bytes(dtype)) + (dtype == LK_BF16);
}

static int by_place(const void *a, const void *b)
{
    const lk_tensor *one = ((const placed *)a)->tensor, *other = ((const placed *)b)->tensor;
    const int        first = width_of(one->dtype), second = width_of(other->dtype);
    return first != second ? second - first : strcmp(one->name, other->name);
}

/* Orders the tensors of a shard as Hugging Face's library does: wider types first, so that all are
 * aligned, and then by name. */
static lk_status arrange(const shard *s)
{
    const size_t count = s->end - s->first;
    placed      *all   = NULL;
    LK_TRY(LKI_NEW(&all, count + 1, "the order of tensors in a file"));
    for (size_t i = 0; i < count; i++)
        all[i] = (placed){ &s->file->tensors[s->order[s->first + i]], s->order[s->first + i] };
    qsort(all, count, sizeof *all, by_place);
    for (size_t i = 0; i < count; i++)
        s->order[s->first + i] = all[i].index;
    lki_free(all);
    return LK_OK;
}

static lk_status put_shard(const char *folder, const char *name, const shard *s)
{
    char       path[LKI_PATH_BYTES];
    lk_tensor *tensors = NULL;
    lki_output output;
    size_t     count = s->end - s->first;
    LK_TRY(lki_directory_join(path, folder, name));
    LK_TRY(arrange(s));
    LK_TRY(LKI_NEW(&tensors, count + 1, "the tensors of a file"));
    for (size_t i = 0; i < count; i++)
        tensors[i] = s->file->tensors[s->order[s->first + i]];
    const lk_checkpoint_file file = { .name = path, .tensors = tensors, .tensor_count = count,
                                      .fetch   = s->file->fetch != NULL ? fetch : NULL,
                                      .context = (void *)(uintptr_t)s };
    lk_status status = lki_tensors_check(&file);
    if (status == LK_OK) {
        status = lki_output_open(&output, path, true);
        if (status == LK_OK)
            status = lki_safetensors_put(&output, &file);
        if (status == LK_OK)
            status = lki_output_finish(&output, true);
        lki_output_free(&output);
    }
    lki_free(tensors);
    return status;
}

static uint64_t bytes_of(const lk_tensor *tensor)
{
    uint64_t count = 0, bytes = 0;
    return lki_shape_size(tensor->shape, tensor->dtype, &count, &bytes) ? bytes : 0;
}

/* Returns the end of the shard that starts with the tensor `first`. */
static size_t end_of(const shard *s, size_t first, uint64_t most)
{
    uint64_t bytes = 0;
    size_t   end   = first;
    while (end < s->file->tensor_count) {
        bytes += bytes_of(&s->file->tensors[s->order[end]]);
        if (end > first && bytes > most)
            break;
        end++;
    }
    return end;
}

static lk_status put_index(const char *folder, json_t *map, uint64_t bytes)
{
    char path[LKI_PATH_BYTES];
    LK_TRY(lki_directory_join(path, folder, INDEX_NAME));
    json_t *root = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)bytes,
                             "weight_map", map);
    if (root == NULL)
        return lk_fail(LK_ENOMEM, "the index of '%s'", folder);
    lk_status status = lki_output_write_json(path, root);
    json_decref(root);
    return status;
}

static lk_status put_shards(const char *folder, shard *s, uint64_t most, size_t shards)
{
    json_t   *map    = json_object();
    uint64_t  bytes  = 0;
    lk_status status = map == NULL ? lk_fail(LK_ENOMEM, "the index of '%s'", folder) : LK_OK;
    s->end           = 0;
    for (size_t k = 1; status == LK_OK && k <= shards; k++) {
        char name[64];
        (void)snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", k, shards);
        s->first = s->end;
        s->end   = end_of(s, s->first, most);
        for (size_t i = s->first; i < s->end; i++) {
            const lk_tensor *tensor = &s->file->tensors[s->order[i]];
            bytes += bytes_of(tensor);
            (void)json_object_set_new(map, tensor->name, json_string(name));
        }
        status = put_shard(folder, name, s);
    }
    if (status == LK_OK)
        status = put_index(folder, map, bytes);
    json_decref(map);
    return status;
}

static lk_status sort(shard *s)
{
    size_t count = s->file->tensor_count;
    named *names = NULL;
    LK_TRY(LKI_NEW(&s->order, count + 1, "the order of tensors"));
    LK_TRY(LKI_NEW(&names, count + 1, "the names of tensors"));
    for (size_t i = 0; i < count; i++)
        names[i] = (named){ s->file->tensors[i].name, i };
    qsort(names, count, sizeof *names, lki_by_bytes);
    for (size_t i = 0; i < count; i++)
        s->order[i] = names[i].index;
    lki_free(names);
    return LK_OK;
}

lk_status lki_folder_write_one(const char *folder, const char *name,
                               const lk_checkpoint_file *file)
{
    shard     s      = { .file = file, .end = file->tensor_count };
    lk_status status = sort(&s);
    if (status == LK_OK)
        status = put_shard(folder, name, &s);
    lki_free(s.order);
    return status;
}

lk_status lki_folder_write(const char *folder, const lk_checkpoint_file *file, uint64_t shard_bytes)
{
    shard     s      = { .file = file };
    size_t    shards = 0;
    lk_status status = sort(&s);
    for (size_t at = 0; status == LK_OK && at < file->tensor_count; shards++)
        at = end_of(&s, at, shard_bytes);
    if (status == LK_OK && shards <= 1) {
        s.end  = file->tensor_count;
        status = put_shard(folder, WHOLE_NAME, &s);
    } else if (status == LK_OK) {
        status = put_shards(folder, &s, shard_bytes, shards);
    }
    lki_free(s.order);
    return status;
}

/* ---- The hash ------------------------------------------------------------------------------ */

lk_status lki_folder_hash(const lki_folder *folder, char hex[65])
{
    const lk_tensor *tensor;
    lk_tensor       *all   = NULL;
    size_t           count = 0;
    while (lki_folder_at(folder, count) != NULL)
        count++;
    LK_TRY(LKI_NEW(&all, count + 1, "the tensors of a folder"));
    for (size_t i = 0; (tensor = lki_folder_at(folder, i)) != NULL; i++)
        all[i] = *tensor;
    qsort(all, count, sizeof *all, lki_by_bytes); /* they begin with their names */
    lk_weights_hash(all, count, hex);
    lki_free(all);
    return LK_OK;
}

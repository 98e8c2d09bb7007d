/* read.c -- opens checkpoints: verifies the manifest first, then the hash of every block.
 *
 * Opening costs one pass of XXH3 over the mapped files.  SHA-256 is computed only on request, by
 * lk_checkpoint_verify().  Tensors are not copied out of the mapping, except that a tensor stored
 * in several pieces is assembled in memory.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/directory.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

struct lk_checkpoint {
    char                 path[LKI_PATH_BYTES];
    lki_manifest         manifest;
    lk_checkpoint_stored *stored;    /* [number of files]: the results of lk_checkpoint_file_at() */
    lki_map              *maps;      /* one mapping per file; NULL if only the manifest was
                                      * opened */
    lk_safetensors      **files;     /* views of the maps */
    lk_tensor            *tensors;   /* all tensors, in the manifest's order */
    const void          **places;    /* addresses of all pieces */
    void                **assembled; /* tensors stored in several pieces, once requested */
};

/* ---- The manifest -------------------------------------------------------------------------- */

static lk_status load_manifest(lki_manifest *out, const char *step_path)
{
    char    path[LKI_PATH_BYTES];
    lki_map map;
    *out = (lki_manifest){ 0 };
    LK_TRY(lki_directory_join(path, step_path, LKI_MANIFEST_NAME));
    LK_TRY(lki_map_open(&map, path));
    const char *text   = (const char *)map.data;
    lk_status   status = lki_manifest_verify(text, map.bytes, path);
    if (status == LK_OK)
        status = lki_manifest_parse(out, text, map.bytes, path);
    lki_map_close(&map);

    const char *name = strrchr(step_path, '/');
    uint64_t    step;
    if (status == LK_OK && lki_step_parse(&step, name == NULL ? step_path : name + 1) &&
        step != out->info.step) {
        status = lk_fail(LK_EFORMAT, "%s: is of step %" PRIu64 ", its directory of step %" PRIu64,
                         path, out->info.step, step);
        lki_manifest_free(out);
    }
    return status;
}

bool lki_checkpoint_complete(const char *step_path)
{
    char         path[LKI_PATH_BYTES];
    lki_manifest manifest;
    if (load_manifest(&manifest, step_path) != LK_OK)
        return false;
    bool complete = true;
    for (size_t i = 0; i < manifest.file_count && complete; i++) {
        struct stat info;
        complete = lki_directory_join(path, step_path, manifest.files[i].name) == LK_OK &&
                   stat(path, &info) == 0 && S_ISREG(info.st_mode) &&
                   (uint64_t)info.st_size == manifest.files[i].bytes;
    }
    lki_manifest_free(&manifest);
    return complete;
}

/* ---- Verifying ----------------------------------------------------------------------------- */

static lk_status verify_blocks(const lki_manifest_file *file, const lki_map *map, const char *path)
{
    if (map->bytes != file->bytes)
        return lk_fail(LK_ECORRUPT, "%s: has %zu bytes, the manifest says %" PRIu64, path,
                       map->bytes, file->bytes);
    for (size_t i = 0; i < json_array_size(file->blocks); i++) {
        char   hex[33], contents[160];
        size_t first = i * LKI_BLOCK_BYTES, end = lki_min(map->bytes, first + LKI_BLOCK_BYTES);
        lki_xxh3_128(map->data + first, end - first, hex);
        if (strcmp(hex, json_string_value(json_array_get(file->blocks, i))) == 0)
            continue;
        lki_safetensors_index index;
        (void)(lki_safetensors_parse(&index, map->data, map->bytes, "") == LK_OK);
        lki_safetensors_contents(contents, &index, first, end);
        lki_safetensors_index_free(&index);
        return lk_fail(LK_ECORRUPT, "%s: block %zu (bytes %zu to %zu: %s) differs from its hash",
                       path, i, first, end, contents);
    }
    return LK_OK;
}

lk_status lk_checkpoint_verify(const lk_checkpoint *checkpoint, size_t index)
{
    char    path[LKI_PATH_BYTES], hex[65];
    lki_map map;
    if (index >= checkpoint->manifest.file_count)
        return lk_fail(LK_EINVAL, "%s: file %zu of %zu, which are numbered from 0",
                       checkpoint->path, index, checkpoint->manifest.file_count);
    const lki_manifest_file *file = &checkpoint->manifest.files[index];
    LK_TRY(lki_directory_join(path, checkpoint->path, file->name));
    LK_TRY(lki_map_open(&map, path));
    lk_status status = verify_blocks(file, &map, path);
    if (status == LK_OK) {
        lki_sha256 hash;
        lki_sha256_begin(&hash);
        lki_sha256_add(&hash, map.data, map.bytes);
        lki_sha256_end(&hash, hex);
        if (strcmp(hex, file->sha256) != 0)
            status = lk_fail(LK_ECORRUPT, "%s: SHA-256 %.16s..., the manifest says %.16s...", path,
                             hex, file->sha256);
    }
    lki_map_close(&map);
    return status;
}

/* ---- Tensors in pieces --------------------------------------------------------------------- */

/* *out becomes the stored tensor of a piece.  The stored tensor must have the piece's size, or the
 * tensor's shape if the piece is the whole tensor. */
static lk_status find_piece(const lk_tensor **out, const lk_checkpoint *checkpoint,
                            const lki_manifest_tensor *tensor, const lki_manifest_piece *piece)
{
    const char      *file  = checkpoint->manifest.files[piece->file].name;
    const lk_tensor *found = lk_safetensors_find(checkpoint->files[piece->file], tensor->name);
    if (found == NULL)
        return lk_fail(LK_EFORMAT, "%s/%s: has no tensor '%s', which the manifest puts there",
                       checkpoint->path, file, tensor->name);
    uint64_t count, bytes;
    bool     same = lki_shape_size(found->shape, found->dtype, &count, &bytes) &&
                count == piece->count && found->dtype == tensor->dtype;
    if (tensor->piece_count == 1 && same)
        same = found->shape.rank == tensor->shape.rank &&
               memcmp(found->shape.dims, tensor->shape.dims, sizeof tensor->shape.dims) == 0;
    if (!same)
        return lk_fail(LK_EFORMAT, "%s/%s: type or shape of tensor '%s' is not the manifest's",
                       checkpoint->path, file, tensor->name);
    *out = found;
    return LK_OK;
}

/* Checks that all pieces of a tensor exist.  Several pieces are assembled only on request. */
static lk_status place_tensor(lk_checkpoint *checkpoint, size_t index)
{
    const lki_manifest_tensor *tensor = &checkpoint->manifest.tensors[index];
    const lki_manifest_piece  *pieces = &checkpoint->manifest.pieces[tensor->first_piece];
    const lk_tensor           *found  = NULL;
    for (size_t i = 0; i < tensor->piece_count; i++) {
        const size_t at = tensor->first_piece + i;
        LK_TRY(find_piece(&found, checkpoint, tensor, &pieces[i]));
        checkpoint->places[at] = found->data;
    }
    if (tensor->piece_count == 1)
        checkpoint->tensors[index].data = found->data;
    return LK_OK;
}

/* Copies elements of a tensor from the pieces that contain them. */
static void copy_out(const lk_checkpoint *checkpoint, const lki_manifest_tensor *tensor,
                     size_t first, size_t count, void *out)
{
    const size_t unit = lk_dtype_bytes(tensor->dtype);
    for (size_t i = 0; i < tensor->piece_count; i++) {
        const lki_manifest_piece *piece = &checkpoint->manifest.pieces[tensor->first_piece + i];
        const uint8_t            *from  = checkpoint->places[tensor->first_piece + i];
        uint64_t                  begin = lki_max(first, piece->first);
        uint64_t                  end   = lki_min(first + count, piece->first + piece->count);
        if (begin < end)
            memcpy((uint8_t *)out + (begin - first) * unit, from + (begin - piece->first) * unit,
                   (end - begin) * unit);
    }
}

/* Assembles the pieces of a tensor in memory. */
static lk_status assemble(const lk_checkpoint *checkpoint, size_t index)
{
    const lki_manifest_tensor *tensor = &checkpoint->manifest.tensors[index];
    uint64_t                   count, bytes;
    bool                       fits = lki_shape_size(tensor->shape, tensor->dtype, &count, &bytes);
    LK_ASSERT(fits);
    LK_TRY(lki_alloc(&checkpoint->assembled[index], (size_t)bytes, "a tensor of several pieces"));
    copy_out(checkpoint, tensor, 0, (size_t)count, checkpoint->assembled[index]);
    checkpoint->tensors[index].data = checkpoint->assembled[index];
    return LK_OK;
}

/* Checks that the manifest lists every tensor in the files exactly once. */
static lk_status check_all_meant(const lk_checkpoint *checkpoint)
{
    const lki_manifest *manifest = &checkpoint->manifest;
    for (size_t f = 0; f < manifest->file_count; f++) {
        size_t pieces = 0;
        for (size_t i = 0; i < manifest->piece_count; i++)
            pieces += manifest->pieces[i].file == f;
        if (pieces != lk_safetensors_count(checkpoint->files[f]))
            return lk_fail(LK_EFORMAT, "%s/%s: has %zu tensors, the manifest knows of %zu",
                           checkpoint->path, manifest->files[f].name,
                           lk_safetensors_count(checkpoint->files[f]), pieces);
    }
    return LK_OK;
}

/* ---- Opening ------------------------------------------------------------------------------- */

static lk_status list_contents(lk_checkpoint *checkpoint)
{
    const lki_manifest *manifest = &checkpoint->manifest;
    LK_TRY(LKI_NEW(&checkpoint->stored, manifest->file_count + 1, "the files of a checkpoint"));
    LK_TRY(LKI_NEW(&checkpoint->tensors, manifest->tensor_count + 1, "a checkpoint's tensors"));
    for (size_t i = 0; i < manifest->file_count; i++)
        checkpoint->stored[i] = (lk_checkpoint_stored){ manifest->files[i].name,
                                                        manifest->files[i].bytes,
                                                        manifest->files[i].sha256 };
    for (size_t i = 0; i < manifest->tensor_count; i++) {
        const lki_manifest_tensor *tensor = &manifest->tensors[i];
        checkpoint->tensors[i] = (lk_tensor){ tensor->name, tensor->dtype, tensor->shape, NULL };
    }
    return LK_OK;
}

static lk_status open_files(lk_checkpoint *checkpoint)
{
    const lki_manifest *manifest = &checkpoint->manifest;
    char                path[LKI_PATH_BYTES];
    LK_TRY(LKI_NEW(&checkpoint->maps, manifest->file_count + 1, "the files of a checkpoint"));
    LK_TRY(LKI_NEW(&checkpoint->files, manifest->file_count + 1, "the files of a checkpoint"));
    LK_TRY(LKI_NEW(&checkpoint->assembled, manifest->tensor_count + 1, "a checkpoint's tensors"));
    LK_TRY(LKI_NEW(&checkpoint->places, manifest->piece_count + 1, "a checkpoint's tensors"));
    for (size_t i = 0; i < manifest->file_count; i++) {
        lki_map *map = &checkpoint->maps[i];
        LK_TRY(lki_directory_join(path, checkpoint->path, manifest->files[i].name));
        LK_TRY(lki_map_open(map, path));
        LK_TRY(verify_blocks(&manifest->files[i], map, path));
        LK_TRY(lki_safetensors_view(&checkpoint->files[i], map->data, map->bytes, path));
    }
    LK_TRY(check_all_meant(checkpoint));
    for (size_t i = 0; i < manifest->tensor_count; i++)
        LK_TRY(place_tensor(checkpoint, i));
    return LK_OK;
}

static lk_status open_one(lk_checkpoint **out, const char *step_path, bool with_data)
{
    lk_checkpoint *checkpoint = NULL;
    *out                      = NULL;
    LK_TRY(LKI_NEW(&checkpoint, 1, "an open checkpoint"));
    lk_status status = load_manifest(&checkpoint->manifest, step_path);
    (void)snprintf(checkpoint->path, sizeof checkpoint->path, "%s", step_path);
    if (status == LK_OK)
        status = list_contents(checkpoint);
    if (status == LK_OK && with_data)
        status = open_files(checkpoint);
    if (status != LK_OK)
        lk_checkpoint_free(checkpoint);
    else
        *out = checkpoint;
    return status;
}

static void add_note(char *notes, size_t notes_bytes, const char *name)
{
    size_t used = notes_bytes > 0 ? strlen(notes) : 0;
    if (notes_bytes > used + 1)
        (void)snprintf(notes + used, notes_bytes - used, "skipped %s: %s\n", name,
                       lk_error_last()->message);
}

/* Opens the newest step of `dir` that is valid. */
static lk_status open_newest(lk_checkpoint **out, const char *dir, bool with_data, char *notes,
                             size_t notes_bytes)
{
    char      path[LKI_PATH_BYTES], name[LKI_STEP_NAME_BYTES], why[256];
    uint64_t *steps;
    size_t    count;
    LK_TRY(lki_steps_list(&steps, &count, dir));
    lk_status status =
        count == 0 ? lk_fail(LK_EIO, "there is no checkpoint in '%s'", dir) : LK_ECORRUPT;
    for (size_t i = 0; i < count && status != LK_OK && status != LK_ENOMEM; i++) {
        lki_step_name(name, steps[i]);
        status = lki_directory_join(path, dir, name);
        if (status == LK_OK)
            status = open_one(out, path, with_data);
        if (status != LK_OK)
            add_note(notes, notes_bytes, name);
        if (i == 0)
            (void)snprintf(why, sizeof why, "%.255s", lk_error_last()->message);
    }
    if (count > 0 && status != LK_OK && status != LK_ENOMEM)
        status =
            lk_fail(LK_ECORRUPT, "none of the %zu checkpoints in '%s' verifies; the newest: %s",
                    count, dir, why);
    lki_free(steps);
    return status;
}

/* Returns true if `path` is a step directory: it has a manifest, or its name is the name of a
 * step. */
static bool is_step(const char *path)
{
    char        manifest[LKI_PATH_BYTES];
    const char *name = strrchr(path, '/');
    struct stat info;
    uint64_t    step;
    return lki_step_parse(&step, name == NULL ? path : name + 1) ||
           (snprintf(manifest, sizeof manifest, "%s/" LKI_MANIFEST_NAME, path) <
                (int)sizeof manifest &&
            stat(manifest, &info) == 0);
}

static lk_status open_path(lk_checkpoint **out, const char *path, bool with_data, char *notes,
                           size_t notes_bytes)
{
    char   trimmed[LKI_PATH_BYTES];
    size_t length = strlen(path);
    *out          = NULL;
    if (notes_bytes > 0)
        notes[0] = '\0';
    while (length > 1 && path[length - 1] == '/')
        length--;
    if (length == 0 || length >= sizeof trimmed)
        return lk_fail(LK_EINVAL, "a checkpoint's path of %zu bytes", length);
    memcpy(trimmed, path, length);
    trimmed[length] = '\0';
    if (is_step(trimmed))
        return open_one(out, trimmed, with_data);
    return open_newest(out, trimmed, with_data, notes, notes_bytes);
}

lk_status lk_checkpoint_open(lk_checkpoint **out, const char *path, char *notes, size_t notes_bytes)
{
    *out = NULL;
    LK_TRY(lki_check_given("lk_checkpoint_open", "path", path, 1));
    return open_path(out, path, true, notes, notes == NULL ? 0 : notes_bytes);
}

lk_status lk_checkpoint_open_manifest(lk_checkpoint **out, const char *path, char *notes,
                                      size_t notes_bytes)
{
    *out = NULL;
    LK_TRY(lki_check_given("lk_checkpoint_open_manifest", "path", path, 1));
    return open_path(out, path, false, notes, notes == NULL ? 0 : notes_bytes);
}

lk_status lk_checkpoint_open_step(lk_checkpoint **out, const char *dir, uint64_t step)
{
    char path[LKI_PATH_BYTES], name[LKI_STEP_NAME_BYTES];
    *out = NULL;
    LK_TRY(lki_check_given("lk_checkpoint_open_step", "dir", dir, 1));
    lki_step_name(name, step);
    LK_TRY(lki_directory_join(path, dir, name));
    return open_one(out, path, true);
}

void lk_checkpoint_free(lk_checkpoint *checkpoint)
{
    if (checkpoint == NULL)
        return;
    for (size_t i = 0; checkpoint->files != NULL && i < checkpoint->manifest.file_count; i++)
        lk_safetensors_free(checkpoint->files[i]);
    for (size_t i = 0; checkpoint->maps != NULL && i < checkpoint->manifest.file_count; i++)
        lki_map_close(&checkpoint->maps[i]);
    for (size_t i = 0; checkpoint->assembled != NULL && i < checkpoint->manifest.tensor_count; i++)
        lki_free(checkpoint->assembled[i]);
    lki_free(checkpoint->files);
    lki_free(checkpoint->maps);
    lki_free(checkpoint->assembled);
    lki_free(checkpoint->places);
    lki_free(checkpoint->stored);
    lki_free(checkpoint->tensors);
    lki_manifest_free(&checkpoint->manifest);
    lki_free(checkpoint);
}

lk_status lk_checkpoint_exists(const char *dir, bool *out)
{
    struct stat info;
    uint64_t   *steps;
    size_t      count;
    *out = false;
    LK_TRY(lki_check_given("lk_checkpoint_exists", "dir", dir, 1));
    if (stat(dir, &info) != 0 && errno == ENOENT)
        return LK_OK;
    LK_TRY(lki_steps_list(&steps, &count, dir));
    *out = count > 0;
    lki_free(steps);
    return LK_OK;
}

/* ---- Describing and reading ---------------------------------------------------------------- */

const lk_checkpoint_info *lk_checkpoint_describe(const lk_checkpoint *checkpoint)
{
    return &checkpoint->manifest.info;
}

const lki_manifest *lki_checkpoint_manifest(const lk_checkpoint *checkpoint)
{
    return &checkpoint->manifest;
}

const char *lk_checkpoint_path(const lk_checkpoint *checkpoint)
{
    return checkpoint->path;
}

const lk_checkpoint_stored *lk_checkpoint_file_at(const lk_checkpoint *checkpoint, size_t index)
{
    return index < checkpoint->manifest.file_count ? &checkpoint->stored[index] : NULL;
}

const lk_tensor *lk_checkpoint_tensor(const lk_checkpoint *checkpoint, size_t index)
{
    if (index >= checkpoint->manifest.tensor_count)
        return NULL;
    if (checkpoint->maps != NULL && checkpoint->tensors[index].data == NULL)
        (void)!assemble(checkpoint, index); /* if the allocation fails, the tensor has no data */
    return &checkpoint->tensors[index];
}

const char *lk_checkpoint_tensor_file(const lk_checkpoint *checkpoint, size_t index)
{
    return index < checkpoint->manifest.tensor_count ? checkpoint->manifest.tensors[index].file
                                                     : NULL;
}

bool lk_checkpoint_weights_hash(const lk_checkpoint *checkpoint, char hex[65])
{
    const lki_manifest *manifest = &checkpoint->manifest;
    bool                any      = false;
    lki_sha256          hash;

    lki_sha256_begin(&hash);
    for (size_t i = 0; checkpoint->maps != NULL && i < manifest->tensor_count; i++) {
        const lki_manifest_tensor *tensor = &manifest->tensors[i];
        if (strcmp(tensor->file, "model.safetensors") != 0)
            continue;
        any = true;
        lki_hash_heading(&hash, &checkpoint->tensors[i]);
        for (size_t p = tensor->first_piece; p < tensor->first_piece + tensor->piece_count; p++)
            lki_hash_elements(&hash, tensor->dtype, checkpoint->places[p],
                              manifest->pieces[p].count * lk_dtype_bytes(tensor->dtype));
    }
    lki_sha256_end(&hash, hex);
    return any;
}

static const lki_manifest_tensor *find_tensor(const lk_checkpoint *checkpoint, const char *file,
                                              const char *name)
{
    for (size_t i = 0; i < checkpoint->manifest.tensor_count; i++)
        if (strcmp(checkpoint->tensors[i].name, name) == 0 &&
            strcmp(checkpoint->manifest.tensors[i].file, file) == 0)
            return &checkpoint->manifest.tensors[i];
    return NULL;
}

enum { SHAPE_BYTES = LK_RANK_MAX * sizeof "18446744073709551615, " };

static void describe_shape(char out[SHAPE_BYTES], lk_shape shape)
{
    int used = snprintf(out, SHAPE_BYTES, "(");
    for (uint32_t i = 0; i < shape.rank && i < LK_RANK_MAX; i++)
        used += snprintf(out + used, SHAPE_BYTES - (size_t)used, "%s%" PRIu64, i > 0 ? ", " : "",
                         shape.dims[i]);
    (void)snprintf(out + used, SHAPE_BYTES - (size_t)used, ")");
}

lk_status lk_checkpoint_read(const lk_checkpoint *checkpoint, const char *file, const char *name,
                             lk_shape shape, size_t first, size_t count, float *out)
{
    LK_TRY(lki_check_given("lk_checkpoint_read", "file", file, 1));
    LK_TRY(lki_check_given("lk_checkpoint_read", "name", name, 1));
    const lki_manifest_tensor *tensor = find_tensor(checkpoint, file, name);
    if (tensor == NULL)
        return lk_fail(LK_EFORMAT, "%s: there is no tensor '%s' in %s", checkpoint->path, name,
                       file);
    if (checkpoint->maps == NULL)
        return lk_fail(LK_EINVAL, "%s: only the manifest is open", checkpoint->path);
    if (tensor->dtype != LK_F32)
        return lk_fail(LK_EFORMAT, "%s: tensor '%s' of %s has type %s, not F32", checkpoint->path,
                       name, file, lk_dtype_name(tensor->dtype));
    bool same = shape.rank == tensor->shape.rank;
    for (uint32_t i = 0; i < tensor->shape.rank && same; i++)
        same = shape.dims[i] == tensor->shape.dims[i];
    if (!same) {
        char has[SHAPE_BYTES], wanted[SHAPE_BYTES];
        describe_shape(has, tensor->shape);
        describe_shape(wanted, shape);
        return lk_fail(LK_EFORMAT, "%s: tensor '%s' of %s has shape %s, not %s", checkpoint->path,
                       name, file, has, wanted);
    }
    uint64_t all, bytes;
    bool     fits = lki_shape_size(tensor->shape, LK_F32, &all, &bytes);
    LK_ASSERT(fits);
    if (first > all || count > all - first)
        return lk_fail(LK_EINVAL, "%s: elements %zu + %zu of tensor '%s', which has %" PRIu64,
                       checkpoint->path, first, count, name, all);
    copy_out(checkpoint, tensor, first, count, out);
    return LK_OK;
}

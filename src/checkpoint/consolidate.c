/* consolidate.c -- writes a checkpoint as one safetensors file, however its tensors are divided
 * into pieces.
 *
 * Files are read block by block into one buffer.  A block is the unit for which the manifest has a
 * hash, so no data is used before it is verified.  Memory holds one block to read, one piece of a
 * tensor, one block to write, and the headers; never the model.  The elements are also added to the
 * weights hash, which is compared with the hash that the run recorded.
 *
 * The new file is written in the same directory under a temporary name, synced and renamed.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/options.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/directory.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

/* One file of the checkpoint. */
typedef struct {
    const lki_manifest_file *file;
    int                      fd;
    lki_safetensors_index    index;
} source;

typedef struct {
    const lki_manifest            *manifest;
    const char                    *folder;
    const lk_consolidate_options  *options;
    source                        *sources;
    const lki_manifest_tensor    **chosen; /* the tensors to write, in this order; the model's
                                            * first */
    lk_tensor                     *tensors;
    size_t                         count, model_count;

    uint8_t   *block; /* the last block read, verified; block_of is its source file (NULL: none) */
    source    *block_of;
    size_t     block_index;
    uint64_t   done, all; /* bytes of tensors: completed, and in total */
    lki_sha256 weights;
    size_t     headed; /* number of the model's tensors whose name, type and shape were added to the
                        * hash */
} consolidation;

/* ---- Reading blocks ------------------------------------------------------------------------ */

static lk_status load_block(consolidation *c, source *from, size_t index)
{
    const uint64_t first = (uint64_t)index * LKI_BLOCK_BYTES;
    const size_t   bytes = lki_min(LKI_BLOCK_BYTES, from->file->bytes - first);
    const char    *name  = from->file->name;
    char           hex[33], contents[160];
    if (c->block_of == from && c->block_index == index)
        return LK_OK;
    c->block_of = NULL;
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(from->fd, c->block + done, bytes - done, (off_t)(first + done));
        if (got > 0)
            done += (size_t)got;
        else if (got == 0 || errno != EINTR)
            return lk_fail(LK_EIO, "cannot read '%s/%s' at byte %" PRIu64 ": %s", c->folder, name,
                           first + done, got == 0 ? "it ends there" : strerror(errno));
    }
    lki_xxh3_128(c->block, bytes, hex);
    if (strcmp(hex, json_string_value(json_array_get(from->file->blocks, index))) != 0) {
        lki_safetensors_contents(contents, &from->index, first, first + bytes);
        return lk_fail(LK_ECORRUPT,
                       "%s/%s: block %zu (bytes %" PRIu64 " to %" PRIu64 ": %s) differs from its "
                       "hash",
                       c->folder, name, index, first, first + bytes, contents);
    }
    c->block_of    = from;
    c->block_index = index;
    return LK_OK;
}

static lk_status read_range(consolidation *c, source *from, uint64_t first, size_t bytes, void *out)
{
    for (uint8_t *to = out; bytes > 0;) {
        size_t inside = (size_t)(first % LKI_BLOCK_BYTES);
        size_t part   = lki_min(bytes, LKI_BLOCK_BYTES - inside);
        LK_TRY(load_block(c, from, (size_t)(first / LKI_BLOCK_BYTES)));
        memcpy(to, c->block + inside, part);
        to += part;
        first += part;
        bytes -= part;
    }
    return LK_OK;
}

/* ---- Source files -------------------------------------------------------------------------- */

static lk_status read_header(consolidation *c, source *from, const char *path)
{
    uint64_t header = 0;
    char    *text   = NULL;
    if (from->file->bytes < sizeof header)
        return lk_fail(LK_EFORMAT, "%s: %" PRIu64 " bytes are too few for a safetensors file", path,
                       from->file->bytes);
    LK_TRY(read_range(c, from, 0, sizeof header, &header));
    LK_TRY(lki_safetensors_header_check(header, from->file->bytes, path));
    LK_TRY(LKI_NEW(&text, (size_t)header + 1, "the header of a file"));
    lk_status status = read_range(c, from, sizeof header, (size_t)header, text);
    if (status == LK_OK)
        status = lki_safetensors_parse_header(&from->index, text, (size_t)header,
                                              from->file->bytes, path);
    lki_free(text);
    return status;
}

static lk_status open_source(consolidation *c, size_t index)
{
    char        path[LKI_PATH_BYTES];
    source     *from = &c->sources[index];
    struct stat info;
    from->file = &c->manifest->files[index];
    LK_TRY(lki_directory_join(path, c->folder, from->file->name));
    from->fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (from->fd < 0 || fstat(from->fd, &info) != 0)
        return lk_fail(LK_EIO, "cannot open '%s': %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size != from->file->bytes)
        return lk_fail(LK_ECORRUPT, "%s: has %lld bytes, the manifest says %" PRIu64, path,
                       (long long)info.st_size, from->file->bytes);
    return read_header(c, from, path);
}

static lk_status open_sources(consolidation *c)
{
    LK_TRY(LKI_NEW(&c->block, LKI_BLOCK_BYTES, "a block to read"));
    LK_TRY(LKI_NEW(&c->sources, c->manifest->file_count + 1, "the files of a checkpoint"));
    for (size_t i = 0; i < c->manifest->file_count; i++)
        c->sources[i].fd = -1;
    for (size_t i = 0; i < c->manifest->file_count; i++)
        LK_TRY(open_source(c, i));
    return LK_OK;
}

/* ---- Tensors to write ---------------------------------------------------------------------- */

static bool is_model(const lki_manifest_tensor *tensor)
{
    return strcmp(tensor->file, "model.safetensors") == 0;
}

static lk_status choose_tensors(consolidation *c)
{
    const lki_manifest *manifest = c->manifest;
    LK_TRY(LKI_NEW(&c->chosen, manifest->tensor_count + 1, "a checkpoint's tensors"));
    LK_TRY(LKI_NEW(&c->tensors, manifest->tensor_count + 1, "a checkpoint's tensors"));
    for (int model = 1; model >= (c->options->everything ? 0 : 1); model--)
        for (size_t i = 0; i < manifest->tensor_count; i++) {
            const lki_manifest_tensor *tensor = &manifest->tensors[i];
            uint64_t                   count, bytes;
            if (is_model(tensor) != (model == 1))
                continue;
            bool fits = lki_shape_size(tensor->shape, tensor->dtype, &count, &bytes);
            LK_ASSERT(fits);
            c->all += bytes;
            c->model_count += (size_t)model;
            c->chosen[c->count] = tensor;
            c->tensors[c->count++] =
                (lk_tensor){ tensor->name, tensor->dtype, tensor->shape, NULL };
        }
    if (c->model_count == 0)
        return lk_fail(LK_EFORMAT, "%s: there is no tensor of a model in it", c->folder);
    return LK_OK;
}

/* *at becomes the position of a piece in its file.  The piece must have the size that the manifest
 * states. */
static lk_status find_piece(uint64_t *at, consolidation *c, const lki_manifest_tensor *tensor,
                            const lki_manifest_piece *piece)
{
    const lki_safetensors_index *index = &c->sources[piece->file].index;
    for (size_t i = 0; i < index->count; i++) {
        const lk_tensor *found = &index->tensors[i];
        uint64_t         count, bytes;
        if (strcmp(found->name, tensor->name) != 0)
            continue;
        if (!lki_shape_size(found->shape, found->dtype, &count, &bytes) || count != piece->count ||
            found->dtype != tensor->dtype)
            break;
        *at = index->begins[i];
        return LK_OK;
    }
    return lk_fail(LK_EFORMAT, "%s/%s: has no tensor '%s' of the size that the manifest says",
                   c->folder, c->manifest->files[piece->file].name, tensor->name);
}

/* Reads elements of a tensor from the pieces that contain them.  Implements lk_checkpoint_fetch. */
static lk_status fetch(void *context, size_t tensor, size_t first, size_t count, void *out)
{
    consolidation             *c     = context;
    const lki_manifest_tensor *from  = c->chosen[tensor];
    const size_t               width = lk_dtype_bytes(from->dtype);
    for (size_t i = 0; i < from->piece_count; i++) {
        const lki_manifest_piece *piece = &c->manifest->pieces[from->first_piece + i];
        uint64_t begin = lki_max(first, piece->first), at = 0;
        uint64_t end   = lki_min(first + count, piece->first + piece->count);
        if (begin >= end)
            continue;
        LK_TRY(find_piece(&at, c, from, piece));
        LK_TRY(read_range(c, &c->sources[piece->file], at + (begin - piece->first) * width,
                          (size_t)(end - begin) * width, (uint8_t *)out + (begin - first) * width));
    }
    for (; c->headed < c->model_count && c->headed <= tensor; c->headed++)
        lki_hash_heading(&c->weights, &c->tensors[c->headed]);
    if (tensor < c->model_count)
        lki_hash_elements(&c->weights, from->dtype, out, count * width);
    c->done += count * width;
    if (c->options->progress != NULL)
        c->options->progress(c->options->context, c->done, c->all);
    return LK_OK;
}

/* Compares the hash of the weights with the hash in the manifest.  fetch() adds each tensor's name,
 * type and shape to the hash, but is not called for empty tensors at the end, so this function adds
 * the names, types and shapes of these tensors. */
static lk_status compare_weights(consolidation *c)
{
    char hex[65];
    for (; c->headed < c->model_count; c->headed++)
        lki_hash_heading(&c->weights, &c->tensors[c->headed]);
    lki_sha256_end(&c->weights, hex);
    if (strcmp(hex, c->manifest->info.weights) != 0)
        return lk_fail(LK_ECORRUPT, "%s: its weights hash to %.16s..., the manifest says %.16s...",
                       c->folder, hex, c->manifest->info.weights);
    return LK_OK;
}

/* ---- The new file -------------------------------------------------------------------------- */

static lk_status write_out(consolidation *c, const char *temporary, char sha256[65])
{
    const lk_checkpoint_file file = { .name = c->options->path, .tensors = c->tensors,
                                      .tensor_count = c->count, .fetch = fetch, .context = c };
    lki_output output;
    LK_TRY(lki_tensors_check(&file));
    lk_status status = lki_output_open(&output, temporary, true);
    bool      made   = status == LK_OK;
    lki_sha256_begin(&c->weights);
    if (status == LK_OK)
        status = lki_safetensors_put(&output, &file);
    if (status == LK_OK)
        status = compare_weights(c);
    if (status == LK_OK)
        status = lki_output_finish(&output, true);
    if (status == LK_OK)
        memcpy(sha256, output.sha256, sizeof output.sha256);
    lki_output_free(&output);
    if (status == LK_OK && rename(temporary, c->options->path) != 0)
        status = lk_fail(LK_EIO, "cannot rename '%s' to '%s': %s", temporary, c->options->path,
                         strerror(errno));
    if (status != LK_OK && made)
        (void)unlink(temporary);
    return status;
}

static lk_status publish(consolidation *c, char sha256[65])
{
    const char *path  = c->options->path;
    const char *slash = strrchr(path, '/');
    const int   above = slash == NULL ? 0 : (int)(slash - path) + 1;
    char        temporary[LKI_PATH_BYTES], folder[LKI_PATH_BYTES];
    struct stat info;
    if (lstat(path, &info) == 0)
        return lk_fail(LK_EINVAL, "'%s' is there already and is not overwritten", path);
    if (snprintf(temporary, sizeof temporary, "%.*s.tmp-%s-%ld", above, path, path + above,
                 (long)getpid()) >= (int)sizeof temporary)
        return lk_fail(LK_EINVAL, "'%.60s...' is too long for a path", path);
    (void)snprintf(folder, sizeof folder, "%.*s", above, above == 0 ? "" : path);
    LK_TRY(write_out(c, temporary, sha256));
    return lki_directory_sync(above == 0 ? "." : folder);
}

static void close_all(consolidation *c)
{
    for (size_t i = 0; c->sources != NULL && i < c->manifest->file_count; i++) {
        if (c->sources[i].fd >= 0)
            (void)close(c->sources[i].fd);
        lki_safetensors_index_free(&c->sources[i].index);
    }
    lki_free(c->sources);
    lki_free(c->block);
    lki_free(c->chosen);
    lki_free(c->tensors);
}

lk_status lk_checkpoint_consolidate(const lk_checkpoint *checkpoint,
                                    const lk_consolidate_options *options, char sha256[65])
{
    lk_consolidate_options mine;

    LK_TRY(lki_options_copy(&mine, sizeof mine, options, "lk_consolidate_options"));
    if (mine.path == NULL || mine.path[0] == '\0')
        return lk_fail(LK_EINVAL, "`path` is missing: the file to write");
    consolidation c = { .manifest = lki_checkpoint_manifest(checkpoint),
                        .folder   = lk_checkpoint_path(checkpoint),
                        .options  = &mine };
    lk_status status = open_sources(&c);
    if (status == LK_OK)
        status = choose_tensors(&c);
    if (status == LK_OK)
        status = publish(&c, sha256);
    close_all(&c);
    return status;
}

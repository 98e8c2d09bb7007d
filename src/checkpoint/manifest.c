/* manifest.c -- reads and writes manifest.json.
 *
 * The hash line covers the file's bytes as they are, not a canonical form of the JSON.  So the hash
 * does not depend on how a JSON library formats a number, and every flipped bit of the file is
 * detected.  `sed 2d manifest.json | sha256sum` verifies it by hand.
 *
 * The parser trusts nothing, even with a valid hash (it is fuzzed without the hash).  The parser
 * refuses unknown fields, wrong types, names outside the directory, pieces with gaps and sizes that
 * overflow.  The error names the place in the manifest.
 */
#include "checkpoint/manifest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "checkpoint/directory.h"
#include "checkpoint/safetensors.h"

#define FORMAT "lockstep-checkpoint"
enum { VERSION = 1 };

static const char opening[]   = "{\n";
static const char hash_line[] = " \"manifest_sha256\": \"";
static const char hash_end[]  = "\",\n";

enum {
    HASH_AT   = sizeof opening - 1 + sizeof hash_line - 1,
    REST_AT   = HASH_AT + 64 + sizeof hash_end - 1,
    NAME_MAX_ = 100
};

/* ---- Names and hashes ---------------------------------------------------------------------- */

bool lki_is_hex(const char *text, size_t digits)
{
    return strlen(text) == digits && strspn(text, "0123456789abcdef") == digits;
}

bool lki_manifest_name_ok(const char *name)
{
    static const char end[] = ".safetensors";
    size_t            bytes = strlen(name);
    return bytes >= sizeof end && bytes <= NAME_MAX_ && name[0] != '.' &&
           strcmp(name + bytes - (sizeof end - 1), end) == 0 &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
               bytes;
}

/* Computes the SHA-256 of the text without its hash line. */
static void hash_text(const char *rest, size_t bytes, char hex[65])
{
    lki_sha256 hash;
    lki_sha256_begin(&hash);
    lki_sha256_add(&hash, opening, sizeof opening - 1);
    lki_sha256_add(&hash, rest, bytes);
    lki_sha256_end(&hash, hex);
}

lk_status lki_manifest_verify(const char *text, size_t bytes, const char *path)
{
    char hex[65];
    if (bytes < REST_AT || memcmp(text, opening, sizeof opening - 1) != 0 ||
        memcmp(text + sizeof opening - 1, hash_line, sizeof hash_line - 1) != 0 ||
        memcmp(text + HASH_AT + 64, hash_end, sizeof hash_end - 1) != 0)
        return lk_fail(LK_EFORMAT, "%s: does not start with the manifest's hash", path);
    hash_text(text + REST_AT, bytes - REST_AT, hex);
    if (memcmp(text + HASH_AT, hex, 64) != 0)
        return lk_fail(LK_ECORRUPT,
                       "%s: differs from its hash: SHA-256 %.16s..., expected %.16s...", path, hex,
                       text + HASH_AT);
    return LK_OK;
}

/* ---- Parsing ------------------------------------------------------------------------------- */

static lk_status parse_info(lki_manifest *out, json_t **files, json_t **tensors, const char *path)
{
    json_error_t error;
    const char  *self, *format, *seed;
    int          version, block_bytes;
    json_int_t   step;
    json_t      *config;
    if (json_unpack_ex(out->root, &error, 0, "{s:s, s:i}", "format", &format, "version",
                       &version) != 0)
        return lk_fail(LK_EFORMAT, "%s: %s", path, error.text);
    if (strcmp(format, FORMAT) != 0)
        return lk_fail(LK_EFORMAT, "%s: format '%.40s', not '%s'", path, format, FORMAT);
    if (version != VERSION)
        return lk_fail(LK_EUNSUPPORTED, "%s: version %d; this build reads version %d", path,
                       version, VERSION);
    if (json_unpack_ex(out->root, &error, JSON_STRICT,
                       "{s:s, s:s, s:i, s:i, s:I, s:s, s:s, s:s, s:o, s:o, s:o}", "manifest_sha256",
                       &self, "format", &format, "version", &version, "block_bytes", &block_bytes,
                       "step", &step, "seed", &seed, "exactness_id", &out->info.exactness_id,
                       "weights", &out->info.weights, "config", &config, "files", files, "tensors",
                       tensors) != 0)
        return lk_fail(LK_EFORMAT, "%s: %s", path, error.text);
    if (block_bytes != (int)LKI_BLOCK_BYTES)
        return lk_fail(LK_EFORMAT, "%s: blocks of %d bytes, not %zu", path, block_bytes,
                       LKI_BLOCK_BYTES);
    if (step < 0 || !lki_is_hex(out->info.weights, 64) || !json_is_object(config))
        return lk_fail(LK_EFORMAT, "%s: no usable step, weights hash or config", path);
    char *end;
    errno          = 0;
    out->info.seed = strtoull(seed, &end, 10);
    if (seed[0] < '0' || seed[0] > '9' || *end != '\0' || errno != 0)
        return lk_fail(LK_EFORMAT, "%s: the seed '%.40s' is not a number", path, seed);
    out->info.step   = (uint64_t)step;
    out->info.config = out->config = json_dumps(config, JSON_COMPACT);
    if (out->config == NULL)
        return lk_fail(LK_ENOMEM, "%s: the configuration", path);
    return LK_OK;
}

static lk_status find_file(size_t *out, const lki_manifest *manifest, const char *name,
                           const char *path)
{
    for (size_t i = 0; i < manifest->file_count; i++)
        if (strcmp(manifest->files[i].name, name) == 0) {
            *out = i;
            return LK_OK;
        }
    return lk_fail(LK_EFORMAT, "%s: a piece in '%.100s', which is not among the files", path, name);
}

static lk_status parse_file(lki_manifest *out, json_t *value, const char *path)
{
    lki_manifest_file file;
    json_error_t      error;
    json_int_t        bytes;
    json_t           *blocks;
    size_t            same;
    if (json_unpack_ex(value, &error, JSON_STRICT, "{s:s, s:I, s:s, s:o}", "name", &file.name,
                       "bytes", &bytes, "sha256", &file.sha256, "xxh3_128", &blocks) != 0)
        return lk_fail(LK_EFORMAT, "%s: file %zu: %s", path, out->file_count, error.text);
    if (!lki_manifest_name_ok(file.name))
        return lk_fail(LK_EFORMAT, "%s: '%.100s' is not a name for a file of a checkpoint", path,
                       file.name);
    if (find_file(&same, out, file.name, path) == LK_OK)
        return lk_fail(LK_EFORMAT, "%s: file '%s' is there twice", path, file.name);
    if (bytes < 0 || !lki_is_hex(file.sha256, 64) || !json_is_array(blocks))
        return lk_fail(LK_EFORMAT, "%s: file '%s' has no usable size or hashes", path, file.name);
    uint64_t size = (uint64_t)bytes;
    if (json_array_size(blocks) != size / LKI_BLOCK_BYTES + (size % LKI_BLOCK_BYTES != 0))
        return lk_fail(LK_EFORMAT, "%s: file '%s' of %" PRIu64 " bytes has %zu block hashes", path,
                       file.name, size, json_array_size(blocks));
    for (size_t i = 0; i < json_array_size(blocks); i++) {
        const char *hex = json_string_value(json_array_get(blocks, i));
        if (hex == NULL || !lki_is_hex(hex, 32))
            return lk_fail(LK_EFORMAT, "%s: hash %zu of file '%s' is not 32 hex digits", path, i,
                           file.name);
    }
    file.bytes                     = size;
    file.blocks                    = blocks;
    out->files[out->file_count++] = file;
    return LK_OK;
}

/* Parses the pieces of a tensor, which must cover it exactly, in ascending order. */
static lk_status parse_pieces(lki_manifest *out, lki_manifest_tensor *tensor, json_t *pieces,
                              size_t *capacity, const char *path)
{
    uint64_t count, bytes, at = 0;
    if (!lki_shape_size(tensor->shape, tensor->dtype, &count, &bytes))
        return lk_fail(LK_EFORMAT, "%s: the size of tensor '%s' overflows", path, tensor->name);
    tensor->first_piece = out->piece_count;
    tensor->piece_count = json_array_size(pieces);
    for (size_t i = 0; i < tensor->piece_count; i++) {
        json_error_t       error;
        lki_manifest_piece piece;
        const char        *file;
        json_int_t         first, length;
        if (json_unpack_ex(json_array_get(pieces, i), &error, JSON_STRICT, "{s:s, s:I, s:I}",
                           "file", &file, "first", &first, "count", &length) != 0)
            return lk_fail(LK_EFORMAT, "%s: piece %zu of tensor '%s': %s", path, i, tensor->name,
                           error.text);
        if (first < 0 || (uint64_t)first != at || length < 0 || (uint64_t)length > count - at)
            return lk_fail(
                LK_EFORMAT,
                "%s: piece %zu of tensor '%s' has elements %lld + %lld; it must start at "
                "%" PRIu64 " and end by %" PRIu64,
                path, i, tensor->name, (long long)first, (long long)length, at, count);
        LK_TRY(find_file(&piece.file, out, file, path));
        piece.first = at;
        piece.count = (uint64_t)length;
        at += piece.count;
        LK_TRY(lki_reserve((void **)&out->pieces, capacity, out->piece_count, sizeof piece,
                           "the pieces of a checkpoint"));
        out->pieces[out->piece_count++] = piece;
    }
    if (at != count || tensor->piece_count == 0)
        return lk_fail(LK_EFORMAT, "%s: the pieces of tensor '%s' have %" PRIu64 " of %" PRIu64
                       " elements", path, tensor->name, at, count);
    return LK_OK;
}

/* Checks that the tensor's name is unique in its file. `seen` has one JSON object per logical file,
 * whose keys are the names of the tensors checked so far. */
static lk_status check_unique(const lki_manifest_tensor *tensor, json_t *seen, const char *path)
{
    json_t *names = json_object_get(seen, tensor->file);
    if (names == NULL) {
        names = json_object();
        if (json_object_set_new(seen, tensor->file, names) != 0)
            return lk_fail(LK_ENOMEM, "%s: the tensors' names", path);
    }
    if (json_object_get(names, tensor->name) != NULL)
        return lk_fail(LK_EFORMAT, "%s: tensor '%s' of '%s' is there twice", path, tensor->name,
                       tensor->file);
    if (json_object_set_new(names, tensor->name, json_true()) != 0)
        return lk_fail(LK_ENOMEM, "%s: the tensors' names", path);
    return LK_OK;
}

static lk_status parse_tensor(lki_manifest *out, json_t *value, json_t *seen, size_t *capacity,
                              const char *path)
{
    lki_manifest_tensor tensor;
    json_error_t        error;
    const char         *dtype;
    json_t             *shape, *pieces;
    if (json_unpack_ex(value, &error, JSON_STRICT, "{s:s, s:s, s:s, s:o, s:o}", "file",
                       &tensor.file, "name", &tensor.name, "dtype", &dtype, "shape", &shape,
                       "pieces", &pieces) != 0)
        return lk_fail(LK_EFORMAT, "%s: tensor %zu: %s", path, out->tensor_count, error.text);
    if (!lki_manifest_name_ok(tensor.file))
        return lk_fail(LK_EFORMAT,
                       "%s: tensor '%s' belongs to '%.100s', which is not a file's name", path,
                       tensor.name, tensor.file);
    LK_TRY(check_unique(&tensor, seen, path));
    LK_TRY(lki_dtype_parse(&tensor.dtype, dtype, path, tensor.name));
    LK_TRY(lki_shape_parse(&tensor.shape, shape, path, tensor.name));
    if (!json_is_array(pieces))
        return lk_fail(LK_EFORMAT, "%s: the pieces of tensor '%s' are not an array", path,
                       tensor.name);
    LK_TRY(parse_pieces(out, &tensor, pieces, capacity, path));
    out->tensors[out->tensor_count++] = tensor;
    return LK_OK;
}

static lk_status parse_root(lki_manifest *out, const char *path)
{
    json_t *files, *tensors;
    LK_TRY(parse_info(out, &files, &tensors, path));
    if (!json_is_array(files) || !json_is_array(tensors))
        return lk_fail(LK_EFORMAT, "%s: files or tensors are not an array", path);
    LK_TRY(LKI_NEW(&out->files, json_array_size(files) + 1, "the files of a checkpoint"));
    LK_TRY(LKI_NEW(&out->tensors, json_array_size(tensors) + 1, "the tensors of a checkpoint"));
    for (size_t i = 0; i < json_array_size(files); i++)
        LK_TRY(parse_file(out, json_array_get(files, i), path));

    json_t   *seen     = json_object();
    size_t    capacity = 0;
    lk_status status   = seen == NULL ? lk_fail(LK_ENOMEM, "%s: the tensors' names", path) : LK_OK;
    for (size_t i = 0; i < json_array_size(tensors) && status == LK_OK; i++)
        status = parse_tensor(out, json_array_get(tensors, i), seen, &capacity, path);
    json_decref(seen);
    return status;
}

lk_status lki_manifest_parse(lki_manifest *out, const char *text, size_t bytes, const char *path)
{
    json_error_t error;
    *out      = (lki_manifest){ 0 };
    out->root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (out->root == NULL)
        return lk_fail(LK_EFORMAT, "%s:%d: %s", path, error.line, error.text);
    lk_status status = parse_root(out, path);
    if (status != LK_OK)
        lki_manifest_free(out);
    return status;
}

void lki_manifest_free(lki_manifest *manifest)
{
    json_decref(manifest->root);
    free(manifest->config);
    lki_free(manifest->files);
    lki_free(manifest->tensors);
    lki_free(manifest->pieces);
    *manifest = (lki_manifest){ 0 };
}

/* ---- Writing ------------------------------------------------------------------------------- */

/* Inserts the hash line into the text of all other lines. */
static lk_status add_hash_line(char **out, const char *dump)
{
    char        hex[65];
    const char *rest  = dump + sizeof opening - 1;
    size_t      bytes = REST_AT + strlen(rest) + sizeof "\n";
    char       *text  = malloc(bytes);
    LK_ASSERT(strncmp(dump, opening, sizeof opening - 1) == 0);
    if (text == NULL)
        return lk_fail(LK_ENOMEM, "a manifest of %zu bytes", bytes);
    (void)snprintf(text, bytes, "%s%s%064d%s%s\n", opening, hash_line, 0, hash_end, rest);
    hash_text(text + REST_AT, strlen(text + REST_AT), hex);
    memcpy(text + HASH_AT, hex, 64);
    *out = text;
    return LK_OK;
}

lk_status lki_manifest_dump(char **out, const lk_checkpoint_info *info, json_t *files,
                            json_t *tensors)
{
    char         seed[24];
    json_error_t error;
    json_t      *config = json_loads(info->config, JSON_REJECT_DUPLICATES, &error);
    *out                = NULL;
    if (!json_is_object(config)) {
        json_decref(config);
        json_decref(files);
        json_decref(tensors);
        return lk_fail(LK_EINVAL, "a checkpoint's configuration is not a JSON object");
    }
    (void)snprintf(seed, sizeof seed, "%" PRIu64, info->seed);
    json_t *root = json_pack("{s:s, s:i, s:i, s:I, s:s, s:s, s:s, s:o, s:o, s:o}", "format", FORMAT,
                             "version", VERSION, "block_bytes", (int)LKI_BLOCK_BYTES, "step",
                             (json_int_t)info->step, "seed", seed, "exactness_id",
                             info->exactness_id, "weights", info->weights, "config", config,
                             "files", files, "tensors", tensors);
    char   *dump = root == NULL ? NULL : json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    lk_status status = dump == NULL ? lk_fail(LK_ENOMEM, "a manifest") : add_hash_line(out, dump);
    free(dump);
    return status;
}

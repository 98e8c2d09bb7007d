/* checkpoint/manifest.h -- manifest.json: the contents of a checkpoint, parsed and checked.
 *
 *  {
 *   "manifest_sha256": "...",            SHA-256 of this file without this line
 *   "format": "lockstep-checkpoint", "version": 1, "block_bytes": 1048576,
 *   "step": 100, "seed": "1", "exactness_id": "...", "weights": "...", "config": {...},
 *   "files":   [{"name": "model.safetensors", "bytes": 0, "sha256": "...", "xxh3_128": ["..."]}],
 *   "tensors": [{"file": "model.safetensors", "name": "...", "dtype": "F32", "shape": [2, 3],
 *                "pieces": [{"file": "model.safetensors", "first": 0, "count": 6}]}]
 *  }
 *
 * A tensor belongs to the logical file under whose name it is read.  It is stored in pieces, by
 * global offset, in one file or several.  A file stores a piece under the tensor's name, with the
 * tensor's shape if the piece is the whole tensor, and as one row otherwise.
 */
#ifndef LKI_MANIFEST_H
#define LKI_MANIFEST_H

#include <jansson.h>

#include "base/status.h"
#include "lockstep/checkpoint.h"

typedef struct {
    const char   *name, *sha256;
    uint64_t      bytes;
    const json_t *blocks; /* array of strings of 32 digits, one per block */
} lki_manifest_file;

typedef struct {
    size_t   file; /* index into files */
    uint64_t first, count;
} lki_manifest_piece;

typedef struct {
    const char *name, *file;
    lk_dtype    dtype;
    lk_shape    shape;
    size_t      first_piece, piece_count; /* the tensor's range in `pieces` */
} lki_manifest_tensor;

typedef struct {
    json_t              *root; /* owns every string below */
    char                *config;
    lk_checkpoint_info   info;
    lki_manifest_file   *files;
    lki_manifest_tensor *tensors;
    lki_manifest_piece  *pieces;
    size_t               file_count, tensor_count, piece_count;
} lki_manifest;

/* Compares the hash of the text with the text's own hash line.  Returns LK_EFORMAT if there is no
 * such line, LK_ECORRUPT if the hash differs. */
LK_NODISCARD lk_status lki_manifest_verify(const char *text, size_t bytes, const char *path);

/* Parses the text without checking its hash line.  On failure *out is empty. */
LK_NODISCARD lk_status lki_manifest_parse(lki_manifest *out, const char *text, size_t bytes,
                                          const char *path);
void lki_manifest_free(lki_manifest *manifest);

/* Writes the manifest as text with its hash line.  The caller frees *out with free().  Takes
 * ownership of `files` and `tensors`, the arrays of these names in manifest.json (see the top of
 * this file), also on failure. */
LK_NODISCARD lk_status lki_manifest_dump(char **out, const lk_checkpoint_info *info, json_t *files,
                                         json_t *tensors);

/* Returns true for a valid file name: letters, digits, '.', '_' and '-', no dot first,
 * ".safetensors" at the end.  Such a name cannot refer to a file outside its directory. */
bool lki_manifest_name_ok(const char *name);
/* Returns true if the text consists of exactly `digits` lowercase hex digits. */
bool lki_is_hex(const char *text, size_t digits);

#endif

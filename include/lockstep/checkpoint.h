/* lockstep/checkpoint.h -- named tensors on disk: atomic, hashed, readable by any world size.
 *
 * A checkpoint is a directory DIR/step-00000100 with safetensors files and manifest.json.  The
 * format knows tensors by global shape and pieces by offset, never ranks or a world size.
 * Writing: a temporary directory, every file hashed (XXH3-128 per MiB, SHA-256 whole) and
 * fsynced, the manifest last, rename, fsync of the parent.  A crash at any point leaves what was
 * there.  Loading verifies hashes.  No format here can carry code.
 */
#ifndef LK_CHECKPOINT_H
#define LK_CHECKPOINT_H

#include "lockstep/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Writing ----------------------------------------------------------------------------- */

/* Fills `out` with elements [first, first + count) of a file's tensor. */
typedef lk_status (*lk_checkpoint_fetch)(void *context, size_t tensor, size_t first, size_t count,
                                         void *out);

enum { LK_CHECKPOINT_PIECE = 1 << 18 }; /* elements that are fetched at a time; the last: fewer */

/* One file of a checkpoint and the whole tensors in it.  Those without data are fetched, each from
 * its first piece to its last, in order of tensors; what fetching returns, writing returns. */
typedef struct {
    const char         *name; /* "model.safetensors" */
    const lk_tensor    *tensors;
    size_t              tensor_count;
    lk_checkpoint_fetch fetch; /* NULL: all have data */
    void               *context;
} lk_checkpoint_file;

/* What the manifest says besides tensors and hashes. */
typedef struct {
    uint64_t    step;          /* updates done: the run goes on with this step */
    uint64_t    seed;
    const char *exactness_id;  /* design rule 8 */
    const char *weights;       /* the weights hash, 64 hex digits */
    const char *config;        /* a JSON object: every option that defines the result */
    const uint64_t *spared;    /* writing: steps that stay, however old they are */
    size_t          spared_count;
} lk_checkpoint_info;

/* Writes DIR/step-%08u, and once that is durable removes the steps older than the newest `keep`
 * (0 = keep all) that are complete by their manifests; never the one just written, nor one that
 * `info` spares.  Creates DIR if
 * need be.  LK_EINVAL when the step is already there and whole (a damaged one is moved aside, to
 * DIR/damaged-step-...); LK_EIO with the file and the reason, nothing
 * half-written left under the final name.  A file's name ends in ".safetensors". */
LK_API LK_NODISCARD lk_status lk_checkpoint_write(const char *dir, const lk_checkpoint_info *info,
                                                  const lk_checkpoint_file *files,
                                                  size_t file_count, uint32_t keep);

/* ---- Reading ----------------------------------------------------------------------------- */

typedef struct lk_checkpoint lk_checkpoint;

/* Whether DIR holds any checkpoint, complete or not (so that nothing is overwritten). */
LK_API LK_NODISCARD lk_status lk_checkpoint_exists(const char *dir, bool *out);

/* Opens `path`: a step directory, or a directory of them (then the newest that verifies; `notes`
 * (may be NULL) receives one line for every newer one that was skipped, and why).  Verifies the
 * manifest and every block of every file.  LK_ECORRUPT names the file, the block and the tensor in
 * it; LK_EFORMAT what is malformed; LK_EIO what cannot be read, or that there is none. */
LK_API LK_NODISCARD lk_status lk_checkpoint_open(lk_checkpoint **out, const char *path,
                                                 char *notes, size_t notes_bytes);
/* The one of a given step of DIR. */
LK_API LK_NODISCARD lk_status lk_checkpoint_open_step(lk_checkpoint **out, const char *dir,
                                                      uint64_t step);

/* As lk_checkpoint_open(), but reads only the manifest: for looking at damaged ones.  Tensors have
 * no data (NULL). */
LK_API LK_NODISCARD lk_status lk_checkpoint_open_manifest(lk_checkpoint **out, const char *path,
                                                          char *notes, size_t notes_bytes);
LK_API void lk_checkpoint_free(lk_checkpoint *checkpoint);

/* `config` comes back as the same JSON values in the same order; its spelling may differ. */
LK_API const lk_checkpoint_info *lk_checkpoint_describe(const lk_checkpoint *checkpoint);
LK_API const char *lk_checkpoint_path(const lk_checkpoint *checkpoint);

/* The i-th file on the disk as the manifest has it; NULL past the end. */
typedef struct {
    const char *name;
    uint64_t    bytes;
    const char *sha256;
} lk_checkpoint_stored;
LK_API const lk_checkpoint_stored *lk_checkpoint_file_at(const lk_checkpoint *checkpoint,
                                                         size_t index);

/* Reads the i-th file and compares its blocks and its SHA-256 with the manifest: LK_ECORRUPT,
 * LK_EIO. */
LK_API LK_NODISCARD lk_status lk_checkpoint_verify(const lk_checkpoint *checkpoint, size_t index);

/* The i-th tensor of the checkpoint (all files, in manifest order), mapped; NULL past the end.  One
 * that lies in several pieces is put together in memory: without that it has no data (NULL). */
LK_API const lk_tensor *lk_checkpoint_tensor(const lk_checkpoint *checkpoint, size_t index);
LK_API const char *lk_checkpoint_tensor_file(const lk_checkpoint *checkpoint, size_t index);

/* lk_weights_hash() of the tensors of model.safetensors, piece by piece where they lie, to compare
 * with what the manifest says; false: there are none, or only the manifest is open. */
LK_API bool lk_checkpoint_weights_hash(const lk_checkpoint *checkpoint, char hex[65]);

/* Copies elements [first, first + count) of FP32 tensor `name` of file `file`, whatever pieces it
 * lies in.  LK_EFORMAT if there is no such tensor or its shape is not `shape`. */
LK_API LK_NODISCARD lk_status lk_checkpoint_read(const lk_checkpoint *checkpoint, const char *file,
                                                 const char *name, lk_shape shape, size_t first,
                                                 size_t count, float *out);

/* ---- One file out of a checkpoint -------------------------------------------------------- */

typedef struct {
    const char *path;       /* the new file; nothing may be there */
    bool        everything; /* the optimizer's and other state, too, not only model.safetensors */
    void (*progress)(void *context, uint64_t done, uint64_t all); /* (optional) bytes of tensors */
    void *context;
} lk_consolidate_options;

/* Writes the checkpoint's tensors, under their names, into one safetensors file with a few MiB of
 * memory, however large they are: only the manifest need be open.  Every block read is compared
 * with its hash and the model with the weights hash (LK_ECORRUPT).  The file appears whole and
 * durable or not at all.  LK_EINVAL: it is there already, or a name is there twice.  sha256: of
 * the file, 64 digits and a NUL. */
LK_API LK_NODISCARD lk_status lk_checkpoint_consolidate(const lk_checkpoint *checkpoint,
                                                        const lk_consolidate_options *options,
                                                        char sha256[65]);

/* ---- One safetensors file ---------------------------------------------------------------- */

typedef struct lk_safetensors lk_safetensors;

/* Maps and checks a file from anywhere: LK_EIO, LK_EFORMAT with what is wrong and where,
 * LK_EUNSUPPORTED for an element type or a rank that lk_tensor lacks (BOOL reads as U8). */
LK_API LK_NODISCARD lk_status lk_safetensors_open(lk_safetensors **out, const char *path);
LK_API void lk_safetensors_free(lk_safetensors *file);

/* The tensors in the order of their data; data is aligned to the element.  NULL past the end. */
LK_API size_t lk_safetensors_count(const lk_safetensors *file);
LK_API const lk_tensor *lk_safetensors_at(const lk_safetensors *file, size_t index);
LK_API const lk_tensor *lk_safetensors_find(const lk_safetensors *file, const char *name);

/* Writes one file, replacing what is there (not atomic, not synced: lk_checkpoint_write() is). */
LK_API LK_NODISCARD lk_status lk_safetensors_write(const char *path, const lk_tensor *tensors,
                                                   size_t count);

/* ---- Hashes ------------------------------------------------------------------------------ */

/* SHA-256 over, for each tensor: name (u32 length, bytes), dtype code (u8), rank (u32), dimensions
 * (u64 each), little-endian data with NaNs canonical.  A tensor in the memory of an earlier one of
 * the same type and shape is tied to it and counts once.  hex: 64 digits and a NUL. */
LK_API void lk_weights_hash(const lk_tensor *tensors, size_t count, char hex[65]);

#ifdef __cplusplus
}
#endif
#endif /* LK_CHECKPOINT_H */

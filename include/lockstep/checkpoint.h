/* lockstep/checkpoint.h -- named tensors on disk: atomic, hashed, readable by any world size.
 *
 * A checkpoint is a directory DIR/step-00000100 with safetensors files and manifest.json.  The
 * format describes tensors by global shape and pieces by offset; it contains no ranks and no world
 * size.  A checkpoint is written into a temporary directory.  Every file is hashed (XXH3-128 per
 * MiB, SHA-256 whole) and fsynced, the manifest last.  Then the directory is renamed and its parent
 * fsynced.  A crash at any point leaves the previous checkpoints intact.  Loading verifies the
 * hashes.  No file in a checkpoint can contain code.
 */
#ifndef LK_CHECKPOINT_H
#define LK_CHECKPOINT_H

#include "lockstep/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The file in which `lockstep train` keeps the options of a run, in its directory of checkpoints.
 * A directory with this file is that of a run, also before its first checkpoint. */
#define LK_RUN_COMMAND "command.json"

/* ---- Writing ----------------------------------------------------------------------------- */

/* Fills `out` with elements [first, first + count) of a tensor of the file. */
typedef lk_status (*lk_checkpoint_fetch)(void *context, size_t tensor, size_t first, size_t count,
                                         void *out);

enum { LK_CHECKPOINT_PIECE = 1 << 18 }; /* elements per fetch; the last fetch may be shorter */

/* One file of a checkpoint and the whole tensors in it.  `fetch` supplies the elements of tensors
 * that have no data (NULL): tensor by tensor, in order, and each tensor from its first piece to its
 * last.  The writing call returns a failure of `fetch`. */
typedef struct {
    const char         *name; /* "model.safetensors" */
    const lk_tensor    *tensors;
    size_t              tensor_count;
    lk_checkpoint_fetch fetch; /* NULL: all tensors have data */
    void               *context;
} lk_checkpoint_file;

/* The contents of the manifest other than tensors and hashes. */
typedef struct {
    uint64_t    step;          /* completed updates; a resumed run continues with this step */
    uint64_t    seed;
    const char *exactness_id;  /* hash of everything that determines the bits (design rule 8) */
    const char *weights;       /* the weights hash, 64 hex digits */
    const char *config;        /* a JSON object with every option that affects the result */
    const uint64_t *spared;    /* writing: steps that are never removed, whatever their age */
    size_t          spared_count;
} lk_checkpoint_info;

/* Writes DIR/step-%08u, creating DIR if needed.  Once the step is durable, removes complete steps
 * (judged by their manifests) that are older than the newest `keep`; 0 keeps all.  Never removes
 * the step just written or the steps in info->spared.  File names must end in ".safetensors".
 * Returns LK_EINVAL if the step exists and is intact.  A damaged step is renamed to
 * DIR/damaged-step-... first.  On an I/O error returns LK_EIO, with the file and the reason; no
 * partial step then has the final name. */
LK_API LK_NODISCARD lk_status lk_checkpoint_write(const char *dir, const lk_checkpoint_info *info,
                                                  const lk_checkpoint_file *files,
                                                  size_t file_count, uint32_t keep);

/* ---- Reading ----------------------------------------------------------------------------- */

typedef struct lk_checkpoint lk_checkpoint;

/* Sets *out to true if DIR holds a checkpoint, complete or not.  A checkpoint must not be
 * overwritten. */
LK_API LK_NODISCARD lk_status lk_checkpoint_exists(const char *dir, bool *out);

/* Returns true if a run has begun to go back to the checkpoint of *step in DIR, and has not
 * recorded its command yet: it is about to begin, or was killed.  The checkpoints of later steps
 * are in the directory `aside` of DIR, or are to be moved there. */
LK_API bool lk_checkpoint_goes_back(const char *dir, uint64_t *step, char aside[32]);

/* Opens `path`: a step directory, or a directory of steps, of which the newest valid one is opened.
 * In the second case `notes` (may be NULL) receives one line for every newer step that was skipped,
 * with the reason.  Verifies the manifest and every block of every file.  LK_ECORRUPT names the
 * file, the block and the tensor in the block.  LK_EFORMAT says what is malformed.  LK_EIO names
 * the unreadable file, or says that DIR has no step. */
LK_API LK_NODISCARD lk_status lk_checkpoint_open(lk_checkpoint **out, const char *path,
                                                 char *notes, size_t notes_bytes);
/* Opens the given step of DIR and verifies it as lk_checkpoint_open() does. */
LK_API LK_NODISCARD lk_status lk_checkpoint_open_step(lk_checkpoint **out, const char *dir,
                                                      uint64_t step);

/* Opens a checkpoint as lk_checkpoint_open() does, but reads only the manifest.  Used to inspect
 * damaged checkpoints.  Tensors have no data (NULL). */
LK_API LK_NODISCARD lk_status lk_checkpoint_open_manifest(lk_checkpoint **out, const char *path,
                                                          char *notes, size_t notes_bytes);
LK_API void lk_checkpoint_free(lk_checkpoint *checkpoint);

/* Returns the description from the manifest.  `config` has the JSON values that were written, in
 * the same order; its formatting may differ. */
LK_API const lk_checkpoint_info *lk_checkpoint_describe(const lk_checkpoint *checkpoint);
/* Returns the path of the step directory. */
LK_API const char *lk_checkpoint_path(const lk_checkpoint *checkpoint);

/* One file on disk, as the manifest describes it. */
typedef struct {
    const char *name;
    uint64_t    bytes;
    const char *sha256;
} lk_checkpoint_stored;
/* Returns the index-th file; NULL past the end. */
LK_API const lk_checkpoint_stored *lk_checkpoint_file_at(const lk_checkpoint *checkpoint,
                                                         size_t index);

/* Reads the index-th file and compares its blocks and its SHA-256 with the manifest.  Returns
 * LK_ECORRUPT or LK_EIO on failure. */
LK_API LK_NODISCARD lk_status lk_checkpoint_verify(const lk_checkpoint *checkpoint, size_t index);

/* Returns the index-th tensor of the checkpoint (all files, in manifest order), memory-mapped; NULL
 * past the end.  A tensor stored in several pieces is assembled in memory; if the allocation fails,
 * its data is NULL. */
LK_API const lk_tensor *lk_checkpoint_tensor(const lk_checkpoint *checkpoint, size_t index);
/* Returns the name of the file that holds the index-th tensor; NULL past the end. */
LK_API const char *lk_checkpoint_tensor_file(const lk_checkpoint *checkpoint, size_t index);

/* Computes lk_weights_hash() of the tensors of model.safetensors, for comparison with the hash in
 * the manifest.  Reads the tensors piece by piece, in place.  Returns false if the file has no
 * tensors or only the manifest is open. */
LK_API bool lk_checkpoint_weights_hash(const lk_checkpoint *checkpoint, char hex[65]);

/* Copies elements [first, first + count) of the FP32 tensor `name` of the file `file`.  The tensor
 * may be stored in several pieces.  Returns LK_EFORMAT if there is no such tensor or its shape is
 * not `shape`. */
LK_API LK_NODISCARD lk_status lk_checkpoint_read(const lk_checkpoint *checkpoint, const char *file,
                                                 const char *name, lk_shape shape, size_t first,
                                                 size_t count, float *out);

/* ---- One file out of a checkpoint -------------------------------------------------------- */

typedef struct {
    size_t      struct_size; /* see LK_CONSOLIDATE_OPTIONS_INIT */
    const char *path;       /* the new file; must not exist */
    bool        everything; /* includes optimizer and other state; false: model.safetensors only */
    void (*progress)(void *context, uint64_t done, uint64_t all); /* (optional) called with
                                                                   * bytes of tensors */
    void *context;
} lk_consolidate_options;

#define LK_CONSOLIDATE_OPTIONS_INIT LK_OPTIONS_INIT(lk_consolidate_options)

/* Writes the checkpoint's tensors, under their names, into one safetensors file.  Uses a few MiB of
 * memory, whatever the size of the tensors.  A checkpoint opened with lk_checkpoint_open_manifest()
 * suffices.  Compares every block read with its hash, and the model with the weights hash in the
 * manifest.  Returns LK_ECORRUPT if they differ.  The file appears complete and durable, or not at
 * all.  Returns LK_EINVAL if the file exists or two tensors have one name. `sha256` receives the
 * hash of the file: 64 hex digits and a NUL. */
LK_API LK_NODISCARD lk_status lk_checkpoint_consolidate(const lk_checkpoint *checkpoint,
                                                        const lk_consolidate_options *options,
                                                        char sha256[65]);

/* ---- One safetensors file ---------------------------------------------------------------- */

typedef struct lk_safetensors lk_safetensors;

/* Maps and checks a safetensors file of any origin.  Returns LK_EIO if the file cannot be read.
 * Returns LK_EFORMAT, saying what is wrong and where, for an invalid file.  Returns LK_EUNSUPPORTED
 * for an element type or a rank that lk_tensor lacks (BOOL is read as U8). */
LK_API LK_NODISCARD lk_status lk_safetensors_open(lk_safetensors **out, const char *path);
LK_API void lk_safetensors_free(lk_safetensors *file);

/* Returns the number of tensors. */
LK_API size_t lk_safetensors_count(const lk_safetensors *file);
/* Returns the index-th tensor in the order of the data, aligned to its element size; NULL past the
 * end. */
LK_API const lk_tensor *lk_safetensors_at(const lk_safetensors *file, size_t index);
/* Returns the tensor with the name `name`, or NULL. */
LK_API const lk_tensor *lk_safetensors_find(const lk_safetensors *file, const char *name);

/* Writes one file, replacing an existing one.  The write is neither atomic nor synced, unlike
 * lk_checkpoint_write(). */
LK_API LK_NODISCARD lk_status lk_safetensors_write(const char *path, const lk_tensor *tensors,
                                                   size_t count);

/* ---- Hashes ------------------------------------------------------------------------------ */

/* Computes SHA-256 over, for each tensor: name (u32 length, bytes), dtype code (u8), rank (u32),
 * dimensions (u64 each), little-endian data with canonical NaNs.  A tensor that shares the memory
 * of an earlier tensor of the same type and shape is tied to it and counted once. `hex` receives 64
 * digits and a NUL. */
LK_API void lk_weights_hash(const lk_tensor *tensors, size_t count, char hex[65]);

#ifdef __cplusplus
}
#endif
#endif /* LK_CHECKPOINT_H */

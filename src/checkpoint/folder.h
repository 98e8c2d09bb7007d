/* checkpoint/folder.h -- the tensors of a folder as Hugging Face's libraries write it, or of one
 * file.
 *
 * A folder has model.safetensors, or model.safetensors.index.json and the files that it names
 * (shards).
 */
#ifndef LKI_CHECKPOINT_FOLDER_H
#define LKI_CHECKPOINT_FOLDER_H

#include "lockstep/checkpoint.h"

typedef struct lki_folder lki_folder;

/* Opens a folder, or a safetensors file, and checks all headers.  The index and the shards must
 * name the same tensors, and a shard lies in the folder itself.  The data are mapped.  Returns
 * LK_EIO for a missing file, and LK_EFORMAT, which names the file and the tensor, if something is
 * damaged. */
LK_NODISCARD lk_status lki_folder_open(lki_folder **out, const char *path);
void lki_folder_free(lki_folder *folder);

/* Returns the index-th tensor; NULL past the end. */
const lk_tensor *lki_folder_at(const lki_folder *folder, size_t index);
/* Returns the tensor with the name `name`, or NULL. */
const lk_tensor *lki_folder_find(const lki_folder *folder, const char *name);

/* Computes the hash (lk_weights_hash()) of all tensors, in the order of their names. */
LK_NODISCARD lk_status lki_folder_hash(const lki_folder *folder, char hex[65]);

/* ---- Writing ------------------------------------------------------------------------------- */

/* Writes the tensors of `file` into `folder`: model.safetensors if they have at most `shard_bytes`,
 * else shards of at most that size (a larger tensor has a shard of its own), divided in the order
 * of the names, and their index.  In a file wider types come first, and then the order is that of
 * the names.  Files are synced.  file->name is not used. */
LK_NODISCARD lk_status lki_folder_write(const char *folder, const lk_checkpoint_file *file,
                                        uint64_t shard_bytes);
/* Writes the tensors of `file` into the file `name` in `folder`, in the same order. */
LK_NODISCARD lk_status lki_folder_write_one(const char *folder, const char *name,
                                            const lk_checkpoint_file *file);

#endif

/* checkpoint/checkpoint.h -- functions of the reader that the writer uses, and shared hashing
 * helpers. */
#ifndef LKI_CHECKPOINT_H
#define LKI_CHECKPOINT_H

#include "base/hash.h"
#include "checkpoint/manifest.h"
#include "lockstep/checkpoint.h"

/* Returns true if the hash line of a step's manifest is correct and all files exist with the sizes
 * that the manifest states.  Reads no tensor data. */
bool lki_checkpoint_complete(const char *step_path);

/* Returns the manifest of an open checkpoint, valid as long as the checkpoint is open. */
const lki_manifest *lki_checkpoint_manifest(const lk_checkpoint *checkpoint);

/* Adds the name, type and shape of a tensor to a hash, as lk_weights_hash() does before its
 * elements. */
void lki_hash_heading(lki_sha256 *hash, const lk_tensor *tensor);

/* Adds elements of `dtype` to a hash, with every NaN replaced by one canonical NaN. */
void lki_hash_elements(lki_sha256 *hash, lk_dtype dtype, const void *data, uint64_t bytes);

#endif

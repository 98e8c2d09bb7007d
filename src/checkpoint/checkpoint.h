/* checkpoint/checkpoint.h -- what the writer asks of the reader, and others of the hashes. */
#ifndef LKI_CHECKPOINT_H
#define LKI_CHECKPOINT_H

#include "base/hash.h"
#include "checkpoint/manifest.h"
#include "lockstep/checkpoint.h"

/* Whether the manifest of a step verifies and every file is there with its size.  Reads no data. */
bool lki_checkpoint_complete(const char *step_path);

/* What an open checkpoint's manifest says; lives as long as that. */
const lki_manifest *lki_checkpoint_manifest(const lk_checkpoint *checkpoint);

/* Adds what lk_weights_hash() hashes of a tensor ahead of its elements. */
void lki_hash_heading(lki_sha256 *hash, const lk_tensor *tensor);

/* Adds elements of `dtype` to a hash that people compare: as they are, but every NaN as one. */
void lki_hash_elements(lki_sha256 *hash, lk_dtype dtype, const void *data, uint64_t bytes);

#endif

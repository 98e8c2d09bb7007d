/* nn/engine_packs.h -- packed weights that engines share. */
#ifndef LKI_NN_ENGINE_PACKS_H
#define LKI_NN_ENGINE_PACKS_H

#include "lockstep/nn.h"

/* Returns the bytes of memory in which an engine can store packed weights; 0: storing them is not
 * worthwhile.  Weights are packed for each product.  The memory must be 64-byte aligned and
 * initially zero.  An engine stores packed weights there for all walks of one version, and finds
 * those of equal engines in other threads or processes.  The caller must set another version
 * whenever a parameter has changed, and must not walk two versions at the same time. */
LK_NODISCARD lk_status lki_engine_pack_bytes(size_t *out, const lk_model *model,
                                             const lk_exec *exec, lk_dtype dtype,
                                             uint32_t micro_batch);

/* Sets memory of `bytes` bytes.  Packed weights are not stored if `memory` is NULL, if it has less
 * than lki_engine_pack_bytes(), or if an engine with another layout of packs has used it. */
void                   lki_engine_keep_packs(lk_engine *engine, void *memory, size_t bytes);

#endif

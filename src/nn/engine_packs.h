/* nn/engine_packs.h -- packed weights that engines share. */
#ifndef LKI_NN_ENGINE_PACKS_H
#define LKI_NN_ENGINE_PACKS_H

#include "lockstep/nn.h"

/* Weights are packed for each product.  With lki_engine_pack_bytes() of memory, 64-byte aligned and
 * zero at first, an engine keeps them for all walks of one version, and finds what engines like it
 * have packed there, of other threads or processes.  The caller names another version whenever a
 * parameter has changed; no two are walked at a time.  0 bytes: it is not worth it. */
LK_NODISCARD lk_status lki_engine_pack_bytes(size_t *out, const lk_model *model,
                                             const lk_exec *exec, lk_dtype dtype,
                                             uint32_t micro_batch);
void                   lki_engine_keep_packs(lk_engine *engine, void *memory); /* NULL: none */

#endif
